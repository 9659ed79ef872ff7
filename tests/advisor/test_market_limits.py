"""Near limits: what wider ones would give, what is cheaper and as good, and what cannot be meant."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.options import Goal, GpuPrice
from advisor.planning import choose, curves
from advisor.planning.answer import answer
from advisor.planning.choose import LEVEL, search, select
from advisor.planning.goal import Limits
from advisor.planning.run import make_run
from advisor.planning.search_space import open_space
from advisor.planning.sensitivity import as_good, nice, nice_seconds, sensitivity
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan
from tests.advisor.market import GOAL, NOW, PROFILES, ask


@pytest.fixture(scope="module")
def plan() -> Plan:
    return ask()


BUDGETS = (1.0, 5.0, 20.0, 90.0, 450.0, 10_000.0)


@pytest.mark.parametrize("usd_per_hour", [None, 0.0, 1.0])
def test_more_money_never_trains_worse_at_the_same_value_of_time(usd_per_hour):
    chosen = [
        search(replace(GOAL, budget_usd=usd, deadline_seconds=None, usd_per_waiting_hour=usd_per_hour), PROFILES, None)[
            1
        ]
        for usd in BUDGETS
    ]
    scores = [selection.score for selection in chosen]
    assert all(later <= LEVEL * before for before, later in zip(scores, scores[1:], strict=False))
    for usd, selection in zip(BUDGETS, chosen, strict=True):
        limits = Limits(budget_usd=usd, usd_per_waiting_hour=usd_per_hour)
        assert selection.usd + limits.waiting_usd(selection.seconds) <= usd * (1 + 1e-12)


def test_time_has_a_value_where_nothing_but_a_budget_ends_the_run():
    """By hand: √1,200 dollars a day after the first; the patient answer takes longer, and the front has it."""
    goal = replace(GOAL, deadline_seconds=None, budget_usd=1200.0)
    plan, patient = (answer(replace(goal, usd_per_waiting_hour=v), PROFILES, now=NOW) for v in (None, 0.0))
    hours = [p.bill.wall_clock.total_seconds.value / 3600 for p in (plan, patient)]
    assert plan.bill.cost_usd.value + math.sqrt(1200) / 24 * max(hours[0] - 24, 0) <= 1200
    assert hours[0] < hours[1] and plan.chosen.score >= patient.chosen.score
    assert any("$34.60" in reason for reason in plan.reasons)
    said = [text for text in plan.search.sensitivity if "almost as good" in text]
    assert len(said) == 1 and ", or $" in said[0]  # the cheapest and the fastest
    best, paid = patient.chosen.score, patient.bill.cost_usd.value  # or a larger model of the same score
    assert any(c.score <= LEVEL * best and c.cost_usd.value <= LEVEL * paid for c in plan.search.front)


@pytest.mark.parametrize(
    "wishes", [{"gpu": "l4", "counts": ()}, {"deadline_seconds": 1e6}, {"depth": 8, "objective": "cost"}]
)
def test_waiting_costs_nothing_unasked_where_something_else_decides(wishes):
    goal = replace(GOAL, **({"deadline_seconds": None} | wishes))
    profiles = PROFILES[:1] if goal.gpu == "l4" else PROFILES
    free, zero = (search(replace(goal, usd_per_waiting_hour=v), profiles, None)[1] for v in (None, 0.0))
    assert free == zero


def test_waiting_that_no_budget_bears_is_refused_with_its_price():
    with pytest.raises(AdvisorError, match="waiting counted") as refused:
        ask(deadline_seconds=None, usd_per_waiting_hour=1e5)
    assert "--value-of-time" in refused.value.hint


def test_wider_limits_are_planned_anew_as_said():
    space = open_space(GOAL, PROFILES, None)
    plan = ask()
    chosen = select(space, space.limits)
    said = list(sensitivity(space, make_run(space.candidates, chosen), chosen))
    assert [item.text for item in said] == list(plan.search.sensitivity)
    checked = 0
    for item in (item for item in said if item.limits is not None and "nothing" not in item.text):
        again = ask(budget_usd=item.limits.budget_usd, deadline_seconds=item.limits.deadline_seconds)
        if "price" in item.text:
            continue
        checked += 1
        assert again.chosen.score == pytest.approx(select(space, item.limits).score, rel=1e-12)
        assert again.chosen.depth == item.depth
    assert checked >= 2


def test_a_given_price_is_for_a_card_that_must_be_ordered_too():
    """The catalog's own price, given by hand, makes the same bill but for the provider's disk."""
    goal = replace(GOAL, gpu="l4", counts=(), gpus=1, deadline_seconds=None, budget_usd=None, depth=12, tokens=10**9)
    profile = [prior_profile(require_gpu("l4"))]
    listed = answer(goal, profile, now=NOW)
    given = answer(replace(goal, usd_per_gpu_hour=listed.offer.usd_per_hour), profile, now=NOW)
    assert given.bill.wall_clock == listed.bill.wall_clock
    assert given.bill.wall_clock.provisioning_seconds is not None
    own = answer(replace(goal, usd_per_gpu_hour=0.0), profile, now=NOW)
    assert own.bill.wall_clock.provisioning_seconds is None


def test_cards_that_cannot_be_capped_so_far_are_left_out():
    """A fifth of the data sheets' 700, 400 and 72 W: 60 W is too little for the first two."""
    profiles = [prior_profile(require_gpu(key)) for key in ("h100-80gb-sxm", "a100-80gb-sxm", "l4")]
    space = open_space(replace(GOAL, power_cap_watts=60.0), profiles, None)
    assert {offer.gpu for offer in space.candidates.machines.offers} == {"l4"}
    assert "cannot be limited to 60 W: h100-80gb-sxm, a100-80gb-sxm" in space.left_out


def test_more_time_can_be_cheaper():
    """With a deadline alone quality is bought with the fastest machine; more time gets it from a cheaper one."""
    goal = replace(GOAL, budget_usd=None, deadline_seconds=3 * 3600.0)
    goal = replace(goal, prices=(GpuPrice(gpu="a100-80gb-sxm", usd_per_gpu_hour=0.5),))
    profiles = [prior_profile(require_gpu(key)) for key in ("h100-80gb-sxm", "a100-80gb-sxm")]
    space = open_space(goal, profiles, None)
    tight = select(space, space.limits)
    alike = as_good(space, tight.score * LEVEL, Limits(deadline_seconds=12 * 3600.0))
    loose = choose.selection(alike, int(alike.usd.argmin()))
    assert loose.score <= tight.score * 1.002 and 3 * 3600 < loose.seconds <= 12 * 3600
    assert loose.usd < 0.9 * tight.usd
    plan = answer(goal, profiles, now=NOW)
    [said] = [text for text in plan.search.sensitivity if "would lower the price" in text]
    assert "a100-80gb-sxm" in said and re.search(r"from \$[\d.]+ to \$[\d.]+ \(-\d+ %\)", said)


def test_the_cheapest_run_as_good_as_a_poor_one_keeps_every_rule_of_the_search():
    """However poor, never under 20 steps or a tenth of 12 tokens per parameter: it was 9 steps and 0.01 tokens."""
    space = open_space(GOAL, PROFILES, None)
    best = select(space, space.limits)
    alike = as_good(space, 30 * best.score, space.limits)
    poor = choose.selection(alike, int(alike.usd.argmin()))
    tokens = poor.steps * space.candidates.step_tokens[poor.place]
    assert poor.steps >= 20 and tokens >= 0.1 * 12 * space.candidates.counted[poor.place]
    assert poor.usd < best.usd and not space.offer(poor.place).spot


@pytest.mark.parametrize(("amount", "named"), [(5.0, 5), (6.9, 5), (0.23, 0.2), (37, 50), (1.3, 1)])
def test_amounts_a_person_would_name(amount, named):
    assert nice(amount) == pytest.approx(named)


def test_durations_a_person_would_name():
    assert [nice_seconds(s) for s in (2 * 3600, 22.5, 400)] == [7200, 20, 300]


def test_no_memory_is_enough():
    with pytest.raises(AdvisorError, match="nothing fits the memory of any GPU") as caught:
        ask(depth=32, micro_batch=512)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("wishes", "words", "way_out"),
    [
        ({"budget_usd": None, "deadline_seconds": None}, "needs a limit or a task", "--deadline"),
        ({"depth": -2}, "--depth -2", "--depth"),
        ({"ratio": 0.0}, "--ratio 0", "--ratio"),
        ({"objective": "cost"}, "needs fixed work", "--depth 12"),
        ({"spot": "sometimes"}, "--spot sometimes: unknown", "choose one of none, any, only"),
        ({"objective": "fame"}, "--objective fame: unknown", "choose one of loss, cost, time"),
        ({"family": "bert"}, "--family bert: unknown", "choose one of nanochat, gpt2, llama"),
        ({"tokens": 0}, "--tokens 0: must be more than 0", "give more than 0, or leave --tokens out"),
        ({"usd_per_kwh": -1}, "--kwh-price -1: must not be negative", "give 0 or more"),
    ],
)
def test_what_cannot_be_meant_says_what_can(wishes, words, way_out):
    with pytest.raises(AdvisorError, match=words) as caught:
        ask(**wishes)
    assert caught.value.exit_code == 2 and way_out in caught.value.hint


OWN = (GpuPrice(gpu="l4", usd_per_gpu_hour=0.0),)


def test_a_card_that_costs_nothing_is_left_out_where_only_money_would_end_its_run():
    plan = ask(prices=OWN, deadline_seconds=None)
    assert "l4" not in plan.search.devices and plan.workload.gpu != "l4"
    [reason] = [words for words in plan.search.left_out if words.startswith("l4: ")]
    assert "l4 costs nothing per hour" in reason
    with pytest.raises(AdvisorError, match="l4 costs nothing per hour") as caught:
        answer(Goal(gpu="l4", budget_usd=5.0, usd_per_gpu_hour=0.0), [prior_profile(require_gpu("l4"))], now=NOW)
    assert caught.value.exit_code == 2 and "--deadline" in caught.value.hint


def test_a_card_of_ones_own_is_weighed_against_the_rented_by_its_deadline():
    """It is the plan that a deadline alone gives on it, for nothing; with five cents nothing better can be rented."""
    plan = ask(prices=OWN, budget_usd=0.05)
    assert plan.workload.gpu == "l4" and plan.bill.cost_usd.value == plan.bill.cost_usd.high == 0
    goal = replace(GOAL, gpu="l4", counts=(plan.workload.gpus,), gpus=plan.workload.gpus, budget_usd=None, prices=OWN)
    alone = answer(replace(goal, seq_len=plan.run.model.seq_len), [prior_profile(require_gpu("l4"))], now=NOW)
    assert plan.chosen.depth == alone.chosen.depth
    assert plan.chosen.score == pytest.approx(alone.chosen.score, rel=0.005)
    [profile] = [p for p in PROFILES if p.key == "l4"]
    assert not any("budget" in mark.words for mark in curves.loss(plan.goal, plan, profile, None).marks)


def test_a_settled_run_on_a_card_of_ones_own_ends_without_a_price():
    plan = ask(prices=OWN, deadline_seconds=None, depth=12, objective="cost")
    assert plan.workload.gpu == "l4" and plan.bill.cost_usd.value == 0
