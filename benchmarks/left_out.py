"""Predicts the runs of left-out owners by a fit to the other owners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from prior_model import SPREADS, Run, fitted

from advisor.hardware.catalog import GpuSpec
from advisor.laws.intervals import Z80
from advisor.prediction.nearest import PublishedRun, nearby, switches_of
from advisor.prediction.prior import SharedBelief
from advisor.prediction.published import PublishedSetting, Spreads
from advisor.prediction.throughput import coordinates, sizes
from advisor.records import Workload


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Predictions of left-out runs."""

    runs: tuple[Run, ...]
    errors: np.ndarray  # (n,) log predicted minus log actual step seconds
    deviations: np.ndarray  # (n,)

    @property
    def weights(self) -> np.ndarray:
        """Return weights with which every owner counts once."""
        owners = [run.owner for run in self.runs]
        return np.array([1 / owners.count(owner) for owner in owners])

    @property
    def relative(self) -> np.ndarray:
        """Return |predicted / measured - 1| of tokens per second."""
        return np.abs(np.expm1(-self.errors))

    @property
    def inside(self) -> np.ndarray:
        return np.abs(self.errors) <= self.half

    @property
    def density(self) -> np.ndarray:
        """Return the log predictive density of each log step."""
        return -0.5 * (self.errors / self.deviations) ** 2 - np.log(self.deviations * np.sqrt(2 * np.pi))

    @property
    def half(self) -> np.ndarray:
        """Return half the width of each 80 % interval, in logs."""
        return Z80 * self.deviations

    @property
    def width(self) -> float:
        """Return the median of the interval's high over its low end."""
        return float(np.exp(2 * weighted_quantile(self.half, self.weights, 0.5)))

    @property
    def interval_score(self) -> float:
        """Return the mean 80 % interval score: its width in logs plus ten times any miss. Less is better."""
        missed = np.maximum(np.abs(self.errors) - self.half, 0.0)
        return float(np.average(2 * self.half + 2 / 0.2 * missed, weights=self.weights))

    @property
    def signed(self) -> float:
        """Return the median of predicted over measured tokens per second, minus one; positive if it is too high."""
        return float(np.expm1(weighted_quantile(-self.errors, self.weights, 0.5)))

    def of(self, chosen: np.ndarray) -> HeldOut:
        runs = tuple(run for run, on in zip(self.runs, chosen, strict=True) if on)
        return HeldOut(runs=runs, errors=self.errors[chosen], deviations=self.deviations[chosen])


def predicted(
    belief: SharedBelief, seen: Sequence[PublishedRun], runs: Sequence[Run], known: dict[str, GpuSpec]
) -> HeldOut:
    """Predict each run from others' runs, their posterior and residuals: mean and spread over its row's meanings."""
    errors, deviations = np.empty(len(runs)), np.empty(len(runs))
    for i, run in enumerate(runs):
        weights = np.array([m.weight for m in run.meanings])
        steps = [log_step(belief, seen, m.x, m.workload, known[m.workload.gpu]) for m in run.meanings]
        logs, variances = np.array(steps).T
        errors[i] = weights @ logs
        deviations[i] = np.sqrt(weights @ variances + weights @ (logs - errors[i]) ** 2)
    return HeldOut(runs=tuple(runs), errors=errors, deviations=deviations)


def log_step(
    belief: SharedBelief, seen: Sequence[PublishedRun], x: np.ndarray, w: Workload, spec: GpuSpec
) -> tuple[float, float]:
    """Return mean and variance of the log of a step's seconds; `x` are its terms at coefficient one."""
    setting = PublishedSetting.of(w, spec)
    mean, covariance = belief.belief(spec.generation, spec, setting)
    parts = x * np.exp(mean)
    share = parts / parts.sum()
    middle, variance = np.log(parts.sum()), share @ covariance @ share
    variance += belief.spreads.row**2 + belief.spreads.near**2
    near = nearby(seen, setting.software.name, spec.key, switches_of(w), belief.spreads.near)
    if near is not None:
        cross = near.cross(coordinates(sizes([w])))[0]
        middle, variance = middle + cross @ near.pull, variance - cross @ near.inverse @ cross
    return float(middle), float(variance)


def leave_out(
    runs: Sequence[Run], groups: Sequence[str], known: dict[str, GpuSpec], spreads: Spreads = SPREADS
) -> HeldOut:
    """Predict each group's decoders from a fit to all other groups' runs; `groups` names the group of each run."""
    parts, everything = [], fitted(runs, known, spreads)[0]
    for group in sorted({g for g, run in zip(groups, runs, strict=True) if not run.encoder}):
        others = [run for run, g in zip(runs, groups, strict=True) if g != group]
        mine = [run for run, g in zip(runs, groups, strict=True) if g == group and not run.encoder]
        parts.append(predicted(*fitted(others, known, spreads, everything), mine, known))
    return HeldOut(
        runs=tuple(run for part in parts for run in part.runs),
        errors=np.concatenate([part.errors for part in parts]),
        deviations=np.concatenate([part.deviations for part in parts]),
    )


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Return the value below which `share` of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share)])
