"""Owners left out of the fit, and how far their runs are from what the others' say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from prior_model import SPREADS, Run, fit

from advisor.hardware.catalog import GpuSpec
from advisor.laws.intervals import Z80
from advisor.predict.prior import SharedBelief
from advisor.predict.published import Spreads


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Predictions of left-out runs."""

    runs: tuple[Run, ...]
    errors: np.ndarray  # (n,) log predicted minus log actual step seconds
    deviations: np.ndarray  # (n,)

    @property
    def weights(self) -> np.ndarray:
        """Every source counts once."""
        sources = [run.source for run in self.runs]
        return np.array([1 / sources.count(source) for source in sources])

    @property
    def relative(self) -> np.ndarray:
        """|predicted / measured - 1| of tokens per second."""
        return np.abs(np.expm1(-self.errors))

    @property
    def inside(self) -> np.ndarray:
        return np.abs(self.errors) <= Z80 * self.deviations

    @property
    def density(self) -> np.ndarray:
        """Log predictive density of each log step."""
        return -0.5 * (self.errors / self.deviations) ** 2 - np.log(self.deviations * np.sqrt(2 * np.pi))

    def of(self, chosen: np.ndarray) -> HeldOut:
        runs = tuple(run for run, on in zip(self.runs, chosen, strict=True) if on)
        return HeldOut(runs=runs, errors=self.errors[chosen], deviations=self.deviations[chosen])


def predicted(belief: SharedBelief, runs: Sequence[Run], known: dict[str, GpuSpec]) -> HeldOut:
    """Each run by a belief that did not see it: mean and spread over what its row may mean."""
    errors, deviations = np.empty(len(runs)), np.empty(len(runs))
    for i, run in enumerate(runs):
        weights = np.array([m.weight for m in run.meanings])
        logs, variances = [], []
        for m in run.meanings:
            spec = known[m.workload.gpu]
            mean, covariance = belief.belief(spec.generation, spec, m.setting)
            parts = m.x * np.exp(mean)
            share = parts / parts.sum()
            logs.append(np.log(parts.sum()))
            variances.append(share @ covariance @ share + belief.spreads.row**2)
        errors[i] = weights @ logs
        deviations[i] = np.sqrt(weights @ variances + weights @ (np.array(logs) - errors[i]) ** 2)
    return HeldOut(runs=tuple(runs), errors=errors, deviations=deviations)


def leave_out(
    runs: Sequence[Run], groups: Sequence[str], known: dict[str, GpuSpec], spreads: Spreads = SPREADS
) -> HeldOut:
    """Predict each group's decoders from a fit to all other groups' runs; `groups` names each run's."""
    parts = []
    for group in sorted({g for g, run in zip(groups, runs, strict=True) if not run.encoder}):
        others = [run for run, g in zip(runs, groups, strict=True) if g != group]
        mine = [run for run, g in zip(runs, groups, strict=True) if g == group and not run.encoder]
        parts.append(predicted(fit(others, known, spreads), mine, known))
    return HeldOut(
        runs=tuple(run for part in parts for run in part.runs),
        errors=np.concatenate([part.errors for part in parts]),
        deviations=np.concatenate([part.deviations for part in parts]),
    )


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The value below which `share` of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share)])
