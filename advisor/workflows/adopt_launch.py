"""The plan of an adopted command to a run: here or elsewhere; gone on with, looked at beforehand."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.engines.backend import Job, LaunchRequest
from advisor.engines.engines import backend_of, describe
from advisor.engines.export.adopted import AdoptedJob, adopted_files
from advisor.engines.export.targets import TARGETS
from advisor.engines.local import LocalBackend
from advisor.engines.process import folder_lock
from advisor.engines.state import RunState, check_not_running, this_host
from advisor.errors import AdvisorError
from advisor.options import ExportOptions, LaunchOptions
from advisor.run_records import Guards, LaunchRecord, Place
from advisor.store.adopted import PLAN, AdoptedPlan, dump_adopted_plan, load_adopted, load_adopted_plan
from advisor.store.disk import disk_errors, dump_yaml
from advisor.store.run_folder import read_launch
from advisor.store.store import Store
from advisor.trainers.adopted import ADOPTED, RECIPE, spent_seconds
from advisor.units import format_seconds, write_duration
from advisor.workflows.export import Exported, place_there
from advisor.workflows.launch import Launching, Limits, Started, offered, place_of
from advisor.workflows.preflight import Check, Finding
from trainer.schema import Outcome, to_dict

COMMAND_TARGETS = tuple(name for name, target in TARGETS.items() if target.commands)
_THERE = "~/code"  # where SkyPilot puts the command's folder


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What an adopted command needs on another machine. None: as here."""

    bootstrap: str | None = None  # a line of a shell, typed in the command's folder before it: its environment
    folder: str | None = None  # where the command is typed there; may begin with ~/

    def of(self, plan: AdoptedPlan) -> AdoptedPlan:
        """The plan as it holds there. Raises AdvisorError for a folder or a line that cannot be meant."""
        folder = self.folder or plan.folder
        if not folder.startswith(("/", "~/")):
            raise AdvisorError(f"--folder {folder} could lie anywhere", "a whole path, or one from ~/ on", exit_code=2)
        if self.bootstrap is not None and ("\n" in self.bootstrap or not self.bootstrap.strip()):
            raise AdvisorError("--bootstrap is one line of a shell", "like 'source .venv/bin/activate'", exit_code=2)
        return replace(plan, folder=folder, bootstrap=self.bootstrap or plan.bootstrap)


def warnings_of(plan: AdoptedPlan, *, shared: bool) -> tuple[str, ...]:
    """What is to be known of a run elsewhere; `shared`: by a file system that both machines have."""
    said = [
        f"what it promises was measured on another machine, {plan.device_key}: compare tells how much that was worth"
    ]
    if not shared:
        said.append(f"its program, data and environment must be there, in {plan.folder}: --bootstrap may fetch them")
    return tuple(said)


def export_file(store: Store, path: Path, to: str, options: ExportOptions) -> Exported:
    """The files to export for the plan in a file."""
    needs = Elsewhere(bootstrap=options.bootstrap, folder=options.folder)
    return export_adopted(store, load_adopted_plan(path), to, options, needs)


def export_adopted(
    store: Store,
    plan: AdoptedPlan,
    to: str,
    options: ExportOptions = ExportOptions(),  # noqa: B008 - frozen
    there: Elsewhere = Elsewhere(),  # noqa: B008
) -> Exported:
    """The files of an adopted plan for a script, Slurm or SkyPilot; AdvisorError for what it cannot take."""
    if to not in COMMAND_TARGETS:
        hint = f"to {', '.join(COMMAND_TARGETS)}; its run.sh is all that any other engine has to start"
        raise AdvisorError(f"an adopted command is not exported to {to}", hint, exit_code=2)
    here = plan.folder
    if to == "skypilot":
        there = replace(there, folder=there.folder or _THERE)
    plan = there.of(plan)
    recipe = load_adopted(store.home, plan.trainer).recipe
    run_id = f"{plan.trainer}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    job = AdoptedJob(
        plan=plan, recipe=dump_yaml(to_dict(recipe)), run_id=run_id, place=place_there(to, options), here=here
    )
    target = TARGETS[to]
    unlimited = f"nothing but the engine ends it, after {format_seconds(job.limit_seconds)}: plan it with a deadline"
    return Exported(
        main=target.main,
        files=adopted_files(job) | dict(target.files(job)),
        steps=tuple(target.steps(job)),
        warnings=(*(() if plan.max_seconds is not None else (unlimited,)), *warnings_of(plan, shared=to != "script")),
    )


def launching(store: Store, path: Path, options: LaunchOptions, *_: Any) -> Launching:
    """The launch of the plan of an adopted command; raises AdvisorError for what is no such plan."""
    plan, there = load_adopted_plan(path), Elsewhere(bootstrap=options.bootstrap, folder=options.folder)
    place, run_dir = place_of(options), options.run_dir
    return Launching(
        checks=lambda: looked_at_adopted(store, plan, place, there),
        request=lambda: dry_run_adopted(store, plan, run_dir, place, there),
        start=lambda: launch_adopted(store, plan, run_dir, place=place, there=there),
    )


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
        return _submit(store, plan, _request(store, folder, plan, now, place))


def resume_adopted(
    store: Store,
    folder: Path,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    **refused: Any,  # by the table of flows
) -> Started:
    """Start the command of an adopted run again; new limits replace the old ones."""
    max_usd, max_hours = limits.max_usd, limits.max_hours
    status = describe(folder, store)
    check_not_running(folder, status)
    if status.outcome is Outcome.COMPLETED:
        raise AdvisorError(f"{folder} has completed: nothing to resume", f"advisor compare {folder}")
    plan, before = load_adopted_plan(folder / PLAN), read_launch(folder)
    assert before is not None  # an adopted run is known by its launch record
    if max_usd is not None or max_hours is not None:
        if max_usd is not None and not plan.usd_per_hour:
            raise AdvisorError("a limit in dollars needs a price, and the plan has none", "--deadline", exit_code=2)
        seconds = [max_hours * 3600] if max_hours is not None else []
        seconds += [max_usd / plan.usd_per_hour * 3600] if max_usd is not None and plan.usd_per_hour else []
        plan = replace(plan, max_usd=max_usd, max_seconds=min(seconds, default=None))
    used = spent_seconds(folder)
    if plan.max_seconds is not None and used >= plan.max_seconds:
        message = f"{folder} has used {used:.0f} s of the {plan.max_seconds:.0f} s it was given"
        more = write_duration(math.ceil(2 * plan.max_seconds))
        raise AdvisorError(message, f"give it more: advisor resume {folder} --deadline {more}")
    attempt = before.attempt + (status.state is not RunState.NEVER_STARTED)
    before = replace(before, attempt=attempt)
    started = _submit(store, plan, _request(store, folder, plan, datetime.now(UTC), before.place, before))
    again = "nothing is known that makes this program go on: it starts again at its first step"
    return started if plan.resume_args else replace(started, warnings=(again,))


def dry_run_adopted(
    store: Store, plan: AdoptedPlan, run_dir: Path | None, place: Place, there: Elsewhere
) -> LaunchRequest:
    """What `launch_adopted` would write and start now; nothing is written. Raises AdvisorError as it would."""
    now, plan = datetime.now(UTC), _there(plan, place, there)
    folder = store.run_folder(plan.trainer, now) if run_dir is None else run_dir.expanduser().resolve()
    return _request(store, folder, plan, now, place)


def looked_at_adopted(store: Store, plan: AdoptedPlan, place: Place, there: Elsewhere) -> list[Check]:
    """What a launch needs, each looked at: here, or by asking the engine; nothing is started or written."""
    if place.engine == LocalBackend.engine:
        _there(plan, place, there)
        folder, program = Path(plan.folder).expanduser(), plan.command[0]
        found = shutil.which(program, path=None if "/" not in program else os.fspath(folder))
        beside = (folder / program).is_file() and os.access(folder / program, os.X_OK)
        needed = (
            ("folder", folder.is_dir(), f"it is typed in {folder}", f"there is no folder {folder}"),
            ("program", bool(found) or beside, f"its program is {found or program}", f"there is no {program}"),
        )
        return [Check(of=of, finding=Finding.FINE if fine else Finding.MISSING, words=words if fine else lacking)
                for of, fine, words, lacking in needed]  # fmt: skip
    backend = backend_of(place.engine, store)
    checks = offered(place.engine, lambda: backend.offer(dry_run_adopted(store, plan, None, place, there)))
    if any(check.finding is Finding.MISSING for check in checks):
        return checks
    of_there = warnings_of(there.of(plan), shared=place.engine == "slurm")
    return checks + [Check(of="machine", finding=Finding.WARNING, words=words) for words in of_there]


def _there(plan: AdoptedPlan, place: Place, there: Elsewhere) -> AdoptedPlan:
    """The plan as it holds where it is launched."""
    if place.engine != LocalBackend.engine:
        return there.of(plan)
    if there != Elsewhere():
        raise AdvisorError("--bootstrap and --folder are of another machine", "leave them out, or --on", exit_code=2)
    return plan


def _request(
    store: Store, folder: Path, plan: AdoptedPlan, now: datetime, place: Place, before: LaunchRecord | None = None
) -> LaunchRequest:
    """What is started, by the engine of the place; `before` is the attempt that it follows."""
    record = LaunchRecord(
        id=folder.name if before is None else before.id,
        name=plan.trainer,
        attempt=1 if before is None else before.attempt,
        launched_at=now.isoformat(timespec="milliseconds"),
        host=this_host(),
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
    recipe = load_adopted(store.home, plan.trainer).recipe
    files = {PLAN: dump_adopted_plan(plan), RECIPE: dump_yaml(to_dict(recipe))}
    job = Job(folder=folder, trainer=ADOPTED, config=None, plan=plan, files=files, record=record)
    return backend_of(place.engine, store).dryrun(job)


def _submit(store: Store, plan: AdoptedPlan, request: LaunchRequest) -> Started:
    engine = request.record.place.engine
    backend = backend_of(engine, store)
    warnings = (*plan.warnings, *backend.offer(request))  # whether it would take it at all
    backend.submit(request)
    if engine != LocalBackend.engine:
        warnings = (*warnings, *warnings_of(plan, shared=engine == "slurm"))
    started = read_launch(request.folder)
    assert started is not None  # the backend has just written it
    return Started(run_dir=request.folder, launch=started, warnings=warnings)
