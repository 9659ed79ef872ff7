"""Measures how fast this CPU multiplies matrices, to choose the precision of `auto` and the library for fp32."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

_ROWS, _INNER, _COLUMNS = 256, 512, 512  # 0.13 GFLOP: at most a millisecond of one core
_SECONDS, _LEAST_ROUNDS = 0.1, 5
# bf16 also halves the bytes of everything between products, and adds casts of the weights. If the products gain much,
# training gains about as much. Below this ratio it gains almost nothing.
_WORTH_IT = 1.3
_EXACT = 1e-5  # relative error of a product computed in fp32 throughout; in bf16 it is 3e-3


class CpuProducts(NamedTuple):
    """FLOP/s of one thread in a matrix product, by arithmetic and library."""

    fp32: float  # PyTorch's default, which is MKL on x86
    onednn_fp32: float | None  # None if oneDNN is missing or does not keep fp32 precision
    bf16: float

    @property
    def best_fp32(self) -> float:
        return max(self.fp32, self.onednn_fp32 or 0.0)

    @property
    def precision(self) -> str:
        """Return the precision in which to train."""
        return "bf16" if self.bf16 >= _WORTH_IT * self.best_fp32 else "fp32"


@cache
def measure_products() -> CpuProducts:
    """Time a matrix product in fp32 with both libraries and in bf16, alternating, for a tenth of a second.

    The fastest time of each counts, on one thread, so that other work on the machine does not slow only one of them.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure()
    finally:
        torch.set_num_threads(threads)


def _measure() -> CpuProducts:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(_ROWS, _INNER, generator=generator)
    right = torch.randn(_INNER, _COLUMNS, generator=generator)
    halves = left.bfloat16(), right.bfloat16()
    exact = left @ right
    with_onednn = _by_onednn(lambda: left @ right)
    error = float((with_onednn - exact).norm() / exact.norm())
    work: dict[str, Callable[[], Tensor]] = {"fp32": lambda: left @ right, "bf16": lambda: halves[0] @ halves[1]}
    if torch.backends.mkldnn.is_available() and error < _EXACT:
        work["onednn_fp32"] = lambda: _by_onednn(lambda: left @ right)
    halves[0] @ halves[1]  # the first product builds the kernel
    best = dict.fromkeys(work, float("inf"))
    end, rounds = time.perf_counter() + _SECONDS, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, multiply in work.items():
            began = time.perf_counter()
            multiply()
            best[name] = min(best[name], time.perf_counter() - began)
    flops = {name: 2 * _ROWS * _INNER * _COLUMNS / seconds for name, seconds in best.items()}
    return CpuProducts(fp32=flops["fp32"], onednn_fp32=flops.get("onednn_fp32"), bf16=flops["bf16"])


def take_faster_fp32() -> None:
    """Let oneDNN do this process's fp32 products if it is faster than PyTorch's default and as exact.

    On AMD processors MKL does not use the AVX-512 units, and oneDNN took half the time (measured on EPYC, torch 2.13).
    The switch that selects oneDNN also lets it round to bf16, which it does only if the CPU has tile units for that
    (AMX). Therefore the product itself is checked.
    """
    products = measure_products()
    faster = products.onednn_fp32 is not None and products.onednn_fp32 > 1.1 * products.fp32
    torch.set_float32_matmul_precision("medium" if faster else "highest")


def _by_onednn(multiply: Callable[[], Tensor]) -> Tensor:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        return multiply()
    finally:
        torch.set_float32_matmul_precision(before)
