"""Arithmetic on estimates: how 80 % intervals combine in sums and products.

Errors with a common cause add up linearly, for example the steps and the evaluations of one run. Errors with unrelated
causes, such as start-up and disk, add in quadrature. The lower and the upper side of an interval are added separately,
because intervals are not symmetric. Every function takes one `Estimate` or the arrays of a search, `EstimateArrays`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Self, TypeVar

import numpy as np

from advisor.records import Basis, Estimate, worst_basis

BASES = tuple(Basis)  # best first; arrays store the index of a basis in this tuple


@dataclass(frozen=True, kw_only=True)
class Table:
    """A record whose arrays are columns of equal length. Tables among its fields are columns too."""

    def rows(self, places: np.ndarray | slice | tuple) -> Self:
        """Return the rows at these places: a mask, indices, or selections along the first axes."""
        columns: dict[str, Any] = {
            name: column[places] if isinstance(column, np.ndarray) else column.rows(places)
            for name, column in vars(self).items()
            if isinstance(column, np.ndarray | Table)
        }
        return type(self)(**vars(self) | columns)  # a third of the time of `replace`


_Table = TypeVar("_Table", bound=Table)


def stacked(parts: Sequence[_Table]) -> _Table:
    """Return the rows of several tables, concatenated. Fields that are not columns come from the first table."""
    columns: dict[str, Any] = {
        name: (np.concatenate if isinstance(column, np.ndarray) else stacked)([getattr(part, name) for part in parts])
        for name, column in vars(parts[0]).items()
        if isinstance(column, np.ndarray | Table)
    }
    return replace(parts[0], **columns)


@dataclass(frozen=True, kw_only=True)
class EstimateArrays(Table):
    """Many estimates as arrays that broadcast; `basis` contains indices into BASES and may be None if unused."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    basis: np.ndarray | None = None

    def scaled(self, factor: float | np.ndarray) -> EstimateArrays:
        """Return the estimates multiplied by exact positive factors."""
        value, low, high = self.value * factor, self.low * factor, self.high * factor
        return EstimateArrays(value=value, low=low, high=high, basis=self.basis)

    def at(self, row: int) -> Estimate | None:
        """Return the estimate of one row of arrays of shape (n, 1) or (1, 1), or None if it is NaN.

        An exact zero counts as measured.
        """
        assert self.basis is not None
        value, low, high, basis = (
            side.flat[row if side.size > 1 else 0].item() for side in (self.value, self.low, self.high, self.basis)
        )
        if math.isnan(value):
            return None
        return Estimate(value=value, low=low, high=high, basis=BASES[basis] if value or high else Basis.MEASURED)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Bytes of n workloads, each a mixture of log-normal cases, shapes (cases, n)."""

    logs: np.ndarray
    deviations: np.ndarray
    weights: np.ndarray  # each column adds up to one

    def below(self, limit_bytes: np.ndarray | float) -> np.ndarray:
        """Return the probability that each workload stays below a limit, shape (n,)."""
        return (self.weights * _normal((np.log(limit_bytes) - self.logs) / self.deviations)).sum(axis=0)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of each workload's bytes for `shares`, shape (k, n), by bisection in log bytes."""
        low = np.broadcast_to((self.logs - 5 * self.deviations).min(axis=0), shares.shape)
        high = np.broadcast_to((self.logs + 5 * self.deviations).max(axis=0), shares.shape)
        for _ in range(20):  # to a part in 1e5
            middle = (low + high) / 2
            z = (middle[:, None, :] - self.logs) / self.deviations
            under = (self.weights * _normal(z)).sum(axis=1) < shares
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.exp((low + high) / 2)

    def estimates(self, ran_in: float | None = None) -> EstimateArrays:
        """Return median and 80 % interval. If `ran_in` is given, the run has fitted in that much device memory."""
        whole = np.ones(self.logs.shape[1]) if ran_in is None else np.maximum(self.below(ran_in), 1e-6)
        low, value, high = self.quantiles(np.array([[0.1], [0.5], [0.9]]) * whole)
        return EstimateArrays(value=value, low=low, high=high)


def _normal(z: np.ndarray) -> np.ndarray:
    """Return the normal distribution function, exact to 1e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(z) / np.sqrt(2))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-(z**2) / 2)
    return np.where(z > 0, 1 - tail, tail)


Many = TypeVar("Many", Estimate, EstimateArrays)
Side = float | np.ndarray


def known(value: float, basis: Basis = Basis.MEASURED) -> Estimate:
    """Return an estimate without uncertainty: its interval has zero width."""
    return Estimate(value=value, low=value, high=value, basis=basis)


def columns(estimates: Sequence[Estimate]) -> EstimateArrays:
    """Return estimates as arrays of shape (n, 1)."""
    sides = np.array([(e.value, e.low, e.high) for e in estimates], dtype=float)
    bases = np.array([BASES.index(e.basis) for e in estimates])
    return EstimateArrays(value=sides[:, :1], low=sides[:, 1:2], high=sides[:, 2:], basis=bases[:, None])


def sum_shared(*parts: Many) -> Many:
    """Return the sum of estimates whose errors have one common cause: the ends of the intervals add up."""
    value, low, high = (reduce(add, (getattr(part, side) for part in parts)) for side in ("value", "low", "high"))
    return _like(parts, value, low, high)


def sum_independent(*parts: Many) -> Many:
    """Return the sum of estimates with unrelated errors: half-widths add in quadrature, separately for each side."""
    value = reduce(add, (part.value for part in parts))
    below = np.sqrt(reduce(add, (np.square(part.value - part.low) for part in parts)))
    above = np.sqrt(reduce(add, (np.square(part.high - part.value) for part in parts)))
    return _like(parts, value, value - below, value + above)


def product(first: Many, second: Many) -> Many:
    """Return the product of two positive estimates with unrelated errors: their log half-widths add in quadrature.

    If an interval reaches zero, the ends of the intervals are multiplied instead.
    """
    value = first.value * second.value
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.hypot(*(np.log(np.divide(part.value, part.low)) for part in (first, second)))
        above = np.hypot(*(np.log(np.divide(part.high, part.value)) for part in (first, second)))
        positive = (np.asarray(first.low) > 0) & (np.asarray(second.low) > 0)
        low = np.where(positive, value * np.exp(-below), first.low * second.low)
        high = np.where(positive, value * np.exp(above), first.high * second.high)
    return _like((first, second), value, low, high)


def reciprocal(estimate: Many, numerator: float | np.ndarray = 1.0) -> Many:
    """Return `numerator` divided by a positive estimate: this turns a time into a rate, or a rate into a time."""
    value, low, high = (numerator / side for side in (estimate.value, estimate.high, estimate.low))
    return _like((estimate,), value, low, high)


def _like(parts: Sequence[Many], value: Side, low: Side, high: Side) -> Many:
    """Return an estimate of the same type as the parts, with the weakest basis of all parts that are not zero."""
    if isinstance(parts[0], EstimateArrays):
        value, low, high = (np.asarray(side) for side in (value, low, high))
        places = [np.where((p.value != 0) | (p.high != 0), p.basis, 0) for p in parts if p.basis is not None]
        weakest = reduce(np.maximum, places) if len(places) == len(parts) else None
        return EstimateArrays(value=value, low=low, high=high, basis=weakest)
    bases = [part.basis for part in parts if part.value or part.high] or [Basis.MEASURED]
    return Estimate(value=float(value), low=float(low), high=float(high), basis=worst_basis(*bases))
