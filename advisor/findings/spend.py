"""What steps of a run cost: mean seconds per step with its interval, hours and dollars of a number of steps. Pure."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case
from advisor.findings.run_facts import price
from advisor.findings.run_metrics import step_times
from advisor.laws.intervals import Z80
from advisor.records import Basis, Estimate

_SPREAD_FLOOR = 0.02  # nobody knows the mean of a run's steps better than this
_SPREAD_MOST = 2.0  # in logarithms; more is a broken clock, not a pace
_FEW_ROWS, _FEW_ROWS_SPREAD = 20, 0.15
_STRAGGLER_CAP = 5.0  # times the median: a longer stall is not a habit of the run
_STRETCHES = 10  # of the run, whose medians show its drift


def mean_step_seconds(case: Case) -> Estimate | None:
    """Mean seconds per step, warm-up left out and long stalls capped; None without any clock in the log.

    The 80 % interval is the spread of the medians of ten stretches of the run (its drift), at least 2 %.
    """
    times = step_times(case)
    if times is None or not len(times.steady_seconds):
        return None
    seconds = times.steady_seconds
    median = float(np.median(seconds))
    value = float(np.mean(np.minimum(seconds, _STRAGGLER_CAP * median)))
    half = _FEW_ROWS_SPREAD
    if len(seconds) >= _FEW_ROWS:
        medians = [math.log(float(np.median(part))) for part in np.array_split(seconds, _STRETCHES)]
        half = min(_SPREAD_MOST, max(_SPREAD_FLOOR, Z80 * float(np.std(medians))))
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), basis=Basis.MEASURED)


def cost_of_steps(case: Case, steps: float) -> tuple[Estimate | None, Estimate | None]:
    """Hours and dollars that `steps` optimizer steps of this run take; None where pace or price is unknown."""
    seconds = mean_step_seconds(case)
    if seconds is None or steps <= 0:
        return None, None
    hours = seconds.scaled(steps / 3600)
    usd = price(case)
    return hours, hours.scaled(usd) if usd is not None else None
