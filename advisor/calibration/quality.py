"""Decides whether a calibration is used as it is, with wider intervals, or not at all.

Each configuration is predicted from the others. The errors of these predictions, and how often their intervals hold,
show how good the fit is for configurations that were not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from advisor.calibration import observations
from advisor.calibration.fit import FitEvidence
from advisor.laws.held_out import FEWEST_TO_HOLD_OUT, HeldOut
from advisor.laws.intervals import SHARE_INSIDE
from advisor.records import Workload
from advisor.store.calibration import PARTIAL, Calibration, HeldOutSummary, Quality, Verdict
from advisor.store.store import CalibrationEntry, load_calibration
from advisor.units import format_percent
from trainer.schema import Outcome

SOUND_COVERAGE = 0.7  # of the 80 % intervals; docs/accuracy.md asks this of a session
# A quiet machine gives 2 to 6 % (docs/accuracy.md). Five times that means that other work disturbed the measurement.
BELIEVED_MEDIAN = 0.25
# arbitrary: this share would hold if normal errors were three times as wide as their intervals state
BELIEVED_COVERAGE = 0.3
# In the shipped sessions on a quiet machine, the worst left-out error is 16 % and the machine's own speed moved by up
# to 15 % (benchmarks/raw). Beyond about twice that, one configuration or the machine was disturbed.
SOUND_WORST = math.log(1.4)
SOUND_DRIFT = 0.3


def configurations(calibration: Calibration) -> int:
    """Return how many different configurations completed."""
    return len({burst.workload for burst in observations.completed(calibration.bursts)})


def judged(calibration: Calibration) -> Calibration:
    """Return the calibration with its held-out errors and the verdict on them."""
    evidence = FitEvidence(calibration)
    held = evidence.held_out()
    return replace(
        calibration,
        held_out_error=HeldOutSummary(
            configurations=len(held.points),
            median=round(held.median, 5),
            p90=round(held.p90, 5),
            coverage=round(held.coverage, 4),
        )
        if held
        else None,
        quality=judge(
            held,
            configurations(calibration),
            interrupted=calibration.status == PARTIAL,
            drift=evidence.drift.deviation,
        ),
    )


def judge(held: HeldOut | None, measured: int, *, interrupted: bool, drift: float) -> Quality:
    """Return the verdict on held-out errors, given `measured` completed configurations.

    `drift` is the standard deviation of the log of the machine's own speed during the bursts.
    """
    if held is None:
        cut = "it was interrupted after" if interrupted else "it has"
        return _rejected(
            f"{cut} {measured} configuration{'' if measured == 1 else 's'}, and {FEWEST_TO_HOLD_OUT} are needed to "
            "leave each out once"
        )
    if held.median > BELIEVED_MEDIAN:
        return _rejected(
            f"the median of its held-out errors is {held.median:.0%}, above the {BELIEVED_MEDIAN:.0%} up to which a "
            "calibration is used: something else was using the machine"
        )
    holds = f"{format_percent(round(held.coverage, 2))} of the test predictions fell in their 80 % intervals"
    if held.coverage < BELIEVED_COVERAGE:
        return _rejected(f"only {holds}, and below {BELIEVED_COVERAGE:.0%} no calibration is used")
    if held.coverage < SOUND_COVERAGE:
        return Quality(verdict=Verdict.DOUBTFUL, widening=widening(held), reason=f"only {holds}")
    doubts = []
    worst = max((point.error for point in held.points), key=lambda error: abs(math.log1p(error)))
    if abs(math.log1p(worst)) > SOUND_WORST:
        doubts.append(f"one configuration is {worst:+.0%} off when predicted from the others")
    if drift > SOUND_DRIFT:
        doubts.append(f"the machine's own speed moved by ±{drift:.0%}")
    if doubts:
        reason = f"{holds}, but {' and '.join(doubts)}"
        return Quality(verdict=Verdict.DOUBTFUL, widening=widening(held), reason=reason)
    return Quality(verdict=Verdict.GOOD, widening=1.0, reason=holds)


def _rejected(reason: str) -> Quality:
    return Quality(verdict=Verdict.REJECTED, widening=1.0, reason=reason)


def widening(held: HeldOut) -> float:
    """Return the factor by which intervals must widen for 80 % to hold, rounded up to a tenth; at least 1."""
    needed = np.sort([abs(math.log1p(point.error)) / point.width for point in held.points])
    factor = float(needed[math.ceil(SHARE_INSIDE * len(needed)) - 1])
    return max(1.0, math.ceil(10 * factor) / 10)


def quality_of(calibration: Calibration) -> Quality:
    """Return the stored verdict, or else one computed from the calibration."""
    quality = calibration.quality or judged(calibration).quality
    assert quality is not None
    return quality


def with_quality(entry: CalibrationEntry) -> CalibrationEntry:
    """Return the entry with its stored verdict, or else with one computed once per version of its document."""
    if entry.quality is not None:
        return entry
    written = entry.path.stat()
    return replace(entry, quality=_judged(str(entry.path), written.st_mtime_ns, written.st_size))


@lru_cache(maxsize=256)  # time and size are only cache keys
def _judged(path: str, modified_ns: int, size_bytes: int) -> Quality:
    return quality_of(load_calibration(path))


@dataclass(frozen=True, kw_only=True)
class BurstLine:
    """One configuration as measured; fields are None if the burst did not complete."""

    configuration: str
    bursts: int
    outcome: str
    tokens_per_second: float | None = None
    step_seconds: float | None = None  # corrected for the machine's drift
    left_out_error: float | None = None  # of the prediction from all others; None if it was not held out


def burst_lines(calibration: Calibration, held: HeldOut | None = None) -> list[BurstLine]:
    """Return one line per configuration, smallest first, then failed bursts. `held` has the held-out predictions."""
    from advisor.calibration.measure import describe  # imports the worker, which no plan needs

    runs = [burst.workload for burst in observations.completed(calibration.bursts)]
    lines = []
    for step in sorted(FitEvidence(calibration).steps if runs else [], key=lambda step: _size(step.workload)):
        point = held.of(step.workload) if held is not None else None
        lines.append(
            BurstLine(
                configuration=describe(step.workload),
                bursts=runs.count(step.workload),
                outcome="completed",
                tokens_per_second=step.workload.step_tokens / step.step_seconds,
                step_seconds=step.step_seconds,
                left_out_error=point.error if point is not None else None,
            )
        )
    failed = [burst for burst in calibration.bursts if burst.outcome != Outcome.COMPLETED]
    return lines + [
        BurstLine(configuration=describe(burst.workload), bursts=1, outcome=burst.outcome) for burst in failed
    ]


def _size(w: Workload) -> tuple[int, ...]:
    return w.shape.depth, w.micro_tokens, w.shape.seq_len, w.grad_accum
