"""What the trainer's reference kernel says of the machine's speed during a run. Pure. Log records call it `witness`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from advisor.findings.run_facts import steps_done
from advisor.readers.run_table import RunTable
from advisor.records import Plan
from advisor.store.adopted import AdoptedPlan

STEADY = 1.5  # ratio of the quartiles of the readings: beyond it no one factor corrects the median step


def reference_seconds(run: RunTable) -> float | None:
    """What the reference kernel took while the median step ran; None without readings, or where they do not agree.

    Readings are taken by the clock, steps are counted: each reading stands for the steps nearer to it than to another,
    or stretches in which the machine crawled would outvote the many steps of the others.
    """
    steps, seconds = run.facts.get("witness_steps"), run.facts.get("witness_seconds")
    if not steps or not seconds:
        return None
    readings = sorted(zip(steps, seconds, strict=True))
    at = [step for step, _ in readings]
    ends = [0, *((a + b) / 2 for a, b in pairwise(at)), max(steps_done(run) or 0, at[-1])]
    ordered = sorted((seconds, high - low) for (_, seconds), (low, high) in zip(readings, pairwise(ends), strict=True))
    low, middle, high = (_weighted(ordered, share) for share in (0.25, 0.5, 0.75))
    return middle if high <= STEADY * low else None


def drift_factor(reference: float | None, plan: Plan | AdoptedPlan | None) -> float | None:
    """By how much the machine itself made steps longer than when it was calibrated; None where that is not known."""
    if reference is None or plan is None or not plan.reference_seconds:
        return None
    return (reference / plan.reference_seconds) ** plan.drift_exponent


def _weighted(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """The value below which this share of the weights lies."""
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]
