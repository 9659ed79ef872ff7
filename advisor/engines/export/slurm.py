"""A batch job for Slurm that saves before its limit, queues itself again, and goes on from its last checkpoint."""

from __future__ import annotations

import math

from advisor.engines.export.adopted import AdoptedJob
from advisor.engines.export.bundle import CONFIG_AFTER, RUN, SETUP, STOPS, ExportJob, arrival_words
from advisor.run_records import Place
from advisor.store.run_folder import CONFIG

SCRIPT = "job.sbatch"
# sbatch(1), --signal: it "may be sent up to 60 seconds earlier than specified": a short limit would begin with it
EARLY_SECONDS = 60
_HERE = (
    "PYTHON=${PYTHON:-$PWD/.venv/bin/python}",
    'export RUN=${RUN:-$PWD/run} PYTHON PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"',
)
STOP_ASKED = "stop-asked"  # in the run folder: the run is to end, and not to be queued again


def slurm(job: ExportJob | AdoptedJob) -> dict[str, str]:
    """`job.sbatch`: one task a GPU, so that Slurm's own signal reaches the trainer's processes.

    An adopted command is one task that holds the whole node's share; ended by its limit, it is gone on with by hand.
    """
    lines = _command_lines(job) if isinstance(job, AdoptedJob) else _trainer_lines(job)
    return {SCRIPT: "\n".join(["#!/usr/bin/env bash", *lines, ""])}


def _command_lines(job: AdoptedJob) -> list[str]:
    options = [
        f"--job-name={job.name}",
        "--nodes=1",
        "--ntasks=1",
        *card_options(job.cards),
        "--no-requeue",
        *_job_options(job),
    ]
    return [
        *(f"#SBATCH {option}" for option in options),
        f"# Slurm signals {job.grace_seconds} s before the limit: the command is asked to end, as by its own.",
        'cd "$SLURM_SUBMIT_DIR"',
        'export RUN="${RUN:-$PWD/run}"',
        f'exec srun --ntasks=1 --cpus-per-task="${{SLURM_CPUS_ON_NODE:-1}}" bash {RUN}',
    ]


def _trainer_lines(job: ExportJob) -> list[str]:
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.gpus_per_node}",
        *card_options(job.gpus_per_node if job.spec else 0),
        "--requeue",
        *_job_options(job),
    ]
    return [
        *(f"#SBATCH {option}" for option in options),
        f"# Slurm signals {job.grace_seconds} s before the limit: the run saves, ends, and is queued again.",
        "set -uo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        *_HERE,
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
        'mkdir -p "$RUN"',
        *_measured_first(job),
        "srun --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID \\",
        f'    WORLD_SIZE=$SLURM_NTASKS exec "$PYTHON" -m trainer {job.config_words} --out "$RUN"\'',
        '"$PYTHON" -m trainer.ended "$RUN"',
        "status=$?",
        "# 75: asked to stop by a signal, or died without a word; a failed machine is not tried for ever, and",
        f"# with `touch $RUN/{STOP_ASKED}` the run ends for good",
        f'if [ "$status" = 75 ] && [ ! -e "$RUN/{STOP_ASKED}" ] \\',
        '    && [ "${SLURM_RESTART_COUNT:-0}" -lt "${RESTARTS:-100}" ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "    sleep 60  # it is ended by the requeue",
        "fi",
        'exit "$status"',
    ]


def calibration_script(place: Place, *, cards: int, limit_seconds: float, command: str) -> str:
    """`job.sbatch` of a calibration: one task that runs `command`; preempted, it is queued again and goes on."""
    options = [
        f"--job-name=calibrate-{place.name or 'default'}",
        "--nodes=1",
        "--ntasks=1",
        *card_options(cards),
        f"--time={slurm_time(math.ceil(limit_seconds))}",
        "--requeue",
        "--open-mode=append",
        "--output=%x-%j.out",
        *asked_options(place),
    ]
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH {it}" for it in options), 'cd "$SLURM_SUBMIT_DIR"', *_HERE]
    return "\n".join([*lines, f'exec "$PYTHON" {command}', ""])


def card_options(count: int) -> list[str]:
    """Options for so many cards a node; a CPU is measured, and trains, with nobody beside."""
    return [f"--gpus-per-node={count}", "--cpus-per-task=4"] if count else ["--exclusive"]


def _job_options(job: ExportJob | AdoptedJob) -> list[str]:
    """What any job that trains asks for: its limit, a signal before it, where its output goes, what the user gave."""
    return [
        f"--time={slurm_time(job.limit_seconds + EARLY_SECONDS)}",
        f"--signal=TERM@{job.grace_seconds}",
        "--open-mode=append",
        "--output=%x-%j.out",
        f"--comment=advisor:{job.plan.id}",
        *asked_options(job.place),
    ]


def asked_options(place: Place) -> list[str]:
    """Options that the user gave."""
    asked = {
        "partition": place.name, "account": place.account, "qos": place.qos, "constraint": place.constraint,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in asked.items() if value]


def _measured_first(job: ExportJob) -> list[str]:
    """As a step of the job, which signals reach."""
    if job.arriving is None:
        return []
    return [
        'if [ ! -e "$RUN/log.jsonl" ]; then  # the machine is measured first, and the plan made again',
        f'    srun --nodes=1 --ntasks=1 --ntasks-per-node=1 "$PYTHON" {arrival_words(job)}',
        "    status=$?",
        f'    [ ! -e "$RUN/{STOP_ASKED}" ] || exit 75',
        f'    [ "$status" != {STOPS} ] || exit {STOPS}',
        "fi",
        f'[ -e "$RUN/{CONFIG_AFTER}" ] || cp {CONFIG} "$RUN/{CONFIG_AFTER}"',
    ]


def slurm_steps(job: ExportJob | AdoptedJob) -> list[str]:
    """The environment once, on a login node; when it would start; the job."""
    return [f"bash {SETUP}", f"sbatch --test-only {SCRIPT}   # when would it start?", f"sbatch {SCRIPT}"]


def slurm_time(seconds: int) -> str:
    """As `--time` wants it, D-HH:MM:SS, rounded up to a minute."""
    minutes = -(-seconds // 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
