"""Plans on the user's own data: two finished runs move the loss, bits per byte by the measured tokenizer, serving."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.history.ledger_rows import own_loss_ratios
from advisor.options import Goal
from advisor.planning.answer import bare_plan
from advisor.planning.own_data import MOST_OVERTRAINING, for_inference, with_own_data
from advisor.prediction.loss import predict_loss
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Basis, Estimate, Plan
from advisor.run_records import ScoreRow
from advisor.store.store import Store
from tests.advisor.devices import token_meta

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
