"""What every place that runs can be started in promises, and how a started run is named: a handle, `engine://id`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from advisor.engines.guards import refuse_without_data
from advisor.engines.state import RunStatus
from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.run_records import LaunchRecord
from advisor.store.adopted import AdoptedPlan
from advisor.trainers.adapter import Trainer
from trainer.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt at a run, for any backend: which trainer, in which folder, with which files and limits."""

    folder: Path
    trainer: Trainer
    config: RunConfig | None  # with its limits; None: of an adopted command, whose plan says everything
    plan: Plan | AdoptedPlan | None  # None: it came from a bare configuration
    files: Mapping[str, str]  # name inside the folder → text
    record: LaunchRecord  # without command, handle and process: those are the backend's

    def __post_init__(self) -> None:
        if self.config is not None:
            refuse_without_data(self.config.data)

    @property
    def cards(self) -> int:
        """How many cards of one machine it is to have by itself."""
        on_cpu = self.record.device_key == "cpu" if self.config is None else self.config.device == "cpu"
        return 0 if on_cpu else self.record.gpus


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """A calibration of one place elsewhere, for any backend of one."""

    folder: Path
    gpu: str  # the card that is expected there; "auto": whatever is
    asked: str  # what `workflows/calibrate_there` reads
    seconds: float  # that it may take
    record: LaunchRecord  # without command and handle


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What a backend would do: enough for a person to read it, and to do it by hand."""

    folder: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]  # set beside what the process inherits
    files: Mapping[str, str]  # name inside the folder → text, written before the command starts
    record: LaunchRecord
    copies: Mapping[str, Path] = field(default_factory=dict)  # name inside the folder → folder here, copied as it is
    cards: int = 0  # of this machine, which it is to have by itself
    inside: str = "."  # where in the folder the command starts

    @property
    def script(self) -> str:
        """The same as shell commands: the folder, its files and the command, which then runs in the foreground."""
        folder = shlex.quote(str(self.folder))
        within = "" if self.inside == "." else f"/{shlex.quote(self.inside)}"
        lines = [f"mkdir -p {folder}{within} && cd {folder}"]
        lines += [shlex.join(["cp", "-R", str(here), name]) for name, here in self.copies.items()]
        for name, text in self.files.items():
            lines += [f"cat > {shlex.quote(name)} <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        words = " ".join([*variables, shlex.join(self.command)])
        return "\n".join([*lines, *([f"cd {shlex.quote(self.inside)}"] if within else []), words])


class Backend(Protocol):
    """One place where runs are started, looked at and ended."""

    @property
    def engine(self) -> str:
        """The first half of its handles."""

    def dryrun(self, job: Job) -> LaunchRequest:
        """What `submit` would start; nothing is started or written. Raises AdvisorError for a job it cannot take."""

    def offer(self, request: LaunchRequest) -> list[str]:
        """What the place says of a request before it is submitted, in words: when it would start, on what.

        Raises AdvisorError when it would not take it.
        """

    def submit(self, request: LaunchRequest) -> str:
        """Write the files and the launch record, start the run so that it outlives its starter, and give its handle."""

    def describe(self, run_dir: Path) -> RunStatus:
        """How the run of a folder stands; raises AdvisorError when the folder holds no run."""

    def logs(self, run_dir: Path) -> str:
        """Everything the run printed so far; empty before its first word."""

    def cancel(self, run_dir: Path, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """Ask the run to save and end, wait for it, and with `force` kill it after the timeout.

        A run that is over is left as it is. Raises AdvisorError when it still runs after the timeout.
        """

    def fetch(self, run_dir: Path) -> str:
        """Bring home what is not brought by itself, the checkpoints, and say where they are."""

    def list(self) -> list[str]:
        """The handles of its runs that are known here, newest first."""


def engine_of(handle: str) -> str:
    """The engine of a handle, or an engine's own name; AdvisorError when it is neither."""
    engine, separator, _ = handle.partition("://")
    if not engine or (not separator and "/" in engine):
        raise AdvisorError(f"{handle!r} is no handle of a run: it should be ENGINE://ID", "see all runs: advisor runs")
    return engine


def id_of(handle: str) -> str:
    """What the engine calls the run."""
    return handle.partition("://")[2]
