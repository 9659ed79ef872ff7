"""How long a run took so far: one ladder of its clocks, the surest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case
from advisor.findings.run_facts import positive, print_gap, restarts
from advisor.findings.run_metrics import (
    FROM_CLOCK,
    FROM_PARTS,
    PRINTED,
    StepTimes,
    between_pauses,
    main_column,
    seconds_beside,
    step_times,
    telemetry,
)
from advisor.laws import pace
from advisor.readers.clock import BAR, SPOKEN, STAMPS, worked_seconds
from advisor.readers.run_table import Event, RunPart, RunTable, Status

_FAILED = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.DIVERGED)  # somebody had to fix the run
CLOCK_MISSES = 0.9  # share of the steps' own times below which a clock misses some of them
_REPEATED = 1.5  # printed times for each epoch
ATTEMPTS, DECLARED, ELAPSED = "the lives of its processes", "its own statement", "its clock since the start"
WALL_CLOCKS = (ATTEMPTS, DECLARED, STAMPS, ELAPSED)
STEPS, EPOCHS, READINGS = "the sum of its steps", "the sum of its epochs", "the readings of its devices"


@dataclass(frozen=True, kw_only=True)
class Duration:
    """The seconds that a run took so far, pauses included, and the clock that shows them."""

    seconds: float
    basis: str


def durations(case: Case) -> Iterator[Duration]:
    """Yield the main run's duration by each of its clocks, the most trusted first.

    A clock that shows less than the steps timed one by one started late, and is left out. If attempts can be separated,
    the hours between them in which nothing ran do not count.
    """
    times, part, covered = step_times(case), main_part(case.run), steps_covered(case)
    of_epochs = _of_epochs(case.run)
    # a rate of tokens over a stated batch is not timed: where a clock contradicts it, the clock is right
    is_timed = times is not None and times.source in (PRINTED, FROM_PARTS)
    timed = max(float(times.seconds.sum()) if times is not None and is_timed else 0.0, of_epochs)
    lived = [attempt.seconds for attempt in case.run.attempts]
    # the times in the lines between the records, added over epochs
    spoken = (part.clock_seconds or 0.0) if part is not None and part.clock == SPOKEN else 0.0
    of_steps, readings = 0.0, series.finite(telemetry(case, "unix_seconds"))
    if times is not None and covered is not None and times.source != FROM_CLOCK:
        of_steps = seconds_in_steps(case, times, covered)
    found = (
        (sum(one or 0.0 for one in lived) if None not in lived else 0.0, ATTEMPTS),
        *_clocks(case, part, timed),
        # between its steps an epoch loads and evaluates, so its own time is longer
        (max(of_steps, spoken) if of_steps else 0.0, STEPS),
        (of_epochs, EPOCHS),
        (spoken, SPOKEN),
        (float(np.ptp(readings)) if len(readings) > 1 else 0.0, READINGS),
    )
    yield from (Duration(seconds=seconds, basis=basis) for seconds, basis in found if seconds > 0)


def seconds_in_steps(case: Case, times: StepTimes, covered: float) -> float:
    """Return the sum of the steps' times, and of waiting beside them.

    Rows that were not printed took as long as the others on average, without the pauses that recur: each happened once.
    """
    printed, hidden = times.seconds, max(0.0, covered - len(times.seconds))
    return float(printed.sum()) + hidden * pace.mean_seconds(between_pauses(times)) + covered * seconds_beside(case)


def spent_seconds(case: Case) -> float | None:
    """Return the seconds that the run took so far by its most trusted clock, or None if it has none."""
    first = next(iter(durations(case)), None)
    if first is None:
        return None
    # processes, time stamps and readings go on to the end of the wait
    waited = None if first.basis in (ATTEMPTS, STAMPS, READINGS) else wait_after_end(case)[1]
    return first.seconds + (waited or 0.0)


def mean_rate(case: Case) -> float | None:
    """Return the tokens of all steps by the run's own time, with all between the steps; None if it is unknown."""
    speed, covered, spent = run_metrics.pace(case), steps_covered(case), spent_seconds(case)
    if speed is None or not (speed.step_tokens and covered and spent):
        return None
    if len(case.run.phases) > 1 or len(case.run.runs) > 1 or restarts(case.run):
        return None
    mean, times = covered * speed.step_tokens / spent, step_times(case)
    # no run is faster than its fastest step: that clock misses a part of it
    return mean if times is not None and mean * float(times.seconds.min()) <= 1.01 * speed.step_tokens else None


def wait_after_end(case: Case) -> tuple[Event | None, float | None]:
    """Return the time-out in which ranks waited for each other after the training was complete, and its seconds."""
    timeout = next((event for event in reversed(case.run.events) if event.kind == "nccl_timeout"), None)
    if timeout is None or case.run.status is not Status.COMPLETED:
        return None, None
    if not any(event.kind == "finished" and (event.line or 0) < (timeout.line or 0) for event in case.run.events):
        return None, None
    return timeout, timeout.numbers.get("ran_seconds") or timeout.numbers.get("timeout_seconds")


def lifetime_seconds(case: Case) -> float | None:
    """Return the seconds since the run's processes began, or None if its log has no clock that runs from their start.

    Times of single steps are no wall clock, because start-up, evaluations and checkpoints lie between the steps.
    """
    wanted = (ATTEMPTS,) if case.run.attempts else (DECLARED, ELAPSED)
    return next((duration.seconds for duration in durations(case) if duration.basis in wanted), None)


def _clocks(case: Case, part: RunPart | None, timed: float) -> Iterator[tuple[float, str]]:
    """Yield the time of the main run by each kind of clock, the surest first; 0 if it has none or misses steps.

    `timed` is the sum of the steps that were timed one by one.
    """
    stamps = series.finite(main_column(case.run, "unix_seconds"))
    of_rows = worked_seconds(np.sort(stamps), sessions=part is not None and part.starts > 1)
    of_lines, clock = (part.clock_seconds or 0.0, part.clock) if part is not None else (0.0, "")
    declared = (part.declared_seconds if part is not None else None) or positive(case.run.facts, "total_seconds") or 0.0
    counted, elapsed = series.finite(main_column(case.run, "elapsed_seconds")), 0.0
    if len(counted) > 1 and np.ptp(counted) > 0:  # summed over the times that it began again
        elapsed = float(counted[np.flatnonzero(np.diff(counted) < 0)].sum() + counted[-1])
    of_lines = of_lines if of_lines >= CLOCK_MISSES * timed else 0.0
    # else of a test, of what came before
    declared = declared if declared >= CLOCK_MISSES * max(timed, elapsed) else 0.0
    if declared and (part is None or part.starts == 1):  # of several processes, the last states only its own duration
        yield max(declared, of_rows), DECLARED
    # time stamps of lines around the rows cover more than the rows alone, and show which pauses were none
    of_stamps = of_lines if clock == STAMPS and of_lines else max(of_rows, 0.0 if clock in (BAR, SPOKEN) else of_lines)
    yield of_stamps, STAMPS
    # a column of counts at the ends of bars begins again with each bar, and need not fall
    yield max(elapsed, timed, of_lines if clock == BAR else 0.0) if elapsed else 0.0, ELAPSED
    yield of_lines if clock == BAR else 0.0, BAR
    yield declared, DECLARED


def _of_epochs(run: RunTable) -> float:
    """Return the sum of the printed times of epochs; epochs without one count as the median of the others."""
    printed, epoch = main_column(run, "epoch_seconds"), main_column(run, "epoch")
    timed = np.isfinite(printed)
    if not timed.any():
        return 0.0
    if not np.isfinite(epoch[timed]).all():
        epoch = np.arange(len(printed), dtype=np.float64)
    turn = np.cumsum(np.diff(np.floor(epoch), prepend=np.nan) != 0)  # an epoch printed again later was trained again
    turns = np.unique(turn[timed])
    untimed = len(np.unique(turn[np.isfinite(epoch)])) - len(turns)
    each = printed[timed]
    if len(each) > _REPEATED * len(turns):  # the rows of an epoch repeat its time, or show it so far
        each = np.array([printed[timed & (turn == one)].max() for one in turns])
    return float(each.sum()) + untimed * series.median(each)


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
        if part.phase == case.run.main_phase:
            out.append(spent_seconds(case))
            continue
        facts = {name: value for name, value in case.run.facts.items() if name != "total_seconds"}
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


def steps_covered(case: Case) -> float | None:
    """Return the steps from the first to the last printed step of the main phase, both counted; None if there are none.

    Steps before the first row count if that row is where a run's first row would be: `step 100`, `step 200`.
    """
    step = series.finite(main_column(case.run, "step"))
    if not len(step):
        return None
    counted = step.min() > 0 or case.run.steps_by_bar  # a bar at 0 has done none
    first = 1.0 if counted and step.min() <= print_gap(case.run) else float(step.min())
    return float(step.max()) - first + 1
