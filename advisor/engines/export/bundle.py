"""What every export holds: the trainer's sources, the run's configuration, and how its environment is made."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import trainer
from advisor.engines.guards import limit_seconds, refuse_without_data
from advisor.engines.templates import script
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, find_gpu
from advisor.hardware.software_support import runs_trainer, trainer_release, wheels_for
from advisor.prediction.notice import save_seconds, short_notice
from advisor.prediction.wallclock import GPUS_A_NODE
from advisor.records import Plan
from advisor.run_records import Arriving, Place
from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import CONFIG, PLAN
from trainer.schema import RunConfig, dump_config

PACKAGES = ("numpy", "pandas", "pyarrow", "psutil", "pyyaml", "nvidia-ml-py", "safetensors", "tokenizers")
ARRIVAL_PACKAGES = ("scipy",)  # that planning again on arrival needs beside
SETUP, RUN = "setup.sh", "run.sh"
CONFIG_AFTER = "run-after.yaml"  # in the run folder there: the configuration that goes on after an arrival
STOPS = 3  # exit status of an arrival that does not go on
RUN_FOLDER = "/run-folder"  # on rented machines and in containers: it outlives them
LONGER = 1.25  # than the plan's own high end: where the engine ends a run that nobody limited
LEAST_GRACE_SECONDS = 60
ARRIVAL_SECONDS = 300  # that an engine leaves for a calibration before the first step: twice what it may take
LEAST_LIMIT_SECONDS = 600  # of a run that nobody limited: starting takes minutes where the plan counts seconds


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """One plan for one engine, with all that the engine must be told. Seconds are whole."""

    plan: Plan
    config: RunConfig  # with its limits, and the data where they will lie
    spec: GpuSpec | None  # None: a CPU
    nodes: int
    gpus_per_node: int  # processes a node; 1 on a CPU
    limit_seconds: int  # after which the engine may end it
    grace_seconds: int  # that it needs from a signal to its last checkpoint
    data: Path | None = None  # the token folder here
    place: Place = (
        Place()
    )  # where the engine starts it; its name: Slurm's partition, where SkyPilot and dstack may rent
    max_usd: float | None = None  # that its user allows; None: the plan's own cost is the only guide
    image: str | None = None
    claim: str | None = None  # Kubernetes volume that outlives the job
    run_id: str | None = None  # of a run that is started from here; None: it is only exported
    arriving: Arriving | None = None  # how it is measured before its first step; None: it is not

    def __post_init__(self) -> None:
        refuse_without_data(self.config.data)

    @property
    def name(self) -> str:
        """Lower-case letters, digits and dashes, as clusters want it."""
        return plain_name(f"{plain_name(self.run_id or self.config.name)}-{self.plan.id[-6:]}")

    @property
    def whole(self) -> int:
        """Processes in all."""
        return self.nodes * self.gpus_per_node

    @property
    def config_words(self) -> str:
        """The trainer's configuration, in the words of a shell: of a run that is measured first, what came of that."""
        return CONFIG if self.arriving is None else f'"$RUN/{CONFIG_AFTER}"'


def plain_name(name: str) -> str:
    """A name of lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-50:].strip("-") or "run"


def common_files(job: ExportJob) -> dict[str, str]:
    """Name inside the export's folder → text: the same for every engine."""
    sources = {
        f"trainer/{path.name}": path.read_text(encoding="utf-8")
        for path in sorted(Path(trainer.__path__[0]).glob("*.py"))
    }
    return {
        CONFIG: dump_config(job.config),
        PLAN: dump_plan(job.plan),
        "requirements.txt": "".join(pinned(PACKAGES)),
        SETUP: setup_script(torch_install(job.spec)),
        RUN: run_script(job),
        **sources,
    }


def torch_install(spec: GpuSpec | None) -> str:
    """The arguments of pip that install a PyTorch with kernels for the card, of a release that the trainer runs on."""
    wheels = wheels_for(spec) if spec is not None and runs_trainer(spec) else ()
    usable = [wheel for wheel in wheels if wheel.torch == trainer_release()] or list(wheels)
    if not usable or (usable[0].is_default and usable[0].torch == trainer_release()):
        return f"'torch=={trainer_release()}.*'"
    return usable[0].install.removeprefix("pip install ")


def setup_script(torch: str | None) -> str:
    """Makes `.venv` beside the export, once, with this PyTorch; None: an adopted command has its own elsewhere."""
    install = f"\n.venv.new/bin/python -m pip install --quiet {torch}" if torch else ""
    return script("setup.sh", of="this run" if torch else "the guard alone", install=install)


def run_script(job: ExportJob) -> str:
    """One node's share of the run: resumes what it finds, hands signals on, and starts again what failed."""
    trainer_words = f'-m trainer {job.config_words} --out "$RUN"'
    start = f'set -- "$PYTHON" {trainer_words}'
    if job.whole > 1:
        start = script("run_several.sh", nodes=job.nodes, gpus_per_node=job.gpus_per_node,
                       grace_seconds=job.grace_seconds, trainer=trainer_words).rstrip("\n")  # fmt: skip
    return script("run.sh", name=job.name, start=start, measured_first=measured_first(job, "measured_first.sh"))


def measured_first(job: ExportJob, template: str, **words: str) -> str:
    """The lines by which a job measures its machine before its first step; empty where it does not."""
    if job.arriving is None:
        return ""
    return script(template, arrival=arrival_words(job), stops=STOPS, config_after=CONFIG_AFTER, **words)


def arrival_words(job: ExportJob) -> str:
    """The arguments of Python that measure the machine for a job, in the words of a shell."""
    assert job.arriving is not None
    words = ["-m advisor.workflows.arrive_there", '--run "$RUN"']
    if job.arriving.may_change_depth:
        words.append("--may-change-depth")
    if job.arriving.stop_if_over is not None:
        words.append(f"--stop-if-over {job.arriving.stop_if_over!r}")
    return " ".join(words)


def pinned(packages: Sequence[str]) -> list[str]:
    """Lines of requirements: packages at the versions that run here."""
    lines = []
    for name in packages:
        try:
            lines.append(f"{name}=={version(name)}\n")
        except PackageNotFoundError:
            lines.append(f"{name}\n")
    return lines


def export_job(plan: Plan, config: RunConfig, data: Path | None, **engine: Any) -> ExportJob:
    """A plan for an engine: `config` has its limits, and its data where they lie there; `data` is where they lie here.

    `engine` are the fields of `ExportJob` that it must be told beside. AdvisorError for GPUs that fill no nodes, and
    for a spot machine that is taken away before the run has saved.
    """
    if plan.offer.spot and (problem := short_notice(plan.offer.provider, _save_seconds(plan))) is not None:
        raise AdvisorError(problem, "plan again on demand: --spot none; or with a smaller model, or another --provider")
    gpus = plan.workload.gpus
    if gpus <= GPUS_A_NODE:
        nodes, per_node = 1, gpus
    else:
        if gpus % GPUS_A_NODE:
            hint = f"plan again with --gpus {gpus // GPUS_A_NODE * GPUS_A_NODE}"
            raise AdvisorError(f"{gpus} GPUs are no whole number of nodes of {GPUS_A_NODE}", hint)
        nodes, per_node = gpus // GPUS_A_NODE, GPUS_A_NODE
    grace = grace_seconds(plan)
    return ExportJob(
        plan=plan,
        config=config,
        spec=find_gpu(plan.workload.gpu),
        nodes=nodes,
        gpus_per_node=per_node,
        limit_seconds=_limit_seconds(plan, limit_seconds(config.stop), grace)
        + (ARRIVAL_SECONDS if engine.get("arriving") else 0),
        grace_seconds=grace,
        data=data,
        **engine,
    )


def grace_seconds(plan: Plan) -> int:
    """Seconds that an engine must leave between a signal and the end: what saving takes, and half as much again."""
    return max(LEAST_GRACE_SECONDS, math.ceil(1.5 * _save_seconds(plan)))


def _save_seconds(plan: Plan) -> float:
    return save_seconds(plan.run, plan.bill.wall_clock, plan.chosen.step_seconds)


def _limit_seconds(plan: Plan, max_seconds: float | None, grace: int) -> int:
    """When the engine ends the run: after its own limit, or well beyond the plan's time."""
    if max_seconds is not None:
        return math.ceil(max_seconds) + 2 * grace
    return max(LEAST_LIMIT_SECONDS, math.ceil(LONGER * plan.bill.wall_clock.total_seconds.high)) + grace
