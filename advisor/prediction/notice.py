"""Check whether a run can save a checkpoint between the notice that a spot machine ends and its end."""

from __future__ import annotations

from advisor.prediction.wallclock import planned_checkpoints, planned_evals
from advisor.records import Estimate, WallClock
from advisor.units import format_seconds
from trainer.schema import RunConfig

# Seconds between a spot machine's notice and its end, as the providers document them (AWS, Google Cloud, Azure).
NOTICE_SECONDS = {"aws": 120, "gcp": 30, "azure": 30}


def save_seconds(run: RunConfig, clock: WallClock, step_seconds: Estimate) -> float:
    """Return the seconds from a notice to a saved checkpoint, at the high ends of the intervals.

    The checkpoint is written after the current step or evaluation.
    """
    assert clock.evals_seconds and clock.checkpoints_seconds  # the trainer's plans have every part
    evaluation = clock.evals_seconds.high / max(1, planned_evals(run))
    if clock.write_seconds is not None:
        write = clock.write_seconds.high
    else:  # plans of older versions, whose checkpoints were synchronous
        checkpoints = max(1, planned_checkpoints(run, clock.steps_seconds.value + clock.evals_seconds.value))
        write = clock.checkpoints_seconds.high / checkpoints
    return max(step_seconds.high, evaluation) + write


def short_notice(provider: str | None, needed_seconds: float) -> str | None:
    """Return a warning if the provider's notice is too short to save, or None if it suffices or is not documented."""
    notice = NOTICE_SECONDS.get(provider or "")
    if notice is None or needed_seconds <= notice:
        return None
    return (
        f"{provider} gives a spot machine {notice} s of notice, a step or an evaluation and a checkpoint take up to "
        f"{format_seconds(needed_seconds)}"
    )
