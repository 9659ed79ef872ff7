"""How much work a step does through a run, as far as the log tells: schedules change it by design. Pure."""

from __future__ import annotations

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case
from advisor.findings.run_metrics import PRINTED, StepTimes

_SAME = 0.03  # relative change of the work that is none


def work_of_steps(case: Case, times: StepTimes) -> np.ndarray | None:
    """Tokens or sequences of each steady row's step, in any unit; None where the log tells of neither.

    By the printed batch, by the tokens counted, else by the printed rate times the step's seconds.
    """
    rows = times.row[times.start :]
    samples = case.run.column("step_samples")[rows]
    if np.isfinite(samples).mean() > 0.5:
        return samples
    tokens = case.run.column("tokens")[rows]
    if np.isfinite(tokens).mean() > 0.5:
        gained, passed = np.diff(tokens), np.diff(times.steady_step)
        work = np.full(len(rows), np.nan)
        work[1:] = np.where(passed > 0, gained / np.where(passed > 0, passed, 1.0), np.nan)
        return work
    rate = case.run.column("tokens_per_second")[rows]
    if times.source == PRINTED and np.isfinite(rate).mean() > 0.5:
        return rate * times.steady_seconds
    return None


def work_change(case: Case, times: StepTimes, cut: int) -> float | None:
    """How many times the work of a step after row `cut` of the steady ones is that before; None where not known."""
    work = work_of_steps(case, times)
    if work is None:
        return None
    before, after = series.median(work[:cut]), series.median(work[cut:])
    return after / before if before > 0 and np.isfinite(after) else None


def is_constant(change: float | None) -> bool:
    """Whether a change of work is known, and none."""
    return change is not None and abs(change - 1) <= _SAME
