"""Builds a RunTable from the records, facts and events of one log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from advisor.readers.attempts import (
    Attempts,
    attempts,
    copies_apart,
    evaluations_apart,
    merge_evaluations,
    one_per_step,
)
from advisor.readers.axis import BAR, NOT_PRINTED, Axis, axis_of, row_numbers
from advisor.readers.console_steps import reached_by
from advisor.readers.events import joined
from advisor.readers.fact_lines import Planned
from advisor.readers.line_format import HIDDEN, TRAIN
from advisor.readers.records import Records
from advisor.readers.run_table import ROW_NUMBERS, ZERO_FOR_NAN, Event, Phase, RunTable, names_of
from advisor.readers.runs import Cuts, as_int, ends_of, loss_rows, with_runs
from advisor.readers.status import DECISIVE
from advisor.readers.telemetry_names import PREFIX, with_readings_of_rows

_OFTEN = 1.5  # rows of a bar for each epoch: more are drawn between evaluations
_PRINTED_TWICE = 3  # most banners of a log of which a part is repeated value for value


def assemble(
    records: Records,
    *,
    source: str,
    format: str,
    framework: str | None,
    facts: Mapping[str, Any] | None = None,
    events: Sequence[Event] = (),
    provenance: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    phase_names: Sequence[str] = (),
    borrowed: Mapping[int, str] | None = None,
    starts: Sequence[int] = (),
    plans: Sequence[Planned] = (),
    further: Sequence[tuple[int, float]] = (),
) -> RunTable:
    """Join the records of a log into one table: drop repeats, join restarts, number phases and merge evaluations.

    Rule i reads one kind of line. `phase_names[i]` names the phase of its records ("" if the format does not say), and
    `borrowed[i]` says whose step they take if they print none. `starts` are lines at which a program started again,
    `plans` are settings of how far it trains, and `further` are lines after which a bar went on, and how far. Empty
    columns are left out.
    """
    notes, events = list(notes), list(events)
    bars = [rule for rule, side in (borrowed or {}).items() if side == BAR]
    records = _evaluated_once(records, bars)
    copy, copies = copies_apart(evaluations_apart(records))
    if copies > 1:
        notes.append(f"{copies} processes print each step into the log: the rows are those of the first")
        events.append(Event(kind="copies", text=notes[-1], numbers={"count": copies}))
    whole = _without_false_zeros(copy, notes)
    records = _lowest_rank(whole, notes)
    axis = axis_of(records, dict(borrowed or {}))
    # if the log was printed twice, so was its banner; many starts with few trainings are starts
    found = attempts(records, axis.values, phase_names, starts if len(starts) > _PRINTED_TWICE else ())
    pieces = [phase.records for phase in found.phases]
    if axis.note:
        notes.append(axis.note)
    for at, piece in enumerate(pieces if axis.unique else ()):
        piece, lost = one_per_step(piece, records, axis.values)
        if lost:
            notes.append(f"{lost} records repeat the step of another one: the last of each step is kept")
        pieces[at] = merge_evaluations(piece, records, axis.values)
    step = axis.values if axis.printed else row_numbers(records)
    columns = {**records.columns, "step": step} if len(records) else {}
    kept = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    table = RunTable(
        source=source,
        format=format,
        framework=framework,
        columns=_columns(columns, kept, pieces),
        provenance=_provenance(provenance or {}, columns, axis),
        phases=_phases(pieces, found),
        facts=dict(facts or {}),
        rows=whole.losses or (whole.evals if whole.train else 0),
        steps_by_bar=bool(bars),
        duplicates=found.duplicates,
        lines=records.line[kept],
    )
    table = with_readings_of_rows(_with_main_phase(table, found, axis))
    if table.duplicates:
        notes.append(f"{table.duplicates} records were printed twice, value for value: dropped, not a restart")
    notes += [f"restarted at step {first:.10g} after step {last:.10g}: the later attempt wins"
              for _, first, last in found.restarts[:5]]  # fmt: skip
    if not table.counts_steps and len(table):
        notes.append("the log prints no step: steps are the numbers of its rows")
    events += _restart_events(found, records.line)
    train_lines = whole.line[whole.kind == TRAIN]
    placed = _placed(events, train_lines, records.line, reached_by(records.line, step, further))
    table = dataclasses.replace(table, events=tuple(joined(placed)), notes=tuple(dict.fromkeys(notes)))
    cuts = Cuts(
        phases=tuple(phase for phase, piece in zip(found.phases, pieces, strict=True) if len(piece)),
        lines=records.line,
        train_lines=train_lines,
        starts=() if found.duplicates and len(starts) <= _PRINTED_TWICE else starts,
        plans=plans,
        epoch_steps=axis.epoch_steps,
    )
    return with_runs(table, placed, cuts)


def _restart_events(found: Attempts, lines: np.ndarray) -> Iterator[Event]:
    """Yield an event for each time that the steps go back."""
    for record, first, last in found.restarts:
        numbers = {"first_step": first, "last_step": last}
        text = f"steps go back from {last:.10g} to {first:.10g}"
        yield Event(kind="restart", text=text, line=int(lines[record]), step=last, numbers=numbers)


_ALMOST_ALL = 0.9  # of the rows with another loss print a gradient norm: where it is missing, it was not a number


def _without_false_zeros(records: Records, notes: list[str]) -> Records:
    """Return records in which a loss that is printed as 0 beside a gradient norm of nan is not a number.

    Trainers that filter losses that are not finite (logging_nan_inf_filter) print 0 for them.
    """
    loss, norm, flags = (records.columns.get(name) for name in ("loss", "grad_norm", "loss_is_nan"))
    if loss is None or norm is None or flags is None:
        return records
    false = (loss == 0) & np.isnan(norm)
    others = np.isfinite(norm[np.isfinite(loss) & ~false])
    if not false.any() or (len(others) and others.mean() < _ALMOST_ALL):
        return records
    notes.append(ZERO_FOR_NAN)
    changed = {"loss": np.where(false, np.nan, loss), "loss_is_nan": np.where(false, 1.0, flags)}
    return dataclasses.replace(records, columns={**records.columns, **changed})


def _lowest_rank(records: Records, notes: list[str]) -> Records:
    """Return the records of one of the ranks that print into the log."""
    rank = records.column("rank")
    ranks = np.unique(rank[~np.isnan(rank)])
    if len(ranks) < 2:
        return records
    printing = rank[(records.kind == TRAIN) & ~np.isnan(rank)]
    # In a pipeline, the stages before the last have no loss and print a constant number in its place.
    loss = records.column("loss")
    varied = [one for one in np.unique(printing) if len(np.unique(loss[(rank == one) & np.isfinite(loss)])) > 1]
    lowest = float(min(varied, default=printing.min() if len(printing) else ranks[0]))
    notes.append(f"{len(ranks)} ranks print into the log: the rows are those of rank {lowest:.0f}")
    return records.take(np.isnan(rank) | (rank == lowest))


def _columns(columns: dict[str, np.ndarray], kept: np.ndarray, pieces: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    out = {
        name: values[kept]
        for name, values in columns.items()
        if name in names_of("columns") or name in HIDDEN or name.startswith(PREFIX)
    }
    out = {name: values for name, values in out.items() if not np.isnan(values).all()}
    if out:
        out["phase"] = np.repeat(np.arange(len(pieces), dtype=np.float64), [len(piece) for piece in pieces])
    return out


def _evaluated_once(records: Records, bars: Sequence[int]) -> Records:
    """Return records in which a held-out value that a bar shows again, unchanged, stands only where it appeared.

    A bar drawn once per epoch shows each epoch's own value, even if it is that of the epoch before.
    """
    columns = dict(records.columns)
    for rule in bars:
        at = np.flatnonzero(records.rule == rule)
        epochs = records.column("epoch")[at]
        if len(at) <= _OFTEN * len(np.unique(epochs)) and np.isfinite(epochs).all():
            continue
        names = [name for name in columns if name.startswith("eval_")]
        values = np.array([columns[name][at] for name in names]).reshape(len(names), len(at))
        shown = np.flatnonzero(~np.isnan(values).all(axis=0))
        again = at[shown[1:][(np.diff(np.nan_to_num(values[:, shown])) == 0).all(axis=0)]]
        for name in names:
            columns[name] = columns[name].copy()
            columns[name][again] = np.nan
    return dataclasses.replace(records, columns=columns)


def _provenance(told: Mapping[str, str], columns: Mapping[str, np.ndarray], axis: Axis) -> dict[str, str]:
    out = {name: told.get(name, "as printed") for name in columns if name in names_of("columns")}
    if not axis.printed and columns:
        out["step"] = ROW_NUMBERS
    elif axis.note:
        out["step"] = axis.note
    out["phase"] = "from steps that start again"
    return out


def _phases(pieces: Sequence[np.ndarray], found: Attempts) -> tuple[Phase, ...]:
    out, at = [], 0
    for number, (piece, phase) in enumerate(zip(pieces, found.phases, strict=True), 1):
        if len(piece):
            name = phase.name or ("training" if len(pieces) == 1 else f"attempt {number}")
            out.append(Phase(name=name, first_row=at, last_row=at + len(piece) - 1))
        at += len(piece)
    return tuple(out)


def _with_main_phase(table: RunTable, found: Attempts, axis: Axis) -> RunTable:
    """Return the table with its main phase set: the longest phase with a loss, its bounds and its planned steps."""
    columns = dict(table.columns)
    hidden = {name: columns.pop(name) for name in HIDDEN if name in columns}
    rows = len(table)
    loss = loss_rows(columns, rows)
    counts = [int(loss[p.rows].sum()) for p in table.phases]
    main = int(np.argmax(counts)) if counts else 0
    facts = dict(table.facts)
    ends: dict[str, Any] = {}  # values for fields of the table
    if counts:
        part = table.phases[main].rows
        facts |= _repeated({name: values[part] for name, values in hidden.items()})
        ends = ends_of(columns, np.flatnonzero(loss[part]) + part.start, axis.printed and axis.note not in NOT_PRINTED)
    told = dict(table.provenance)
    rate, world = hidden.get("device_tokens_per_second"), facts.get("world_size")
    if rate is not None and world:
        columns["tokens_per_second"] = rate * world
        told["tokens_per_second"] = f"printed per GPU, times {world} devices"
    return dataclasses.replace(table, columns=columns, main_phase=main, facts=facts, provenance=told, **ends)


def _repeated(hidden: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return facts that the main phase's records repeat: the last plan and the usual batch."""
    facts: dict[str, Any] = {}
    for name in (*("planned_steps", "planned_epochs"), "step_tokens", "device_flops", "device_tokens_per_second"):
        values = hidden.get(name, np.zeros(0))
        values = values[np.isfinite(values)]
        if len(values):
            facts[name] = as_int(float(values[-1] if name.startswith("planned") else np.median(values)))
    return facts


def _placed(events: Sequence[Event], train_lines: np.ndarray, lines: np.ndarray, step: np.ndarray) -> list[Event]:
    """Return the events in order, each with the step before it and the number of training records after it."""
    known = ~np.isnan(step)
    lines, step = lines[known], step[known]
    placed = []
    for event in sorted(events, key=lambda one: one.line or 0):
        numbers = dict(event.numbers)
        before = event.step
        if event.line is not None:
            at = int(np.searchsorted(lines, event.line, side="right"))
            before = before if before is not None else (float(step[at - 1]) if at else None)
            if not len(step):
                before = event.numbers.get("bar_steps", before)  # no row tells how far it was
            if event.kind in DECISIVE:
                numbers["rows_after"] = float(len(train_lines) - np.searchsorted(train_lines, event.line, side="right"))
        placed.append(dataclasses.replace(event, step=before, numbers=numbers))
    return placed
