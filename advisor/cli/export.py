"""`advisor export`: a plan as files that another engine, or a person, can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli.params import FILE, NEW_FOLDER, USD, Number
from advisor.launch.export.targets import TARGETS
from advisor.report.render import print_json, remark, show
from advisor.store.plan_files import load_plan
from advisor.workflows import export as flow
from advisor.workflows.launch import Limits


@click.command("export")
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@click.option("--to", type=click.Choice(tuple(TARGETS)), required=True, help="For which engine.")
@click.option("--out", type=NEW_FOLDER, help="Write everything it needs here. Default: print the job alone.")
@click.option("--max-usd", type=USD, help="The run stops, with a checkpoint, before more than this is spent.")
@click.option("--max-hours", type=Number(min=0, min_open=True), help="The run stops after so many hours.")
@click.option("--data-at", help="Where the token folder lies on the machines that run it.")
@click.option("--partition", help="Slurm's.")
@click.option("--account", help="Slurm's.")
@click.option("--qos", help="Slurm's.")
@click.option("--constraint", help="Slurm's, as in h100.")
@click.option("--image", help="Container image for Kubernetes, to be built from the Dockerfile.")
@click.option("--volume-claim", "claim", help="Volume that outlives the job, for Kubernetes and dstack.")
@click.option("--infra", help="Where SkyPilot or dstack may rent, as in aws. Default: the plan's provider.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(plan: Path, to: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Write PLAN.yaml as text that can be run without this program: a script, a Slurm or Kubernetes job, a task.

    The folder holds the trainer's sources, the run's configuration and what makes its environment. A run that was
    stopped goes on from its last checkpoint when the same is started again.
    """
    limits = Limits(max_usd=options.pop("max_usd"), max_hours=options.pop("max_hours"))
    exported = flow.export(load_plan(plan), to, limits, flow.Engine(**options))
    if out is not None:
        exported.write(out)
    if as_json:
        print_json({"out": out, "main": exported.main, "steps": exported.steps, "warnings": exported.warnings,
                    "files": exported.files})  # fmt: skip
        return
    for warning in exported.warnings:
        remark(f"warning: {warning}")
    if out is None:
        click.echo(exported.files[exported.main], nl=False)  # as it is: neither wrapped nor coloured
        remark(f"this is {exported.main} alone: --out DIR writes all {len(exported.files)} files that it needs")
        return
    show(f"written to {out}: {exported.main} and what it needs", f"next: cd {out}", *exported.steps)
