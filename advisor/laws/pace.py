"""The pace of a run, from the seconds of its steps: the mean, how well it is known, and how far it may drift.

The same rule serves a run that is watched and a log that is judged. Spreads are standard deviations of logarithms.
"""

from __future__ import annotations

import math

import numpy as np

STRAGGLER_CAP = 5.0  # a step this many times slower than the median counts so much: a longer stall is not a habit
STRETCHES = 10  # of the run, whose medians show its drift
FEW_STEPS = 5
FEW_STEPS_SPREAD = 0.15  # spread of single steps assumed below FEW_STEPS
CORRELATION = 4.0  # neighbouring steps are slow together: four of them tell as much as one alone
DRIFT_FLOOR = 0.01  # the pace of the future differs from the pace seen by this much at least
UNSEEN_DRIFT = 0.05  # assumed until the run is long enough to show its drift
FAR = 10.0  # times the steps seen: no drift is foretold beyond


def mean_seconds(seconds: np.ndarray) -> float:
    """Mean seconds of a step, a long stall counted as five times the median; NaN without steps."""
    return float(np.mean(np.minimum(seconds, STRAGGLER_CAP * np.median(seconds)))) if len(seconds) else math.nan


def mean_error(seconds: np.ndarray) -> float:
    """Spread of the average of these steps, from their quartiles and as neighbours are slow together."""
    spread = log_spread(seconds) if len(seconds) >= FEW_STEPS else FEW_STEPS_SPREAD
    return max(spread, DRIFT_FLOOR) * math.sqrt(CORRELATION / len(seconds))


def drift_spread(seconds: np.ndarray, left: float) -> float:
    """Spread to expect between the pace seen and the mean pace of the `left` steps to come.

    The medians of ten stretches of the run show its drift, less their own sampling noise (half of it: taking off all
    made 80 % intervals hold 67 % of simulated drifting runs, half makes them hold 70-99 %). A random walk
    of q per step gives them a variance of q·n/6 over n steps; the mean of the steps ahead differs from that of the
    newest n by q·(n + left)/3: the seen variance times 2·(1 + left/n).
    """
    if len(seconds) < STRETCHES * FEW_STEPS:
        return UNSEEN_DRIFT
    stretches = np.array_split(seconds, STRETCHES)
    medians = np.log(np.maximum([np.median(stretch) for stretch in stretches], 1e-9))
    noise = np.mean([log_spread(stretch) ** 2 * math.pi / 2 / len(stretch) for stretch in stretches])  # of a median
    wandered = max(0.0, float(np.var(medians, ddof=1) - noise / 2))
    return math.hypot(DRIFT_FLOOR, math.sqrt(wandered * 2 * (1 + min(left / len(seconds), FAR))))


def log_spread(values: np.ndarray) -> float:
    """Spread of single values, estimated from quartiles: a few very slow steps do not count as noise."""
    low, high = np.quantile(np.log(np.maximum(values, 1e-9)), (0.25, 0.75))
    return float(high - low) / 1.349  # the quartiles of a normal distribution lie 1.349 standard deviations apart
