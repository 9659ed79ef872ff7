"""Exports a batch job for Slurm that saves before its limit, queues itself again and resumes."""

from __future__ import annotations

import math

from advisor.engines.export.adopted import AdoptedJob
from advisor.engines.export.bundle import ExportJob, measured_first
from advisor.engines.templates import script
from advisor.run_records import Place

SCRIPT = "job.sbatch"
# sbatch(1), --signal: it "may be sent up to 60 seconds earlier than specified", so a short limit would start with it
EARLY_SECONDS = 60
STOP_ASKED = "stop-asked"  # in the run folder: the run should end and must not be queued again


def slurm(job: ExportJob | AdoptedJob) -> dict[str, str]:
    """Return `job.sbatch`: one task per GPU, so that Slurm's own signal reaches the trainer's processes.

    An adopted command is one task with the GPUs of the whole node. If its limit ends it, it is resumed by hand.
    """
    if isinstance(job, AdoptedJob):
        options = [f"--job-name={job.name}", "--nodes=1", "--ntasks=1", *card_options(job.cards), "--no-requeue"]
        return {SCRIPT: script("slurm_command.sh", options=_lines(options, job), grace_seconds=job.grace_seconds)}
    options = [f"--job-name={job.name}", f"--nodes={job.nodes}", f"--ntasks-per-node={job.gpus_per_node}",
               *card_options(job.gpus_per_node if job.spec else 0), "--requeue"]  # fmt: skip
    text = script(
        "slurm_run.sh",
        options=_lines(options, job),
        grace_seconds=job.grace_seconds,
        here=_here(),
        measured_first=measured_first(job, "slurm_measured_first.sh", stop_asked=STOP_ASKED),
        config=job.config_words,
        stop_asked=STOP_ASKED,
    )
    return {SCRIPT: text}


def calibration_script(place: Place, *, cards: int, limit_seconds: float, command: str) -> str:
    """Return `job.sbatch` of a calibration: one task that runs `command`; after a preemption it is queued again."""
    options = [f"--job-name=calibrate-{place.name or 'default'}", "--nodes=1", "--ntasks=1", *card_options(cards),
               f"--time={slurm_time(math.ceil(limit_seconds))}", "--requeue", "--open-mode=append",
               "--output=%x-%j.out", *asked_options(place)]  # fmt: skip
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    return script("slurm_calibrate.sh", options=lines, here=_here(), command=command)


def _here() -> str:
    return script("slurm_here.sh").rstrip("\n")


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
        *asked_options(job.place),
    ]
    return "\n".join(f"#SBATCH {option}" for option in every)


def asked_options(place: Place) -> list[str]:
    """Return the options that the user gave."""
    asked = {
        "partition": place.name, "account": place.account, "qos": place.qos, "constraint": place.constraint,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in asked.items() if value]


def slurm_time(seconds: int) -> str:
    """Return seconds as `--time` takes them, D-HH:MM:SS, rounded up to a minute."""
    minutes = -(-seconds // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
