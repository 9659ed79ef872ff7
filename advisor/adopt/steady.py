"""When the steps of a program have become steady."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

LEAST_STEPS = 4  # of a window pair: two against two
_AGREE = 0.1  # two windows whose medians differ by less than this, in log, agree (DeepView's rule, with room for noise)


def warmup_steps(seconds: Sequence[float]) -> int | None:
    """How many of the first steps to drop: the fewest after which two neighbouring windows agree; None: none do.

    A window is a quarter of what is left, two steps at least.
    """
    for first in range(len(seconds) - LEAST_STEPS + 1):
        left = seconds[first:]
        window = max(2, len(left) // 4)
        one, other = statistics.median(left[:window]), statistics.median(left[window : 2 * window])
        rest = statistics.median(left)
        if _near(one, other) and _near(one, rest):
            return first
    return None


def _near(one: float, other: float) -> bool:
    return one > 0 and other > 0 and abs(math.log(one / other)) <= _AGREE
