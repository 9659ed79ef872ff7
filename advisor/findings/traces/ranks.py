"""Tells from several ranks' traces which rank the others wait for. Only durations count, so clocks may differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.findings.traces.step_parts import StepParts


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """How the ranks arrive at their collectives. The rank that waits least is the one that comes last."""

    collectives: int  # that every rank has, without the first
    waits_seconds: dict[int, float]  # of each rank, over the shortest duration in each collective
    late: int  # the rank that comes last to most collectives
    last_in: int  # of the collectives, those to which it comes last
    share: float  # of the window, that a typical other rank waits
    transfer_seconds: float  # the sum of the shortest durations


def arrival(ranks: Sequence[StepParts]) -> Arrival | None:
    """Compare the i-th collective of each kind over all ranks. Returns None if they share fewer than two."""
    durations = [_durations(parts) for parts in ranks]
    common = [key for key in durations[0] if all(key in other for other in durations)] if len(ranks) > 1 else []
    # The profiler starts at different moments on the ranks, which shows as waiting in the first collective.
    common = sorted(common, key=lambda key: durations[0][key][0])[1:]
    if len(common) < 2:
        return None
    seconds = np.array([[of_rank[key][1] for key in common] for of_rank in durations])
    shortest = seconds.min(axis=0)
    waits = (seconds - shortest).sum(axis=1)
    last = np.bincount(seconds.argmin(axis=0), minlength=len(ranks))
    late = int(np.lexsort((waits, -last))[0])
    shares = [wait / parts.span_seconds for wait, parts in zip(waits, ranks, strict=True) if parts.span_seconds]
    numbers = [number if parts.timeline.rank is None else parts.timeline.rank for number, parts in enumerate(ranks)]
    return Arrival(
        collectives=len(common),
        waits_seconds={number: float(wait) for number, wait in zip(numbers, waits, strict=True)},
        late=numbers[late],
        last_in=int(last[late]),
        share=float(np.median([share for place, share in enumerate(shares) if place != late])),
        transfer_seconds=float(shortest.sum()),
    )


def _durations(parts: StepParts) -> dict[tuple[object, ...], tuple[float, float]]:
    """Return start and duration of each collective by its group, kind, size, and its number among those alike."""
    timeline, counts = parts.timeline, Counter[tuple[object, ...]]()
    found: dict[tuple[object, ...], tuple[float, float]] = {}
    rows = np.flatnonzero(parts.communication)
    for row in rows[np.argsort(timeline.device.start[rows], kind="stable")]:
        message = timeline.messages[timeline.message[row]] if timeline.message[row] >= 0 else None
        kind = timeline.names[timeline.device.name[row]]
        key = (kind,) if message is None else (message.group, message.collective, message.elements_in)
        counts[key] += 1
        found[*key, counts[key]] = float(timeline.device.start[row]), float(timeline.device.seconds[row])
    return found
