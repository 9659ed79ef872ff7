"""Logs whose rows are nothing but a number or two: `0.92` below `Epoch 74/75 Losses`, `21.69 0.2138` line by line.

No name says what they are, so that they are read only where most lines are such rows and they come down as a loss does
below words of a training or behind time stamps, or where a line above them speaks of losses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.readers.line_format import Found, LearntRule
from advisor.readers.slots import unstamped

FEWEST = 20  # rows
_MOST_LINES = 0.6  # of those that are not empty
_FALLEN = 0.8  # of the first fifth's mean
_GOES_ON = 0.95  # of a counter's moves
_LARGEST = 1e4  # of a loss
_ROW = re.compile(
    rb"^[ \t]*(?:(?P<count>\d{1,12}(?:\.\d{1,20})?)[ \t,;]{1,8})?"
    rb"(?P<loss>\d{1,9}\.\d{1,20}(?:[eE][-+]?\d{1,3})?|nan|inf)"
    rb"(?P<more>(?:[ \t,;]{1,8}[-+]?\d{1,12}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?){0,6})[ \t,;\r]*$"
)
_OF_A_RUN = re.compile(rb"(?i)train|epoch|gpu|learn|optim|\bmodel")
_SPEAKS = re.compile(rb"(?im)^.{0,60}\bloss(?:es)?\b.{0,20}$")


@dataclass(frozen=True, kw_only=True)
class BareRow(LearntRule):
    """A row of a loss alone, or behind what counts: `counter` is the column of the first number, "" without one."""

    counter: str = ""
    stamped: bool = False  # behind a date and time, where more numbers may follow

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Where the numbers stand; None for any other line."""
        match = _ROW.match(unstamped(line))
        if match is None or (match["count"] is None) == bool(self.counter) or bool(match["more"]) > self.stamped:
            return None
        out = [Found(target="loss", start=match.start("loss"), end=match.end("loss"))]
        if self.counter:
            out.append(Found(target=self.counter, start=match.start("count"), end=match.end("count")))
        return out, match.end("loss")


def bare_rows(head: bytes) -> tuple[BareRow, int] | None:
    """The rule of such rows in a sample, and how many there are; None where it has none that are surely losses."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    stamped = sum(unstamped(line) is not line for line in lines) >= _MOST_LINES * len(lines)
    found = [match for line in lines if len(line) < 120 and (match := _ROW.match(unstamped(line))) is not None]
    found = [match for match in found if stamped or not match["more"]]
    alone = [match for match in found if match["count"] is None]
    behind = [match for match in found if match["count"] is not None]
    rows = alone if len(alone) > len(behind) else behind
    if len(rows) < FEWEST or len(rows) < _MOST_LINES * len(lines):
        return None
    losses = np.array([float(match["loss"]) for match in rows])
    told = _SPEAKS.search(head) is not None
    beside = b"\n".join(line for line in lines if _ROW.match(line) is None)
    if not np.nanmax(losses, initial=0.0) < _LARGEST or not (
        told or (_falls(losses) and (stamped or _OF_A_RUN.search(beside)))
    ):
        return None
    if rows is alone:
        return (BareRow(), len(rows)) if told else None
    counts = [match["count"] for match in rows]
    if not _rises([float(count) for count in counts]):
        return None
    counter = "epoch" if any(b"." in count for count in counts) else "step"
    return BareRow(counter=counter, stamped=stamped), len(rows)


def _falls(losses: np.ndarray) -> bool:
    fifth = max(1, len(losses) // 5)
    return bool(np.nanmean(losses[-fifth:]) < _FALLEN * np.nanmean(losses[:fifth]))


def _rises(values: Sequence[float]) -> bool:
    moves = np.diff(values)
    return bool(np.mean(moves > 0) >= _GOES_ON)
