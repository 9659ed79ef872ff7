"""Runs by name against their predictions, and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.outcome import Reviewed, review, side_by_side_of
from advisor.side_by_side import Point
from advisor.store import Store


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Runs in the order they were asked for; `points` is empty for one alone."""

    runs: tuple[Reviewed, ...]
    points: tuple[Point, ...]


def compare(store: Store, names: Sequence[str], *, record: bool) -> Compared:
    """Compare runs (folders, names, unique beginnings of them, or `latest`); with `record` keep scores of those over.

    Raises AdvisorError when a run cannot be found or compared.
    """
    runs = tuple(review(store, name, record=record) for name in names)
    return Compared(runs=runs, points=tuple(side_by_side_of(runs)))
