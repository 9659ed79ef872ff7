"""The plan of an adopted command for another machine: handed to an engine, or written out as files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from advisor.engines.export.adopted import AdoptedJob, adopted_files
from advisor.engines.export.targets import TARGETS
from advisor.errors import AdvisorError
from advisor.store.adopted import AdoptedPlan, load_adopted
from advisor.store.disk import dump_yaml
from advisor.store.store import Store
from advisor.units import format_seconds
from advisor.workflows.export import Engine, Exported
from trainer.schema import to_dict

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


def export_adopted(
    store: Store,
    plan: AdoptedPlan,
    to: str,
    engine: Engine = Engine(),  # noqa: B008
    there: Elsewhere = Elsewhere(),  # noqa: B008
) -> Exported:
    """The files of an adopted plan for a script, Slurm or SkyPilot; AdvisorError for what it cannot take."""
    if to not in COMMAND_TARGETS:
        raise AdvisorError(
            f"an adopted command is not exported to {to}",
            f"to {', '.join(COMMAND_TARGETS)}; its run.sh is all that any other engine has to start",
            exit_code=2,
        )
    here = plan.folder
    if to == "skypilot":
        there = replace(there, folder=there.folder or _THERE)
    plan = there.of(plan)
    recipe = load_adopted(store.home, plan.trainer).recipe
    run_id = f"{plan.trainer}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    job = AdoptedJob(plan=plan, recipe=dump_yaml(to_dict(recipe)), run_id=run_id, place=engine.place(to), here=here)
    target = TARGETS[to]
    return Exported(
        main=target.main,
        files=adopted_files(job) | dict(target.files(job)),
        steps=tuple(target.steps(job)),
        warnings=(*_unlimited(job), *warnings_of(plan, shared=to != "script")),
    )


def _unlimited(job: AdoptedJob) -> tuple[str, ...]:
    if job.plan.max_seconds is not None:
        return ()
    return (f"nothing but the engine ends it, after {format_seconds(job.limit_seconds)}: plan it with a deadline",)
