"""The plan of an adopted command to a run: here or elsewhere; gone on with, looked at beforehand."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines.backend import Job, LaunchRequest
from advisor.engines.engines import backend_of, describe
from advisor.engines.local import LocalBackend
from advisor.engines.process import folder_lock
from advisor.engines.state import RunState, check_not_running, this_host
from advisor.errors import AdvisorError
from advisor.run_records import Guards, LaunchRecord, Place
from advisor.store.adopted import PLAN, AdoptedPlan, Recipe, dump_adopted_plan, load_adopted, load_adopted_plan
from advisor.store.disk import disk_errors, dump_yaml
from advisor.store.run_folder import read_launch
from advisor.store.store import Store
from advisor.trainers.adopted import ADOPTED, RECIPE, spent_seconds
from advisor.workflows.adopt_elsewhere import Elsewhere, warnings_of
from advisor.workflows.launch import Started
from advisor.workflows.preflight import Check, Finding
from trainer.schema import Outcome, to_dict


def launch_adopted(
    store: Store,
    plan: AdoptedPlan,
    run_dir: Path | None = None,
    *,
    place: Place = Place(),  # noqa: B008 - frozen
    there: Elsewhere = Elsewhere(),  # noqa: B008 - frozen
) -> Started:
    """Start the plan of an adopted command in a run folder of its own: here, or where `place` says.

    Raises AdvisorError for an engine that takes none, or that has not what it needs.
    """
    if place.engine != LocalBackend.engine:  # before there is a folder
        backend_of(place.engine, store).offer(dry_run_adopted(store, plan, run_dir, place, there))
    now, plan = datetime.now(UTC), _there(plan, place, there)
    if run_dir is not None:
        folder = run_dir.expanduser().resolve()
        with disk_errors("make the run folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = store.new_run_folder(plan.trainer, now)
    with folder_lock(folder):
        if (folder / PLAN).exists():
            raise AdvisorError(f"{folder} holds a run already", f"go on with it: advisor resume {folder}")
        recipe = load_adopted(store.home, plan.trainer).recipe
        return _submit(store, folder, plan, recipe, _record(plan, folder, now, attempt=1, place=place))


def resume_adopted(store: Store, folder: Path, max_usd: float | None, max_hours: float | None) -> Started:
    """Start the command of an adopted run again; new limits replace the old ones."""
    status = describe(folder, store)
    check_not_running(folder, status)
    if status.outcome is Outcome.COMPLETED:
        raise AdvisorError(f"{folder} has completed: nothing to resume", f"advisor compare {folder}")
    plan, before = load_adopted_plan(folder / PLAN), read_launch(folder)
    assert before is not None  # an adopted run is known by its launch record
    if max_usd is not None or max_hours is not None:
        if max_usd is not None and not plan.usd_per_hour:
            raise AdvisorError("a limit in dollars needs a price, and the plan has none", "--max-hours", exit_code=2)
        limits = [max_hours * 3600] if max_hours is not None else []
        limits += [max_usd / plan.usd_per_hour * 3600] if max_usd is not None and plan.usd_per_hour else []
        plan = replace(plan, max_usd=max_usd, max_seconds=min(limits, default=None))
    used = spent_seconds(folder)
    if plan.max_seconds is not None and used >= plan.max_seconds:
        message = f"{folder} has used {used:.0f} s of the {plan.max_seconds:.0f} s it was given"
        more = 2 * plan.max_seconds / 3600
        raise AdvisorError(message, f"give it more: advisor resume {folder} --max-hours {more:.3g}")
    attempt = before.attempt + (status.state is not RunState.NEVER_STARTED)
    record = _record(plan, folder, datetime.now(UTC), attempt=attempt, place=before.place)
    recipe = load_adopted(store.home, plan.trainer).recipe
    started = _submit(store, folder, plan, recipe, replace(record, id=before.id))
    if plan.resume_args:
        return started
    return replace(
        started, warnings=("nothing is known that makes this program go on: it starts again at its first step",)
    )


def _record(plan: AdoptedPlan, folder: Path, now: datetime, attempt: int, place: Place) -> LaunchRecord:
    return LaunchRecord(
        id=folder.name,
        name=plan.trainer,
        attempt=attempt,
        launched_at=now.isoformat(timespec="milliseconds"),
        host=this_host(),
        pid=None,
        process_started=None,
        command=ADOPTED.command(folder, plan.gpus),
        gpus=plan.gpus,
        usd_per_hour=plan.usd_per_hour,
        guards=Guards(max_usd=plan.max_usd, max_seconds=plan.max_seconds),
        plan_id=plan.id,
        device_key=plan.device_key,
        handle=f"local://{folder}" if place.engine == LocalBackend.engine else f"{place.engine}://",
        place=place,
        trainer=ADOPTED.name,
    )


def dry_run_adopted(
    store: Store, plan: AdoptedPlan, run_dir: Path | None, place: Place, there: Elsewhere
) -> LaunchRequest:
    """What `launch_adopted` would write and start now; nothing is written. Raises AdvisorError as it would."""
    now, plan = datetime.now(UTC), _there(plan, place, there)
    folder = store.run_folder(plan.trainer, now) if run_dir is None else run_dir.expanduser().resolve()
    recipe = load_adopted(store.home, plan.trainer).recipe
    return _request(store, folder, plan, recipe, _record(plan, folder, now, attempt=1, place=place))


def looked_at_adopted(store: Store, plan: AdoptedPlan, place: Place, there: Elsewhere) -> list[Check]:
    """What a launch needs, each looked at: here, or by asking the engine; nothing is started or written."""
    if place.engine == LocalBackend.engine:
        _there(plan, place, there)
        folder, program = Path(plan.folder).expanduser(), plan.command[0]
        found = shutil.which(program, path=None if "/" not in program else os.fspath(folder))
        beside = (folder / program).is_file() and os.access(folder / program, os.X_OK)
        return [
            _check("folder", folder.is_dir(), f"it is typed in {folder}", f"there is no folder {folder}"),
            _check("program", bool(found) or beside, f"its program is {found or program}", f"there is no {program}"),
        ]
    backend = backend_of(place.engine, store)
    try:
        offered = backend.offer(dry_run_adopted(store, plan, None, place, there))
    except AdvisorError as error:
        return [Check(of=place.engine, finding=Finding.MISSING, words=error.message)]
    checks = [Check(of=place.engine, finding=Finding.FINE, words=words) for words in offered]
    of_there = warnings_of(there.of(plan), shared=place.engine == "slurm")
    return checks + [Check(of="machine", finding=Finding.WARNING, words=words) for words in of_there]


def _check(of: str, fine: bool, words: str, lacking: str) -> Check:
    return Check(of=of, finding=Finding.FINE if fine else Finding.MISSING, words=words if fine else lacking)


def _there(plan: AdoptedPlan, place: Place, there: Elsewhere) -> AdoptedPlan:
    """The plan as it holds where it is launched."""
    if place.engine != LocalBackend.engine:
        return there.of(plan)
    if there != Elsewhere():
        raise AdvisorError("--bootstrap and --folder are of another machine", "leave them out, or --on", exit_code=2)
    return plan


def _request(store: Store, folder: Path, plan: AdoptedPlan, recipe: Recipe, record: LaunchRecord) -> LaunchRequest:
    """What is started, by the engine that the record names."""
    files = {PLAN: dump_adopted_plan(plan), RECIPE: dump_yaml(to_dict(recipe))}
    job = Job(folder=folder, trainer=ADOPTED, config=None, plan=plan, files=files, record=record)
    return backend_of(record.place.engine, store).dryrun(job)


def _submit(store: Store, folder: Path, plan: AdoptedPlan, recipe: Recipe, record: LaunchRecord) -> Started:
    request, backend = _request(store, folder, plan, recipe, record), backend_of(record.place.engine, store)
    warnings = (*plan.warnings, *backend.offer(request))  # whether it would take it at all
    backend.submit(request)
    if record.place.engine != LocalBackend.engine:
        warnings = (*warnings, *warnings_of(plan, shared=record.place.engine == "slurm"))
    started = read_launch(folder)
    assert started is not None  # the backend has just written it
    return Started(run_dir=folder, launch=started, warnings=warnings)
