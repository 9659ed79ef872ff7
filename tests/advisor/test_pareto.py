"""Pareto fronts against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from advisor.planning.evaluate import best_by_group, non_dominated, spread_out

values = st.integers(0, 6)
points = st.lists(st.tuples(values, values, values), max_size=60)


def dominates(a, b) -> bool:
    return all(x <= y for x, y in zip(a, b, strict=True)) and any(x < y for x, y in zip(a, b, strict=True))


@given(points)
def test_the_front_is_what_brute_force_finds(rows):
    expected = [
        i for i, row in enumerate(rows) if row not in rows[:i] and not any(dominates(other, row) for other in rows)
    ]
    assert non_dominated(np.array(rows, dtype=float).reshape(-1, 3)).tolist() == expected


def test_a_long_front_is_found_whole():
    """A quarter circle: no point beats another, and as many again that all are beaten; more than one block of rows."""
    angle = np.linspace(0.01, 1.56, 5000)
    circle = np.stack([1 - np.cos(angle), 1 - np.sin(angle), np.ones(5000)], axis=1)
    both = np.concatenate([circle + 0.001, circle])
    assert non_dominated(both).tolist() == list(range(5000, 10_000))


@given(st.lists(st.tuples(st.integers(0, 3), values, values), max_size=60))
def test_fronts_of_groups(rows):
    table = np.array(rows, dtype=float).reshape(-1, 3)
    found = {rows[i] for i in best_by_group(*table.T)}
    expected = {row for row in rows if not any(other[0] == row[0] and dominates(other[1:], row[1:]) for other in rows)}
    assert found == expected


@example([1.0, 0.0010000000000000002, 0.001], 2)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=200), st.integers(2, 20))
def test_a_selection_keeps_both_ends(numbers, count):
    chosen = np.array(numbers)[spread_out(np.array(numbers), count)]
    assert len(chosen) <= max(count, 1) or len(numbers) <= count
    assert chosen.min() == min(numbers) and chosen.max() == max(numbers)
