"""Chooses a run's device and precision and reads its memory. Only the loop's clock calls torch.cuda elsewhere."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from trainer.cpu_products import measure_products, take_faster_fp32
from trainer.schema import DeviceFacts

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# messages of errors without a type of their own: the CPU's allocator, Triton loading a kernel, cuBLAS making a handle
_OUT_OF_MEMORY_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_PROC_STATUS, _PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of the GNU C library
_CUDA_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class DeviceError(RuntimeError):
    """Says that the configured device or precision does not exist here, and what was found."""


@dataclass(frozen=True, kw_only=True)
class DeviceContext:
    """A resolved device and precision: never "auto"."""

    device: torch.device
    precision: str  # bf16 | fp16 | fp32

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the 16-bit type to which weights are cast for arithmetic. Returns None if they are not cast."""
        return _DTYPES.get(self.precision)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass in this precision."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None)

    def grad_scaler(self) -> torch.amp.GradScaler:
        """Return loss scaling for fp16. It does nothing in the other precisions, whose range is wide enough."""
        return torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")

    def synchronise(self) -> None:
        """Wait until the device has done all queued work."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """The most memory held so far. On the CPU only the process is measured, and the device's fields are None."""

    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    resident_peak_bytes: int


def resolve_device(name: str, precision: str, *, local_rank: int = 0, tf32: bool = True) -> DeviceContext:
    """Choose device and precision and make them the process's defaults. Raises DeviceError if they do not exist.

    auto takes CUDA if there is a GPU. Its precision is then bf16 if the GPU computes in bf16, fp16 on older GPUs that
    are fast at it, else fp32. On a CPU it is bf16 if a measured matrix product shows that bf16 pays. `tf32` lets fp32
    matrix products on CUDA round their inputs to 10 bits.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise DeviceError(f"device {name!r} is not one of auto, cpu, cuda")
    cuda = torch.cuda.is_available() if name == "auto" else name == "cuda"
    if not cuda:
        _keep_freed_memory()
        take_faster_fp32()
        chosen = measure_products().precision if precision == "auto" else precision
        return DeviceContext(device=torch.device("cpu"), precision=chosen)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if local_rank >= found:
        raise DeviceError(f"CUDA device {local_rank} was asked for; torch {torch.__version__} finds {found}")
    device = torch.device("cuda", local_rank)
    capability = torch.cuda.get_device_capability(device)
    if torch.version.cuda and not has_kernels(torch.cuda.get_arch_list(), capability):
        raise DeviceError(
            f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(device)} (compute capability "
            f"{capability[0]}.{capability[1]}); install a wheel that has them: https://pytorch.org/get-started"
        )
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    return DeviceContext(device=device, precision=_cuda_precision(precision))


def has_kernels(architectures: Sequence[str], capability: tuple[int, int]) -> bool:
    """Tell whether a build for these architectures ("sm_86", "compute_120") runs on a GPU with this capability.

    Code for x.y runs on x.z with z >= y. PTX code ("compute_") runs on every newer GPU.
    """
    built = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name) for name in architectures]
    return any(
        (int(found[2]) == capability[0] and int(found[3]) <= capability[1])
        or (found[1] == "compute" and (int(found[2]), int(found[3])) <= capability)
        for found in built
        if found
    )


def describe_device(context: DeviceContext, world_size: int = 1) -> DeviceFacts:
    """Return the device's data for the log's header and calibrations. What cannot be found out is None."""
    host = DeviceFacts(
        type=context.device.type,
        name=_cpu_name(),
        memory_bytes=_host_memory_bytes(),
        count=world_size,
        cpu_threads=torch.get_num_threads(),
    )
    if not context.is_cuda:
        products = measure_products()
        return replace(host, fp32_flops=products.best_fp32, bf16_flops=products.bf16)
    properties = torch.cuda.get_device_properties(context.device)
    return replace(
        host,
        name=properties.name,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        driver=_driver_version(),
        cuda=torch.version.cuda,
    )


def peak_memory(context: DeviceContext) -> PeakMemory:
    """Return peaks since the process began or `reset_peak_memory` was called."""
    allocated = reserved = None
    if context.is_cuda:
        statistics = torch.cuda.memory_stats_as_nested_dict(context.device)  # one call; torch's two getters cost more
        allocated = statistics["allocated_bytes"]["all"]["peak"]
        reserved = statistics["reserved_bytes"]["all"]["peak"]
    return PeakMemory(
        allocated_peak_bytes=allocated, reserved_peak_bytes=reserved, resident_peak_bytes=_resident_peak_bytes()
    )


def reset_peak_memory(context: DeviceContext) -> None:
    """Restart the peaks from the present memory. The resident peak restarts only if the kernel allows it."""
    if context.is_cuda:
        torch.cuda.reset_peak_memory_stats(context.device)
    try:
        _PROC_CLEAR_REFS.write_text("5")  # proc(5): resets the peak resident set
    except OSError:
        return  # not Linux, or not permitted, so the peak of the whole process stays


def release_memory(context: DeviceContext) -> None:
    """Release cached memory, so that the next measurement starts from an empty allocator."""
    if context.is_cuda:
        torch.cuda.empty_cache()
    elif _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that the memory of the device or of the host was exhausted.

    PyTorch's allocator of device memory and Python have types for it. CUDA itself, its matrix library and Triton report
    a number or words, and PyTorch's CPU allocator only words. The compiler wraps errors that occur while it compiles.
    """
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, torch.OutOfMemoryError | MemoryError):
            return True
        if getattr(inner, "error_code", None) == _CUDA_OUT_OF_MEMORY and isinstance(inner, torch.AcceleratorError):
            return True
        if isinstance(inner, RuntimeError) and any(words in str(inner) for words in _OUT_OF_MEMORY_WORDS):
            return True
        inner = getattr(inner, "inner_exception", None) or inner.__cause__
    return False


def _keep_freed_memory() -> None:
    """Let malloc reuse large blocks. Otherwise the kernel gets them back and must zero them again in each step.

    Measured with the GNU C library on two server cores: 6,000 fewer page faults per step of a 5 M-parameter model,
    which is 2 to 8 % of its time. Other C libraries have no such switches.
    """
    if _is_glibc():
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _cuda_precision(precision: str) -> str:
    native_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "auto":
        return "bf16" if native_bf16 else "fp16" if _has_fast_fp16(torch.cuda.get_device_capability()) else "fp32"
    if precision == "bf16" and not native_bf16:
        raise DeviceError(f"{torch.cuda.get_device_name()} has no bf16 units; use precision fp16, fp32 or auto")
    return precision


def _has_fast_fp16(capability: tuple[int, int]) -> bool:
    """Tell whether fp16 is faster than fp32. CUDA's throughput table gives it 1/64 on Pascal's GeForce GPUs."""
    return capability >= (7, 0) or capability in ((5, 3), (6, 0), (6, 2))


def _resident_peak_bytes() -> int:
    try:
        status = _PROC_STATUS.read_bytes()  # called in every step, so it is not split into lines
    except OSError:
        status = b""
    if (at := status.find(b"VmHWM:")) >= 0:
        return int(status[at:].split(maxsplit=2)[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * 1024 if os.uname().sysname == "Linux" else peak  # KiB on Linux, bytes on macOS


def _host_memory_bytes() -> int:
    """Return the main memory, or less if the process's control group allows less."""
    total = psutil.virtual_memory().total
    for path in _CGROUP_LIMITS:
        try:
            limit = path.read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def available_host_memory() -> int:
    """Return the machine's available main memory in bytes, or less if its control group allows less."""
    return min(psutil.virtual_memory().available, _host_memory_bytes())


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _driver_version() -> str | None:
    import pynvml  # needed only if there is a GPU

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
