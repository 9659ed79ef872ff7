"""Robust statistics of series with spikes, gaps and warm-up. NaN means that nothing was recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

NORMAL_MAD = 0.6745  # MAD / standard deviation of a normal distribution
_Z95 = 1.959963984540054
_MOST_POINTS = 300  # all pairs of 300 block medians are 45,000 slopes
_CHUNK = 16_384  # rows of a sliding window held at once
_STEADY_STEPS = 5  # consecutive, within a tenth of the running median (sources §7.3)
_STEADY_TOLERANCES = (0.10, 0.20, 0.40)
_STEADY_WINDOW = 25  # steps on each side
_STEADY_LATEST = 20  # a later start than this and than a tenth of the run is due to noise, not to warm-up
_DROPPED_STEPS = 10  # as nanochat drops them if there is no better answer


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A straight line through most points: slope per unit of x with its 95 % interval."""

    slope: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Period:
    """Events that recur every `every` units; `regular` is the share of gaps that are this or a multiple of it."""

    every: float
    regular: float


def finite(values: np.ndarray) -> np.ndarray:
    """Return the recorded values, in order."""
    return values[np.isfinite(values)]


def median(values: np.ndarray) -> float:
    """Return the median of the recorded values, or NaN without values."""
    kept = finite(values)
    return float(np.median(kept)) if len(kept) else math.nan


def mad(values: np.ndarray) -> float:
    """Return the median absolute deviation from the median, not scaled, or NaN without values."""
    kept = finite(values)
    return float(np.median(np.abs(kept - np.median(kept)))) if len(kept) else math.nan


_WIDE = 50  # neighbours on each side; above this, sorting every window takes longer than keeping them sorted


def rolling_median(values: np.ndarray, window: int) -> np.ndarray:
    """Return the median of `window` neighbours (made odd, centred, cut off at both ends); NaN do not count."""
    half = max(0, window // 2)
    if not len(values) or not half:
        return values.astype(float)
    if half > _WIDE:
        import pandas as pd  # slow to import; its moving median does not sort each window anew

        finite_values = pd.Series(np.where(np.isfinite(values), values, np.nan), dtype=float)
        return finite_values.rolling(2 * half + 1, center=True, min_periods=1).median().to_numpy()
    padded = np.concatenate([np.full(half, np.nan), values.astype(float), np.full(half, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    out = np.empty(len(values))
    for start in range(0, len(windows), _CHUNK):
        # nanmedian along rows, without its warning for empty rows and about twenty times as fast
        ordered = np.sort(windows[start : start + _CHUNK], axis=1)  # NaN last
        count, first = np.isfinite(ordered).sum(axis=1), np.arange(len(ordered))
        low, high = np.maximum((count - 1) // 2, 0), np.minimum(count // 2, ordered.shape[1] - 1)
        middle = (ordered[first, low] + ordered[first, high]) / 2
        out[start : start + _CHUNK] = np.where(count > 0, middle, np.nan)
    return out


def steady_start(seconds: np.ndarray) -> int:
    """Return the index of the first step after compilation and warm-up (sources §7.3).

    It is the first of five consecutive steps within 10 % of the running median. Noisy machines get 20 and 40 %. If even
    that comes late or never, the first ten steps (a tenth of short runs) count as warm-up. NaN are skipped.
    """
    places = np.flatnonzero(np.isfinite(seconds))
    kept = seconds[places]
    if len(kept) < _STEADY_STEPS:
        return int(places[0]) if len(places) else 0
    off = np.abs(kept / np.maximum(rolling_median(kept, 2 * _STEADY_WINDOW + 1), 1e-300) - 1)
    latest = max(_STEADY_LATEST, len(kept) // 10)
    for tolerance in _STEADY_TOLERANCES:
        calm = np.convolve(off <= tolerance, np.ones(_STEADY_STEPS, dtype=int), mode="valid") == _STEADY_STEPS
        if calm.any() and (first := int(np.argmax(calm))) <= latest:
            return int(places[first])
    return int(places[min(_DROPPED_STEPS, len(kept) // 10)])


def theil_sen(x: np.ndarray, y: np.ndarray) -> Trend | None:
    """Return the median slope of all pairs of points, with Sen's (1968) 95 % interval; None for fewer than 5 points.

    More than 300 points are first thinned to medians of blocks. If errors of neighbouring points are correlated, the
    interval is too narrow, so judge by the slope's size as well.
    """
    good = np.isfinite(x) & np.isfinite(y)
    x, y = _block_medians(x[good]), _block_medians(y[good])
    n = len(x)
    if n < 5:
        return None
    first, second = np.triu_indices(n, 1)
    run = x[second] - x[first]
    slopes = np.sort((y[second] - y[first])[run != 0] / run[run != 0])
    if not len(slopes):
        return None
    reach = _Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((len(slopes) - reach) / 2))
    high = min(len(slopes) - 1, round((len(slopes) + reach) / 2))
    return Trend(slope=float(np.median(slopes)), low=float(slopes[low]), high=float(slopes[high]))


def _block_medians(values: np.ndarray) -> np.ndarray:
    if len(values) <= _MOST_POINTS:
        return values
    return np.array([np.median(block) for block in np.array_split(values, _MOST_POINTS)])


def period_of(positions: np.ndarray, *, tolerance: float = 1.0) -> Period | None:
    """Return how often events at these positions recur, or None for fewer than three gaps or no common gap.

    A gap fits if it is one to four times the most common gap (events may be missed), within `tolerance` or 2 %.
    """
    gaps = np.diff(np.sort(positions.astype(float)))
    gaps = gaps[gaps > 0]
    if len(gaps) < 3:
        return None
    every = float(np.median(gaps))
    times = np.clip(np.round(gaps / every), 1, 4)
    fits = np.abs(gaps - times * every) <= np.maximum(tolerance, 0.02 * every)
    regular = float(fits.mean())
    return Period(every=every, regular=regular) if regular >= 0.6 else None


def stretches(mask: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and last index (inclusive) of every stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask.astype(bool), [False]]).astype(int)))
    return [(int(first), int(after) - 1) for first, after in zip(edges[::2], edges[1::2], strict=True)]
