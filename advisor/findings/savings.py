"""What acting on a finding would save over the whole planned run, in hours and dollars. Pure."""

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
    lifetime_seconds,
    main_column,
    seconds_beside,
    step_times,
    telemetry,
)
from advisor.laws import pace
from advisor.laws.intervals import Z80
from advisor.readers.line_clock import BAR, STAMPS
from advisor.readers.run_table import RunPart, RunTable, Status
from advisor.readers.stamps import SPOKEN, worked_seconds
from advisor.records import Basis, Estimate
from advisor.units import HOUR

_LEAST_HOURS = 1 / 60  # a saving of less than a minute and less than this is not worth anybody's reading
_LEAST_USD = 0.05
_GO_ON = (Status.INCOMPLETE, Status.UNKNOWN, Status.RUNNING)  # where no word of the log says that the run has ended
_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.DIVERGED)  # somebody had to mend it
CLOCK_MISSES = 0.9  # of the steps' own times a clock of hundredths of a minute may say


def worth_saying(hours: Estimate | None, usd: Estimate | None) -> bool:
    """Whether a saving is a minute or five cents at least; False where none is known."""
    return (hours is not None and hours.value >= _LEAST_HOURS) or (usd is not None and usd.value >= _LEAST_USD)


def steps_covered(case: Case) -> float | None:
    """Steps from the first to the last that the main phase's log prints, both counted; None without steps.

    Those before the first row count where that stands where the first row of a run does: `step 100`, `step 200`.
    """
    step = series.finite(main_column(case.run, "step"))
    if not len(step):
        return None
    first = 1.0 if 0 < step.min() <= print_gap(case.run) else float(step.min())
    return float(step.max()) - first + 1


def spent_seconds(case: Case) -> float | None:
    """Seconds that the run took so far, pauses included, by the clock that is trusted most of those that it has.

    Its own account of its duration; else time stamps; else a clock that it prints, each beginning of it added; else a
    progress bar's; else the sum of its steps or epochs. A clock that says less than those that were timed one by one
    starts late. Where attempts can be separated, the hours between them in which nobody ran anything are no part of it.
    """
    if case.run.attempts and (lived := lifetime_seconds(case.run)):
        return lived
    times = step_times(case)
    timed = float(times.seconds.sum()) if times is not None and times.source != FROM_CLOCK else 0.0
    timed = max(timed, _sum_of_epochs(case) or 0.0)
    by_clock = next((seconds for seconds in _clocks(case, timed) if seconds > 0), None)
    # what the lines between the records say of each epoch, added
    part, steps, of_steps = main_part(case.run), steps_covered(case), 0.0
    spoken = (part.clock_seconds or 0.0) if part is not None and part.clock == SPOKEN else 0.0
    if times is not None and steps is not None and times.source != FROM_CLOCK:
        # rows that were not printed cost as much as those that were, but each printed pause happened once
        own = float(times.seconds.sum()) + max(0.0, steps - len(times.seconds)) * series.median(times.seconds)
        of_steps = own + steps * seconds_beside(case)
    if by_clock is None and of_steps:
        return max(of_steps, spoken)  # between its steps an epoch loads and evaluates: its own time is more
    # at last from the first to the last reading of the devices
    stamps = series.finite(telemetry(case, "unix_seconds"))
    watched = float(np.ptp(stamps)) if len(stamps) > 1 else 0.0
    return by_clock or _sum_of_epochs(case) or spoken or watched or None


def _clocks(case: Case, timed: float) -> Iterator[float]:
    """What each kind of clock says of the main run, the surest first; 0 where it has none, or where that misses steps.

    `timed` is the sum of the steps that were timed one by one.
    """
    part = main_part(case.run)
    stamps = series.finite(main_column(case.run, "unix_seconds"))
    of_rows = worked_seconds(np.sort(stamps), sessions=part is not None and part.starts > 1)
    of_lines, clock = (part.clock_seconds or 0.0, part.clock) if part is not None else (0.0, "")
    declared = (part.declared_seconds if part is not None else None) or positive(case.run.facts, "total_seconds") or 0.0
    counted, elapsed = series.finite(main_column(case.run, "elapsed_seconds")), 0.0
    if len(counted) > 1 and np.ptp(counted) > 0:  # from each time that it began anew
        elapsed = float(counted[np.flatnonzero(np.diff(counted) < 0)].sum() + counted[-1])
    of_lines = of_lines if of_lines >= CLOCK_MISSES * timed else 0.0
    declared = (
        declared if declared >= CLOCK_MISSES * max(timed, elapsed) else 0.0
    )  # else of a test, of what came before
    if declared and (part is None or part.starts == 1):  # of several processes the last sums up itself alone
        yield max(declared, of_rows)
    # what lines around the rows are stamped says more than the rows alone, and knows which pauses were none
    yield of_lines if clock == STAMPS and of_lines else max(of_rows, 0.0 if clock in (BAR, SPOKEN) else of_lines)
    # a column of what bars had counted at their ends begins anew with each, and need not fall
    yield max(elapsed, timed, of_lines if clock == BAR else 0.0) if elapsed else 0.0
    yield of_lines if clock == BAR else 0.0
    yield declared


def _sum_of_epochs(case: Case) -> float | None:
    """Of the epochs whose time is printed, the others as long as most of them."""
    printed = main_column(case.run, "epoch_seconds")
    known = series.finite(printed)
    return float(known.sum()) + (len(printed) - len(known)) * series.median(known) if len(known) else None


def main_part(run: RunTable) -> RunPart | None:
    """The run of the log that the table's main phase holds; None if the log has none told apart."""
    return next((part for part in run.runs if part.phase == run.main_phase and run.phases), None)


def run_seconds(case: Case) -> list[float | None]:
    """Seconds of each run of the log, by its own clocks; None if it has none."""
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
    """Seconds of all runs of the log together: by its time stamps where they cover them, else those that are known."""
    if len(case.run.runs) < 2:
        alone = spent_seconds(case)
        return alone if alone is not None or not case.run.runs else run_seconds(case)[0]
    each = run_seconds(case)
    known = sum(seconds for seconds in each if seconds is not None)
    failed = any(part.status in _FAILED for part in case.run.runs[:-1])
    if failed and all(part.clock == STAMPS for part in case.run.runs):
        return known or None  # between a failure and the next start nothing ran
    clock = case.run.clock_seconds or 0.0
    return (clock if clock >= CLOCK_MISSES * known else known) or None


def whole_run_seconds(case: Case) -> float | None:
    """Seconds of the whole planned run at the pace so far; None if no pace is known.

    Without a number of planned steps, or of steps at all, the run is what was done.
    """
    spent, done = spent_seconds(case), steps_covered(case)
    if spent is None or not done:
        return spent
    return spent * max(1.0, (planned_steps(case) or done) / done)


def stake_seconds(case: Case) -> float | None:
    """Seconds that acting can save: of a run that is over what it took, of one that may go on what it will take."""
    return whole_run_seconds(case) if case.run.status in _GO_ON else spent_seconds(case)


def stake_steps(case: Case) -> float | None:
    """Steps that acting can save: of a run that is over those it did, of one that may go on those planned."""
    done = steps_done(case.run)
    return (planned_steps(case) or done) if case.run.status in _GO_ON else done


def priced(case: Case, hours: Estimate) -> Cost:
    """Hours with what they cost."""
    usd_per_hour = price(case)
    return hours, hours.scaled(usd_per_hour) if usd_per_hour is not None else None


def saved_share(case: Case, share: float, low: float | None = None, high: float | None = None) -> Cost:
    """What is saved if this share (0…1) of the run's time went away; measured, so without an interval unless given."""
    basis = Basis.MEASURED if low is None and high is None else Basis.EXTRAPOLATED
    ends = [share if end is None else end for end in (low, high)]
    return saved_of(case, Estimate(value=share, low=min(ends), high=max(ends), basis=basis))


def saved_of(case: Case, share: Estimate) -> Cost:
    """As `saved_share` for an estimated share of the run's time; shares outside 0…1 are cut off."""
    whole = stake_seconds(case)
    if whole is None or whole <= 0 or not np.isfinite(share.value):
        return None, None
    value, low, high = (min(1.0, max(0.0, x)) * whole / HOUR for x in (share.value, share.low, share.high))
    return priced(case, Estimate(value=value, low=low, high=high, basis=share.basis))


def saved_by_speedup(case: Case, factor: Estimate) -> Cost:
    """What is saved if every step went `factor` times as fast: 1 − 1/factor of the time."""
    value, low, high = (1 - 1 / max(1.0, x) for x in (factor.value, factor.low, factor.high))
    return saved_of(case, Estimate(value=value, low=low, high=high, basis=factor.basis))


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


def cost_of_steps(case: Case, steps: float) -> Cost:
    """Hours and dollars that `steps` optimizer steps of this run take; None if pace or price is unknown."""
    seconds = mean_step_seconds(case)
    if seconds is None or steps <= 0:
        return None, None
    return priced(case, seconds.scaled(steps / 3600))
