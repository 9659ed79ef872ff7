"""Step times that grow through a run, or change for good at one moment; split into data and compute."""

from __future__ import annotations

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.machine import quiet_times
from advisor.findings.run_metrics import StepTimes
from advisor.findings.savings import NOTHING_KNOWN, saved_share
from advisor.findings.work import is_constant, work_change
from advisor.units import format_number, format_percent, format_seconds

_DRIFT = 0.03  # of throughput over the run (sources §7.3)
_DEAR_DRIFT = 0.10
_DRIFT_ROWS = 50
_SHIFT = 0.10  # a lasting change of level
_SMOOTHED = 11  # rows
_SWINGS = 0.1  # of the later rows nearer to the level before: it was not left for good
_NO_SCHEDULE = 0.25  # a longer step of the same tokens: attention windows of a schedule cost less
_STAIRS, _EVEN = 3, 0.25  # rises, and how far each may be off the usual one
_BY_DESIGN = "a schedule that changes what a step does (batch, sequence length, attention window)"


def detect_drift(case: Case) -> Verdict:
    """Step times that grow through the run, by the Theil-Sen slope of their logarithm."""
    times = _calm(case)
    if times is None:
        return Insufficient(code="drift", missing=f"step times of at least {_DRIFT_ROWS} rows")
    logs = np.log(times.steady_seconds)
    if _shifts(times):
        return None  # a lasting change, which is another finding, pulls the line
    trend = series.theil_sen(times.steady_step, logs)
    if trend is None:
        return None
    span = float(times.steady_step[-1] - times.steady_step[0])
    slower, least = float(np.expm1(trend.slope * span)), float(np.expm1(trend.low * span))
    if slower < _DRIFT or trend.low <= 0:
        return None
    work = work_change(case, times, len(times.steady_seconds) // 2)
    if work is not None and not is_constant(work):
        return None  # the steps do more
    cause, evidence = _data_or_compute(case, times, len(times.steady_seconds))
    return Finding(
        code="drift",
        severity=Severity.WARNING if slower > _DEAR_DRIFT and (is_constant(work) or cause) else Severity.NOTE,
        title=f"Steps grew {format_percent(slower)} slower from step {times.steady_step[0]:g} to "
        f"{times.steady_step[-1]:g}",
        evidence=(
            Evidence(
                text=f"Theil-Sen slope of log step time: {format_percent(slower)} over the run "
                f"(at least {format_percent(least)})",
                first_step=float(times.steady_step[0]),
                last_step=float(times.steady_step[-1]),
            ),
            *evidence,
        ),
        confidence=Confidence.HIGH if least > _DRIFT else Confidence.MEDIUM,
        causes=(
            *cause,
            *(() if is_constant(work) else (_BY_DESIGN,)),
            "heat or a power cap",
            "memory growth or a filling cache",
            "other users' load",
        ),
        actions=("compare clocks and temperature at start and end (telemetry)", "log data_seconds to split the time"),
        threshold="3 % over the run with the slope's 95 % interval above zero (sources §7.3)",
        **(
            saved_share(case, slower / 2 / (1 + slower / 2), least / 2 / (1 + least / 2), slower / 2)
            if is_constant(work) or cause
            else NOTHING_KNOWN
        ),
    )


def _calm(case: Case) -> StepTimes | None:
    """Step times with enough steady rows for statements about their course; other work on the machine left out."""
    times = quiet_times(case)
    return times if times and len(times.steady_seconds) >= _DRIFT_ROWS else None


def _shifts(times: StepTimes) -> list[series.Shift]:
    """Lasting changes of step time that a straight line explains worse than steps do."""
    logs = np.log(times.steady_seconds)
    shifts = series.level_shifts(logs, least=_SHIFT)
    if not shifts:
        return []
    levels = np.full(len(logs), shifts[0].before)
    for shift in shifts:
        levels[shift.index :] = shift.after
    trend = series.theil_sen(times.steady_step, logs)
    line = trend.intercept + trend.slope * times.steady_step if trend else np.full(len(logs), series.median(logs))
    calm = series.rolling_median(logs, _SMOOTHED)  # without pauses, which neither model explains
    by_steps, by_line = (float(np.mean(np.abs(calm - model))) for model in (levels, line))
    return shifts if by_steps < 0.7 * by_line else []


def _data_or_compute(case: Case, times: StepTimes, cut: int) -> tuple[tuple[str, ...], tuple[Evidence, ...]]:
    """Whether data or compute changed: between the rows before and after `cut`, or the first and last quarter."""
    data = case.run.column("data_seconds")[times.row][times.start :]
    if np.isfinite(data).sum() < _DRIFT_ROWS // 2:
        return (), ()
    quarter = max(1, len(data) // 4)
    early, late = (
        (slice(0, cut), slice(cut, None)) if 0 < cut < len(data) else (slice(0, quarter), slice(-quarter, None))
    )
    seconds = times.steady_seconds
    more = series.median(seconds[late]) - series.median(seconds[early])
    by_data = series.median(data[late]) - series.median(data[early])
    share = by_data / more if more else 0.0
    text = f"{format_percent(min(1.0, max(0.0, share)))} of the change is waiting for data"
    cause = "the data loader" if share > 0.5 else "the GPU or the host, not the data loader"
    return (cause,), (Evidence(text=text),)


def _is_staircase(times: StepTimes, worse: list[series.Shift]) -> bool:
    """Whether step times climb stairs of one width and one height: a schedule's, as accidents do not keep time."""
    if len(worse) < _STAIRS:
        return False
    widths = np.diff([times.steady_step[shift.index] for shift in worse])
    # the last one may hold a stair too low to be seen alone
    heights = np.array([np.exp(shift.after) - np.exp(shift.before) for shift in worse[:-1]])
    return all(bool(np.all(np.abs(size / np.median(size) - 1) <= _EVEN)) for size in (widths, heights))


def detect_shift(case: Case) -> Verdict:
    """A lasting change of step time at one moment: something happened there."""
    times = _calm(case)
    if times is None:
        return Insufficient(code="step_time_shift", missing=f"step times of at least {_DRIFT_ROWS} rows")
    shifts = _shifts(times)
    worse = [shift for shift in shifts if shift.after > shift.before]
    if not worse or (len(worse) == len(shifts) and _is_staircase(times, worse)):
        return None
    biggest = max(worse, key=lambda shift: shift.after - shift.before)
    factor = float(np.exp(biggest.after - biggest.before))
    step = float(times.steady_step[biggest.index])
    work = work_change(case, times, biggest.index)
    if work is not None and work > 1 and factor <= work * (1 + _SHIFT):
        return None  # the steps do that much more
    cause, evidence = _data_or_compute(case, times, biggest.index)
    later = np.log(times.steady_seconds[biggest.index :])
    swings = float(np.mean(later < (biggest.before + biggest.after) / 2)) > _SWINGS
    sure = not swings and (bool(cause) or (is_constant(work) and factor > 1 + _NO_SCHEDULE))
    after = 1 - biggest.index / len(times.steady_seconds)
    return Finding(
        code="step_time_shift",
        severity=Severity.WARNING if sure else Severity.NOTE,
        title=f"From step {step:g} on each step takes {format_number(factor)}x as long"
        + (" or as before, to and fro" if swings else ""),
        evidence=(
            Evidence(
                text=f"median {format_seconds(float(np.exp(biggest.before)))} before, "
                f"{format_seconds(float(np.exp(biggest.after)))} after"
                + (f"; {len(worse)} such changes" if len(worse) > 1 else ""),
                first_step=step,
            ),
            *evidence,
        ),
        confidence=Confidence.HIGH if sure else Confidence.LOW,
        causes=(
            *cause,
            *(() if sure else (_BY_DESIGN,)),
            "another process on the machine",
            "throttling",
            "a resume with other settings",
            "a new data shard",
        ),
        actions=(
            f"look at the machine's logs and telemetry around step {step:g}"
            if sure
            else f"if no schedule changes the work of a step at {step:g}, look at the machine there",
        ),
        threshold="medians before and after differ by 10 % and by six standard errors",
        **(saved_share(case, after * (factor - 1) / (1 + after * (factor - 1))) if sure else NOTHING_KNOWN),
    )
