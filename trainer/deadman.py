"""Ends a process in which nothing has happened for far longer than it should. Needs no torch.

A collective whose partner has died, or a file system that disappeared, never returns and cannot be asked. So a thread
logs what was in progress, prints every thread's stack, and ends the process.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable

from trainer.schema import StopConfig

HUNG = "hung"  # prefix of the reason for this kind of end
UNKNOWN_ROOM = 6.0  # times the least seconds, for work not timed yet, such as starting, compiling and restoring
_BACKSTOP_SHARE, _BACKSTOP_SECONDS = 1.5, 30.0  # later than the thread, for a hang that holds the interpreter's lock


class DeadMan:
    """What the loop is doing, and how long it may take."""

    def __init__(self, stop: StopConfig, clock: Callable[[], float] = time.monotonic):
        self._factor, self._least, self._clock = stop.hang_factor, stop.hang_seconds, clock
        self._doing, self._since, self._limit = "starting", clock(), UNKNOWN_ROOM * stop.hang_seconds
        self._rearm_at = 0.0

    def doing(self, what: str, expected_seconds: float | None) -> None:
        """Record that the loop begins `what`. None means that its duration is unknown."""
        if self._factor is None:
            return
        if expected_seconds is None:
            self._limit = UNKNOWN_ROOM * self._least
        else:
            self._limit = max(self._least, self._factor * expected_seconds)
        self._doing, self._since = what, self._clock()

    def verdict(self) -> str | None:
        """Say that the loop hangs. Returns None if it may still be working. Also arms the backstop."""
        if self._factor is None:
            return None
        seconds, limit = self._clock() - self._since, self._limit
        self._arm(max(0.0, limit - seconds))
        return (
            f"{HUNG}: {self._doing} has taken {seconds:.0f} s, {limit:.0f} s at most were due"
            if seconds > limit
            else None
        )

    def disarm(self) -> None:
        """Record that the loop is over."""
        if self._factor is not None:
            self._factor = None
            faulthandler.cancel_dump_traceback_later()

    def _arm(self, seconds: float) -> None:
        """Arm Python's own timer. It needs no interpreter lock, and ends the process if our thread cannot run."""
        if self._clock() < self._rearm_at:
            return
        self._rearm_at = self._clock() + _BACKSTOP_SECONDS / 4
        faulthandler.dump_traceback_later(
            _BACKSTOP_SHARE * seconds + _BACKSTOP_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr
        )
