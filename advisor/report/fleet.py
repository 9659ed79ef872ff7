"""Shows the plan of a fleet: cost, what to buy, the schedule with its chances, budgets; and shows its runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from advisor.fleets.records import Outlook, Placement, PoolKind
from advisor.report.quantities import COST
from advisor.report.table import Table
from advisor.units import format_count, format_percent, format_usd
from advisor.workflows.fleet import FleetPlan
from advisor.workflows.fleet_run import FleetLook

COLUMNS = ("run", "on", "GPUs", "starts", "ends", "9 of 10 end by", "deadline", "chance", "cost")
_WITHOUT_YEAR = timedelta(days=180)  # a moment that is further away needs its year
_CERTAIN = 0.995  # a chance above this is not told from certainty by 500 draws


def sentence(plan: FleetPlan) -> str:
    """Say what the plan costs and whether it keeps the deadlines."""
    late, asked = len(plan.unlikely), format_percent(plan.fleet.probability)
    runs = len(plan.fleet.runs)
    words = f"{'1 run costs' if runs == 1 else f'{runs} runs cost'} {COST.of(plan.total_usd)} on average"
    if plan.purchases:
        words += f", with {', '.join(f'{one.blocks} x {one.pool}' for one in plan.purchases)} bought"
    if plan.schedule.left_out:
        words += f"; {len(plan.schedule.left_out)} of them have no place"
    if dated := sum(one.probability is not None for one in plan.outlooks):
        words += f"; {late} of {dated} deadlines are met less often than {asked}" if late else (
            f"; each of {dated} deadlines is met with at least {asked}"
        )  # fmt: skip
    return words


def _at(starts: str, hours: float | None) -> datetime | None:
    """Return a time of the fleet as a moment, or None if there is none."""
    return None if hours is None or hours == math.inf else datetime.fromisoformat(starts) + timedelta(hours=hours)


def _moment(starts: str, hours: float | None) -> str:
    if (at := _at(starts, hours)) is None:
        return ""
    return f"{at:%a %d %b %H:%M}" if at - datetime.fromisoformat(starts) < _WITHOUT_YEAR else f"{at:%d %b %Y}"


def _chance(chance: float | None) -> str:
    return "" if chance is None else "> 99 %" if chance > _CERTAIN else format_percent(chance)


def tables(plan: FleetPlan) -> Iterator[Table]:
    """Yield what to buy, the schedule, and the budgets."""
    if plan.purchases:
        bought = [
            (one.pool, str(one.blocks), format_usd(one.usd), format_percent(one.used_share),
             "nothing else has it" if one.break_even_share is None else format_percent(one.break_even_share))
            for one in plan.purchases
        ]  # fmt: skip
        columns = ("block", "number", "cost", "used", "pays from a use of")
        yield Table(title="To buy", columns=columns, rows=tuple(bought))
    rows = [_row(plan, *placed) for placed in _placed(plan)]
    yield Table(title="Schedule", columns=COLUMNS, rows=tuple(rows), numbers=("GPUs", "chance"))
    if budgets := plan.fleet.budgets_usd:
        spent = plan.spent_usd | {"": plan.total_usd.value}
        left = [(team, usd, spent.get(team, 0.0)) for team, usd in budgets.items()]
        yield Table(
            title="Budgets", columns=("team", "cost", "budget", "left"),
            rows=tuple((team or "all", *map(format_usd, (used, usd, usd - used))) for team, usd, used in left),
        )  # fmt: skip


def _placed(plan: FleetPlan) -> Iterator[tuple[Placement, Outlook, float]]:
    """Yield each run that has a place, with its chances and its deadline."""
    deadlines = {run.name: run.deadline_hours for run in plan.fleet.runs}
    for one, outlook in zip(plan.schedule.placements, plan.outlooks, strict=True):
        yield one, outlook, deadlines[one.run]


def _row(plan: FleetPlan, placed: Placement, outlook: Outlook, deadline: float) -> tuple[str, ...]:
    times = (outlook.start_hours, outlook.end_hours.value, outlook.end_hours.high, deadline)
    moments = (_moment(plan.fleet.starts, hours) for hours in times)
    return (placed.run, placed.pool, str(placed.gpus), *moments, _chance(outlook.probability), COST.of(outlook.usd))


def lines(plan: FleetPlan) -> Iterator[str]:
    """Yield what would have to change, what more GPUs and time are worth, and how good the schedule is."""
    for name, why in plan.schedule.left_out.items():
        yield f"{name} has no place: {why}"
    for one in plan.unlikely:
        asked = format_percent(plan.fleet.probability)
        yield (f"{one.run} meets its deadline with {format_percent(one.probability)}; {asked} needs a deadline of "
               f"{_moment(plan.fleet.starts, one.deadline_hours)}, more GPUs or a higher budget")  # fmt: skip
    bound = plan.schedule.bound
    used = {one.pool for one in plan.schedule.placements}
    for pool in plan.fleet.pools:
        worth = bound.gpu_worth_usd.get(pool.name, 0.0)
        if pool.kind is not PoolKind.RESERVATION and pool.name in used and worth >= 1.0:
            yield f"one more {pool.gpu} in {pool.name} would save {format_usd(worth)}"
    for later in plan.later:
        yield f"a deadline one day later for {later.run} would save {format_usd(later.usd)}"
    if gap := plan.schedule.gap:
        yield (f"no schedule with as much room for slow runs costs less than {format_usd(bound.usd)}; at its predicted "
               f"times this one costs {format_usd(plan.schedule.usd)}, {format_percent(gap)} more")  # fmt: skip
    yield from plan.notes


def bars(plan: FleetPlan) -> list[dict[str, Any]]:
    """Return a row for each run of the chart, in the order of their starts."""
    rows = []
    for one, outlook, deadline in _placed(plan):
        shown = dict(zip(COLUMNS, _row(plan, one, outlook, deadline), strict=True))
        hours = {"start": outlook.start_hours, "end": outlook.end_hours.value, "low": outlook.end_hours.low,
                 "high": outlook.end_hours.high, "deadline": deadline}  # fmt: skip
        moments = {name: at.isoformat() if (at := _at(plan.fleet.starts, value)) else None
                   for name, value in hours.items()}  # fmt: skip
        rows.append({
            "run": one.run, "pool": one.pool, "kind": plan.fleet.pool(one.pool).kind.value, **moments,
            "label": f"{shown['GPUs']} GPUs, {shown['starts']} to {shown['ends']}, {shown['cost']}",
        })  # fmt: skip
    return rows


def document(plan: FleetPlan) -> dict[str, Any]:
    """Return the JSON document: the schedule, its chances, what to buy, the bound. Times are hours from `starts`."""
    fleet, schedule, bound = plan.fleet, plan.schedule, plan.schedule.bound
    return {
        "name": fleet.name, "starts": fleet.starts, "sentence": sentence(plan),
        "keeps_deadlines": plan.keeps_deadlines, "total_usd": plan.total_usd, "placements": schedule.placements,
        "outlooks": plan.outlooks, "left_out": schedule.left_out, "purchases": plan.purchases,
        "unlikely": plan.unlikely, "spent_usd": plan.spent_usd, "budgets_usd": fleet.budgets_usd,
        "expected_usd": schedule.usd, "lost_value_usd": schedule.loss_usd, "bound_usd": bound.usd, "gap": schedule.gap,
        "gpu_worth_usd": bound.gpu_worth_usd, "later": plan.later, "notes": plan.notes,
    }  # fmt: skip


# --- a fleet that runs ------------------------------------------------------------------------------------------------


def looked_table(look: FleetLook) -> Table:
    """Return what became of each run, with the forecast of its end."""
    rows = []
    for one in look.state.runs:
        step, steps = look.steps.get(one.run, (None, None))
        state = f"running, step {format_count(step)} of {format_count(steps)}" if (
            one.phase == "running" and step is not None and steps is not None) else one.phase.value  # fmt: skip
        met = "" if one.deadline_hours is None or one.end_hours is None else (
            "met" if one.end_hours <= one.deadline_hours else "missed")  # fmt: skip
        times = (_moment(look.state.starts, at) for at in (one.start_hours, one.end_hours, one.deadline_hours))
        rows.append((one.run, state, one.pool or "", *times, met if one.phase == "ended" else _chance(one.probability),
                     format_usd(one.usd) if one.usd else ""))  # fmt: skip
    columns = ("run", "state", "on", "starts", "ends", "deadline", "chance", "spent")
    return Table(title=look.state.name, columns=columns, rows=tuple(rows))


def news(before: FleetLook | None, look: FleetLook) -> Iterator[str]:
    """Yield a line for each run that is in another state or place than before."""
    known = {one.run: (one.phase, one.pool, one.attempt) for one in before.state.runs} if before is not None else {}
    for one in look.state.runs:
        if known.get(one.run) == (one.phase, one.pool, one.attempt) or (before is None and not one.attempt):
            continue
        where = f" on {one.pool}" if one.pool and one.phase not in ("ended", "failed") else ""
        again = f", attempt {one.attempt}" if one.attempt > 1 else ""
        spent = f", {format_usd(one.usd)} spent" if one.usd else ""
        yield f"{one.run}: {one.phase}{where}{again}{spent}{f': {one.reason}' if one.reason else ''}"


def looked_lines(look: FleetLook) -> Iterator[str]:
    """Yield what was spent of each budget, and why runs failed or wait."""
    for one in look.state.budgets:
        spent = look.spent_usd.get(one.team, 0.0)
        yield f"{one.team or 'all teams'}: {format_usd(spent)} of {format_usd(one.usd)} spent"
    yield from (f"{one.run}: {one.reason}" for one in look.state.runs if one.reason)


def looked_document(look: FleetLook) -> dict[str, Any]:
    """Return the JSON document of a fleet that runs. Times are hours from `starts`."""
    return {
        "name": look.state.name, "file": look.state.file, "starts": look.state.starts, "runs": look.state.runs,
        "steps": look.steps, "spent_usd": look.spent_usd,
        "budgets_usd": {one.team: one.usd for one in look.state.budgets},
    }  # fmt: skip
