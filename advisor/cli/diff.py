"""`advisor compare`: shows what differs between two runs, plans, configurations or calibrations, with the effects."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.console import RenderableType

from advisor.cli.params import GPU
from advisor.cli.verb import answer, verb


@verb()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--gpu", type=GPU, help="The GPU that bare configurations are for. Default: this machine's.")
def command(one: str, other: str, gpu: str | None) -> None:
    """Compare the settings of A and B: each a run (folder, name, `latest`), a plan.yaml, a run.yaml, or a calibration.

    For each setting that differs, the table shows what happens if only that setting is changed in A: the predicted
    effect on step time, memory and loss, and on the time and cost of all steps. If an effect cannot be predicted, the
    reason is given. Below, both runs are compared as a whole, with measured values if they were trained.
    """
    from advisor.hardware.catalog import read_gpus
    from advisor.report import diff as report
    from advisor.report.table import on_console
    from advisor.store.store import default_store
    from advisor.workflows.diff import CalibrationDiff, diff

    found = diff(default_store(), one, other, read_gpus(gpu, counted=False).key if gpu else None)

    def shown() -> Iterator[RenderableType]:
        if isinstance(found, CalibrationDiff):
            settings, steps = report.calibration_tables(found)
            yield from (on_console(settings), "", on_console(steps))
            return
        yield from (report.heading(found), "")
        if found.differences:
            yield from (on_console(report.differences(found)), "")
        yield from (on_console(report.together(found)), *report.notes(found))

    document = report.document(found)
    answer("diff" if "same" in document else "diff-calibrations", lambda: document, shown)
