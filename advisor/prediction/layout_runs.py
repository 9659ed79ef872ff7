"""The duration of whole runs on many GPUs: all steps, plus the cost of failures and checkpoints.

`wallclock.lost_share` gives the cost of failures (Daly 2006). The factor `whole` in profiles/layouts.yaml is fitted to
published runs by `benchmarks/layouts.py`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from advisor.laws.intervals import Z80
from advisor.prediction.intervals import columns
from advisor.prediction.layout_time import LayoutLaw, load_law
from advisor.prediction.wallclock import (
    RESTART_SECONDS,
    between_failures,
    checkpoint_interval_seconds,
    lost_share,
    rented_setup,
    stalls,
)
from advisor.records import Basis, Estimate, WallClock

STATE_BYTES = 14  # per parameter in a checkpoint: 16-bit weight, fp32 master weight and both moments
_DISK_BYTES_PER_SECOND = 1e9  # for each GPU, our judgement; writing is asynchronous, so it matters only after a failure


def interrupted(seconds: Estimate, taken: Estimate, *, held_bytes: float) -> Estimate:
    """Return the duration of a run whose spot machines are taken away every `taken` seconds.

    A checkpoint holds `held_bytes`. The machine is ordered anew after each interruption.
    """
    stall = max(1.0, held_bytes / _DISK_BYTES_PER_SECOND)

    def lost(mean: float, work: float) -> float:
        every = np.array(min(float(checkpoint_interval_seconds(stall, mean)), work))
        again = np.array(RESTART_SECONDS + rented_setup(0).seconds)
        return 1 + float(lost_share(every, np.array(stall), again, np.array(mean)))

    return replace(
        seconds,
        value=seconds.value * lost(taken.value, seconds.value),
        low=seconds.low * lost(taken.high, seconds.low),
        high=seconds.high * lost(taken.low, seconds.high),
    )


def whole_run(
    step: Estimate,
    steps: float,
    gpus: int,
    parameters: int,
    law: LayoutLaw | None = None,
    taken: Estimate | None = None,
) -> tuple[WallClock, float]:
    """Return the duration of `steps` steps on `gpus` GPUs from the first to the last, and the expected failures.

    The size of a checkpoint follows from `parameters`. `taken` is the mean seconds until one of the run's spot machines
    is taken away; None means that none is.
    """
    law = law or load_law()
    held = np.array([[parameters * STATE_BYTES / gpus]])
    seconds = held.item() / _DISK_BYTES_PER_SECOND
    write = Estimate(value=seconds, low=seconds / 3, high=3 * seconds, basis=Basis.PRIOR)
    stall = stalls(columns([write]), held, asynchronous=np.array([[True]])).at(0)
    assert stall is not None
    mean = taken or between_failures(gpus)
    ordered = rented_setup(0).seconds if taken else 0.0  # another machine in its place

    def shares(mean_seconds: float, stall_seconds: float, work: float) -> tuple[float, float]:
        every = min(float(checkpoint_interval_seconds(stall_seconds, mean_seconds)), work)
        again = np.array(RESTART_SECONDS + ordered + write.value)
        waiting = stall_seconds / every
        failed = float(lost_share(np.array(every), np.array(stall_seconds), again, np.array(mean_seconds)))
        return failed * (1 + waiting), waiting

    # `beyond_steps`: evaluations, slow machines and settings that were not the fastest
    of_step = math.log(step.high / step.low) / (2 * Z80)
    beyond, unsure = math.exp(law.whole), math.exp(Z80 * max(0.0, law.whole_deviation - of_step))
    work = step.scaled(steps * beyond)
    usual = shares(mean.value, stall.value, work.value)
    best, worst = shares(mean.high, stall.low, work.low), shares(mean.low, stall.high, work.high)
    whole = Estimate(
        value=work.value * (1 + sum(usual)),
        low=work.low * (1 + sum(best)) / unsure,
        high=work.high * (1 + sum(worst)) * unsure,
        basis=Basis.PRIOR,
    )
    clock = WallClock(
        steps_seconds=work,
        checkpoints_seconds=work.scaled(usual[1]),
        interruptions_seconds=work.scaled(usual[0]),
        total_seconds=whole,
    )
    return clock, whole.value / mean.value


def beyond_steps(law: LayoutLaw | None = None) -> float:
    """Return the factor by which published runs took longer than their steps, failures and checkpoints."""
    return math.exp((law or load_law()).whole)
