"""What is rented for a plan, and what is said of its price. Prices are rows of profiles/prices.csv."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning.answer import answer
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan
from advisor.report.brief import brief

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def ask(key: str, **wishes) -> Plan:
    goal = replace(Goal(gpu=key, deadline_seconds=8 * 3600.0), **wishes)
    return answer(goal, [prior_profile(require_gpu(key))], now=NOW)


def test_a_spot_plan_says_what_its_price_may_become():
    """GCP's L4 costs 0.3106 in one region and 0.3973 in another; AWS names one region for eight H100."""
    plan = ask("l4", spot="only")
    [said] = [w for w in plan.warnings if "spot machine moves" in w]
    assert "Google Cloud asks $0.31 to $0.40 an hour by region" in said
    cost = plan.bill.cost_usd
    assert cost.high / cost.value > 0.3973 / 0.3106
    once = ask("h100-80gb-sxm", spot="only", budget_usd=20.0, gpus=8, providers=("aws",))
    assert any("moves: AWS lists it in one region only" in w for w in once.warnings)
    assert not any("spot" in w for w in ask("h100-80gb-sxm", budget_usd=20.0).warnings)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"usd_per_kwh": 0.3, "providers": ("runpod",)}, "is added to RunPod's rent"),
        ({"usd_per_kwh": 0.3, "usd_per_gpu_hour": 0.4}, "is added to the price given"),
        ({"usd_per_kwh": 0.3, "usd_per_gpu_hour": 0.0}, " W) at $0.30 per kWh, with host and cooling $0.1"),
        ({"usd_per_gpu_hour": 0.0, "tokens": 10**9}, " W), whose electricity is not counted"),
    ],
)
def test_what_a_tariff_pays_for_is_said(wishes, words):
    plan = ask("rtx-4090", **wishes)
    assert any(words in text for text in (*plan.warnings, *plan.reasons))


def test_more_gpus_are_priced_only_where_somebody_rents_them_together():
    """Lambda rents a GH200 one by one; what was asked for a card of one's own is asked for each."""
    rented, own = (ask("gh200-96gb", tokens=10**8, depth=8, usd_per_gpu_hour=usd) for usd in (None, 1.5))
    assert [point.gpus for point in rented.search.scaling] == [1] and rented.search.pays_up_to_gpus is None
    assert [point.gpus for point in own.search.scaling][:6] == [1, 2, 3, 4, 6, 8]
    assert "not to be had together" in rented.search.scaling_left_out[0]


def test_the_age_of_a_price_widens_the_cost_and_is_said():
    """The same plan on the day of the list and a year later: the price stays, its interval does not."""
    goal = Goal(gpu="a100-80gb-sxm", providers=("azure",), budget_usd=60.0, tokens=10**9, depth=12)
    profile = prior_profile(require_gpu("a100-80gb-sxm"))
    fresh = answer(goal, [profile], now=datetime(2026, 10, 10, tzinfo=UTC))
    old = answer(goal, [profile], now=datetime(2027, 10, 10, tzinfo=UTC))
    assert (fresh.offer.age_days, old.offer.age_days) == (0, 365)
    cost, later = fresh.bill.cost_usd, old.bill.cost_usd
    assert later.value == cost.value and later.low < cost.low and later.high > cost.high
    # 1.28 times 7 % by the square root of the months, in quadrature with what the time is unsure by
    beyond = math.hypot(math.log(cost.high / cost.value), 1.28155 * 0.07 * math.sqrt(365 / 30.44))
    assert math.log(later.high / later.value) == pytest.approx(beyond, rel=0.02)
    assert not any("old and may be off" in text for text in fresh.warnings)
    [said] = [text for text in old.warnings if "old and may be off" in text]
    assert said.startswith("the price is 365 days old and may be off by -27 % to +36 %")
    assert "at most 365 days old" in dict(brief(old).rows)["price"]


def test_a_price_that_was_given_has_no_age():
    goal = Goal(gpu="l4", usd_per_gpu_hour=0.5, budget_usd=5.0)
    plan = answer(goal, [prior_profile(require_gpu("l4"))], now=NOW)
    assert plan.offer.age_days is None and not any("days old" in text for text in plan.warnings)
