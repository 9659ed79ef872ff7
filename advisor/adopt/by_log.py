"""Reads the steps of a program from its own log, if the probe cannot be loaded: their times, numbers and tokens.

The readers of any log read it. A step's time is the time between the arrival of its line and the line before. If many
lines arrived at once, it is the time that the program prints.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.findings.curves import main_rows
from advisor.readers.read import read_run

LINES, PRINTED = "between its lines, as they came", "as its log prints them"
_ONE_AT_A_TIME = 0.9  # share of the lines; with fewer single lines, output was buffered
_FEWEST_COUNTS = 4  # counts needed to know the increase per step
_SURE = 0.02  # largest standard error, relative to the increase


@dataclass(frozen=True, kw_only=True)
class LogSteps:
    """The steps in a log; each or only some of them have a row."""

    steps: tuple[int, ...]  # steps done by the end of each row
    moments: tuple[float, ...]  # Unix seconds of each row's arrival
    durations: tuple[float, ...]  # of one step, from the second row on
    clock: str  # LINES or PRINTED
    printed: bool  # the rows have step numbers; else each row counts as one step
    tokens: float | None  # of one step, of all processes
    epochs: float | None  # share of the data in one step


def read_steps(path: Path, ends: Sequence[float]) -> LogSteps | None:
    """Returns the steps of a log whose n-th line ended at `ends[n - 1]`, or None if it shows none yet."""
    try:
        table = read_run(path)
    except AdvisorError:  # the output so far is not a log
        return None
    lines = table.lines
    if lines is None or not table.phases:
        return None
    # Rows of the main phase that print a training loss; later rows have no recorded moment.
    rows = main_rows(table)
    losses = np.isfinite(table.column("loss")[rows]) | (table.column("loss_is_nan")[rows] > 0)
    rows = rows[losses & (lines[rows] <= len(ends))]
    # The number of steps at the end of each row: as printed, or else one per row.
    done = table.column("step")[rows]
    printed = table.provenance.get("step", "").startswith("as printed") and bool(np.isfinite(done).all())
    if not printed:
        done = np.arange(1.0, len(rows) + 1)
    elif len(done) and done[0] == 0:
        done = done + 1  # numbering starts at 0
    ascending = done > np.concatenate(([-np.inf], np.maximum.accumulate(done)[:-1]))
    rows, done = rows[ascending], done[ascending]
    if not len(rows):
        return None
    moments = np.array([ends[int(line) - 1] for line in lines[rows]])
    between, seconds = np.diff(moments), table.column("seconds")[rows][1:]
    durations, clock = between / np.diff(done), LINES
    held_back = len(between) > 0 and float((between > 0).mean()) < _ONE_AT_A_TIME
    if held_back and np.isfinite(seconds).all() and (seconds > 0).all():
        durations, clock = seconds, PRINTED
    # The tokens of one step: from the log's count, its stated value or its rate.
    tokens = _slope(table.column("tokens")[rows], done) or table.facts.get("step_tokens")
    if tokens is None:
        each = table.column("tokens_per_second")[rows][1:] * np.where(np.isfinite(seconds), seconds, durations)
        each = each[np.isfinite(each) & (each > 0)]
        tokens = statistics.median(each.tolist()) if len(each) else None
    return LogSteps(
        steps=tuple(int(step) for step in done),
        moments=tuple(moments.tolist()),
        durations=tuple(durations.tolist()),
        clock=clock,
        printed=printed,
        tokens=float(tokens) if tokens is not None else None,
        epochs=_slope(table.column("epoch")[rows], done),
    )


def _slope(values: np.ndarray, done: np.ndarray) -> float | None:
    """Returns a counter's increase per step by least squares, or None if rounding makes it too uncertain."""
    known = np.isfinite(values)
    if known.sum() < _FEWEST_COUNTS:
        return None
    values, x = values[known] - values[known].mean(), done[known] - done[known].mean()
    spread = float((x**2).sum())
    slope = float((x * values).sum()) / spread
    error = math.sqrt(float(((values - slope * x) ** 2).sum()) / (len(values) - 2) / spread)
    return slope if slope > 0 and error <= _SURE * slope else None
