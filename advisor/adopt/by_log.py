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
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable

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
    # Rows of the main phase that print a training loss.
    if not table.phases:
        rows = np.zeros(0, np.int64)
    else:
        at = np.arange(len(table))[table.phases[table.main_phase].rows]
        loss, broken = table.column("loss")[at], table.column("loss_is_nan")[at]
        rows = at[np.isfinite(loss) | (np.isfinite(broken) & (broken > 0))]
    lines = table.lines
    if lines is None or not len(rows):
        return None
    rows = rows[lines[rows] <= len(ends)]  # later rows have no recorded moment
    done, printed = _done(table, rows)
    rows, done = rows[_ascending(done)], done[_ascending(done)]
    if not len(rows):
        return None
    moments = np.array([ends[int(line) - 1] for line in lines[rows]])
    durations, clock = _durations(table, rows, moments, np.diff(done))
    return LogSteps(
        steps=tuple(int(step) for step in done),
        moments=tuple(moments.tolist()),
        durations=durations,
        clock=clock,
        printed=printed,
        tokens=_tokens(table, rows, done, durations),
        epochs=_slope(table.column("epoch")[rows], done),
    )


def _done(table: RunTable, rows: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the number of steps at the end of each row: as printed, or else one per row."""
    step = table.column("step")[rows]
    if not table.provenance.get("step", "").startswith("as printed") or not np.isfinite(step).all():
        return np.arange(1.0, len(rows) + 1), False
    return (step + 1 if len(step) and step[0] == 0 else step), True  # numbering starts at 0


def _ascending(done: np.ndarray) -> np.ndarray:
    """Marks the rows with more steps than every row before them."""
    return done > np.concatenate(([-np.inf], np.maximum.accumulate(done)[:-1]))


def _durations(
    table: RunTable, rows: np.ndarray, moments: np.ndarray, gaps: np.ndarray
) -> tuple[tuple[float, ...], str]:
    """Returns the seconds of one step for each row but the first, and the clock that they come from."""
    between, printed = np.diff(moments), table.column("seconds")[rows][1:]
    held_back = len(between) > 0 and float((between > 0).mean()) < _ONE_AT_A_TIME
    if held_back and np.isfinite(printed).all() and (printed > 0).all():
        return tuple(printed.tolist()), PRINTED
    return tuple((between / gaps).tolist()), LINES


def _tokens(table: RunTable, rows: np.ndarray, done: np.ndarray, durations: Sequence[float]) -> float | None:
    """Returns the tokens of one step: from the log's count, its stated value or its rate."""
    counted = _slope(table.column("tokens")[rows], done)
    if counted is not None:
        return counted
    if (declared := table.facts.get("step_tokens")) is not None:
        return float(declared)
    rate = table.column("tokens_per_second")[rows][1:]
    seconds = table.column("seconds")[rows][1:]
    seconds = np.where(np.isfinite(seconds), seconds, np.array(durations))
    each = rate * seconds
    each = each[np.isfinite(each) & (each > 0)]
    return float(statistics.median(each.tolist())) if len(each) else None


def _slope(values: np.ndarray, done: np.ndarray) -> float | None:
    """Returns a counter's increase per step by least squares, or None if rounding makes it too uncertain."""
    known = np.isfinite(values)
    values, x = values[known], done[known] - done[known].mean() if known.any() else done[known]
    if len(values) < _FEWEST_COUNTS:
        return None
    spread = float((x**2).sum())
    slope = float((x * values).sum()) / spread
    left = values - values.mean() - slope * x
    error = math.sqrt(float((left**2).sum()) / (len(values) - 2) / spread)
    return slope if slope > 0 and error <= _SURE * slope else None
