"""Time that is not training: waiting for data, gaps between steps, compilation and warm-up."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.detectors.machine import readings
from advisor.findings.detectors.pauses import evaluations, saves
from advisor.findings.run_metrics import PRINTED, StepTimes
from advisor.findings.savings import saved_share
from advisor.findings.waits import waits
from advisor.units import format_percent, format_seconds

_DATA_SHARE = 0.05  # data_time / step (sources §7.5)
_DEAR_SHARE, _BAD_SHARE = 0.15, 0.5
_FEWEST_GAPS = 20  # intervals by the clock
_ROUNDING = 0.05  # of an interval: the clock may be off by this much, as much as a finding needs
_WARM_UP_FACTOR = 3.0
_WARM_UP_COST = 0.02
_WARM_UP_LEAST_SECONDS = 1.0
_WARM_UP_MOST_SECONDS = 3600.0  # more is no compilation: the program was stopped, or waited


def detect_data_stall(case: Case) -> Verdict:
    """Waiting for data: logged, else gaps between steps that their own times do not explain."""
    times = run_metrics.step_times(case)
    if times is None:
        return Insufficient(code="data_stall", missing="step times")
    waited = waits(case, times)
    if waited is not None:
        share = waited.share
        text = (
            f"data_seconds: mean {format_seconds(waited.mean)} per step, "
            f"95th percentile {format_seconds(waited.high)}"
            + (", beside the seconds of the step, which leave it out" if waited.beside else "")
        )
    elif (gaps := _gap_share(case, times)) is not None:
        share = gaps
        text = "the clock advances more between steps than they take, evaluations and checkpoints left out"
    else:
        return Insufficient(code="data_stall", missing="data_seconds per step, or time stamps beside step times")
    if share <= _DATA_SHARE:
        return None
    logged = waited is not None
    return Finding(
        code="data_stall" if logged else "gaps_between_steps",
        # what lies between steps may be anything, and is known by subtraction only
        severity=_severity(share) if logged else Severity.NOTE,
        title=f"{format_percent(share)} of the time is spent waiting for data"
        if logged
        else f"{format_percent(share)} of the time lies between steps",
        evidence=(Evidence(text=text),),
        confidence=Confidence.HIGH if logged else Confidence.LOW,
        causes=(
            "too few loader workers",
            "tokenising or decompressing on the fly",
            "a network disk",
            "logging, syncing",
        ),
        actions=("prepare tokens in advance (advisor data prepare)", "more workers, prefetch and pinned memory"),
        threshold="more than 5 % of a step (sources §7.5)",
        **saved_share(case, share),
    )


def _severity(share: float) -> Severity:
    """Of a share of the time that is logged as waiting: loaders of pictures take a tenth of it by habit."""
    return Severity.ERROR if share > _BAD_SHARE else Severity.WARNING if share > _DEAR_SHARE else Severity.NOTE


def _gap_share(case: Case, times: StepTimes) -> float | None:
    """Share of the clock's time that steps do not explain; None without both, or with nothing but thinned rows.

    Compared over as many rows as the clock's rounding takes: one that moves by 0.6 s says nothing of a step of 0.5 s.
    """
    if times.source != PRINTED:
        return None
    rows = times.row[times.start :]
    if _has_pauses_between(case, rows):
        return None
    for name in ("unix_seconds", "elapsed_seconds"):
        clock = case.run.column(name)[rows]
        printed = np.isfinite(clock)
        gaps = _per_step(case, clock[printed], times.steady_step[printed], times.steady_seconds[printed])
        if gaps is not None:
            passed, explained = gaps
            # the median: pauses for evaluations and checkpoints happen in few intervals
            return 1 - series.median(explained) / series.median(passed)
    return None


def _per_step(
    case: Case, clock: np.ndarray, step: np.ndarray, seconds: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Seconds per step by the clock and by the steps' own times, in stretches that its rounding leaves exact enough."""
    if len(clock) < _FEWEST_GAPS:
        return None
    moved = np.diff(clock)
    mean = float(moved[moved > 0].sum()) / len(moved)
    rounded = series.resolution(clock)
    every = max(1, math.ceil(rounded / (_ROUNDING * mean))) if mean > 0 else 1
    ends = np.arange(0, len(clock), every)
    passed, steps = np.diff(clock[ends]), np.diff(step[ends])
    taken = np.concatenate([[0.0], np.cumsum(np.diff(step) * seconds[1:])])[ends]
    good = (passed > 0) & (steps > 0)
    if every > 1:  # so many rows together hold pauses that the log knows of
        good &= ~_holds(step[ends], np.concatenate([evaluations(case.run), saves(case.run)]))
    if good.sum() < _FEWEST_GAPS:
        return None
    return passed[good] / steps[good], np.diff(taken)[good] / steps[good]


def _holds(ends: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """For each stretch between two ends whether one of these steps lies in it, its last included."""
    known = np.sort(steps[np.isfinite(steps)])
    first, last = np.sort([ends[:-1], ends[1:]], axis=0)
    return np.searchsorted(known, last, side="right") > np.searchsorted(known, first, side="right")


def _has_pauses_between(case: Case, rows: np.ndarray) -> bool:
    """Whether most rows have an evaluation beside them, so that gaps are no sign of anything."""
    return np.isfinite(case.run.column("eval_loss")[rows]).mean() > 0.5 if len(rows) else True


def detect_warm_up(case: Case) -> Verdict:
    """Compilation and warm-up: left out of every rate, and said so where they are long."""
    times, machine = run_metrics.step_times(case), readings(case)
    if times is None or len(times.steady_seconds) < 5:
        return Insufficient(code="warm_up", missing="step times")
    if not times.start:
        return None
    if machine is not None and machine.busy_at(times.step[: times.start]).any():
        return None  # nobody can tell warm-up from other work on the machine
    steady = series.median(times.steady_seconds)
    first = times.seconds[: times.start]
    excess = float((first - steady).sum())
    done = float(times.seconds.sum()) * times.stride
    if not _WARM_UP_LEAST_SECONDS <= excess <= _WARM_UP_MOST_SECONDS * len(first):
        return None
    if excess < _WARM_UP_COST * done and float(first.max()) < _WARM_UP_FACTOR * steady:
        return None
    return Finding(
        code="warm_up",
        severity=Severity.NOTE,
        title=f"The first {f'{len(first)} printed steps' if len(first) > 1 else 'printed step'} cost "
        f"{format_seconds(max(0.0, excess))} more than steady ones; no rate counts "
        f"{'them' if len(first) > 1 else 'it'}",
        evidence=(
            Evidence(
                text=f"first {format_seconds(float(first[0]))}, steady {format_seconds(steady)}",
                first_step=float(times.step[0]),
                last_step=float(times.step[len(first) - 1]),
            ),
        ),
        confidence=Confidence.HIGH,
        causes=("torch.compile and autotuning", "allocator and file caches that fill"),
        threshold="steps before five consecutive ones within 10 % of the running median (sources §7.3)",
    )
