"""The state of a run folder: read from its files and the process table, whoever started it."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.launch.process import ProcessId, is_alive, wait_until_gone
from advisor.records import LaunchRecord
from advisor.store.disk import disk_errors
from advisor.store.run_folder import LOG, STDOUT, is_run_folder, read_launch
from trainer.runlog import RunLogError, read_records
from trainer.schema import Outcome

TAIL_BYTES = 65536  # more than the last records of any run
FRESH_SECONDS = 300.0  # a run on another host that logged this recently is taken to be alive
SETTLE_SECONDS = 20.0  # from the final record to the end of the process: telemetry is packed meanwhile


class RunState(StrEnum):
    """What a run folder says of its run."""

    NEVER_STARTED = "never started"
    RUNNING = "running"
    FINISHED = "finished"  # a final record says how
    DIED = "died"  # no final record and no process: killed, or the machine went down


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of a run; `outcome` and `reason` are its final record's (of a run that died: its last words)."""

    state: RunState
    attempt: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    process: ProcessId | None = None  # None: not on this machine, or unknown

    @property
    def words(self) -> str:
        """The state for people: "completed" says more than "finished"."""
        return self.outcome.value.replace("_", " ") if self.outcome is not None else self.state.value


def run_status(run_dir: Path) -> RunStatus:
    """The state of a run folder, from `run.json`, the end of its log and the process table.

    Raises AdvisorError when the folder holds no run or its files are damaged.
    """
    if not is_run_folder(run_dir):
        raise AdvisorError(f"{run_dir} holds no run", "see all runs: advisor runs", exit_code=2)
    launch = read_launch(run_dir)
    records = last_records(run_dir)
    header = _last_header(run_dir, records)
    attempt = launch.attempt if launch is not None else (header or {}).get("attempt", 0)
    final = _final_of_this_attempt(records, launch)
    process = _process(launch, header)
    if final is not None:
        return RunStatus(state=RunState.FINISHED, attempt=attempt, outcome=Outcome(final["outcome"]),
                         reason=final.get("reason"), process=process)  # fmt: skip
    last_time = records[-1]["time"] if records else None
    state = _unfinished_state(launch, header, process, last_time)
    reason = last_words(run_dir) if state is RunState.DIED else None
    return RunStatus(state=state, attempt=attempt, reason=reason, process=process)


def last_words(run_dir: Path) -> str | None:
    """The last line a run's process printed, which says why it died if anything does; None when it said nothing."""
    path = run_dir / STDOUT
    if not path.exists():
        return None
    with disk_errors("read", path), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def last_records(run_dir: Path) -> list[dict[str, Any]]:
    """The last records of a run's log; empty before there is one."""
    path = run_dir / LOG
    if not path.exists():
        return []
    with disk_errors("read", path):
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES)
            file.seek(start)
            first_line = file.read().find(b"\n") + 1 if start else 0
        try:
            return read_records(path, start + first_line)[0]
        except RunLogError as error:
            raise AdvisorError(f"the log is damaged: {error}", f"mend or remove that line of {path}") from error


def settle(run_dir: Path, timeout_seconds: float = SETTLE_SECONDS) -> None:
    """Wait for the process of a finished run to be gone, so that everything in its folder is complete."""
    status = run_status(run_dir)
    if status.state is RunState.FINISHED and status.process is not None:
        wait_until_gone(status.process, timeout_seconds)


def this_host() -> str:
    """The name of this machine, as run folders record it."""
    return socket.gethostname()


def check_not_running(run_dir: Path, status: RunStatus) -> None:
    """Raise AdvisorError when the run of this folder, or what is left of it, is still at work."""
    alive = status.process is not None and is_alive(status.process)
    if status.state is RunState.RUNNING or alive:
        pid = f" (pid {status.process.pid})" if status.process is not None else ""
        raise AdvisorError(f"{run_dir} is running already{pid}", f"advisor watch {run_dir}")


def _final_of_this_attempt(records: list[dict[str, Any]], launch: LaunchRecord | None) -> dict[str, Any] | None:
    """The final record, unless a later start has made it history."""
    for record in reversed(records):
        if record["kind"] == "header":
            return None
        if record["kind"] == "final":
            earlier = launch is not None and record["time"] < _unix(launch.launched_at)
            return None if earlier else record
    return None


def _last_header(run_dir: Path, records: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest header, from the log's end or, in a long log, from wherever it stands."""
    for record in reversed(records):
        if record["kind"] == "header":
            return record
    if not records:
        return None
    with disk_errors("read", run_dir / LOG), open(run_dir / LOG, "rb") as file:
        lines = [line for line in file if b'"header"' in line[:200] and line.endswith(b"\n")]
    return json.loads(lines[-1]) if lines else None


def _process(launch: LaunchRecord | None, header: dict[str, Any] | None) -> ProcessId | None:
    """The process of the run, if it is one of this machine: the launched one, or one started by hand since."""
    launched = None
    if launch is not None and launch.host == this_host() and launch.pid and launch.process_started:
        launched = ProcessId(pid=launch.pid, started=launch.process_started)
        if is_alive(launched):
            return launched
    if header is not None and header.get("host") == this_host() and header.get("pid"):
        by_hand = ProcessId(pid=header["pid"], started=header["time"] - (header.get("startup_seconds") or 0.0))
        if launched is None or is_alive(by_hand):
            return by_hand
    return launched


def _unfinished_state(
    launch: LaunchRecord | None,
    header: dict[str, Any] | None,
    process: ProcessId | None,
    last_time: float | None,
) -> RunState:
    if process is not None:
        return RunState.RUNNING if is_alive(process) else RunState.DIED
    elsewhere = launch.host if launch is not None else (header or {}).get("host")
    if elsewhere not in (None, this_host()) and last_time is not None:
        return RunState.RUNNING if time.time() - last_time < FRESH_SECONDS else RunState.DIED
    return RunState.DIED if header is not None else RunState.NEVER_STARTED


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
