"""Robust statistics against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from advisor.findings import series

numbers = arrays.arrays(float, st.integers(0, 60), elements=st.floats(-1e6, 1e6) | st.just(float("nan")))


def test_mad_of_a_small_series():
    # median 3, deviations 2 1 0 1 97: their median is 1
    values = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    assert series.mad(values) == 1.0


def test_rolling_median_ignores_gaps_and_spikes():
    got = series.rolling_median(np.array([1.0, 1.0, 9.0, np.nan, 2.0, 2.0]), 3)
    assert got == pytest.approx([1.0, 1.0, 5.0, 5.5, 2.0, 2.0])  # (1+9)/2, (9+2)/2


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


@given(numbers)
def test_nothing_raises(values):
    series.steady_start(values)
    series.theil_sen(np.arange(len(values), dtype=float), values)
    series.period_of(series.finite(values))


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
