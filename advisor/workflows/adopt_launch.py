"""Checks, launches and exports the plan of an adopted command, for this machine or another."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.engines.engines import backend_of
from advisor.engines.export.bundle import AdoptedJob, adopted_files
from advisor.engines.export.targets import TARGETS
from advisor.errors import AdvisorError
from advisor.options import ExportOptions, LaunchOptions
from advisor.run_records import Place
from advisor.store.adopted import AdoptedPlan, load_adopted, load_adopted_plan
from advisor.store.disk import dump_yaml
from advisor.store.store import Store
from advisor.units import format_seconds
from advisor.workflows.export import Exported, place_there
from advisor.workflows.launch import HERE, Launching, StartedRun, dry_run, launch, offered, place_of
from advisor.workflows.preflight import Check, Readiness, raise_if_missing
from trainer.schema import to_dict

COMMAND_TARGETS = tuple(name for name, target in TARGETS.items() if target.commands)
_THERE = "~/code"  # where SkyPilot copies the command's folder


def placed(plan: AdoptedPlan, place: Place, options: LaunchOptions | ExportOptions) -> AdoptedPlan:
    """Returns the plan for the machine of a launch or export, with its folder and the line that sets it up there.

    Raises AdvisorError for an invalid folder or line, or for one of another machine if the run is here.
    """
    folder, line = options.folder or plan.folder, options.bootstrap
    if place.engine == HERE.engine and (options.folder, line) != (None, None):
        raise AdvisorError("--bootstrap and --folder are for another machine", "leave them out, or --on", exit_code=2)
    if place.engine != HERE.engine and not folder.startswith(("/", "~/")):
        raise AdvisorError(f"--folder {folder} is not a full path", "give one, or one that begins with ~/", exit_code=2)
    if line is not None and ("\n" in line or not line.strip()):
        raise AdvisorError("--bootstrap must be one shell line", "like 'source .venv/bin/activate'", exit_code=2)
    return replace(plan, folder=folder, bootstrap=line or plan.bootstrap)


def warnings_of(plan: AdoptedPlan, *, shared: bool) -> tuple[str, ...]:
    """Returns the warnings for a run on another machine; `shared` means that both machines have one file system."""
    promised = f"what it promises was measured on another machine, {plan.offer.gpu}"
    needed = f"its program, data and environment must be there, in {plan.folder}: --bootstrap may fetch them"
    return (f"{promised}: compare tells how much that was worth", *(() if shared else (needed,)))


def export_adopted(store: Store, source: Path | AdoptedPlan, to: str, options: ExportOptions) -> Exported:
    """Returns an adopted plan's files for a script, Slurm or SkyPilot; raises AdvisorError for unsupported options."""
    if to not in COMMAND_TARGETS:
        hint = f"to {', '.join(COMMAND_TARGETS)}; its run.sh is all that any other engine has to start"
        raise AdvisorError(f"an adopted command is not exported to {to}", hint, exit_code=2)
    plan = load_adopted_plan(source) if isinstance(source, Path) else source
    here, place = plan.folder, place_there(to, options)
    if to == "skypilot":
        options = replace(options, folder=options.folder or _THERE)
    plan = placed(plan, place, options)
    recipe = load_adopted(store.home, plan.trainer).recipe
    run_id = f"{plan.trainer}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    job = AdoptedJob(plan=plan, recipe=dump_yaml(to_dict(recipe)), run_id=run_id, place=place, here=here)
    target = TARGETS[to]
    unlimited = f"nothing stops this run before {format_seconds(job.limit_seconds)}: plan it with a deadline"
    return Exported(
        main=target.main,
        files=adopted_files(job) | dict(target.files(job)),
        steps=tuple(target.steps(job)),
        warnings=(*(() if plan.limit_seconds is not None else (unlimited,)), *warnings_of(plan, shared=to != "script")),
    )


def launching(store: Store, source: Path | AdoptedPlan, options: LaunchOptions, *_: Any) -> Launching:
    """Returns the launch of an adopted command's plan; raises AdvisorError if a file is not such a plan."""
    plan, place = load_adopted_plan(source) if isinstance(source, Path) else source, place_of(options)
    plan, again = placed(plan, place, options), options.again

    def start() -> StartedRun:
        if place.engine == HERE.engine:
            said = raise_if_missing(looked_at_adopted(store, plan, place))
        else:  # ask before creating a folder, so that the engine's own message is shown
            said = backend_of(place.engine, store).offer(dry_run(store, plan, options.run_dir, place=place, again=True))
            said += warnings_of(plan, shared=place.engine == "slurm")
        started = launch(store, plan, options.run_dir, place=place, again=again)
        return replace(started, warnings=(*plan.warnings, *said, *started.warnings))

    return Launching(
        checks=lambda: looked_at_adopted(store, plan, place),
        request=lambda: dry_run(store, plan, options.run_dir, place=place, again=again),
        start=start,
    )


def looked_at_adopted(store: Store, plan: AdoptedPlan, place: Place) -> list[Check]:
    """Checks everything that a launch needs, here or by asking the engine; starts and writes nothing."""
    if place.engine == HERE.engine:
        folder, program = Path(plan.folder).expanduser(), plan.command[0]
        found = shutil.which(program, path=None if "/" not in program else os.fspath(folder))
        in_folder = (folder / program).is_file() and os.access(folder / program, os.X_OK)
        needed = (
            ("folder", folder.is_dir(), f"it is typed in {folder}", f"there is no folder {folder}"),
            ("program", bool(found) or in_folder, f"its program is {found or program}", f"there is no {program}"),
        )
        return [Check(of=of, finding=Readiness.FINE if fine else Readiness.MISSING, words=words if fine else lacking)
                for of, fine, words, lacking in needed]  # fmt: skip
    backend = backend_of(place.engine, store)
    checks = offered(place.engine, lambda: backend.offer(dry_run(store, plan, place=place, again=True)))
    if any(check.finding is Readiness.MISSING for check in checks):
        return checks
    of_there = warnings_of(plan, shared=place.engine == "slurm")
    return checks + [Check(of="machine", finding=Readiness.WARNING, words=words) for words in of_there]
