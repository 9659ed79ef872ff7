"""Runs a command of this program in the background. A page can start, watch and cancel it, and it outlives the page."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines import process as processes
from advisor.engines.process import ProcessId
from advisor.errors import AdvisorError
from advisor.store.disk import read_record, write_atomic
from trainer.schema import to_dict

CANCEL_SECONDS = 20.0  # for each way to stop it
_LINES_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Started:
    """The newest command of its kind, as recorded on disk."""

    pid: int
    process_started: float  # Unix seconds
    started: str  # ISO 8601, UTC
    budget_seconds: float
    subject: str = ""  # what the command works on
    schema: int = 1

    @property
    def process(self) -> ProcessId:
        """Return the process of this command."""
        return ProcessId(pid=self.pid, started=self.process_started)

    @property
    def running(self) -> bool:
        """Tell whether it still runs."""
        return processes.is_alive(self.process)

    @property
    def unix_seconds(self) -> float:
        """Return when it was started."""
        return datetime.fromisoformat(self.started).timestamp()

    @property
    def elapsed_seconds(self) -> float:
        """Return the seconds since it was started."""
        return datetime.now(UTC).timestamp() - self.unix_seconds


@dataclass(frozen=True, kw_only=True)
class BackgroundCommand:
    """A kind of command that runs in the background, one at a time. Its files are NAME.json and NAME.log in `home`."""

    home: Path
    name: str
    description: str  # the kind in words, with its article

    def start(
        self, words: Sequence[str], budget_seconds: float, *, folder: Path | None = None, subject: str = ""
    ) -> None:
        """Run `advisor` with these words; raises AdvisorError if a command of this kind is running already."""
        self.home.mkdir(parents=True, exist_ok=True)
        with processes.folder_lock(self.home):
            before = self.look()
            if before is not None and before.running:
                raise AdvisorError(f"{self.description} is running already", "wait for it, or cancel it")
            self.output.unlink(missing_ok=True)
            variables = processes.python_variables() | {"ADVISOR_HOME": str(self.home)}
            process = processes.start_detached(
                processes.python_command("-m", "advisor", *words), folder or self.home, self.output, variables
            )
            state = Started(
                pid=process.pid,
                process_started=process.started,
                started=datetime.now(UTC).isoformat(timespec="seconds"),
                budget_seconds=budget_seconds,
                subject=subject,
            )
            write_atomic(self._state, json.dumps(to_dict(state)) + "\n")

    def look(self) -> Started | None:
        """Return the newest command of this kind, or None if there was none."""
        return read_record(Started, self._state, f"state of {self.description}")

    def last_lines(self) -> tuple[str, ...]:
        """Return the newest lines it printed."""
        if not self.output.exists():
            return ()
        lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        return tuple(line for line in lines if line.strip())[-_LINES_SHOWN:]

    def forget(self) -> None:
        """Forget the newest command of this kind and what it printed, unless it still runs."""
        state = self.look()
        if state is not None and not state.running:
            self._state.unlink(missing_ok=True)
            self.output.unlink(missing_ok=True)

    def cancel(self, seconds: float = CANCEL_SECONDS, *, with_children: bool = False) -> None:
        """Send SIGINT, then SIGTERM; with `with_children`, kill the command and its children instead."""
        state = self.look()
        if state is None or not state.running:
            return
        process = state.process
        os.kill(process.pid, signal.SIGINT)
        if processes.wait_until_gone(
            process, seconds
        ):  # a process started by nohup or in the background ignores Ctrl-C
            return
        if with_children:
            processes.kill_tree(process)
        else:
            os.kill(process.pid, signal.SIGTERM)
        if not processes.wait_until_gone(process, seconds):
            raise AdvisorError(f"{self.description} does not stop", f"end it by hand: kill -9 {process.pid}")

    @property
    def output(self) -> Path:
        """Return the file of its output."""
        return self.home / f"{self.name}.log"

    @property
    def _state(self) -> Path:
        return self.home / f"{self.name}.json"
