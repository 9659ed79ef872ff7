"""How far a run of an adopted command is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from advisor.engines.state import RunState, RunStatus
from advisor.history.progress import recent_median
from advisor.records import Estimate
from advisor.store.adopted import PLAN, load_adopted_plan
from advisor.store.run_folder import read_launch, run_id
from advisor.trainers.adopted import ADOPTED, attempts_of, read_log, spent_seconds


def is_adopted(run_dir: Path) -> bool:
    """Whether a run folder holds a run of an adopted command."""
    launch = read_launch(run_dir) if run_dir.is_dir() else None
    return launch is not None and launch.trainer == ADOPTED.name


@dataclass(frozen=True, kw_only=True)
class AdoptedProgress:
    """How far an adopted run is. None: not known yet."""

    run_id: str
    state: str  # of RunState
    outcome: str | None
    reason: str | None
    step: int
    steps: int
    step_seconds: float | None  # recent median
    step_seconds_planned: Estimate
    elapsed_seconds: float  # of all attempts
    total_seconds_planned: Estimate
    eta_seconds: float | None
    usd_so_far: float | None
    max_seconds: float | None


def look(run_dir: Path, now: float, status: RunStatus) -> AdoptedProgress:
    """How a run stands at this moment, by what its engine says; raises AdvisorError when its folder is damaged."""
    plan = load_adopted_plan(run_dir / PLAN)
    attempts = attempts_of(read_log(run_dir))
    newest = attempts[-1] if attempts else []
    seconds = [record["seconds"] for record in newest if record["kind"] == "step" and record["seconds"] is not None]
    running = status.state is RunState.RUNNING
    elapsed = spent_seconds(run_dir) + (now - newest[-1]["time"] if running and newest else 0.0)
    pace, step = recent_median(seconds), status.step or 0
    ending = plan.ending_seconds.value if plan.ending_seconds is not None else 0.0
    left = (plan.steps - step) * (pace or plan.step_seconds.value) + ending
    return AdoptedProgress(
        run_id=run_id(run_dir),
        state=status.state.value,
        outcome=status.outcome.value if status.outcome else None,
        reason=status.reason,
        step=step,
        steps=plan.steps,
        step_seconds=pace,
        step_seconds_planned=plan.step_seconds,
        elapsed_seconds=elapsed,
        total_seconds_planned=plan.total_seconds,
        eta_seconds=left if running else None,
        usd_so_far=elapsed / 3600 * plan.usd_per_hour if plan.usd_per_hour is not None else None,
        max_seconds=plan.max_seconds,
    )
