"""LoRA and QLoRA: counts that PEFT prints, bytes by hand, the passes that are left, published peaks and pairs."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest
from click.testing import CliRunner

from advisor.calibration.profiles import load_profile
from advisor.cli.predict import command
from advisor.hardware.catalog import load_gpus
from advisor.laws import flops
from advisor.planning.what_fits import adapted, largest_context
from advisor.prediction.adapters import seconds_added, share_of_a_step
from advisor.prediction.batch import predict_batch
from advisor.prediction.memory_published import cases, parts
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import software_of
from advisor.records import Adapters, Software, Workload
from advisor.store.store import Store
from benchmarks.adapters import GIB, rows
from trainer.schema import make_shape

LLAMA_2_7B = {"depth": 32, "width": 4096, "heads": 32, "kv_heads": 32, "ffn_width": 11008, "vocab_size": 32000}
SHAPE = make_shape("llama", seq_len=2048, **LLAMA_2_7B)
N = 6_738_415_616  # as Meta's weights count


PART = software_of(None, adapters=Adapters(rank=8))


def workload(adapters: Adapters | None = None, **changes) -> Workload:
    software = software_of(None, adapters=adapters or Adapters(rank=8))
    base = Workload(shape=SHAPE, micro_batch=1, gpu="a100-80gb-sxm", software=software)
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("rank", "targets", "count"),
    [(8, "all", 19_988_480), (8, "attention", 8_388_608), (64, "all", 159_907_840)],  # PEFT, trainable params
)
def test_adapters_have_the_weights_that_peft_prints(rank, targets, count):
    assert flops.parameters(SHAPE) == N
    assert flops.adapter_parameters(SHAPE, rank, targets) == count


def _held(w: Workload):
    return parts(WorkloadArrays.of([w]), cases(w.software)[0])


def test_frozen_weights_take_two_bytes_or_four_and_a_half_bits_and_nothing_else():
    added = 19_988_480
    sixteen, four = (_held(workload(Adapters(rank=8, quantized=on))) for on in (False, True))
    assert float(sixteen.weights[0]) == 2 * N + 2 * added
    assert float(sixteen.optimizer[0]) == 4 * added and float(sixteen.gradients[0]) == 2 * added
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert float(four.weights[0]) == pytest.approx(2 * (N - matrices) + 4.5 / 8 * matrices + 2 * added)
    more = 32 * 2048 * 16 * 4096  # products of 4-bit matrices keep their inputs
    assert float(four.activations[0]) == float(sixteen.activations[0]) + more


def test_the_passes_that_are_left_agree_with_measured_pairs():
    """Tokens a second and card with and without adapters: NeMo's Llama 70B; torchtune's 3B, recomputed."""
    whole = share_of_a_step(WorkloadArrays.of([workload()]))
    again = share_of_a_step(WorkloadArrays.of([workload(activation_checkpointing="full")]))
    assert float(whole.of_time[0]) == pytest.approx(4 / 6, rel=0.01)
    assert float(again.of_time[0]) == pytest.approx(6 / 8, rel=0.01)
    nemo = [(154208 / 32) / (59848 / 8), (123648 / 32) / (49648 / 8), (52416 / 32) / (21144 / 8)]
    for measured, share in (*((one, whole) for one in nemo), (7301 / 8210, again)):
        assert abs(measured / float(share.of_time[0]) - 1) < 0.2
    assert share_of_a_step(WorkloadArrays.of([workload(software=None)])).of_time == 1.0


def test_published_peaks_lie_in_their_intervals(tmp_path):
    errors, inside = [], []
    profile = load_profile("a100-80gb-sxm", Store(tmp_path), family="llama", software=PART)
    for row in rows():
        said = (profile.memory.reserved_bytes if row.reserved else profile.memory.allocated_bytes)(row.workload)
        errors.append(abs(said.value / GIB / row.peak - 1))
        inside.append(said.contains(row.peak * GIB))
    assert len(errors) >= 20 and statistics.median(errors) < 0.2 and sum(inside) >= 0.8 * len(inside)


def test_speed_of_torchtunes_adapters_on_a_4090(tmp_path):
    """Llama 3.1 8B, packed 2048 by 2, recomputed: 3083 tokens a second with LoRA and 2413 with QLoRA."""
    shape = make_shape("llama", depth=32, width=4096, heads=32, kv_heads=8, ffn_width=14336, vocab_size=128256,
                       seq_len=2048)  # fmt: skip
    profile = load_profile("rtx-4090", Store(tmp_path), family="llama", software=PART)
    for quantized, measured in ((False, 3083), (True, 2413)):
        work = workload(Adapters(rank=8, quantized=quantized), shape=shape, micro_batch=2, gpu=profile.key,
                        compile=profile.compile, activation_checkpointing="full")  # fmt: skip
        said = predict_batch(profile, [work])[0]
        assert said.tokens_per_second.value == pytest.approx(measured, rel=0.25)  # about the left-out median error
        assert said.mfu.value < 0.8  # of the passes that are made


def test_a_model_that_does_not_fit_whole_fits_with_its_weights_frozen(tmp_path):
    profile = load_profile("rtx-4090", Store(tmp_path), family="llama", software=PART)
    kinds = [software_of(None, adapters=Adapters(rank=16, quantized=quantized)) for quantized in (False, True)]
    sixteen, four = (adapted(profile, SHAPE, kind) for kind in kinds)
    assert sixteen.fits and four.fits and four.peak_reserved_bytes.value < sixteen.peak_reserved_bytes.value
    longest = [largest_context(profile, replace(one.workload, micro_batch=1, activation_checkpointing="full"))
               for one in (sixteen, four)]  # fmt: skip
    assert longest[1] > longest[0] >= SHAPE.seq_len
    large = make_shape("llama", depth=80, width=8192, heads=64, kv_heads=8, ffn_width=28672, vocab_size=128256,
                       seq_len=2048)  # fmt: skip
    assert adapted(profile, large, software_of(None, adapters=Adapters(rank=16))).fits is False


def test_frozen_blocks_have_no_moments_and_nothing_is_kept_below_them():
    half = workload(software=software_of(None, frozen_blocks=16))
    part, whole = (_held(w) for w in (half, workload(software=Software(state="16bit", whole_logits=None))))
    block = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096  # and its two norms
    trained = N - 16 * block - 32000 * 4096
    assert float(part.weights[0]) == float(whole.weights[0]) == 2 * N
    assert float(part.optimizer[0]) == 4 * trained and float(part.gradients[0]) == 2 * trained
    assert float(part.activations[0]) == pytest.approx(0.5 * float(whole.activations[0]))
    share, again = (
        share_of_a_step(WorkloadArrays.of([w])) for w in (half, replace(half, activation_checkpointing="full"))
    )
    assert float(share.of_time[0]) == pytest.approx((16 * 2 + 16 * 6) / (32 * 6))
    assert float(again.of_time[0]) == pytest.approx((16 * 2 + 16 * 8) / (32 * 8))
    found = json.loads(run("--freeze-blocks", "8", "--json").output)
    assert found["memory_parts"]["optimizer_bytes"] < 4 * found["parameters"]


BASE = ("--gpu", "rtx-4090", "--family", "llama", "--depth", "16", "--micro-batch", "1", "--seq-len", "1024",
        "--vocab-size", "32000")  # fmt: skip


def run(*words: str):
    return CliRunner().invoke(command, [*BASE, *words], standalone_mode=False)


def test_the_command_says_what_is_trained():
    text = run("--lora-rank", "16").output
    assert "LoRA of rank 16" in text and "trained)" in text and "trains all weights" in text
    found = json.loads(run("--lora-rank", "16", "--qlora", "--json").output)
    whole = json.loads(run("--json").output)
    assert found["peak_reserved_bytes"]["value"] < whole["peak_reserved_bytes"]["value"]
    assert found["flops_per_token"] < whole["flops_per_token"]
    assert found["memory_parts"]["weights_bytes"] < whole["memory_parts"]["weights_bytes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--qlora",), "--qlora without a rank"),
        (("--lora-targets", "attention"), "--lora-targets without a rank"),
        (("--lora-rank", "8", "--freeze-blocks", "4"), "all weights are frozen"),
        (("--freeze-blocks", "16"), "no block of 16 is left"),
        (("--freeze-blocks", "8", "--optimizer", "muon"), "on GPUs, in 16 bits"),
        (("--lora-rank", "8", "--optimizer", "muon"), "on GPUs, in 16 bits"),
        (("--lora-rank", "8", "--precision", "fp32"), "on GPUs, in 16 bits"),
    ],
)
def test_what_makes_no_adapters_is_refused(words, said):
    error = run(*words).exception
    assert said in str(error) and error.hint


def test_adapters_in_eager_code_pass_what_enters_and_leaves_their_matrices_through_memory():
    """Llama's block by hand: 4d enter query, key, value and output; 2d + 2kv leave them; 2d + f and 2f + d with FFN."""
    eager = workload(software=PART)
    shape, tokens = eager.shape, eager.micro_batch * eager.shape.seq_len
    d, f, kv = shape.width, shape.ffn_width, shape.kv_heads * shape.head_dim
    moved = tokens * shape.depth * (75 * (6 * d + f) + 150 * (3 * d + 2 * kv + 2 * f))
    spec = load_gpus()["h100-80gb-sxm"]
    found = seconds_added(WorkloadArrays.of([eager]), spec)[0]
    assert found == pytest.approx(moved / spec.memory_bytes_per_second)
    compiled = seconds_added(WorkloadArrays.of([replace(eager, compile=True)]), spec)[0]
    assert compiled == 0.0  # the compiler joins them with their neighbours
