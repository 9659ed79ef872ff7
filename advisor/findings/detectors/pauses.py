"""Slow steps: pauses that come back, matched to what causes them, and stalls that do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.machine import quiet_times
from advisor.findings.run_metrics import FROM_CLOCK, StepTimes
from advisor.findings.savings import saved_share
from advisor.readers.run_table import RunTable
from advisor.units import format_percent, format_seconds

_PAUSE = 1.5  # times the running median
_PAUSE_NEIGHBOURS = 51
_PAUSE_COST = 0.01  # of the time, to be worth a word
_DEAR_PAUSE = 0.05
_DEAR_BY_CHOICE = 0.20  # evaluations and checkpoints were asked for (and pauses that come back often are either)
_DEAR_STALLS = 0.10
_STALL_COST = 0.01
_NEAR = 1.0  # printed rows between an evaluation and the slow row beside it
_GC_SECONDS = (0.05, 2.0)  # a full collection of Python's garbage stops a step for about half a second (sources §7.3)

_STALL_CAUSES = ("a slow disk or network", "new data shards", "recompilation for new shapes")


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Steps much slower than their neighbours, those in a row taken as one pause."""

    step: np.ndarray  # where each pause begins
    excess_seconds: np.ndarray  # of each pause, beyond the running median
    share: float  # of the steady time
    period: series.Period | None


def pauses(times: StepTimes, left_out_seconds: float = 0.0) -> Pauses | None:
    """Stretches of rows of more than 1.5 times the running median; None where there are none.

    `left_out_seconds`: what other steps took that are not among `times`.
    """
    seconds, step = times.steady_seconds, times.steady_step
    if len(seconds) < 20:
        return None
    normal = series.rolling_median(seconds, _PAUSE_NEIGHBOURS)
    noise = 4 * series.mad(seconds - normal) / series.NORMAL_MAD
    slow = (seconds > _PAUSE * normal) & (seconds - normal > noise)
    if not slow.any():
        return None
    first = [begin for begin, _ in series.stretches(slow)]
    beyond = np.where(slow, seconds - normal, 0.0)
    excess = np.add.reduceat(beyond, first)
    # rows that were not printed took their time too
    whole = float(normal.sum()) * times.stride + float(excess.sum()) + left_out_seconds
    period = series.period_of(step[first], tolerance=times.stride)
    return Pauses(step=step[first], excess_seconds=excess, share=float(excess.sum()) / whole, period=period)


def _left_out(case: Case, times: StepTimes) -> float:
    """Seconds of the steps that other work on the machine slowed, which are not among `times`."""
    every = run_metrics.step_times(case)
    assert every is not None
    return (float(every.seconds.sum()) - float(times.seconds.sum())) * every.stride


def detect_periodic_pauses(case: Case) -> Verdict:
    """Slow steps that come back: matched to evaluations, checkpoints and garbage collection."""
    times = quiet_times(case)  # what other work on the machine slowed is another finding
    if times is None or times.source == FROM_CLOCK:
        return Insufficient(code="periodic_pauses", missing="step times printed by the run itself")
    slow = pauses(times, _left_out(case, times))
    if slow is None or slow.period is None or slow.share < _PAUSE_COST:
        return None
    what, actions = _pause_cause(case, slow, slow.period.every)
    asked_for = what.startswith(("evaluation", "checkpoint", "cause unknown"))
    dear = slow.share > (_DEAR_BY_CHOICE if asked_for else _DEAR_PAUSE)
    mean = float(slow.excess_seconds.mean())
    return Finding(
        code="periodic_pauses",
        severity=Severity.WARNING if dear else Severity.NOTE,
        title=f"Every {slow.period.every:g} steps one takes {format_seconds(mean)} longer: "
        f"{format_percent(slow.share)} of the time ({what})",
        evidence=(
            Evidence(
                text=f"{len(slow.step)} pauses, {format_percent(slow.period.regular)} of the gaps regular",
                first_step=float(slow.step[0]),
                last_step=float(slow.step[-1]),
            ),
        ),
        confidence=Confidence.HIGH if what != "cause unknown" else Confidence.MEDIUM,
        causes=(what,),
        actions=actions,
        threshold="1.5 times the running median of 51 steps, regular in at least 60 % of the gaps",
        # no one saves all of it: half as often saves half
        **saved_share(case, slow.share / 2, slow.share / 4, slow.share),
    )


def _pause_cause(case: Case, slow: Pauses, every: float) -> tuple[str, tuple[str, ...]]:
    """What happens at these steps, by the log's own evaluations and checkpoints, its settings, else its length."""
    stride, evals, saved = float(np.median(np.diff(slow.step))), evaluations(case.run), saves(case.run)
    near = max(1.0, 0.02 * min(every, stride))
    by_eval = _coincide(slow.step, evals, near) or _same(run_metrics.positive(case, "eval_every_steps"), every)
    by_save = _coincide(slow.step, saved, near) or _same(run_metrics.positive(case, "checkpoint_every_steps"), every)
    if by_eval and by_save:
        return "evaluation and checkpoint", (f"evaluate and save every {2 * every:g} steps, on fewer tokens",)
    if by_eval:
        return "evaluation", (
            f"evaluate every {2 * every:g} steps",
            "evaluate on fewer tokens, without generating samples",
        )
    if by_save:
        return "checkpoint", (f"save every {2 * every:g} steps", "write checkpoints asynchronously")
    if _GC_SECONDS[0] <= float(np.median(slow.excess_seconds)) <= _GC_SECONDS[1]:
        return "perhaps Python's garbage collection", (
            "gc.freeze() and gc.disable() after start-up, gc.collect() rarely",
        )
    return "cause unknown", ("log evaluations and checkpoints with their seconds",)


def evaluations(run: RunTable) -> np.ndarray:
    """Steps at which the run evaluated."""
    return run.column("step")[np.isfinite(run.column("eval_loss")) | np.isfinite(run.column("eval_seconds"))]


def saves(run: RunTable) -> np.ndarray:
    """Steps at which it wrote checkpoints."""
    events = [event.step for event in run.events if event.kind == "checkpoint" and event.step is not None]
    return np.array([*events, *run.column("step")[np.isfinite(run.column("checkpoint_seconds"))]])


def _at_work_of_the_run(case: Case, steps: np.ndarray, near: float) -> bool:
    """Whether most of these steps lie beside evaluations or checkpoints."""
    return _coincide(steps, np.concatenate([evaluations(case.run), saves(case.run)]), near)


def _coincide(steps: np.ndarray, others: np.ndarray, near: float) -> bool:
    """Whether most of these steps lie beside one of the others."""
    others = np.sort(others[np.isfinite(others)])
    if not len(others):
        return False
    place = np.clip(np.searchsorted(others, steps), 1, max(1, len(others) - 1))
    gap = np.minimum(np.abs(others[np.minimum(place, len(others) - 1)] - steps), np.abs(others[place - 1] - steps))
    return float((gap <= near).mean()) >= 0.6


def _same(declared: float | None, every: float) -> bool:
    return declared is not None and abs(declared / every - 1) < 0.02


def detect_stalls(case: Case) -> Verdict:
    """Slow steps without a period: something outside the training loop holds it up now and then."""
    times = quiet_times(case)  # what other work on the machine slowed is another finding
    if times is None or times.source == FROM_CLOCK:
        return Insufficient(code="stalls", missing="step times printed by the run itself")
    slow = pauses(times, left_out := _left_out(case, times))
    if slow is None or slow.period is not None or slow.share < _STALL_COST:
        return None
    if _at_work_of_the_run(case, slow.step, _NEAR * times.stride):
        return None  # too few to have a period, but known for what they are
    worst, pauses_ = int(np.argmax(slow.excess_seconds)), "pauses" if len(slow.step) > 1 else "pause"
    return Finding(
        code="stalls",
        severity=Severity.WARNING if slow.share > _DEAR_STALLS else Severity.NOTE,
        title=f"{len(slow.step)} irregular {pauses_} cost {format_percent(slow.share)} of the time",
        evidence=(
            Evidence(
                text=f"the longest took {format_seconds(float(slow.excess_seconds[worst]))} more than steps beside it",
                first_step=float(slow.step[0]),
                last_step=float(slow.step[-1]),
            ),
        ),
        confidence=Confidence.MEDIUM,
        causes=("other load on the host", *_STALL_CAUSES) if left_out else (*_STALL_CAUSES, "other load on the host"),
        actions=("set TORCH_LOGS=recompiles and compare steps; log data_seconds",),
        threshold="1.5 times the running median of 51 steps, more than 1 % of the time in all",
        **saved_share(case, slow.share, slow.share / 2, slow.share),
    )
