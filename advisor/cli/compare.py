"""`advisor compare`: compares predicted with actual values, several runs, and the settings of two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import RenderableType

from advisor.cli.verb import EXISTING, GPU, answer, options, verb
from advisor.errors import AdvisorError
from advisor.report import render
from advisor.store.store import default_store


@verb()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@options("plan")
@click.option("--record/--no-record", default=None, help="Store the scores and let the run improve its GPU's profile. "
              "Default: yes, unless you removed this run by --forget.")  # fmt: skip
@click.option("--forget", is_flag=True, help="Remove what was recorded about RUN, instead of comparing it.")
@click.option("--write-to", type=EXISTING, metavar="PATH", help="Write prediction, interval, cost and score to the run "
              "in your tracker: W&B (offline), MLflow, trackio.")  # fmt: skip
@click.option("--tracker-run", metavar="ID", help="Id or name of the run, if PATH contains several.")
@click.option("--tracker-python", metavar="PATH", help="The Python with the tracker's library.  [default: the run's]")
def command(runs: tuple[str, ...], plan: Path | None, record: bool | None, forget: bool, write_to: Path | None,
            tracker_run: str | None, tracker_python: str | None) -> None:  # fmt: skip
    """Compare RUN (a path, a name or its unique beginning, or `latest`) with its prediction.

    Given two plans, run configurations or calibrations, or two runs with --settings, it lists every setting that
    differs.

    RUN may also be the log or folder of another trainer with a plan.yaml beside it. Quantities that its log does not
    contain are not scored. Several runs are also compared with each other, at equal tokens, time, dollars and shares of
    their schedules.

    A finished run's scores go into the ledger that `advisor runs --accuracy` reads, and its step time into the profile
    of its device; --forget removes both. A run that ended early is recorded only if enough steps were timed after
    the warm-up: 100, or a tenth of the planned steps if that is fewer, but at least 10.
    """
    if write_to is not None and (forget or len(runs) > 1):
        hint = "advisor compare RUN --write-to PATH"
        raise AdvisorError("--write-to writes the scores of one run", hint, exit_code=2)
    if forget:
        # Remove the runs from the ledger and the profiles, and name those of which nothing was recorded.
        from advisor.workflows.compare import take_back

        done = [take_back(default_store(), text, datetime.now(UTC)) for text in runs]
        forgotten, unknown = "taken back; predictions are as they were without it", "nothing of it is recorded"
        words = [f"{run.run_id}: {forgotten if run.was_recorded else unknown}" for run in done]
        answer("compare-forgotten", lambda: {"forgotten": done}, lambda: [*words, "next: advisor runs --accuracy"])
        return
    from advisor.report import terminal
    from advisor.report.comparison import recorded
    from advisor.trainers.known import trainer_of_run
    from advisor.workflows import write_back
    from advisor.workflows.compare import review_all

    compared = review_all(default_store(), runs, record=record, plan=plan)
    reviewed, comparison = compared.runs, compared.comparison
    first, written = reviewed[0], None
    if write_to is not None:
        python = tracker_python or trainer_of_run(first.path).python(first.path)
        written = write_back.write_back(first.scored, write_to, tracker_run, python)

    def shown() -> Iterator[RenderableType]:
        for run in reviewed:
            for note in run.case.run.notes:
                render.remark(f"read: {note}")
            yield from (*terminal.scored_run(run.name, run.scored), "", *filter(None, [recorded(run)]))
        if written is not None:
            whose = f"{written.library}'s run {written.run}"
            yield f"written: {written.parameters} parameters of {whose}, {written.place}"
        if comparison is not None:
            yield from (*terminal.comparison(comparison), "")
        yield "next: advisor runs --accuracy" if any(run.recorded for run in reviewed) else "next: advisor runs"

    name, document = compared.document()
    more = {} if written is None else {"written": written}
    answer(name, lambda: {**document, **more}, shown)


@verb("diff")
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--gpu", type=GPU, help="The GPU that bare configurations are for. Default: this machine's.")
def diff_command(one: str, other: str, gpu: str | None) -> None:
    """List the settings that differ between A and B.

    Each is a run (folder, name, `latest`), a plan.yaml, a run.yaml or a calibration. The what-if of the page Plan and
    `advisor predict` show what a setting does.
    """
    from advisor.hardware.catalog import read_gpus
    from advisor.report.comparison import setting_differences
    from advisor.report.table import on_console
    from advisor.workflows.diff import diff

    settings = diff(default_store(), one, other, read_gpus(gpu, counted=False).key if gpu else None)
    counted = f"{len(settings.differences)} settings differ, {settings.same} are the same"
    shown = [counted, *([on_console(setting_differences(settings))] if settings.differences else [])]
    answer("diff", lambda: asdict(settings), lambda: shown)
