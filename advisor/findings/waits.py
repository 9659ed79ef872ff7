"""Waiting for data as a log times it: within the step, or beside it, so that no share of it exceeds the whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case
from advisor.findings.run_metrics import FROM_CLOCK, StepTimes

_FEWEST = 5  # rows that time it
_LONGER = 1.02  # times the step: what is rounded may be this much more than the whole it is a part of
_OFTEN = 0.01  # of the rows: one alone may be a mean beside a single value
_FEWEST_INTERVALS = 20
_CLEARLY = 0.5  # of the distance that the clock has from the other reading


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Seconds of a step spent waiting for data."""

    mean: float
    high: float  # 95th percentile
    share: float  # of the time of a step, the waiting included: 0…1
    beside: bool  # whether the seconds printed for a step leave them out


def waits(case: Case, times: StepTimes) -> Waits | None:
    """What the steady rows say of waiting; None where they do not time it, or it is more than clock and step allow."""
    data = case.run.column("data_seconds")[times.row][times.start :]
    timed = np.isfinite(data) & (data >= 0) & np.isfinite(times.steady_seconds)
    if timed.sum() < _FEWEST:
        return None
    waited, step = data[timed], times.steady_seconds[timed]
    mean, whole = float(waited.mean()), float(step.mean())
    beside = times.source != FROM_CLOCK and _is_beside(case, times, timed)
    whole += mean if beside else 0.0
    if not whole > 0 or mean > whole:
        return None
    return Waits(mean=mean, high=float(np.quantile(waited, 0.95)), share=mean / whole, beside=beside)


def seconds_beside(case: Case) -> float:
    """Seconds of waiting per step that the printed seconds of a step leave out; 0 where they hold all of it."""
    times = run_metrics.step_times(case)
    waited = waits(case, times) if times is not None else None
    return waited.mean if waited is not None and waited.beside else 0.0


def _is_beside(case: Case, times: StepTimes, timed: np.ndarray) -> bool:
    """Whether the waiting cannot be a part of the step: longer than it, or the clock has room for both alone."""
    waited = case.run.column("data_seconds")[times.row][times.start :][timed]
    step = times.steady_seconds[timed]
    if np.mean(waited > _LONGER * step) > _OFTEN or waited.mean() > step.mean():
        return True
    counts = times.steady_step[timed]
    for name in ("unix_seconds", "elapsed_seconds"):
        clock = case.run.column(name)[times.row][times.start :][timed]
        passed, steps = np.diff(clock), np.diff(counts)
        good = np.isfinite(passed) & (passed >= 0) & (steps > 0)
        if good.sum() >= _FEWEST_INTERVALS:
            within = np.abs(passed - steps * step[1:])[good]
            both = np.abs(passed - steps * (step + waited)[1:])[good]
            # medians: pauses for evaluations and checkpoints happen in few intervals
            return series.median(both) < _CLEARLY * series.median(within)
    return False
