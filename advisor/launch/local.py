"""Runs on this machine: a detached process that outlives the terminal and the page that started it.

The id in a handle is the run's folder: `local:///home/me/runs/small-20261121-030000`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.launch.backend import Job, LaunchRequest, engine_of, id_of
from advisor.launch.process import (
    ProcessId,
    ask_to_stop,
    is_alive,
    kill_tree,
    python_variables,
    start_detached,
    wait_until_gone,
)
from advisor.launch.state import RunState, RunStatus, run_status
from advisor.run_records import LaunchRecord
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import STDOUT, is_run_folder, read_launch, run_row, write_launch
from advisor.store.store import Store


class LocalBackend:
    """Starts, describes and ends runs on this machine; each is registered in the store's index."""

    engine = "local"

    def __init__(self, store: Store):
        self.store = store

    def dryrun(self, job: Job) -> LaunchRequest:
        """The trainer's command in the run's own folder."""
        command, handle = self.command(job), f"{self.engine}://{job.folder}"
        record = replace(job.record, command=command, handle=handle, pid=None, process_started=None)
        return LaunchRequest(
            folder=job.folder, command=command, environment=python_variables(), files=job.files, record=record
        )

    def command(self, job: Job) -> tuple[str, ...]:
        """What is started."""
        return job.trainer.command(job.folder, job.record.gpus)

    def submit(self, request: LaunchRequest) -> str:
        """Start the process; raises AdvisorError when the folder cannot be written or the process cannot be started."""
        folder, record = request.folder, request.record
        _write_files(folder, request.files)
        write_launch(folder, record)  # first without a process: whatever happens next, the folder says what was meant
        self.store.register_run(run_row(folder))
        process = start_detached(request.command, folder, folder / STDOUT, request.environment)
        _write_or_kill(folder, replace(record, pid=process.pid, process_started=process.started), process)
        return record.handle

    def describe(self, handle: str) -> RunStatus:
        """The state of the run's folder and process; raises AdvisorError when the folder holds no run."""
        return run_status(Path(id_of(handle)))

    def logs(self, handle: str) -> str:
        """The text of `stdout.log`, of all attempts."""
        path = Path(id_of(handle)) / STDOUT
        if not path.exists():
            return ""
        with disk_errors("read", path):
            return path.read_text(encoding="utf-8", errors="replace")

    def cancel(self, handle: str, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """End the run by SIGTERM, then by SIGKILL if forced; also raises AdvisorError for one on another machine."""
        run_dir = Path(id_of(handle))
        status, launch = run_status(run_dir), read_launch(run_dir)
        process = status.process
        if process is None and status.state is RunState.RUNNING:
            host = launch.host if launch is not None else "another machine"
            raise AdvisorError(f"{run_dir} runs on {host}, not here", f"repeat the command on {host}")
        if process is None or not is_alive(process):
            return status
        if launch is not None:
            write_launch(run_dir, replace(launch, stop_asked_at=datetime.now(UTC).isoformat(timespec="milliseconds")))
        ask_to_stop(process, workers_only=launch is not None and launch.gpus > 1)
        if not wait_until_gone(process, timeout_seconds):
            if not force:
                raise AdvisorError(
                    f"{run_dir} has not ended within {timeout_seconds:.0f} s; it may still be writing its checkpoint",
                    f"wait (advisor watch {run_dir}), or end it without one: advisor stop {run_dir} --force",
                )
            kill_tree(process)
            wait_until_gone(process, 10.0)
        return run_status(run_dir)

    def list(self) -> list[str]:
        """The handles of this engine's runs whose folders are still there."""
        folders = [Path(row.path) for row in self.store.runs() if is_run_folder(Path(row.path))]
        launches = [(folder, read_launch(folder)) for folder in folders]
        return [
            f"{self.engine}://{folder}"
            for folder, launch in launches
            if (engine_of(launch.handle) if launch is not None else LocalBackend.engine) == self.engine
        ]


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        write_atomic(folder / name, text)


def _write_or_kill(folder: Path, record: LaunchRecord, process: ProcessId) -> None:
    """Record the process; one that cannot be recorded could not be watched or stopped, so it does not stay."""
    try:
        write_launch(folder, record)
    except AdvisorError:
        kill_tree(process)
        raise
