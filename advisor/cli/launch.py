"""`advisor launch`: starts a planned run as a separate process and follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli.calibrating import run
from advisor.cli.following import after_start
from advisor.cli.verb import FILE, answer, options_in, verb
from advisor.options import LaunchOptions
from advisor.report.render import remark
from advisor.store.store import default_store
from advisor.trainers.known import trainer_of_plan
from advisor.workflows.flows import flow_of
from advisor.workflows.preflight import Readiness


@verb("launch")
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@options_in(LaunchOptions)
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
@click.option("--check", is_flag=True,
              help="Only check that the run would start: GPU, PyTorch, memory, disk and data.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the files and the command as shell commands; start nothing.")
def command(plan: Path, detach: bool, check: bool, dry_run: bool, **given: Any) -> int:
    """Start the run of PLAN.yaml (or of a bare run.yaml) and follow it, here or on another machine.

    The run is a separate process: it continues when this terminal closes, and Ctrl-C ends only the display. If a run of
    the plan is active, this command names that run and starts no second run, unless --again is given.
    A machine that was never calibrated is measured first. With slurm and ssh this is the machine where the job starts.
    On other machines: slurm needs the run folder on a file system that the cluster shares; ssh copies the export and
    the data to a host in ~/.ssh/config; skypilot rents a machine through SkyPilot, within the plan's price, and
    returns it.
    """
    store, wanted = default_store(), LaunchOptions(**given)
    launching = flow_of(trainer_of_plan(plan), "launch", wanted).launching(store, plan, wanted, remark, run)
    if check:
        checks = launching.checks()
        lacking = any(check.finding is Readiness.MISSING for check in checks)
        can, cannot = "it can start", "it cannot start here: repair this, or start it on another machine: --on ssh:HOST"
        answer(
            "launch-checks",
            lambda: {"can_start": not lacking, "checks": checks},
            lambda: [*(f"{one.finding:8} {one.of}: {one.words}" for one in checks), cannot if lacking else can],
        )
        return 1 if lacking else 0
    if not dry_run:
        return after_start(store, launching.start(), detach=detach)
    if wanted.on == "local":
        for one in (check for check in launching.checks() if check.finding is not Readiness.FINE):
            remark(f"{one.finding}: {one.words}")
    # Print the files that would be written and the command that would be started, ready for a shell.
    request = launching.request()
    planned = {"command": request.command, "environment": request.environment, "files": request.files}
    answer("launch-request", lambda: {"run_dir": request.folder, **planned}, lambda: request.script)
    return 0
