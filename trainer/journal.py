"""Writes the log and the screen of one attempt. Needs no torch: the end of an attempt can be recorded without it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.runlog import RunLogWriter
from trainer.schema import Outcome

if TYPE_CHECKING:
    from trainer.loop import StepRecord

_SAY_EVERY_SECONDS = 5.0


class Journal:
    """Lets the first process of a run write. The other processes stay silent."""

    def __init__(self, path: Path, *, writes: bool, attempt: int, session: str, seconds: Callable[[], float]):
        """`seconds` returns how long this process has lived so far. Raises OSError."""
        self._writes, self._seconds = writes, seconds
        self.attempt, self.session, self.step = attempt, session, 0
        self._log = RunLogWriter(path) if writes else None
        self._said = 0.0

    def write(self, kind: str, **fields: Any) -> None:
        if self._log is not None:
            self._log.write(kind, **fields)

    def message(self, level: str, text: str) -> None:
        self.write("message", level=level, text=text)
        self.say(f"{level}: {text}")

    def write_step(self, record: StepRecord, steps: int) -> None:
        self.step = record.step
        self.write("step", **dataclasses.asdict(record))
        if time.monotonic() - self._said >= _SAY_EVERY_SECONDS or record.step == steps:
            self._said = time.monotonic()
            self.say(f"step {record.step}/{steps}  loss {record.loss:.4f}  {record.seconds:.3f} s")

    def final(self, outcome: Outcome, reason: str, usd_per_hour: float | None = None) -> None:
        """Write the last record."""
        fields = {"outcome": outcome.value, "reason": reason, "step": self.step, "seconds": self._seconds()}
        self.write("final", **fields, session=self.session, usd_per_hour=usd_per_hour)
        self.say(f"{outcome.value}: {reason}")

    def say(self, text: str) -> None:
        if self._writes:
            print(text, flush=True)
