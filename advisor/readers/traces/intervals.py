"""Arithmetic on sets of time intervals: an array of rows (start, end), sorted and disjoint."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def union(start: Floats, end: Floats) -> Floats:
    """Return the intervals that at least one event covers."""
    if not len(start):
        return np.empty((0, 2))
    # Names are used again, so that of millions of events few copies exist at a time.
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    del order
    np.maximum.accumulate(end, out=end)
    opens = np.r_[True, start[1:] > end[:-1]]
    found = np.empty((int(opens.sum()), 2))
    found[:, 0], found[:, 1] = start[opens], end[np.r_[opens[1:], True]]
    return found


def length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def covered_until(intervals: Floats, moments: Floats) -> Floats:
    """Return how much of the time before each moment the intervals cover."""
    if not len(intervals):
        return np.zeros(len(moments))
    before = np.r_[0.0, np.cumsum(intervals[:, 1] - intervals[:, 0])]
    place = np.searchsorted(intervals[:, 0], moments, side="right") - 1
    inside = np.minimum(moments, intervals[place, 1]) - intervals[place, 0]
    return np.where(place >= 0, before[np.maximum(place, 0)] + inside, 0.0)


def overlaps(intervals: Floats, others: Floats) -> Floats:
    """Return for each interval how much of it the others cover."""
    return covered_until(others, intervals[:, 1]) - covered_until(others, intervals[:, 0])


def minus(intervals: Floats, others: Floats) -> Floats:
    """Return what the first set covers and the second does not."""
    gaps = np.column_stack((np.r_[-np.inf, others[:, 1]], np.r_[others[:, 0], np.inf]))
    return intersect(intervals, gaps)


def intersect(intervals: Floats, others: Floats) -> Floats:
    """Return what both sets cover."""
    first = np.searchsorted(others[:, 1], intervals[:, 0], side="right")
    last = np.searchsorted(others[:, 0], intervals[:, 1], side="left")
    counts = np.maximum(last - first, 0)
    mine = np.repeat(np.arange(len(intervals)), counts)
    theirs = np.repeat(first - np.r_[0, np.cumsum(counts)[:-1]], counts) + np.arange(counts.sum())
    start = np.maximum(intervals[mine, 0], others[theirs, 0])
    end = np.minimum(intervals[mine, 1], others[theirs, 1])
    return np.column_stack((start, end))[end > start]


def gaps(intervals: Floats) -> Floats:
    """Return the intervals between consecutive ones."""
    return np.column_stack((intervals[:-1, 1], intervals[1:, 0]))


def inside(intervals: Floats, moments: Floats) -> npt.NDArray[np.int64]:
    """Return the number of the interval in which each moment lies, or -1."""
    if not len(intervals):
        return np.full(len(moments), -1)
    place = np.searchsorted(intervals[:, 0], moments, side="right") - 1
    return np.where((place >= 0) & (moments < intervals[place, 1]), place, -1)
