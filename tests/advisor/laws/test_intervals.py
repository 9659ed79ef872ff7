"""The quantiles against the error function of the standard library."""

from __future__ import annotations

import math

import pytest

from advisor.laws.intervals import Z80, Z95


@pytest.mark.parametrize(("quantile", "inside"), [(Z80, 0.80), (Z95, 0.95)])
def test_so_much_of_a_normal_lies_inside(quantile: float, inside: float):
    assert math.erf(quantile / math.sqrt(2)) == pytest.approx(inside, abs=1e-15)
