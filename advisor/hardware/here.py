"""Finds the GPUs of this machine through the driver, without torch, and the device that a name means here."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu, require_gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
_IN_USE = 0.05  # of its memory; idle H100s hold 1 to 4 MiB (github.com/grantwilkins/training_profile, h100-traces)
_LOOK_SECONDS = 0.5  # in which the use of the processor is measured
_ALL = 0.95  # of the cores: none is free
_NAMED, _NOTICED = 3, 0.05  # of the programs that use most; of a core, below which a program is not named
# parts of the names of browsers; some of Firefox's processes are called "Web Content" and "Isolated Web Co"
_BROWSERS = ("brave", "chrom", "firefox", "msedge", "opera", "safari", "vivaldi", "web co", "webkit")


@dataclass(frozen=True, kw_only=True)
class DetectedGpu:
    """A GPU of this machine as its driver describes it. In MIG mode, its first instance: CUDA sees no other."""

    number: int = 0  # the number that nvidia-smi gives it
    name: str  # NVML's name
    memory_bytes: int | None  # None if the driver does not say (memory shared with the host)
    free_bytes: int | None = None  # at this moment
    processes: tuple[int, ...] = ()  # those that compute on it; in a container NVML may not see processes outside it
    is_instance: bool = False  # a MIG instance
    busy_share: float | None = None  # of the last second, in which a kernel ran; None if the driver does not say

    @property
    def in_use(self) -> bool:
        """Tell whether a process computes on the GPU, or more memory or time is in use than on an idle GPU."""
        total, free, busy = self.memory_bytes, self.free_bytes, self.busy_share or 0.0
        memory_in_use = total is not None and free is not None and total - free > _IN_USE * total
        return bool(self.processes) or memory_in_use or busy > _IN_USE


@dataclass(frozen=True, kw_only=True)
class ProcessorUse:
    """What other programs use of the processor at this moment."""

    cores: int  # that this process may use
    used: float  # of these cores
    wanted: float  # cores that they would use if there were enough
    largest: tuple[str, ...]  # those that use most and can be closed, each with its process number


def device_key(requested: str) -> str:
    """Return the key of the device that --gpu means: a catalog key or alias, "cpu", or "auto".

    "auto" is the first GPU of this machine, or else "cpu". A GPU missing from the catalog keeps its own name, as in its
    calibration. Raises AdvisorError with close matches for an unknown name.
    """
    if requested == "cpu":
        return "cpu"
    if requested != "auto":
        return require_gpu(requested).key
    found = visible_cards()
    if not found:
        return "cpu"
    spec = find_gpu(found[0].name, found[0].memory_bytes)
    return spec.key if spec else re.sub(r"[^a-z0-9]+", "-", found[0].name.lower()).strip("-")


def first_card() -> str | None:
    """Return the NVML name of the first NVIDIA GPU a run would see. Returns None if there is no driver or GPU."""
    found = visible_cards()
    return found[0].name if found else None


def cards() -> list[DetectedGpu]:
    """Return this machine's usable NVIDIA GPUs. The list is empty if there is no driver or GPU."""
    return [card for card in _looked_at().values() if isinstance(card, DetectedGpu)]


def cards_of(key: str) -> int:
    """Return how many GPUs of this kind this machine has."""
    found = (find_gpu(card.name, card.memory_bytes) for card in cards())
    return sum(spec is not None and spec.key == key for spec in found)


def broken_cards() -> dict[int, str]:
    """Return the GPUs that the driver lists but that cannot be used, each with the reason."""
    return {number: card for number, card in _looked_at().items() if not isinstance(card, DetectedGpu)}


def visible_cards() -> list[DetectedGpu]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, in its order. Returns all GPUs if it is unset or not numbers.

    CUDA stops at the first number that is not a GPU (CUDA programming guide), and so does this function.
    """
    found = cards()
    if VISIBLE not in os.environ or names_not_numbers():
        return found
    by_number = {str(card.number): card for card in found}
    visible = []
    for word in os.environ[VISIBLE].split(","):
        if word.strip() not in by_number:
            break
        visible.append(by_number[word.strip()])
    return visible


def names_not_numbers() -> bool:
    """Tell whether CUDA_VISIBLE_DEVICES has names in place of numbers."""
    words = [word.strip() for word in os.environ.get(VISIBLE, "").split(",")]
    return any(word and not word.isdigit() for word in words)


def used_by(processes: set[int]) -> int | None:
    """Return the bytes that these processes hold on the fullest GPU. Returns None if NVML knows none of the processes.

    The bytes include what the driver holds for each process. In a container, NVML may number processes differently.
    """
    import pynvml

    with _nvml() as handles:
        known = [handle for handle in handles.values() if not isinstance(handle, pynvml.NVMLError)]
        used = [sum(int(one.usedGpuMemory or 0) for one in _running(h) if one.pid in processes) for h in known]
        return max(used, default=0) or None


def processor_use() -> ProcessorUse:
    """Measure for half a second what other programs use of the cores that this process may use."""
    before = {process: _seconds_of(process) for process in psutil.process_iter()}
    # macOS binds no process to cores.
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(psutil.cpu_count() or 1))
    busy = psutil.cpu_percent(_LOOK_SECONDS, percpu=True)
    used = {process: (_seconds_of(process) - seconds) / _LOOK_SECONDS for process, seconds in before.items()}
    mine = used.pop(psutil.Process(), 0.0)
    largest = [process for process in sorted(used, key=lambda one: -used[one]) if used[process] > _NOTICED]
    taken = max(0.0, sum(busy[core] for core in cores if core < len(busy)) / 100 - mine)
    # If all cores of the machine are in use, the programs that wait for one count too.
    waiting = psutil.getloadavg()[0] if taken > _ALL * len(cores) and len(cores) == len(busy) else 0.0
    return ProcessorUse(
        cores=len(cores),
        used=taken,
        wanted=max(taken, waiting),
        largest=tuple(filter(None, map(_to_close, largest)))[:_NAMED],
    )


def _to_close(process: psutil.Process) -> str:
    """Return a program's name and process number; "" if it has ended or if closing it would close the app's page."""
    try:
        name, words = process.name(), " ".join(process.cmdline())
    except psutil.Error:
        return ""
    shows_the_app = any(part in name.lower() for part in _BROWSERS) or "advisor.ui" in words or "streamlit" in words
    return "" if shows_the_app else f"{name} {process.pid}"


def _seconds_of(process: psutil.Process) -> float:
    """Return the processor seconds of a process so far; 0 if it has ended or belongs to somebody else."""
    try:
        return sum(process.cpu_times()[:2])
    except psutil.Error:
        return 0.0


@contextlib.contextmanager
def _nvml() -> Iterator[dict[int, Any]]:
    """Yield the handle of each GPU that the driver lists, or the GPU's error. Yields nothing without a driver."""
    import pynvml  # imported here, because it searches for shared libraries

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield {}
        return
    try:
        handles: dict[int, Any] = {}
        for number in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles[number] = pynvml.nvmlDeviceGetHandleByIndex(number)
            except pynvml.NVMLError as error:  # a lost GPU is still listed
                handles[number] = error
        yield handles
    finally:
        pynvml.nvmlShutdown()


def _looked_at() -> dict[int, DetectedGpu | str]:
    """Return each GPU that the driver lists, or the reason why the GPU cannot be used."""
    import pynvml

    found: dict[int, DetectedGpu | str] = {}
    with _nvml() as handles:
        for number, handle in handles.items():
            try:
                found[number] = _card(number, handle)
            except pynvml.NVMLError as error:
                found[number] = str(error)
    return found


def _running(handle: Any) -> list[Any]:
    """Return the processes that compute on a GPU. Empty if the driver does not say."""
    import pynvml

    try:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        return []


def _card(number: int, handle: Any) -> DetectedGpu | str:
    """Return the driver's description of a GPU. Raises pynvml.NVMLError if the GPU is lost."""
    import pynvml

    if isinstance(handle, pynvml.NVMLError):
        raise handle
    instance = _first_instance(handle)
    if instance is None:
        return "MIG is on and has no instance"
    name = pynvml.nvmlDeviceGetName(instance)
    memory = busy = None
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(instance)
    with contextlib.suppress(pynvml.NVMLError):  # in MIG mode unknown
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return DetectedGpu(
        number=number,
        name=name.decode() if isinstance(name, bytes) else name,
        memory_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        processes=tuple(one.pid for one in _running(instance)),
        is_instance=instance is not handle,
        busy_share=busy,
    )


def _first_instance(handle: Any) -> Any:
    """Return the GPU itself, or in MIG mode its first instance, since CUDA sees only that one (MIG User Guide, CUDA
    Device Enumeration). Returns None if there is no instance."""
    import pynvml

    try:
        if not pynvml.nvmlDeviceGetMigMode(handle)[0]:
            return handle
    except pynvml.NVMLError:  # older GPUs and drivers have no MIG
        return handle
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(pynvml.NVMLError):  # there is no instance at this index
            return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
    return None


def check_is_here(gpu: str, gpus: int) -> str | None:
    """Check that this machine has this many GPUs of a kind. Returns a warning if they are of another kind.

    Raises AdvisorError if there are too few GPUs of any kind. A plan for rented GPUs is launched on the rented machine.
    """
    if gpu == "cpu":
        return None
    present = visible_cards()
    usable = min(1, len(present)) if any(card.is_instance for card in present) else len(present)
    if usable < gpus:
        has = f"has only {usable}" if present else "has no NVIDIA GPU"
        has += " (with MIG, CUDA sees one instance of one GPU)" if usable < len(present) else ""
        has += "".join(f"; GPU {number}: {why}" for number, why in broken_cards().items())
        hint = "launch it on a machine that has them (the file is all it needs), or plan for this one: advisor plan"
        raise AdvisorError(f"the plan is for {gpus} x {gpu}, and this machine {has}", hint)
    key = device_key("auto")
    return None if key == gpu else f"the plan is for {gpu}, this machine has {key}: times and memory will differ"


def cpu_name() -> str | None:
    """Return the name of this machine's processor, as calibrations have it. Returns None if it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)
