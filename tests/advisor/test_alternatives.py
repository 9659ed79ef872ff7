"""What else could be done beside a plan: the named options and the front, where the shared market tests do not look."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning.alternatives import by_price
from advisor.planning.answer import answer
from advisor.planning.explain import verdict
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan
from advisor.report.plan import sentence

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GOAL = Goal(gpu="any", counts=(1, 2, 4, 8), deadline_seconds=8 * 3600.0)


def ask(*keys: str, **wishes) -> Plan:
    goal = replace(GOAL, **wishes)
    return answer(goal, [prior_profile(require_gpu(key)) for key in keys], now=NOW)


def test_a_plan_that_is_safe_already_has_no_conservative_option():
    """Its memory, time and price leave room, so nothing dearer is safer."""
    plan = ask("v100-16gb-sxm2", "a4000", objective="cost", depth=10)
    [balanced] = plan.options
    held = balanced.prediction.device_bytes.high / (balanced.prediction.device_bytes.value + balanced.headroom_bytes)
    assert held < 0.85 and balanced.total_seconds.high < 8 * 3600


@pytest.mark.parametrize("key", ["rtx-3090", "rtx-4090", "a100-80gb-sxm"])
def test_memory_to_spare_does_not_cost_a_tiny_batch(key):
    """A smaller micro-batch leaves memory free; accumulation keeps the tokens per step what the laws ask for."""
    plan = ask(key, counts=(), gpu=key, usd_per_gpu_hour=1.0)
    safe = next(o for o in plan.options if o.standing.name == "conservative")
    own = plan.chosen.tokens / plan.run.steps
    assert 0.5 * own <= safe.tokens / safe.steps <= 2 * own


def test_settled_work_shows_what_less_money_and_more_time_would_do():
    """All runs train the same, so the table goes from the plan's price to a small part of it."""
    plan = ask("l4", "h100-80gb-sxm", "b200", objective="time", depth=12, budget_usd=20.0)
    front = plan.search.front
    assert len(front) >= 3
    dollars, hours = zip(
        *[(c.cost_usd.value, c.total_seconds.value) for c in sorted((*front, plan.chosen), key=by_price)], strict=True
    )
    assert list(dollars) == sorted(dollars) and dollars[0] < 0.5 * dollars[-1]
    assert list(hours) == sorted(hours, reverse=True) and hours[0] > 3 * hours[-1]


@pytest.mark.parametrize("wishes", [{"budget_usd": 20.0}, {"budget_usd": 25.0}, {"objective": "cost", "depth": 12}])
def test_the_front_does_not_show_the_plan_twice(wishes):
    plan = ask("l4", "h200-141gb-sxm", "b200", **wishes)
    own = plan.chosen
    for c in plan.search.front:
        if (c.offer.gpu, c.offer.gpus, c.depth) == (own.offer.gpu, own.offer.gpus, own.depth):
            assert abs(c.cost_usd.value / own.cost_usd.value - 1) > 0.02 or (
                abs(c.total_seconds.value / own.total_seconds.value - 1) > 0.02
            )


def test_options_are_not_called_on_demand_where_only_spot_is_wanted():
    plan = ask("b200", "a100-40gb-sxm", "h100-80gb-sxm", spot="only", budget_usd=20.0)
    assert all(o.offer.spot and "on demand" not in o.standing.why for o in plan.options)


def test_near_misses_by_less_than_is_shown_say_by_how_much():
    plan = ask("v100-16gb-sxm2", "a4000", budget_usd=0.05)
    over = [c.standing.why for c in plan.search.near_misses if c.standing.why.startswith("over budget")]
    assert over and all("$0.05 of $0.05" not in why for why in over)


def test_a_choice_made_to_be_sure_says_so():
    plan = ask("l4", "h200-141gb-sxm", budget_usd=20.0, sure=True)
    balanced = next(o for o in plan.options if o.standing.name == "balanced")
    assert balanced.cost_usd.high <= 20 and "9 times out of 10" in balanced.standing.why
    beyond = [
        c.standing.why for c in plan.search.near_misses if c.standing.why.startswith(("over budget:", "too slow:"))
    ]
    assert beyond and all("up to" in why for why in beyond)


def test_no_row_of_the_front_beats_another_by_more_than_a_tie_or_repeats_it():
    cards = ("v100-16gb-sxm2", "a4000", "a6000", "h100-80gb-sxm", "b200", "rtx-5090")
    for wishes in ({"budget_usd": 20.0}, {"budget_usd": 20.0, "deadline_seconds": None}):
        plan = ask(*cards, **wishes)
        runs = (plan.chosen, *plan.search.front)
        front = [(run.cost_usd.value, run.total_seconds.value, run.score, run.standing.name) for run in runs]
        assert len(front) > 3
        for mine in front:
            for other in front:
                if mine is other or mine[3] == "balanced":
                    continue
                level = other[0] <= 1.01 * mine[0] and other[1] <= 1.01 * mine[1] and other[2] <= 1.001 * mine[2]
                assert not (level and (1.01 * other[0] < mine[0] or 1.01 * other[1] < mine[1]))
                near = all(abs(a / b - 1) <= 0.019 for a, b in zip(mine[:2], other[:2], strict=True))
                assert not (near and abs(mine[2] / other[2] - 1) <= 0.0049)


def test_a_run_of_several_times_the_memory_is_no_near_miss():
    """A depth that needs 3 TiB of 15.5 GiB was called better but for one thing."""
    for wishes in ({"tokens": 10**9, "objective": "cost"}, {"budget_usd": 20.0}):
        plan = ask("v100-16gb-sxm2", "a4000", "h100-80gb-sxm", **wishes)
        for miss in plan.search.near_misses:
            held = miss.prediction.device_bytes.high / (miss.prediction.device_bytes.value + miss.headroom_bytes)
            assert not miss.standing.why.startswith("does not fit") or held <= 1.5


def test_a_better_score_is_never_called_level():
    plan = ask("v100-16gb-sxm2", tokens=10**9, objective="cost")
    words = [(c, verdict(c, plan.chosen)) for c in plan.considered if c is not plan.chosen and not c.standing.why]
    better = [said for c, said in words if c.score < 0.9 * plan.chosen.score]
    assert better and all(said.startswith("better, but dearer and slower") for said in better)
    assert all(abs(c.score / plan.chosen.score - 1) <= 0.0011 for c, said in words if said.startswith("equal score"))


def test_a_plan_says_how_it_uses_memory_and_what_was_asked():
    [said] = [text for text in ask("v100-16gb-sxm2", budget_usd=20.0).reasons if text.startswith("memory ")]
    assert "of the 15.5 GiB usable (97 % of the GPU's memory); " in said and said.endswith("this GPU has no fast bf16")
    asked = ask("l4", budget_usd=20.0, activation_checkpointing="full", precision="bf16")
    [said] = [text for text in asked.reasons if text.startswith("memory ")]
    assert said.endswith("full activation checkpointing as asked; bf16 as asked")
    assert "fp16" in sentence(ask("t4", budget_usd=20.0)) and "fp16" not in sentence(asked)


def test_where_a_pinned_micro_batch_forces_recomputation_the_run_without_it_is_named():
    pinned = ask("l4", counts=(), gpu="l4", budget_usd=20.0, micro_batch=32, depth=20)
    assert pinned.workload.activation_checkpointing == "full"
    [said] = [text for text in pinned.reasons if "forces activation checkpointing" in text]
    assert "micro-batch 32 as asked" in said and "--micro-batch 4 does without: +" in said
    free = ask("l4", counts=(), gpu="l4", budget_usd=20.0, depth=20)
    assert not any("forces activation checkpointing" in text for text in free.reasons)
