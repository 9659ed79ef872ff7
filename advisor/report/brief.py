"""A plan in brief: what, where, how much, how sure and what else, in at most 20 lines of 80 columns. No arithmetic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from advisor.plan.sensitivity import machine
from advisor.plan.stages import stages
from advisor.records import Choice, Plan
from advisor.report.plan import briefly, sentence
from advisor.report.quantities import COST, LOSS, TIME
from advisor.units import DAY, format_seconds, format_usd_rate

LINES, WIDTH = 20, 80
_LABEL = 7  # columns that the name of a row takes
_NEXT = 5  # lines kept for an empty one and the commands that come next

Row = tuple[str, str]


def rows(plan: Plan) -> tuple[Row, ...]:
    """What stands below the plan's sentence, by what it is about."""
    return tuple(_rows(plan))


def warnings(plan: Plan) -> list[str]:
    """The first of the plan's warnings, as many as there are lines left for."""
    taken = _lines(sentence(plan)) + _lines(rest(len(plan.warnings))) + _NEXT
    taken += sum(_lines(text, WIDTH - _LABEL) for _, text in rows(plan))
    shown = []
    for text in plan.warnings:
        taken += _lines(text, WIDTH - 2) + (": advisor " in text)  # a command stands on a line of its own
        if taken > LINES:
            break
        shown.append(text)
    return shown


def rest(warnings_left: int) -> str:
    """What is not shown, and how to see it."""
    left = {0: " and reasons", 1: ", reasons and a warning more"}
    more = left.get(warnings_left, f", reasons and {warnings_left} warnings more")
    return f"All tables{more}: the same command with --all"


def _rows(plan: Plan) -> Iterator[Row]:
    if plan.usd_per_hour:
        age = f", at most {format_seconds(plan.price_age_days * DAY)} old" if plan.price_age_days else ""
        yield "price", f"{format_usd_rate(plan.usd_per_hour)} an hour: {plan.price_source}{age}"
    if plan.prediction.loss is not None:
        yield "loss", f"{LOSS.of(plan.prediction.loss)} on validation"
    if plan.grounds is not None:
        yield "sure", _how_sure(plan)
    for stage in stages(plan, shares=()):
        spent = f"{TIME.words(stage.seconds)}{'' if stage.usd is None else f', {COST.words(stage.usd)}'}"
        yield "gate", f"at step {stage.step:,} ({spent}): on only if the loss is at most {LOSS.words(stage.at_most)}"
    for choice in _other(plan.search.options if plan.search else ()):
        yield "or", _option(choice)


def _how_sure(plan: Plan) -> str:
    grounds = plan.grounds
    if grounds is not None and grounds.calibration is not None:
        return f"80 % intervals; the speed was measured here ({grounds.calibration})"
    return f"80 % intervals; the speed is not measured but from published runs: {briefly(grounds)}"


def _other(options: Sequence[Choice]) -> list[Choice]:
    """Conservative and aggressive, where they are another run than the plan."""
    plan = next((choice for choice in options if choice.name == "balanced"), None)
    return [
        c for c in options if plan and c is not plan and (c.total_seconds, c.depth) != (plan.total_seconds, plan.depth)
    ]


def _option(choice: Choice) -> str:
    parts = [TIME.expected(choice.total_seconds), COST.expected(choice.cost_usd) if choice.cost_usd else ""]
    parts.append(f"loss {LOSS.expected(choice.loss)}" if choice.loss else "")
    return f"{choice.name}: depth {choice.depth} on {machine(choice, ', ')}: {', '.join(filter(None, parts))}"


def _lines(text: str, width: int = WIDTH) -> int:
    return len(textwrap.wrap(text, width, break_on_hyphens=False))
