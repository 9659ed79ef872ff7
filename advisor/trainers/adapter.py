"""What the advisor needs of a program that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable
    from trainer.schema import Outcome, RunConfig


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """How a run's log stands at its end. None: it does not say."""

    unix_seconds: float  # when the log was written last
    attempt: int = 0  # the newest; 0: the log does not count them
    outcome: Outcome | None = None  # of the newest attempt; None: no word of an end
    reason: str | None = None
    step: int | None = None  # the newest
    loss: float | None = None
    host: str | None = None  # where the newest attempt runs, or ran, and as which process
    pid: int | None = None
    process_started: float | None = None  # Unix seconds


class Trainer(Protocol):
    """One program that trains, started in a run folder of its own."""

    @property
    def name(self) -> str:
        """What launch records call it."""

    @property
    def log_name(self) -> str:
        """The file of the run folder that it logs to."""

    def files(self, config: RunConfig) -> Mapping[str, str]:
        """The configuration files of a planned run: name inside the run folder and text."""

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """The command line that trains what the files of `folder` say, on so many devices of one machine."""

    def read_log(self, folder: Path) -> RunTable:
        """What a run logged; raises AdvisorError when there is no log or it cannot be read."""

    def log_end(self, folder: Path) -> LogEnd | None:
        """How far a run's log goes and how it ends, at little cost; None before its first word.

        Raises AdvisorError for a damaged log.
        """

    def planned_steps(self, folder: Path) -> int:
        """How many steps a run is to do; raises AdvisorError for a damaged folder."""

    def booked_usd(self, folder: Path, usd_per_hour: float | None) -> float | None:
        """What all attempts cost so far, at little cost; None where there was none, or nobody knows a price."""

    def used_seconds(self, folder: Path) -> float:
        """What earlier attempts count against the configuration's time limit; raises AdvisorError for a damaged log."""

    def needed_seconds(self, folder: Path) -> float:
        """What an attempt must have left of its limit to do a step; 0 where no limit ended the last one."""

    def used_usd(self, folder: Path, usd_per_hour: float) -> float:
        """What earlier attempts cost, each at its own price; at the given one where that is not known."""

    def burst_worker(self, device: str) -> tuple[str, ...] | None:
        """The command of a process that answers burst requests as trainer/worker.py does; None: it has none."""
