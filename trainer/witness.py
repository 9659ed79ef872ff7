"""Measures the machine's own speed: a fixed kernel timed next to the work, and stolen CPU time.

Rented and virtual machines drift (by a factor of two within minutes on shared hosts). If a step takes 10 % longer and
the reference kernel takes 10 % longer too, that says something about the machine, not the model.
"""

from __future__ import annotations

import time

import torch

_CPU_SIZE, _CPU_REPEATS = 512, 8  # about 10 ms on two server cores, which is enough to average over scheduling
_CUDA_SIZE, _CUDA_REPEATS = 4096, 8  # about 1.5 ms on a 2022 data-centre GPU, of which the launch is a hundredth
_CUDA_CAPABILITY_BF16 = (8, 0)


class ReferenceKernel:
    """A fixed chain of matrix products on one device, timed with `measure`."""

    def __init__(self, device: torch.device):
        cuda = device.type == "cuda"
        size, self._repeats = (_CUDA_SIZE, _CUDA_REPEATS) if cuda else (_CPU_SIZE, _CPU_REPEATS)
        dtype = torch.float32
        if cuda:
            modern = torch.cuda.get_device_capability(device) >= _CUDA_CAPABILITY_BF16
            dtype = torch.bfloat16 if modern else torch.float16
        generator = torch.Generator().manual_seed(0)  # never zeros, because a GPU's clock may depend on the data
        # rounded before they are copied; otherwise the device's allocator would keep room for fp32 copies
        self._left = torch.randn(size, size, generator=generator).to(dtype).to(device)
        self._right = torch.randn(size, size, generator=generator).to(dtype).to(device)
        self._out = torch.empty_like(self._left)
        self._device = device
        self.measure()  # the first call includes set-up

    @property
    def held_bytes(self) -> int:
        """Return the device memory of the kernel's matrices. Runs without the kernel do not use that memory."""
        return self._left.nbytes + self._right.nbytes + self._out.nbytes

    @torch.no_grad()
    def measure(self) -> float:
        """Return the seconds of one pass. Synchronises the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        for _ in range(self._repeats):
            torch.mm(self._left, self._right, out=self._out)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - began


class StealMeter:
    """The share of CPU time that the hypervisor gave to others since the last reading. None if /proc/stat has none."""

    def __init__(self) -> None:
        self._last = _cpu_ticks()

    def fraction(self) -> float | None:
        now, last = _cpu_ticks(), self._last
        self._last = now
        if now is None or last is None or now[1] <= last[1]:
            return None
        return (now[0] - last[0]) / (now[1] - last[1])


def _cpu_ticks() -> tuple[int, int] | None:
    """Return (stolen, total) clock ticks of all CPUs since boot, from the first line of /proc/stat (Linux, proc(5))."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(x) for x in file.readline().split()[1:9]]
    except OSError:
        return None
    return (fields[7], sum(fields)) if len(fields) == 8 else None
