"""The loss: the law, the loss on one's own data, and plans on them."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.hardware.catalog import require_gpu
from advisor.history.ledger_rows import own_loss_ratios
from advisor.options import Goal
from advisor.planning.answer import bare_plan
from advisor.planning.own_data import MOST_OVERTRAINING, for_inference, with_own_data
from advisor.prediction.loss import (
    CHINCHILLA,
    allocation_score,
    bits_per_byte,
    calibrate_loss,
    effective_parameters,
    effective_tokens,
    loss_range_problem,
    on_own_data,
    overtraining_factor,
    predict_loss,
)
from advisor.prediction.trajectory import expected_trajectory
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Basis, Estimate, Plan
from advisor.run_records import ScoreRow
from advisor.store.store import Store
from tests.advisor.devices import token_meta
from trainer.schema import ScheduleConfig


@pytest.mark.parametrize(
    ("flops", "parameters", "tokens", "loss"),
    [(1e19, 2.62e8, 6.36e9, 2.93), (1e20, 8.53e8, 1.95e10, 2.55), (1e21, 2.78e9, 6.0e10, 2.31)],
)
def test_optimum_of_the_corrected_fit_and_its_loss(flops, parameters, tokens, loss):
    assert flops / 6 / parameters == pytest.approx(tokens, rel=0.005)
    at_best = CHINCHILLA.loss(parameters, flops / 6 / parameters)
    assert at_best == pytest.approx(loss, abs=0.006)
    assert all(at_best < CHINCHILLA.loss(parameters * f, flops / 6 / (parameters * f)) for f in (0.9, 1.1))


@pytest.mark.parametrize(("epochs", "worth"), [(1, 1.0), (2, 1.97), (4, 3.73), (8, 6.62), (16, 10.58), (40, 15.17)])
def test_worth_of_repeated_tokens(epochs, worth):
    assert effective_tokens(epochs * 7e6, 7e6) / 7e6 == pytest.approx(worth, abs=0.005)


def test_worked_example_of_repetition():
    assert effective_tokens(512e6, 34e6 / 3.2) == pytest.approx(167e6, rel=0.01)
    assert effective_tokens(5e6, 7e6) == effective_tokens(5e6, None) == 5e6


def test_excess_parameters_saturate():
    fed = 19.6e9 / 19.613
    assert effective_parameters(0.5 * fed, 19.6e9) == 0.5 * fed
    assert effective_parameters(1e6 * fed, 19.6e9) == pytest.approx(fed * (1 + 5.309743), rel=0.001)


def test_bits_per_byte_of_the_published_run():
    assert 2.904 / (0.8669 * math.log(2)) == pytest.approx(4.833, abs=0.001)
    assert bits_per_byte(2.904, 4.833) == pytest.approx(0.8669, abs=0.0001)


@pytest.mark.parametrize(
    ("parameters", "tokens", "actual"), [(335_544_320, 6.71e9, 2.904), (880_803_840, 17.6e9, 2.62)]
)
def test_published_nanochat_runs_lie_inside_the_interval(parameters, tokens, actual):
    estimate = predict_loss(parameters, int(tokens), None, 65_536)
    assert estimate.basis == Basis.PRIOR
    assert estimate.contains(actual)
    assert abs(math.log(estimate.value / actual)) < 0.03


@pytest.mark.parametrize(
    ("parameters", "tokens", "unique", "vocab", "word"),
    [
        (1_400_000, 2_000_000, None, 4096, "70 M"),
        (335_544_320, 500_000_000, None, 32_768, "1 B"),
        (335_544_320, 6_710_000_000, None, 4096, "vocabulary"),
        (335_544_320, 6_710_000_000, 10_000_000, 32_768, "671 times"),
    ],
)
def test_outside_the_range_nothing_is_promised_and_the_reason_is_said(parameters, tokens, unique, vocab, word):
    assert predict_loss(parameters, tokens, unique, vocab) is None
    assert word in loss_range_problem(parameters, tokens, unique, vocab)


def test_repetition_costs_little_at_four_epochs_and_much_at_forty():
    fresh = predict_loss(335_544_320, 6_710_000_000, None, 32_768).value
    four, forty = (predict_loss(335_544_320, 6_710_000_000, 6_710_000_000 // e, 32_768).value for e in (4, 40))
    assert 0 < four - fresh < 0.05 < forty - fresh


@given(st.floats(5, 10), st.floats(5, 11), st.floats(1.01, 10), st.floats(1, 200))
def test_score_falls_with_parameters_and_with_tokens(log_parameters, log_tokens, factor, ratio):
    parameters, tokens = 10**log_parameters, 10**log_tokens
    score = allocation_score(parameters, tokens, best_ratio=ratio)
    assert allocation_score(parameters * factor, tokens, best_ratio=ratio) < score
    assert allocation_score(parameters, tokens * factor, best_ratio=ratio) < score


@given(st.floats(10, 24), st.floats(2, 100))
def test_score_at_equal_compute_is_best_at_the_ratio_given(log_flops, ratio):
    nd = 10**log_flops / 6
    best = math.sqrt(nd / ratio)
    scores = [allocation_score(best * f, nd / (best * f), best_ratio=ratio) for f in (0.5, 0.8, 1, 1.25, 2)]
    assert min(scores) == scores[2]
    assert scores[0] > scores[1] and scores[4] > scores[3]


def test_with_little_data_repetition_does_not_look_like_new_tokens():
    assert allocation_score(1e8, 4e9, 1e8) > allocation_score(1e8, 2e9, None)


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


META = token_meta(tokens=10**10, validation_tokens=1000, validation_bytes=4833, vocab_size=32768)
GOAL = Goal(gpu="h100-80gb-sxm", depth=16, tokens=2 * 10**9, data="/data/mine")
NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture(scope="module")
def plan() -> Plan:
    profile = prior_profile(require_gpu("h100-80gb-sxm"))
    return bare_plan(GOAL, profile, now=NOW, data_meta=META)


def law(plan: Plan) -> float:
    return predict_loss(plan.prediction.parameters, plan.chosen.tokens, META.tokens, 32768).value


@pytest.mark.parametrize("ratios", [[], [0.1]])
def test_fewer_than_two_runs_change_nothing_and_say_so(plan: Plan, ratios: list[float]):
    found = with_own_data(plan, META, ratios)
    assert found.chosen.loss == plan.chosen.loss and found.chosen.standing.loss_shift == 0
    assert f"the loss is not calibrated to your data: {len(ratios)} of 2 runs on it compared" in found.warnings


def test_two_runs_move_every_loss_of_the_plan(plan: Plan):
    found = with_own_data(plan, META, [0.1, 0.1])
    shift = 0.1 * 5000 / (5000 + 1 / 0.0036)
    assert found.chosen.loss.value == pytest.approx(law(plan) * math.exp(shift))
    assert found.chosen.loss == found.chosen.loss and found.chosen.loss.basis == Basis.EXTRAPOLATED
    assert found.chosen.standing.loss_shift == pytest.approx(shift)
    assert any("2 finished runs on this data" in reason for reason in found.reasons)
    assert not any("not calibrated" in warning for warning in found.warnings)


def test_bits_per_byte_by_the_measured_bytes_per_token(plan: Plan):
    """2.904 nats at 4.833 bytes per token are 0.8669 bits per byte (sources §4.6)."""
    found = with_own_data(plan, META, [])
    bits = found.chosen.standing.bits_per_byte
    assert bits.value / found.chosen.loss.value == pytest.approx(0.8669 / 2.904, rel=1e-3)
    assert bits.low < bits.value < bits.high
    assert with_own_data(plan, None, []).chosen.standing.bits_per_byte is None


def finished(store: Store, name: str, plan: Plan, actual: float) -> None:
    """A run folder with its plan, and its loss in the ledger."""
    folder = store.home / "runs" / name
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("")
    store.save_plan(plan, folder / "plan.yaml")
    promised: Estimate = plan.chosen.loss
    row = ScoreRow(run_id=name, quantity="loss", device_key="h100-80gb-sxm", predicted=promised, actual=actual,
                   created="2026-11-21T00:00:00+00:00")  # fmt: skip
    store.record_scores(name, [row])


def test_the_ledgers_runs_on_the_same_data_count_from_the_law(plan: Plan, tmp_path: Path):
    """The second run's plan was already moved: its ratio must be to the law all the same."""
    store = Store(tmp_path)
    moved = with_own_data(plan, META, [0.1, 0.1])
    other = replace(plan, goal=replace(GOAL, data="/data/another"))
    for name, its_plan in (("a", plan), ("b", moved), ("c", other)):
        finished(store, name, its_plan, law(plan) * 1.1)
    assert own_loss_ratios(store, GOAL.data) == pytest.approx([math.log(1.1)] * 2)
    assert own_loss_ratios(store, None) == []


def test_serving_asks_for_more_tokens_per_parameter():
    goal = replace(GOAL, depth=None, tokens=None, inference_tokens=1e10)
    ratio = for_inference(goal, 10**10).ratio
    assert 12 < ratio < 12 * (4 / 3) ** 2.836  # less than if the model did not train longer for it
    assert for_inference(replace(goal, inference_tokens=1e16), 10**9).ratio == 12 * MOST_OVERTRAINING
    assert for_inference(replace(goal, ratio=30.0), 10**10).ratio == 30.0
    assert for_inference(replace(goal, inference_tokens=None), 10**10).ratio is None


def test_carbon_is_at_the_goals_grid_factor(plan: Plan):
    assert plan.bill.grid_grams_per_kwh == 475.0
    profile = prior_profile(require_gpu("h100-80gb-sxm"))
    goal = replace(GOAL, grid_grams_per_kwh=46.0)
    clean = bare_plan(goal, profile, now=NOW, data_meta=META).bill
    assert clean.grid_grams_per_kwh == 46.0
    assert clean.carbon_kg.value == pytest.approx(plan.bill.carbon_kg.value * 46 / 475)
