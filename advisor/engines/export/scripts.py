"""Exports for machines that one logs in to: a script, torchrun by hand, a container."""

from __future__ import annotations

from advisor.engines.export.adopted import AdoptedJob
from advisor.engines.export.bundle import RUN, RUN_FOLDER, SETUP, ExportJob


def script(job: ExportJob | AdoptedJob) -> dict[str, str]:
    """What every export has: setup.sh, then run.sh, on one machine or on each of several."""
    return {}


def script_steps(job: ExportJob | AdoptedJob) -> list[str]:
    """What a person types, on the machine with the card."""
    if isinstance(job, AdoptedJob) or job.nodes == 1:
        return [f"bash {SETUP} && bash {RUN}"]
    first = "MASTER_ADDR=$FIRST"
    return [f"NODE_RANK={rank} {first} bash {RUN}   # on node {rank}" for rank in range(min(job.nodes, 3))]


def dockerfile(job: ExportJob) -> dict[str, str]:
    """An image with the environment; run folder and data are mounted."""
    return {
        "Dockerfile": f"""FROM python:3.12-slim
# Triton, which torch.compile generates kernels with, compiles a launcher in C
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /work
COPY requirements.txt {SETUP} ./
RUN bash {SETUP}
COPY . .
ENV RUN={RUN_FOLDER}
STOPSIGNAL SIGTERM
CMD ["bash", "{RUN}"]
""",
        ".dockerignore": "run\n.venv\n.venv.new\n",
    }


def dockerfile_steps(job: ExportJob) -> list[str]:
    """Build, then run; a stop waits for the last checkpoint."""
    data = f' -v "{job.data}:{job.config.data.path}:ro"' if job.data else ""
    gpus = "--gpus all " if job.spec is not None else ""
    return [
        f"docker build -t {job.name} .",
        f"docker run {gpus}--shm-size=8g --stop-timeout={job.grace_seconds} "
        f'-v "$PWD/run:{RUN_FOLDER}"{data} {job.name}',
    ]
