"""Detect a GPU that does not work as it should: a run that computes on the CPU in its place (five signs, sources §7.5),
and clocks that the driver has lowered (NVML's clocks-event bits, nvml.h; sources §7.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.units import format_bytes, format_flops, format_number, format_percent, format_seconds, format_watts

CONVICTING = 3  # number of signs needed, because each sign alone has a harmless explanation
# An idle GPU draws 5 to 25 % of its power limit. An open CUDA context adds 26 to 66 W (Vadari 2026, arXiv 2605.23918),
# which brings an L40S of 350 W to nearly 30 %. Kernels bound by launches or data draw up to half of the limit.
IDLE_POWER_SHARE = 0.30
# Utilisation must be near zero, because a run that did use its L4 had single readings of 8 %.
IDLE_UTILIZATION = 0.02
CPU_FLOPS = 200e9  # training on a CPU reaches 1 to 200 GFLOP/s
_REAL_GPU_FLOPS = 5e12  # a GPU with a lower peak may be as slow as a CPU
_LEAST_BYTES = 4  # per parameter in any training: fp32 weights, or 16-bit weights and their gradients
_FIRST_STEP_SLOWER = 1.02  # on a GPU, the first step takes at least this factor longer: it allocates and fills caches


@dataclass(frozen=True, kw_only=True)
class FallbackReadings:
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
class FallbackSign:
    """One sign with an explanation; `applies` is True if the sign points to the CPU."""

    applies: bool
    text: str
    physical: bool = False  # memory or FLOP/s; these two signs together leave no other explanation


def cpu_signs(readings: FallbackReadings) -> list[FallbackSign]:
    """Return the signs for which there are readings, in a fixed order."""
    r, signs = readings, []
    if r.parameters is not None and r.memory_used_bytes is not None:
        least = _LEAST_BYTES * r.parameters
        text = f"GPU memory in use is at most {format_bytes(r.memory_used_bytes)}; weights in fp32, or in 16 bits "
        text += f"with their gradients, are {format_bytes(least)}"
        signs.append(FallbackSign(applies=r.memory_used_bytes < least, text=text, physical=True))
    if r.power_watts is not None and r.power_limit_watts:
        share = r.power_watts / r.power_limit_watts
        text = f"the GPU draws {format_watts(r.power_watts)}, {format_percent(share)} of its limit"
        signs.append(FallbackSign(applies=share < IDLE_POWER_SHARE, text=text))
    if r.utilization is not None:
        text = f"a kernel runs {format_percent(r.utilization)} of the time"
        signs.append(FallbackSign(applies=r.utilization < IDLE_UTILIZATION, text=text))
    if r.flops_per_second is not None and r.peak_flops is not None and r.peak_flops >= _REAL_GPU_FLOPS:
        text = f"{format_flops(r.flops_per_second)} is what a CPU gives; the GPU's peak is {format_flops(r.peak_flops)}"
        text += f", {format_number(r.peak_flops / r.flops_per_second)} times more"
        signs.append(FallbackSign(applies=r.flops_per_second < CPU_FLOPS, text=text, physical=True))
    if r.first_step_seconds is not None and r.later_step_seconds is not None:
        text = f"the first step ({format_seconds(r.first_step_seconds)}) is no slower than the others "
        text += f"({format_seconds(r.later_step_seconds)})"
        signs.append(FallbackSign(applies=r.first_step_seconds < _FIRST_STEP_SLOWER * r.later_step_seconds, text=text))
    return signs


def convict(signs: Sequence[FallbackSign]) -> bool:
    """Return True if the signs suffice: any three, or too little memory together with the FLOP/s of a CPU."""
    return sum(sign.applies for sign in signs) >= CONVICTING or sum(s.applies and s.physical for s in signs) > 1


# The meaning of the clocks-event bits. The bit 0x1 (idle GPU) is omitted, because it slows no run.
REASONS = {
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
POWER_CAP = 0x4  # normal under full load
ALARMS = (0x8, 0x20, 0x40, 0x80)  # cut clocks by half or more


def reasons_in(masks: Iterable[int]) -> tuple[str, ...]:
    """Return descriptions of the reasons in NVML bitmasks, each once."""
    seen = 0
    for mask in masks:
        seen |= mask
    return tuple(words for bit, words in REASONS.items() if seen & bit)
