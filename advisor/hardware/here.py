"""The cards of this machine, found through the driver without importing torch; which device is meant by a name."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu, require_gpu


@dataclass(frozen=True, kw_only=True)
class FoundCard:
    """A card of this machine as its driver describes it."""

    name: str  # by NVML
    memory_bytes: int | None  # None: the driver does not say (memory shared with the host)
    free_bytes: int | None = None  # at this moment


def device_key(asked: str) -> str:
    """The key of the device meant by --gpu: a catalog key or alias, "cpu", or "auto".

    "auto" is the first card of this machine, else "cpu". A card the catalog does not know is called by its own name,
    as its calibration would be. Raises AdvisorError with close matches for a name that is nothing.
    """
    if asked == "cpu":
        return "cpu"
    if asked != "auto":
        return require_gpu(asked).key
    found = cards()
    if not found:
        return "cpu"
    spec = find_gpu(found[0].name, found[0].memory_bytes)
    return spec.key if spec else re.sub(r"[^a-z0-9]+", "-", found[0].name.lower()).strip("-")


def first_card() -> str | None:
    """The NVML name of the first NVIDIA card; None without a driver or a card."""
    found = cards()
    return found[0].name if found else None


def cards() -> list[FoundCard]:
    """This machine's NVIDIA cards; empty without a driver or a card."""
    import pynvml  # shared libraries are looked for only when the question is asked

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [_card(pynvml.nvmlDeviceGetHandleByIndex(number)) for number in range(count)]
    finally:
        pynvml.nvmlShutdown()


def used_by(processes: set[int]) -> int | None:
    """Bytes that these processes hold on the fullest card, by NVML; None without a card, or where it knows none.

    They include what the driver itself holds for each. In a container NVML may call processes by other numbers.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return max((used for handle in handles if (used := _used(handle, processes))), default=None)
    finally:
        pynvml.nvmlShutdown()


def _used(handle: Any, processes: set[int]) -> int:
    import pynvml

    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:  # a card in parts, or a driver that does not tell
        return 0
    return sum(int(one.usedGpuMemory or 0) for one in running if one.pid in processes)


def _card(handle: Any) -> FoundCard:
    import pynvml

    name = pynvml.nvmlDeviceGetName(handle)
    memory_bytes: int | None = None
    free_bytes: int | None = None
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        memory_bytes, free_bytes = int(memory.total), int(memory.free)
    return FoundCard(
        name=name.decode() if isinstance(name, bytes) else name, memory_bytes=memory_bytes, free_bytes=free_bytes
    )


def check_is_here(gpu: str, gpus: int) -> str | None:
    """Whether so many cards of a kind are in this machine; a warning where they are of another kind.

    Raises AdvisorError where there are too few cards of any kind: a plan for rented ones is launched where they are.
    """
    if gpu == "cpu":
        return None
    present = cards()
    if len(present) < gpus:
        has = f"has only {len(present)}" if present else "has no NVIDIA GPU"
        raise AdvisorError(
            f"the plan is for {gpus} x {gpu}, and this machine {has}",
            "launch it on a machine that has them (the file is all it needs), or plan for this one: advisor plan",
        )
    key = device_key("auto")
    return None if key == gpu else f"the plan is for {gpu}, this machine has {key}: times and memory will differ"


def cpu_name() -> str | None:
    """The name of this machine's processor, as a calibration of it records it; None where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
