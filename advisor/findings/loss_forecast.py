"""The final loss of a run, forecast from its first part and its schedule (sources §4.5).

Uses the law of `laws/annealing`: L0 and A are fitted to the run, C has a prior, and α is fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from advisor.findings.curves import Curve
from advisor.findings.schedule import Schedule
from advisor.laws.annealing import FALL_EXPONENT, GAIN_PER_SHARE, GAIN_SPREAD, annealing_sums
from advisor.laws.intervals import Z80
from advisor.records import Basis, Estimate

FIRST_SHARE, HALF_SHARE = 0.25, 0.5  # of the steps after warm-up
_HALF_WIDTHS = {FIRST_SHARE: 0.05, HALF_SHARE: 0.03, 1.0: 0.015}  # nats, schedule known; sources §4.5
_SKIP = 0.1  # of the steps; no power law describes the first part
_BINS = 60
_LEAST_BINS = 8
# The law has a memory of a thousand steps and was fitted to runs of many thousands. A shorter run consists of the rise
# and fall that the law leaves out. The interval therefore includes the law's misses on earlier parts of the same run.
_SHORT_RUN = 2000  # steps
_NEWEST = 0.1  # of the steps so far: the part on which the law is tested
_TESTED_FROM = (0.4, 0.5, 0.6, 0.75)  # of the steps so far: the parts from which it is tested
_UNTESTED = 0.3  # nats: our judgement if there are too few rows for a test
_MISFIT, _FREE_BINS = 0.02, 5.0  # nats by which the law itself errs, over about this many independent stretches


@dataclass(frozen=True, kw_only=True)
class LossForecast:
    """The loss at the last step with its interval, or the reason in words why there is none."""

    final_loss: Estimate | None
    reason: str  # the basis of the forecast, or why there is none


def share_done(step: float, schedule: Schedule) -> float:
    """Return the share of the steps after warm-up that are done; `step` is counted as in the log."""
    total = len(schedule.shares)
    return (step - schedule.warmup_steps) / max(1, total - schedule.warmup_steps)


def _on_schedule(losses: Curve, schedule: Schedule) -> Curve:
    """Return the losses by the schedule's own count of steps, which begins at 0."""
    return replace(losses, step=losses.step - schedule.first_step)


def forecast_loss(losses: Curve, schedules: list[Schedule], *, nats: float = 1.0) -> LossForecast:
    """Return the training loss at the last step under every schedule that the run may follow.

    `losses` are the rows so far, with steps counted in optimizer steps; `nats` is the size of their unit. There is no
    forecast before a quarter of the steps, because neither naive nor careful forecasts are useful there (sources §4.5).
    """
    if not schedules:
        return LossForecast(final_loss=None, reason="the learning-rate schedule is not known")
    if not losses.counted or not len(losses):
        return LossForecast(final_loss=None, reason="the log has no training loss by step")
    begins = max(s.warmup_steps + FIRST_SHARE * (len(s.shares) - s.warmup_steps) for s in schedules)
    if min(share_done(float(losses.step[-1]), s) for s in schedules) < FIRST_SHARE - 1e-3:
        return LossForecast(final_loss=None, reason=f"no forecast before step {math.ceil(begins):,}")
    estimates = [e for s in schedules if (e := _one(losses, s, nats)) is not None]
    if not estimates:
        return LossForecast(final_loss=None, reason="too few rows with a loss after the first tenth of the steps")
    names = " or ".join(s.name for s in schedules)
    # the middle of the possible estimates, with an interval that contains all of them
    middle = float(np.median([e.value for e in estimates]))
    low, high = min(e.low for e in estimates), max(e.high for e in estimates)
    final = Estimate(value=middle, low=low, high=high, basis=Basis.EXTRAPOLATED)
    return LossForecast(final_loss=final, reason=f"learning-rate annealing law, schedule {names}")


def _one(losses: Curve, schedule: Schedule, nats: float) -> Estimate | None:
    """Return the final loss by Bayesian least squares for L0, A and C: flat priors but for C."""
    found = _fitted(_on_schedule(losses, schedule), schedule, nats, len(schedule.shares) - 1)
    if found is None:
        return None
    end, half = found
    done = share_done(float(losses.step[-1]), schedule)
    known = float(np.interp(done, list(_HALF_WIDTHS), list(_HALF_WIDTHS.values())))  # half of the handbook's interval
    half = float(np.hypot(half, known / nats))
    if len(schedule.shares) < _SHORT_RUN:
        half = float(np.hypot(half, _missed(_on_schedule(losses, schedule), schedule, nats)))
    return Estimate(value=end, low=end - half, high=end + half, basis=Basis.EXTRAPOLATED)


def _missed(losses: Curve, schedule: Schedule, nats: float) -> float:
    """Return by how much the law would have missed the newest losses if fitted to fewer steps.

    It is the largest of several tests, because a single test may hit by luck. A miss grows with the factor to the end.
    """
    now, total = float(losses.step[-1]), len(schedule.shares)
    newest = losses.since((1 - _NEWEST) * now)
    missed = []
    for share in _TESTED_FROM:
        then = schedule.warmup_steps + share * (now - schedule.warmup_steps)
        early = replace(losses, step=losses.step[losses.step <= then], value=losses.value[losses.step <= then])
        found = _fitted(early, schedule, nats, int(np.median(newest.step)))
        if found is not None:
            ahead, behind = np.log(total / now), np.log(now / then)
            missed.append(abs(float(np.median(newest.value)) - found[0]) * max(1.0, float(ahead / behind)))
    return max(missed) if len(missed) == len(_TESTED_FROM) else max(*missed, _UNTESTED / nats, 0.0)


def _fitted(losses: Curve, schedule: Schedule, nats: float, at: int) -> tuple[float, float] | None:
    """Return the law's loss at a step and half of its 80 % interval, fitted to these losses, or None for too few."""
    step, value, noise = _bins(losses, schedule)
    if len(step) < _LEAST_BINS:
        return None
    travelled, annealed = annealing_sums(schedule.shares, schedule.warmup_steps)
    design = _design(travelled, annealed, step)
    rows = np.hypot(noise, _MISFIT / nats) * np.sqrt(max(1.0, len(step) / _FREE_BINS))
    gain = GAIN_PER_SHARE / nats
    prior = np.array([0.0, 0.0, 1 / (GAIN_SPREAD / Z80 * gain) ** 2])
    precision = design.T @ (design / rows[:, None] ** 2) + np.diag(prior)
    target = design.T @ (value / rows**2) + prior * np.array([0.0, 0.0, gain])
    covariance = np.linalg.inv(precision)
    last = _design(travelled, annealed, np.array([at]))[0]
    return float(last @ (covariance @ target)), float(Z80 * np.sqrt(max(0.0, last @ covariance @ last)))


def _design(travelled: np.ndarray, annealed: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the columns of L0, A and C at these steps. S1 is divided by its end, so that A is in nats."""
    return np.stack([np.ones(len(step)), (travelled[step] / travelled[-1]) ** -FALL_EXPONENT, -annealed[step]], axis=1)


def _bins(losses: Curve, schedule: Schedule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, median losses and their standard errors in stretches of equal length, to ignore spikes."""
    total = len(schedule.shares)
    start = max(1.2 * schedule.warmup_steps, _SKIP * total)
    kept = losses.since(start)
    parts = [part for part in np.array_split(np.arange(len(kept)), _BINS) if len(part)]
    if len(parts) < _LEAST_BINS:
        return np.empty(0, dtype=int), np.empty(0), np.empty(0)
    step = np.array([int(np.median(kept.step[part])) for part in parts]).clip(0, total - 1)
    value = np.array([float(np.median(kept.value[part])) for part in parts])
    spreads = np.array([float(np.median(np.abs(kept.value[part] - np.median(kept.value[part])))) for part in parts])
    # of single rows: their scatter around their neighbours shows in the misfit
    noise = np.array([1.2533 * s / 0.6745 / np.sqrt(len(p)) for s, p in zip(spreads, parts, strict=True)])
    return step, value, noise
