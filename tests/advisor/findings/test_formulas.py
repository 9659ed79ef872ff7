"""Robust statistics and spikes, MFU and the phase of a schedule, against values worked out by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from advisor.findings import series
from advisor.findings.case import Finding
from advisor.findings.curves import Curve
from advisor.findings.detectors.learning_rate import phase_of_schedule
from advisor.findings.detectors.loss import detect_loss_divergence, detect_loss_spikes, spikes
from advisor.findings.run_metrics import flops_per_token, mfu
from advisor.laws.annealing import learning_rate_shares
from advisor.records import Workload
from tests.advisor.findings import build
from tests.advisor.findings.build_learning import healthy_loss, learning_case, learning_run
from trainer.schema import make_shape

numbers = arrays.arrays(float, st.integers(0, 60), elements=st.floats(-1e6, 1e6) | st.just(float("nan")))


def test_mad_of_a_small_series():
    # median 3, deviations 2 1 0 1 97: their median is 1
    values = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    assert series.mad(values) == 1.0


@given(numbers, st.integers(1, 25))
def test_rolling_median_is_numpys(values, window):
    half = window // 2
    wanted = [series.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    assert series.rolling_median(values, window) == pytest.approx(np.array(wanted), nan_ok=True)


def test_steady_start_drops_compilation():
    assert series.steady_start(np.array([65.9, 4.0, 1.3] + [1.0, 1.02, 0.99] * 20)) == 3
    assert series.steady_start(np.ones(50)) == 0


def test_steady_start_on_a_noisy_machine_and_with_gaps():
    noisy = 1 + 0.12 * np.random.default_rng(0).standard_normal(500)
    assert series.steady_start(noisy) <= 20
    assert series.steady_start(np.array([np.nan, 30.0, np.nan] + [1.0] * 40)) == 3


def test_theil_sen_is_not_moved_by_a_quarter_of_outliers():
    x = np.arange(100.0)
    y = 2 + 0.5 * x
    y[::4] += 1000
    trend = series.theil_sen(x, y)
    assert trend.slope == pytest.approx(0.5, abs=0.01)
    assert trend.low <= 0.5 <= trend.high


def test_theil_sen_of_noise_includes_no_trend():
    trend = series.theil_sen(np.arange(5000.0), np.random.default_rng(1).standard_normal(5000))
    assert trend.low < 0 < trend.high
    assert series.theil_sen(np.arange(4.0), np.arange(4.0)) is None
    assert series.theil_sen(np.ones(9), np.arange(9.0)) is None


def test_period_of_regular_and_irregular_events():
    found = series.period_of(np.array([250.0, 500, 750, 1250, 1500]))
    assert (found.every, found.regular) == (250, 1.0)  # one is missing: a multiple
    assert series.period_of(np.array([3.0, 17, 90, 101, 333, 340])) is None
    assert series.period_of(np.array([1.0, 2.0])) is None


def test_stretches():
    assert series.stretches(np.array([True, True, False, True])) == [(0, 1), (3, 3)]
    assert series.stretches(np.zeros(3, bool)) == []


def test_a_wide_moving_median_is_the_median_of_its_neighbours():
    random = np.random.default_rng(3)
    values = random.normal(size=700)
    values[random.integers(0, 700, 60)] = np.nan
    values[5] = np.inf
    for window in (61, 101, 103, 401):
        half = window // 2
        found = series.rolling_median(values, window)
        for place in (0, 4, 50, 333, 650, 699):
            near = values[max(0, place - half) : place + half + 1]
            assert found[place] == pytest.approx(np.median(near[np.isfinite(near)]))


def curve_of(values) -> Curve:
    return Curve(step=np.arange(1.0, len(values) + 1), value=np.asarray(values, dtype=float))


def test_a_smoothed_curve_is_not_full_of_spikes():
    noisy, smooth = healthy_loss(5000, noise=0.1), []
    for value in noisy:
        smooth.append(value if not smooth else 0.9 * smooth[-1] + 0.1 * value)
    assert spikes(curve_of(smooth)) == ()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.001, 0.3))
def test_noise_alone_gives_no_lasting_spike(seed, noise):
    values = 3 + 5 * np.arange(1, 601.0) ** -0.5 + noise * np.random.default_rng(seed).standard_normal(600)
    assert not [s for s in spikes(curve_of(values)) if s.rows >= 3]


@pytest.mark.parametrize(("rows", "memory"), [(40, 0.0), (40, 0.5), (100, 0.0), (100, 0.5), (100, 0.8), (200, 0.8)])
def test_a_short_fine_tune_with_an_ordinary_noisy_loss_does_not_diverge(rows, memory):
    """1.9 → 1.2 nats, 5 % of noise of which each row keeps a share: rises are weighed against earlier ones."""
    level, wrong = 1.2 + 0.7 * (1 + 60 * np.arange(1, rows + 1) / rows) ** -0.5, []
    for seed in range(440, 480):
        drift, random = np.zeros(rows), np.random.default_rng(seed)
        for row in range(rows):
            drift[row] = memory * drift[row - 1] + (1 - memory**2) ** 0.5 * random.standard_normal()
        case = learning_case(learning_run(rows, loss=level * np.exp(0.05 * drift), eval_loss=None))
        wrong += [seed] if detect_loss_divergence(case) is not None else []
        rising = level * np.exp(0.05 * drift) + np.linspace(-2, 2, rows).clip(0)
        assert isinstance(detect_loss_divergence(learning_case(learning_run(rows, loss=rising))), Finding), seed
    assert len(wrong) <= 1, wrong


def test_noise_with_a_long_tail_is_no_instability():
    # rows of a loss that depends on what each batch drew: now and then three times its level, never for long
    random = np.random.default_rng(1)
    loss = 0.2 + 16 * np.exp(-np.arange(2000) / 50) + 0.02 * random.standard_normal(2000)
    loss[random.choice(np.arange(200, 2000), 60, replace=False)] *= 3
    assert detect_loss_spikes(learning_case(learning_run(loss=loss))) is None


D16 = Workload(
    shape=make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048),
    micro_batch=8,
    grad_accum=16,
    gpu="h100-80gb-sxm",
    gpus=2,
    compile=True,
)


def d16_case(tokens_per_second: float, **columns):
    """nanochat d16 on two H100: 524,288 tokens per step."""
    table = build.run(seconds=524_288 / tokens_per_second, facts={"step_tokens": 524_288}, **columns)
    return build.case(table, D16)


def test_flops_of_nanochat_as_of_2026():
    # sources §1.1: d24 at HEAD has 1,384,122,122 parameters and 4,775,225,616 FLOPs per token
    w = dataclasses.replace(D16, shape=make_shape("nanochat", depth=24, vocab_size=32768, seq_len=2048))
    new = build.case(build.run(facts={"parameters": 1_384_122_122}), w)
    old = build.case(build.run(facts={"parameters": 780_140_544}), w)
    assert flops_per_token(new) == 4_775_225_616
    assert flops_per_token(old) == 6 * (12 * 24 * 1536**2 + 32768 * 1536) + 12 * 24 * 1536 * 2048


def test_warm_up_does_not_enter_the_rate():
    seconds = np.full(400, 524_288 / 430_600)
    seconds[:8] = [60, 30, 9, 5, 3, 2, 2, 2]
    case = d16_case(430_600)
    columns = {**case.run.columns, "seconds": seconds}
    slow_start = dataclasses.replace(case, run=dataclasses.replace(case.run, columns=columns))
    assert mfu(slow_start) == pytest.approx(0.4383, abs=5e-4)


def test_the_phase_of_a_schedule():
    # nanochat's pair of sources §4.5: d16 at multiplier 0.3125 at step 12,000 of 12,800 with a decay over 20 % to 0
    rates = 0.02 * learning_rate_shares("wsd", 12_800, final_share=0.0, decay_share=0.2)
    table = learning_run(12_800, learning_rate=rates, eval_loss=None)
    assert phase_of_schedule(table, 12_001) == pytest.approx(0.3125, abs=1e-3)
    assert phase_of_schedule(table, 20_000) is None
