"""Tables of a report as words, and the table that was read as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings.chart_data import few_rows, parts_of_step
from advisor.units import (
    format_bytes,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
)
from advisor.workflows.analysis import Analysis
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


def loss_table(analysis: Analysis, most: int) -> tuple[list[str], list[list[str]]]:
    """Titles and cells of evenly spaced rows of the main phase."""
    names, values = few_rows(analysis.run, most)
    rows = [[_cell(name, value) for name, value in zip(names, row, strict=True)] for row in values.tolist()]
    return [_TITLES.get(name, name) for name in names], rows


def _cell(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "-"
    if name in _FORMATS:
        return _FORMATS[name](value)
    if name in ("step", "epoch"):
        return f"{value:,.10g}"
    return f"{value:.5g}" if name != "learning_rate" else format_number(value)


def phase_rows(analysis: Analysis) -> list[tuple[str, str, str]]:
    """Part of a step, its median time, its share."""
    return [
        (part.name, format_seconds(part.seconds), format_percent(part.share)) for part in parts_of_step(analysis.case)
    ]


def checkpoint_rows(analysis: Analysis, most: int = 20) -> list[tuple[str, str]]:
    """Step and words of each checkpoint the log names."""
    events = [event for event in analysis.run.events if event.kind == "checkpoint"]
    shown = [("-" if event.step is None else f"{event.step:,.10g}", event.text) for event in events[:most]]
    return shown + ([("…", f"{len(events) - most} more")] if len(events) > most else [])


def write_tables(analyses: Sequence[Analysis], folder: Path) -> None:
    """Every column of each run that holds rows as a CSV of its own, called after the run."""
    from advisor.store.disk import write_atomic

    for name, analysis in zip(names_of(analyses), analyses, strict=True):
        if any(len(values) for values in (analysis.run.columns or analysis.run.telemetry or {}).values()):
            file = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'run'}.csv"
            write_atomic(folder / file, as_csv([analysis]))


def as_csv(analyses: Sequence[Analysis]) -> str:
    """The tables as read, one below the other with the source in the first column where there are several.

    A file of a card's readings alone gives these. Raises AdvisorError where there is no row at all.
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
