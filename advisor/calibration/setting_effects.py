"""Computes what each optimisation gives on a device, from one burst with it switched between two without it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from advisor.calibration.measure import burst_seconds
from advisor.calibration.observations import completed, corrected_log, drift_of, within_noise
from advisor.laws.intervals import Z80
from advisor.options import OPTIONS
from advisor.records import Basis, Estimate, Workload
from advisor.store.calibration import Burst, Calibration, Settings
from trainer.schema import ACTIVATION_CHECKPOINTING, ATTENTION_KERNELS, OPTIMIZERS

BUDGETS = 2.0  # longest time of these bursts, in time budgets of the calibration
_TF32_SINCE = 8.0  # compute capability: Ampere


@dataclass(frozen=True, kw_only=True)
class SettingEffect:
    """The effect of one setting, compared with the bursts just before and after it."""

    setting: str  # an option (--optimizer muon), or a field of a run's configuration (attention: math)
    outcome: str
    reason: str | None  # why it did not run
    speed: Estimate | None  # steps per second, divided by those without the setting; None if a burst failed
    memory_bytes: int | None  # difference of the peak: allocated GPU memory, or growth of the process on a CPU


def switched(settings: Settings, base: Workload, capability: str | None) -> Iterator[tuple[str, Settings, Workload]]:
    """Yield each setting that this device supports and the base does not use, with what its burst runs."""
    cuda, has_tf32 = settings.device == "cuda", float(capability or 0) >= _TF32_SINCE
    compiling = "--no-compile" if base.compile else "--compile", settings, replace(base, compile=not base.compile)
    if base.compile:
        yield compiling
    of_run: dict[str, tuple[Any, ...]] = {
        "activation_checkpointing": ACTIVATION_CHECKPOINTING,
        "optimizer": OPTIMIZERS,
        "precision": ("bf16", "fp16", "fp32") if cuda else ("bf16", "fp32"),  # CPUs cannot train in scaled fp16
    }
    for name, value in ((name, value) for name, values in of_run.items() for value in values):
        if value != getattr(base, name):
            yield f"{OPTIONS[name].flag} {value}", settings, replace(base, **{name: value})
    of_kernels: dict[str, tuple[Any, ...]] = {
        "attention": ATTENTION_KERNELS[1:] if cuda else ("math",),  # a CPU's other kernel is what "auto" takes
        "loss_chunk_tokens": (base.micro_tokens,),  # all logits of a micro-batch at once
        "optimizer.fused": (False,) if base.optimizer == "adamw" else (),
        "tf32": (False,) if cuda and has_tf32 and base.precision == "fp32" else (),
    }
    for name, value in ((name, value) for name, values in of_kernels.items() for value in values):
        kernels = replace(settings.kernels, **{name.removeprefix("optimizer."): value})
        yield f"{name}: {str(value).lower()}", replace(settings, kernels=kernels), base
    if not base.compile:  # last, because compiling for a CPU takes as long as many bursts
        yield compiling


def base_of(calibration: Calibration) -> Workload:
    """Return the largest measured configuration whose burst times three steps, or else the fastest one."""

    def rank(burst: Burst) -> tuple[bool, int, float]:
        seconds, work = statistics.median(burst.step_seconds), burst.workload
        short = 3 * seconds <= burst_seconds(calibration.settings)
        return short, work.shape.seq_len, work.shape.depth * work.micro_tokens if short else -seconds

    return max(completed(calibration.bursts), key=rank).workload


def effects(calibration: Calibration) -> list[SettingEffect]:
    """Return the effect of each setting that was switched, the fastest first and those that do not run last."""
    bursts = calibration.setting_bursts
    drift = drift_of([*calibration.bursts, *(burst for burst in bursts if burst.setting is None)])
    found = []
    for place, burst in enumerate(bursts):
        around = completed([b for b in bursts[place - 1 : place + 2] if b.setting is None])
        if burst.setting is None:
            continue
        speed = memory = None
        if burst.completed and around:
            # the mean of the bursts before and after takes out what the reference kernel leaves of a steady drift
            ratio = math.exp(statistics.fmean(corrected_log(b, drift) for b in around) - corrected_log(burst, drift))
            own, *others = (drift.noise_floor**2 + within_noise(b) ** 2 for b in (burst, *around))
            width = math.exp(Z80 * math.sqrt(own + sum(others) / len(others) ** 2))
            speed = Estimate(value=ratio, low=ratio / width, high=ratio * width, basis=Basis.MEASURED)
            peak, *peaks = (
                b.allocated_peak_bytes or (b.resident_peak_bytes or 0) - (b.resident_before_bytes or 0)
                for b in (burst, *around)
            )
            memory = round(peak - statistics.fmean(peaks)) if peak and all(peaks) else None
        found.append(SettingEffect(
            setting=burst.setting, outcome=burst.outcome, reason=burst.reason, speed=speed, memory_bytes=memory
        ))  # fmt: skip
    return sorted(found, key=lambda effect: -effect.speed.value if effect.speed else math.inf)
