"""The step-time model against arithmetic done by hand and against data simulated independently of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import advisor
from advisor.calibration.fit import fit, predict_held_out
from advisor.laws.held_out import leave_one_out
from advisor.prediction.intervals import BASES
from advisor.prediction.prior import measured_prior
from advisor.prediction.throughput import (
    TERMS,
    Rates,
    basis_of,
    predict_log,
    sizes,
    terms,
)
from advisor.records import Basis, MeasuredStep, Workload
from benchmarks.prior_model import published_cards, read_runs
from trainer.schema import make_shape

RATES = Rates(matmul_flops=3e11, bandwidth=5e10, launch_seconds=3e-6)


def workload(depth: int = 4, micro_batch: int = 4, seq_len: int = 256, **changes) -> Workload:
    shape = make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=seq_len)
    return replace(Workload(shape=shape, micro_batch=micro_batch, gpu="cpu", precision="fp32"), **changes)


def true_seconds(w: Workload) -> float:
    """A machine invented for these tests, 200 GFLOP/s products, slow when narrow."""
    d, layers, tokens = w.shape.width, w.shape.depth, w.micro_tokens
    products = 6 * (12 * layers * d * d + 4096 * d) * tokens / 2.0e11 * (1 + 40 / d)
    attention = 12 * layers * d * w.shape.seq_len * tokens / 1.0e11
    other = layers * 2.0e-4 + 1e-3 + 28 * (2 * 4096 * d + 12 * layers * d * d) / 4e10
    return w.grad_accum * (products + attention + layers * 2e-4) + other


def observe(workloads, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return [
        MeasuredStep(
            workload=w, step_seconds=true_seconds(w) * math.exp(noise * rng.standard_normal()), noise=max(noise, 0.01)
        )
        for w in workloads
    ]


SMALL = [workload(d, b, t) for d in (1, 2, 3, 4) for b, t in ((1, 256), (2, 128), (4, 256), (8, 256))]


def bases_of(posterior, z, distance) -> list[Basis]:
    return [BASES[place] for place in basis_of(posterior, z, distance)]


def test_no_interval_is_faster_than_products_at_the_best_rate_that_anyone_measured():
    """Llama 3.1 8B, 8,192 tokens, A100: 312 TFLOP/s dense, 271 at best. 6 FLOPs for each of 7.5 B weights of products,
    and 12 x 32 x 4,096 x 8,192 for attention, of which half is masked."""
    found = advisor.predict(gpu="8xa100-80gb-sxm", model="llama-3.1-8b", micro_batch=1, seq_len=8192, sharding="full",
                            software="nemo").record  # fmt: skip
    attention = 12 * 32 * 4096 * 8192
    most = 0.869 * found.flops_per_token / (found.flops_per_token - attention / 2)
    assert found.mfu.value < found.mfu.high <= most * 1.01 < 1


def test_terms_are_the_handbooks_arithmetic():
    """d16 nanochat, V = 65,536, T = 2048, B = 8: N_mm = 201,326,592 + 67,108,864 (sources §1.1)."""
    shape = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
    row = terms(sizes([Workload(shape=shape, micro_batch=8, gpu="h200", precision="bf16")]), RATES)[0]
    seconds = dict(zip(TERMS, row, strict=True))
    tokens = 8 * 2048
    assert seconds["matmul"] == pytest.approx(6 * (201_326_592 + 67_108_864) * tokens / 3e11)
    assert seconds["attention"] == pytest.approx(12 * 16 * 1024 * 2048 * tokens / 3e11)
    assert seconds["traffic"] == pytest.approx(16 * 1024 * 2 * tokens / 5e10)
    assert seconds["optimizer"] == pytest.approx(28 * 335_544_320 / 5e10)
    assert (seconds["matmul"] + seconds["attention"]) * 3e11 == pytest.approx(2_013_265_920 * tokens)


def test_full_checkpointing_repeats_the_blocks_forward_but_not_the_heads():
    plain, full = (terms(sizes([workload(activation_checkpointing=c)]), RATES)[0] for c in ("none", "full"))
    blocks, head = 12 * 4 * 256 * 256, 4096 * 256
    assert full[0] / plain[0] == pytest.approx((blocks * 4 / 3 + head) / (blocks + head))
    assert full[1] / plain[1] == pytest.approx(4 / 3)


def test_muon_adds_the_newton_schulz_flops():
    """Handbook §1.2: d16 5.2e12 FLOPs per step."""
    shape = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
    rows = [
        terms(sizes([Workload(shape=shape, micro_batch=8, gpu="h200", optimizer=o)]), RATES)[0][0]
        for o in ("adamw", "muon")
    ]
    assert (rows[1] - rows[0]) * 3e11 == pytest.approx(5.2e12, rel=0.02)


def test_accumulation_multiplies_the_micro_batch_but_not_the_optimizer():
    one, four = (terms(sizes([workload(grad_accum=g)]), RATES)[0] for g in (1, 4))
    assert four[TERMS.index("matmul")] == pytest.approx(4 * one[TERMS.index("matmul")])
    assert four[TERMS.index("optimizer")] == one[TERMS.index("optimizer")]


def test_without_bursts_the_prior_speaks_and_says_so():
    posterior = fit((), RATES, measured_prior(), drift=0.0)
    z = sizes([workload()])
    predicted = predict_log(posterior, z)
    assert predicted.deviation[0] > 0.15
    assert bases_of(posterior, z, predicted.distance) == [Basis.PRIOR]


def test_extrapolates_to_twice_the_depth_and_batch_of_a_machine_it_does_not_know():
    posterior = fit(observe(SMALL), RATES, measured_prior(), drift=0.0)
    held = observe([workload(d, b, t) for d in (6, 8) for b, t in ((8, 256), (16, 256), (16, 128))])
    result = predict_held_out(posterior, held)
    assert result.median < 0.03
    assert result.p90 < 0.08


def test_a_measured_configuration_is_predicted_as_measured_even_where_the_physics_misses_it():
    odd = workload(3, 6)
    bumped = MeasuredStep(workload=odd, step_seconds=1.12 * true_seconds(odd), noise=0.005)
    posterior = fit([*observe(SMALL), bumped], RATES, measured_prior(), drift=0.0)
    z = sizes([odd])
    predicted = predict_log(posterior, z)
    assert math.exp(predicted.mean[0]) == pytest.approx(bumped.step_seconds, rel=0.035)
    assert bases_of(posterior, z, predicted.distance) == [Basis.MEASURED]


def test_one_disturbed_measurement_does_not_move_the_fit():
    observations = observe(SMALL, noise=0.01)
    spoiled = [replace(o, step_seconds=2.5 * o.step_seconds) if i == 5 else o for i, o in enumerate(observations)]
    posterior = fit(spoiled, RATES, measured_prior(), drift=0.0)
    clean = [o for i, o in enumerate(observations) if i != 5 and o.workload.shape.depth >= 3]
    assert predict_held_out(posterior, clean).median < 0.08


def test_intervals_hold_about_as_often_as_they_say():
    """Forty simulated calibrations with 4 % noise: the 80 % intervals hold 70-95 % of unseen configurations."""
    inside = []
    for seed in range(40):
        posterior = fit(observe(SMALL, noise=0.04, seed=seed), RATES, measured_prior(), drift=0.0)
        held = observe([workload(d, b) for d in (2, 5, 6, 8) for b in (3, 12)], noise=0.04, seed=1000 + seed)
        inside.append(predict_held_out(posterior, held).coverage)
    assert 0.70 <= np.mean(inside) <= 0.95


def test_leave_one_out_needs_four_configurations():
    def predict(rest, step):
        return predict_held_out(fit(rest, RATES, measured_prior(), 0.0), [step]).points[0].predicted

    ways = {"configuration": lambda s: s.workload, "measured": lambda s: s.step_seconds, "predict": predict}
    assert leave_one_out(observe(SMALL[:3]), **ways) is None
    held = leave_one_out(observe(SMALL), **ways)
    assert held is not None and len(held.errors) == len(SMALL) and held.median < 0.06


def test_bases_tell_inside_from_outside():
    posterior = fit(observe(SMALL), RATES, measured_prior(), drift=0.0)
    z = sizes([workload(3, 3), workload(8, 4), workload(4, 64), workload(2, 4)])
    found = bases_of(posterior, z, predict_log(posterior, z).distance)
    assert found == [Basis.INTERPOLATED, Basis.EXTRAPOLATED, Basis.EXTRAPOLATED, Basis.MEASURED]


def test_more_bursts_narrow_the_interval_and_distance_widens_it():
    few, many = (fit(observe(some), RATES, measured_prior(), drift=0.0) for some in (SMALL[::4], SMALL))
    near, far = sizes([workload(3, 4)]), sizes([workload(16, 64)])
    assert predict_log(many, near).deviation[0] < predict_log(few, near).deviation[0]
    assert predict_log(many, far).deviation[0] > predict_log(many, near).deviation[0]


@settings(max_examples=40, deadline=None)
@given(
    depth=st.integers(1, 12),
    micro_batch=st.integers(1, 64),
    grad_accum=st.integers(1, 8),
    seq_len=st.sampled_from((64, 256)),
)
def test_more_work_never_takes_less_time(depth, micro_batch, grad_accum, seq_len):
    posterior = fit((), RATES, measured_prior(), drift=0.0)
    w = workload(depth, micro_batch, seq_len, grad_accum=grad_accum)
    more = [replace(w, micro_batch=micro_batch + 1), replace(w, grad_accum=grad_accum + 1)]
    base, *larger = predict_log(posterior, sizes([w, *more])).mean
    assert all(x > base for x in larger)


def test_no_published_run_is_faster_than_products_at_the_best_rate_measured_on_its_gpu():
    """The bound on the low ends of step times: of all published runs the fastest takes 1.1 times as long."""
    known, shares = published_cards(), []
    for run in read_runs():
        likeliest = max(run.meanings, key=lambda meaning: meaning.weight)
        spec = known[likeliest.workload.gpu]
        if spec.mamf_bf16_flops and spec.bf16_flops:
            products, attention = likeliest.x[:2]  # seconds at the data sheet's rate over measured seconds
            shares.append((products + attention / 2) * spec.bf16_flops / spec.mamf_bf16_flops)
    assert len(shares) > 300 and 0.85 < max(shares) < 0.95
