"""The interface of a trainer for the advisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable
    from trainer.budget import Spent
    from trainer.schema import Outcome, RunConfig


@dataclass(frozen=True, kw_only=True)
class LogEnd:
    """The latest state in a run's log; None marks what the log does not contain."""

    unix_seconds: float  # time of the last record
    attempt: int = 0  # number of the latest attempt; 0 if the log does not count attempts
    outcome: Outcome | None = None  # of the latest attempt; None if the log has no end
    reason: str | None = None
    step: int | None = None  # last step
    loss: float | None = None  # of training: `trainer.runlog.loss_so_far`
    host: str | None = None  # machine and process of the latest attempt
    pid: int | None = None
    process_started: float | None = None  # Unix seconds


class Trainer(Protocol):
    """A training program that runs in a run folder."""

    @property
    def name(self) -> str:
        """The name of the trainer in launch records."""

    @property
    def log_name(self) -> str:
        """The name of the log file in the run folder."""

    @property
    def plan_field(self) -> str:
        """A field that only this trainer's plans have."""

    def files(self, config: RunConfig) -> Mapping[str, str]:
        """Return the configuration files of a planned run: name in the run folder and text."""

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """Return the command line that trains with the files of `folder`, on `gpus` devices of one machine."""

    def python(self, folder: Path) -> str:
        """Return the Python that a run was trained with."""

    def read_log(self, folder: Path) -> RunTable:
        """Read the log of a run. Raises AdvisorError if there is no readable log."""

    def log_end(self, folder: Path) -> LogEnd | None:
        """Read only the end of a run's log; None if it has no records. Raises AdvisorError for a damaged log."""

    def planned_steps(self, folder: Path) -> int:
        """Return the planned number of steps. Raises AdvisorError for a damaged folder."""

    def booked(self, folder: Path) -> Spent:
        """Return the time and dollars that all attempts have used so far, without reading a long log."""

    def spent(self, folder: Path) -> Spent:
        """Return what all attempts count towards the limits of a resumed run. Raises AdvisorError for a damaged log."""

    def burst_worker(self, device: str) -> tuple[str, ...] | None:
        """Return the command of a process that runs bursts like trainer/worker.py; None if there is none."""
