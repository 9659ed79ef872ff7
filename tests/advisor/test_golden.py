"""Over goals of every kind: the plan is the very configuration that the search chose, with no tolerance."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from advisor.cli.plan import command
from advisor.errors import AdvisorError
from advisor.options import OPTIONS, Goal
from advisor.planning.answer import answer
from advisor.planning.choose import search, select
from advisor.store.store import default_store
from advisor.workflows.data import read_data
from advisor.workflows.goal import goal_from
from advisor.workflows.plan import load_profiles

ROOT = Path(__file__).parents[2]
GOALS = [
    line
    for line in (ROOT / "tests" / "advisor" / "golden" / "goals.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> tuple[Path, list[list[str]]]:
    """A store in which the L4 and the CPU are calibrated, and the words of every goal."""
    spec = importlib.util.spec_from_file_location("golden", ROOT / "benchmarks" / "golden.py")
    golden = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(golden)
    home = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADVISOR_HOME", str(home))
        return home, golden.prepare_store(home)


@pytest.fixture
def goals(prepared, monkeypatch) -> list[list[str]]:
    home, words = prepared
    monkeypatch.setenv("ADVISOR_HOME", str(home))
    return words


def goal_of(words: list[str]) -> Goal:
    options = command.make_context("plan", list(words)).params
    return goal_from({name: options[name] for name in OPTIONS})


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[] if n % 12 == 0 else pytest.mark.long) for n in range(len(GOALS))]
)
def test_the_plan_is_what_the_search_chose(goals, number):
    try:
        goal = goal_of(goals[number])
    except click.UsageError:
        return  # one line is no goal
    profiles, left_out = load_profiles(goal, default_store())
    data = read_data(goal.data)
    space, chosen = search(goal, profiles, data, NOW.date())
    assert chosen == select(space, space.limits)
    if chosen is None:
        with pytest.raises(AdvisorError) as refused:
            answer(goal, profiles, now=NOW, data_meta=data, left_out=left_out)
        assert refused.value.exit_code == 3 and refused.value.hint
        return
    plan = answer(goal, profiles, now=NOW, data_meta=data, left_out=left_out)
    offer = space.offer(chosen.place)
    assert plan.grounds.calibration or plan.workload.gpu not in ("l4", "cpu")
    assert plan.workload == space.candidates.workload(chosen.place)
    assert (plan.run.steps, plan.run.micro_batch, plan.run.grad_accum) == (
        chosen.steps,
        int(space.candidates.micro_batch[chosen.place]),
        int(space.candidates.grad_accum[chosen.place]),
    )
    assert plan.offer == offer
    assert plan.chosen.score == pytest.approx(chosen.score, rel=1e-12)
    assert (plan.chosen.steps, plan.chosen.standing.name) == (chosen.steps, "balanced")
