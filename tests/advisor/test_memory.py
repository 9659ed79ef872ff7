"""The structural memory model against fresh traces, and its correction against measurements with a known truth."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import trainer.loss
from advisor.errors import AdvisorError
from advisor.laws import flops
from advisor.prediction import memory
from advisor.prediction.memory import MemoryModel, MemoryObservation, corrected, load_memory_model
from advisor.prediction.memory_line import Line
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.records import Basis, Workload
from benchmarks.traced_peak import trace_peak
from trainer.schema import make_shape

GIB = 1 << 30
D16 = Workload(shape=make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048), micro_batch=8, gpu="h200")
GPT2 = Workload(shape=make_shape("gpt2", depth=6, width=768, vocab_size=50304, seq_len=1024), micro_batch=6, gpu="a100")
LLAMA = Workload(
    shape=make_shape("llama", depth=5, width=1536, kv_heads=3, vocab_size=32000, seq_len=2048), micro_batch=3, gpu="l4"
)
CPU = Workload(
    shape=make_shape("nanochat", depth=5, vocab_size=4096, seq_len=256), micro_batch=4, gpu="cpu", precision="fp32"
)


def at_edge(family: str, depth: int, kv_heads: int, batch: int, **changes: object) -> Workload:
    shape = make_shape(family, depth=depth, width=128, heads=2, kv_heads=kv_heads, vocab_size=216, seq_len=1062)
    return Workload(shape=shape, micro_batch=batch, gpu="h200", **changes)


def traced(model: MemoryModel, workload: Workload) -> float:
    return float(model.structure.peak_bytes(WorkloadArrays.of([workload]))[0])


@pytest.mark.parametrize(
    "workload",
    [
        D16,
        replace(GPT2, grad_accum=4),
        replace(GPT2, precision="fp16", micro_batch=1),
        replace(LLAMA, activation_checkpointing="full"),
        replace(LLAMA, precision="fp32", micro_batch=1),
        replace(GPT2, precision="fp16", micro_batch=64, activation_checkpointing="full"),
        replace(LLAMA, optimizer="muon", micro_batch=1),
        CPU,
        replace(CPU, grad_accum=2, precision="bf16", micro_batch=16),
        # few key heads, a small vocabulary and many tokens, far from all that was fitted
        *(at_edge("gpt2", 12, 1, 341, precision="fp16", activation_checkpointing="full", grad_accum=n) for n in (1, 2)),
    ],
)
def test_structure_reproduces_traces_it_has_not_seen(workload: Workload) -> None:
    assert traced(load_memory_model(), workload) == pytest.approx(trace_peak(workload).total_bytes, rel=0.01)


def test_every_kind_of_workload_was_traced() -> None:
    structure = load_memory_model().structure
    for family, (gpu, precision), checkpointing, accumulation, kv_heads in itertools.product(
        ("nanochat", "gpt2", "llama"),
        (("h200", "bf16"), ("h200", "fp16"), ("h200", "fp32"), ("cpu", "fp32"), ("cpu", "bf16"), ("cpu", "fp16")),
        ("none", "full"),
        (1, 2),
        (1, 4),
    ):
        shape = make_shape(family, depth=2, width=256, heads=4, kv_heads=kv_heads, vocab_size=1024, seq_len=256)
        workload = Workload(
            shape=shape, micro_batch=2, gpu=gpu, precision=precision, grad_accum=accumulation,
            activation_checkpointing=checkpointing,
        )  # fmt: skip
        assert structure.peak_bytes(WorkloadArrays.of([workload]))[0] >= 16 * flops.parameters(shape)


def test_blocks_keep_what_the_handbook_counts() -> None:
    # Handbook §2.2: 24-36 bytes per token, block and width in 16 bits without recomputation, FFN of 4·width.
    def peak(depth: int) -> float:
        shape = make_shape("gpt2", depth=depth, width=1024, heads=16, vocab_size=50304, seq_len=1024)
        return traced(load_memory_model(), Workload(shape=shape, micro_batch=64, gpu="h200"))

    state_and_copies = 14 * 12.01 * 1024 * 1024  # fp32 weight and moments, bf16 copy; gradients come later
    per_token_and_width = ((peak(9) - peak(8)) - state_and_copies) / (64 * 1024 * 1024)
    assert 24 <= per_token_and_width <= 36


@given(tokens=st.integers(1, 1 << 20), vocab_size=st.integers(2, 300_000), device=st.sampled_from(["cpu", "cuda"]))
def test_loss_chunks_are_the_trainers(tokens: int, vocab_size: int, device: str) -> None:
    chunks = load_memory_model().structure.chunks[device]
    ours = chunks.tokens_per_chunk(np.array([tokens, tokens]), np.array([vocab_size, vocab_size]))
    assert ours.tolist() == [trainer.loss.tokens_per_chunk(tokens, vocab_size, device)] * 2


workloads = st.builds(
    lambda family, depth, width, batch, accum, checkpointing, precision: Workload(
        shape=make_shape(family, depth=depth, width=64 * width, heads=width, vocab_size=8192, seq_len=512),
        micro_batch=batch,
        grad_accum=accum,
        gpu="h200",
        precision=precision,
        activation_checkpointing=checkpointing,
    ),
    st.sampled_from(["nanochat", "gpt2", "llama"]),
    st.integers(1, 40),
    st.integers(1, 64),
    st.integers(1, 128),
    st.integers(1, 3),
    st.sampled_from(["none", "full"]),
    st.sampled_from(["bf16", "fp16", "fp32"]),
)


THIN = make_shape("nanochat", depth=33, width=64, heads=1, vocab_size=8192, seq_len=512)


@example(Workload(shape=THIN, micro_batch=109, gpu="h200"))
@example(at_edge("gpt2", 32, 1, 341, precision="fp16", activation_checkpointing="full"))
@given(workloads)
def test_more_work_never_needs_less_memory(workload: Workload) -> None:
    model = load_memory_model()
    here = traced(model, workload)
    assert here >= 16 * flops.parameters(workload.shape)
    deeper = replace(workload, shape=replace(workload.shape, depth=workload.shape.depth + 1))
    assert traced(model, deeper) > here
    assert traced(model, replace(workload, micro_batch=2 * workload.micro_batch)) >= here
    # a step with accumulation has all moments of one without, so only the last digits of sums may differ
    assert traced(model, replace(workload, grad_accum=workload.grad_accum + 1)) >= (1 - 1e-12) * here


@given(workloads)
def test_parts_sum_to_the_allocated_bytes(workload: Workload) -> None:
    parts = load_memory_model().breakdown(workload)
    count = flops.parameters(workload.shape)
    total = sum(getattr(parts, name) for name in parts.__dataclass_fields__)
    assert total == pytest.approx(load_memory_model().allocated_bytes(workload).value)
    assert (parts.weights_bytes, parts.optimizer_bytes) == (4 * count, 8 * count)


@given(workloads)
def test_estimates_are_ordered(workload: Workload) -> None:
    model = load_memory_model()
    allocated, reserved = model.allocated_bytes(workload), model.reserved_bytes(workload)
    device = model.device_total_bytes(workload)
    for estimate in (allocated, reserved, device):
        assert 0 < estimate.low <= estimate.value <= estimate.high
        assert estimate.basis is Basis.PRIOR
    assert allocated.value <= reserved.value < device.value


def test_many_at_once_equal_each_alone() -> None:
    model, rng = load_memory_model(), np.random.default_rng(3)
    several = [
        replace(LLAMA, shape=replace(LLAMA.shape, depth=depth, vocab_size=vocab), micro_batch=batch, grad_accum=accum)
        for depth, batch, vocab, accum in rng.integers((1, 1, 2, 1), (30, 60, 90_000, 3), (40, 4)).tolist()
    ]
    together = model.device_total_many(WorkloadArrays.of(several))
    alone = [model.device_total_bytes(w) for w in several]
    np.testing.assert_allclose(together.value, [e.value for e in alone])
    np.testing.assert_allclose(together.high, [e.high for e in alone])
    with pytest.raises(ValueError, match="2 kinds"):
        WorkloadArrays.of([LLAMA, replace(LLAMA, precision="fp32")])


def test_muon_saves_a_moment_and_sharding_divides_the_state() -> None:
    structure = load_memory_model().structure
    count, matrices = flops.parameters(D16.shape), flops.block_matrix_parameters(D16.shape)

    def state(**changes: object) -> float:
        return float(structure.persistent_bytes(WorkloadArrays.of([replace(D16, **changes)]))[0])

    assert state() == 12 * count
    assert state(optimizer="muon") == 12 * count - 4 * matrices
    assert state(gpus=4, sharding="optimizer") == 4 * count + 2 * count
    assert state(gpus=4, sharding="full") == 3 * count


def test_a_sharded_model_holds_its_share_two_blocks_and_what_lies_outside_them() -> None:
    """LLaMA 7B on 8 GPUs, everything recomputed: 12 bytes a parameter and the gradient shared out; blocks come by."""
    shape = make_shape("llama", depth=32, vocab_size=32_000, seq_len=2048)
    whole = Workload(
        shape=shape, micro_batch=1, gpu="h100-80gb-sxm", gpus=8, precision="bf16", activation_checkpointing="full"
    )
    structure, count, block = load_memory_model().structure, 6_738_415_616, 202_383_360
    outside = count - 32 * block

    def peak(workload: Workload) -> float:
        return float(structure.peak_bytes(WorkloadArrays.of([workload]))[0])

    saved = peak(whole) - peak(replace(whole, sharding="full"))
    assert saved == pytest.approx(16 * count * 7 / 8 - 10 * block - 8 * outside)
    plain = replace(whole, activation_checkpointing="none")  # no cast of a weight is kept for the backward pass
    more = peak(plain) - peak(replace(plain, sharding="full")) - saved
    assert more == pytest.approx(2 * flops.block_matrix_parameters(shape))
    some = replace(whole, activation_checkpointing="selective")  # whose second feed-forward matrix is cast anew
    more = peak(some) - peak(replace(some, sharding="full")) - saved
    assert more == pytest.approx(2 * (flops.block_matrix_parameters(shape) - 32 * 4096 * 11008))


def test_compilation_saves_logits_only() -> None:
    model = load_memory_model()
    saved = traced(model, D16) - traced(model, replace(D16, compile=True))
    assert 0 < saved <= 12 * 1024 * 65536 * 1.01  # chunks of 1024 tokens; at most 18 − 6 bytes of each logit


def truth(
    workload: Workload, rng: np.random.Generator, *, slope: float, offset: float, ratio: float, noise: float = 0.004
) -> MemoryObservation:
    """What a device would report whose allocator departs from the trace by these amounts."""
    model = load_memory_model()
    state = float(model.structure.persistent_bytes(WorkloadArrays.of([workload]))[0])
    allocated = (state + slope * (traced(model, workload) - state) + offset) * rng.normal(1, noise)
    reserved = ratio * allocated * rng.normal(1, 2 * noise)
    cuda = workload.gpu != "cpu"
    return MemoryObservation(
        workload=workload,
        allocated_peak_bytes=int(allocated) if cuda else None,
        reserved_peak_bytes=int(reserved if cuda else 0.45 * GIB + reserved),
        device_used_bytes=int(reserved + 0.6 * GIB) if cuda else None,
    )


def observed(base: Workload, rng: np.random.Generator, **device: float) -> list[MemoryObservation]:
    sizes = itertools.product((4, 6, 8), (2, 8, 16))
    return [
        truth(replace(base, shape=replace(base.shape, depth=depth), micro_batch=batch), rng, **device)
        for depth, batch in sizes
    ]


def test_measurements_correct_the_model_and_narrow_its_intervals() -> None:
    rng = np.random.default_rng(5)
    before = load_memory_model()
    after = corrected(before, observed(GPT2, rng, slope=1.06, offset=1.2e8, ratio=1.12))
    larger = replace(GPT2, shape=replace(GPT2.shape, depth=12), micro_batch=24)
    target = truth(larger, rng, slope=1.06, offset=1.2e8, ratio=1.12, noise=0)
    checks = (
        (before.allocated_bytes, after.allocated_bytes, target.allocated_peak_bytes, 0.01),
        (before.reserved_bytes, after.reserved_bytes, target.reserved_peak_bytes, 0.02),
        (before.device_total_bytes, after.device_total_bytes, target.device_used_bytes, 0.02),
    )
    for prior, posterior, actual, error in checks:
        wide, narrow = prior(target.workload), posterior(target.workload)
        assert narrow.value == pytest.approx(actual, rel=error)
        assert narrow.contains(actual)
        assert narrow.high - narrow.low < 0.5 * (wide.high - wide.low)


def test_the_cpu_is_corrected_by_its_resident_set_alone() -> None:
    rng = np.random.default_rng(6)
    observations = observed(CPU, rng, slope=1.0, offset=0.0, ratio=1.15)
    after = corrected(load_memory_model(), observations)
    target = truth(replace(CPU, micro_batch=32), rng, slope=1.0, offset=0.0, ratio=1.15, noise=0)
    assert after.reserved_bytes(target.workload).value == pytest.approx(target.reserved_peak_bytes, rel=0.04)
    assert after.device_total_bytes(target.workload).value == after.reserved_bytes(target.workload).value
    assert after.cuda == load_memory_model().cuda


def test_basis_says_how_far_from_the_measurements_a_prediction_is() -> None:
    after = corrected(load_memory_model(), observed(GPT2, np.random.default_rng(7), slope=1, offset=0, ratio=1.1))
    seen = after.observations[4]
    assert after.basis(seen.workload) is Basis.MEASURED
    assert after.allocated_bytes(seen.workload).value == seen.allocated_peak_bytes
    assert after.basis(replace(seen.workload, micro_batch=9)) is Basis.INTERPOLATED
    assert after.basis(replace(seen.workload, micro_batch=256)) is Basis.EXTRAPOLATED
    assert after.basis(replace(seen.workload, precision="fp32")) is Basis.EXTRAPOLATED
    assert after.basis(CPU) is Basis.PRIOR


def test_errors_of_configurations_that_no_correction_has_seen_are_honest() -> None:
    model = load_memory_model()
    errors, inside = [], []
    for seed in range(12):
        observations = observed(LLAMA, np.random.default_rng(seed), slope=0.97, offset=2e8, ratio=1.1)
        for one in observations:
            others = corrected(model, [o for o in observations if o.workload != one.workload])
            for predicted, peak in (
                (others.allocated_bytes(one.workload), one.allocated_peak_bytes),
                (others.reserved_bytes(one.workload), one.reserved_peak_bytes),
            ):
                errors.append(abs(predicted.value / peak - 1))
                inside.append(predicted.contains(peak))
    assert np.quantile(errors, 0.9) < 0.05
    # Noise is partly believed (1 % and 3 %) where the simulated device has less: intervals err on the wide side.
    assert 0.75 <= np.mean(inside) <= 1.0


def test_a_line_learns_slope_offset_and_noise() -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(1, 40, 60) * GIB
    y = (1.1 * x + 0.4 * GIB) * rng.normal(1, 0.02, 60)
    line = Line.believed(slope=(1.0, 0.2), offset_gib=(0.0, 1.0), noise=0.05).updated(x, y, y)
    assert line.slope == pytest.approx(1.1, abs=0.02)
    assert line.offset_gib == pytest.approx(0.4, abs=0.25)
    assert line.noise == pytest.approx(0.02, rel=0.3)
    assert line.count == 60


def test_what_was_never_traced_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdvisorError, match="never traced") as caught:
        load_memory_model().allocated_bytes(replace(D16, precision="fp8"))
    assert "trace_memory.py" in caught.value.hint
    monkeypatch.setattr(memory, "profiles_folder", lambda: tmp_path)
    with pytest.raises(AdvisorError, match=r"cannot read .*memory\.json"):
        memory.load_memory_model.__wrapped__()
