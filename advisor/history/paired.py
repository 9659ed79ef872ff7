"""Compares the arms of an experiment with the first arm, in pairs of equal seeds.

Runs with the same seed begin with the same weights and see the same tokens, so the seed's effect cancels in the
difference. Intervals are Student's and cover all arms and quantities of one table jointly (Bonferroni 1936).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.stats import t as student

QUANTITIES = ("loss", "step_seconds", "memory_bytes")
_RATIOS = frozenset(("step_seconds", "memory_bytes"))  # compared by their logarithms, so that the difference is a ratio
LEAST = {"loss": 0.002, "step_seconds": 0.005, "memory_bytes": 0.005}  # smaller effects do not matter, even if certain
_CONFIDENCE, _POWER = 0.95, 0.8
MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean difference and its 95 % interval, which holds jointly for all intervals of a table."""

    value: float
    low: float
    high: float

    def clears(self, least: float) -> bool:
        """Tell whether the difference is certain and large enough to matter."""
        return (self.low > 0 or self.high < 0) and abs(self.value) >= least


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One quantity of one arm, compared with the first arm."""

    arm: str
    quantity: str  # one of QUANTITIES
    base: float  # mean over the seeds that both arms ran
    other: float
    pairs: int
    difference: Interval | None  # nats for the loss, else log of the ratio; None for fewer than two pairs
    seeds: int | None  # to detect this difference 4 times of 5; None if more than MOST_SEEDS, or with one pair

    @property
    def clear(self) -> bool:
        """Tell whether the difference is certain, and large enough to matter."""
        return self.difference is not None and self.difference.clears(LEAST[self.quantity])

    @property
    def small(self) -> bool:
        """Tell whether the difference is certainly too small to matter."""
        return self.difference is not None and self.difference.clears(0.0) and not self.clear

    @property
    def is_ratio(self) -> bool:
        return self.quantity in _RATIOS


def contrasts(measured: Mapping[str, Mapping[int, Mapping[str, float | None]]]) -> list[Contrast]:
    """Compare every quantity of each arm with the first arm. `measured` is by arm, seed and quantity."""
    first, *others = measured
    found = [
        (arm, quantity, pairs)
        for arm in others
        for quantity in QUANTITIES
        if (pairs := _pairs(measured[first], measured[arm], quantity))
    ]
    rows = []
    for arm, quantity, pairs in found:
        values = [math.log(b / a) if quantity in _RATIOS else b - a for a, b in pairs]
        difference, seeds = None, None
        if len(values) > 1:
            deviation = statistics.stdev(values)
            mean, certain = statistics.fmean(values), 1 - (1 - _CONFIDENCE) / (2 * len(found))
            reach = float(student.ppf(certain, len(values) - 1)) * deviation / math.sqrt(len(values))
            difference = Interval(value=mean, low=mean - reach, high=mean + reach)
            seeds = seeds_needed(mean, deviation, len(found))
        base, other = (statistics.fmean(values) for values in zip(*pairs, strict=True))
        rows.append(
            Contrast(
                arm=arm,
                quantity=quantity,
                base=base,
                other=other,
                pairs=len(pairs),
                difference=difference,
                seeds=seeds,
            )
        )
    return rows


def _pairs(
    base: Mapping[int, Mapping[str, float | None]], other: Mapping[int, Mapping[str, float | None]], quantity: str
) -> list[tuple[float, float]]:
    """Return pairs of values of the two arms, one pair for each seed that both ran."""
    both = [(base[seed].get(quantity), other[seed].get(quantity)) for seed in base if seed in other]
    return [(a, b) for a, b in both if a is not None and b is not None]


def seeds_needed(difference: float, deviation: float, comparisons: int = 1) -> int | None:
    """Return how many pairs of runs detect a difference with 95 % confidence 4 times of 5. Returns None if too many.

    `deviation` is the standard deviation of one pair's difference. The formula is the usual sum of two quantiles of
    Student's t; the first is the quantile for a table with this many comparisons.
    """
    for pairs in range(2, MOST_SEEDS + 1):
        certain = 1 - (1 - _CONFIDENCE) / (2 * comparisons)
        reach = student.ppf(certain, pairs - 1) + student.ppf(_POWER, pairs - 1)
        if float(reach) * deviation / math.sqrt(pairs) <= abs(difference):
            return pairs
    return None
