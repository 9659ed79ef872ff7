"""Objects for Kubernetes: Kubeflow's TrainJob, or a bare JobSet."""

from __future__ import annotations

from typing import Any

from advisor.engines.export.bundle import RUN, RUN_FOLDER, ExportJob
from advisor.errors import AdvisorError
from advisor.store.disk import dump_yaml
from advisor.store.run_folder import CONFIG

TRAINJOB, JOBSET = "trainjob.yaml", "jobset.yaml"
MOST_RESTARTS = 3
_PORT, _INDEX = 29500, "batch.kubernetes.io/job-completion-index"


def trainjob(job: ExportJob) -> dict[str, str]:
    """Kubeflow Trainer's `TrainJob` (2.3 and later) on its runtime `torch-distributed`: torchrun, one process a GPU."""
    launcher = ["-m", "torch.distributed.run"] if job.whole > 1 else []  # it reads the runtime's own variables
    pod = {
        "terminationGracePeriodSeconds": job.grace_seconds,
        "containers": [{"name": "node", "volumeMounts": [{"name": "run", "mountPath": RUN_FOLDER}]}],
        "volumes": [{"name": "run", "persistentVolumeClaim": {"claimName": _claim(job)}}],
    }
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "activeDeadlineSeconds": job.limit_seconds,
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": _image(job),
                "numNodes": job.nodes,
                "numProcPerNode": job.gpus_per_node,
                "command": [".venv/bin/python", *launcher, "-m", "trainer", CONFIG, "--out", RUN_FOLDER],
                "resourcesPerNode": _resources(job),
            },
            "runtimePatches": [
                {
                    "manager": "training-advisor",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
                }
            ],
        },
    }
    return {TRAINJOB: dump_yaml(document)}


def jobset(job: ExportJob) -> dict[str, str]:
    """One pod a node; the first is where the others meet. Restarted as a whole, from the last checkpoint."""
    container: dict[str, Any] = {
        "name": "trainer",
        "image": _image(job),
        "command": ["bash", RUN],
        "env": [
            {"name": "RUN", "value": RUN_FOLDER},
            {"name": "MASTER_ADDR", "value": f"{job.name}-node-0-0.{job.name}"},
            {"name": "MASTER_PORT", "value": str(_PORT)},
            {
                "name": "NODE_RANK",
                "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}},
            },
        ],
        "resources": _resources(job),
        "volumeMounts": [{"name": "run", "mountPath": RUN_FOLDER}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_seconds,
        "containers": [container],
        "volumes": [
            {"name": "run", "persistentVolumeClaim": {"claimName": _claim(job)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
        ],
    }
    node_job = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "activeDeadlineSeconds": job.limit_seconds,
        "template": {"spec": pod},
    }
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            "failurePolicy": {"maxRestarts": MOST_RESTARTS},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": node_job}}],
        },
    }
    return {JOBSET: dump_yaml(document)}


def trainjob_steps(job: ExportJob) -> list[str]:
    """The image, then the object."""
    return [f"docker build -t {_image(job)} . && docker push {_image(job)}", f"kubectl apply -f {TRAINJOB}"]


def jobset_steps(job: ExportJob) -> list[str]:
    """The image, then the object."""
    return [f"docker build -t {_image(job)} . && docker push {_image(job)}", f"kubectl apply -f {JOBSET}"]


def _resources(job: ExportJob) -> dict[str, Any]:
    limits: dict[str, Any] = {} if job.spec is None else {_device(job): job.gpus_per_node}
    return {"limits": limits} if limits else {}


def _device(job: ExportJob) -> str:
    return "nvidia.com/gpu" if job.spec is None or job.spec.is_cuda else "amd.com/gpu"


def _image(job: ExportJob) -> str:
    if job.image is None:
        raise AdvisorError(
            "a cluster needs an image with the trainer in it", "name the one to build: --image REGISTRY/NAME:TAG"
        )
    return job.image


def _claim(job: ExportJob) -> str:
    if job.claim is None:
        raise AdvisorError(
            "checkpoints must outlive the pods", "name a volume claim that all nodes can write: --volume-claim NAME"
        )
    return job.claim
