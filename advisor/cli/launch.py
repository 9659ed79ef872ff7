"""`advisor launch`: start a planned run as a process of its own and follow it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.calibrate import bar
from advisor.cli.following import finish, follow
from advisor.cli.params import FILE, NEW_FOLDER, SHARE, USD, Number
from advisor.errors import AdvisorError
from advisor.launch.backend import LaunchRequest
from advisor.launch.guards import parse_loss_stop
from advisor.records import Plan
from advisor.report.arrival import table
from advisor.report.render import error_console, print_json, remark, show
from advisor.report.table import on_console
from advisor.store.store import Store, default_store
from advisor.workflows import launch as flow
from advisor.workflows.launch import Limits, Started, read_source

if TYPE_CHECKING:
    from advisor.workflows.arrive import Arrival

STOPPED_HINT = "plan anew with what was measured: advisor plan; or launch it as it is: --no-calibrate"


@click.command("launch")
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@click.option("--run-dir", type=NEW_FOLDER, help="Run folder  [default: ADVISOR_HOME/runs/NAME-TIME]")
@click.option("--max-usd", type=USD, help="Stop, with a checkpoint, before more than this is spent.")
@click.option("--max-hours", type=Number(min=0, min_open=True), help="Stop, with a checkpoint, after so many hours.")
@click.option("--stop-loss", multiple=True, metavar="STEP:LOSS", help="Stop if the loss is above LOSS from STEP on.")
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
@click.option("--again", is_flag=True, help="Start it beside a run of the same plan that is going on.")
@click.option(
    "--calibrate/--no-calibrate",
    "first",
    default=None,
    help="First measure this machine, two minutes at most, and plan again within the same dollars and hours. "
    "Default: where the plan's card was never calibrated.",
)
@click.option(
    "--may-change", type=click.Choice(("depth",)), help="What the new plan may change beside steps and batch."
)
@click.option("--stop-if-over", type=SHARE, help="Stop where the planned work costs so much more there: 10%.")
@click.option("--dry-run", is_flag=True, help="Print the files and the command as lines of a shell; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; progress stays on stderr.")
def command(
    plan: Path,
    run_dir: Path | None,
    max_usd: float | None,
    max_hours: float | None,
    stop_loss: tuple[str, ...],
    detach: bool,
    again: bool,
    first: bool | None,
    may_change: str | None,
    stop_if_over: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Start the run of PLAN.yaml (or of a bare run.yaml) and follow it.

    The run is a process of its own: it goes on when this terminal closes, and Ctrl-C only stops the showing. A plan is
    started once: while a run of it goes on, this command names that run instead, unless --again asks for a second.
    """
    limits = Limits(max_usd=max_usd, max_hours=max_hours, loss=[parse_loss_stop(text) for text in stop_loss])
    store, source = default_store(), read_source(plan)
    if dry_run:
        show_request(flow.dry_run(store, source, run_dir, limits=limits, again=again), as_json=as_json)
        return 0
    if warning := flow.device_warning(source):
        remark(f"warning: {warning}")
    arrival = None
    if isinstance(source, Plan) and first is not False:
        may_change_depth = may_change == "depth"
        arrival = arrive_with_bar(source, store, always=bool(first), may_change_depth=may_change_depth,
                                  stop_if_over=stop_if_over)  # fmt: skip
    if arrival is not None:
        if arrival.after is None:
            raise AdvisorError(f"not started: {arrival.record.reason}", STOPPED_HINT, exit_code=3)
        source, limits = arrival.after, arrival.limits(limits)
    started = flow.launch(store, source, run_dir, limits=limits, again=again)
    if arrival is not None:
        arrival.write(started.run_dir)
    return after_start(store, started, detach=detach, as_json=as_json)


def arrive_with_bar(
    plan: Plan, store: Store, *, always: bool, may_change_depth: bool, stop_if_over: float | None
) -> Arrival | None:
    """Calibrate for a plan and say, old beside new, what follows; None where what it rests on was measured here."""
    from advisor.workflows.arrive import arrive, is_unknown_here

    if is_unknown_here(plan, store):
        remark("what the plan rests on was not measured here: this machine is calibrated first (--no-calibrate: not)")
    elif not always:
        return None
    with bar() as (on_start, on_event):
        arrival = arrive(plan, store, may_change_depth=may_change_depth, stop_if_over=stop_if_over,
                         on_start=on_start, on_event=on_event)  # fmt: skip
    if arrival.after is not None:
        remark(f"goes on: {arrival.record.reason}")
        error_console().print(on_console(table(plan, arrival.after)))
    return arrival


def show_request(request: LaunchRequest, *, as_json: bool) -> None:
    """What would be written and started, ready for a shell."""
    if as_json:
        print_json({
            "run_dir": request.folder,
            "command": request.command,
            "environment": request.environment,
            "files": request.files,
        })  # fmt: skip
        return
    click.echo(request.script)  # as it is: neither wrapped nor coloured, so that a shell can read it


def after_start(store: Store, started: Started, *, detach: bool, as_json: bool) -> int:
    """Tell where the run is, follow it unless detached, and give the exit code."""
    for warning in started.warnings:
        remark(f"warning: {warning}")
    if not detach:
        remark(f"started {started.launch.name} (pid {started.launch.pid}) in {started.run_dir}")
        return finish(follow(started.run_dir, store), started.run_dir, store, as_json=as_json)
    if as_json:
        print_json({"run_dir": started.run_dir, "launch": started.launch})
    else:
        show(f"started {started.launch.name} (pid {started.launch.pid})", f"run folder: {started.run_dir}",
             f"next: advisor watch {started.run_dir}")  # fmt: skip
    return 0
