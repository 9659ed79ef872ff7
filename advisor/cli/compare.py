"""`advisor compare`: predicted against actual, where the gap went, and several runs side by side."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from advisor.cli.params import FILE
from advisor.report import render


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--plan", type=FILE, help="The plan.yaml of a RUN that has none beside its log.")
@click.option(
    "--record/--no-record",
    default=None,
    help="Keep the scores and offer the run to its device's profile. Default: unless it was taken back.",
)
@click.option("--forget", is_flag=True, help="Take back what was recorded of RUN instead of comparing it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(runs: tuple[str, ...], plan: Path | None, record: bool | None, forget: bool, as_json: bool) -> None:
    """Set RUN (a path, a name, a unique beginning of one, or `latest`) against its prediction.

    RUN may also be another trainer's log or folder with a plan.yaml beside it: what its log does not hold is left
    unscored. Several runs are compared with each other too, at equal tokens, time, dollars and shares of their
    schedules. A finished run's scores go into the ledger that `advisor accuracy` reads, and its step time into the
    profile of its device; --forget takes both back. A run of fewer than 100 timed steps after the warm-up is too
    short for that, unless they are a tenth of its steps and at least 10; if it did all its steps, it is scored still.
    """
    if forget:
        take_back(runs, as_json)
        return
    from advisor.report import terminal
    from advisor.report.comparison import kept
    from advisor.runs.comparison import compare_runs
    from advisor.store.store import default_store
    from advisor.workflows.compare import review, to_document

    store = default_store()
    reviewed = [review(store, text, record=record, plan=plan) for text in runs]
    comparison = compare_runs([run.case for run in reviewed], [run.name for run in reviewed]) if len(runs) > 1 else None
    if as_json:
        documents = [to_document(run) for run in reviewed]
        render.print_json(documents[0] if comparison is None else {"runs": documents, **comparison.to_document()})
        return
    for run in reviewed:
        for note in run.case.run.notes:
            render.remark(f"read: {note}")
        render.show(*terminal.scored_run(run.name, run.scored), "", *filter(None, [kept(run)]))
    if comparison is not None:
        render.show(*terminal.comparison(comparison), "")
    render.show("next: advisor accuracy" if any(run.recorded for run in reviewed) else "next: advisor runs")


def take_back(runs: tuple[str, ...], as_json: bool) -> None:
    """Make the ledger and the profiles forget the runs; one that is not there is said to be so."""
    from advisor.store.store import default_store
    from advisor.workflows import compare

    store, now = default_store(), datetime.now(UTC)
    done = [compare.take_back(store, text, now) for text in runs]
    if as_json:
        render.print_json({"forgotten": done})
        return
    for run in done:
        if run.was_recorded:
            render.show(f"{run.run_id}: taken back; predictions are as they were without it")
        else:
            render.show(f"{run.run_id}: nothing of it is recorded")
    render.show("next: advisor accuracy")
