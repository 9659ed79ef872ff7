"""What the trainer's reference kernel says of the machine's speed during a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from trainer.runlog import RunLog

STEADY = 1.5  # ratio of the quartiles of the readings: beyond it no one factor corrects the median step


def witness_seconds(log: RunLog) -> float | None:
    """What the witness kernel took while the median step ran; None without readings, or where they do not agree.

    Readings are taken by the clock, steps are counted: each reading stands for the steps nearer to it than to another,
    or stretches in which the machine crawled would outvote the many steps of the others.
    """
    readings = sorted((record["step"], record["reference_seconds"]) for record in log.witnesses)
    if not readings:
        return None
    at = [step for step, _ in readings]
    ends = [0, *((a + b) / 2 for a, b in pairwise(at)), max(len(log.steps), at[-1])]
    ordered = sorted((seconds, high - low) for (_, seconds), (low, high) in zip(readings, pairwise(ends), strict=True))
    low, middle, high = (_weighted(ordered, share) for share in (0.25, 0.5, 0.75))
    return middle if high <= STEADY * low else None


def _weighted(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which this share of the weights lies."""
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]
