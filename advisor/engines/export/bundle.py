"""Writes what every export contains: the trainer's sources or the guard of an adopted command, and the set-up."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import advisor
import trainer
from advisor.engines.guards import limit_seconds, refuse_without_data
from advisor.engines.templates import script
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, find_gpu
from advisor.hardware.software_support import runs_trainer, trainer_release, wheels_for
from advisor.prediction.wallclock import GPUS_A_NODE, save_seconds, short_notice
from advisor.records import Estimate, Plan
from advisor.run_records import Place
from advisor.store import adopted
from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import CONFIG, PLAN
from advisor.trainers.adopted import RECIPE
from trainer.schema import RunConfig, dump_config

PACKAGES = ("numpy", "pandas", "pyarrow", "psutil", "pyyaml", "nvidia-ml-py", "safetensors", "tokenizers")
MEASURING_PACKAGES = ("scipy", "click", "rich")  # also needed, to calibrate and to plan
SETUP, RUN, MEASURE = "setup.sh", "run.sh", "measure.sh"
PLAN_AFTER, CALIBRATION = "plan-after.yaml", "calibration.yaml"  # what `measure.sh` leaves in the run folder
RUN_FOLDER = "/run-folder"  # on rented machines and in containers; it outlives them
LONGER = 1.25  # times the upper end of the planned time, after which the engine ends a run without a limit
LEAST_GRACE_SECONDS = 60
MEASURING_SECONDS = 300  # allowed for a calibration before the first step: twice its limit
LEAST_LIMIT_SECONDS = 600  # for a run without a limit, because start-up takes minutes even if the plan takes seconds
GUARD = "advisor.adopt.guard"
_GUARD_PACKAGES = ("pyyaml", "psutil")
_ROOTS = Path(advisor.__path__[0]), Path(trainer.__path__[0])


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """One plan for one engine, with everything that the engine needs. Seconds are whole."""

    plan: Plan
    config: RunConfig  # with its limits, and the data path on the other machine
    spec: GpuSpec | None  # None for a CPU
    nodes: int
    gpus_per_node: int  # processes per node; 1 on a CPU
    limit_seconds: int  # after which the engine may end it
    grace_seconds: int  # needed between a signal and the last checkpoint
    data: Path | None = None  # the token folder here
    place: Place = Place()  # its name: Slurm's partition, or where SkyPilot and dstack may rent
    max_usd: float | None = None  # the user's limit; None if only the plan's own cost is known
    image: str | None = None
    claim: str | None = None  # Kubernetes volume that outlives the job
    run_id: str | None = None  # of a run that is launched from here; None if it is only exported
    commands_first: tuple[str, ...] = ()  # as in `LaunchRecord`

    def __post_init__(self) -> None:
        refuse_without_data(self.config.data)

    @property
    def name(self) -> str:
        """Return a name of lower-case letters, digits and dashes, as clusters require."""
        return plain_name(f"{plain_name(self.run_id or self.config.name)}-{self.plan.id[-6:]}")

    @property
    def whole(self) -> int:
        """Return the number of processes of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def config_words(self) -> str:
        """Return the shell text of the configuration path, which may be that of a plan."""
        return f'"$RUN/{PLAN_AFTER}"' if self.commands_first else CONFIG


def plain_name(name: str) -> str:
    """Return a name of lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[-50:].strip("-") or "run"


def common_files(job: ExportJob) -> dict[str, str]:
    """Return the files of the export by name, the same for every engine."""
    sources = {
        f"trainer/{path.name}": path.read_text(encoding="utf-8")
        for path in sorted(Path(trainer.__path__[0]).glob("*.py"))
    }
    plan = job.plan
    if job.commands_first:  # the plan made there has the limits and the data that are given there
        plan = replace(plan, goal=replace(plan.goal, data=plan.goal.data and job.config.data.path), run=job.config)
        sources[MEASURE] = measure_script(job.commands_first)
    return {
        CONFIG: dump_config(job.config),
        PLAN: dump_plan(plan),
        "requirements.txt": "".join(pinned(PACKAGES)),
        SETUP: setup_script(torch_install(job.spec)),
        RUN: run_script(job),
        **sources,
    }


def torch_install(spec: GpuSpec | None) -> str:
    """Return pip's arguments for a PyTorch that has kernels for the GPU and that the trainer runs on."""
    wheels = (wheels_for(spec) if spec is not None and runs_trainer(spec) else None) or ()
    usable = [wheel for wheel in wheels if wheel.torch == trainer_release()] or list(wheels)
    if not usable or (usable[0].is_default and usable[0].torch == trainer_release()):
        return f"'torch=={trainer_release()}.*'"
    return usable[0].install.removeprefix("pip install ")


def setup_script(torch: str | None) -> str:
    """Return a script that creates `.venv` with this PyTorch. None: the script is only for a guard."""
    install = f"\n.venv.new/bin/python -m pip install --quiet {torch}" if torch else ""
    return script("job.sh#setup", of="this run" if torch else "the guard alone", install=install)


def run_script(job: ExportJob) -> str:
    """Return the script of one node: it resumes from checkpoints, passes signals on, and restarts after failures."""
    trainer_words = f'-m trainer {job.config_words} --out "$RUN"'
    start = f'set -- "$PYTHON" {trainer_words}'
    if job.whole > 1:
        start = script("job.sh#several", nodes=job.nodes, gpus_per_node=job.gpus_per_node,
                       grace_seconds=job.grace_seconds, trainer=trainer_words).rstrip("\n")  # fmt: skip
    return script("job.sh#run", name=job.name, start=start, measured_first=measured_first(job, "job.sh#measured_first"))


def measured_first(job: ExportJob, template: str, **words: str) -> str:
    """Return the lines by which a job measures its machine and plans again before its first step, if it does."""
    measure = f'-m advisor.engines.attempt "$RUN" {PLAN} bash {MEASURE}'  # arguments of Python, quoted for a shell
    return script(template, measure=measure, plan_after=PLAN_AFTER, **words) if job.commands_first else ""


def measure_script(commands: Sequence[str]) -> str:
    """Return a script that runs commands of `advisor` with a store of its own, and leaves what was measured in $RUN."""
    lines = "\n".join(f'"$PYTHON" -m advisor {command}' for command in commands)
    return script("job.sh#measure", commands=lines, calibration=CALIBRATION)


def pinned(packages: Sequence[str]) -> list[str]:
    """Return requirement lines: the packages at the versions installed here."""
    lines = []
    for name in packages:
        try:
            lines.append(f"{name}=={version(name)}\n")
        except PackageNotFoundError:
            lines.append(f"{name}\n")
    return lines


def export_job(plan: Plan, config: RunConfig, data: Path | None, **engine: Any) -> ExportJob:
    """Return a plan as a job: `config` has its limits and the data path there; `data` is the path here.

    `engine` holds the other fields of `ExportJob`. Raises AdvisorError if the GPUs do not fill whole nodes, or if a
    spot machine could be taken away before the run has saved.
    """
    save = save_seconds(plan.config, plan.bill.wall_clock, plan.chosen.step_seconds)
    if plan.offer.spot and (problem := short_notice(plan.offer.provider, save)) is not None:
        raise AdvisorError(problem, "plan again with --spot none, a smaller model or another --provider")
    gpus = plan.workload.gpus
    if gpus <= GPUS_A_NODE:
        nodes, per_node = 1, gpus
    else:
        if gpus % GPUS_A_NODE:
            hint = f"plan again with --gpus {gpus // GPUS_A_NODE * GPUS_A_NODE}"
            raise AdvisorError(f"{gpus} GPUs do not fill whole nodes of {GPUS_A_NODE}", hint)
        nodes, per_node = gpus // GPUS_A_NODE, GPUS_A_NODE
    grace = grace_seconds(save)
    limit = engine_limit(limit_seconds(config.stop), plan.bill.wall_clock.total_seconds, grace)
    return ExportJob(
        plan=plan,
        config=config,
        spec=find_gpu(plan.workload.gpu),
        nodes=nodes,
        gpus_per_node=per_node,
        limit_seconds=limit + (MEASURING_SECONDS if engine.get("commands_first") else 0),
        grace_seconds=grace,
        data=data,
        **engine,
    )


def grace_seconds(save_seconds: float) -> int:
    """Return the grace period in seconds between the termination signal and the kill: 1.5 times the time of a save."""
    return max(LEAST_GRACE_SECONDS, math.ceil(1.5 * save_seconds))


def engine_limit(max_seconds: float | None, planned: Estimate, grace: int) -> int:
    """Return when the engine ends the run: after its own limit, or well beyond the planned time."""
    if max_seconds is not None:
        return math.ceil(max_seconds) + 2 * grace
    return max(LEAST_LIMIT_SECONDS, math.ceil(LONGER * planned.high)) + grace


@dataclass(frozen=True, kw_only=True)
class AdoptedJob:
    """The run of an adopted command, for any engine.

    The command, its data and its environment belong to the user. They exist on the other machine, or the user's
    bootstrap line creates them. Only the guard is exported; it needs a Python with pyyaml and psutil.
    """

    plan: adopted.AdoptedPlan  # its folder is where the command starts there
    recipe: str  # as YAML
    run_id: str
    place: Place = Place()
    here: str = ""  # the command's folder on this machine, copied to a rented one

    @property
    def name(self) -> str:
        """Return a name of lower-case letters, digits and dashes, as clusters require."""
        return plain_name(self.run_id)

    @property
    def cards(self) -> int:
        """Return the number of GPUs on its node; 0 if it uses none."""
        return 0 if self.plan.offer.gpu == "cpu" else self.plan.offer.gpus

    @property
    def grace_seconds(self) -> int:
        """Seconds that an engine must allow between the signal and the kill."""
        return grace_seconds(self.plan.ending_seconds)

    @property
    def limit_seconds(self) -> int:
        """Return when the engine ends the run."""
        return engine_limit(self.plan.limit_seconds, self.plan.bill.wall_clock.total_seconds, self.grace_seconds)


def adopted_files(job: AdoptedJob) -> dict[str, str]:
    """Return the files of the export by name, the same for every engine."""
    plan, by_log = job.plan, job.plan.basis == adopted.LOG
    # a shell line of the user's, then the guard, which starts the command
    none = "# no bootstrap line: the command finds its programs by the PATH that is there"
    folder = f'"$HOME"/{shlex.quote(plan.folder[2:])}' if plan.folder.startswith("~/") else shlex.quote(plan.folder)
    needed = (*PACKAGES, "scipy", "click", "rich") if by_log else _GUARD_PACKAGES
    return {
        adopted.PLAN: adopted.dump_adopted_plan(plan),
        RECIPE: job.recipe,
        "requirements.txt": "".join(pinned(needed)),
        SETUP: setup_script(None),
        RUN: script("job.sh#adopted", run_id=job.run_id, folder=folder, bootstrap=plan.bootstrap or none, guard=GUARD),
        **guard_sources(whole=by_log),
    }


def guard_sources(*, whole: bool) -> dict[str, str]:
    """Return the sources of the guard and the probe; `whole` takes all sources, as a guard that reads logs needs."""
    code = f"import sys, {GUARD}; print(*(getattr(m, '__file__', '') for m in sys.modules.values()), sep=chr(10))"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=_ROOTS[0].parent, text=True).splitlines()
    probe = _ROOTS[0] / "adopt" / "probe"
    found = {}
    for root in _ROOTS:
        for path in sorted(root.rglob("*")):
            needed = whole or probe in path.parents or str(path) in loaded
            if needed and path.is_file() and path.suffix != ".pyc":
                found[path.relative_to(root.parent).as_posix()] = path.read_text(encoding="utf-8")
    return found
