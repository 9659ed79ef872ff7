"""Determines the state of a run folder from its files and the process table, whoever started the run."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from advisor.engines.process import ProcessId, attempt_is_there, is_alive, wait_until_gone
from advisor.errors import AdvisorError
from advisor.run_records import LaunchRecord
from advisor.store.disk import disk_errors, read_record, write_atomic
from advisor.store.run_folder import SIGHTING, STDOUT, is_run_folder, read_launch
from advisor.trainers.adapter import LogEnd
from advisor.trainers.known import trainer_of_run
from trainer.schema import Outcome, to_dict

FRESH_SECONDS = 300.0  # a run on another host that logged this recently counts as alive
SETTLE_SECONDS = 20.0  # from the final record to the end of the process, which packs telemetry in between


class RunState(StrEnum):
    """The state of a run, as its folder shows it."""

    NEVER_STARTED = "never started"
    RUNNING = "running"
    FINISHED = "finished"  # its log says how
    DIED = "died"  # the log has no end and there is no process: it was killed, or the machine failed
    QUEUED = "queued"  # its engine has the run and will start it
    UNJUDGED = "cannot be judged"  # its engine does not answer; the run may continue


BY_YOU = "by you"  # the reason of a run that its user asked to stop
_GOES_ON = frozenset({RunState.RUNNING, RunState.QUEUED, RunState.UNJUDGED})


def goes_on(state: str) -> bool:
    """Tell whether a run may still change, as far as is known; `state` is a RunState or a word of a listing."""
    return state in _GOES_ON


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """`engine.json` of a run that was started elsewhere: the engine's last answer and its time."""

    state: str  # of RunState: queued, running or cannot be judged; finished if the engine no longer has it
    unix_seconds: float
    log_bytes: int  # size of the log when this attempt was submitted; later bytes belong to this attempt
    words: str | None = None  # the engine's words
    schema: int = 1


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of a run; `outcome` and `reason` are from the end of its log, or a dead run's last output."""

    state: RunState
    attempt: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    step: int | None = None  # the newest logged step
    loss: float | None = None
    process: ProcessId | None = None  # None if it is not on this machine, or unknown

    @property
    def words(self) -> str:
        """Return the state as text. "completed" is more specific than "finished"."""
        return self.outcome.value.replace("_", " ") if self.outcome is not None else self.state.value


def run_status(run_dir: Path) -> RunStatus:
    """Return the state of a run folder, from `run.json`, the end of the trainer's log and the process table.

    For a run that was started elsewhere it is the engine's last answer. Raises AdvisorError if there is no run or
    its files are damaged.
    """
    if not is_run_folder(run_dir):
        raise AdvisorError(f"{run_dir} contains no run", "see all runs: advisor runs", exit_code=2)
    launch, end = read_launch(run_dir), trainer_of_run(run_dir).log_end(run_dir)
    outcome = reason = process = None
    if (sighting := last_sighting(run_dir)) is not None:
        # No clock is needed: the log belongs to this attempt if it has grown since this attempt was submitted.
        spoke = end is not None and log_bytes(run_dir) > sighting.log_bytes
        state, reason = RunState(sighting.state), sighting.words
        if not goes_on(state):
            if end is not None and spoke and end.outcome is not None:
                state, outcome, reason = RunState.FINISHED, end.outcome, end.reason
            elif end is None:
                state, reason = RunState.NEVER_STARTED, reason or last_words(run_dir)
            else:
                state, reason = RunState.DIED, "; ".join(filter(None, (sighting.words, last_words(run_dir)))) or None
    else:
        process = _process(launch, end)
        # the log has the run's end, and no later start follows
        began = datetime.fromisoformat(launch.launched_at).timestamp() if launch is not None else 0.0
        if end is not None and end.outcome is not None and end.unix_seconds >= began:
            state, outcome, reason = RunState.FINISHED, end.outcome, end.reason
            if outcome is Outcome.STOPPED and launch is not None and launch.stop_asked_at:
                reason = BY_YOU
        else:
            if process is not None:
                state = RunState.RUNNING if is_alive(process) else RunState.DIED
            elif end is None:
                state = RunState.NEVER_STARTED
            else:
                host = launch.host if launch is not None else end.host
                fresh = time.time() - end.unix_seconds < FRESH_SECONDS
                state = RunState.RUNNING if host not in (None, this_host()) and fresh else RunState.DIED
            # Whoever started it was killed before it could write down the process.
            if not goes_on(state) and launch is not None and launch.pid is None and attempt_is_there(run_dir):
                state = RunState.RUNNING
            reason = last_words(run_dir) if state is RunState.DIED else None
    return RunStatus(
        state=state,
        attempt=launch.attempt if launch is not None else (end.attempt if end is not None else 0),
        outcome=outcome,
        reason=reason,
        step=end.step if end is not None else None,
        loss=end.loss if end is not None else None,
        process=process,
    )


def last_sighting(run_dir: Path) -> Sighting | None:
    """Return the last answer of a run's engine, or None if the run was started on this machine."""
    return read_record(Sighting, run_dir / SIGHTING, "sighting", why="to ask the engine anew")


def write_sighting(run_dir: Path, sighting: Sighting) -> None:
    """Store the engine's answer."""
    write_atomic(run_dir / SIGHTING, json.dumps(to_dict(sighting), indent=1) + "\n")


def log_bytes(run_dir: Path) -> int:
    """Return the size of a run's log on this machine."""
    path = run_dir / trainer_of_run(run_dir).log_name
    return path.stat().st_size if path.exists() else 0


def last_words(run_dir: Path) -> str | None:
    """Return the last line that a run's process printed, often the reason for its end, or None if there is none.

    Hints that follow an error, and what srun says of it, are passed over.
    """
    path = run_dir / STDOUT
    if not path.exists():
        return None
    with disk_errors("read", path), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    said = (line.strip() for line in reversed(lines) if not line.startswith(("hint: ", "srun: ")))
    return next((line.removeprefix("error: ") for line in said if line), None)


def settle(run_dir: Path, timeout_seconds: float = SETTLE_SECONDS) -> None:
    """Wait until the process of a finished run has ended, so that everything in its folder is complete."""
    status = run_status(run_dir)
    if status.state is RunState.FINISHED and status.process is not None:
        wait_until_gone(status.process, timeout_seconds)


def this_host() -> str:
    """Return the name of this machine, as run folders record it."""
    return socket.gethostname()


def check_not_running(run_dir: Path, status: RunStatus) -> None:
    """Raise AdvisorError if the run of this folder, or a process left over from it, still runs."""
    if status.state in (RunState.QUEUED, RunState.UNJUDGED):
        because = f" ({status.reason})" if status.reason else ""
        raise AdvisorError(f"{run_dir}: {status.state}{because}", f"advisor watch {run_dir}")
    alive = status.process is not None and is_alive(status.process)
    if status.state is RunState.RUNNING or alive:
        pid = f" (pid {status.process.pid})" if status.process is not None else ""
        raise AdvisorError(f"{run_dir} is running already{pid}", f"advisor watch {run_dir}")


def _process(launch: LaunchRecord | None, end: LogEnd | None) -> ProcessId | None:
    """Return the run's process if it is on this machine: the launched one, or one started by hand since."""
    launched = None
    if launch is not None and launch.host == this_host() and launch.pid and launch.process_started:
        launched = ProcessId(pid=launch.pid, started=launch.process_started)
        if is_alive(launched):
            return launched
    if end is not None and end.host == this_host() and end.pid and end.process_started:
        by_hand = ProcessId(pid=end.pid, started=end.process_started)
        if launched is None or is_alive(by_hand):
            return by_hand
    return launched
