"""The mean step time of a run, its uncertainty, and its possible drift. Spreads are standard deviations of logarithms.

The same rules serve running jobs and finished logs.
"""

from __future__ import annotations

import math

import numpy as np

STRAGGLER_CAP = 5.0  # longer steps count as this many medians, because long stalls do not recur regularly
STRETCHES = 10  # parts of the run whose medians show its drift
FEW_STEPS = 5
FEW_STEPS_SPREAD = 0.15  # assumed spread of single steps below FEW_STEPS
CORRELATION = 4.0  # neighbouring steps are correlated: four of them contain as much information as one
DRIFT_FLOOR = 0.01  # smallest difference between past and future step time
UNSEEN_DRIFT = 0.05  # assumed until the run is long enough to show its own drift
FAR = 10.0  # the drift stops growing at this multiple of the steps so far


def mean_seconds(seconds: np.ndarray) -> float:
    """Return the mean seconds of a step, where long stalls count as five medians; NaN without steps."""
    return float(np.mean(np.minimum(seconds, STRAGGLER_CAP * np.median(seconds)))) if len(seconds) else math.nan


def mean_error(seconds: np.ndarray) -> float:
    """Return the spread of the mean step time, from quartiles and the correlation of neighbouring steps."""
    spread = log_spread(seconds) if len(seconds) >= FEW_STEPS else FEW_STEPS_SPREAD
    return max(spread, DRIFT_FLOOR) * math.sqrt(CORRELATION / len(seconds))


def drift_spread(seconds: np.ndarray, left: float) -> float:
    """Return the expected spread between the step time so far and the mean of the `left` remaining steps.

    The drift follows from the variance of the medians of ten parts of the run, minus half of their sampling noise. If
    half is subtracted, 80 % intervals contain 70-99 % of simulated drifting runs; if all is subtracted, only 67 %. A
    random walk with variance q per step gives the medians a variance of q·n/6 over n steps. The mean of the remaining
    steps differs from that of the last n by q·(n + left)/3, which is the measured variance times 2·(1 + left/n).
    """
    if len(seconds) < STRETCHES * FEW_STEPS:
        return UNSEEN_DRIFT
    stretches = np.array_split(seconds, STRETCHES)
    medians = np.log(np.maximum([np.median(stretch) for stretch in stretches], 1e-9))
    noise = np.mean([log_spread(stretch) ** 2 * math.pi / 2 / len(stretch) for stretch in stretches])  # of a median
    wandered = max(0.0, float(np.var(medians, ddof=1) - noise / 2))
    return math.hypot(DRIFT_FLOOR, math.sqrt(wandered * 2 * (1 + min(left / len(seconds), FAR))))


def log_spread(values: np.ndarray) -> float:
    """Return the spread of single values, from quartiles, so that a few very slow steps do not matter."""
    low, high = np.quantile(np.log(np.maximum(values, 1e-9)), (0.25, 0.75))
    return float(high - low) / 1.349  # the quartiles of a normal distribution lie 1.349 standard deviations apart
