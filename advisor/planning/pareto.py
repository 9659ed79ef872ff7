"""Find Pareto fronts: the rows of a table that no other row beats in every column."""

from __future__ import annotations

import numpy as np

_AT_ONCE = 256  # rows compared in one block; its memory grows with the square


def non_dominated(points: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto front of `points`, shape (n, k), ascending; lower is better in each column.

    A row is left out if another is at least as good in every column and better in one, or if it repeats an earlier row.
    """
    if not len(points):
        return np.zeros(0, dtype=int)
    order = np.lexsort((np.arange(len(points)), *points.T[::-1]))  # no row can beat an earlier one
    kept = np.zeros(0, dtype=int)
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        if len(kept):
            some = some[~beaten(points[some], points[kept]).any(axis=1)]
        # Within the block only earlier rows can beat a row. It does not matter whether they are beaten themselves.
        among = np.triu(beaten(points[some], points[some]).T, 1).any(axis=0)
        kept = np.concatenate([kept, some[~among]])
    return np.sort(kept)


def best_by_group(group: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the indices of the Pareto front of (first, second) within each group; all arrays have shape (n,)."""
    order = np.lexsort((second, first, group))
    rank = np.cumsum(np.diff(group[order], prepend=group[order[:1]]) != 0)
    # One running minimum serves all groups, because each group is shifted below all earlier ones. Equal values share
    # one rank.
    scaled = np.unique(second[order], return_inverse=True)[1].astype(float)
    least = np.minimum.accumulate(scaled - rank * (len(order) + 1))
    before = np.concatenate([[np.inf], least[:-1]])
    return order[(scaled - rank * (len(order) + 1)) < before]


def spread_out(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of at most `count` values, with both ends, spread evenly by their logarithms."""
    if len(values) <= count:
        return np.arange(len(values))
    logs = np.log(np.maximum(values, 1e-12))
    wanted = np.linspace(logs.min(), logs.max(), count)[1:-1]
    between = np.abs(logs[:, None] - wanted).argmin(axis=0)
    return np.array(sorted({int(values.argmin()), int(values.argmax()), *between.tolist()}))


def beaten(points: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return, in shape (n, m), whether the m-th row of `by` is at least as good as the n-th point in every column."""
    return np.logical_and.reduce([mine[None] <= own[:, None] for mine, own in zip(by.T, points.T, strict=True)])
