"""A plan as a page of Markdown: what to train, what it takes, why, and the command that gives it again."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.planning.command import plan_command
from advisor.records import Goal, Plan
from advisor.report.plan import DEPENDS, RESTS_ON, course, sentence, speed_rests_on, summary
from advisor.report.table import in_markdown


def markdown(plan: Plan, goal: Goal) -> str:
    """The plan in Markdown; `goal` is the one whose command line is shown."""
    return "\n".join(_lines(plan, goal)) + "\n"


def _lines(plan: Plan, goal: Goal) -> Iterator[str]:
    yield from (f"# {plan.run.name}", "", " ".join(filter(None, (sentence(plan), speed_rests_on(plan)))), "")
    yield in_markdown(summary(plan))
    yield from ("", "## Why", "", *(f"- {reason}" for reason in plan.reasons))
    if plan.warnings:
        yield from ("", "## Mind", "", *(f"- {warning}" for warning in plan.warnings))
    if plan.search and plan.search.sensitivity:
        yield from ("", f"## {DEPENDS}", "", *(f"- {text}" for text in plan.search.sensitivity))
    if way := course(plan):
        yield from ("", f"## {way.title}", "", in_markdown(way))
    yield from ("", "## Again", "", "```", plan_command(goal, "plan.yaml"), "advisor launch plan.yaml", "```", "")
    yield from (f"## {RESTS_ON}", "", *(f"- {text}" for text in plan.inputs), "", f"{plan.id}, {plan.created}")
