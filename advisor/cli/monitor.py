"""`advisor watch --gpus`: power, use, memory and temperature of every GPU of this machine, whatever runs on it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from advisor.cli.params import NEW_FILE
from advisor.cli.verb import answer, option, verb
from advisor.options import Kind
from advisor.report import render

_LOOK_SECONDS = 1.0  # between drawings, each of which takes some milliseconds
_PLAIN_SECONDS = 30.0  # between lines if stderr is not a terminal


@verb("monitor")
@option("hz", Kind.NUMBER, "Power readings per second, at most 100.", default=10.0, least=1e-6, most=100)
@click.option("--csv", type=NEW_FILE, help="Write every reading to a new file that `advisor analyze` can read.")
@option("for", Kind.SECONDS, "Stop after this time. Default: until Ctrl-C.")
def command(hz: float, csv: Path | None, **asked: Any) -> None:
    """Watch every NVIDIA GPU of this machine, whatever runs on it: a live table, then a summary.

    The summary shows mean, minimum and maximum for each GPU, its energy and throttling, and the achieved reading rate.
    """
    from rich.console import Group
    from rich.live import Live

    from advisor.report import measured as words
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

        seen = monitor(hz=hz, seconds=asked["for"], csv=csv, on_look=look)
    written = () if csv is None else ("", f"written to {csv}: advisor analyze {csv}")
    table = render.table(words.CARDS, words.summary(seen))
    answer("watch-gpus", lambda: seen, lambda: [words.headline(seen), "", table, *written])
