"""Normal quantiles for intervals: 80 % for predictions, 95 % for guessed benchmark scores."""

from __future__ import annotations

import math

SHARE_INSIDE = 0.8  # share of outcomes inside an interval
Z80 = 1.2815515655446004  # quantile of 0.9: an 80 % interval is ± Z80 standard deviations
Z95 = 1.959963984540054  # quantile of 0.975: a 95 % interval is ± Z95 standard deviations


def chance_below(limit: float, value: float, low: float, high: float) -> float:
    """Return the probability of an outcome at or below `limit`: 0.9 if `limit` is the high end of the 80 % interval.

    Each side of the interval is a normal distribution with its own width.
    """
    room = limit - value
    side = high - value if room > 0 else value - low
    if side <= 0:
        return float(room >= 0)
    return 0.5 * (1 + math.erf(room / side * Z80 / math.sqrt(2)))
