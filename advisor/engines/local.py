"""Runs on this machine: a detached process that outlives the terminal and the page that started it.

The id in a handle is the run's folder: `local:///home/me/runs/small-20261121-030000`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advisor.engines.backend import Backend, Job, LaunchRequest, not_ended, note_stop, write_files
from advisor.engines.gpu_locks import held_cards
from advisor.engines.process import (
    ask_to_stop,
    is_alive,
    kill_tree,
    python_variables,
    start_detached,
    wait_until_gone,
)
from advisor.engines.state import RunState, RunStatus, run_status
from advisor.errors import AdvisorError
from advisor.store.run_folder import STDOUT, read_launch, run_row, write_launch
from advisor.trainers.adopted import ADOPTED


class LocalBackend(Backend):
    """Starts, describes and ends runs on this machine."""

    engine = "local"

    def dryrun(self, job: Job) -> LaunchRequest:
        """Return the trainer's command in the run's own folder."""
        command, handle = job.trainer.command(job.folder, job.record.gpus), f"{self.engine}://{job.folder}"
        record = replace(job.record, command=command, handle=handle, pid=None, process_started=None)
        return LaunchRequest(
            folder=job.folder,
            command=command,
            environment=python_variables(),
            files=job.files,
            record=record,
            cards=job.cards,
        )

    def offer(self, request: LaunchRequest) -> list[str]:
        """Return nothing: the run starts at once."""
        return []

    def submit(self, request: LaunchRequest) -> str:
        """Start the process; raises AdvisorError if the folder cannot be written or the process cannot be started."""
        folder, record = request.folder, request.record
        write_files(request)
        write_launch(folder, record)  # no process yet, so that the folder shows the intent whatever happens next
        self.store.register_run(run_row(folder))
        with held_cards(request.cards, record.place.gpu_ids, folder) as held:
            variables = {**request.environment, **held.variables}
            process = start_detached(request.command, folder, folder / STDOUT, variables, keep=held.files)
        started = replace(record, pid=process.pid, process_started=process.started, cards=held.ids)
        try:
            write_launch(folder, started)
        except AdvisorError:  # an unrecorded run could not be watched or stopped, so it is ended
            kill_tree(process)
            raise
        return record.handle

    def describe(self, run_dir: Path) -> RunStatus:
        """Return the state of the run's folder and process."""
        return run_status(run_dir)

    def cancel(self, run_dir: Path, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """End the run by SIGTERM, then by SIGKILL if forced; raises AdvisorError also for a run on another machine."""
        status, launch = run_status(run_dir), read_launch(run_dir)
        process = status.process
        if process is None and status.state is RunState.RUNNING:
            host = launch.host if launch is not None else "another machine"
            raise AdvisorError(f"{run_dir} runs on {host}, not here", f"repeat the command on {host}")
        if process is None or not is_alive(process):
            return status
        note_stop(run_dir)
        # torchrun gives its workers only 30 s. An adopted command's guard is asked itself, since it records who asked
        several = launch is not None and launch.gpus > 1 and launch.trainer != ADOPTED.name
        ask_to_stop(process, workers_only=several)
        if not wait_until_gone(process, timeout_seconds):
            if not force:
                raise not_ended(run_dir, timeout_seconds)
            kill_tree(process)
            wait_until_gone(process, 10.0)
        return run_status(run_dir)
