"""`advisor diff`: what differs between two runs, plans, configurations or calibrations, and what that does."""

from __future__ import annotations

import click

from advisor.cli.params import GPU
from advisor.report import render


@click.command()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--gpu", type=GPU, help="The GPU that bare configurations are for. Default: this machine's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(one: str, other: str, gpu: str | None, as_json: bool) -> None:
    """Set A and B beside each other: each a run (folder, name, `latest`), a plan.yaml, a run.yaml, or a calibration.

    Every setting that differs is named with what changing it alone is predicted to do to A: step time, memory, time and
    cost of all steps, loss; or why that cannot be said. Then both whole, measured beside predicted where they trained.
    """
    from advisor.hardware.catalog import read_gpus
    from advisor.report import diff as report
    from advisor.report.table import on_console
    from advisor.store.store import default_store
    from advisor.workflows.diff import CalibrationDiff, diff

    found = diff(default_store(), one, other, read_gpus(gpu, counted=False).key if gpu else None)
    if as_json:
        render.print_json(report.document(found))
    elif isinstance(found, CalibrationDiff):
        settings, steps = report.calibration_tables(found)
        render.show(on_console(settings), "", on_console(steps))
    else:
        render.show(report.heading(found), "")
        if found.differences:
            render.show(on_console(report.differences(found)), "")
        render.show(on_console(report.together(found)), *report.notes(found))
