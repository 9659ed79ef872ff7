"""`advisor monitor`: power, use, memory and heat of every card of this machine, beside any program."""

from __future__ import annotations

import time
from pathlib import Path

import click

from advisor.cli.params import NEW_FILE, SECONDS, Number
from advisor.report import render

_LOOK_SECONDS = 1.0  # between drawings, each of which takes some milliseconds
_PLAIN_SECONDS = 30.0  # between lines where stderr is no terminal


@click.command("monitor")
@click.option(
    "--hz",
    type=Number(min=0, min_open=True, max=100),
    default=10.0,
    show_default=True,
    help="Readings of power a second, at most 100.",
)
@click.option("--csv", type=NEW_FILE, help="Keep every reading in a new file, which `advisor analyze` reads.")
@click.option("--for", "seconds", type=SECONDS, help="Stop after so long. Default: until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON document.")
def command(hz: float, csv: Path | None, seconds: float | None, as_json: bool) -> None:
    """Watch every NVIDIA GPU of this machine, whatever runs on it: a live table, then a summary.

    The summary has mean, least and most of each GPU, its energy, what held it back, and the rate that was achieved.
    """
    from rich.console import Group
    from rich.live import Live

    from advisor.report import monitor as words
    from advisor.workflows.monitor import Watching, monitor

    console, drawn = render.error_console(), time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as screen:

        def look(watching: Watching) -> None:
            nonlocal drawn
            if time.monotonic() - drawn < (_LOOK_SECONDS if console.is_terminal else _PLAIN_SECONDS):
                return
            drawn, watched = time.monotonic(), watching.seen()
            if console.is_terminal:
                screen.update(
                    Group(words.headline(watched), render.table(words.LIVE, words.live(watched))), refresh=True
                )
            else:
                render.remark(words.headline(watched))

        seen = monitor(hz=hz, seconds=seconds, csv=csv, on_look=look)
    if as_json:
        render.print_json(seen)
        return
    render.show(words.headline(seen), "", render.table(words.SUMMARY, words.summary(seen)))
    if csv is not None:
        render.show("", f"written to {csv}: advisor analyze {csv}")
