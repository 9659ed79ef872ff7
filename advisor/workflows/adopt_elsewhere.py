"""The plan of an adopted command for another machine: handed to an engine, or written out as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.launch.backend import Carried
from advisor.launch.export.adopted import AdoptedJob, adopted_files, adopted_skypilot, adopted_slurm
from advisor.launch.export.bundle import RUN, SETUP
from advisor.launch.export.cloud import SKY
from advisor.launch.export.slurm import SCRIPT
from advisor.run_records import LaunchRecord, Place
from advisor.store.adopted import PLAN, AdoptedPlan, Recipe, dump_adopted_plan, load_adopted
from advisor.store.disk import dump_yaml
from advisor.store.store import Store
from advisor.trainers.adopted import RECIPE
from advisor.units import format_seconds
from advisor.workflows.export import Engine, Exported
from trainer.schema import to_dict

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


def carried(plan: AdoptedPlan, recipe: Recipe, folder: Path, record: LaunchRecord) -> Carried:
    """The run for an engine elsewhere."""
    text = dump_yaml(to_dict(recipe))
    job = AdoptedJob(plan=plan, recipe=text, name=record.id, place=record.place)
    return Carried(folder=folder, files={PLAN: dump_adopted_plan(plan), RECIPE: text}, job=job, record=record)


def warnings_of(plan: AdoptedPlan, *, shared: bool) -> tuple[str, ...]:
    """What is to be known of a run elsewhere; `shared`: by a file system that both machines have."""
    said = [
        f"what it promises was measured on another machine, {plan.device_key}: compare tells how much that was worth"
    ]
    if not shared:
        said.append(f"its program, data and environment must be there, in {plan.folder}: --bootstrap may fetch them")
    return tuple(said)


def export_adopted(
    store: Store,
    plan: AdoptedPlan,
    to: str,
    engine: Engine = Engine(),  # noqa: B008
    there: Elsewhere = Elsewhere(),  # noqa: B008
) -> Exported:
    """The files of an adopted plan for a script, Slurm or SkyPilot; AdvisorError for what it cannot take."""
    if to not in ADOPTED_TARGETS:
        raise AdvisorError(
            f"an adopted command is not exported to {to}",
            f"to {', '.join(ADOPTED_TARGETS)}; its run.sh is all that any other engine has to start",
            exit_code=2,
        )
    here = plan.folder
    if to == "skypilot":
        there = replace(there, folder=there.folder or _THERE)
    plan = there.of(plan)
    place = Place(name=engine.partition if to == "slurm" else engine.infra, account=engine.account, qos=engine.qos,
                  constraint=engine.constraint)  # fmt: skip
    recipe = load_adopted(store.home, plan.trainer).recipe
    name = f"{plan.trainer}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    job = AdoptedJob(plan=plan, recipe=dump_yaml(to_dict(recipe)), name=name, place=place)
    target = ADOPTED_TARGETS[to]
    return Exported(
        main=target.main,
        files=adopted_files(job) | dict(target.files(job, here)),
        steps=target.steps,
        warnings=(*_unlimited(job), *warnings_of(plan, shared=to != "script")),
    )


def _unlimited(job: AdoptedJob) -> tuple[str, ...]:
    if job.plan.max_seconds is not None:
        return ()
    return (f"nothing but the engine ends it, after {format_seconds(job.limit_seconds)}: plan it with a deadline",)


@dataclass(frozen=True, kw_only=True)
class _Target:
    """One engine: the file that is the job, what it adds, and what a person types."""

    main: str
    files: Callable[[AdoptedJob, str], Mapping[str, str]]
    steps: tuple[str, ...]


ADOPTED_TARGETS = {
    "script": _Target(main=RUN, files=lambda job, here: {}, steps=(f"bash {SETUP} && bash {RUN}",)),
    "slurm": _Target(
        main=SCRIPT,
        files=lambda job, here: adopted_slurm(job),
        steps=(f"bash {SETUP}", f"sbatch --test-only {SCRIPT}   # when would it start?", f"sbatch {SCRIPT}"),
    ),
    "skypilot": _Target(
        main=SKY,
        files=adopted_skypilot,
        steps=(f"sky launch --dryrun {SKY}   # which machine, at what price?", f"sky jobs launch {SKY}"),
    ),
}
