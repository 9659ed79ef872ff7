"""`advisor runs`: the runs on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.report.render import print_json, show, table
from advisor.runs.follow import RunSummary, summarize
from advisor.store.store import default_store
from advisor.units import format_count, format_number, format_usd


@click.command("runs")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(as_json: bool) -> None:
    """List the runs started here, newest first, with what became of them."""
    store = default_store()
    summaries = [summarize(row, store) for row in store.runs()]
    if as_json:
        print_json({"runs": summaries})
    elif not summaries:
        show("no runs yet; start one: advisor launch plan.yaml")
    else:
        columns = ("run", "started (UTC)", "state", "steps", "training loss", "folder")
        show(table(columns, map(_row, summaries), right=("steps", "training loss")))


def _row(run: RunSummary) -> tuple[str, ...]:
    state = (run.outcome or run.state).replace("_", " ")
    steps = f"{format_count(run.step or 0)}/{format_count(run.steps)}" if run.steps else "-"
    loss = format_number(run.loss) if run.loss is not None else "-"
    if run.usd:
        state = f"{state}, {format_usd(run.usd)}"
    problem = f"{state}: {run.problem}" if run.problem else state
    return (run.name, run.created[:16].replace("T", " "), problem, steps, loss, _short(run.path))


def _short(path: str) -> str:
    """A path with the home folder as ~."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path
