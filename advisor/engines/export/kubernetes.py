"""Exports objects for Kubernetes: Kubeflow's TrainJob, or a bare JobSet."""

from __future__ import annotations

from typing import Any

from advisor.engines.export.bundle import RUN_FOLDER, ExportJob
from advisor.engines.templates import document
from advisor.errors import AdvisorError
from advisor.store.run_folder import CONFIG

TRAINJOB, JOBSET = "trainjob.yaml", "jobset.yaml"


def trainjob(job: ExportJob) -> dict[str, str]:
    """Return Kubeflow Trainer's `TrainJob` (2.3 and later) on its runtime `torch-distributed`, one process per GPU."""
    launcher = ["-m", "torch.distributed.run"] if job.whole > 1 else []  # reads the runtime's own variables
    command = [".venv/bin/python", *launcher, "-m", "trainer", CONFIG, "--out", RUN_FOLDER]
    return {TRAINJOB: document(TRAINJOB, gpus_per_node=job.gpus_per_node, command=command, **_fields(job))}


def jobset(job: ExportJob) -> dict[str, str]:
    """Return a JobSet: one pod per node, which meet at the first pod. A restart starts all pods from the checkpoint."""
    return {JOBSET: document(JOBSET, first_node=f"{job.name}-node-0-0.{job.name}", **_fields(job))}


def steps(job: ExportJob, file: str) -> list[str]:
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
