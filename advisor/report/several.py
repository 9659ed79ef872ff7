"""Several runs beside each other: a row for each, and their curves over each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from advisor.findings.detectors.learning_rate import phase_of_schedule
from advisor.findings.run_facts import planned_steps, step_tokens, steps_done
from advisor.history.comparison import Comparison
from advisor.report.comparison import differences, groups, side_by_side, speed_changes
from advisor.report.table import Table
from advisor.report.words import mfu
from advisor.units import (
    HOUR,
    format_count,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)
from advisor.workflows.analysis import Analysis
from advisor.workflows.analyze import names_of

_COLUMNS = ("run", "status", "steps", "tokens", "takes", "tokens/s", "MFU", "costs", "last loss", "phase")


def run_table(analyses: Sequence[Analysis]) -> Table:
    """A row per run: how it ended, how far it got, what it took, and how low its learning rate was at its end."""
    rows = tuple(_row(name, analysis) for name, analysis in zip(names_of(analyses), analyses, strict=True))
    return Table(columns=_COLUMNS, rows=rows, title="Runs", numbers=())


def _row(name: str, analysis: Analysis) -> tuple[str, ...]:
    case, run = analysis.case, analysis.run
    done, planned, batch = steps_done(run), planned_steps(case), step_tokens(case)
    steps = "-" if done is None else format_count(done)
    steps += f" of {format_count(planned)}" if planned and done is not None else ""
    seconds = None if analysis.spent_hours is None else analysis.spent_hours * HOUR
    return (
        name,
        run.status.value.replace("_", " "),
        steps,
        format_tokens(done * batch) if done is not None and batch else "-",
        "-" if seconds is None else format_seconds(seconds),
        "-" if analysis.tokens_per_second is None else format_rate(analysis.tokens_per_second).removesuffix(" tok/s"),
        mfu(analysis)[1].replace("unknown", "-"),
        "-" if analysis.spent_usd is None else format_usd(analysis.spent_usd),
        "-" if run.last_loss is None else format_number(run.last_loss) if isfinite(run.last_loss) else "not a number",
        _phase(analysis),
    )


def _phase(analysis: Analysis) -> str:
    """The name of the run's main phase where it has one of its own, and its learning rate at its end."""
    run = analysis.run
    name = run.phases[run.main_phase].name if run.phases else ""
    share = None if run.last_step is None else phase_of_schedule(run, run.last_step)
    words = [name] if name not in ("", "training") else []
    return ", ".join([*words, *([f"{format_percent(share)} of peak LR"] if share is not None else [])]) or "-"


def compared(comparison: Comparison) -> list[Table]:
    """The comparison at equal tokens (or steps), times and phases of the schedules; tables without rows left out."""
    tables = [side_by_side(comparison.points)] if comparison.points else []
    return [table for table in (*tables, differences(comparison), speed_changes(comparison)) if table.rows]


def said(comparison: Comparison) -> list[str]:
    """Its groups, and what could not be compared and why."""
    return [*groups(comparison), *comparison.notes]
