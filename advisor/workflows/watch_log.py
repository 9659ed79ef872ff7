"""Follows another program's log while it is written: its progress, and its speed as watched."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advisor.readers.read import read_run
from advisor.readers.run_table import Status

_ENDS = frozenset(Status) - {Status.INCOMPLETE, Status.UNKNOWN}
_GOOD = frozenset((Status.COMPLETED, Status.STOPPED))
_SHARE = 0.1  # of the time that may go into reading
_LEAST_SECONDS = 2.0  # between two looks


@dataclass(frozen=True, kw_only=True)
class LogLook:
    """The state of a log at one look. None: not in the log."""

    path: Path
    status: Status
    reason: str
    step: float | None  # its newest; epochs where it prints no step
    counts: str  # step | epoch
    planned: float | None  # of the same
    loss: float | None  # the newest
    quiet_seconds: float  # since it was last written to
    seconds_per_step: float | None = None  # by the clock, between the first look and this one
    reading_seconds: float = 0.0

    @property
    def over(self) -> bool:
        """Whether the log itself says that it ended."""
        return self.status in _ENDS

    @property
    def good(self) -> bool:
        """Whether it seems to continue, or ended as planned."""
        return not self.over or self.status in _GOOD

    @property
    def left_seconds(self) -> float | None:
        """Seconds to the planned end at the watched speed."""
        if self.over or None in (self.seconds_per_step, self.planned, self.step):
            return None
        assert self.seconds_per_step is not None and self.planned is not None and self.step is not None
        return max(0.0, self.planned - self.step) * self.seconds_per_step


def look(path: Path, *, clock: Callable[[], float] = time.time) -> LogLook:
    """Read a log as it is now; AdvisorError where nothing in it is recognisable."""
    began = time.monotonic()
    table = read_run(path)
    counts = "step" if table.counts_steps else "epoch"
    epochs = table.column("epoch") if counts == "epoch" and table.rows else None
    known = None if epochs is None else epochs[epochs == epochs]
    step = table.last_step if known is None or not len(known) else float(known[-1])
    return LogLook(
        path=path,
        status=table.status,
        reason=table.status_reason,
        step=step,
        counts=counts,
        planned=table.facts.get(f"planned_{counts}s"),
        loss=table.last_loss,
        quiet_seconds=max(0.0, clock() - os.stat(path).st_mtime),
        reading_seconds=time.monotonic() - began,
    )


class Follower:
    """Reads one log repeatedly and measures its speed from the growth between two looks."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time):
        self._path, self._clock = path, clock
        self._first: tuple[float, float] | None = None  # step and time of the first look that had a step
        self._rate: float | None = None

    def look(self) -> LogLook:
        """The log as it is now, with the speed seen so far."""
        self._size = os.stat(self._path).st_size  # before it is read: what comes meanwhile is seen by the next look
        now = look(self._path, clock=self._clock)
        written = self._clock() - now.quiet_seconds
        if now.step is not None:
            if self._first is None or now.step < self._first[0]:  # it has begun again
                self._first, self._rate = (now.step, written), None
            elif now.step > self._first[0] and written > self._first[1]:
                self._rate = (written - self._first[1]) / (now.step - self._first[0])
        return LogLook(**{**vars(now), "seconds_per_step": self._rate})

    def wait(self, before: LogLook) -> None:
        """Until the log has grown, or changed, and reading it takes a small part of the time."""
        time.sleep(max(_LEAST_SECONDS, before.reading_seconds / _SHARE))
        while os.stat(self._path).st_size == self._size:
            time.sleep(_LEAST_SECONDS)
