"""What every place that runs can be started in promises, and how a started run is named: a handle, `engine://id`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from advisor.errors import AdvisorError
from advisor.launch.state import RunStatus
from advisor.run_records import LaunchRecord
from advisor.trainers.adapter import Trainer


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt at a run, for any backend: which trainer, in which folder, with which files and limits."""

    folder: Path
    trainer: Trainer
    files: Mapping[str, str]  # name inside the folder → text
    record: LaunchRecord  # without command, handle and process: those are the backend's


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What a backend would do: enough for a person to read it, and to do it by hand."""

    folder: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]  # set beside what the process inherits
    files: Mapping[str, str]  # name inside the folder → text, written before the command starts
    record: LaunchRecord

    @property
    def script(self) -> str:
        """The same as lines of a shell: the folder, its files and the command, which then runs in the foreground."""
        folder = shlex.quote(str(self.folder))
        lines = [f"mkdir -p {folder} && cd {folder}"]
        for name, text in self.files.items():
            lines += [f"cat > {shlex.quote(name)} <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return "\n".join([*lines, " ".join([*variables, shlex.join(self.command)])])


class Backend(Protocol):
    """One place where runs are started, looked at and ended."""

    @property
    def engine(self) -> str:
        """The first half of its handles."""

    def dryrun(self, job: Job) -> LaunchRequest:
        """What `submit` would start; nothing is started or written. Raises AdvisorError for a job it cannot take."""

    def submit(self, request: LaunchRequest) -> str:
        """Write the files and the launch record, start the run so that it outlives its starter, and give its handle."""

    def describe(self, handle: str) -> RunStatus:
        """How the run stands."""

    def logs(self, handle: str) -> str:
        """Everything the run printed so far; empty before its first word."""

    def cancel(self, handle: str, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """Ask the run to save and end, wait for it, and with `force` kill it after the timeout.

        A run that is over is left as it is. Raises AdvisorError when it still runs after the timeout.
        """

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
