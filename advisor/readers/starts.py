"""Finds where a log's program was started again: what it prints first, it prints at every start.

The lines before the first record are the banner (import warnings, configuration, data size). A new process has started
if half of its distinct lines, or six of them, appear again close together, apart from their digits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.readers.chunks import Lines

BANNER_LINES = 300  # first lines that are remembered
SURE = 6  # distinct banner lines whose return is enough; what launchers and installers print appears only once
LOOPED = 5  # times as often as the first lines appear again
FEWEST = 3  # distinct lines that make a banner; one or two may be the head of every epoch
MANY_STARTS = 4  # of a script that somebody tried again and again
_SHORTEST = 8  # characters, without digits and spaces, that distinguish a line from others
_DELETED = b"0123456789.,+-% \t"


def starts_in(lines: Lines, end: float) -> list[int]:
    """Return the numbers of the lines at which a program started again. Line `end` (first record or failure) ends the
    banner."""
    banner: dict[bytes, int] = {}  # distinct line → the number of its first occurrence
    seen, hits = 0, list[tuple[int, int]]()  # line, banner line that it repeats
    for line, shape in zip(lines.numbers.tolist(), lines.text.translate(None, _DELETED).split(b"\n"), strict=False):
        if shape in banner:
            hits.append((line, banner[shape]))
        elif seen < BANNER_LINES:
            seen += 1
            if len(shape) >= _SHORTEST:
                banner[shape] = line
    first = {line for line in banner.values() if line < end}
    # A line that repeats far more often than the log's first lines belongs to a loop (downloads, examples), not the
    # banner.
    times = Counter(repeated for _, repeated in hits if repeated in first)
    usual = float(np.median([times[line] for line in sorted(times)[:FEWEST]])) if times else 0.0
    first -= {line for line, count in times.items() if count > LOOPED * usual}
    if len(first) < FEWEST:
        return []
    starts: list[int] = []
    began, repeats = -np.inf, set[int]()
    for line, repeated in hits:
        if repeated not in first:
            continue
        if repeated in repeats or line > began + BANNER_LINES:  # another repetition
            began, repeats = line, set()
        repeats.add(repeated)
        if len(repeats) >= max(FEWEST, min(SURE, len(first) / 2)) and began not in starts[-1:]:
            starts.append(int(began))
    return sorted(set(starts))


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Lines of a log that belong to one run: from `first_line` up to but not including `end_line`."""

    first_line: int
    end_line: float
    phase: int | None  # the phase whose records they hold; None if the run never trained
    starts: int = 1  # processes that began in it; more than one if it was resumed


@dataclass(frozen=True, kw_only=True)
class Words:
    """Line numbers, in order, of what a log says about ends and failures."""

    decisive: Sequence[int]  # something ended or was resumed
    finished: Sequence[int] = ()  # training is over
    failed: Sequence[int] = ()  # a program failed by itself
    broken: Sequence[int] = ()  # anything ended it too early


def segments(
    phases: Sequence[tuple[int, int]],
    starts: Sequence[int],
    words: Words,
    records: np.ndarray,
) -> list[Segment]:
    """Cut a log into its runs.

    `phases` are the first and last line of each phase's records, `starts` the lines where a program began, `records`
    the lines of all records, in order. A run begins where a program starts, or after the last words of the run before
    it. A failure after the end of training is a stage of its own.
    """
    if not phases:
        again = [1, *(line for line in starts if any(one < line for one in words.decisive))]
        until = [*again[1:], float("inf")]
        return [Segment(first_line=a, end_line=b, phase=None) for a, b in zip(again, until, strict=True)]
    decisive = words.decisive
    begins = {1}
    for (_, before), (first, _) in zip(phases, phases[1:], strict=False):
        marks = [line for line in starts if before < line <= first]
        ends = [line for line in decisive if before < line < first]
        begins.add(marks[-1] if marks else max([before, *ends]) + 1)
    gaps = list(zip([0, *(last for _, last in phases)], [*(first for first, _ in phases), float("inf")], strict=True))
    outside = [
        line
        for before, after in gaps
        # otherwise what it prints in between is not a failed start
        for broken in [any(before < one < after for one in words.broken)]
        for line in starts
        if before < line < after and broken
    ]
    # a rank does not print its banner behind the first rows: where one stands there, each banner is a start
    last_rows = {line: max(before for _, before in phases if before < line) for line in outside if line > phases[0][1]}
    alone = any(not any(before < one < line for one in decisive) for line, before in last_rows.items())
    each = set(outside) if alone and len(outside) >= MANY_STARTS else set()
    # a failure after "training is over" and before the next training is a stage of its own
    over = [next((line for line in words.finished if before < line < after), None) for before, after in gaps[1:]]
    stages = {
        line + 1
        for line, (_, after) in zip(over, gaps[1:], strict=True)
        if line is not None and any(line < failed < after for failed in words.failed)
    }
    kept = [1]
    for line in sorted({*begins, *outside, *stages} - {1}):
        # several ranks each print the banner, and an evaluation repeats earlier lines, without any end in between
        if line in begins or line in each or any(kept[-1] <= one < line for one in decisive):
            kept.append(line)
    between = {int(np.searchsorted(records, line)): line for line in starts if _ended_before(line, decisive, records)}
    resumed = list(between.values())  # once, however many ranks print it
    found = []
    for first, end in zip(kept, [*kept[1:], float("inf")], strict=True):
        phase = next((at for at, (begins, _) in enumerate(phases) if first <= begins < end), None)
        inside = [line for line in resumed if phase is not None and phases[phase][0] < line <= phases[phase][1]]
        found.append(Segment(first_line=first, end_line=end, phase=phase, starts=1 + len(inside)))
    return found


def _ended_before(start: int, decisive: Sequence[int], records: np.ndarray) -> bool:
    """Return whether an end or a resumption stands between a start and the records around it."""
    at = int(np.searchsorted(records, start))
    before, after = (records[at - 1] if at else 0), (records[at] if at < len(records) else np.inf)
    return any(before < line < after for line in decisive)
