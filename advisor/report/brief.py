"""Shows a plan in 20 lines of 80 columns, 22 with neighbours: what, where, how much, how sure. No arithmetic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.planning.explore import chances
from advisor.planning.offers import ANY
from advisor.planning.sensitivity import machine
from advisor.planning.stages import stages
from advisor.records import Plan, Run
from advisor.report.plan import briefly, sentence
from advisor.report.quantities import COST, DEVICE_MEMORY, LOSS, TIME
from advisor.units import DAY, format_percent, format_seconds, format_tokens, format_usd, format_usd_rate

LINES, WIDTH = 20, 80
SURE_ENOUGH = 0.8  # a limit that is kept more often is not mentioned
_FEW = 4  # number of other machines in the brief
_LABEL = 7  # columns for the name of a row
_NEXT = 5  # lines reserved for an empty line and the next commands

Row = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class BriefText:
    """The part below the plan's sentence: rows by subject, the first warnings, and what is not shown."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    rest: str


def brief(plan: Plan) -> BriefText:
    """Returns the plan in brief: options as far as the first warning leaves room, then more warnings if they fit."""
    rows, warnings = list(_rows(plan)), list(plan.warnings[:1])
    taken = _lines(sentence(plan)) + _lines(rest(len(plan.warnings))) + _NEXT
    taken += sum(_lines(text, WIDTH - _LABEL) for _, text in rows) + sum(map(_height, warnings))
    full = taken
    for row in _options(plan):
        full += _lines(row[1], WIDTH - _LABEL)
        if full <= LINES:
            rows.append(row)
            taken += _lines(row[1], WIDTH - _LABEL)
    for text in plan.warnings[1:]:
        taken += _height(text)
        if taken > LINES:
            break
        warnings.append(text)
    return BriefText(rows=tuple(rows), warnings=tuple(warnings), rest=rest(len(plan.warnings) - len(warnings)))


def _height(warning: str) -> int:
    return _lines(warning, WIDTH - 2) + (": advisor " in warning)  # a command has a line of its own


def rest(warnings_left: int) -> str:
    """Says what is not shown, and how to see it."""
    left = {0: " and reasons", 1: ", reasons and a warning more"}
    more = left.get(warnings_left, f", reasons and {warnings_left} warnings more")
    return f"All tables{more}: the same command with --all"


def _rows(plan: Plan) -> Iterator[Row]:
    if plan.offer.usd_per_hour:
        age = f", at most {format_seconds(plan.offer.age_days * DAY)} old" if plan.offer.age_days else ""
        yield "price", f"{format_usd_rate(plan.offer.usd_per_hour)} an hour{age}: {plan.offer.source}"
    if plan.chosen.loss is not None:
        yield "loss", f"{LOSS.of(plan.chosen.loss)} on validation"
    if plan.grounds is not None:
        measured = plan.grounds.calibration is not None
        rests = f"measured here ({plan.grounds.calibration})" if measured else f"based on {briefly(plan.grounds)}"
        kinds = len(plan.search.devices) if plan.search else 1
        compared = f"; {kinds} kinds compared by expected time" if kinds > 1 else ""
        yield "basis", f"speed {rests}; 80 % intervals{compared}"
    if (odds := broken(plan)) is not None:
        yield "odds", odds
    for run in plan.search.neighbours if plan.search else ():
        yield "or", f"{machine(run, ', ')}: {_numbers(run)}: {run.standing.why}"
    # Name each other machine that was asked for, if there are few.
    named = plan.search.machines if plan.search else ()
    for run in named if len(named) <= _FEW else ():
        parts = [TIME.expected(run.total_seconds), COST.expected(run.cost_usd) if run.cost_usd else ""]
        held = run.prediction.device_bytes
        parts.append(DEVICE_MEMORY.expected(held) if held else "")
        where = f"{run.offer.gpus} x {run.offer.gpu}{' spot' if run.offer.spot else ''}"
        yield "not", f"{where}: {', '.join(filter(None, parts))}: {run.standing.why.partition(', ')[0]}"
    if plan.search is not None and plan.goal.gpu != ANY and plan.goal.counts:
        yield from (("not", text) for text in plan.search.left_out)
    for stage in stages(plan, shares=()):
        spent = f"{TIME.words(stage.seconds)}{'' if stage.usd is None else f', {COST.words(stage.usd)}'}"
        yield "gate", f"at step {stage.step:,} ({spent}): go on if the loss is at most {LOSS.words(stage.at_most)}"


def broken(plan: Plan) -> str | None:
    """Says how likely the plan exceeds its limits, and what --sure would do; None if it is sure enough or unknown."""
    search = plan.search
    if search is None or plan.goal.sure:
        return None
    likely, budget, deadline = chances(plan.goal, plan.chosen), plan.goal.budget_usd, plan.goal.deadline_seconds
    said = [
        f"{odds(1 - kept)} of {words}"
        for kept, words in (
            (likely.budget, f"going over {format_usd(budget)}"),
            (likely.deadline, f"taking longer than {format_seconds(deadline)}"),
        )
        if kept is not None and kept < SURE_ENOUGH
    ]
    if not said:
        return None
    if plan.run is None:
        return f"{', '.join(said)}; --sure plans for 90 %"
    other = "finds nothing" if search.sure is None else f"plans for 90 %: {_run(search.sure, plan)}"
    return f"{', '.join(said)}; --sure {other}"


def odds(chance: float) -> str:
    """Returns a chance in words."""
    return "even odds" if abs(chance - 0.5) < 0.05 else f"a chance of {format_percent(round(min(chance, 0.99), 2))}"


def _options(plan: Plan) -> Iterator[Row]:
    """Yields the options that differ from the plan."""
    for run in plan.search.options if plan.search else ():
        if plan.search and plan.search.sure and run.standing.name == "conservative":
            continue  # the text about --sure already describes the conservative option
        why = run.standing.why.partition(";")[0]
        yield "or", f"{run.standing.name}: {_run(run, plan, anyway=True)}: {why}"


def _run(run: Run, plan: Plan, *, anyway: bool = False) -> str:
    """Describes another run, with its machine only if that differs or with `anyway`."""
    own, other = ((offer.gpu, offer.gpus, offer.provider, offer.spot) for offer in (plan.offer, run.offer))
    where = "" if own == other and not anyway else f" on {machine(run, ', ')}"
    return f"depth {run.depth}{where}, {format_tokens(run.tokens)} tokens, {_numbers(run)}"


def _numbers(run: Run) -> str:
    """Lists expected time, cost and loss, as far as they are known."""
    parts = [TIME.expected(run.total_seconds), COST.expected(run.cost_usd) if run.cost_usd else ""]
    return ", ".join(filter(None, (*parts, f"loss {LOSS.expected(run.loss)}" if run.loss else "")))


def _lines(text: str, width: int = WIDTH) -> int:
    return len(textwrap.wrap(text, width, break_on_hyphens=False))
