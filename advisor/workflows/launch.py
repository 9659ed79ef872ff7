"""From a plan to a run: the plan is claimed, its job started by one engine; later stopped, or resumed there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import overload

from advisor.engines.backend import Backend, Job, LaunchRequest
from advisor.engines.claim import claim, refuse_a_running_plan
from advisor.engines.engines import backend_of, describe, handle_of
from advisor.engines.guards import guard_warnings
from advisor.engines.jobs import new_job, refuse_a_second_run, resumed_job, steps_again
from advisor.engines.process import folder_lock
from advisor.engines.state import RunStatus, settle
from advisor.errors import AdvisorError
from advisor.prediction.software import software_of, words_of
from advisor.records import Plan
from advisor.run_records import Arriving, LaunchRecord, Place
from advisor.store.disk import disk_errors, read_yaml
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch, read_run_config
from advisor.store.store import Store
from advisor.trainers.adapter import Trainer
from advisor.trainers.own import OWN
from advisor.workflows.preflight import Check, Finding, checkpoint_checks, data_checks, preflight, told
from trainer.schema import LossStop, RunConfig

HERE = Place()


@dataclass(frozen=True, kw_only=True)
class Started:
    """A run that was just started."""

    run_dir: Path
    launch: LaunchRecord
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may end a run early, as a person gives it. None: no limit; for a resumed run: as before."""

    max_usd: float | None = None
    max_hours: float | None = None
    loss: Sequence[LossStop] | None = None


def read_source(path: Path) -> Plan | RunConfig:
    """Read a plan, or a bare run configuration where the file is one; raises AdvisorError."""
    raw = read_yaml(path, "plan")
    return read_run_config(path) if "model" in raw and "run" not in raw else load_plan(path)


def refuse_other_software(source: Plan | RunConfig) -> None:
    """Raise AdvisorError (exit 2) for a plan of other people's software, which nothing here starts."""
    if isinstance(source, Plan) and source.goal.software is not None:
        name = words_of(software_of(source.goal.software))
        hint = "start it by its own command under `advisor adopt`, or plan again without --software"
        raise AdvisorError(f"this plan is for {name}: its hours are not those of the trainer here", hint, exit_code=2)


def with_notice(source: Plan | RunConfig, notice: str | None) -> Plan | RunConfig:
    """What to launch, told where the end of its machine is announced: a file, or an address of that machine itself."""
    if notice is None:
        return source
    if "://" not in notice and not Path(notice).is_absolute():
        hint = "name its whole path: a run starts in its own folder"
        raise AdvisorError(f"--notice {notice}: that file may be anywhere", hint, exit_code=2)
    config = source.run if isinstance(source, Plan) else source
    config = replace(config, stop=replace(config.stop, notice=notice))
    if problems := [problem for problem in config.problems() if problem.startswith("stop.notice")]:
        raise AdvisorError(f"--notice {notice}: {problems[0]}", "let something there write a file", exit_code=2)
    return replace(source, run=config) if isinstance(source, Plan) else config


@overload
def with_synthetic(source: Plan, asked: bool) -> Plan: ...
@overload
def with_synthetic(source: Plan | RunConfig, asked: bool) -> Plan | RunConfig: ...
def with_synthetic(source: Plan | RunConfig, asked: bool) -> Plan | RunConfig:
    """The plan or configuration, with random tokens where these were asked for; AdvisorError where it has data."""
    config = source.run if isinstance(source, Plan) else source
    if not asked:
        return source
    if config.data.path is not None:
        raise AdvisorError(f"--synthetic: it trains on {config.data.path}", "leave --synthetic out", exit_code=2)
    config = replace(config, data=replace(config.data, synthetic=True))
    if not isinstance(source, Plan):
        return config
    return replace(source, goal=replace(source.goal, synthetic=True), run=config)  # an arrival plans by the goal again


def launch(
    store: Store,
    source: Plan | RunConfig,
    run_dir: Path | None = None,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    again: bool = False,
    place: Place = HERE,
    backend: Backend | None = None,
    trainer: Trainer = OWN,
    arriving: Arriving | None = None,
) -> Started:
    """Start a plan, or a bare configuration, in a new run folder; by default one under the store's `runs/`.

    A plan whose run is going on is not started beside it unless `again` is set: the error names that run. Where
    `arriving` says how, an engine elsewhere measures its machine first and plans again. Raises AdvisorError when the
    folder holds a run already, a limit makes no sense or the process cannot be started.
    """
    backend = backend or backend_of(place.engine, store)
    plan_id = source.id if isinstance(source, Plan) else None  # a bare configuration has no name to be known by
    with claim(store, plan_id) if plan_id is not None and not again else contextlib.nullcontext():
        job = _job(store, source, run_dir, limits, trainer, place, arriving)
        job = _in_its_folder(job, store, is_given=run_dir is not None)
        with folder_lock(job.folder):
            refuse_a_second_run(job.folder, trainer, store)
            return _submit(backend, job)


def dry_run(
    store: Store,
    source: Plan | RunConfig,
    run_dir: Path | None = None,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    again: bool = False,
    place: Place = HERE,
    backend: Backend | None = None,
    trainer: Trainer = OWN,
    arriving: Arriving | None = None,
) -> LaunchRequest:
    """What `launch` would write and start now; nothing is written. Raises AdvisorError as it would."""
    backend = backend or backend_of(place.engine, store)
    if isinstance(source, Plan) and not again:
        refuse_a_running_plan(store, source.id)
    job = _job(store, source, run_dir, limits, trainer, place, arriving)
    refuse_a_second_run(job.folder, trainer, store)
    return backend.dryrun(job)


def resume(
    store: Store,
    run_dir: Path,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    usd_per_hour: float | None = None,
    synthetic: bool = False,
    backend: Backend | None = None,
) -> Started:
    """Start the run of a folder again from its last checkpoint, where it was started; new limits replace the old ones.

    `usd_per_hour` is the price of all devices from now on; what was spent before was spent at the old one.
    `synthetic` lets a run go on that has no data and was not asked to have none.

    Raises AdvisorError when it is running, has completed, or has used up the time it was given.
    """
    run_dir = run_dir.resolve()
    backend = backend or backend_of(handle_of(run_dir), store)
    with folder_lock(run_dir):
        settle(run_dir)
        status = describe(run_dir, store)
        job = resumed_job(run_dir, status, max_usd=limits.max_usd, max_hours=limits.max_hours, loss=limits.loss,
                          usd_per_hour=usd_per_hour, synthetic=synthetic)  # fmt: skip
        started = _submit(backend, job)
    again = steps_again(run_dir, status.step)
    return started if again is None else replace(started, warnings=(*started.warnings, again))


def stop(store: Store, run_dir: Path, *, timeout_seconds: float = 120.0, force: bool = False) -> RunStatus:
    """Ask a run to save and end, and wait for it; with `force`, kill it after the timeout.

    Gives the state it ended in; a run that is over is left as it is. Raises AdvisorError when it still runs.
    """
    return backend_of(handle_of(run_dir), store).cancel(run_dir, timeout_seconds=timeout_seconds, force=force)


def fetch(store: Store, run_dir: Path) -> str:
    """Bring a run's checkpoints to its folder here, and say where they are; AdvisorError where they cannot be had."""
    return backend_of(handle_of(run_dir), store).fetch(run_dir)


def looked_at(store: Store, source: Plan | RunConfig, place: Place, limits: Limits) -> list[Check]:
    """What a launch needs, each looked at: here, or by asking the engine; nothing is started or written."""
    if place.engine == HERE.engine:
        return preflight(store, source, place)
    config = source.run if isinstance(source, Plan) else source
    if config.data.path is None and not config.data.synthetic:
        return list(data_checks(config))  # there is no job to ask the engine about
    backend = backend_of(place.engine, store)
    try:
        offer = backend.offer(backend.dryrun(_job(store, source, None, limits, OWN, place)))
    except AdvisorError as error:
        return [Check(of=place.engine, finding=Finding.MISSING, words=error.message)]
    checks = [Check(of=place.engine, finding=Finding.FINE, words=words) for words in offer]
    checks += checkpoint_checks(store, source) if isinstance(source, Plan) else ()
    brought = place.engine == "ssh" or config.data.path is None
    checks += data_checks(config) if brought else ()  # elsewhere the data are not looked at from here
    if (limits.max_usd, limits.max_hours, config.stop.max_seconds) == (None, None, None):
        words = "nobody limits what it may spend there, and it starts again after a failure: --max-usd or --max-hours"
        checks.append(Check(of="limits", finding=Finding.WARNING, words=words))
    return checks


def beforehand(store: Store, source: Plan | RunConfig, place: Place, limits: Limits) -> list[str]:
    """What is to be said of a launch before it: warnings, when it would start elsewhere; AdvisorError where it cannot,
    with everything that is missing at once.
    """
    return told(looked_at(store, source, place, limits))


def _job(
    store: Store, source: Plan | RunConfig, run_dir: Path | None, limits: Limits, trainer: Trainer, place: Place,
    arriving: Arriving | None = None,
) -> Job:  # fmt: skip
    """The first attempt, in a folder that need not be there yet."""
    refuse_other_software(source)
    now = datetime.now(UTC)
    name = source.run.name if isinstance(source, Plan) else source.name
    folder = store.run_folder(name, now) if run_dir is None else run_dir.expanduser().resolve()
    return new_job(
        source,
        folder,
        trainer,
        now=now,
        run_id=folder.name if run_dir is None else f"{folder.name}-{now:%Y%m%d-%H%M%S}",
        max_usd=limits.max_usd,
        max_hours=limits.max_hours,
        loss=limits.loss or (),
        place=place,
        arriving=arriving,
    )


def _in_its_folder(job: Job, store: Store, *, is_given: bool) -> Job:
    """The job with its folder made: the one that was given, else one that nobody has."""
    if is_given:
        with disk_errors("make the run folder", job.folder):
            job.folder.mkdir(parents=True, exist_ok=True)
        return job
    folder = store.new_run_folder(job.record.name, datetime.fromisoformat(job.record.launched_at))
    return replace(job, folder=folder, record=replace(job.record, id=folder.name))


def _submit(backend: Backend, job: Job) -> Started:
    backend.submit(backend.dryrun(job))
    record = read_launch(job.folder)
    assert record is not None  # the backend has just written it
    return Started(
        run_dir=job.folder, launch=record, warnings=tuple(guard_warnings(record.guards, record.usd_per_hour))
    )
