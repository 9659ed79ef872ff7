"""How a run of an adopted command stands, in words. No arithmetic."""

from __future__ import annotations

from pathlib import Path

from advisor.engines.state import RunState, goes_on
from advisor.history.adopted import AdoptedProgress
from advisor.units import format_count, format_estimate, format_seconds, format_usd
from trainer.schema import Outcome


def progress_line(progress: AdoptedProgress) -> str:
    """A run that goes on, on one line."""
    if not progress.step:
        return f"starting, {format_seconds(progress.elapsed_seconds)} so far"
    parts = [f"step {format_count(progress.step)}/{format_count(progress.steps)}"]
    if progress.step_seconds is not None:
        planned = format_estimate(progress.step_seconds_planned, format_seconds)
        parts.append(f"{format_seconds(progress.step_seconds)} a step (planned {planned})")
    if progress.eta_seconds is not None:
        parts.append(f"about {format_seconds(progress.eta_seconds)} left")
    if progress.usd_so_far is not None:
        parts.append(f"{format_usd(progress.usd_so_far)} so far")
    return "   ".join(parts)


def closing_lines(progress: AdoptedProgress, run_dir: Path) -> list[str]:
    """How a run stands, with the next command."""
    if goes_on(progress.state):
        return [progress_line(progress), f"next: advisor watch {run_dir}"]
    if progress.state == RunState.NEVER_STARTED:
        return [f"{run_dir} was never started", f"next: read {run_dir}/stdout.log"]
    because = f": {progress.reason}" if progress.reason and progress.outcome != Outcome.COMPLETED else ""
    planned = format_estimate(progress.total_seconds_planned, format_seconds)
    took = f"{format_seconds(progress.elapsed_seconds)} (planned {planned})"
    account = f"{format_count(progress.step)} of {format_count(progress.steps)} steps in {took}"
    money = f", {format_usd(progress.usd_so_far)}" if progress.usd_so_far is not None else ""
    step = f"advisor {'compare' if progress.outcome in (Outcome.COMPLETED, Outcome.STOPPED) else 'resume'} {run_dir}"
    words = (progress.outcome or progress.state).replace("_", " ")
    return [f"{words}{because}", f"{account}{money}", f"run folder: {run_dir}", f"next: {step}"]
