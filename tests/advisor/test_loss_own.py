"""Loss on one's own data, over-training for inference, and the expected curve (sources §4.4, §4.5)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.prediction.loss_own import calibrate_loss, on_own_data, overtraining_factor
from advisor.prediction.trajectory import expected_trajectory
from advisor.records import Basis, Estimate
from trainer.schema import ScheduleConfig

END = Estimate(value=2.8, low=2.6, high=3.0, basis=Basis.PRIOR)


def test_one_run_calibrates_nothing_and_two_do():
    assert calibrate_loss([0.05]) is None
    found = calibrate_loss([0.05, 0.05])
    # precisions add: 1 / 0.06² of the prior and 2 / 0.02² of the runs
    assert found.shift == pytest.approx(0.05 * 5000 / (5000 + 1 / 0.0036))
    law = Estimate(value=3.0, low=2.8, high=3.2, basis=Basis.PRIOR)
    own = on_own_data(law, found)
    assert own.value == pytest.approx(3.0 * math.exp(found.shift)) and own.basis == Basis.EXTRAPOLATED
    assert own.high - own.low < law.high - law.low


def test_runs_that_disagree_leave_the_interval_wide():
    assert calibrate_loss([-0.1, 0.1]).deviation > 2 * calibrate_loss([0.0, 0.0]).deviation


@given(st.floats(1e6, 1e13), st.floats(0, 1e15))
def test_the_factor_is_sardanas_condition_at_equal_training_compute(trained: float, served: float):
    factor = overtraining_factor(trained, served)
    own_tokens = trained * math.sqrt(factor)  # √f more tokens on √f fewer parameters: the same 6·N·D
    assert factor >= 1
    assert factor == pytest.approx((1 + served / (3 * own_tokens)) ** (1 / 0.3526596), rel=1e-6)


def trajectory(**changes):
    settings = {"steps": 10_000, "tokens": 5e9, "vocab_size": 32768, "schedule": ScheduleConfig(warmup_steps=300)}
    return expected_trajectory(END, **settings | changes)


def test_the_curve_starts_at_ln_v_and_ends_at_the_prediction():
    t = trajectory()
    assert t.value[0] == pytest.approx(math.log(32768)) and t.value[-1] == pytest.approx(2.8)
    assert (t.low[-1], t.high[-1]) == (pytest.approx(2.6), pytest.approx(3.0))
    assert (np.diff(t.value) <= 1e-12).all() and (t.low <= t.value).all() and (t.value <= t.high).all()
    end = t.at(10_000)
    assert (end.value, end.low, end.high) == pytest.approx((2.8, 2.6, 3.0)) and end.basis == END.basis


def test_a_run_at_full_rate_is_above_one_that_has_decayed():
    """WSD keeps its gain for the last fifth: at 75 % of the steps it stands above the cosine run (sources §4.5)."""
    cosine, wsd = trajectory(), trajectory(schedule=ScheduleConfig(name="wsd", warmup_steps=300))
    at = 7_500
    assert wsd.at(at).value > cosine.at(at).value + 0.02
    assert wsd.at(at).value - 2.8 < 0.3


def test_the_band_narrows_towards_the_end():
    t = trajectory()
    early, late = t.at(1_000), t.at(9_000)
    assert early.high - early.low > late.high - late.low >= 0.4 - 1e-9
