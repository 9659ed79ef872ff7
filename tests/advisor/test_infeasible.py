"""What is said when nothing fits a goal: the named limit is enough, and not far above what is needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from advisor.calibration.profiles import prior_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning.answer import answer
from advisor.records import Plan
from advisor.units import parse_seconds, parse_usd

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PROFILES = [prior_profile(require_gpu(key)) for key in ("l4", "a100-80gb-sxm", "b200")]
MANY = Goal(gpu="any", counts=(1, 2, 4, 8))
ONE = Goal(gpu="l4")


def ask(goal: Goal) -> Plan:
    return answer(goal, PROFILES if goal.gpu == "any" else PROFILES[:1], now=NOW)


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("goal", [MANY, ONE], ids=["many", "one"])
@pytest.mark.parametrize(
    ("name", "wishes"),
    [
        ("deadline_seconds", {"deadline_seconds": 30.0}),
        ("deadline_seconds", {"deadline_seconds": 60.0, "depth": 12}),
        ("deadline_seconds", {"deadline_seconds": 3600.0, "depth": 24, "tokens": 10**10}),
        ("budget_usd", {"budget_usd": 0.0005}),
        ("budget_usd", {"budget_usd": 0.01, "depth": 20}),
        ("budget_usd", {"budget_usd": 3.0, "depth": 24, "tokens": 10**10}),
    ],
)
def test_the_limit_named_is_enough_and_little_more_than_enough(name, wishes, goal, sure):
    goal = replace(goal, sure=sure, **wishes)
    with pytest.raises(AdvisorError) as caught:
        ask(goal)
    assert caught.value.exit_code == 3
    _, value = caught.value.hint.split("feasible with --")[1].split(" or ")[0].split(" ")
    limit = parse_seconds(value) if name == "deadline_seconds" else parse_usd(value)
    assert ask(replace(goal, **{name: limit})).run.steps >= 20
    with pytest.raises(AdvisorError):
        ask(replace(goal, **{name: 0.7 * limit}))
