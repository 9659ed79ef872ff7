"""What acting on a finding would save over the whole planned run, in hours and dollars."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Cost
from advisor.findings.durations import spent_seconds, steps_covered
from advisor.findings.run_facts import planned_steps, price, steps_done
from advisor.findings.run_metrics import between_pauses, lasting_slowdown, step_times
from advisor.laws import pace
from advisor.laws.intervals import Z80
from advisor.readers.run_table import Status
from advisor.records import Basis, Estimate
from advisor.units import HOUR

_LEAST_HOURS = 1 / 60  # a saving below this and below the next number is not worth reading
_LEAST_USD = 0.05
GO_ON = (Status.INCOMPLETE, Status.NO_END, Status.RUNNING)  # the log does not say that the run has ended


def worth_saying(hours: Estimate | None, usd: Estimate | None) -> bool:
    """Return True if a saving is at least a minute or five cents, and False if none is known."""
    return (hours is not None and hours.value >= _LEAST_HOURS) or (usd is not None and usd.value >= _LEAST_USD)


def whole_run_seconds(case: Case) -> float | None:
    """Return the seconds of the whole planned run at the pace so far, or None if no pace is known.

    Without planned steps, or without any steps, the whole run is what was done.
    """
    spent, done = spent_seconds(case), steps_covered(case)
    if spent is None or not done:
        return spent
    return spent * max(1.0, (planned_steps(case) or done) / done)


def stake_seconds(case: Case) -> float | None:
    """Return the seconds of which actions can save a part: what the run took if it is over, else what it will take."""
    return whole_run_seconds(case) if case.run.status in GO_ON else spent_seconds(case)


def most_saved_seconds(case: Case) -> float | None:
    """Return the seconds beyond which no finding can save anything: those that are left of a run that goes on.

    Its limit ends the run, too, or else the deadline of its plan. None if the length of the run is unknown.
    """
    whole, spent = stake_seconds(case), spent_seconds(case)
    if whole is None or spent is None or case.run.status is not Status.RUNNING:
        return whole
    limit = case.run.facts.get("limit_seconds", case.plan.goal.deadline_seconds if case.plan else None)
    return max(0.0, min(whole, whole if limit is None else limit) - spent)


def stake_steps(case: Case) -> float | None:
    """Return the steps of which actions can save a part: the done steps if the run is over, else the planned steps."""
    done = steps_done(case.run)
    return (planned_steps(case) or done) if case.run.status in GO_ON else done


def priced(case: Case, hours: Estimate) -> Cost:
    """Return hours with their cost."""
    usd_per_hour = price(case)
    return hours, hours.scaled(usd_per_hour) if usd_per_hour is not None else None


def saved_share(case: Case, share: float, low: float | None = None, high: float | None = None) -> Cost:
    """Return the saving if this share (0…1) of the run's time went away, without an interval unless it is given."""
    basis = Basis.MEASURED if low is None and high is None else Basis.EXTRAPOLATED
    ends = [share if end is None else end for end in (low, high)]
    return saved_of(case, Estimate(value=share, low=min(ends), high=max(ends), basis=basis))


def saved_of(case: Case, share: Estimate) -> Cost:
    """Return `saved_share` for an estimated share of the run's time, limited to 0…1."""
    whole = stake_seconds(case)
    if whole is None or whole <= 0 or not np.isfinite(share.value):
        return None, None
    value, low, high = (min(1.0, max(0.0, x)) * whole / HOUR for x in (share.value, share.low, share.high))
    return priced(case, Estimate(value=value, low=low, high=high, basis=share.basis))


def saved_by_speedup(case: Case, factor: Estimate) -> Cost:
    """Return the saving if every step were `factor` times as fast: 1 − 1/factor of the time."""
    value, low, high = (1 - 1 / max(1.0, x) for x in (factor.value, factor.low, factor.high))
    return saved_of(case, Estimate(value=value, low=low, high=high, basis=factor.basis))


_SPREAD_MOST = 2.0  # in logarithms; a larger spread comes from a broken clock


def mean_step_seconds(case: Case, left: float = 0.0) -> Estimate | None:
    """Return the mean seconds per step without warm-up, or None if the log has no clock.

    Pauses that recur, such as evaluations, count in full and once; other long stalls are capped.
    The 80 % interval covers the uncertainty of the mean, and the run's drift over the `left` steps to come.
    """
    times = step_times(case)
    if times is None or not len(times.steady_seconds):
        return None
    seconds, between = times.steady_seconds, between_pauses(times)
    if left and (slow := lasting_slowdown(times)) is not None:  # what is to come takes as long as it does now
        lasts = times.steady_step >= slow.step
        seconds, between = seconds[lasts], between[lasts]
    value = pace.mean_seconds(between) + float(np.mean(seconds - between)) / times.stride
    spread = math.hypot(pace.mean_error(seconds), pace.drift_spread(seconds, left / times.stride))
    half = min(_SPREAD_MOST, Z80 * spread)
    return Estimate(value=value, low=value * math.exp(-half), high=value * math.exp(half), basis=Basis.MEASURED)


_STEPS_OF_A_MEAN = 20  # of fewer, start-up is most of the time


def cost_of_steps(case: Case, steps: float, *, to_come: bool = False) -> Cost:
    """Return the hours and dollars of `steps` optimizer steps of this run; None if pace or price is unknown."""
    seconds, done, spent = mean_step_seconds(case, steps if to_come else 0.0), steps_done(case.run), spent_seconds(case)
    if seconds is None and spent and done and done >= _STEPS_OF_A_MEAN:  # no step is timed, but the whole is
        mean = spent / done
        seconds = Estimate(value=mean, low=mean, high=mean, basis=Basis.MEASURED)
    if seconds is None or steps <= 0:
        return None, None
    return priced(case, seconds.scaled(steps / 3600))
