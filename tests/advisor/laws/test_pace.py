import math

import numpy as np
import pytest

from advisor.laws.pace import drift_spread, log_spread, mean_error, mean_seconds


def test_a_long_stall_counts_as_five_medians():
    assert mean_seconds(np.array([1.0, 1.0, 1.0, 1.0, 600.0])) == pytest.approx((4 * 1 + 5) / 5)
    assert mean_seconds(np.array([1.0, 1.0, 1.0, 1.0, 3.0])) == pytest.approx(7 / 5)
    assert math.isnan(mean_seconds(np.array([])))


def test_drift_widens_the_interval():
    steady = np.full(1000, 0.1)
    drifting = np.where(np.arange(1000) // 100 % 2, 0.1, 0.2)
    assert drift_spread(steady, 1000) == pytest.approx(0.01)
    # medians ln 0.1 and ln 0.2 by turns: variance (ln 2)²/4 · 10/9, times 2·(1 + 1000/1000)
    assert drift_spread(drifting, 1000) == pytest.approx(math.sqrt(math.log(2) ** 2 / 4 * 10 / 9 * 4), rel=0.01)
    assert drift_spread(drifting, 0) == pytest.approx(math.sqrt(math.log(2) ** 2 / 4 * 10 / 9 * 2), rel=0.01)
    assert drift_spread(np.full(5, 0.1), 1000) == pytest.approx(0.05)  # too short to show any


def test_four_neighbours_tell_of_the_mean_as_much_as_one():
    seconds = np.exp(np.tile([-0.1, 0.0, 0.1, 0.2, 0.3], 20))
    assert log_spread(seconds) == pytest.approx(0.2 / 1.349)  # quartiles 0 and 0.2
    assert mean_error(seconds) == pytest.approx(0.2 / 1.349 * math.sqrt(4 / 100))
    assert mean_error(np.ones(1)) == pytest.approx(0.15 * 2)  # one step says nothing of its spread
