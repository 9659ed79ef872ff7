"""Writes tasks for SkyPilot and dstack, which rent a machine, run the job on it and return it."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

from advisor.engines.export.bundle import RUN, RUN_FOLDER, AdoptedJob, ExportJob
from advisor.engines.guards import limit_seconds
from advisor.engines.templates import document
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.store.folders import profiles_folder
from advisor.store.run_folder import LOG

SKY, DSTACK = "task.yaml", "task.dstack.yml"
POLICY = "sky_policy.py"
MOST_RESTARTS = 3
DISK_GB = 100  # software, data and a few checkpoints, unless they take more
# The engines' names of the providers in the price lists; they rent from no other of these providers.
_SKY = {name: name for name in ("aws", "azure", "do", "gcp", "lambda", "nebius", "oci", "runpod", "vast", "verda")}
_DSTACK = {name: name for name in ("aws", "azure", "gcp", "lambda", "nebius", "oci", "runpod", "verda")} | {
    "do": "digitalocean", "vast": "vastai",
}  # fmt: skip
# Prints the run's log as part of the job's output, which SkyPilot brings home. `$$` is the run's process, since the
# shell becomes it. The bucket and the log also hold earlier attempts, so each machine prints everything.
LOG_LINE = "ADVISOR-LOG "
# Not `tail --pid`: a process that reads to the end before it reaps a dead run keeps its pid, and the machine, forever.
_LOG_HOME = rf"""if [ "$NODE_RANK" = 0 ]; then
    tail --sleep-interval=1 -n +1 -F "$RUN/{LOG}" 2>/dev/null > >(exec sed -u "s/^/{LOG_LINE}/") &
    (while grep -qs "^State:.[^ZX]" /proc/$$/status; do sleep 1; done; sleep 2; kill $!) &
fi
"""
_MARGIN = 1.25  # times the plan's price: a more expensive machine is another offer


def skypilot(job: ExportJob | AdoptedJob) -> dict[str, str]:
    """Return a managed job: it recovers from preemption, ends an idle machine, and refuses a more expensive one.

    For an adopted command the task also carries the command's folder.
    """
    bucket_of_run = {"name": bucket(job.name), "mode": "MOUNT_CACHED"}
    run = f"exec timeout --signal=TERM --kill-after={job.grace_seconds} {job.limit_seconds} bash {RUN}"
    fields: dict[str, Any] = {"name": job.name, "infra": None, "any_of": None, "cpus": None, "run": run,
                              "variables": {"RUN": RUN_FOLDER}, "max_hourly_cost": None}  # fmt: skip
    if isinstance(job, AdoptedJob):
        on_cpu = find_gpu(job.plan.offer.gpu) is None
        cards = None if on_cpu else {card_name(job.plan.offer.gpu, "skypilot"): job.plan.offer.gpus}
        fields |= {"nodes": None, "infra": job.place.name or None, "cpus": "2+" if on_cpu else None, "spot": None,
                   "accelerators": cards, "disk_gb": DISK_GB, "recovery": None,
                   "mounts": {RUN_FOLDER: bucket_of_run, job.plan.folder: job.here}}  # fmt: skip
        if job.plan.offer.usd_per_hour:
            fields["max_hourly_cost"] = round(job.plan.offer.usd_per_hour, 2)
        return {SKY: document("rented.yaml#skypilot", **fields)}
    # One place, or any of several: SkyPilot takes the cheapest that has the machine.
    offer, places = job.plan.offer, (job.place.name or _SKY.get(job.plan.offer.provider or "") or "*").split(",")
    fields |= {"any_of": [{"infra": place} for place in places]} if len(places) > 1 else {"infra": places[0]}
    if offer.usd_per_hour:  # price of one node; a budget assumes the plan's price, so that is the maximum
        margin = _MARGIN if job.max_usd is None else 1.0
        fields["max_hourly_cost"] = round(offer.usd_per_hour / job.nodes * margin, 2)
    seconds = limit_seconds(job.config.stop)
    if job.max_usd is not None and seconds is not None:
        fields["variables"] |= {"ADVISOR_MAX_USD": str(job.max_usd), "ADVISOR_LIMIT_SECONDS": str(seconds)}
    data = {job.config.data.path: str(job.data)} if job.data is not None and job.config.data.path else {}
    words = (
        'NODES=$SKYPILOT_NUM_NODES NODE_RANK=$SKYPILOT_NODE_RANK MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    )
    fields |= {
        "nodes": job.nodes,
        "accelerators": {card_name(job.plan.workload.gpu, "skypilot"): job.gpus_per_node},
        "spot": offer.spot,
        "disk_gb": disk_gb(job),
        "recovery": {"max_restarts_on_errors": MOST_RESTARTS, "recover_on_exit_codes": [75]},
        "mounts": {RUN_FOLDER: bucket_of_run, **data},
        # `exec`, so that the signal of a cancelled or preempted task reaches the script
        "run": f"export {words}\n{_LOG_HOME if job.run_id else ''}{run}",
    }
    policy = (Path(__file__).parent / POLICY).read_text(encoding="utf-8")
    return {SKY: document("rented.yaml#skypilot", **fields), POLICY: policy}


def bucket(name: str) -> str:
    """Return the bucket that keeps a job's run folder while its machines come and go."""
    return f"{name}-run"


def dstack(job: ExportJob) -> dict[str, str]:
    """Return a task with limits on price, duration and idle time, retried after a preemption."""
    offer = job.plan.offer
    backend = job.place.name or _DSTACK.get(offer.provider or "")
    text = document(
        "rented.yaml#dstack",
        name=job.name[:41].strip("-"),
        nodes=job.nodes,
        environment=f"RUN={RUN_FOLDER}",
        gpu=f"{card_name(job.plan.workload.gpu, 'dstack')}:{job.gpus_per_node}",
        disk=f"{disk_gb(job)}GB..",
        spot_policy="spot" if offer.spot else "on-demand",
        max_duration=f"{job.limit_seconds}s",
        stop_duration=f"{job.grace_seconds}s",
        backends=[backend] if backend else None,
        max_price=round(offer.usd_per_hour / job.nodes * _MARGIN, 2) if offer.usd_per_hour else None,
        volumes=[f"{job.claim}:{RUN_FOLDER}"] if job.claim else None,
    )
    return {DSTACK: text}


def disk_gb(job: ExportJob) -> int:
    """Return the gigabytes that a machine needs for software, data, stored checkpoints and the one being written."""
    data = sum(path.stat().st_size for path in job.data.rglob("*") if path.is_file()) if job.data else 0
    needed = (job.plan.bill.disk_bytes or 0) + data + 30e9
    return max(DISK_GB, int(needed / 1e9 * 1.2))


@cache
def _names() -> dict[str, dict[str, str]]:
    with (profiles_folder() / "engine_names.csv").open(encoding="utf-8", newline="") as file:
        return {row["key"]: row for row in csv.DictReader(file)}


def card_name(key: str, engine: str) -> str:
    """Return the engine's name of a GPU of the catalog; raises AdvisorError for a CPU, or if there is none."""
    name = _names().get(key, {}).get(engine)
    if not name:
        raise AdvisorError(f"{engine} has no known name for {key}", "export it as a script: --to script")
    return name
