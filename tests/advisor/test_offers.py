"""What is rented for a plan, and what is said of its price. Prices are rows of profiles/prices.csv."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.calibrate.profiles import prior_profile
from advisor.hardware.catalog import require_gpu
from advisor.plan.answer import answer
from advisor.records import Goal, Plan

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def ask(key: str, **wishes) -> Plan:
    goal = replace(Goal(gpu=key, deadline_seconds=8 * 3600.0), **wishes)
    return answer(goal, [prior_profile(require_gpu(key))], now=NOW)


def test_a_spot_plan_says_what_its_price_may_become():
    """GCP's L4 costs 0.3106 in one region and 0.3973 in another; Nebius names one region for eight H100."""
    plan = ask("l4", spot="only")
    [said] = [w for w in plan.warnings if "spot machine moves" in w]
    assert "gcp asks $0.31 to $0.40 an hour by region" in said
    cost = plan.prediction.cost_usd
    assert cost.high / cost.value > 0.3973 / 0.3106
    once = ask("h100-80gb-sxm", spot="only", budget_usd=20.0, gpus=8)
    assert any("moves: nebius lists it in one region only" in w for w in once.warnings)
    assert not any("spot" in w for w in ask("h100-80gb-sxm", budget_usd=20.0).warnings)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"usd_per_kwh": 0.3}, "is added to runpod's rent"),
        ({"usd_per_kwh": 0.3, "usd_per_gpu_hour": 0.4}, "is added to the price given"),
        ({"usd_per_kwh": 0.3, "usd_per_gpu_hour": 0.0}, "counted for the devices alone"),
    ],
)
def test_what_a_tariff_pays_for_is_said(wishes, words):
    assert any(words in w for w in ask("rtx-4090", **wishes).warnings)


def test_the_depths_looked_at_grow_until_the_best_is_inside():
    """A day on eight B200 trains more than 32 blocks well: nothing beyond the deepest looked at is better."""
    plan = ask("b200", gpus=8, deadline_seconds=24 * 3600.0)
    assert plan.chosen.depth > 32 and not any("deepest" in w for w in plan.warnings)


def test_more_gpus_are_priced_only_where_somebody_rents_them_together():
    """Lambda rents a GH200 one by one; what was asked for a card of one's own is asked for each."""
    rented, own = (ask("gh200-96gb", tokens=10**8, depth=8, usd_per_gpu_hour=usd) for usd in (None, 1.5))
    assert [point.gpus for point in rented.search.scaling] == [1] and rented.search.pays_up_to_gpus is None
    assert [point.gpus for point in own.search.scaling][:4] == [1, 2, 4, 8]
