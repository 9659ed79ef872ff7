"""What acting on a finding would save over the whole planned run, in hours and dollars."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case, Cost
from advisor.findings.run_facts import planned_steps, positive, price, print_gap, steps_done
from advisor.findings.run_metrics import (
    FROM_CLOCK,
    FROM_PARTS,
    PRINTED,
    lasting_slowdown,
    lifetime_seconds,
    main_column,
    seconds_beside,
    step_times,
    telemetry,
)
from advisor.laws import pace
from advisor.laws.intervals import Z80
from advisor.readers.clock import BAR, SPOKEN, STAMPS, worked_seconds
from advisor.readers.run_table import RunPart, RunTable, Status
from advisor.records import Basis, Estimate
from advisor.units import HOUR

_LEAST_HOURS = 1 / 60  # a saving below this and below the next number is not worth reading
_LEAST_USD = 0.05
GO_ON = (Status.INCOMPLETE, Status.UNKNOWN, Status.RUNNING)  # the log does not say that the run has ended
_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.DIVERGED)  # somebody had to fix the run
CLOCK_MISSES = 0.9  # share of the steps' own times below which a clock misses some of them


def worth_saying(hours: Estimate | None, usd: Estimate | None) -> bool:
    """Return True if a saving is at least a minute or five cents, and False if none is known."""
    return (hours is not None and hours.value >= _LEAST_HOURS) or (usd is not None and usd.value >= _LEAST_USD)


def steps_covered(case: Case) -> float | None:
    """Return the steps from the first to the last printed step of the main phase, both counted; None without steps.

    Steps before the first row count if that row is where a run's first row would be: `step 100`, `step 200`.
    """
    step = series.finite(main_column(case.run, "step"))
    if not len(step):
        return None
    first = 1.0 if 0 < step.min() <= print_gap(case.run) else float(step.min())
    return float(step.max()) - first + 1


def spent_seconds(case: Case) -> float | None:
    """Return the seconds that the run took so far, pauses included, by the most trusted of its clocks.

    Clocks in order of trust: its own statement of its duration; time stamps; a printed clock, summed over its restarts;
    a progress bar's; the sum of its steps or epochs. A clock that shows less than the steps timed one by one started
    late. If attempts can be separated, the hours between them in which nothing ran do not count.
    """
    if case.run.attempts and (lived := lifetime_seconds(case.run)):
        return lived
    times = step_times(case)
    # a rate of tokens over a stated batch is not timed: where a clock contradicts it, the clock is right
    is_timed = times is not None and times.source in (PRINTED, FROM_PARTS)
    timed = float(times.seconds.sum()) if times is not None and is_timed else 0.0
    timed = max(timed, _sum_of_epochs(case) or 0.0)
    by_clock = next((seconds for seconds in _clocks(case, timed) if seconds > 0), None)
    # the times in the lines between the records, added over epochs
    part, steps, of_steps = main_part(case.run), steps_covered(case), 0.0
    spoken = (part.clock_seconds or 0.0) if part is not None and part.clock == SPOKEN else 0.0
    if times is not None and steps is not None and times.source != FROM_CLOCK:
        # rows that were not printed took as long as the others, but each printed pause happened once
        own = float(times.seconds.sum()) + max(0.0, steps - len(times.seconds)) * series.median(times.seconds)
        of_steps = own + steps * seconds_beside(case)
    if by_clock is None and of_steps:
        return max(of_steps, spoken)  # between its steps an epoch loads and evaluates, so its own time is longer
    # as a last resort, from the first to the last reading of the devices
    stamps = series.finite(telemetry(case, "unix_seconds"))
    watched = float(np.ptp(stamps)) if len(stamps) > 1 else 0.0
    return by_clock or _sum_of_epochs(case) or spoken or watched or None


def _clocks(case: Case, timed: float) -> Iterator[float]:
    """Yield the time of the main run by each kind of clock, the surest first; 0 if it has none or misses steps.

    `timed` is the sum of the steps that were timed one by one.
    """
    part = main_part(case.run)
    stamps = series.finite(main_column(case.run, "unix_seconds"))
    of_rows = worked_seconds(np.sort(stamps), sessions=part is not None and part.starts > 1)
    of_lines, clock = (part.clock_seconds or 0.0, part.clock) if part is not None else (0.0, "")
    declared = (part.declared_seconds if part is not None else None) or positive(case.run.facts, "total_seconds") or 0.0
    counted, elapsed = series.finite(main_column(case.run, "elapsed_seconds")), 0.0
    if len(counted) > 1 and np.ptp(counted) > 0:  # summed over the times that it began again
        elapsed = float(counted[np.flatnonzero(np.diff(counted) < 0)].sum() + counted[-1])
    of_lines = of_lines if of_lines >= CLOCK_MISSES * timed else 0.0
    declared = (
        declared if declared >= CLOCK_MISSES * max(timed, elapsed) else 0.0
    )  # else of a test, of what came before
    if declared and (part is None or part.starts == 1):  # of several processes, the last states only its own duration
        yield max(declared, of_rows)
    # time stamps of lines around the rows cover more than the rows alone, and show which pauses were none
    yield of_lines if clock == STAMPS and of_lines else max(of_rows, 0.0 if clock in (BAR, SPOKEN) else of_lines)
    # a column of counts at the ends of bars begins again with each bar, and need not fall
    yield max(elapsed, timed, of_lines if clock == BAR else 0.0) if elapsed else 0.0
    yield of_lines if clock == BAR else 0.0
    yield declared


def _sum_of_epochs(case: Case) -> float | None:
    """Return the sum of all epochs, where epochs without a printed time count as the median of the others."""
    printed = main_column(case.run, "epoch_seconds")
    known = series.finite(printed)
    return float(known.sum()) + (len(printed) - len(known)) * series.median(known) if len(known) else None


def main_part(run: RunTable) -> RunPart | None:
    """Return the run of the log that the table's main phase holds, or None if the log does not separate runs."""
    return next((part for part in run.runs if part.phase == run.main_phase and run.phases), None)


def run_seconds(case: Case) -> list[float | None]:
    """Return the seconds of each run of the log by its own clocks; None for a run without a clock."""
    out: list[float | None] = []
    for part in case.run.runs:
        if part.phase is None:
            out.append(part.declared_seconds or part.clock_seconds)
            continue
        facts = case.run.facts
        if part.phase != case.run.main_phase:
            facts = {name: value for name, value in facts.items() if name != "total_seconds"}
        out.append(spent_seconds(replace(case, run=replace(case.run, main_phase=part.phase, facts=facts))))
    return out


def file_seconds(case: Case) -> float | None:
    """Return the seconds of all runs of the log: by its time stamps if they cover the runs, or else the known sum."""
    if len(case.run.runs) < 2:
        alone = spent_seconds(case)
        return alone if alone is not None or not case.run.runs else run_seconds(case)[0]
    each = run_seconds(case)
    known = sum(seconds for seconds in each if seconds is not None)
    failed = any(part.status in _FAILED for part in case.run.runs[:-1])
    if failed and all(part.clock == STAMPS for part in case.run.runs):
        return known or None  # nothing ran between a failure and the next start
    clock = case.run.clock_seconds or 0.0
    return (clock if clock >= CLOCK_MISSES * known else known) or None


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

    A deadline of its plan ends the run, too. None if the length of the run is unknown.
    """
    whole, spent = stake_seconds(case), spent_seconds(case)
    if whole is None or spent is None or case.run.status is not Status.RUNNING:
        return whole
    deadline = case.plan.goal.deadline_seconds if case.plan else None
    return max(0.0, min(whole, whole if deadline is None else deadline) - spent)


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
    """Return the mean seconds per step without warm-up and with long stalls capped, or None if the log has no clock.

    The 80 % interval covers the uncertainty of the mean, and the run's drift over the `left` steps to come.
    """
    times = step_times(case)
    if times is None or not len(times.steady_seconds):
        return None
    seconds = times.steady_seconds
    if left and (slow := lasting_slowdown(times)) is not None:  # what is to come takes as long as it does now
        seconds = seconds[times.steady_step >= slow.step]
    value = pace.mean_seconds(seconds)
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
