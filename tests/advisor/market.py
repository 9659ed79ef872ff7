"""Plans on every card that can be rented, for the tests of the market: one goal, four cards, nothing measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning.answer import answer
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Plan

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
KEYS = ("l4", "a100-80gb-sxm", "h100-80gb-sxm", "rtx-4090")
PROFILES = [prior_profile(require_gpu(key)) for key in KEYS]
COUNTS = (1, 2, 4, 8)
GOAL = Goal(gpu="any", counts=COUNTS, budget_usd=20.0, deadline_seconds=8 * 3600.0)


@cache
def _asked(goal: Goal) -> Plan:
    return answer(goal, PROFILES, now=NOW)


def ask(profiles=PROFILES, data_meta=None, **wishes) -> Plan:
    """The plan for the goal with these wishes; the same question is planned once."""
    goal = replace(GOAL, **wishes)
    if profiles is PROFILES and data_meta is None:
        return _asked(goal)
    return answer(goal, profiles, now=NOW, data_meta=data_meta)
