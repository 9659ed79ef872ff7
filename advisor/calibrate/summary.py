"""The bursts of a calibration as lines to show: one per configuration, for the command line and the page alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.calibrate import observations
from advisor.calibrate.fit import HeldOut
from advisor.calibrate.one_burst import describe
from advisor.records import Basis, Estimate, Workload
from advisor.store.calibration import Calibration
from trainer.schema import Outcome


@dataclass(frozen=True, kw_only=True)
class BurstLine:
    """One configuration as measured; None where the burst did not complete."""

    configuration: str
    bursts: int
    outcome: str
    tokens_per_second: float | None
    step_seconds: float | None  # corrected for the machine's drift
    left_out_error: float | None  # of the prediction by all other configurations; None: not held out


def burst_lines(calibration: Calibration, errors: Sequence[float] | None = None) -> list[BurstLine]:
    """One line per configuration, smallest first, then the bursts that failed.

    `errors` are the held-out errors in the order of the observations (`hold_each_out`).
    """
    bursts = calibration.bursts
    done = observations.completed(bursts)
    seen = observations.observations(bursts, observations.drift_of(bursts)) if done else []
    runs = [burst.workload for burst in done]
    gaps: Sequence[float | None] = errors if errors is not None else [None] * len(seen)
    lines = [
        BurstLine(
            configuration=describe(observation.workload),
            bursts=runs.count(observation.workload),
            outcome="completed",
            tokens_per_second=observation.workload.step_tokens / observation.step_seconds,
            step_seconds=observation.step_seconds,
            left_out_error=gap,
        )
        for observation, gap in sorted(zip(seen, gaps, strict=True), key=lambda pair: _size(pair[0].workload))
    ]
    failed = [burst for burst in bursts if burst.outcome != Outcome.COMPLETED]
    return lines + [
        BurstLine(
            configuration=describe(burst.workload),
            bursts=1,
            outcome=burst.outcome,
            tokens_per_second=None,
            step_seconds=None,
            left_out_error=None,
        )
        for burst in failed
    ]


@dataclass(frozen=True, kw_only=True)
class HeldOutPoint:
    """One configuration as predicted from all others, beside what it took."""

    configuration: str
    predicted: Estimate  # seconds of a step, 80 % interval
    measured: float  # corrected for the machine's drift


def held_out_points(calibration: Calibration, held: HeldOut) -> list[HeldOutPoint]:
    """What leaving each configuration out predicted for it (`held` is `hold_each_out` of the calibration)."""
    bursts = calibration.bursts
    seen = observations.observations(bursts, observations.drift_of(bursts))
    points = []
    for one, error, width in zip(seen, held.errors.tolist(), held.widths.tolist(), strict=True):
        value = one.step_seconds * (1 + error)
        low, high = value * math.exp(-width), value * math.exp(width)
        predicted = Estimate(value=value, low=low, high=high, basis=Basis.INTERPOLATED)
        points.append(
            HeldOutPoint(configuration=describe(one.workload), predicted=predicted, measured=one.step_seconds)
        )
    return points


def _size(w: Workload) -> tuple[int, ...]:
    return w.shape.depth, w.micro_tokens, w.shape.seq_len, w.grad_accum
