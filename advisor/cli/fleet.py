"""`advisor fleet`: plans many runs over few GPUs, deadlines and budgets."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.verb import FILE, answer, option, verb
from advisor.options import Kind


@click.group("fleet")
def command() -> None:
    """Plan many runs over few GPUs: what to buy, what to start when, and how likely each deadline is."""


@verb("plan")
@click.argument("file", metavar="FLEET.yaml", type=FILE)
@option("seconds", Kind.NUMBER, "Seconds to search for a better schedule. Default: 0.05 for each run, at least 1.5.",
        least=0.1, most=3600)  # fmt: skip
def plan_command(file: Path, seconds: float | None) -> int:
    """Plan the runs of FLEET.yaml over its pools of GPUs.

    Each run's time on each number of GPUs comes from the planner, with its interval. The schedule is tried in 500 drawn
    futures, and gets more room until each deadline is met as often as asked. `advisor fleet example` prints a file.
    """
    from advisor.api import fleet
    from advisor.report.fleet import lines, tables
    from advisor.report.render import progress
    from advisor.report.table import on_console

    with progress("planning", None) as update:
        found = fleet(file, seconds=seconds, on_text=lambda text: update(description=text))
    answer(found.name, lambda: found.document,
           lambda: [found.sentence, *map(on_console, tables(found.record)), "", *lines(found.record)])  # fmt: skip
    return 0 if found.record.keeps_deadlines else 3


@verb("example")
def example_command() -> None:
    """Print a fleet file that can be planned as it is."""
    from advisor.store.folders import examples_folder

    click.echo((examples_folder() / "fleet.yaml").read_text(), nl=False)


command.add_command(plan_command)
command.add_command(example_command)
