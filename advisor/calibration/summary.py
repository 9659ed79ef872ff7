"""The bursts of a calibration as lines to show: one per configuration, for the command line and the page alike."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.calibration import observations
from advisor.calibration.evidence import Evidence
from advisor.calibration.one_burst import describe
from advisor.laws.held_out import HeldOut
from advisor.records import Workload
from advisor.store.calibration import Calibration
from trainer.schema import Outcome


@dataclass(frozen=True, kw_only=True)
class BurstLine:
    """One configuration as measured; None where the burst did not complete."""

    configuration: str
    bursts: int
    outcome: str
    tokens_per_second: float | None = None
    step_seconds: float | None = None  # corrected for the machine's drift
    left_out_error: float | None = None  # of the prediction by all other configurations; None: not held out


def burst_lines(calibration: Calibration, held: HeldOut | None = None) -> list[BurstLine]:
    """One line per configuration, smallest first, then the bursts that failed; `held`: predicted from the others."""
    runs = [burst.workload for burst in observations.completed(calibration.bursts)]
    lines = []
    for step in sorted(Evidence(calibration).steps if runs else [], key=lambda step: _size(step.workload)):
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
