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


def overlaps(intervals: Floats, others: Floats) -> Floats:
    """Return for each interval how much of it the others cover."""
    # What is covered until a moment grows inside the others, and is constant between them.
    edges = others.ravel() if len(others) else np.zeros(1)
    covered = np.r_[0.0, np.repeat(np.cumsum(others[:, 1] - others[:, 0]), 2)][: len(edges)]
    until = np.interp(intervals, edges, covered)
    return until[:, 1] - until[:, 0]


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


def inside(intervals: Floats, moments: Floats) -> npt.NDArray[np.int64]:
    """Return the number of the interval in which each moment lies, or -1."""
    if not len(intervals):
        return np.full(len(moments), -1)
    place = np.searchsorted(intervals[:, 0], moments, side="right") - 1
    return np.where((place >= 0) & (moments < intervals[place, 1]), place, -1)
