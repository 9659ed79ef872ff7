"""`advisor fleet`: plans many runs over few GPUs, deadlines and budgets, starts them and follows them."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.live import Live

from advisor import api
from advisor.cli.following import LOOK_SECONDS
from advisor.cli.verb import FILE, answer, json_asked, option, verb
from advisor.options import Kind
from advisor.report.fleet import lines, looked_document, looked_lines, looked_table, news, tables
from advisor.report.render import error_console, progress, remark
from advisor.report.table import on_console
from advisor.store.folders import examples_folder
from advisor.store.store import default_store
from advisor.workflows.fleet_run import look_at_fleet, run_fleet


@click.group("fleet")
def command() -> None:
    """Plan and run many runs over few GPUs: what to buy, what to start when, and how likely each deadline is."""


@verb("plan", group=command)
@click.argument("file", metavar="FLEET.yaml", type=FILE)
@option("effort", Kind.NUMBER, "Times the usual search for a better schedule.", default=1.0, least=0.01, most=1000)
def plan_command(file: Path, effort: float) -> int:
    """Plan the runs of FLEET.yaml over its pools of GPUs.

    Each run's time on each number of GPUs comes from the planner, with its interval. The schedule is tried in 500 drawn
    futures, and gets more room until each deadline is met as often as asked. `advisor fleet example` prints a file.
    """
    with progress("planning", None) as update:
        plan = api.fleet(file, effort=effort, on_text=lambda text: update(description=text))
    answer(plan.name, lambda: plan.document,
           lambda: [plan.sentence, *map(on_console, tables(plan.record)), "", *lines(plan.record)])  # fmt: skip
    return 0 if plan.record.keeps_deadlines else 3


@verb("run", group=command)
@click.argument("file", metavar="FLEET.yaml", type=FILE)
@option("every", Kind.SECONDS, "Time between two looks at what runs.", default=10.0, least=0.05, most=3600)
@option("effort", Kind.NUMBER, "Times the usual search for a better schedule, at each event.", default=1.0, least=0.01,
        most=1000)  # fmt: skip
def run_command(file: Path, every: float, effort: float) -> int:
    """Start the runs of FLEET.yaml when their time has come, on the `engine` of their pool, and plan again at events.

    An event is a run that ended, failed, is late or was interrupted; what runs stays where it is. A goal is planned for
    the GPUs on which it starts; `plan: FILE` runs on those that it was made for. Pools need an engine such as `local`,
    `slurm:gpu` or `ssh:HOST`. A run that waits for a spot machine goes on on demand, from its checkpoint, before its
    deadline is in danger. Ctrl-C ends this command, not the runs: the same command goes on, and starts no run twice. A
    team's budget is kept: a run starts only if its expected dollars are left, and is stopped at the end of its interval
    or of the budget.

    The exit code is 1 if a run failed, and 3 if one could not be started.
    """
    ended = run_fleet(file, default_store(), every_seconds=every, effort=effort, say=remark)
    code = _print(ended.name)
    return code or (3 if any(one.phase == "waiting" for one in ended.runs) else 0)


@verb("watch", group=command)
@click.argument("fleet")
@click.option("--once", is_flag=True, help="Show the present state and return.")
def watch_command(fleet: str, once: bool) -> int:
    """Follow the runs of FLEET, its name or its file, until all have ended: a line for each event, then the table.

    The table has steps, dollars, and the chance of each deadline by the last plan that `advisor fleet run` made. Ctrl-C
    ends the display, not the runs. The exit code is 1 if a run failed. --json implies --once.
    """
    if not once and not json_asked():
        _follow(fleet)
    return _print(fleet)


def _follow(fleet: str) -> None:
    """Show a fleet on stderr until all its runs have ended, or no command runs it any more."""
    store, before, console = default_store(), None, error_console()
    try:
        with Live(console=console, transient=True, auto_refresh=False) as live:
            while True:
                look = look_at_fleet(store, fleet)
                for line in news(before, look):
                    console.print(line, soft_wrap=True)
                if look.is_over or not look.is_run:
                    break
                if console.is_terminal:
                    live.update(on_console(looked_table(look)), refresh=True)
                before = look
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        remark(f"left; the runs continue. Back to them: advisor fleet watch {fleet}")
    else:
        if not look.is_over:
            remark(f"no command runs this fleet: go on with advisor fleet run {look.state.file}")


def _print(fleet: str) -> int:
    """Print a fleet's runs as they are now, and return the exit code."""
    look = look_at_fleet(default_store(), fleet)
    answer("fleet-watch", lambda: looked_document(look), lambda: [on_console(looked_table(look)), *looked_lines(look)])
    return int(look.has_failed)


@verb("example", group=command)
def example_command() -> None:
    """Print a fleet file that can be planned as it is."""
    click.echo((examples_folder() / "fleet.yaml").read_text(), nl=False)
