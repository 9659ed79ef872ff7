"""Quantiles of the normal distribution that intervals are made of: 80 % everywhere, 95 % for guessing."""

from __future__ import annotations

import math

SHARE_INSIDE = 0.8  # of outcomes that fall into an interval
Z80 = 1.2815515655446004  # quantile of 0.9: an 80 % interval is ± Z80 standard deviations
Z95 = 1.959963984540054  # quantile of 0.975: a 95 % interval is ± Z95 standard deviations


def chance_below(limit: float, value: float, low: float, high: float) -> float:
    """How likely an outcome stays at or below a limit, by its 80 % interval: 0.9 where that ends just there.

    Each side of the interval is a normal distribution of its own width.
    """
    room = limit - value
    side = high - value if room > 0 else value - low
    if side <= 0:
        return float(room >= 0)
    return 0.5 * (1 + math.erf(room / side * Z80 / math.sqrt(2)))
