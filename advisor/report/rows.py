"""Shows a report's tables as words, several runs in one table, and the input table as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings.chart_data import few_rows, parts_of_step
from advisor.findings.detectors.learning_rate import phase_of_schedule
from advisor.findings.run_facts import planned_steps, step_tokens, steps_done
from advisor.history.comparison import Comparison
from advisor.report import measured, words
from advisor.report.comparison import differences, groups, side_by_side, speed_changes
from advisor.report.table import Table
from advisor.units import (
    HOUR,
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)
from advisor.workflows.analysis import Analysis, loss_words
from advisor.workflows.analyze import names_of

_FORMATS = {
    "tokens": format_tokens,
    "seconds": format_seconds,
    "tokens_per_second": format_rate,
    "mfu": format_percent,
    "memory_bytes": format_bytes,
}
_TITLES = {
    "eval_loss": "validation loss",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "seconds": "step time",
    "tokens_per_second": "throughput",
    "mfu": "MFU as logged",
    "memory_bytes": "memory",
}
_WRITTEN_OUT = 1e5  # from here on, .5g would write a power of ten
_MOST_CHECKPOINTS = 20
_COLUMNS = ("run", "status", "steps", "tokens", "takes", "tokens/s", "MFU", "costs", "last loss", "phase")


def _cell(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if name in _FORMATS:
        return _FORMATS[name](value)
    if name in ("step", "epoch"):
        return f"{value:,.10g}"
    if abs(value) >= _WRITTEN_OUT:
        return format_count(value)
    return f"{value:.5g}" if name != "learning_rate" else format_number(value)


def write_tables(analyses: Sequence[Analysis], folder: Path) -> None:
    """Write each run's table, with every column that has values, to a CSV file named after the run."""
    from advisor.store.disk import write_atomic

    for name, analysis in zip(names_of(analyses), analyses, strict=True):
        if any(len(values) for values in (analysis.run.columns or analysis.run.telemetry or {}).values()):
            file = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'run'}.csv"
            write_atomic(folder / file, as_csv([analysis]))


def as_csv(analyses: Sequence[Analysis]) -> str:
    """Returns the tables as read; with several, one below the other with the source in the first column.

    A file that holds only a GPU's readings gives these. Raises AdvisorError if there is no row at all.
    """
    tables = [analysis.run.columns or analysis.run.telemetry or {} for analysis in analyses]
    names = sorted({name for table in tables for name in table})
    if not any(len(values) for table in tables for values in table.values()):
        raise AdvisorError(f"{analyses[0].run.source} holds no row: there is no table to write", "leave --table out")
    out = io.StringIO()
    writer = csv.writer(out)
    several = len(analyses) > 1
    writer.writerow([*(["source"] if several else []), *names])
    for analysis, table in zip(analyses, tables, strict=True):
        rows = max(map(len, table.values()), default=0)
        columns = [table[name].tolist() if name in table else [math.nan] * rows for name in names]
        for row in zip(*columns, strict=True):
            cells = ["" if math.isnan(value) else repr(value) for value in row]
            writer.writerow([*([analysis.run.source] if several else []), *cells])
    return out.getvalue()


_NUMBER = re.compile(r"[-+$]?\d|-?$|unknown")  # how a cell in a column of numbers begins
_Parts = Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]]


def tables(analysis: Analysis) -> list[Table]:
    """Returns a table for each subject: time and cost, speed and what is to come. Tables without rows are left out."""
    return _named(
        (
            ("runs in this log", words.RUNS, words.runs(analysis)),
            ("money and time", ("", "takes", "costs"), words.money(analysis)),
            ("speed", ("", ""), words.speed(analysis)),
            ("measured", measured.SPREAD, measured.spreads(analysis)),
            ("gradient clipping", ("", ""), measured.gradients(analysis)),
            (
                "part of a step",
                ("", "median", "share"),
                [
                    (part.name, format_seconds(part.seconds), format_percent(part.share))
                    for part in parts_of_step(analysis.case)
                ],
            ),
            ("GPU", measured.CARDS, measured.cards(analysis)),
            ("machine", ("", ""), words.declared(analysis, measured.MACHINE)),
            ("forecast", ("", ""), words.outlook(analysis)),
            ("the whole run on", ("", "takes", "costs", ""), words.elsewhere(analysis)),
        )
    )


def details(analysis: Analysis, most: int) -> list[Table]:
    """Returns what the log declares of a run, and `most` of its rows."""
    names, values = few_rows(analysis.run, most)  # evenly spaced, of the main phase
    rows = [[_cell(name, value) for name, value in zip(names, row, strict=True)] for row in values.tolist()]
    events = [event for event in analysis.run.events if event.kind == "checkpoint"]
    checkpoints = [("-" if e.step is None else f"{e.step:,.10g}", e.text) for e in events[:_MOST_CHECKPOINTS]]
    checkpoints += [("…", f"{len(events) - _MOST_CHECKPOINTS} more")] if len(events) > _MOST_CHECKPOINTS else []
    return _named(
        (
            ("model", ("", ""), words.declared(analysis, words.MODEL)),
            ("training", ("", ""), words.declared(analysis, words.TRAINING)),
            ("some of its steps", [_TITLES.get(name, name) for name in names], rows),
            ("checkpoints", ("step", "what the log says"), checkpoints),
        )
    )


def _named(parts: _Parts) -> list[Table]:
    """Returns the tables that have rows; a first column without a name gets the subject as its name."""
    made = []
    for title, columns, rows in (part for part in parts if part[2]):
        names = (columns[0] or title, *columns[1:])
        cells = list(zip(names, zip(*rows, strict=True), strict=True))
        numbers = tuple(name for name, column in cells[1:] if all(map(_NUMBER.match, column)))
        made.append(Table(title=title, columns=names, rows=tuple(map(tuple, rows)), numbers=numbers))
    return made


def run_table(analyses: Sequence[Analysis]) -> Table:
    """Lists the runs: how each ended, how far it got, its time and cost, and its final learning rate."""
    rows = tuple(_row(name, analysis) for name, analysis in zip(names_of(analyses), analyses, strict=True))
    return Table(columns=_COLUMNS, rows=rows, title="Runs", numbers=())


def _row(name: str, analysis: Analysis) -> tuple[str, ...]:
    case, run = analysis.case, analysis.run
    done, planned, batch = steps_done(run), planned_steps(case), step_tokens(case)
    steps = "-" if done is None else format_count(done)
    steps += f" of {format_count(planned)}" if planned and done is not None else ""
    seconds = None if analysis.spent_hours is None else analysis.spent_hours * HOUR
    return (
        name,
        run.status.words,
        steps,
        format_tokens(done * batch) if done is not None and batch else "-",
        "-" if seconds is None else format_seconds(seconds),
        "-" if analysis.tokens_per_second is None else format_rate(analysis.tokens_per_second).removesuffix(" tok/s"),
        words.mfu(analysis)[1].replace("unknown", "-"),
        "-" if analysis.spent_usd is None else format_usd(analysis.spent_usd),
        "-" if run.last_loss is None else loss_words(run.last_loss),
        _phase(analysis),
    )


def _phase(analysis: Analysis) -> str:
    """Returns the name of the run's main phase, if it has one, and its learning rate at the end."""
    run = analysis.run
    name = run.phases[run.main_phase].name if run.phases else ""
    share = None if run.last_step is None else phase_of_schedule(run, run.last_step)
    said = [name] if name not in ("", "training") else []
    return ", ".join([*said, *([f"{format_percent(share)} of peak LR"] if share is not None else [])]) or "-"


def compared(comparison: Comparison) -> list[Table]:
    """Returns the comparison at equal tokens (or steps), times and phases of the schedules, without empty tables."""
    tables = [side_by_side(comparison.points)] if comparison.points else []
    return [table for table in (*tables, differences(comparison), speed_changes(comparison)) if table.rows]


def said(comparison: Comparison) -> list[str]:
    """Returns the groups, and what could not be compared and why."""
    return [*groups(comparison), *comparison.notes]
