"""Detect a run that pays for a GPU but computes on the CPU, from five signs (sources §7.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.units import format_bytes, format_flops, format_number, format_percent, format_seconds, format_watts

CONVICTING = 3  # number of signs needed, because each sign alone has a harmless explanation
# An idle GPU draws 5 to 25 % of its power limit. An open CUDA context adds 26 to 66 W (Vadari 2026, arXiv 2605.23918),
# which brings an L40S of 350 W to nearly 30 %. Kernels bound by launches or data draw up to half of the limit.
IDLE_POWER_SHARE = 0.30
# Utilisation must be near zero: there are single readings of 8 % for a run that did use its L4.
IDLE_UTILIZATION = 0.02
CPU_FLOPS = 200e9  # training on a CPU reaches 1 to 200 GFLOP/s
_REAL_GPU_FLOPS = 5e12  # a GPU with a lower peak may be as slow as a CPU
_LEAST_BYTES = 4  # per parameter in any training: fp32 weights, or 16-bit weights with their gradients
_FIRST_STEP_SLOWER = 1.02  # on a GPU, the first step takes at least this factor longer: it allocates and fills caches


@dataclass(frozen=True, kw_only=True)
class Readings:
    """Measurements of one device during training; None marks an unknown value."""

    parameters: float | None = None
    memory_used_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    utilization: float | None = None  # share of the time in which a kernel ran
    flops_per_second: float | None = None  # achieved
    peak_flops: float | None = None
    first_step_seconds: float | None = None
    later_step_seconds: float | None = None  # median


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One sign, with an explanation; `applies` is True if it points to the CPU."""

    applies: bool
    text: str
    physical: bool = False  # memory or FLOP/s: together these two signs leave no other explanation


def cpu_signs(readings: Readings) -> list[Sign]:
    """List the signs for which there are readings, in a fixed order."""
    return [*_memory(readings), *_power(readings), *_utilization(readings), *_flops(readings), *_first_step(readings)]


def convict(signs: Sequence[Sign]) -> bool:
    """Return True if the signs suffice: any three, or too little memory together with the FLOP/s of a CPU."""
    return sum(sign.applies for sign in signs) >= CONVICTING or sum(s.applies and s.physical for s in signs) > 1


def _memory(r: Readings) -> Iterator[Sign]:
    if r.parameters is None or r.memory_used_bytes is None:
        return
    least = _LEAST_BYTES * r.parameters
    yield Sign(
        applies=r.memory_used_bytes < least,
        text=f"GPU memory in use is at most {format_bytes(r.memory_used_bytes)}; weights in fp32, or in 16 bits "
        f"with their gradients, are {format_bytes(least)}",
        physical=True,
    )


def _power(r: Readings) -> Iterator[Sign]:
    if r.power_watts is None or not r.power_limit_watts:
        return
    share = r.power_watts / r.power_limit_watts
    yield Sign(
        applies=share < IDLE_POWER_SHARE,
        text=f"the GPU draws {format_watts(r.power_watts)}, {format_percent(share)} of its limit",
    )


def _utilization(r: Readings) -> Iterator[Sign]:
    if r.utilization is not None:
        yield Sign(
            applies=r.utilization < IDLE_UTILIZATION,
            text=f"a kernel runs {format_percent(r.utilization)} of the time",
        )


def _flops(r: Readings) -> Iterator[Sign]:
    if r.flops_per_second is None or r.peak_flops is None or r.peak_flops < _REAL_GPU_FLOPS:
        return
    yield Sign(
        applies=r.flops_per_second < CPU_FLOPS,
        text=f"{format_flops(r.flops_per_second)} is what a CPU gives; the GPU's peak is {format_flops(r.peak_flops)}"
        f", {format_number(r.peak_flops / r.flops_per_second)} times more",
        physical=True,
    )


def _first_step(r: Readings) -> Iterator[Sign]:
    if r.first_step_seconds is None or r.later_step_seconds is None:
        return
    yield Sign(
        applies=r.first_step_seconds < _FIRST_STEP_SLOWER * r.later_step_seconds,
        text=f"the first step ({format_seconds(r.first_step_seconds)}) is no slower than the others "
        f"({format_seconds(r.later_step_seconds)})",
    )
