"""`advisor compare`: predicted against actual, where the gap went, and several runs side by side."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.params import EXISTING, FILE
from advisor.errors import AdvisorError
from advisor.report import render

if TYPE_CHECKING:
    from advisor.workflows.compare import Reviewed
    from advisor.workflows.write_back import Written


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--plan", type=FILE, help="The plan.yaml of a RUN that has none beside its log.")
@click.option(
    "--record/--no-record",
    default=None,
    help="Keep the scores and offer the run to its GPU's profile. Default: unless it was taken back.",
)
@click.option("--forget", is_flag=True, help="Take back what was recorded of RUN instead of comparing it.")
@click.option(
    "--write-to",
    type=EXISTING,
    metavar="PATH",
    help="Hand prediction, interval and score to the run of your tracker: W&B (offline), MLflow, trackio.",
)
@click.option("--tracker-run", metavar="ID", help="Its id or name there, where PATH holds several.")
@click.option(
    "--tracker-python", metavar="PATH", help="The Python that has the tracker's library.  [default: the run's]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    runs: tuple[str, ...],
    plan: Path | None,
    record: bool | None,
    forget: bool,
    write_to: Path | None,
    tracker_run: str | None,
    tracker_python: str | None,
    as_json: bool,
) -> None:
    """Set RUN (a path, a name, a unique beginning of one, or `latest`) against its prediction.

    RUN may also be another trainer's log or folder with a plan.yaml beside it: what its log does not hold is left
    unscored. Several runs are compared with each other too, at equal tokens, time, dollars and shares of their
    schedules. A finished run's scores go into the ledger that `advisor accuracy` reads, and its step time into the
    profile of its device; --forget takes both back. A run of fewer than 100 timed steps after the warm-up is too
    short for that, unless they are a tenth of its steps and at least 10; if it did all its steps, it is scored still.
    """
    if write_to is not None and (forget or len(runs) > 1):
        raise AdvisorError(
            "--write-to writes the scores of one run", "advisor compare RUN --write-to PATH", exit_code=2
        )
    if forget:
        take_back(runs, as_json)
        return
    from advisor.history.comparison import compare_runs
    from advisor.report import terminal
    from advisor.report.comparison import kept
    from advisor.store.store import default_store
    from advisor.workflows.compare import review, to_document

    store = default_store()
    reviewed = [review(store, text, record=record, plan=plan) for text in runs]
    written = _write(reviewed[0], write_to, tracker_run, tracker_python) if write_to is not None else None
    comparison = compare_runs([run.case for run in reviewed], [run.name for run in reviewed]) if len(runs) > 1 else None
    if as_json:
        documents = [to_document(run) for run in reviewed]
        one = documents[0] if written is None else {**documents[0], "written": written}
        render.print_json(one if comparison is None else {"runs": documents, **comparison.to_document()})
        return
    for run in reviewed:
        for note in run.case.run.notes:
            render.remark(f"read: {note}")
        render.show(*terminal.scored_run(run.name, run.scored), "", *filter(None, [kept(run)]))
    if written is not None:
        render.show(
            f"written: {written.parameters} parameters of {written.library}'s run {written.run}, {written.place}"
        )
    if comparison is not None:
        render.show(*terminal.comparison(comparison), "")
    render.show("next: advisor accuracy" if any(run.recorded for run in reviewed) else "next: advisor runs")


def _write(reviewed: Reviewed, path: Path, run: str | None, python: str | None) -> Written:
    from advisor.workflows.write_back import tracker_python, write_back

    return write_back(reviewed.scored, path, run, python or tracker_python(reviewed.path))


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
