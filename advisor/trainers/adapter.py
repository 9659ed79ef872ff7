"""What the advisor needs of a program that trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable
    from trainer.schema import RunConfig


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

    def used_seconds(self, folder: Path) -> float:
        """What earlier attempts count against the configuration's time limit; raises AdvisorError for a damaged log."""

    def burst_worker(self, device: str) -> tuple[str, ...] | None:
        """The command of a process that answers burst requests as trainer/worker.py does; None: it has none."""
