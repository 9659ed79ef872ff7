"""Arithmetic on estimates: how 80 % intervals combine in sums and products.

Two rules cover every bill. Errors that share their cause (a step time times its count, an evaluation
made of the same forward passes) add up as they are; errors of unrelated causes (start-up, disk) add in
quadrature, each side of the interval on its own, since the intervals are not symmetric.
"""

from __future__ import annotations

import math

from advisor.records import Basis, Estimate, worst_basis


def known(value: float, basis: Basis = Basis.MEASURED) -> Estimate:
    """A number without uncertainty, such as nothing at all: an interval of zero width."""
    return Estimate(value=value, low=value, high=value, basis=basis)


def sum_shared(*parts: Estimate) -> Estimate:
    """Sum of estimates whose errors share one cause: ends add up as they are."""
    return Estimate(
        value=sum(part.value for part in parts),
        low=sum(part.low for part in parts),
        high=sum(part.high for part in parts),
        basis=_basis(parts),
    )


def sum_independent(*parts: Estimate) -> Estimate:
    """Sum of estimates with unrelated errors: half-widths in quadrature, below and above apart."""
    value = sum(part.value for part in parts)
    return Estimate(
        value=value,
        low=value - math.hypot(*(part.value - part.low for part in parts)),
        high=value + math.hypot(*(part.high - part.value for part in parts)),
        basis=_basis(parts),
    )


def product(first: Estimate, second: Estimate) -> Estimate:
    """Product of two positive estimates with unrelated errors: log half-widths in quadrature."""
    value = first.value * second.value
    if not (first.low > 0 and second.low > 0):
        return Estimate(
            value=value, low=first.low * second.low, high=first.high * second.high, basis=_basis((first, second))
        )
    below = math.hypot(*(math.log(part.value / part.low) for part in (first, second)))
    above = math.hypot(*(math.log(part.high / part.value) for part in (first, second)))
    return Estimate(
        value=value, low=value * math.exp(-below), high=value * math.exp(above), basis=_basis((first, second))
    )


def reciprocal(estimate: Estimate, numerator: float = 1.0) -> Estimate:
    """`numerator` over a positive estimate: a rate from a time or a time from a rate."""
    return Estimate(
        value=numerator / estimate.value,
        low=numerator / estimate.high,
        high=numerator / estimate.low,
        basis=estimate.basis,
    )


def _basis(parts: tuple[Estimate, ...]) -> Basis:
    """The weakest basis among the parts that contribute; a part that is exactly nothing rests on nothing."""
    counted = [part.basis for part in parts if part.value or part.high]
    return worst_basis(*counted) if counted else Basis.MEASURED
