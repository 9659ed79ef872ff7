"""Step time and memory of a program whose model is not known: sums of terms in its batch, fitted to its own bursts.

    seconds of a step = per step + calls x (per call + per token x tokens + per token and length x tokens x length)
    peak memory       = always   + per token x tokens of one call

and, where the rows of a call are laid end to end in one, a further term in tokens x tokens of each: attention may then
see all of them.

Each term is positive; its logarithm has a normal prior about a share of what the program's own bursts take. Laplace's
approximation gives the interval, beside what the terms leave unexplained and how far the machine drifts. It speaks of
this program on this machine only. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from advisor.laws.intervals import Z80
from advisor.records import Basis, Estimate

# Shares of the terms before any burst: arbitrary but for their order, tokens are most of a step
_TIME_PRIOR, _MEMORY_PRIOR = (0.1, 0.1, 0.7, 0.1, 0.1), (0.5, 0.5, 0.1)
_PRIOR_DEVIATION = 1.5  # of the log of each
_DISCREPANCY, _DISCREPANCY_WEIGHT = 0.05, 4.0  # of a log that the terms leave, worth so many bursts
_DRIFT, _DRIFT_WEIGHT = 0.03, 2.0  # between visits of the same configuration, worth so many visits
_OUTSIDE = 0.08  # added for each doubling beyond what was measured: caches, other kernels
# Of a log: what lies between a line and the end of its step, and a memory that is read now and then. On four programs
# of a CPU the medians were within 0.015 of the probe's; a card that runs ahead of its host may be worse
_BY_LOG = 0.05
FEWEST_TO_HOLD_OUT = 4


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What one optimizer step is given, in one process. `length` 1 where rows have no tokens.

    With `end_to_end` the rows of a call are laid one behind the other in a single one.
    """

    rows: float
    calls: float
    length: float = 1.0
    end_to_end: bool = False

    @property
    def tokens(self) -> float:
        """Of one call."""
        return self.rows * self.length


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One measured value, of seconds or bytes."""

    batch: Batch
    value: float
    by_log: bool = False  # read from outside: from its log's lines, or what the system has of its processes


def time_terms(batch: Batch) -> tuple[float, ...]:
    """The terms of a step's seconds."""
    work = batch.calls * batch.tokens
    return 1.0, batch.calls, work, work * batch.length, work * batch.tokens * batch.end_to_end


def memory_terms(batch: Batch) -> tuple[float, ...]:
    """The terms of a peak's bytes."""
    return 1.0, batch.tokens, batch.tokens**2 * batch.end_to_end


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted sum of terms."""

    terms: Callable[[Batch], tuple[float, ...]]
    theta: np.ndarray  # logs of the coefficients
    covariance: np.ndarray
    deviation: float  # of the log, beside the coefficients': what they leave, and the machine's drift
    seen: tuple[Batch, ...]

    def estimate(self, batch: Batch) -> Estimate:
        """The value at a batch with its 80 % interval."""
        x = np.array(self.terms(batch)) * np.exp(self.theta)
        gradient = x / x.sum()
        outside = self.doublings_outside(batch)
        variance = gradient @ self.covariance @ gradient + self.deviation**2 + (_OUTSIDE * outside) ** 2
        width = math.exp(Z80 * math.sqrt(variance))
        value = float(x.sum())
        between = Basis.INTERPOLATED if outside == 0 else Basis.EXTRAPOLATED
        basis = Basis.MEASURED if batch in self.seen else between
        return Estimate(value=value, low=value / width, high=value * width, basis=basis)

    def doublings_outside(self, batch: Batch) -> float:
        """How many doublings a batch lies beyond what was measured, all its dimensions together."""
        return sum(
            _outside(getattr(batch, name), [getattr(b, name) for b in self.seen])
            for name in ("rows", "calls", "length")
        )


def _outside(value: float, seen: Sequence[float]) -> float:
    return max(0.0, math.log2(value / max(seen)), math.log2(min(seen) / value))


def fit_time(seen: Sequence[Seen]) -> Fitted:
    """The step time of a program; raises ValueError without a burst."""
    return _fit(seen, time_terms, _TIME_PRIOR)


def fit_memory(seen: Sequence[Seen]) -> Fitted:
    """The peak memory of a program; raises ValueError without a burst."""
    return _fit(seen, memory_terms, _MEMORY_PRIOR)


def _fit(seen: Sequence[Seen], terms: Callable[[Batch], tuple[float, ...]], shares: Sequence[float]) -> Fitted:
    if not seen:
        raise ValueError("no burst was measured")
    visits: dict[Batch, list[float]] = {}
    for one in seen:
        visits.setdefault(one.batch, []).append(math.log(one.value))
    x = np.array([terms(batch) for batch in visits])
    y = np.array([statistics.median(logs) for logs in visits.values()])
    drift = _drift(list(visits.values()))
    there = x > 0  # a term that no batch has stays at its prior, and adds nothing
    middle = np.log(x, out=np.zeros_like(x), where=there).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    prior_shares = np.array(shares) / sum(np.array(shares)[there.any(axis=0)])  # at a batch amid those measured
    prior = y.mean() + np.log(prior_shares) - middle
    noise = np.sqrt(drift**2 / np.array([len(logs) for logs in visits.values()]) + _DISCREPANCY**2)

    def residual(theta: np.ndarray) -> np.ndarray:
        misfit = (y - np.log(x @ np.exp(theta))) / noise
        return np.concatenate((misfit, (theta - prior) / _PRIOR_DEVIATION))

    solution = least_squares(residual, prior)
    slopes = np.asarray(solution.jac)
    left = y - np.log(x @ np.exp(solution.x))
    discrepancy = math.sqrt(
        (_DISCREPANCY_WEIGHT * _DISCREPANCY**2 + float((left**2).sum())) / (_DISCREPANCY_WEIGHT + len(left))
    )
    return Fitted(
        terms=terms,
        theta=solution.x,
        covariance=np.linalg.inv(slopes.T @ slopes),
        deviation=math.hypot(discrepancy, drift, _BY_LOG if any(one.by_log for one in seen) else 0.0),
        seen=tuple(visits),
    )


def _drift(visits: Sequence[Sequence[float]]) -> float:
    """Standard deviation of the log between visits of the same configuration, pulled to its prior."""
    squares = [(value - statistics.mean(logs)) ** 2 for logs in visits for value in logs]
    freedom = sum(len(logs) - 1 for logs in visits)
    return math.sqrt((_DRIFT_WEIGHT * _DRIFT**2 + sum(squares)) / (_DRIFT_WEIGHT + freedom))


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Errors of predictions for batches that the fit did not see."""

    errors: tuple[float, ...]  # predicted / actual - 1
    inside: tuple[bool, ...]

    @property
    def median(self) -> float:
        return statistics.median(abs(error) for error in self.errors)

    @property
    def coverage(self) -> float:
        return statistics.mean(self.inside)


def leave_one_out(seen: Sequence[Seen], fit: Callable[[Sequence[Seen]], Fitted]) -> HeldOut | None:
    """Each batch left out once, with all its visits; None with fewer than four batches."""
    batches = list(dict.fromkeys(one.batch for one in seen))
    if len(batches) < FEWEST_TO_HOLD_OUT:
        return None
    errors, inside = [], []
    for batch in batches:
        promised = fit([one for one in seen if one.batch != batch]).estimate(batch)
        actual = math.exp(statistics.median(math.log(one.value) for one in seen if one.batch == batch))
        errors.append(promised.value / actual - 1)
        inside.append(promised.contains(actual))
    return HeldOut(errors=tuple(errors), inside=tuple(inside))
