"""Runs on this machine: a detached `python -m trainer` that outlives the terminal and the page that started it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.disk import disk_errors, write_atomic
from advisor.errors import AdvisorError
from advisor.launchers.base import RunHandle, RunState, RunStatus, check_not_running, run_status, settle, this_host
from advisor.launchers.guards import guard_warnings, guarded, make_guards
from advisor.launchers.process import (
    ProcessId,
    ask_to_stop,
    folder_lock,
    is_alive,
    kill_tree,
    python_command,
    python_environment,
    start_detached,
    wait_until_gone,
)
from advisor.records import LaunchRecord, Plan
from advisor.store import (
    CONFIG,
    LOG,
    PLAN,
    STDOUT,
    Store,
    dump_plan,
    is_run_folder,
    read_launch,
    read_run_config,
    run_id,
    run_row,
    write_launch,
    write_run_config,
)
from trainer.runlog import RunLogError, load_run_log
from trainer.schema import LossStop, Outcome, RunConfig, StopConfig


class LocalLauncher:
    """Starts, stops and resumes runs on this machine; each run is registered in the store's index."""

    name = "local"

    def __init__(self, store: Store):
        self.store = store

    def launch(
        self,
        source: Plan | RunConfig,
        run_dir: Path | None = None,
        *,
        max_usd: float | None = None,
        max_hours: float | None = None,
        loss: Sequence[LossStop] = (),
        usd_per_hour: float | None = None,
        gpus: int = 1,
    ) -> RunHandle:
        """Start a plan, or a bare configuration, in a new run folder; by default one under the store's `runs/`.

        `usd_per_hour` (all devices) and `gpus` are for bare configurations: a plan brings its own. Raises
        AdvisorError when the folder holds a run already, a limit makes no sense or the process cannot be started.
        """
        plan = source if isinstance(source, Plan) else None
        config = plan.run if plan is not None else source
        price = plan.usd_per_hour if plan is not None and usd_per_hour is None else usd_per_hour
        guards = make_guards(config, usd_per_hour=price, max_usd=max_usd, max_hours=max_hours, loss=loss)
        config = guarded(_with_absolute_data(config), guards)
        now = datetime.now(UTC)
        folder = self._new_folder(config, run_dir, now)
        with folder_lock(folder):
            _refuse_a_second_run(folder)
            write_run_config(folder, config)
            if plan is not None:
                write_atomic(folder / PLAN, dump_plan(plan))
            record = LaunchRecord(
                id=folder.name if run_dir is None else f"{folder.name}-{now:%Y%m%d-%H%M%S}",
                name=config.name,
                attempt=1,
                launched_at=now.isoformat(timespec="milliseconds"),
                host=this_host(),
                pid=None,
                process_started=None,
                command=(),
                gpus=plan.workload.gpus if plan is not None else gpus,
                usd_per_hour=price,
                guards=guards,
                plan_id=plan.id if plan is not None else None,
                device_key=plan.workload.gpu if plan is not None else None,
                launcher=self.name,
            )
            return self._start(folder, record)

    def resume(
        self,
        run_dir: Path,
        *,
        max_usd: float | None = None,
        max_hours: float | None = None,
        loss: Sequence[LossStop] | None = None,
    ) -> RunHandle:
        """Start the run of a folder again from its last checkpoint; new limits replace the old ones (None keeps them).

        Raises AdvisorError when it is running, has completed, or has used up the time it was given.
        """
        run_dir = run_dir.resolve()
        with folder_lock(run_dir):
            settle(run_dir)
            status = run_status(run_dir)
            check_not_running(run_dir, status)
            if status.outcome is Outcome.COMPLETED:
                raise AdvisorError(f"{run_dir} has completed: nothing to resume", f"advisor compare {run_dir}")
            before = read_launch(run_dir) or _adopted(run_dir)
            if before.launcher != self.name:
                raise AdvisorError(f"{run_dir} was started by the {before.launcher} launcher", "launch its plan anew")
            new_time = max_usd is not None or max_hours is not None
            config = _without_replaced(read_run_config(run_dir), time=new_time, loss=loss is not None)
            price = before.usd_per_hour
            guards = make_guards(config, usd_per_hour=price, max_usd=max_usd, max_hours=max_hours, loss=loss or ())
            _refuse_without_time_left(run_dir, guards.max_seconds)
            write_run_config(run_dir, guarded(config, guards))
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            attempt = before.attempt + (status.state is not RunState.NEVER_STARTED)
            again = replace(before, attempt=attempt, launched_at=now, host=this_host(), guards=guards)
            return self._start(run_dir, again)

    def stop(self, run_dir: Path, *, timeout_seconds: float = 120.0, force: bool = False) -> RunStatus:
        """Ask a run to save and end (SIGTERM) and wait for it; with `force`, kill it after the timeout.

        Gives the state it ended in; a run that is not running is left as it is. Raises AdvisorError when it runs
        on another machine, or still runs after the timeout.
        """
        status = run_status(run_dir)
        process = status.process
        if process is None and status.state is RunState.RUNNING:
            launch = read_launch(run_dir)
            host = launch.host if launch is not None else "another machine"
            raise AdvisorError(f"{run_dir} runs on {host}, not here", f"repeat the command on {host}")
        if process is None or not is_alive(process):
            return status
        launch = read_launch(run_dir)
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

    def _new_folder(self, config: RunConfig, run_dir: Path | None, now: datetime) -> Path:
        if run_dir is None:
            return self.store.new_run_folder(config.name, now)
        run_dir = run_dir.expanduser().resolve()
        with disk_errors("make the run folder", run_dir):
            run_dir.mkdir(parents=True, exist_ok=True)
        return run_dir

    def _start(self, folder: Path, record: LaunchRecord) -> RunHandle:
        command = self.command(folder, record.gpus)
        record = replace(record, command=command, pid=None, process_started=None)
        write_launch(folder, record)  # first without a process: whatever happens next, the folder says what was meant
        self.store.register_run(run_row(folder))
        process = start_detached(command, folder, folder / STDOUT, python_environment())
        record = replace(record, pid=process.pid, process_started=process.started)
        _write_or_kill(folder, record, process)
        warnings = guard_warnings(record.guards, record.usd_per_hour)
        return RunHandle(run_dir=folder, launch=record, warnings=tuple(warnings))

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """The trainer's command line for a run folder; under torchrun when there is more than one device."""
        trainer = ("-m", "trainer", str(folder / CONFIG), "--out", str(folder))
        if gpus == 1:
            return python_command(*trainer)
        return python_command("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}", *trainer)


def _write_or_kill(folder: Path, record: LaunchRecord, process: ProcessId) -> None:
    """Record the process; one that cannot be recorded could not be watched or stopped, so it does not stay."""
    try:
        write_launch(folder, record)
    except AdvisorError:
        kill_tree(process)
        raise


def _refuse_a_second_run(folder: Path) -> None:
    if not is_run_folder(folder):
        return
    status = run_status(folder)
    check_not_running(folder, status)
    if status.state is RunState.NEVER_STARTED and not (folder / LOG).exists():
        return  # a launch that failed before it began, or a run.yaml written by hand
    hint = f"go on with it: advisor resume {folder}; or leave out --run-dir for a new folder"
    raise AdvisorError(f"{folder} holds a run already ({status.words})", hint)


def _refuse_without_time_left(run_dir: Path, max_seconds: float | None) -> None:
    """A resumed run counts the seconds of earlier attempts: with none left it would load, save and end again."""
    if max_seconds is None or not (run_dir / LOG).exists():
        return
    try:
        finals = load_run_log(run_dir / LOG).finals
    except RunLogError as error:
        raise AdvisorError(f"the log is damaged: {error}", "mend or remove that line") from error
    used_seconds = sum(final.get("seconds") or 0.0 for final in finals)
    if used_seconds >= max_seconds:
        message = f"{run_dir} has used {used_seconds:.0f} s of the {max_seconds:.0f} s it was given"
        raise AdvisorError(message, f"give it more: advisor resume {run_dir} --max-hours {2 * max_seconds / 3600:.3g}")


def _without_replaced(config: RunConfig, *, time: bool, loss: bool) -> RunConfig:
    """The configuration without those stop conditions that new ones are given for."""
    stop = config.stop
    kept = StopConfig(max_seconds=None if time else stop.max_seconds, loss=() if loss else stop.loss)
    return replace(config, stop=kept)


def _adopted(run_dir: Path) -> LaunchRecord:
    """A launch record for a run that somebody started with the trainer alone."""
    return LaunchRecord(
        id=run_id(run_dir),
        name=read_run_config(run_dir).name,
        attempt=run_status(run_dir).attempt or 1,
        launched_at=run_row(run_dir).created,
        host=this_host(),
        pid=None,
        process_started=None,
        command=(),
    )


def _with_absolute_data(config: RunConfig) -> RunConfig:
    """The trainer starts in the run folder, so a relative data path is settled here."""
    if config.data.path is None:
        return config
    path = Path(config.data.path).expanduser().resolve()
    if not path.exists():
        raise AdvisorError(f"the data folder {path} does not exist", "make it: advisor data prepare TEXT --out DIR")
    return replace(config, data=replace(config.data, path=str(path)))
