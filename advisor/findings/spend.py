"""What steps of a run cost: mean seconds per step with its interval, hours and dollars of a number of steps. Pure."""

from __future__ import annotations

import math

from advisor.findings.case import Case
from advisor.findings.run_facts import price
from advisor.findings.run_metrics import step_times
from advisor.laws import pace
from advisor.laws.intervals import Z80
from advisor.records import Basis, Estimate

_SPREAD_MOST = 2.0  # in logarithms; more is a broken clock, not a pace


def mean_step_seconds(case: Case, left: float = 0.0) -> Estimate | None:
    """Mean seconds per step, warm-up left out and long stalls capped; None without any clock in the log.

    The 80 % interval holds what the steps tell of their mean and the run's drift over the `left` steps to come.
    """
    times = step_times(case)
    if times is None or not len(times.steady_seconds):
        return None
    seconds = times.steady_seconds
    value = pace.mean_seconds(seconds)
    spread = math.hypot(pace.mean_error(seconds), pace.drift_spread(seconds, left / times.stride))
    half = min(_SPREAD_MOST, Z80 * spread)
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), basis=Basis.MEASURED)


def cost_of_steps(case: Case, steps: float) -> tuple[Estimate | None, Estimate | None]:
    """Hours and dollars that `steps` optimizer steps of this run take; None where pace or price is unknown."""
    seconds = mean_step_seconds(case)
    if seconds is None or steps <= 0:
        return None, None
    hours = seconds.scaled(steps / 3600)
    usd = price(case)
    return hours, hours.scaled(usd) if usd is not None else None
