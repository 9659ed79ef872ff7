"""Predictions for rows that leave something open: mixtures of what they may mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from advisor.laws.intervals import Z80
from advisor.prediction.batch import verdict_of
from advisor.records import Estimate, Prediction, worst_basis

_LEAST_CHANCE = 0.01  # lowest probability of fitting for a run that took place


def mixed(predictions: Sequence[Prediction], weights: Sequence[float]) -> Prediction:
    """Return one prediction for an incomplete row, from the workloads that it may mean, weighted by their probability.

    An estimate is None if any of the predictions lacks it. The run took place: a workload that would not have fitted
    counts less.
    """
    likely = [
        weight * max(p.fit_probability, _LEAST_CHANCE) if p.fit_probability is not None else weight
        for p, weight in zip(predictions, weights, strict=True)
    ]

    def side(name: str, mix: Callable[..., Estimate] = mixture) -> Estimate | None:
        estimates = [getattr(p, name) for p in predictions]
        return mix(estimates, likely) if None not in estimates else None

    probabilities = [p.fit_probability for p in predictions]
    stated = [p for p in probabilities if p is not None]
    chance = None
    if len(stated) == len(predictions):
        chance = sum(p * weight for p, weight in zip(stated, weights, strict=True)) / sum(weights)
    return replace(
        predictions[max(range(len(likely)), key=likely.__getitem__)],
        step_seconds=side("step_seconds"),
        tokens_per_second=side("tokens_per_second"),
        mfu=side("mfu"),
        peak_allocated_bytes=side("peak_allocated_bytes", quantiles_of_mixture),
        peak_reserved_bytes=side("peak_reserved_bytes", quantiles_of_mixture),
        device_bytes=side("device_bytes", quantiles_of_mixture),
        fit_probability=chance,
        fits=verdict_of(chance),
    )


def mixture(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Return one log-normal estimate for several positive alternatives, weighted by their probability.

    The result has the mean and the variance of the mixture in log. The weights need not sum to one.
    """
    total, middle, square = sum(weights), 0.0, 0.0  # plain floats are faster than arrays for so few estimates
    for e, weight in zip(estimates, weights, strict=True):
        log, spread = math.log(e.value), math.log(e.high / e.low) / (2 * Z80)
        middle += weight / total * log
        square += weight / total * (spread * spread + log * log)
    spread = math.exp(Z80 * math.sqrt(max(square - middle * middle, 0.0)))
    value = math.exp(middle)
    basis = worst_basis(*(e.basis for e in estimates))
    return Estimate(value=value, low=value / spread, high=value * spread, basis=basis)


def quantiles_of_mixture(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Return the mixture's 0.1, 0.5 and 0.9 quantiles, for alternatives that are far apart or end at a limit.

    Each estimate counts as normal in log, with different widths below and above its value.
    """
    sides = [
        (weight / sum(weights), math.log(e.value), math.log(e.value / e.low) / Z80, math.log(e.high / e.value) / Z80)
        for e, weight in zip(estimates, weights, strict=True)
    ]
    ends = (min(e.low for e in estimates) / 2, 2 * max(e.high for e in estimates))

    def quantile(share: float) -> float:
        below, above = map(math.log, ends)
        for _ in range(14):  # to a few parts in 1e4
            at = (below + above) / 2
            reached = sum(
                weight * 0.5 * math.erfc((middle - at) / max(left if at < middle else right, 1e-9) / math.sqrt(2))
                for weight, middle, left, right in sides
            )
            below, above = (at, above) if reached < share else (below, at)
        return math.exp((below + above) / 2)

    low, value, high = (quantile(share) for share in (0.1, 0.5, 0.9))
    return Estimate(value=value, low=low, high=high, basis=worst_basis(*(e.basis for e in estimates)))
