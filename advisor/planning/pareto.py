"""What is worth looking at among very many: the runs that no other beats in every respect. Pure."""

from __future__ import annotations

import numpy as np

_AT_ONCE = 2048


def non_dominated(points: np.ndarray) -> np.ndarray:
    """Places of the Pareto front of `points`, shape (n, k), lower better in each column; of equal rows the first.

    A row is left out when another is at least as good in every column and better in one. Ascending places.
    """
    if not len(points):
        return np.zeros(0, dtype=int)
    order = np.lexsort((np.arange(len(points)), *points.T[::-1]))  # who comes later cannot dominate who came before
    kept = np.zeros(0, dtype=int)
    for start in range(0, len(order), _AT_ONCE):
        some = order[start : start + _AT_ONCE]
        if len(kept):
            some = some[~_beaten(points[some], points[kept]).any(axis=1)]
        # within the block only earlier rows can beat; a row beaten by a beaten one is beaten by its beater too
        among = np.triu(_beaten(points[some], points[some]).T, 1).any(axis=0)
        kept = np.concatenate([kept, some[~among]])
    return np.sort(kept)


def best_by_group(group: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Places of the Pareto front of (first, second) inside each group, lower better; all shapes (n,)."""
    order = np.lexsort((second, first, group))
    rank = np.cumsum(np.diff(group[order], prepend=group[order[:1]]) != 0)
    # one accumulation for all groups: each starts above everything that came before it
    # Equal values share one rank.
    scaled = np.unique(second[order], return_inverse=True)[1].astype(float)
    least = np.minimum.accumulate(scaled - rank * (len(order) + 1))
    before = np.concatenate([[np.inf], least[:-1]])
    return order[(scaled - rank * (len(order) + 1)) < before]


def spread_out(values: np.ndarray, count: int) -> np.ndarray:
    """Places of at most `count` values, ends included, as even in their logarithm as the values allow."""
    if len(values) <= count:
        return np.arange(len(values))
    logs = np.log(np.maximum(values, 1e-12))
    wanted = np.linspace(logs.min(), logs.max(), count)[1:-1]
    between = np.abs(logs[:, None] - wanted).argmin(axis=0)
    return np.unique(np.concatenate([[values.argmin(), values.argmax()], between]).astype(int))


def _beaten(points: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Bool (n, m): the m-th of `by` is no worse than the n-th point in any column."""
    beaten = np.ones((len(points), len(by)), dtype=bool)
    for column in range(points.shape[1]):
        beaten &= by[None, :, column] <= points[:, None, column]
    return beaten
