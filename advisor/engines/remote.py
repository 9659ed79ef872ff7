"""Implements what all remote engines share: submitting, polling and stopping runs."""

from __future__ import annotations

import subprocess
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import advisor
import trainer
from advisor.engines import state as run_state
from advisor.engines.backend import Backend, Job, LaunchRequest, Measuring, id_of, not_ended, note_stop, write_files
from advisor.engines.export import bundle as parts
from advisor.engines.export.bundle import CALIBRATION, PLAN_AFTER, RUN, SETUP, AdoptedJob, ExportJob, adopted_files
from advisor.engines.process import attempt_is_there, attempt_lock, waiting_lock
from advisor.engines.state import RunState, RunStatus
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.hardware.here import cpu_name
from advisor.run_records import LaunchRecord
from advisor.store.adopted import AdoptedPlan
from advisor.store.calibration import Calibration
from advisor.store.disk import write_atomic
from advisor.store.folders import profiles_folder
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import CONFIG, LOG, PLAN, read_launch, read_run_config, run_row, write_launch
from advisor.store.store import Store, load_calibration
from advisor.trainers.adopted import RECIPE
from advisor.trainers.own import OWN
from trainer.schema import dump_config

JOB = "job"  # folder in the run folder with the submitted files
COMMAND_SECONDS = 60.0  # time allowed for an engine's command
STOP_POLL_SECONDS = 2.0
LONGER = 2.0  # times the given time, because compiling and the current burst may exceed it
START_SECONDS = 600.0  # for imports, data and a slow file system


class Unreachable(AdvisorError):
    """The engine does not answer, so the state of its runs is unknown."""


class RemoteBackend(Backend):
    """A backend whose runs are processes of other machines."""

    look_seconds = 10.0  # least time between two queries to an engine

    @abstractmethod
    def hand_over(self, request: LaunchRequest, keep: Sequence[int]) -> str:
        """Start the job that is now in the folder, and return the id of its handle.

        The engine's command inherits the open files `keep`, so that one that outlives its caller is still seen.
        """

    def find(self, run_dir: Path) -> str | None:
        """Return the id of this folder's run if the engine has it, after an answer was lost. Raises Unreachable.

        An id that this program chose itself is never lost, so there is nothing to find.
        """
        return None

    @abstractmethod
    def ask(self, run_dir: Path, run: str) -> tuple[RunState, str | None]:
        """Return the run's state and the engine's message, or "finished" if it lacks the run. Raises Unreachable."""

    @abstractmethod
    def ask_to_stop(self, run_dir: Path, run: str, *, again: bool) -> None:
        """Send SIGTERM, so that the run saves and ends; `again` sends it every two seconds. Raises Unreachable."""

    @abstractmethod
    def kill(self, run_dir: Path, run: str) -> None:
        """End the run without a checkpoint. Raises Unreachable."""

    def _ready_request(self, folder: Path, record: LaunchRecord, command: tuple[str, ...], files: Mapping[str, str],
                copies: Mapping[str, Path], *, run: str = "", **environment: str) -> LaunchRequest:  # fmt: skip
        """Return the request to start `command` in the export; `run` is the engine's id, if already known."""
        record = replace(record, command=command, handle=f"{self.engine}://{run}", pid=None, process_started=None)
        return LaunchRequest(folder=folder, command=command, environment=environment, files=files, copies=copies,
                             inside=JOB, record=record)  # fmt: skip

    def measuring(self, asked: Measuring) -> LaunchRequest:
        """Return the request for a calibration of the engine's machine."""
        raise NotImplementedError(self.engine)  # only engines.MEASURED_THERE have it

    def starts_at(self, request: LaunchRequest) -> str | None:
        """Return the start that the engine expects, or None if it gives none."""
        return None

    def waits_in_vain(self, words: str | None) -> bool:
        """Tell whether the engine's message about a queued job means that it will never start."""
        return False

    def submit(self, request: LaunchRequest, *, is_run: bool = True) -> str:
        """Write the export, submit it and record the result, in an order in which no run is lost."""
        folder, record = request.folder, request.record
        write_files(request)
        write_launch(folder, record)
        if is_run:
            self.store.register_run(run_row(folder))
        seen = run_state.Sighting(state=RunState.UNJUDGED, unix_seconds=0.0, log_bytes=run_state.log_bytes(folder),
                        words="whoever handed it over did not come back")  # fmt: skip
        run_state.write_sighting(folder, seen)
        try:
            with attempt_lock(folder) as there:
                handle = f"{self.engine}://{self.hand_over(request, (there.fileno(),))}"
        except AdvisorError as error:
            run_state.write_sighting(
                folder, replace(seen, state=RunState.FINISHED, words=f"not taken: {error.message}")
            )
            raise
        write_launch(folder, replace(record, handle=handle))
        run_state.write_sighting(folder, replace(seen, state=RunState.QUEUED, words=None))
        return handle

    def describe(self, run_dir: Path) -> RunStatus:
        """Return the state in the folder, after asking the engine if its last answer is old."""
        self.look_if_due(run_dir)
        return run_state.run_status(run_dir)

    def look_if_due(self, run_dir: Path) -> None:
        """Ask the engine if its last answer is old; only one process asks at a time."""
        if self._is_due(run_dir):
            with waiting_lock(run_dir / ".look.lock"):
                if self._is_due(run_dir):  # no other process has asked meanwhile
                    self.look(run_dir)

    def look(self, run_dir: Path) -> None:
        """Ask the engine now, and store its answer."""
        seen = run_state.last_sighting(run_dir)
        before = seen or run_state.Sighting(state=RunState.UNJUDGED, unix_seconds=0.0, log_bytes=0)
        try:
            if attempt_is_there(run_dir):
                raise Unreachable("it is being handed over", "try again")
            run = self._id(run_dir)
            state, words = self.ask(run_dir, run) if run else (RunState.FINISHED, f"{self.engine} does not know it")
            words = _take_over(run_dir, self.store, over=state is RunState.FINISHED) or words
        except Unreachable as error:
            state, words = RunState.UNJUDGED, f"because {error.message}"
        run_state.write_sighting(run_dir, replace(before, state=state, words=words, unix_seconds=time.time()))

    def cancel(self, run_dir: Path, *, timeout_seconds: float, force: bool = False) -> RunStatus:
        """Ask the run to save and end, and wait for it."""
        self.look(run_dir)
        if not run_state.goes_on(run_state.run_status(run_dir).state):
            return run_state.run_status(run_dir)
        note_stop(run_dir)
        run = self._id(run_dir)
        if not self._ends(run_dir, run, timeout_seconds):
            if not force:
                raise not_ended(run_dir, timeout_seconds)
            self.kill(run_dir, run)
            self._ends(run_dir, run, COMMAND_SECONDS)
        return run_state.run_status(run_dir)

    def _is_due(self, run_dir: Path) -> bool:
        seen = run_state.last_sighting(run_dir)
        if seen is None:
            return True
        return run_state.goes_on(seen.state) and not 0 <= time.time() - seen.unix_seconds < self.look_seconds

    def _id(self, run_dir: Path) -> str:
        """Return the engine's id of a folder's run; asks the engine if an interrupted launch did not record it."""
        launch = read_launch(run_dir)
        run = id_of(launch.handle) if launch is not None else ""
        if not run and launch is not None and (found := self.find(run_dir)):
            write_launch(run_dir, replace(launch, handle=f"{self.engine}://{found}"))
            return found
        return run

    def _ends(self, run_dir: Path, run: str, timeout_seconds: float) -> bool:
        deadline, again = time.monotonic() + timeout_seconds, False
        while True:
            self.ask_to_stop(run_dir, run, again=again)
            time.sleep(STOP_POLL_SECONDS)
            again = True
            self.look(run_dir)
            if not run_state.goes_on(run_state.run_status(run_dir).state):
                return True
            if time.monotonic() >= deadline:
                return False


def exported(job: Job, data_at: str | None = None) -> ExportJob | AdoptedJob:
    """Return the job as an export, with tokens at `data_at`; raises AdvisorError if it cannot be exported."""
    if isinstance(job.plan, AdoptedPlan):
        return AdoptedJob(plan=job.plan, recipe=job.files[RECIPE], run_id=job.record.id, place=job.record.place)
    if job.plan is None or job.config is None:
        hint = "make one: advisor plan; or start the run there by hand: python -m trainer run.yaml --out DIR"
        raise AdvisorError("only a plan can be started elsewhere: a run.yaml does not state GPUs and hours", hint)
    if job.trainer is not OWN:
        raise AdvisorError(f"the trainer {job.trainer.name} cannot be sent elsewhere", "start it there by hand")
    config, place = job.config, job.record.place
    if config.init_from is not None and place.engine != "slurm":  # Slurm's file system is shared
        hint = "start it here, or there by hand: python -m trainer run.yaml --out DIR"
        raise AdvisorError(f"it starts from the weights in {config.init_from}, which that machine does not have", hint)
    data = Path(config.data.path) if config.data.path is not None else None
    if data is not None and data_at is not None:
        config = replace(config, data=replace(config.data, path=data_at))
    run_id = job.record.id if place.engine == "skypilot" else None
    return parts.export_job(job.plan, config, data, max_usd=job.record.guards.max_usd, place=place, run_id=run_id,
                      commands_first=job.record.commands_first)  # fmt: skip


def bundle(job: Job, export: ExportJob | AdoptedJob, own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Path]]:
    """Return the files to write into the run folder and the folders to copy: the run's, and its export under `job/`."""
    if isinstance(export, AdoptedJob):  # the guard has few sources, which are among its files
        return dict(job.files) | {
            f"{JOB}/{name}": text for name, text in (adopted_files(export) | dict(own)).items()
        }, {}
    files = {
        name: text for name, text in (parts.common_files(export) | dict(own)).items() if not name.startswith("trainer/")
    }
    inside = {f"{JOB}/{name}": text for name, text in files.items()}
    copies = {f"{JOB}/trainer": Path(trainer.__path__[0])}
    if export.commands_first:  # the plan is made again there
        copies = sources()
    return dict(job.files) | inside, copies


def sources() -> dict[str, Path]:
    """Return the folders of trainer, advisor and profiles of this version, which calibrate a machine elsewhere."""
    copies = {f"{JOB}/{package.__name__}": Path(package.__path__[0]) for package in (trainer, advisor)}
    if Path(advisor.__path__[0]) not in profiles_folder().parents:
        copies |= {f"{JOB}/profiles": profiles_folder()}
    return copies


def _take_over(run_dir: Path, store: Store, *, over: bool) -> str | None:
    """Take over once the calibration and plan that a job made before its first step; returns why they are of no use."""
    launch = read_launch(run_dir)
    if launch is None or not launch.commands_first or not (over or (run_dir / LOG).exists()):
        return None
    problem = None
    try:
        if (run_dir / CALIBRATION).exists():
            enter(load_calibration(run_dir / CALIBRATION), store)
        if (run_dir / PLAN_AFTER).exists():
            # The plan is not trusted: name, data, price and limits stay as they were given.
            given, before, came = read_run_config(run_dir), load_plan(run_dir / PLAN), load_plan(run_dir / PLAN_AFTER)
            stop = replace(given.stop, gates=came.config.stop.gates, step_seconds=came.chosen.step_seconds.value)
            config = replace(came.config, name=given.name, data=given.data, stop=stop)
            run = replace(config, data=before.config.data, stop=replace(before.config.stop, gates=stop.gates))
            offer = replace(came.offer, usd_per_hour=before.offer.usd_per_hour)
            plan = replace(came, id=before.id, goal=replace(came.goal, data=before.goal.data), run=run,
                           chosen=replace(came.chosen, offer=offer))  # fmt: skip
            write_atomic(run_dir / CONFIG, dump_config(config))
            write_atomic(run_dir / PLAN, dump_plan(plan))
    except AdvisorError as error:  # the run continues whatever was brought home, and it is not read again
        problem = f"what its job measured cannot be used: {error.message}"
    write_launch(run_dir, replace(launch, commands_first=()))
    return problem


def enter(calibration: Calibration, store: Store) -> bool:
    """Store a calibration from elsewhere, but not of another CPU, because the key of all CPUs means this CPU."""
    if calibration.settings.gpu == "cpu" and calibration.device.name != cpu_name():
        return False
    store.save_calibration(calibration)
    return True


def engine_state(
    words: Sequence[str],
    *,
    inside: Path | None = None,
    variables: Mapping[str, str] | None = None,
    seconds: float | None = COMMAND_SECONDS,
    keep: Sequence[int] = (),
) -> bytes:
    """Return what an engine's command prints. Raises Unreachable with its last line if it fails or takes too long."""
    done = engine_run(words, inside=inside, variables=variables, seconds=seconds, keep=keep)
    if done.returncode:
        raise Unreachable(f"{words[0]}: {last_words(done)}", "try again")
    return done.stdout


def last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line in which a command explains its failure, or else its exit status."""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def engine_run(words: Sequence[str], *, given: bytes = b"", inside: Path | None = None,
               variables: Mapping[str, str] | None = None, seconds: float | None = COMMAND_SECONDS,
               keep: Sequence[int] = ()) -> subprocess.CompletedProcess[bytes]:  # fmt: skip
    """Run an engine's command; raises Unreachable if the command is not installed or takes too long.

    It inherits the open files `keep`.
    """
    try:
        return subprocess.run(
            words, input=given, cwd=inside, env=variables, capture_output=True, timeout=seconds, pass_fds=keep
        )
    except FileNotFoundError as error:
        raise Unreachable(f"there is no {words[0]} here", f"install it, or go where {words[0]} is") from error
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{words[0]} gave no answer within {seconds:.0f} s", "try again") from error


def measuring_files(asked: Measuring) -> dict[str, str]:
    """Return the files of a calibration by name, in addition to `sources`."""
    return {
        f"{JOB}/{SETUP}": parts.setup_script(parts.torch_install(find_gpu(asked.gpu))),
        f"{JOB}/requirements.txt": "".join(parts.pinned(parts.PACKAGES + parts.MEASURING_PACKAGES)),
        f"{JOB}/{RUN}": parts.measure_script([asked.command]),
    }


def limit_seconds(asked: Measuring) -> float:
    """Return the seconds after which an engine may end the calibration."""
    return LONGER * asked.seconds + START_SECONDS
