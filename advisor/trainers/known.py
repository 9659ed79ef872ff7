"""All trainers, by their name in launch records."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.here import device_key
from advisor.records import Workload
from advisor.store.disk import read_yaml
from advisor.store.run_folder import read_launch
from advisor.trainers.adapter import Trainer
from advisor.trainers.adopted import ADOPTED
from advisor.trainers.own import OWN
from trainer.schema import RunConfig

TRAINERS: dict[str, Trainer] = {OWN.name: OWN, ADOPTED.name: ADOPTED}


def trainer_of(name: str) -> Trainer:
    """Return the trainer with this name. Raises AdvisorError for an unknown name."""
    if name not in TRAINERS:
        message = f"the run was started with the trainer {name!r}, which this version does not know"
        raise AdvisorError(message, f"it knows: {', '.join(TRAINERS)}; upgrade training-advisor")
    return TRAINERS[name]


def trainer_of_plan(path: Path) -> Trainer:
    """Return the trainer of a plan, which is ours for a bare configuration. Raises AdvisorError for a damaged plan."""
    return next((trainer for trainer in TRAINERS.values() if trainer.plan_field in read_yaml(path, "plan")), OWN)


def trainer_of_run(folder: Path) -> Trainer:
    """Return the trainer of a run folder's launch record, or our own trainer if there is no launch record."""
    return OWN if not folder.is_dir() or (launch := read_launch(folder)) is None else trainer_of(launch.trainer)


def workload_of_config(config: RunConfig, gpu: str | None = None, gpus: int = 1) -> Workload:
    """Return the workload of a configuration on this many GPUs; without `gpu`, on the local device that it asks for."""
    key = gpu or device_key("cpu" if config.device == "cpu" else "auto")
    usual = "fp32" if key == "cpu" else "bf16"
    return Workload(
        shape=config.model,
        micro_batch=config.micro_batch,
        grad_accum=config.grad_accum,
        gpu=key,
        gpus=gpus,
        precision=usual if config.precision == "auto" else config.precision,
        compile=config.compile,
        activation_checkpointing=config.activation_checkpointing,
        optimizer=config.optimizer.name,
        sharding=config.sharding,
    )
