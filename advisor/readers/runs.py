"""Finds the runs of one log, how each ended, and how the whole log ended.

A phase of the table is a run. A start that never trained is also a run, with lines but no rows. Each run is judged by
the events in its own lines and by its own plan, and the whole log by its last run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from advisor.readers.attempts import Stretch, distinct
from advisor.readers.axis import NOT_PRINTED, ONE_EPOCH
from advisor.readers.clock import GREW
from advisor.readers.events import joined
from advisor.readers.fact_lines import Planned, planned_before
from advisor.readers.records import has_loss
from advisor.readers.run_table import Event, RunPart, RunTable, Status
from advisor.readers.starts import Segment, Words, segments
from advisor.readers.status import (
    CAUSES,
    DECISIVE,
    FAILURES,
    at_the_end,
    ended_alike,
    follows_timeout,
    of_all_runs,
    status_of,
)

LAST_LOSSES = 20  # of which the NaN share shows divergence: above one skipped step, below a healthy first half
_OWN_FAULT = CAUSES.keys() - {"interrupt", "killed", "nccl_error", "nccl_timeout"}  # not a launcher's clean-up
_LAST_WORDS = FAILURES | {
    "finished",
    "early_stop",
    "afterwards",
    "total_time",
    "restart",
}  # after these, another run may begin


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """What cuts a log into runs."""

    phases: Sequence[Stretch]  # one per phase of the table
    lines: np.ndarray  # line of each record
    train_lines: np.ndarray  # line of each training record, on all ranks
    starts: Sequence[int]  # lines at which a program started again
    plans: Sequence[Planned]  # settings of how far it is meant to go
    epoch_steps: float | None  # if steps restart with every epoch, the largest printed one: a plan covers one epoch

    def reach(self) -> list[tuple[int, int]]:
        """Return the first and last line of each phase's records."""
        return [(int(lines.min()), int(lines.max())) for lines in (self.lines[phase.records] for phase in self.phases)]


def with_runs(table: RunTable, events: Sequence[Event], cuts: Cuts) -> RunTable:
    """Return the table with its runs and with how the whole log ended. `events` are all the log's events, in order."""

    def lines(kinds: Collection[str], of: Sequence[Event] = events) -> list[int]:
        return [event.line for event in of if event.kind in kinds and event.line is not None]

    table = dataclasses.replace(table, facts=_with_plans(table, cuts))
    words = Words(
        decisive=lines(_LAST_WORDS),
        finished=lines(("finished",)),
        failed=lines(_OWN_FAULT, [event for event in events if not follows_timeout(event, events)]),
        broken=lines(FAILURES),
    )
    found = segments(cuts.reach(), cuts.starts, words, distinct(cuts.train_lines))
    parts = []
    for number, segment in enumerate(found, 1):
        mine = _events_of(segment, events, cuts.train_lines, last=number == len(found))
        stretch = cuts.phases[segment.phase] if segment.phase is not None else None
        name = (stretch.name if stretch is not None else "") or ("training" if len(found) == 1 else f"run {number}")
        parts.append(dataclasses.replace(_part(table, segment, stretch, mine, cuts), name=name))
    parts = ended_alike(parts)
    status, reason = of_all_runs(parts)
    facts = dict(table.facts)
    if sum(part.phase is not None for part in parts) > 1 and "total_seconds" in facts:  # another run may have said so
        own = next((part.declared_seconds for part in parts if part.phase == table.main_phase), None)
        del facts["total_seconds"]
        facts |= {} if own is None else {"total_seconds": own}
    return dataclasses.replace(table, runs=tuple(parts), status=status, status_reason=reason, facts=facts)


def _with_plans(table: RunTable, cuts: Cuts) -> dict[str, Any]:
    """Return facts with the main run's planned end: of its records, else from the configuration in the log."""
    facts = dict(table.facts)
    if not table.phases:
        return facts
    first = cuts.reach()[table.main_phase][0]
    for fact, column in (("planned_epochs", "epoch"), ("planned_steps", "step")):
        done = values(table, table.main_phase, column)
        counted = len(done) and (column == "epoch" or table.counts_steps)
        if counted and fact not in facts and (plan := planned_before(cuts.plans, first, fact, float(done.max()))):
            facts[fact] = as_int(plan)
        if column == "epoch":
            facts = _of_all_epochs(facts, table, cuts)
    return facts


def _of_all_epochs(facts: dict[str, Any], table: RunTable, cuts: Cuts) -> dict[str, Any]:
    """Multiply planned steps of one epoch by the planned epochs. If these are unknown, so is the planned end."""
    planned, epochs = (stated(facts, name) for name in ("planned_steps", "planned_epochs"))
    if planned is None:
        return facts
    if cuts.epoch_steps is None:
        of_one = _plans_first_epoch(table, cuts.phases[table.main_phase], epochs)
    else:
        of_one = planned <= ONE_EPOCH * (cuts.epoch_steps + 1)
    if not of_one:
        return facts
    rest = {name: value for name, value in facts.items() if name != "planned_steps"}
    return (
        {**rest, "epoch_steps": as_int(planned)}
        if epochs is None
        else {**rest, "planned_steps": as_int(planned * epochs)}
    )


def _plans_first_epoch(table: RunTable, stretch: Stretch, epochs: float | None) -> bool:
    """Return whether rows count the steps of one epoch, `Epoch [0/100] [80/44660]`, and no other one has begun yet."""
    step, epoch = (values(table, table.main_phase, name) for name in ("step", "epoch"))
    whole = len(epoch) > 0 and not np.ptp(epoch) and epoch[0] == round(epoch[0])
    if stretch.planned is None or stretch.planned != stated(table.facts, "planned_steps") or not whole or not len(step):
        return False
    if epochs is None:  # the outer counter is printed first: `step 9/100 epoch 1` counts the whole run
        columns = list(table.columns)
        return columns.index("epoch") < columns.index("step") and bool(np.ptp(step))
    if epochs <= 1:
        return False
    # a counter of the whole run stands where this epoch begins or ends; only two totals side by side are surely nested
    away = abs(float(step.max()) - stretch.planned * float(epoch[0]) / epochs)
    return away > stretch.planned / epochs or (stretch.planned_epochs is not None and epoch[0] <= 1)


def as_int(value: float) -> float | int:
    """Return a whole number as an int."""
    return int(value) if value == int(value) else value


def _events_of(segment: Segment, events: Sequence[Event], train_lines: np.ndarray, *, last: bool) -> list[Event]:
    """Return the events in a run's lines, each with its later records' count. Events without a line end the log."""
    end = np.searchsorted(train_lines, segment.end_line)
    mine = []
    for event in events:
        if event.line is None:
            if last:
                mine.append(event)
        elif segment.first_line <= event.line < segment.end_line:
            if event.kind in DECISIVE:
                after = float(end - np.searchsorted(train_lines, event.line, side="right"))
                event = dataclasses.replace(event, numbers={**event.numbers, "rows_after": after})
            mine.append(event)
    return joined(mine)


def _part(table: RunTable, segment: Segment, stretch: Stretch | None, events: Sequence[Event], cuts: Cuts) -> RunPart:
    """Return one run, judged by itself."""
    part = RunPart(
        name="",
        phase=segment.phase,
        first_line=segment.first_line,
        last_line=None if np.isinf(segment.end_line) else int(segment.end_line) - 1,
        status=Status.NO_END,
        status_reason="",
        declared_seconds=_declared(events),
    )
    if stretch is None or segment.phase is None:
        whole = not table.phases
        planned = stated(table.facts, "planned_steps") if whole else None
        status, reason = status_of(events, None, planned, nan_share(table) if whole else 0.0)
        return dataclasses.replace(part, status=status, status_reason=reason)
    status, reason = _status(table, segment.phase, stretch, events, cuts)
    rows = table.phases[segment.phase].rows
    at = np.flatnonzero(loss_rows(table.columns, len(table))[rows]) + rows.start
    return dataclasses.replace(
        part,
        status=status,
        status_reason=reason,
        starts=max(segment.starts, 1 + stretch.restarts),
        **ends_of(table.columns, at, table.counts_steps and table.provenance.get("step") not in NOT_PRINTED),
    )


def _declared(events: Sequence[Event]) -> float | None:
    """Return the total seconds that a run states after its last record; totals of single epochs are summed.

    A total that also appears before later records, and does not rise from one to the next, belongs to an epoch.
    """
    said = [e for e in events if e.kind in ("finished", "total_time", "early_stop") and "seconds" in e.numbers]
    after = {e.numbers.get("rows_after", 0.0): e.numbers["seconds"] for e in said if e.kind != "early_stop"}
    each = list(after.values())
    if len(each) > 1 and any(b <= a for a, b in pairwise(each)) and each[-1] < GREW * max(each[:-1]):
        return sum(each)
    last = [event.numbers["seconds"] for event in said if event.numbers.get("rows_after") == 0]
    return max(last, default=None)


def _status(table: RunTable, phase: int, stretch: Stretch, events: Sequence[Event], cuts: Cuts) -> tuple[Status, str]:
    """Return how a run ended: by steps if both the last and the planned one are printed, else by epochs."""
    steps, epochs = values(table, phase, "step"), values(table, phase, "epoch")
    printed = table.counts_steps
    planned, planned_epochs = _plan(table, phase, stretch, cuts, (steps, epochs))
    share = nan_share(table, phase)
    last = float(steps.max()) if len(steps) else None
    whole = len(epochs) > 0 and bool(np.all(epochs == np.round(epochs)))
    slack = (1.0 if epochs.min() == 0 else 0.0) if whole else 0.02 * (planned_epochs or 1.0)
    if planned is not None and printed:
        moves = np.diff(steps)
        stride = float(np.median(moves[moves > 0])) if (moves > 0).any() else 1.0
        return status_of(events, last, planned, share, slack=max(1.0, min(stride, planned / 10)))
    late = at_the_end(table, phase, events)
    if len(epochs) and (planned_epochs is not None or not printed):
        done = float(epochs.max())
        return status_of(events, done, planned_epochs, share, slack=slack, unit="epoch", at_the_end=late)
    return status_of(events, last, None, share, unit="step" if printed else "record", at_the_end=late)


def _plan(
    table: RunTable, phase: int, stretch: Stretch, cuts: Cuts, done: tuple[np.ndarray, np.ndarray]
) -> list[float | None]:
    """Return a run's planned steps and epochs. A plan that the log states only once belongs to the main run."""
    declared = [stated(table.facts, name) for name in ("planned_steps", "planned_epochs")]
    if phase == table.main_phase:
        return declared
    first = cuts.reach()[phase][0]
    of_main = cuts.phases[table.main_phase].planned
    of_one = cuts.epoch_steps is not None or of_main not in (None, declared[0])
    printed = (None if of_one else stretch.planned, stretch.planned_epochs)
    own = [
        plan if plan is not None else planned_before(cuts.plans, first, name, float(x.max()) if len(x) else 0.0)
        for plan, name, x in zip(printed, ("planned_steps", "planned_epochs"), done, strict=True)
    ]
    return own


def loss_rows(columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Return which rows have a training loss or, if none has, a validation loss."""
    loss = has_loss(dict(columns), rows)
    return loss if loss.any() else ~np.isnan(columns.get("eval_loss", np.full(rows, np.nan)))


def ends_of(columns: Mapping[str, np.ndarray], at: np.ndarray, step_printed: bool) -> dict[str, Any]:
    """Return the first and last step and loss of rows `at`, as printed; evaluations' losses if there are no others.

    If steps restart with every epoch (`step_printed` is False), epochs are used: such steps are no place in a run.
    """
    if not len(at):
        return {}
    printed = columns.get("loss_is_nan")
    name = "loss" if printed is not None and not np.isnan(printed[at]).all() else "eval_loss"
    values = columns.get(name, np.full(len(columns["step"]), np.nan))

    def loss(row: int) -> float | None:
        absent = printed is None or name == "eval_loss" or np.isnan(printed[row])
        return None if np.isnan(values[row]) and absent else float(values[row])

    steps = columns["step"] if step_printed else columns.get("epoch")
    if not step_printed and steps is not None:  # parts of an epoch name no step
        epochs = steps[at]
        whole = np.all(np.isfinite(epochs)) and np.all(epochs == np.round(epochs)) and np.all(np.diff(epochs) >= 0)
        steps = steps if whole else None
    return {
        "first_step": None if steps is None else float(steps[at[0]]),
        "last_step": None if steps is None else float(steps[at[-1]]),
        "first_loss": loss(int(at[0])),
        "last_loss": loss(int(at[-1])),
    }


def values(table: RunTable, phase: int, name: str) -> np.ndarray:
    """Return the finite values of a column in a phase."""
    found = table.column(name)[table.phases[phase].rows]
    return found[np.isfinite(found)]


def nan_share(table: RunTable, phase: int | None = None) -> float:
    """Return the share of the last losses that are not finite."""
    flags = table.column("loss_is_nan")[table.phases[phase].rows if phase is not None else slice(None)]
    printed = flags[~np.isnan(flags)][-LAST_LOSSES:]
    if 2 < len(printed) < LAST_LOSSES and printed[-2:].all():
        return 1.0  # if there are few rows, such as one per epoch, a run does not recover from two in a row
    return float((printed > 0).mean()) if len(printed) else 0.0


def stated(facts: Mapping[str, Any], name: str) -> float | None:
    """Return a fact's number; None if the fact is missing or is something else."""
    value = facts.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
