"""Defines what every backend must do and what all share, and runs on this machine. A started run is named by a handle, `engine://id`."""

from __future__ import annotations

import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines import process as processes
from advisor.engines.gpu_locks import lock_gpus
from advisor.engines.guards import refuse_without_data
from advisor.engines.state import RunState, RunStatus, run_status
from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.run_records import LaunchRecord
from advisor.store.adopted import AdoptedPlan
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import CHECKPOINTS, STDOUT, read_launch, run_row, write_launch
from advisor.store.store import Store
from advisor.trainers.adapter import Trainer
from advisor.trainers.adopted import ADOPTED
from trainer.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    """One attempt at a run, for any backend: its trainer, folder, files and limits."""

    folder: Path
    trainer: Trainer
    config: RunConfig | None  # with its limits; None for an adopted command, whose plan has everything
    plan: Plan | AdoptedPlan | None  # None if it came from a bare configuration
    files: Mapping[str, str]  # name inside the folder → text
    record: LaunchRecord  # without command, handle and process, which the backend adds

    def __post_init__(self) -> None:
        if self.config is not None:
            refuse_without_data(self.config.data)

    @property
    def cards(self) -> int:
        """Return the number of GPUs of one machine that the run gets for itself."""
        on_cpu = self.record.device_key == "cpu" if self.config is None else self.config.device == "cpu"
        return 0 if on_cpu else self.record.gpus


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """A calibration of a machine elsewhere, for any backend that can do one."""

    folder: Path
    gpu: str  # the GPU expected there; "auto" accepts any
    command: str  # `calibrate` with its options, quoted for a shell
    seconds: float  # time that the calibration may take
    record: LaunchRecord  # without command and handle


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A backend's next action, complete enough for a person to read it and do it by hand."""

    folder: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]  # added to the environment that the process inherits
    files: Mapping[str, str]  # name inside the folder → text, written before the command starts
    record: LaunchRecord
    copies: Mapping[str, Path] = field(default_factory=dict)  # name inside the folder → folder here, copied as it is
    cards: int = 0  # GPUs of this machine that the run gets for itself
    inside: str = "."  # where in the folder the command starts

    @property
    def script(self) -> str:
        """Return the request as shell commands: the folder, its files, and the command in the foreground."""
        folder = shlex.quote(str(self.folder))
        within = "" if self.inside == "." else f"/{shlex.quote(self.inside)}"
        lines = [f"mkdir -p {folder}{within} && cd {folder}"]
        lines += [shlex.join(["cp", "-R", str(here), name]) for name, here in self.copies.items()]
        for name, text in self.files.items():
            lines += [f"cat > {shlex.quote(name)} <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        words = " ".join([*variables, shlex.join(self.command)])
        return "\n".join([*lines, *([f"cd {shlex.quote(self.inside)}"] if within else []), words])


class Backend(ABC):
    """A place where runs are started, watched and ended; each run is registered in the store's index."""

    engine: str  # the first half of its handles

    def __init__(self, store: Store):
        self.store = store

    @abstractmethod
    def dryrun(self, job: Job) -> LaunchRequest:
        """Return what `submit` would do, and start nothing. Raises AdvisorError for a job that it does not support."""

    def offer(self, request: LaunchRequest) -> list[str]:
        """Return the engine's answer to a request before it is submitted: when and on what it would start.

        Empty if it starts at once. Raises AdvisorError if the engine would refuse it.
        """
        return []

    @abstractmethod
    def submit(self, request: LaunchRequest) -> str:
        """Write files and launch record, start the run so that it outlives this process, and return its handle."""

    def describe(self, run_dir: Path) -> RunStatus:
        """Return the state of a folder's run; raises AdvisorError if the folder contains no run."""
        return run_status(run_dir)

    @abstractmethod
    def cancel(self, run_dir: Path, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """Ask the run to save and end, wait for it, and with `force` kill it after the timeout.

        Does nothing to a run that is over. Raises AdvisorError if it still runs after the timeout.
        """

    def fetch(self, run_dir: Path) -> str:
        """Copy home the checkpoints, which are not copied automatically; returns where they are."""
        return f"checkpoints are in {run_dir / CHECKPOINTS}"


def write_files(request: LaunchRequest) -> None:
    """Write what the command needs into the run's folder."""
    for name, here in request.copies.items():
        target = request.folder / name
        with disk_errors("copy to", target):
            shutil.copytree(here, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in request.files.items():
        write_atomic(request.folder / name, text)


def note_stop(run_dir: Path) -> None:
    """Record that the user asked this attempt to stop."""
    launch = read_launch(run_dir)
    if launch is not None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        write_launch(run_dir, replace(launch, stop_asked_at=now))


def not_ended(run_dir: Path, timeout_seconds: float) -> AdvisorError:
    """Return the error for a run that still runs after it was asked to stop."""
    return AdvisorError(
        f"{run_dir} has not ended within {timeout_seconds:.0f} s; it may still be writing its checkpoint",
        f"wait (advisor watch {run_dir}), or end it without a checkpoint: advisor stop {run_dir} --force",
    )


class LocalBackend(Backend):
    """Runs on this machine: a detached process that outlives the terminal and the page that started it.

    The id in a handle is the run's folder: `local:///home/me/runs/small-20261121-030000`.
    """

    engine = "local"

    def dryrun(self, job: Job) -> LaunchRequest:
        """Return the trainer's command in the run's own folder."""
        command, handle = job.trainer.command(job.folder, job.record.gpus), f"{self.engine}://{job.folder}"
        record = replace(job.record, command=command, handle=handle, pid=None, process_started=None)
        return LaunchRequest(
            folder=job.folder,
            command=command,
            environment=processes.python_variables(),
            files=job.files,
            record=record,
            cards=job.cards,
        )

    def submit(self, request: LaunchRequest) -> str:
        """Start the process; raises AdvisorError if the folder cannot be written or the process cannot be started."""
        folder, record = request.folder, request.record
        write_files(request)
        write_launch(folder, record)  # no process yet, so that the folder shows the intent whatever happens next
        self.store.register_run(run_row(folder))
        with (
            lock_gpus(request.cards, record.place.gpu_ids, folder) as held,
            processes.attempt_lock(folder) as there,
        ):
            variables, keep = {**request.environment, **held.variables}, (*held.files, there.fileno())
            process = processes.start_detached(request.command, folder, folder / STDOUT, variables, keep=keep)
        started = replace(record, pid=process.pid, process_started=process.started, cards=held.ids)
        try:
            write_launch(folder, started)
        except AdvisorError:  # an unrecorded run could not be watched or stopped, so it is ended
            processes.kill_tree(process)
            raise
        return record.handle

    def cancel(self, run_dir: Path, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """End the run by SIGTERM, then by SIGKILL if forced; raises AdvisorError also for a run on another machine."""
        status, launch = run_status(run_dir), read_launch(run_dir)
        process = status.process
        if process is None and status.state is RunState.RUNNING:
            host = launch.host if launch is not None else "another machine"
            raise AdvisorError(f"{run_dir} runs on {host}, not here", f"repeat the command on {host}")
        if process is None or not processes.is_alive(process):
            return status
        note_stop(run_dir)
        # torchrun gives its workers only 30 s. An adopted command's guard is asked itself, since it records who asked
        several = launch is not None and launch.gpus > 1 and launch.trainer != ADOPTED.name
        processes.ask_to_stop(process, workers_only=several)
        if not processes.wait_until_gone(process, timeout_seconds):
            if not force:
                raise not_ended(run_dir, timeout_seconds)
            processes.kill_tree(process)
            processes.wait_until_gone(process, 10.0)
        return run_status(run_dir)


def engine_of(handle: str) -> str:
    """Return the engine that a handle or a name means. Raises AdvisorError if it is neither."""
    engine, separator, _ = handle.partition("://")
    if not engine or (not separator and "/" in engine):
        raise AdvisorError(f"{handle!r} is no handle of a run: it should be ENGINE://ID", "see all runs: advisor runs")
    return engine


def id_of(handle: str) -> str:
    """Return the engine's id of the run."""
    return handle.partition("://")[2]
