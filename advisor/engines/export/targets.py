"""Lists the engines that a plan can be exported to, and writes the files for Slurm, Kubernetes and Docker."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from advisor.engines.export import cloud
from advisor.engines.export.bundle import RUN, RUN_FOLDER, SETUP, AdoptedJob, ExportJob, measured_first
from advisor.engines.templates import document, script
from advisor.errors import AdvisorError
from advisor.run_records import Place
from advisor.store.run_folder import CONFIG

TRAINJOB, JOBSET = "trainjob.yaml", "jobset.yaml"
SCRIPT = "job.sbatch"
# sbatch(1), --signal: it "may be sent up to 60 seconds earlier than specified", so a short limit would start with it
EARLY_SECONDS = 60
STOP_ASKED = "stop-asked"  # in the run folder: the run should end and must not be queued again


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
        "Dockerfile": script("job.sh#dockerfile", run_folder=RUN_FOLDER),
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


def slurm(job: ExportJob | AdoptedJob) -> dict[str, str]:
    """Return `job.sbatch`: one task per GPU, so that Slurm's own signal reaches the trainer's processes.

    An adopted command is one task with the GPUs of the whole node. If its limit ends it, it is resumed by hand.
    """
    if isinstance(job, AdoptedJob):
        options = [f"--job-name={job.name}", "--nodes=1", "--ntasks=1", *card_options(job.cards), "--no-requeue"]
        return {SCRIPT: script("slurm.sh#command", options=_lines(options, job), grace_seconds=job.grace_seconds)}
    options = [f"--job-name={job.name}", f"--nodes={job.nodes}", f"--ntasks-per-node={job.gpus_per_node}",
               *card_options(job.gpus_per_node if job.spec else 0), "--requeue"]  # fmt: skip
    text = script(
        "slurm.sh#run",
        options=_lines(options, job),
        grace_seconds=job.grace_seconds,
        here=script("slurm.sh#here").rstrip("\n"),
        measured_first=measured_first(job, "slurm.sh#measured_first", stop_asked=STOP_ASKED),
        config=job.config_words,
        stop_asked=STOP_ASKED,
    )
    return {SCRIPT: text}


def calibration_script(place: Place, *, cards: int, limit_seconds: float) -> str:
    """Return `job.sbatch` of a calibration: one task that runs `run.sh`; after a preemption it is queued again."""
    options = [f"--job-name=calibrate-{place.name or 'default'}", "--nodes=1", "--ntasks=1", *card_options(cards),
               f"--time={slurm_time(math.ceil(limit_seconds))}", "--requeue", "--open-mode=append",
               "--output=%x-%j.out", *place_options(place)]  # fmt: skip
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    return script("slurm.sh#calibrate", options=lines, here=script("slurm.sh#here").rstrip("\n"))


def card_options(count: int) -> list[str]:
    """Return the options for this many GPUs per node; a job on a CPU gets the node for itself."""
    return [f"--gpus-per-node={count}", "--cpus-per-task=4"] if count else ["--exclusive"]


def _lines(options: list[str], job: ExportJob | AdoptedJob) -> str:
    """Return options as lines, with those of every training job: limit, signal, output, and the user's own."""
    every = [
        *options,
        f"--time={slurm_time(job.limit_seconds + EARLY_SECONDS)}",
        f"--signal=TERM@{job.grace_seconds}",
        "--open-mode=append",
        "--output=%x-%j.out",
        f"--comment=advisor:{job.plan.id}",
        *place_options(job.place),
    ]
    return "\n".join(f"#SBATCH {option}" for option in every)


def place_options(place: Place) -> list[str]:
    """Return the options that the user gave."""
    requested = {
        "partition": place.name, "account": place.account, "qos": place.qos, "constraint": place.constraint,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in requested.items() if value]


def slurm_time(seconds: int) -> str:
    """Return seconds as `--time` takes them, D-HH:MM:SS, rounded up to a minute."""
    minutes = -(-seconds // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


def trainjob(job: ExportJob) -> dict[str, str]:
    """Return a `TrainJob` for Kubeflow Trainer 2.3 and later: runtime `torch-distributed`, one process per GPU."""
    launcher = ["-m", "torch.distributed.run"] if job.whole > 1 else []  # reads the runtime's own variables
    command = [".venv/bin/python", *launcher, "-m", "trainer", CONFIG, "--out", RUN_FOLDER]
    return {
        TRAINJOB: document("kubernetes.yaml#trainjob", gpus_per_node=job.gpus_per_node, command=command, **_fields(job))
    }


def jobset(job: ExportJob) -> dict[str, str]:
    """Return a JobSet: one pod per node, which meet at the first pod. A restart starts all pods from the checkpoint."""
    return {JOBSET: document("kubernetes.yaml#jobset", first_node=f"{job.name}-node-0-0.{job.name}", **_fields(job))}


def kubernetes_steps(job: ExportJob, file: str) -> list[str]:
    """Return the commands: build the image, then apply the object."""
    image = _image(job)
    return [f"docker build -t {image} . && docker push {image}", f"kubectl apply -f {file}"]


def _fields(job: ExportJob) -> dict[str, Any]:
    """Return the fields that both kinds of objects share."""
    image = _image(job)
    if job.claim is None:
        hint = "name a volume claim that all nodes can write: --volume-claim NAME"
        raise AdvisorError("checkpoints must outlive the pods", hint)
    device = "nvidia.com/gpu" if job.spec is None or job.spec.is_cuda else "amd.com/gpu"
    return {
        "name": job.name, "image": image, "claim": job.claim, "nodes": job.nodes, "run_folder": RUN_FOLDER,
        "limit_seconds": job.limit_seconds, "grace_seconds": job.grace_seconds,
        "resources": {} if job.spec is None else {"limits": {device: job.gpus_per_node}},
    }  # fmt: skip


def _image(job: ExportJob) -> str:
    if job.image is None:
        hint = "name the one to build: --image REGISTRY/NAME:TAG"
        raise AdvisorError("a cluster needs an image with the trainer in it", hint)
    return job.image


TARGETS = {
    "script": Target(main=RUN, files=lambda job: {}, steps=script_steps, commands=True),  # what every export contains
    "slurm": Target(  # make the environment once on a login node; show the start time; submit the job
        main=SCRIPT, files=slurm, commands=True,
        steps=lambda job: [f"bash {SETUP}", f"sbatch --test-only {SCRIPT}   # when would it start?",
                           f"sbatch {SCRIPT}"],
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
    name: Target(main=file, files=files, steps=partial(kubernetes_steps, file=file), data_at=f"{RUN_FOLDER}/data")
    for name, file, files in (
        ("trainjob", TRAINJOB, trainjob), ("jobset", JOBSET, jobset)
    )
}  # fmt: skip
