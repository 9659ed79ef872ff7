"""Measures the device's ceilings: matrix-product rate by size, memory bandwidth, launch latency.

These are raw timings, which the advisor turns into priors. The sizes are the shapes of a training step (tokens × width
× FFN), not the best-case square of a datasheet, so that the whole takes a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from trainer.messages import Ceilings, CopyTiming, MatmulTiming

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_CPU_MATMULS = ((512, 128, 512), (1024, 256, 1024), (1024, 512, 2048), (2048, 768, 3072))
_CUDA_MATMULS = ((4096, 256, 1024), (8192, 512, 2048), (8192, 1024, 4096), (16384, 2048, 8192), (8192, 8192, 8192))
_CPU_COPY_BYTES = (1 << 22, 1 << 26)  # inside and outside a typical last-level cache share
_CUDA_COPY_BYTES = (1 << 26, 1 << 30)


def measure_ceilings(device: torch.device, precision: str, seconds: float) -> Ceilings:
    """Time matrix products (m×k by k×n), device copies and launches within about `seconds` seconds."""
    cuda = device.type == "cuda"
    matmuls = _CUDA_MATMULS if cuda else _CPU_MATMULS
    copies = _CUDA_COPY_BYTES if cuda else _CPU_COPY_BYTES
    each = seconds / (len(matmuls) + len(copies) + 1)
    return Ceilings(
        precision=precision,
        matmul=tuple(_matmul(device, _DTYPES[precision], shape, each) for shape in matmuls),
        copy=tuple(_copy(device, size, each) for size in copies),
        launch_seconds=_launch(device, each),
    )


def _matmul(device: torch.device, dtype: torch.dtype, shape: tuple[int, int, int], seconds: float) -> MatmulTiming:
    m, k, n = shape
    left = torch.randn(m, k, device=device).to(dtype)
    right = torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    times = _repeat(device, lambda: torch.mm(left, right, out=out), seconds)
    return MatmulTiming(m=m, k=k, n=n, seconds=tuple(times))


def _copy(device: torch.device, size: int, seconds: float) -> CopyTiming:
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return CopyTiming(bytes=2 * size, seconds=tuple(_repeat(device, lambda: target.copy_(source), seconds)))


def _launch(device: torch.device, seconds: float, batch: int = 100) -> tuple[float, ...]:
    """Return seconds per operation on a tensor so small that only dispatch and launch take time."""
    small = torch.zeros(16, device=device)

    def many() -> None:
        for _ in range(batch):
            small.add_(1.0)

    return tuple(t / batch for t in _repeat(device, many, seconds))


def _repeat(device: torch.device, work: Callable[[], object], seconds: float, most: int = 30) -> list[float]:
    """Return the times of repeated calls after two warm-up calls: at least 3, at most `most`, in about `seconds`."""

    def once() -> float:
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    once(), once()
    end = time.perf_counter() + seconds
    times: list[float] = []
    while len(times) < 3 or (len(times) < most and time.perf_counter() < end):
        times.append(once())
    return times
