"""`advisor launch`: start a planned run as a process of its own and follow it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.calibrate import bar
from advisor.cli.following import finish, follow
from advisor.cli.params import FILE, NEW_FOLDER, SHARE, USD, Number
from advisor.engines.backend import LaunchRequest
from advisor.engines.cards import parse_gpu_ids
from advisor.engines.engines import MEASURED_THERE, parse_place
from advisor.engines.guards import parse_loss_stop
from advisor.errors import AdvisorError
from advisor.planning.stages import with_gates
from advisor.records import Plan
from advisor.report.arrival import table
from advisor.report.render import error_console, print_json, remark, show
from advisor.report.table import on_console
from advisor.run_records import Arriving, Place
from advisor.store.adopted import is_adopted_plan, load_adopted_plan
from advisor.store.disk import read_yaml
from advisor.store.store import Store, default_store
from advisor.workflows import launch as flow
from advisor.workflows.launch import Limits, Started, read_source
from advisor.workflows.preflight import Check, Finding
from trainer.schema import RunConfig

if TYPE_CHECKING:
    from advisor.workflows.arrive import Arrival

STOPPED_HINT = "plan anew with what was measured: advisor plan; or launch it as it is: --no-calibrate"


@click.command("launch")
@click.argument("plan", metavar="PLAN.yaml", type=FILE)
@click.option("--on", default="local", show_default=True, metavar="ENGINE[:NAME]",
              help="Where: local, slurm, slurm:PARTITION, ssh:HOST, skypilot, skypilot:CLOUD/REGION,...")  # fmt: skip
@click.option("--synthetic", is_flag=True, help="Train on random tokens where the plan has no data: a speed test.")
@click.option("--run-dir", type=NEW_FOLDER, help="Run folder  [default: ADVISOR_HOME/runs/NAME-TIME]")
@click.option("--max-usd", type=USD, help="Stop, with a checkpoint, before more than this is spent.")
@click.option("--max-hours", type=Number(min=0, min_open=True), help="Stop, with a checkpoint, after so many hours.")
@click.option("--stop-loss", multiple=True, metavar="STEP:LOSS", help="Stop if the loss is above LOSS from STEP on.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="STEP[:LOSS]",
    help="Evaluate there and stop if the loss is above LOSS, as 10k:4.2, or above what is expected: 10k, 50%.",
)
@click.option(
    "--notice",
    metavar="FILE|URL",
    help="Save and end when FILE appears, or URL of the machine itself answers: it is about to be taken away.",
)
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
@click.option("--again", is_flag=True, help="Start it although a run of the same plan is going on.")
@click.option(
    "--calibrate/--no-calibrate",
    "first",
    default=None,
    help="First measure this machine, two minutes at most, and plan again within the same dollars and hours. "
    "Default: where the plan's GPU was never calibrated.",
)
@click.option(
    "--may-change", type=click.Choice(("depth",)), help="What the new plan may change beside steps and batch."
)
@click.option("--stop-if-over", type=SHARE, help="Stop where the planned work costs so much more there: 10%.")
@click.option("--bootstrap", metavar="LINE", help="Of an adopted command elsewhere: what makes its environment there.")
@click.option("--folder", metavar="FOLDER", help="The same: where it is typed there. Default: as here.")
@click.option("--gpu-ids", metavar="0,1", help="Which GPUs of this machine. Default: the first that no run has.")
@click.option("--account", help="Slurm's.")
@click.option("--qos", help="Slurm's.")
@click.option("--constraint", help="Slurm's, as in h100.")
@click.option(
    "--check", is_flag=True, help="Only look whether all it needs is there: GPU, PyTorch, memory, disk, data."
)
@click.option("--dry-run", is_flag=True, help="Print the files and the command as lines of a shell; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; progress stays on stderr.")
def command(
    plan: Path,
    on: str,
    synthetic: bool,
    run_dir: Path | None,
    max_usd: float | None,
    max_hours: float | None,
    stop_loss: tuple[str, ...],
    gates: tuple[str, ...],
    notice: str | None,
    detach: bool,
    again: bool,
    first: bool | None,
    may_change: str | None,
    stop_if_over: float | None,
    bootstrap: str | None,
    folder: str | None,
    gpu_ids: str | None,
    account: str | None,
    qos: str | None,
    constraint: str | None,
    check: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Start the run of PLAN.yaml (or of a bare run.yaml) and follow it, here or elsewhere.

    The run is a process of its own: it goes on when this terminal closes, and Ctrl-C only stops the showing. A plan is
    started once: while a run of it goes on, this command names that run instead, unless --again asks for a second.
    A machine that was never calibrated is measured first, here or, by slurm and ssh, where the job starts.
    Elsewhere: slurm takes the run folder from a file system that the cluster shares; ssh sends export and data to a
    host of ~/.ssh/config; skypilot rents a machine by SkyPilot, within the plan's price, and gives it back.
    """
    if is_adopted_plan(read_yaml(plan, "plan")):
        _refuse_limits(any((max_usd, max_hours, stop_loss, gates, first, may_change, stop_if_over, gpu_ids, synthetic)))
        where = (run_dir, parse_place(on, account=account, qos=qos, constraint=constraint), (bootstrap, folder))
        return _adopted(plan, *where, check=check, dry_run=dry_run, detach=detach, as_json=as_json)
    _refuse_its_place(bootstrap or folder)
    limits = Limits(max_usd=max_usd, max_hours=max_hours, loss=[parse_loss_stop(text) for text in stop_loss])
    store = default_store()
    source = flow.with_synthetic(_with_gates(read_source(plan), gates, plan), synthetic)
    source = flow.with_notice(source, notice)
    place = parse_place(on, account=account, qos=qos, constraint=constraint, gpu_ids=parse_gpu_ids(gpu_ids))
    asked = Arriving(may_change_depth=may_change == "depth", stop_if_over=stop_if_over)
    arriving = _arriving(store, source, place, first, asked)
    if check:
        return show_checks(flow.looked_at(store, source, place, limits), as_json=as_json)
    if dry_run:
        request = flow.dry_run(store, source, run_dir, limits=limits, again=again, place=place, arriving=arriving)
        show_request(request, as_json=as_json)
        return 0
    for words in flow.beforehand(store, source, place, limits):
        remark(words)
    arrival = None
    if place.engine == "local":
        source, limits, arrival = arrived(store, source, limits, first, asked)
    elif arriving is not None:
        remark(f"what the plan rests on was not measured there: {place.engine} measures its machine first")
    started = flow.launch(store, source, run_dir, limits=limits, again=again, place=place, arriving=arriving)
    if arrival is not None:
        arrival.write(started.run_dir)
    return after_start(store, started, detach=detach, as_json=as_json)


def _refuse_its_place(given: str | None) -> None:
    if given:
        raise AdvisorError("--bootstrap and --folder are of adopted commands", "leave them out", exit_code=2)


def _refuse_limits(given: bool) -> None:
    if given:
        hint = "its limits are the plan's: advisor adopt --name NAME --deadline …"
        raise AdvisorError("an adopted command is launched as it was planned", hint, exit_code=2)


def _adopted(
    path: Path,
    run_dir: Path | None,
    place: Place,
    there: tuple[str | None, str | None],
    *,
    check: bool,
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """The plan of an adopted command, within the limits that it was planned for: here or elsewhere."""
    from advisor.workflows.adopt_elsewhere import Elsewhere
    from advisor.workflows.adopt_launch import dry_run_adopted, launch_adopted, looked_at_adopted

    store, plan, needs = default_store(), load_adopted_plan(path), Elsewhere(bootstrap=there[0], folder=there[1])
    if check:
        return show_checks(looked_at_adopted(store, plan, place, needs), as_json=as_json)
    if dry_run:
        show_request(dry_run_adopted(store, plan, run_dir, place, needs), as_json=as_json)
        return 0
    started = launch_adopted(store, plan, run_dir, place=place, there=needs)
    return after_start(store, started, detach=detach, as_json=as_json)


def _arriving(
    store: Store, source: Plan | RunConfig, place: Place, first: bool | None, asked: Arriving
) -> Arriving | None:
    """How a run elsewhere is measured where it arrives; None: here, or not at all."""
    if place.engine not in MEASURED_THERE:
        if place.engine != "local" and (first or asked != Arriving()):
            hint = "leave out --calibrate, --may-change and --stop-if-over; or launch it on that machine itself"
            raise AdvisorError(f"a run on {place.engine} is not calibrated before it starts", hint, exit_code=2)
        return None
    from advisor.workflows.arrive import is_unknown

    if not isinstance(source, Plan) or first is False:
        return None
    return asked if first or is_unknown(source, store, place) else None


def _with_gates(source: Plan | RunConfig, gates: Sequence[str], path: Path) -> Plan | RunConfig:
    if isinstance(source, Plan):
        return with_gates(source, gates)
    if gates:
        hint = f"write them into {path} under stop.gates, each with step and above"
        raise AdvisorError("--gate is for plans, which say what to expect", hint, exit_code=2)
    return source


def arrived(
    store: Store, source: Plan | RunConfig, limits: Limits, first: bool | None, asked: Arriving
) -> tuple[Plan | RunConfig, Limits, Arrival | None]:
    """What to launch after this machine was measured, within which limits, and what was found; None: nothing was."""
    if not isinstance(source, Plan) or first is False:
        return source, limits, None
    arrival = arrive_with_bar(source, store, always=bool(first), may_change_depth=asked.may_change_depth,
                              stop_if_over=asked.stop_if_over)  # fmt: skip
    if arrival is None:
        return source, limits, None
    if arrival.after is None:
        raise AdvisorError(f"not started: {arrival.record.reason}", STOPPED_HINT, exit_code=3)
    return arrival.after, arrival.limits(limits), arrival


def arrive_with_bar(
    plan: Plan, store: Store, *, always: bool, may_change_depth: bool, stop_if_over: float | None
) -> Arrival | None:
    """Calibrate for a plan and say, old beside new, what follows; None where what it rests on was measured here."""
    from advisor.workflows.arrive import arrive, is_unknown

    if is_unknown(plan, store):
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


def show_checks(checks: Sequence[Check], *, as_json: bool) -> int:
    """What was looked at before a start, line by line; exit code 1 where something is missing."""
    lacking = any(check.finding is Finding.MISSING for check in checks)
    if as_json:
        print_json({"can_start": not lacking, "checks": checks})
    else:
        show(*(f"{check.finding:8} {check.of}: {check.words}" for check in checks))
        show(
            "it cannot start here: mend what is missing, or start it elsewhere (--on ssh:HOST)"
            if lacking
            else "it can start"
        )
    return 1 if lacking else 0


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
        remark(f"{_started(started)} in {started.run_dir}")
        return finish(follow(started.run_dir, store), started.run_dir, store, as_json=as_json)
    if as_json:
        print_json({"run_dir": started.run_dir, "launch": started.launch})
    else:
        show(_started(started), f"run folder: {started.run_dir}",
             f"next: advisor watch {started.run_dir}")  # fmt: skip
    return 0


def _started(started: Started) -> str:
    """What was started, and what it is called where it runs."""
    launch = started.launch
    return f"started {launch.name} ({f'pid {launch.pid}' if launch.pid is not None else launch.handle})"
