"""Memory of published runs: the sources' worked sums, what sharding divides, and sources that measured it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from advisor.hardware.catalog import load_gpus
from advisor.laws import flops
from advisor.prediction.memory import load_memory_model
from advisor.prediction.memory_published import Mixture, StateCase, cases, parts, published_mixture
from advisor.prediction.memory_terms import WorkloadArrays, by_kind
from advisor.prediction.software import software_of
from advisor.records import Software, Workload
from advisor.store.folders import profiles_folder
from benchmarks.rows.reader import Reading, RowReader, row_cells
from tests.terminal import advisor
from trainer.schema import make_shape

GIB = 2**30


def workload(**changes) -> Workload:
    shape = make_shape("gpt2", depth=24, width=2048, heads=16, vocab_size=50304, seq_len=2048)
    base = Workload(shape=shape, micro_batch=1, gpu="v100-32gb-sxm2", precision="fp16", software=Software())
    return dataclasses.replace(base, **changes)


def held(w: Workload, **case) -> dict[str, float]:
    """What one case of a workload holds, by part."""
    asked = {"state": w.software.state, "whole_logits": True, "weight": 1.0} | case
    counted = parts(WorkloadArrays.of([w]), StateCase(**asked))
    return {name: float(np.broadcast_to(bytes_, (1,))[0]) for name, bytes_ in vars(counted).items()}


def state(w: Workload) -> float:
    return held(w)["weights"] + held(w)["optimizer"]


@pytest.mark.parametrize("kind, per_parameter", [("fp32", 12), ("copied", 14), ("16bit", 6)])
def test_state_is_the_usual_bytes_per_parameter(kind: str, per_parameter: int):
    w = workload(software=Software(state=kind))
    assert state(w) == pytest.approx(per_parameter * flops.parameters(w.shape))


def test_an_optimizer_of_8_bits_keeps_two_bytes_a_weight():
    w = workload(software=Software(state="16bit", moment_bytes=2.0))
    assert state(w) == pytest.approx((2 + 2) * flops.parameters(w.shape))


def test_sharding_divides_what_it_says():
    n = flops.parameters(workload().shape)
    assert state(workload(gpus=8, sharding="optimizer", software=Software(state="copied"))) == pytest.approx(
        n * (2 + 12 / 8)
    )
    assert state(workload(gpus=8, sharding="full")) == pytest.approx(12 * n / 8)


def test_unfused_attention_keeps_its_scores():
    """In 16 bits softmax's fp32 output and the copy that the product takes: 6 h s^2 bytes of each layer."""
    fused, plain = (workload(micro_batch=4, software=Software(fused_attention=on)) for on in (True, False))
    scores = 4 * 6 * 16 * 2048**2
    assert held(plain)["activations"] - held(fused)["activations"] == pytest.approx(24 * scores)
    full = [dataclasses.replace(w, activation_checkpointing="full") for w in (plain, fused)]
    assert held(full[0])["worked"] - held(full[1])["worked"] == pytest.approx(scores)


def test_a_gpt_block_keeps_32_bytes_per_token_and_width_compiled_and_38_under_eager_autocast():
    """Sources §2.2: about 32 s b d without dropout; eager, attention's output is copied and norms' inputs are fp32."""
    compiled, eager = (workload(micro_batch=4, compile=on) for on in (True, False))
    assert held(compiled)["activations"] == pytest.approx(24 * 32 * 4 * 2048 * 2048)
    assert held(eager)["activations"] == pytest.approx(24 * 38 * 4 * 2048 * 2048)


def test_logits_are_counted_in_the_copies_that_the_software_makes():
    rows = 4 * 2048 * 50304
    fp32, pure = (workload(micro_batch=4, software=Software(state=kind)) for kind in ("fp32", "16bit"))
    assert held(fp32)["logits"] == pytest.approx(14 * rows)  # 16-bit logits, three fp32 tensors
    assert held(pure)["logits"] == pytest.approx(8 * rows)
    assert held(fp32, whole_logits=False)["logits"] == pytest.approx(rows)
    nanochat = workload(micro_batch=4, compile=True, software=software_of("nanochat"))
    assert held(nanochat)["logits"] == pytest.approx(4 * rows)


def test_a_state_that_nobody_states_is_a_mixture_whose_weights_add_up():
    found = cases(Software(state="fp32", state_chance=0.6, whole_logits=None))
    assert sum(case.weight for case in found) == pytest.approx(1) and len(found) == 6
    assert sum(case.weight for case in found if case.state == "fp32") == pytest.approx(0.6)


def test_quantiles_of_a_mixture_are_those_of_its_parts():
    """Two cases a factor of 100 apart: each quantile lies in one of them. One case: that of a log-normal."""
    one = Mixture(logs=np.log([[8.0]]), deviations=np.array([[0.1]]), weights=np.array([[1.0]]))
    assert one.quantiles(np.array([[0.9]]))[0, 0] == pytest.approx(8 * np.exp(0.1 * 1.2815515655), rel=1e-4)
    two = Mixture(logs=np.log([[1.0], [100.0]]), deviations=np.full((2, 1), 0.1), weights=np.array([[0.6], [0.4]]))
    low, high = two.quantiles(np.array([[0.3], [0.8]]))[:, 0]  # half of each case's share
    assert low == pytest.approx(1, rel=1e-4) and high == pytest.approx(100, rel=1e-4)
    assert two.below(10.0)[0] == pytest.approx(0.6)
    assert two.estimates(ran_in=10.0).value[0] == pytest.approx(1, rel=1e-4)


def test_that_it_ran_on_its_card_says_that_a_models_state_was_16_bit():
    """1.1 B parameters with 16 bytes each and their activations pass a card of 16 GB; in 16 bits they do not."""
    shape = make_shape("llama", depth=22, width=2048, heads=32, kv_heads=4, ffn_width=5632, vocab_size=32000,
                       seq_len=2048)  # fmt: skip
    w = workload(shape=shape, micro_batch=1, precision="bf16", software=Software(state_chance=0.75))
    found = published_mixture(WorkloadArrays.of([w]), "allocated")
    before, after = (float(found.estimates(ran_in).value[0]) / GIB for ran_in in (None, 16 * GIB))
    assert before > 17 and after < 14


@pytest.mark.parametrize("micro_batch, gib", [(1, 16), (2, 17), (4, 20), (8, 25)])
def test_bigscience_grid_is_within_three_tenths(micro_batch: int, gib: float):
    """GPT 1.3B, 8 V100, ZeRO-1, full checkpointing; GB as nvidia-smi shows, rounded (BigScience tr3m chronicles)."""
    software = Software(state="copied", fused_attention=False)
    w = workload(micro_batch=micro_batch, gpus=8, sharding="optimizer", grad_accum=64 // micro_batch)
    w = dataclasses.replace(w, activation_checkpointing="full", software=software)
    found = load_memory_model().device_total_bytes(w)
    assert abs(found.value / GIB / gib - 1) < 0.3


def test_eight_and_128_gpus_differ_by_the_sharded_state():
    """torchtitan's 8B on 8 and 128 GPUs: 15.4 GiB apart, 16 bytes per parameter and slack."""
    shape = make_shape("llama", depth=32, width=4096, heads=32, kv_heads=8, ffn_width=14336, vocab_size=128256,
                       seq_len=8192)  # fmt: skip
    w = Workload(shape=shape, micro_batch=2, gpu="h100-80gb-sxm", sharding="full", gpus=8, software=Software(),
                 activation_checkpointing="selective")  # fmt: skip
    model = load_memory_model()
    reserved = [model.reserved_bytes(dataclasses.replace(w, gpus=n)).value / GIB for n in (8, 128)]
    assert reserved[0] - reserved[1] == pytest.approx(15.4, abs=1.5)


def test_the_trainers_own_workloads_are_traced_as_before():
    own, model = workload(software=None, precision="bf16", gpu="h100-80gb-sxm"), load_memory_model()
    a = WorkloadArrays.of([own])
    traced = model.structure.peak_bytes(a)
    assert model.allocated_bytes(own).value == pytest.approx(float(np.squeeze(traced)) + 0.05 * GIB)


def test_a_tied_head_holds_no_second_table():
    shape = make_shape("llama", depth=28, width=3072, heads=24, kv_heads=8, ffn_width=8192, vocab_size=128256,
                       seq_len=4096)  # fmt: skip
    tied = Software(state="16bit", extra_parameters=-128256 * 3072)
    untied, shared = (workload(shape=shape, precision="bf16", software=s) for s in (Software(state="16bit"), tied))
    assert state(shared) == pytest.approx(6 * 3_212_749_824)  # Llama 3.2 3B
    assert state(untied) - state(shared) == pytest.approx(6 * 128256 * 3072)


def test_fine_tuning_3b_with_recomputed_blocks_is_within_a_tenth():
    """torchtune's Llama 3.2 3B, pure bf16, 2 x 4,096 tokens, loss in chunks: 24.9 GiB active at the peak."""
    shape = make_shape("llama", depth=28, width=3072, heads=24, kv_heads=8, ffn_width=8192, vocab_size=128256,
                       seq_len=4096)  # fmt: skip
    software = software_of("torchtune", extra_parameters=-128256 * 3072)
    w = workload(shape=shape, micro_batch=2, precision="bf16", gpu="a100-80gb-sxm", compile=True, software=software)
    found = load_memory_model().allocated_bytes(dataclasses.replace(w, activation_checkpointing="full"))
    assert found.value / GIB == pytest.approx(24.9, rel=0.1)


def test_published_runs_that_ran_are_believed_to_fit():
    """All of them ran: few may be called sure not to fit, and the mean probability must be high."""
    path, cards = profiles_folder() / "public_runs.csv", load_gpus()
    cells = row_cells(path)
    reader = RowReader(cards, next(cells))
    workloads = [w for r in map(reader.read, cells) if isinstance(r, Reading) for w in r.workloads[:1]]
    model = load_memory_model()
    chances = []
    for places in by_kind(workloads):
        needed = model.published(WorkloadArrays.of([workloads[i] for i in places]), "needed")
        chances += needed.below(np.array([0.97 * cards[workloads[i].gpu].memory_bytes for i in places])).tolist()
    assert len(chances) > 400 and sum(chances) > 0.78 * len(chances)
    assert sum(chance < 0.1 for chance in chances) < 0.05 * len(chances)


@pytest.mark.parametrize(
    ("words", "first"),
    [  # a 7 B with 16 bytes each is 100 GiB: shared out over 8 GPUs it fits 80
        ("--gpu 8xa100-80gb-sxm --depth 32 --width 4096 --seq-len 2048 --software build-nanogpt", "--sharding full"),
        ("--gpu 4090 --model llama-3-8b --software trl --lora-rank 16", "--qlora --seq-len 4096"),
        ("--gpu 4090 --model llama-3-8b --software trl --lora-rank 16 --qlora --micro-batch 8", "--seq-len 4096"),
        ("--gpu h100 --model gpt2 --micro-batch 4096", "--micro-batch 1024"),
    ],
)
def test_what_would_fit_fits_by_the_same_command(advisor_home, words, first):
    """Each hint is a set of options; added to the command they make a run that surely fits."""
    run = ["predict", *words.split(), "--json"]
    answer = json.loads(advisor(*run, expect=3).stdout)
    assert answer["fits"] is False and first in answer["would_fit"][0]
    for change in answer["would_fit"]:
        options = change.rpartition("(")[2].rstrip(")").split()
        assert json.loads(advisor(*run, *options, expect=0).stdout)["fits"] is True, change


def test_gradients_that_are_used_as_they_come_are_never_whole():
    w = workload(software=Software(state="16bit", steps_in_backward=True))
    assert held(w)["gradients"] == 0 and held(workload(software=Software(state="16bit")))["gradients"] > 0
