"""`advisor compare A B`: lists the settings that differ between two runs, plans, configurations or calibrations."""

from __future__ import annotations

from dataclasses import asdict

import click

from advisor.cli.params import GPU
from advisor.cli.verb import answer, verb


@verb()
@click.argument("one", metavar="A")
@click.argument("other", metavar="B")
@click.option("--gpu", type=GPU, help="The GPU that bare configurations are for. Default: this machine's.")
def command(one: str, other: str, gpu: str | None) -> None:
    """List the settings that differ between A and B.

    Each is a run (folder, name, `latest`), a plan.yaml, a run.yaml or a calibration. The what-if of the page Plan and
    `advisor predict` show what a setting does.
    """
    from advisor.hardware.catalog import read_gpus
    from advisor.report.comparison import setting_differences
    from advisor.report.table import on_console
    from advisor.store.store import default_store
    from advisor.workflows.diff import diff

    found = diff(default_store(), one, other, read_gpus(gpu, counted=False).key if gpu else None)
    counted = f"{len(found.differences)} settings differ, {found.same} are the same"
    shown = [counted, *([on_console(setting_differences(found))] if found.differences else [])]
    answer("diff", lambda: asdict(found), lambda: shown)
