"""`advisor import`: a run that came from elsewhere, brought in and scored."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.params import EXISTING, FILE
from advisor.report import render
from advisor.store.store import default_store


@click.command("import")
@click.argument("run", metavar="RUN_FOLDER", type=EXISTING)
@click.option("--plan", type=FILE, help="Its plan.yaml. Default: the one in the folder, or beside it as in an export.")
@click.option("--checkpoints", is_flag=True, help="Copy the checkpoints as well, so that it can be resumed here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(run: Path, plan: Path | None, checkpoints: bool, as_json: bool) -> None:
    """Copy the run of RUN_FOLDER to the runs of this machine, set it against its plan and learn from it.

    RUN_FOLDER is the folder of a run of our trainer, wherever it ran, the export that it was started from, or a zip or
    tar archive of either. What was copied is listed, watched and compared like any run; the original is left alone.
    """
    from advisor.report import terminal
    from advisor.report.comparison import kept
    from advisor.workflows.bring_in import bring_in
    from advisor.workflows.compare import to_document

    reviewed = bring_in(default_store(), run, plan=plan, checkpoints=checkpoints)
    if as_json:
        render.print_json(to_document(reviewed))
        return
    render.show(*terminal.scored_run(reviewed.name, reviewed.scored), "", *filter(None, [kept(reviewed)]))
    render.show(f"run folder: {reviewed.path}", "next: advisor accuracy" if reviewed.recorded else "next: advisor runs")
