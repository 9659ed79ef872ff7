"""What a trainer's configuration is as a workload, on a device of this machine or another."""

from __future__ import annotations

from advisor.hardware.here import device_key
from advisor.records import Workload
from trainer.schema import RunConfig


def workload_of_config(config: RunConfig, gpu: str | None = None, gpus: int = 1) -> Workload:
    """The workload of a configuration on so many of a card; None: of the device here that it asks for."""
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
