"""`advisor runs --import`: copies a run from another machine and scores it."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.params import EXISTING
from advisor.cli.verb import answer, options, verb
from advisor.store.store import default_store


@verb("import")
@click.argument("run", metavar="RUN_FOLDER", type=EXISTING)
@options("plan", plan="The plan.yaml of the run. Default: the one in the run's folder, or next to it as in an export.")
@click.option("--checkpoints", is_flag=True, help="Copy the checkpoints as well, so that the run can be resumed here.")
def command(run: Path, plan: Path | None, checkpoints: bool) -> None:
    """Copy the run of RUN_FOLDER to the runs of this machine, compare it with its plan and learn from it.

    RUN_FOLDER is the folder of a run of our trainer from any machine, or the export from which the run was started.
    The copy is listed, watched and compared like any run; the original is not changed.
    """
    from advisor.report import terminal
    from advisor.report.comparison import kept
    from advisor.workflows.bring_in import bring_in
    from advisor.workflows.compare import to_document

    reviewed = bring_in(default_store(), run, plan=plan, checkpoints=checkpoints)
    next_step = "next: advisor runs --accuracy" if reviewed.recorded else "next: advisor runs"
    score = terminal.scored_run(reviewed.name, reviewed.scored)
    answer(
        "compare",
        lambda: to_document(reviewed),
        lambda: [*score, "", *filter(None, [kept(reviewed)]), f"run folder: {reviewed.path}", next_step],
    )
