"""`advisor launch`: start a planned run as a process of its own and follow it."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.following import finish, follow
from advisor.cli.params import FILE, NEW_FOLDER, USD, Number
from advisor.disk import read_yaml
from advisor.hardware.here import check_is_here
from advisor.launchers.base import RunHandle
from advisor.launchers.guards import parse_loss_stop
from advisor.launchers.local import LocalLauncher
from advisor.records import Plan
from advisor.render import print_json, remark, show
from advisor.store import default_store, load_plan, read_run_config
from trainer.schema import RunConfig


@click.command("launch")
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@click.option("--run-dir", type=NEW_FOLDER, help="Run folder  [default: ADVISOR_HOME/runs/NAME-TIME]")
@click.option("--max-usd", type=USD, help="Stop, with a checkpoint, before more than this is spent.")
@click.option("--max-hours", type=Number(min=0, min_open=True), help="Stop, with a checkpoint, after so many hours.")
@click.option("--stop-loss", multiple=True, metavar="STEP:LOSS", help="Stop if the loss is above LOSS from STEP on.")
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; progress stays on stderr.")
def command(
    plan: Path,
    run_dir: Path | None,
    max_usd: float | None,
    max_hours: float | None,
    stop_loss: tuple[str, ...],
    detach: bool,
    as_json: bool,
) -> int:
    """Start the run of PLAN.yaml (or of a bare run.yaml) and follow it.

    The run is a process of its own: it goes on when this terminal closes, and Ctrl-C only stops the showing.
    """
    loss = [parse_loss_stop(text) for text in stop_loss]
    launcher, source = LocalLauncher(default_store()), read_source(plan)
    if isinstance(source, Plan) and (warning := check_is_here(source.workload.gpu, source.workload.gpus)):
        remark(f"warning: {warning}")
    handle = launcher.launch(source, run_dir, max_usd=max_usd, max_hours=max_hours, loss=loss)
    return after_start(handle, detach=detach, as_json=as_json)


def read_source(path: Path) -> Plan | RunConfig:
    """Read a plan, or a bare run configuration where the file is one; raises AdvisorError."""
    raw = read_yaml(path, "plan")
    return read_run_config(path) if "model" in raw and "run" not in raw else load_plan(path)


def after_start(handle: RunHandle, *, detach: bool, as_json: bool) -> int:
    """Tell where the run is, follow it unless detached, and give the exit code."""
    for warning in handle.warnings:
        remark(f"warning: {warning}")
    if not detach:
        remark(f"started {handle.launch.name} (pid {handle.launch.pid}) in {handle.run_dir}")
        return finish(follow(handle.run_dir), handle.run_dir, as_json=as_json)
    if as_json:
        print_json({"run_dir": handle.run_dir, "launch": handle.launch})
    else:
        show(f"started {handle.launch.name} (pid {handle.launch.pid})", f"run folder: {handle.run_dir}",
             f"next: advisor watch {handle.run_dir}")  # fmt: skip
    return 0
