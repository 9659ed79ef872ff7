"""Leaves each configuration out once, predicts it from the others, and says how right that was."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from advisor.records import Estimate

FEWEST_TO_HOLD_OUT = 4  # configurations: fewer leave too little to fit when one is left out
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HeldPoint:
    """One configuration that a fit did not see: what it predicts, and what was measured."""

    configuration: Hashable
    predicted: Estimate
    actual: float

    @property
    def error(self) -> float:
        """Predicted / actual - 1."""
        return self.predicted.value / self.actual - 1

    @property
    def inside(self) -> bool:
        """Whether the 80 % interval holds what was measured."""
        return self.predicted.contains(self.actual)

    @property
    def width(self) -> float:
        """Half of the 80 % interval, in log."""
        return math.log(self.predicted.high / self.predicted.value)


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Configurations that a fit did not see, each predicted by it."""

    points: tuple[HeldPoint, ...]

    @property
    def errors(self) -> tuple[float, ...]:
        """Predicted / actual - 1 of each."""
        return tuple(point.error for point in self.points)

    @property
    def inside(self) -> tuple[bool, ...]:
        """Whether each lies within its interval."""
        return tuple(point.inside for point in self.points)

    @property
    def median(self) -> float:
        """Median of the errors, without their signs."""
        return float(np.median(np.abs(self.errors)))

    @property
    def p90(self) -> float:
        """Their 90th percentile."""
        return float(np.quantile(np.abs(self.errors), 0.9))

    @property
    def coverage(self) -> float:
        """The share that lies within its interval."""
        return statistics.mean(self.inside)

    def of(self, configuration: Hashable) -> HeldPoint | None:
        """The point of one configuration; None: it was not left out."""
        return next((point for point in self.points if point.configuration == configuration), None)


def leave_one_out(
    seen: Sequence[T],
    *,
    configuration: Callable[[T], Hashable],
    measured: Callable[[T], float],
    predict: Callable[[list[T], T], Estimate],
) -> HeldOut | None:
    """Leave each configuration out once, with all its visits; None with fewer than four.

    `predict` is given what is left, and a visit of the configuration that is asked for. What was measured of it is the
    median of its visits.
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
