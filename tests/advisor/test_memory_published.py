"""Memory of published runs: the sources' worked sums, what sharding divides, and sources that measured it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.hardware.catalog import load_gpus
from advisor.laws import flops
from advisor.predict.batch import fit_probability
from advisor.predict.memory import load_memory_model
from advisor.predict.memory_published import published_bytes
from advisor.predict.memory_terms import WorkloadArrays
from advisor.predict.rows import Reading, RowReader, row_cells
from advisor.records import Software, Workload
from advisor.store.folders import profiles_folder
from trainer.schema import make_shape

GIB = 2**30


def workload(**changes) -> Workload:
    shape = make_shape("gpt2", depth=24, width=2048, heads=16, vocab_size=50304, seq_len=2048)
    base = Workload(shape=shape, micro_batch=1, gpu="v100-32gb-sxm2", precision="fp16", software=Software())
    return dataclasses.replace(base, **changes)


def pair(w: Workload) -> tuple[float, float]:
    state, beyond = published_bytes(WorkloadArrays.of([w]))
    return float(state[0]), float(beyond[0])


@pytest.mark.parametrize("state, per_parameter", [("fp32", 12), ("copied", 14), ("16bit", 6)])
def test_state_is_the_usual_bytes_per_parameter(state: str, per_parameter: int):
    w = workload(software=Software(state=state))
    assert pair(w)[0] == pytest.approx(per_parameter * flops.parameters(w.shape))


def test_sharding_divides_what_it_says():
    n = flops.parameters(workload().shape)
    optimizer = pair(workload(gpus=8, sharding="optimizer", software=Software(state="copied")))
    full = pair(workload(gpus=8, sharding="full"))
    assert optimizer[0] == pytest.approx(n * (2 + 12 / 8))
    assert full[0] == pytest.approx(12 * n / 8)


def test_unfused_attention_costs_korthikantis_scores():
    """5 h s^2 b bytes per layer, and a block recomputed keeps one layer of them."""
    fused, plain = (workload(micro_batch=4, software=Software(fused_attention=on)) for on in (True, False))
    scores = 4 * 5 * 16 * 2048**2
    assert pair(plain)[1] - pair(fused)[1] == pytest.approx(24 * scores)
    full = [dataclasses.replace(w, activation_checkpointing="full", grad_accum=2) for w in (plain, fused)]
    assert pair(full[0])[1] - pair(full[1])[1] == pytest.approx(scores)


def test_a_gpt_block_keeps_32_bytes_per_token_and_width():
    """Sources §2.2: about 32 s b d without dropout and with fused attention."""
    deeper = make_shape("gpt2", depth=25, width=2048, heads=16, vocab_size=50304, seq_len=2048)
    # autocast casts off, so that a further block adds its activations alone
    w = workload(micro_batch=4, software=Software(state="copied"))
    more = pair(dataclasses.replace(w, shape=deeper))[1] - pair(w)[1]
    assert more == pytest.approx(32 * 4 * 2048 * 2048)


def test_whole_logits_are_ten_bytes_each_and_chunked_ones_one():
    whole, chunked = (pair(workload(micro_batch=4, software=Software(whole_logits=on)))[1] for on in (True, False))
    assert whole - chunked == pytest.approx(9 * 4 * 2048 * 50304)


@pytest.mark.parametrize("micro_batch, gib", [(1, 16), (2, 17), (4, 20), (8, 25)])
def test_bigscience_grid_is_within_a_fifth(micro_batch: int, gib: float):
    """GPT 1.3B, 8 V100, ZeRO-1, full checkpointing; GB as nvidia-smi shows, rounded (BigScience tr3m chronicles)."""
    software = Software(state="copied", fused_attention=False)
    w = workload(micro_batch=micro_batch, gpus=8, sharding="optimizer", grad_accum=64 // micro_batch)
    w = dataclasses.replace(w, activation_checkpointing="full", software=software)
    found = load_memory_model().device_total_bytes(w)
    assert abs(found.value / GIB / gib - 1) < 0.2


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
    assert pair(shared)[0] == pytest.approx(6 * 3_212_749_824)  # Llama 3.2 3B
    assert pair(untied)[0] - pair(shared)[0] == pytest.approx(6 * 128256 * 3072)


def test_fine_tuning_3b_with_recomputed_blocks_is_within_a_tenth():
    """torchtune's Llama 3.2 3B, pure bf16, 2 x 4,096 tokens, loss in chunks: 24.9 GiB active at the peak."""
    shape = make_shape("llama", depth=28, width=3072, heads=24, kv_heads=8, ffn_width=8192, vocab_size=128256,
                       seq_len=4096)  # fmt: skip
    software = Software(state="16bit", whole_logits=False, extra_parameters=-128256 * 3072)
    w = workload(shape=shape, micro_batch=2, precision="bf16", gpu="a100-80gb-sxm", compile=True, software=software)
    found = load_memory_model().allocated_bytes(dataclasses.replace(w, activation_checkpointing="full"))
    assert found.value / GIB == pytest.approx(24.9, rel=0.1)


def test_norms_written_out_keep_an_fp32_input_and_a_product_which_checkpointing_and_compilers_do_not():
    shape = make_shape("llama", depth=24, width=2048, heads=16, vocab_size=32000, seq_len=2048)
    tokens, lane = 4 * 2048, 2 * 4 * 2048 * 2048
    w = workload(shape=shape, micro_batch=4, precision="bf16", software=Software(state="copied", whole_logits=False))
    eager, fused = (pair(dataclasses.replace(w, compile=on))[1] for on in (False, True))
    assert eager - fused == pytest.approx(24 * 4 * lane)
    selective = dataclasses.replace(w, activation_checkpointing="selective")
    eager, fused = (pair(dataclasses.replace(selective, compile=on))[1] for on in (False, True))
    assert eager - fused == pytest.approx(4 * lane)  # of the one block that is worked on
    assert tokens * 2 * 2048 == lane


def test_a_compiled_loss_keeps_logits_and_their_gradient_in_16_bits():
    eager, compiled = (
        pair(workload(micro_batch=4, compile=on, software=Software(kind="tuned")))[1] for on in (False, True)
    )
    assert eager - compiled == pytest.approx((10 - 4) * 4 * 2048 * 50304)


def test_every_published_run_could_have_run():
    """Micro-batches are chosen to fill cards: expected peaks pass the card in few rows, low ends in none."""
    cards, model = load_gpus(), load_memory_model()
    cells = row_cells(profiles_folder() / "public_runs.csv")
    reader = RowReader(cards, next(cells))
    readings = [r for r in map(reader.read, cells) if isinstance(r, Reading) and len(r.workloads) == 1]
    read = [r.workloads[0] for r in readings]
    room = [1.08 * cards[w.gpu].memory_gb * 1e9 for w in read]  # "80 GB" are 80 GiB
    over = [model.allocated_bytes(w).value > most for w, most in zip(read, room, strict=True)]
    assert len(read) > 140 and sum(over) < 0.1 * len(read)


def test_published_runs_that_ran_are_believed_to_fit():
    """All of them ran: few may be called sure not to fit, and the mean probability must be high."""
    path, cards = profiles_folder() / "public_runs.csv", load_gpus()
    cells = row_cells(path)
    reader = RowReader(cards, next(cells))
    workloads = [w for r in map(reader.read, cells) if isinstance(r, Reading) for w in r.workloads[:1]]
    model = load_memory_model()
    chances = [fit_probability(model.device_total_bytes(w), cards[w.gpu].memory_bytes) for w in workloads]
    assert len(chances) > 400 and sum(chances) > 0.78 * len(chances)
    assert sum(chance < 0.1 for chance in chances) < 0.05 * len(chances)
