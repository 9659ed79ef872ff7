"""From a plan to a folder of text that its run can be started from elsewhere, by hand or by another engine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.launch.export.bundle import ExportJob, common_files
from advisor.launch.export.targets import TARGETS
from advisor.launch.guards import guarded, make_guards
from advisor.predict.wallclock import GPUS_A_NODE, planned_checkpoints
from advisor.records import Plan
from advisor.store.disk import disk_errors, write_atomic
from advisor.units import format_seconds
from advisor.workflows.launch import Limits, refuse_data_elsewhere

LONGER = 1.25  # than the plan's own high end: where the engine ends a run that nobody limited
LEAST_GRACE_SECONDS = 60
# Seconds between a spot machine's notice and its end, as the providers document them (AWS, Google Cloud, Azure).
NOTICE_SECONDS = {"aws": 120, "gcp": 30, "azure": 30}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What an engine must be told beside the plan. None: nothing."""

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    image: str | None = None
    claim: str | None = None
    infra: str | None = None
    data_at: str | None = None

    def __post_init__(self) -> None:
        """These words go into scripts as they are: what would end a line, a word or a quotation there is refused."""
        for field in fields(self):
            value = getattr(self, field.name)
            signs = r"\[\]&|!()*" if field.name == "constraint" else ""  # Slurm's own, in a comment of the script
            if value is not None and not re.fullmatch(rf"[\w.,:@%+=~/{signs}-]+", value):
                flag = f"--{field.name.replace('_', '-')}"
                raise AdvisorError(f"{flag} {value!r} is no word for an engine", "letters, digits and . , : / @ - _ =",
                                   exit_code=2)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that is not written yet."""

    main: str  # the file that is the job
    files: Mapping[str, str]  # name inside the folder → text
    steps: tuple[str, ...]  # what to type there
    warnings: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write every file; AdvisorError where the folder holds something already, or cannot be written."""
        with disk_errors("write the export to", folder):
            if folder.is_dir() and any(folder.iterdir()):
                raise AdvisorError(f"{folder} is not empty", "name a new folder")
            (folder / "trainer").mkdir(parents=True, exist_ok=True)
            for name, text in self.files.items():
                write_atomic(folder / name, text)


def export(plan: Plan, to: str, limits: Limits = Limits(), engine: Engine = Engine()) -> Exported:  # noqa: B008
    """The files of a plan for an engine of `TARGETS`; AdvisorError for what it cannot take."""
    refuse_data_elsewhere(plan)
    target = TARGETS[to]
    prices = {"usd_per_hour": plan.usd_per_hour, "max_usd": limits.max_usd, "max_hours": limits.max_hours}
    guards = make_guards(plan.run, loss=limits.loss or (), **prices)
    config = guarded(plan.run, guards)
    data = None
    if config.data.path is not None:
        data = Path(config.data.path).expanduser().resolve()
        there = engine.data_at or target.data_at or str(data)
        config = replace(config, data=replace(config.data, path=there))
    nodes, per_node = _nodes(plan.workload.gpus)
    grace = grace_seconds(plan)
    job = ExportJob(
        plan=plan,
        config=config,
        spec=find_gpu(plan.workload.gpu),
        nodes=nodes,
        gpus_per_node=per_node,
        limit_seconds=_limit_seconds(plan, guards.max_seconds, grace),
        grace_seconds=grace,
        data=data,
        account=engine.account,
        partition=engine.partition,
        qos=engine.qos,
        constraint=engine.constraint,
        image=engine.image,
        claim=engine.claim,
        infra=engine.infra,
    )
    own = target.files(job)
    return Exported(
        main=target.main,
        files=common_files(job) | dict(own),
        steps=tuple(target.steps(job)),
        warnings=tuple(_warnings(job)),
    )


def grace_seconds(plan: Plan) -> int:
    """Seconds from a signal to the end of the checkpoint it asks for: a step and a write, at their high ends, and half
    as much again.
    """
    prediction = plan.prediction
    clock = prediction.wall_clock
    count = max(1, planned_checkpoints(plan.run, clock.steps_seconds.value + clock.evals_seconds.value))
    needed = prediction.step_seconds.high + clock.checkpoints_seconds.high / count
    return max(LEAST_GRACE_SECONDS, math.ceil(1.5 * needed))


def _limit_seconds(plan: Plan, max_seconds: float | None, grace: int) -> int:
    """When the engine ends the run: after its own limit, or well beyond the plan's time."""
    if max_seconds is not None:
        return math.ceil(max_seconds) + 2 * grace
    return math.ceil(LONGER * plan.prediction.wall_clock.total_seconds.high) + grace


def _nodes(gpus: int) -> tuple[int, int]:
    if gpus <= GPUS_A_NODE:
        return 1, gpus
    if gpus % GPUS_A_NODE:
        hint = f"plan again with --gpus {gpus // GPUS_A_NODE * GPUS_A_NODE}"
        raise AdvisorError(f"{gpus} GPUs are no whole number of nodes of {GPUS_A_NODE}", hint)
    return gpus // GPUS_A_NODE, GPUS_A_NODE


def _warnings(job: ExportJob) -> list[str]:
    plan = job.plan
    found = []
    notice = NOTICE_SECONDS.get(plan.provider or "") if plan.spot else None
    needed = job.grace_seconds / 1.5
    if notice is not None and needed > notice:
        found.append(
            f"{plan.provider} gives a spot machine {notice} s of notice, a step and a checkpoint take up to "
            f"{format_seconds(needed)}: what was done since the last checkpoint is lost then"
        )
    if plan.run.stop.max_seconds is None and job.config.stop.max_seconds is None:
        found.append(
            f"nothing but the engine ends it, after {format_seconds(job.limit_seconds)}: --max-usd or --max-hours "
            "make the run itself stop, with a checkpoint, and count restarts"
        )
    if job.data is not None and job.config.data.path != str(job.data):
        found.append(f"the tokens of {job.data} must be at {job.config.data.path} there")
    return found
