"""Leave-one-out validation: a fit to all other configurations predicts each configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from advisor.records import Estimate

FEWEST_TO_HOLD_OUT = 4  # configurations; with fewer, too few remain for the fit
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HeldPoint:
    """One configuration with its measurement and its prediction by a fit to the others."""

    configuration: Hashable
    predicted: Estimate
    actual: float

    @property
    def error(self) -> float:
        """Predicted / actual - 1."""
        return self.predicted.value / self.actual - 1

    @property
    def inside(self) -> bool:
        """True if the measurement is inside the 80 % interval."""
        return self.predicted.contains(self.actual)

    @property
    def width(self) -> float:
        """Half of the 80 % interval's width, in log."""
        return math.log(self.predicted.high / self.predicted.value)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The results of a leave-one-out validation."""

    points: tuple[HeldPoint, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted / actual - 1 of each point."""
        return tuple(point.error for point in self.points)

    @property
    def inside(self) -> tuple[bool, ...]:
        """For each point, True if the measurement is inside the 80 % interval."""
        return tuple(point.inside for point in self.points)

    @property
    def median(self) -> float:
        """Median of the absolute errors."""
        return float(np.median(np.abs(self.errors)))

    @property
    def p90(self) -> float:
        """90th percentile of the absolute errors."""
        return float(np.quantile(np.abs(self.errors), 0.9))

    @property
    def coverage(self) -> float:
        """Share of the measurements inside their 80 % intervals."""
        return statistics.mean(self.inside)

    def of(self, configuration: Hashable) -> HeldPoint | None:
        """Return the point of one configuration, or None if it is not among the points."""
        return next((point for point in self.points if point.configuration == configuration), None)


def leave_one_out(
    seen: Sequence[T],
    *,
    configuration: Callable[[T], Hashable],
    measured: Callable[[T], float],
    predict: Callable[[list[T], T], Estimate],
) -> HeldOut | None:
    """Return the results of leaving out each configuration once, or None for fewer than four configurations.

    All measurements of a configuration are left out together. `predict` gets the remaining measurements and one
    measurement of the left-out configuration. The actual value is the median of all its measurements.
    """
    visits: dict[Hashable, list[T]] = {}
    for one in seen:
        visits.setdefault(configuration(one), []).append(one)
    if len(visits) < FEWEST_TO_HOLD_OUT:
        return None
    points = []
    for left_out, own in visits.items():
        predicted = predict([one for one in seen if configuration(one) != left_out], own[0])
        actual = math.exp(statistics.median(math.log(measured(one)) for one in own))
        points.append(HeldPoint(configuration=left_out, predicted=predicted, actual=actual))
    return HeldOut(points=tuple(points))
