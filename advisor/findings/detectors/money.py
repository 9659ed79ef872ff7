"""What is paid for and not used: time beside the steps, idle devices, work done twice; and declared totals."""

from __future__ import annotations

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.machine import lost_seconds, slowdown
from advisor.findings.run_facts import price, restarts
from advisor.findings.savings import saved_share, spent_seconds, steps_covered
from advisor.findings.waits import seconds_beside
from advisor.readers.run_table import Event
from advisor.units import HOUR, format_bytes, format_percent, format_seconds, format_usd

_GOODPUT = 0.90  # of the wall clock in steps: what well run training reaches (sources §6.3)
_BAD_GOODPUT = 0.80  # start-up and evaluations of short runs take a tenth and more
_LEAST_WALL_SECONDS = 60.0  # what starts and stops within a minute is a test
_IDLE_SHARE = 0.05
_IDLE_DEAR = 0.25  # of the time watched: before and after a job readings are idle by nature
_HELD_BYTES = 1e9  # more than a driver's context
_TIME_TOLERANCE = 0.10
_TWICE, _TWICE_LEAST = 0.01, 0.001  # of the steps: a warning, a note


def detect_cost(case: Case) -> Verdict:
    """Whether dollars can be told at all."""
    if price(case) is None and not run_metrics.on_cpu(case):
        why = case.notes.get("price") or "or a GPU that the price lists know"
        return Insufficient(code="cost", missing=f"the price per hour (--price, {why})")
    if spent_seconds(case) is None:
        return Insufficient(code="cost", missing="step times or time stamps, to tell hours and dollars")
    return None


def detect_goodput(case: Case) -> Verdict:
    """The share of the wall clock that steps take: the rest is start-up, evaluations, checkpoints and waiting."""
    wall, times, covered = _wall_seconds(case), run_metrics.step_times(case), steps_covered(case)
    if times is None or times.source == run_metrics.FROM_CLOCK or covered is None:
        return Insufficient(code="goodput", missing="step times beside the wall clock")
    if wall is None:
        return Insufficient(code="goodput", missing="the wall clock: time stamps, elapsed or total seconds")
    # steps that other work on the machine slowed are training all the same, and another finding
    waited = seconds_beside(case) * covered  # so is waiting for data, where the steps' own times leave it out
    working = series.median(times.steady_seconds) / slowdown(case) * covered + lost_seconds(case) + waited
    share = working / wall
    if share >= _GOODPUT or len(times.steady_seconds) < 20 or wall < _LEAST_WALL_SECONDS:
        return None
    usd = price(case)
    cost = f", {format_usd((wall - working) / HOUR * usd)} so far" if usd else ""
    return Finding(
        code="goodput",
        severity=Severity.WARNING if share < _BAD_GOODPUT else Severity.NOTE,
        title=f"{format_percent(1 - share)} of the wall clock is not training: {format_seconds(wall - working)}{cost}",
        evidence=(
            Evidence(
                text=f"{covered:g} steps of {format_seconds(working / covered)} are "
                f"{format_seconds(working)} of {format_seconds(wall)}"
                + (", waiting for data included" if waited else "")
            ),
            *_known_parts(case),
        ),
        confidence=Confidence.MEDIUM,
        causes=("evaluations", "checkpoints", "start-up and compilation", "waiting for data between steps"),
        actions=("log eval_seconds and checkpoint_seconds; evaluate less often or on fewer tokens",),
        threshold="90 % of the wall clock in steps (sources §6.3)",
        **saved_share(case, _GOODPUT - share, 0.0, 1 - share),
    )


def _wall_seconds(case: Case) -> float | None:
    """Wall clock over the logged steps: time stamps, else elapsed seconds, else what the log declares in all."""
    for name in ("unix_seconds", "elapsed_seconds"):
        clock = series.finite(run_metrics.main_column(case.run, name))
        if len(clock) > 1 and clock.max() > clock.min():
            return float(clock.max() - clock.min())
    return run_metrics.positive(case, "total_seconds")


def _known_parts(case: Case) -> tuple[Evidence, ...]:
    parts = []
    for name, words in (("eval_seconds", "evaluations"), ("checkpoint_seconds", "checkpoints")):
        seconds = series.finite(case.run.column(name))
        if len(seconds):
            parts.append(Evidence(text=f"{len(seconds)} {words} took {format_seconds(float(seconds.sum()))}"))
    return tuple(parts)


def detect_idle_device(case: Case) -> Verdict:
    """Stretches of minutes in which nothing ran on a card that was being paid for."""
    if run_metrics.on_cpu(case):
        return None
    busy, clock = run_metrics.telemetry(case, "utilization"), run_metrics.telemetry(case, "unix_seconds")
    if not len(busy) or len(clock) != len(busy):
        return Insufficient(code="idle_device", missing="GPU telemetry: utilisation with time stamps")
    watched = float(np.nanmax(clock) - np.nanmin(clock))
    spans = _all_idle(case)
    idle = sum(last - first for first, last in spans)
    if watched <= 0 or idle / watched < _IDLE_SHARE:
        return None  # a card without work beside others that have it is another finding
    usd = price(case)
    cost = f", {format_usd(idle / HOUR * usd)}" if usd else ""
    return Finding(
        code="idle_device",
        severity=Severity.WARNING if idle / watched > _IDLE_DEAR else Severity.NOTE,
        title=f"Nothing ran on the GPU for {format_seconds(idle)}{cost}: "
        f"{format_percent(idle / watched)} of the time watched",
        evidence=(
            Evidence(text=f"utilisation at most 2 % for {format_seconds(run_metrics.IDLE_SECONDS)} or longer"),
            *_held_meanwhile(case),
        ),
        confidence=Confidence.HIGH,
        causes=("set-up, download or tokenising on the rented machine", "left running after the end", "a hung process"),
        actions=("prepare data before renting; stop the machine when the run ends",),
        threshold="5 % of the time in stretches of two minutes or more",
        **saved_share(case, idle / watched),
    )


def _all_idle(case: Case) -> list[tuple[float, float]]:
    """From when to when no card had work, in the seconds of the readings."""
    clock, cards = run_metrics.telemetry(case, "unix_seconds"), run_metrics.telemetry(case, "gpu")
    count = max(1, len(np.unique(series.finite(cards)))) if len(cards) == len(clock) else 1
    ends = [
        (float(clock[rows[i]]), step) for rows in run_metrics.idle_stretches(case) for i, step in ((0, 1), (-1, -1))
    ]
    spans, idle, since = [], 0, 0.0
    for moment, change in sorted(ends):
        if idle == count and moment > since:
            spans.append((since, moment))
        idle, since = idle + change, moment
    return spans


def _held_meanwhile(case: Case) -> tuple[Evidence, ...]:
    """The memory that stays allocated while nothing runs: a process that waits."""
    used = run_metrics.telemetry(case, "memory_used_bytes")
    rows = np.concatenate(run_metrics.idle_stretches(case))
    held = series.median(used[rows]) if len(used) > rows.max() else 0.0
    if not held > _HELD_BYTES:
        return ()
    return (Evidence(text=f"{format_bytes(held)} stay allocated meanwhile: a process waits (a server, a hung rank)"),)


def detect_declared_time(case: Case) -> Verdict:
    """The log's own total time against the sum of its steps."""
    declared, times, covered = (
        run_metrics.positive(case, "total_seconds"),
        run_metrics.step_times(case),
        steps_covered(case),
    )
    if declared is None or times is None or times.source == run_metrics.FROM_CLOCK or covered is None:
        return Insufficient(code="declared_time", missing="a duration that the log declares, and step times")
    if len(case.run.phases) > 1 or len(case.run.attempts) > 1:
        return None  # the declared total may be that of another part of the log
    working = series.median(times.steady_seconds) * covered
    if working <= declared * (1 + _TIME_TOLERANCE):
        return None
    return Finding(
        code="declared_time",
        severity=Severity.WARNING,
        title=f"The log declares {format_seconds(declared)} in all, but its steps alone took {format_seconds(working)}",
        evidence=(Evidence(text=f"{covered:g} steps at a median of {format_seconds(working / covered)}"),),
        confidence=Confidence.MEDIUM,
        causes=("the total leaves out earlier attempts", "step times of another unit or of several steps"),
        actions=("compute hours and dollars from the steps",),
        threshold="steps alone may not take 10 % longer than the declared whole",
    )


def detect_work_done_twice(case: Case) -> Verdict:
    """Steps that a restart threw away and repeated."""
    if not len(case.run):
        return Insufficient(code="work_done_twice", missing="steps, to see which were done again")
    again = restarts(case.run)
    lost = sum(_repeated_steps(event) for event in again)
    seconds, covered = run_metrics.step_seconds(case), steps_covered(case)
    if not again or not covered or lost <= max(len(again), _TWICE_LEAST * covered):
        return None  # the step that a restart prints again is none
    usd = price(case)
    cost = f", {format_usd(lost * seconds / HOUR * usd)}" if usd and seconds else ""
    took = f" ({format_seconds(lost * seconds)}{cost})" if seconds else ""
    return Finding(
        code="work_done_twice",
        severity=Severity.WARNING if lost >= _TWICE * covered else Severity.NOTE,
        title=f"{lost:g} steps were done twice in {len(again)} restart{'s' if len(again) > 1 else ''}{took}",
        evidence=tuple(Evidence(text=event.text, first_step=event.step) for event in again[:5]),
        confidence=Confidence.HIGH,
        causes=("the newest checkpoint was that much older than the interruption",),
        actions=("write checkpoints more often (checkpoint.every_seconds)",),
        threshold=f"{format_percent(_TWICE)} of the steps; a note from {format_percent(_TWICE_LEAST)} on",
        **saved_share(case, lost / (covered + lost)),
    )


def _repeated_steps(event: Event) -> float:
    """Steps between where a restart took up the run and where the attempt before had got to."""
    first, last = event.numbers.get("first_step"), event.numbers.get("last_step")
    return max(0.0, last - first + 1) if first is not None and last is not None else 0.0
