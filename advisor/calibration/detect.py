"""Decides which device is calibrated, from the user's name for it and the worker's report, and its default settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psutil

from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu, gpus_named, read_gpus
from trainer.messages import WorkerDevice

_CUDA_FILL = 0.94  # of device memory: bursts may come near the limit, because running out is an observation too
_CPU_FILL = 0.6  # of the free memory: running out of memory on a CPU would also end the user's other programs


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a calibration measures by default on a kind of device."""

    depths: tuple[int, ...]
    seq_len: int
    vocab_size: int
    compile: bool
    budget_seconds: float
    most_micro_tokens: int


CPU_DEFAULTS = Defaults(
    depths=tuple(range(2, 9)), seq_len=256, vocab_size=4096, compile=False, budget_seconds=90.0, most_micro_tokens=8192
)
CUDA_DEFAULTS = Defaults(
    depths=tuple(range(4, 21, 2)),
    seq_len=2048,
    vocab_size=32768,
    compile=True,
    budget_seconds=120.0,
    most_micro_tokens=131072,
)


def device_for(requested: str) -> str:
    """Return the worker's --device for a --gpu option. Unknown names fail here, before any process starts."""
    if requested in ("auto", "cpu"):
        return requested
    read_gpus(requested, counted=False)  # only one GPU is measured, however many there are
    return "cuda"


def resolve_key(requested: str, device: WorkerDevice) -> str:
    """Return the catalog key of the device in this machine. Raises AdvisorError if the user asked for another one.

    A GPU that is not in the catalog gets a key made from its name, so that it can be calibrated too.
    """
    if device.type == "cpu":
        if requested in ("auto", "cpu"):
            return "cpu"
        message = f"--gpu {requested}: this machine has no such GPU; torch finds only the CPU ({device.name})"
        hint = "run this on the machine with the GPU, or calibrate what is here: advisor calibrate --gpu cpu"
        raise AdvisorError(message, hint)
    name = device.name or device.type
    spec = find_gpu(name, device.memory_bytes)
    key = spec.key if spec is not None else re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if requested not in ("auto", key) and key not in {named.key for named in gpus_named(requested)}:
        hint = f"calibrate what is here: advisor calibrate --gpu {key}"
        raise AdvisorError(f"--gpu {requested}: this machine has a {device.name} ({key})", hint)
    return key


def fillable_bytes(device: WorkerDevice) -> int:
    """Return the memory that bursts may fill."""
    if device.type == "cuda":
        return int(_CUDA_FILL * device.memory_bytes)
    return int(_CPU_FILL * min(device.memory_bytes, psutil.virtual_memory().available))
