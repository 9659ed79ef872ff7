"""`advisor watch --gpus`: power, use, memory and temperature of every GPU of this machine, beside any program."""

from __future__ import annotations

import time
from pathlib import Path

import click

from advisor.cli.params import NEW_FILE, SECONDS, Number
from advisor.cli.verb import answer, verb
from advisor.report import render

_LOOK_SECONDS = 1.0  # between drawings, each of which takes some milliseconds
_PLAIN_SECONDS = 30.0  # between lines where stderr is no terminal


@verb("monitor")
@click.option("--hz", type=Number(min=0, min_open=True, max=100), default=10.0, show_default=True,
              help="Power readings per second, at most 100.")  # fmt: skip
@click.option("--csv", type=NEW_FILE, help="Write every reading to a new file, which `advisor analyze` reads.")
@click.option("--for", "seconds", type=SECONDS, help="Stop after this time. Default: until Ctrl-C.")
def command(hz: float, csv: Path | None, seconds: float | None) -> None:
    """Watch every NVIDIA GPU of this machine, whatever runs on it: a live table, then a summary.

    The summary has mean, minimum and maximum of each GPU, its energy, its throttling, and the achieved reading rate.
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
    written = () if csv is None else ("", f"written to {csv}: advisor analyze {csv}")
    table = render.table(words.SUMMARY, words.summary(seen))
    answer("watch-gpus", lambda: seen, lambda: [words.headline(seen), "", table, *written])
