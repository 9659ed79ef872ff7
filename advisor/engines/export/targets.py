"""Lists the engines that a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from advisor.engines.export import cloud, kubernetes, slurm
from advisor.engines.export.adopted import AdoptedJob
from advisor.engines.export.bundle import RUN, RUN_FOLDER, SETUP, ExportJob
from advisor.engines.templates import script


@dataclass(frozen=True, kw_only=True)
class Target:
    """An engine: the files it adds to the common ones, which of them is the job, and the commands to type."""

    main: str
    files: Callable[[Any], Mapping[str, str]]
    steps: Callable[[Any], Sequence[str]]
    commands: bool = False  # whether it also supports adopted commands: an AdoptedJob in place of an ExportJob
    data_at: str | None = None  # where the token folder lies there; None if the path is the same as here


def script_steps(job: ExportJob | AdoptedJob) -> list[str]:
    """Return the commands to type on the machine with the GPU."""
    if isinstance(job, AdoptedJob) or job.nodes == 1:
        return [f"bash {SETUP} && bash {RUN}"]
    first = "MASTER_ADDR=$FIRST"
    return [f"NODE_RANK={rank} {first} bash {RUN}   # on node {rank}" for rank in range(min(job.nodes, 3))]


def dockerfile(job: ExportJob) -> dict[str, str]:
    """Return an image with the environment; run folder and data are mounted."""
    return {
        "Dockerfile": script("Dockerfile", run_folder=RUN_FOLDER),
        ".dockerignore": "run\n.venv\n.venv.new\n",
    }


def dockerfile_steps(job: ExportJob) -> list[str]:
    """Return the commands: build, then run; a stop waits for the last checkpoint."""
    data = f' -v "{job.data}:{job.config.data.path}:ro"' if job.data else ""
    gpus = "--gpus all " if job.spec is not None else ""
    return [
        f"docker build -t {job.name} .",
        f"docker run {gpus}--shm-size=8g --stop-timeout={job.grace_seconds} "
        f'-v "$PWD/run:{RUN_FOLDER}"{data} {job.name}',
    ]


TARGETS = {
    "script": Target(main=RUN, files=lambda job: {}, steps=script_steps, commands=True),  # what every export contains
    "slurm": Target(  # make the environment once on a login node; show the start time; submit the job
        main=slurm.SCRIPT, files=slurm.slurm, commands=True,
        steps=lambda job: [f"bash {SETUP}", f"sbatch --test-only {slurm.SCRIPT}   # when would it start?",
                           f"sbatch {slurm.SCRIPT}"],
    ),
    "dockerfile": Target(main="Dockerfile", files=dockerfile, steps=dockerfile_steps, data_at="/data"),
    "skypilot": Target(  # the offer, then the launch
        main=cloud.SKY, files=cloud.skypilot, commands=True, data_at="/data",
        steps=lambda job: [f"sky launch --dryrun {cloud.SKY}   # which machine, at what price?",
                           f"sky jobs launch {cloud.SKY}"],
    ),
    "dstack": Target(  # shows the offers and asks before it rents
        main=cloud.DSTACK, files=cloud.dstack, data_at="/data", steps=lambda job: [f"dstack apply -f {cloud.DSTACK}"],
    ),
} | {
    name: Target(main=file, files=files, steps=partial(kubernetes.steps, file=file), data_at=f"{RUN_FOLDER}/data")
    for name, file, files in (
        ("trainjob", kubernetes.TRAINJOB, kubernetes.trainjob), ("jobset", kubernetes.JOBSET, kubernetes.jobset)
    )
}  # fmt: skip
