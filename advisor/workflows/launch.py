"""Launches a plan: claims it, starts its job on an engine, and later stops or resumes it there."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, overload

from advisor.engines.backend import Backend, Job, LaunchRequest
from advisor.engines.engines import MEASURED_THERE, backend_of, describe, handle_of, parse_place
from advisor.engines.gpu_locks import parse_gpu_ids
from advisor.engines.guards import GuardLimits, parse_loss_stop, with_limits_of
from advisor.engines.jobs import (
    adopted_job,
    change_limits,
    claim,
    new_job,
    refuse_a_running_plan,
    refuse_a_second_run,
    resumed_job,
    steps_again,
)
from advisor.engines.process import folder_lock
from advisor.engines.state import RunState, RunStatus, settle, this_host
from advisor.errors import AdvisorError, require_package
from advisor.offer import Offer
from advisor.options import CalibrationOptions, ExportOptions, LaunchOptions, ResumeOptions
from advisor.prediction.software import software_of, words_of
from advisor.records import Plan
from advisor.run_records import LaunchRecord, Place
from advisor.store.adopted import AdoptedPlan, load_adopted
from advisor.store.disk import disk_errors, dump_yaml, read_yaml
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch, read_run_config
from advisor.store.store import Store
from advisor.trainers.adapter import Trainer
from advisor.trainers.adopted import ADOPTED
from advisor.trainers.own import OWN
from advisor.units import HOUR, format_estimate, format_seconds
from advisor.workflows.budget import NotReservedError, reserved
from advisor.workflows.preflight import Check, Readiness, checkpoint_checks, data_checks, preflight, raise_if_missing
from trainer.budget import Budget, Spent
from trainer.schema import TRACE_LEAD, TRACE_WARMUP, RunConfig, StopConfig, to_dict

HERE = Place()
SHORTEST_RUN_SECONDS = 600.0  # a shorter one does not justify a calibration


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run that was just started."""

    run_dir: Path
    launch: LaunchRecord
    warnings: tuple[str, ...] = ()


def limits_of(options: LaunchOptions | ExportOptions | ResumeOptions) -> GuardLimits:
    """Returns the limits that the options state. Raises AdvisorError (exit 2) for an invalid stop on the loss."""
    stops = options.stop_loss if not isinstance(options, ExportOptions) else ()
    unlimited = not isinstance(options, ResumeOptions) and options.no_limits
    if unlimited and (options.budget is not None or options.deadline is not None):
        raise AdvisorError("--no-limits and a limit were both given", "leave one of them out", exit_code=2)
    return GuardLimits(
        from_plan=not unlimited,
        max_usd=options.budget,
        max_hours=None if options.deadline is None else options.deadline / HOUR,
        loss=[parse_loss_stop(text) for text in stops if text != "none"] if stops else None,
    )


@dataclass(frozen=True, kw_only=True)
class Launching:
    """The launch of a plan in a file: its checks, its dry run and its start."""

    checks: Callable[[], list[Check]]
    request: Callable[[], LaunchRequest]
    start: Callable[[], StartedRun]


def launching(
    store: Store,
    source: Path | Plan | RunConfig,
    options: LaunchOptions,
    say: Callable[[str], None] = lambda text: None,
    measure: Callable[[CalibrationOptions], Any] | None = None,
) -> Launching:
    """Returns the launch of a plan for the trainer here, or of a bare configuration; raises AdvisorError.

    `say` receives what the user should know before the start; `measure` calibrates this machine.
    """
    path, source = source, read_source(source) if isinstance(source, Path) else source
    place, limits = place_of(options), limits_of(options)
    if options.gate:
        if not isinstance(source, Plan):
            hint = f"write them into {path} under stop.gates, each with step and above"
            raise AdvisorError("--gate needs a plan, which predicts the loss", hint, exit_code=2)
        from advisor.planning.stages import with_gates  # needs numpy, which other launches start without

        source = with_gates(source, options.gate)
    source = with_trace(with_notice(with_synthetic(source, options.synthetic), options.notice), options.trace)
    measures = _measures_first(store, source, place, options)
    first: tuple[str, ...] = ()
    if measures and place.engine != HERE.engine and isinstance(source, Plan):
        from advisor.workflows.plan_like import commands_first

        first = commands_first(source, options)

    def start() -> StartedRun:
        for words in beforehand(store, source, place, limits):
            say(words)
        launched, left, write_first = source, limits, None
        if measures and options.calibrate is None and (first or measure is not None):
            say("the plan rests on no measurement of its machine, which is calibrated first (--no-calibrate: not)")
        if measures and not first and measure is not None and isinstance(source, Plan):
            from advisor.workflows.plan_like import measured_first

            left = replace(with_limits_of(source, limits), from_plan=False)  # those of before: measuring counts
            began, price = time.monotonic(), StopConfig(usd_per_hour=source.offer.usd_per_hour)
            launched = measured_first(source, options, store, measure, say)
            seconds = time.monotonic() - began
            write_first = lambda folder: Budget(lambda: folder, price, Spent(), age_seconds=seconds).end()  # noqa: E731
        return launch(store, launched, options.run_dir, limits=left, again=options.again, place=place,
                      commands_first=first, write_first=write_first)  # fmt: skip

    return Launching(
        checks=lambda: looked_at(store, source, place, limits),
        request=lambda: dry_run(store, source, options.run_dir, limits=limits, again=options.again, place=place,
                                commands_first=first),
        start=start,
    )  # fmt: skip


def place_of(options: LaunchOptions) -> Place:
    """Returns the place where the options start a run. Raises AdvisorError (exit 2) if they name none."""
    return parse_place(options.on, account=options.account, qos=options.qos, constraint=options.constraint,
                       gpu_ids=parse_gpu_ids(options.gpu_ids))  # fmt: skip


def _measures_first(store: Store, source: Plan | RunConfig, place: Place, options: LaunchOptions) -> bool:
    """Tells whether a machine is calibrated before its run: as asked, or if a long run rests on no calibration here.

    Calibrations here say nothing of a CPU elsewhere, because all CPUs share one name.
    """
    if place.engine not in (HERE.engine, *MEASURED_THERE):
        if options.calibrate or options.may_change or options.stop_if_over is not None:
            hint = "leave out --calibrate, --may-change and --stop-if-over; or launch it on that machine itself"
            raise AdvisorError(f"a run on {place.engine} is not calibrated before it starts", hint, exit_code=2)
        return False
    if not isinstance(source, Plan) or options.calibrate is not None:
        return isinstance(source, Plan) and bool(options.calibrate)
    if source.grounds is None or source.bill.wall_clock.total_seconds.value < SHORTEST_RUN_SECONDS:
        return False
    if place.engine != HERE.engine and source.workload.gpu == "cpu":
        return True
    return source.grounds.calibration not in {entry.id for entry in store.list_calibrations()}


def read_source(path: Path) -> Plan | RunConfig:
    """Read a plan or a bare run configuration, whichever the file is; raises AdvisorError."""
    raw = read_yaml(path, "plan")
    return read_run_config(path) if "model" in raw and "run" not in raw else load_plan(path)


def refuse_other_software(source: Plan | RunConfig) -> None:
    """Raise AdvisorError (exit 2) for a plan of other software, which this program does not start."""
    if isinstance(source, Plan) and source.goal.software is not None:
        name = words_of(software_of(source.goal.software))
        hint = "start it by its own command under `advisor adopt`, or plan again without --software"
        raise AdvisorError(f"this plan is for {name}: its hours are not those of this trainer", hint, exit_code=2)


def with_notice(source: Plan | RunConfig, notice: str | None) -> Plan | RunConfig:
    """Returns the plan with the file or address at which the end of its machine is announced."""
    if notice is None:
        return source
    if "://" not in notice and not Path(notice).is_absolute():
        hint = "name its whole path: a run starts in its own folder"
        raise AdvisorError(f"--notice {notice}: this is not a full path", hint, exit_code=2)
    config = source.config if isinstance(source, Plan) else source
    config = replace(config, stop=replace(config.stop, notice=notice))
    if problems := [problem for problem in config.problems() if problem.startswith("stop.notice")]:
        raise AdvisorError(f"--notice {notice}: {problems[0]}", "let something there write a file", exit_code=2)
    return replace(source, run=config) if isinstance(source, Plan) else config


def with_trace(source: Plan | RunConfig, steps: int | None) -> Plan | RunConfig:
    """Returns the plan whose run records a profiler trace of so many steps. Raises AdvisorError if it has too few."""
    if steps is None:
        return source
    config = source.config if isinstance(source, Plan) else source
    if config.steps < (least := steps + TRACE_LEAD + TRACE_WARMUP):
        before = f"a trace begins after {TRACE_LEAD + TRACE_WARMUP} steps"
        raise AdvisorError(f"--trace {steps} needs a run of {least} steps: {before}", "ask for fewer", exit_code=2)
    config = replace(config, trace_steps=steps)
    return replace(source, run=config) if isinstance(source, Plan) else config


@overload
def with_synthetic(source: Plan, requested: bool) -> Plan: ...
@overload
def with_synthetic(source: Plan | RunConfig, requested: bool) -> Plan | RunConfig: ...
def with_synthetic(source: Plan | RunConfig, requested: bool) -> Plan | RunConfig:
    """Returns the plan or configuration with random tokens if requested; raises AdvisorError if it names a dataset."""
    config = source.config if isinstance(source, Plan) else source
    if not requested:
        return source
    if config.data.path is not None:
        raise AdvisorError(f"--synthetic: the run trains on {config.data.path}", "leave --synthetic out", exit_code=2)
    config = replace(config, data=replace(config.data, synthetic=True))
    if not isinstance(source, Plan):
        return config
    return replace(source, goal=replace(source.goal, synthetic=True), run=config)  # `plan --like` plans from the goal


def launch(
    store: Store,
    source: Plan | RunConfig | AdoptedPlan,
    run_dir: Path | None = None,
    *,
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - frozen
    again: bool = False,
    place: Place = HERE,
    trainer: Trainer = OWN,
    commands_first: tuple[str, ...] = (),
    write_first: Callable[[Path], None] | None = None,
    team: str | None = None,
) -> StartedRun:
    """Start a plan, or a bare configuration, in a new run folder; by default one under the store's `runs/`.

    If the plan already has an active run, the error names that run; `again` starts another. `commands_first` is as in
    `LaunchRecord`. `write_first` writes to the folder before the start. `team` is the one whose dollars it spends
    (None: that of ADVISOR_TEAM). Raises AdvisorError if the folder already holds a run, a limit makes no sense, too few
    dollars are left or the process cannot be started.
    """
    if place.engine == HERE.engine and trainer is OWN and not isinstance(source, AdoptedPlan):
        require_package("torch", "training here")
    plan_id = None if isinstance(source, RunConfig) else source.id  # a bare configuration has no id
    with claim(store, plan_id) if plan_id is not None and not again else contextlib.nullcontext():
        job = _job(store, source, run_dir, limits=limits, trainer=trainer, place=place, commands_first=commands_first)
        # Make the job with its folder: the one that was given, or else an unused one.
        if run_dir is not None:
            with disk_errors("make the run folder", job.folder):
                job.folder.mkdir(parents=True, exist_ok=True)
        else:
            folder = store.new_run_folder(job.record.name, datetime.fromisoformat(job.record.launched_at))
            job = replace(job, folder=folder, record=replace(job.record, id=folder.name))
        with folder_lock(job.folder):
            refuse_a_second_run(job.folder, job.trainer, store)
            if write_first is not None:
                write_first(job.folder)
            try:
                return _submit(backend_of(place.engine, store), job, team)
            except NotReservedError:
                if run_dir is None:
                    shutil.rmtree(job.folder)
                raise


def dry_run(
    store: Store,
    source: Plan | RunConfig | AdoptedPlan,
    run_dir: Path | None = None,
    *,
    again: bool = False,
    **requested: Any,
) -> LaunchRequest:
    """Returns what `launch` would write and start with these options. Writes nothing and raises the same errors."""
    job = _job(store, source, run_dir, **requested)
    if not isinstance(source, RunConfig) and not again:
        refuse_a_running_plan(store, source.id)
    refuse_a_second_run(job.folder, job.trainer, store)
    return backend_of(job.record.place.engine, store).dryrun(job)


def resume(
    store: Store,
    run_dir: Path,
    *,
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - frozen
    usd_per_gpu_hour: float | None = None,
    synthetic: bool = False,
    place: Place | None = None,
    offer: Offer | None = None,
) -> StartedRun:
    """Resume the run of a folder from its last checkpoint, where it was started. Each new limit replaces its old one.

    `usd_per_gpu_hour` is the price from now on; earlier attempts keep their price. `synthetic` lets a run without data
    continue with random tokens even if its configuration does not ask for them. `place` and `offer` are those of
    another machine of the same engine that has the run folder too.

    Raises AdvisorError if the run is active, has completed, or has used up its time.
    """
    run_dir = run_dir.resolve()
    with folder_lock(run_dir):
        settle(run_dir)
        status = describe(run_dir, store)
        job = resumed_job(run_dir, status, limits=limits, usd_per_gpu_hour=usd_per_gpu_hour, synthetic=synthetic,
                          place=place, offer=offer)  # fmt: skip
        started = _submit(backend_of(handle_of(run_dir), store), job)
    if isinstance(job.plan, AdoptedPlan):
        unknown = "no known option makes this program continue: it starts again at its first step"
        again = None if job.plan.resume_args else unknown
    else:
        again = steps_again(run_dir, status.step)
    return started if again is None else replace(started, warnings=(*started.warnings, again))


def give_more(store: Store, run_dir: Path, limits: GuardLimits) -> StartedRun:
    """Give a run other limits, each in place of its old one: at once if it runs on this machine, else by resuming it.

    Raises AdvisorError if the limits cannot change, make no sense or are used up.
    """
    run_dir = run_dir.resolve()
    if describe(run_dir, store).state is not RunState.RUNNING or limits == GuardLimits():
        return resume(store, run_dir, limits=limits)
    with folder_lock(run_dir):
        record = change_limits(run_dir, limits)
    return StartedRun(run_dir=run_dir, launch=record, warnings=("it was running already: only its limits changed",))


def stop(store: Store, run_dir: Path, *, timeout_seconds: float = 120.0, force: bool = False) -> RunStatus:
    """Ask a run to save and end, and wait for it; with `force`, kill it after the timeout.

    Returns its final state; a run that is over does not change. Raises AdvisorError if the run is still active.
    """
    return backend_of(handle_of(run_dir), store).cancel(run_dir, timeout_seconds=timeout_seconds, force=force)


def fetch(store: Store, run_dir: Path) -> str:
    """Copy a run's checkpoints to its folder here; returns their place. Raises AdvisorError if they are unavailable."""
    return backend_of(handle_of(run_dir), store).fetch(run_dir)


def looked_at(store: Store, source: Plan | RunConfig, place: Place, limits: GuardLimits) -> list[Check]:
    """Checks everything that a launch needs, here or by asking the engine; nothing is started or written."""
    if place.engine == HERE.engine:
        return preflight(store, source, place)
    config = source.config if isinstance(source, Plan) else source
    if config.data.path is None and not config.data.synthetic:
        return list(data_checks(config))  # without a job there is nothing to ask the engine
    backend = backend_of(place.engine, store)
    checks = offered(
        place.engine, lambda: backend.offer(backend.dryrun(_job(store, source, None, limits=limits, place=place)))
    )
    if any(check.finding is Readiness.MISSING for check in checks):
        return checks
    checks += checkpoint_checks(store, source) if isinstance(source, Plan) else ()
    brought = place.engine == "ssh" or config.data.path is None
    checks += data_checks(config) if brought else ()  # data that are already elsewhere cannot be checked from here
    limits = with_limits_of(source if isinstance(source, Plan) else None, limits)
    if (limits.max_usd, limits.max_hours, config.stop.max_seconds) == (None, None, None):
        words = "its spending there has no limit, and it starts again after a failure: --budget or --deadline"
        checks.append(Check(of="limits", finding=Readiness.WARNING, words=words))
    return checks


def offered(engine: str, ask: Callable[[], list[str]]) -> list[Check]:
    """Returns what an engine answers to a launch request, as checks."""
    try:
        return [Check(of=engine, finding=Readiness.FINE, words=words) for words in ask()]
    except AdvisorError as error:
        return [Check(of=engine, finding=Readiness.MISSING, words=error.message)]


def beforehand(store: Store, source: Plan | RunConfig, place: Place, limits: GuardLimits) -> list[str]:
    """Returns warnings before a launch elsewhere; raises AdvisorError with all that is missing if it cannot start."""
    return raise_if_missing(looked_at(store, source, place, limits))


def _job(
    store: Store,
    source: Plan | RunConfig | AdoptedPlan,
    run_dir: Path | None,
    *,
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - frozen
    trainer: Trainer = OWN,
    place: Place = HERE,
    commands_first: tuple[str, ...] = (),
) -> Job:
    """Makes the job of a first attempt; its folder need not exist."""
    now = datetime.now(UTC)
    if isinstance(source, AdoptedPlan):
        name = source.trainer
    else:
        name = source.config.name if isinstance(source, Plan) else source.name
    folder = store.run_folder(name, now) if run_dir is None else run_dir.expanduser().resolve()
    unique = run_dir is None or folder.parent == (store.home / "runs").resolve()
    run_id = folder.name if unique else f"{folder.name}-{now:%Y%m%d-%H%M%S}"
    if isinstance(source, AdoptedPlan):
        launched_at = now.isoformat(timespec="milliseconds")
        record = LaunchRecord(id=run_id, name=name, attempt=1, launched_at=launched_at, host=this_host(),
                              gpus=source.offer.gpus, plan_id=source.id, device_key=source.offer.gpu,
                              place=place, trainer=ADOPTED.name)  # fmt: skip
        recipe = load_adopted(store.home, source.trainer).recipe
        return adopted_job(source, dump_yaml(to_dict(recipe)), folder, record)
    refuse_other_software(source)
    return new_job(source, folder, trainer, now=now, run_id=run_id, limits=limits, place=place,
                   commands_first=commands_first)  # fmt: skip


def _submit(backend: Backend, job: Job, team: str | None = None) -> StartedRun:
    request = backend.dryrun(job)
    with reserved(job, backend.store, team):
        backend.submit(request)
    record = read_launch(job.folder)
    assert record is not None  # the backend has just written it
    never = record.guards.max_usd is not None and record.usd_per_hour == 0
    warnings = ["--budget never stops this run: its price is $0 an hour. --deadline limits its time"] if never else []
    if isinstance(job.plan, Plan) and job.plan.goal.deadline_at is not None and record.guards.max_hours is not None:
        left, needed = record.guards.max_hours * HOUR, job.plan.chosen.total_seconds
        if needed.value > left:
            takes = format_estimate(needed, format_seconds)
            warnings.append(f"its limit stops it after {format_seconds(left)}, and it takes {takes}: plan again")
    return StartedRun(run_dir=job.folder, launch=record, warnings=tuple(warnings))
