"""What every export holds: the trainer's sources, the run's configuration, and how its environment is made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import trainer
from advisor.engines.guards import refuse_without_data
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.software_support import runs_trainer, trainer_release, wheels_for
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
    place: Place = Place()  # what the engine is told; its name: Slurm's partition, where SkyPilot and dstack may rent
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
    return f"""#!/usr/bin/env bash
# Makes the environment of {"this run" if torch else "the guard alone"} in .venv, once: bash {SETUP}
set -euo pipefail
cd "$(dirname "$0")"
[ -x .venv/bin/python ] && exit 0
"${{BASE_PYTHON:-python3}}" -m venv .venv.new{install}
.venv.new/bin/python -m pip install --quiet --requirement requirements.txt
mv .venv.new .venv  # a broken install leaves no .venv
"""


def run_script(job: ExportJob) -> str:
    """One node's share of the run: resumes what it finds, hands signals on, and starts again what failed."""
    return f"""#!/usr/bin/env bash
# One node's share of {job.name}. A run found in $RUN goes on from its last checkpoint. SIGTERM saves
# and ends it with status 75: start it again. Status 0: completed, or stopped by its own limit.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${{PYTHON:-.venv/bin/python}}
RUN=${{RUN:-$PWD/run}}
RESTARTS=${{RESTARTS:-3}}  # after failures, by this script
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}"
mkdir -p "$RUN"
{_start(job)}
stopped=no
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null' TERM INT
{_measured_first(job)}for ((attempt = 0; attempt <= RESTARTS; attempt++)); do
    "$@" &
    child=$!
    wait "$child"
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done  # a signal ends a wait early
    "$PYTHON" -m trainer.ended "$RUN"
    status=$?
    # out of memory, divergence and what a signal asked for would only come again
    if [ "$stopped" = yes ] || [ "$status" = 0 ] || [ "$status" = 3 ] || [ "$status" = 4 ]; then break; fi
done
exit "$status"
"""


def arrival_words(job: ExportJob) -> str:
    """The arguments of Python that measure the machine for a job, in the words of a shell."""
    assert job.arriving is not None
    words = ["-m advisor.workflows.arrive_there", '--run "$RUN"']
    if job.arriving.may_change_depth:
        words.append("--may-change-depth")
    if job.arriving.stop_if_over is not None:
        words.append(f"--stop-if-over {job.arriving.stop_if_over!r}")
    return " ".join(words)


def _measured_first(job: ExportJob) -> str:
    if job.arriving is None:
        return ""
    return f"""if [ ! -e "$RUN/log.jsonl" ]; then  # the machine is measured first, and the plan made again
    "$PYTHON" {arrival_words(job)} &
    child=$!
    wait "$child"
    status=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    [ "$stopped" = no ] || exit 75
    [ "$status" != {STOPS} ] || exit {STOPS}
fi
[ -e "$RUN/{CONFIG_AFTER}" ] || cp {CONFIG} "$RUN/{CONFIG_AFTER}"
"""


def _start(job: ExportJob) -> str:
    trainer_words = f'-m trainer {job.config_words} --out "$RUN"'
    if job.whole == 1:
        return f'set -- "$PYTHON" {trainer_words}'
    return (
        f"NODES=${{NODES:-{job.nodes}}} NODE_RANK=${{NODE_RANK:-0}} MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}} "
        "MASTER_PORT=${MASTER_PORT:-29500}\n"
        f'set -- "$PYTHON" -m torch.distributed.run --nnodes="$NODES" --node-rank="$NODE_RANK" '
        f'--nproc-per-node={job.gpus_per_node} --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" '
        f"--shutdown-timeout={job.grace_seconds} {trainer_words}"
    )


def pinned(packages: Sequence[str]) -> list[str]:
    """Lines of requirements: packages at the versions that run here."""
    lines = []
    for name in packages:
        try:
            lines.append(f"{name}=={version(name)}\n")
        except PackageNotFoundError:
            lines.append(f"{name}\n")
    return lines
