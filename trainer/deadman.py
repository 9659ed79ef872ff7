"""The dead-man rule: a process in which nothing happens for far longer than it should is ended. No torch.

A collective whose partner has died, or a file system that went away, never returns and cannot be asked: a thread
says in the log what was being done, prints every thread's stack, and ends the process.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable

from trainer.schema import StopConfig

HUNG = "hung"  # how the reason of such an end begins
UNKNOWN_ROOM = 6.0  # times the least seconds: for what nobody has measured yet, as starting, compiling and restoring
_BACKSTOP_SHARE, _BACKSTOP_SECONDS = 1.5, 30.0  # later than the rule: for a hang that holds the interpreter's lock


class DeadMan:
    """What the loop is doing, and until when that may take."""

    def __init__(self, stop: StopConfig, clock: Callable[[], float] = time.monotonic):
        self._factor, self._least, self._clock = stop.hang_factor, stop.hang_seconds, clock
        self._doing, self._since, self._limit = "starting", clock(), UNKNOWN_ROOM * stop.hang_seconds
        self._rearm_at = 0.0

    def doing(self, what: str, expected_seconds: float | None) -> None:
        """The loop begins with `what`; None: nobody knows how long it takes."""
        if self._factor is None:
            return
        if expected_seconds is None:
            self._limit = UNKNOWN_ROOM * self._least
        else:
            self._limit = max(self._least, self._factor * expected_seconds)
        self._doing, self._since = what, self._clock()

    def verdict(self) -> str | None:
        """That it hangs, in words; None: it need not be looked at yet. Arms the backstop on the way."""
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
        """The loop is over."""
        if self._factor is not None:
            self._factor = None
            faulthandler.cancel_dump_traceback_later()

    def _arm(self, seconds: float) -> None:
        """Python's own timer needs no interpreter lock: it ends the process where our thread cannot run any more."""
        if self._clock() < self._rearm_at:
            return
        self._rearm_at = self._clock() + _BACKSTOP_SECONDS / 4
        faulthandler.dump_traceback_later(
            _BACKSTOP_SHARE * seconds + _BACKSTOP_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr
        )
