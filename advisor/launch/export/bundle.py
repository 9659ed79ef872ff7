"""What every export holds: the trainer's sources, the run's configuration, and how its environment is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import trainer
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.software_support import runs_trainer, trainer_release, wheels_for
from advisor.records import Plan
from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import CONFIG, PLAN
from trainer.schema import RunConfig, dump_config

PACKAGES = ("numpy", "pandas", "pyarrow", "psutil", "pyyaml", "nvidia-ml-py", "safetensors", "tokenizers")
SETUP, RUN = "setup.sh", "run.sh"
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
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    max_usd: float | None = None  # that its user allows; None: the plan's own cost is the only guide
    image: str | None = None
    claim: str | None = None  # Kubernetes volume that outlives the job
    infra: str | None = None  # where SkyPilot and dstack may rent; SkyPilot takes several, with commas between
    run_id: str | None = None  # of a run that is started from here; None: it is only exported

    @property
    def name(self) -> str:
        """Lower-case letters, digits and dashes, as clusters want it."""
        clean = re.sub(r"[^a-z0-9]+", "-", (self.run_id or self.config.name).lower()).strip("-")
        return f"{clean or 'run'}-{self.plan.id[-6:]}"[-50:].strip("-")

    @property
    def whole(self) -> int:
        """Processes in all."""
        return self.nodes * self.gpus_per_node


def common_files(job: ExportJob) -> dict[str, str]:
    """Name inside the export's folder → text: the same for every engine."""
    sources = {
        f"trainer/{path.name}": path.read_text(encoding="utf-8")
        for path in sorted(Path(trainer.__path__[0]).glob("*.py"))
    }
    return {
        CONFIG: dump_config(job.config),
        PLAN: dump_plan(job.plan),
        "requirements.txt": "".join(f"{line}\n" for line in _requirements()),
        SETUP: setup_script(job),
        RUN: run_script(job),
        **sources,
    }


def torch_install(job: ExportJob) -> str:
    """The arguments of pip that install a PyTorch with kernels for the card, of a release that the trainer runs on."""
    wheels = wheels_for(job.spec) if job.spec is not None and runs_trainer(job.spec) else ()
    usable = [wheel for wheel in wheels if wheel.torch == trainer_release()] or list(wheels)
    if not usable or (usable[0].is_default and usable[0].torch == trainer_release()):
        return f"'torch=={trainer_release()}.*'"
    return usable[0].install.removeprefix("pip install ")


def setup_script(job: ExportJob) -> str:
    """Makes `.venv` beside the export, once."""
    return f"""#!/usr/bin/env bash
# Makes the environment of this run in .venv, once: bash {SETUP}
set -euo pipefail
cd "$(dirname "$0")"
[ -x .venv/bin/python ] && exit 0
"${{BASE_PYTHON:-python3}}" -m venv .venv.new
.venv.new/bin/python -m pip install --quiet {torch_install(job)}
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
for ((attempt = 0; attempt <= RESTARTS; attempt++)); do
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


def _start(job: ExportJob) -> str:
    trainer_words = f'-m trainer {CONFIG} --out "$RUN"'
    if job.whole == 1:
        return f'set -- "$PYTHON" {trainer_words}'
    return (
        f"NODES=${{NODES:-{job.nodes}}} NODE_RANK=${{NODE_RANK:-0}} MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}} "
        "MASTER_PORT=${MASTER_PORT:-29500}\n"
        f'set -- "$PYTHON" -m torch.distributed.run --nnodes="$NODES" --node-rank="$NODE_RANK" '
        f'--nproc-per-node={job.gpus_per_node} --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" '
        f"--shutdown-timeout={job.grace_seconds} {trainer_words}"
    )


def _requirements() -> Mapping[str, None]:
    """The trainer's packages, at the versions that run here."""
    lines: dict[str, None] = {}
    for name in PACKAGES:
        try:
            lines[f"{name}=={version(name)}"] = None
        except PackageNotFoundError:
            lines[name] = None
    return lines
