"""Splits the time of a run into parts, and measures the machine's own speed with the reference kernel. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from advisor.findings.case import Case
from advisor.findings.detectors.machine import lost_seconds, readings
from advisor.findings.durations import lifetime_seconds
from advisor.findings.run_facts import steps_done
from advisor.findings.run_metrics import COMPILED_STEPS, main_column, step_seconds
from advisor.readers.run_table import RunTable
from advisor.records import Plan
from advisor.store.adopted import AdoptedPlan

STALL = 3.0  # a step this many times as long as the median is a stall, not a slow step
STEADY = 1.5  # the median step is corrected by one factor if the quartiles of the readings differ by at most this ratio


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """The parts of a run's wall clock in seconds, summed over all attempts."""

    wall: float
    startup: float  # of the first attempt
    compile: float
    plain_steps: float  # without compilation, the extra time of first steps, and stalls on a quiet machine
    stalls: float
    stall_count: int
    evals: float
    checkpoints: float
    restarts: float  # start-up and compilation of later attempts
    lost: float  # steps and evaluations that were repeated or discarded


def time_spent(case: Case) -> TimeSpent | None:
    """Split the time of all attempts into the parts of a bill. Returns None if the log has no process times."""
    run, wall = case.run, lifetime_seconds(case)
    if wall is None or not run.attempts or any(attempt.startup_seconds is None for attempt in run.attempts):
        return None
    step, seconds = main_column(run, "step"), main_column(run, "seconds")
    timed = np.isfinite(seconds)
    step, seconds, median = step[timed], seconds[timed], step_seconds(case) or 0.0
    began = np.array([attempt.resumed_from_step for attempt in run.attempts])
    # the newest attempt that began before the step, because steps of earlier attempts were undone
    attempt = np.where(began < step[:, None], np.arange(len(began)), 0).max(axis=1, initial=0)
    place = np.arange(len(step)) - np.searchsorted(attempt, attempt)  # within its attempt; attempts ascend with steps
    compiled = np.array([attempt.compile_seconds is not None for attempt in run.attempts])
    compiling = compiled[attempt] & (place < COMPILED_STEPS)
    # if the first step of an attempt is slower than the median, the excess is start-up
    is_first = (place == 0) & (seconds > median) & ~compiling
    is_stall = (seconds > STALL * median) & ~compiling & ~is_first
    if (kernel := readings(case)) is not None and lost_seconds(case):  # which counts the stalls beside other programs
        is_stall &= ~kernel.busy_at(step)
    excess = np.where(is_first | is_stall, seconds - median, 0.0)
    compile_seconds = [attempt.compile_seconds or 0.0 for attempt in run.attempts]
    first_steps = np.bincount(attempt, excess * is_first, minlength=len(run.attempts))
    startup = [float(one.startup_seconds + more) for one, more in zip(run.attempts, first_steps, strict=True)]
    return TimeSpent(
        wall=wall,
        startup=startup[0],
        compile=compile_seconds[0],
        plain_steps=float((seconds - excess).sum()) - sum(compile_seconds),
        stalls=float(excess[is_stall].sum()),
        stall_count=int(is_stall.sum()),
        evals=evals_seconds(run),
        checkpoints=checkpoints_seconds(run),
        restarts=sum(startup[1:]) + sum(compile_seconds[1:]),
        lost=sum(attempt.lost_seconds for attempt in run.attempts),
    )


def evals_seconds(run: RunTable) -> float:
    """Return the seconds of all evaluations that the log timed."""
    return float(np.nansum(main_column(run, "eval_seconds")))


def checkpoints_seconds(run: RunTable) -> float:
    """Return the seconds of all checkpoints that the log timed, including those of lost steps."""
    return sum(event.numbers.get("seconds", 0.0) for event in run.events if event.kind == "checkpoint")


def reference_seconds(run: RunTable) -> float | None:
    """Return the reference kernel's seconds at the median step; None if there are no readings or they disagree.

    Readings are taken at regular times, while the median is over steps. Each reading therefore stands for the steps
    nearest to it. Otherwise slow stretches, with many readings and few steps, would outweigh the rest.
    """
    steps, seconds = run.facts.get("witness_steps"), run.facts.get("witness_seconds")
    if not steps or not seconds:
        return None
    readings = sorted(zip(steps, seconds, strict=True))
    at = [step for step, _ in readings]
    ends = [0, *((a + b) / 2 for a, b in pairwise(at)), max(steps_done(run) or 0, at[-1])]
    ordered = sorted((seconds, high - low) for (_, seconds), (low, high) in zip(readings, pairwise(ends), strict=True))

    def value_at(share: float) -> float:  # below which this share of the weights lies
        left = share * sum(weight for _, weight in ordered)
        for value, weight in ordered:
            left -= weight
            if left <= 0:
                return value
        return ordered[-1][0]

    low, middle, high = map(value_at, (0.25, 0.5, 0.75))
    return middle if high <= STEADY * low else None


def drift_factor(reference: float | None, plan: Plan | AdoptedPlan | None) -> float | None:
    """Return the factor by which the machine is slower than during calibration. Returns None if unknown."""
    if reference is None or plan is None or not plan.reference_seconds:
        return None
    return (reference / plan.reference_seconds) ** plan.drift_exponent
