"""`advisor watch`: follows an active run, or shows how one ended; --gpus watches every GPU of this machine."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.live import Live

from advisor.cli.following import LOOK_SECONDS, PLAIN_SECONDS, finish, follow, follow_log
from advisor.cli.verb import NEW_FILE, answer, json_asked, option, refused, verb
from advisor.errors import AdvisorError
from advisor.history.follow import follower
from advisor.options import Kind
from advisor.report.render import error_console, remark, table
from advisor.store.store import default_store
from advisor.workflows import launch as flow
from advisor.workflows.live import Prometheus


@verb("watch")
@click.argument("run", default="latest")
@click.option("--once", is_flag=True, help="Show the present state and return.")
@click.option("--fetch", is_flag=True, help="Also copy the checkpoints of a run on another machine to its folder here.")
@click.option("--prometheus", "port", type=click.IntRange(1, 65535), metavar="PORT",
              help="Serve the run's numbers to Prometheus, on this machine alone, while it is watched.")  # fmt: skip
@refused("at the end write prediction and score: advisor compare RUN --write-to PATH; live numbers: --prometheus PORT",
         "--write-to", "--tracker-run", "--tracker-python")  # fmt: skip
def command(run: str, once: bool, fetch: bool, port: int | None) -> int:
    """Follow RUN: a folder, a name or its beginning, `latest` (the default), or the log of another program.

    For a log, the time left is estimated from the steps seen while watching. Ctrl-C ends the display, not the run. The
    exit code is 0 for a run that is running, completed or was stopped, and 1 for others. --json implies --once.

    --prometheus serves step, loss, tokens/s, seconds and dollars so far, each with the plan's prediction and the
    current forecast, both with their 80 % intervals.
    """
    once = once or json_asked()
    if once and port is not None:
        message = "--prometheus is for a run that is followed"
        raise AdvisorError(message, "leave --once and --json out", exit_code=2)
    log = Path(run) if Path(run).is_file() else None
    store = default_store()
    run_dir = log or store.find_run(run)
    with Prometheus(run_dir.name, port) if port is not None else nullcontext() as serving:
        if log is not None:
            return follow_log(log, serving, once=once)
        progress = follower(run_dir, store).look() if once else follow(run_dir, store, serving)
    if fetch and progress is not None:
        remark(flow.fetch(store, run_dir))
    return finish(progress, run_dir, store)


@verb("monitor")
@option("hz", Kind.NUMBER, "Power readings per second, at most 100.", default=10.0, least=1e-6, most=100)
@click.option("--csv", type=NEW_FILE, help="Write every reading to a new file that `advisor analyze` can read.")
@option("for", Kind.SECONDS, "Stop after this time. Default: until Ctrl-C.")
def monitor_command(hz: float, csv: Path | None, **given: Any) -> None:
    """Watch all NVIDIA GPUs of this machine in a live table, and show a summary at the end.

    The summary shows mean, minimum and maximum for each GPU, its energy and throttling, and the achieved reading rate.
    """
    from advisor.report import rows as words
    from advisor.workflows.monitor import Watching, monitor

    console, drawn = error_console(), time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as screen:

        def look(watching: Watching) -> None:
            nonlocal drawn
            if time.monotonic() - drawn < (LOOK_SECONDS if console.is_terminal else PLAIN_SECONDS):
                return
            drawn, watched = time.monotonic(), watching.seen()
            if console.is_terminal:
                shown = Group(words.headline(watched), table(words.LIVE, map(words.live, watched.cards)))
                screen.update(shown, refresh=True)
            else:
                remark(words.headline(watched))

        seen = monitor(hz=hz, seconds=given["for"], csv=csv, on_look=look)
    written = () if csv is None else ("", f"written to {csv}: advisor analyze {csv}")
    rows = words.summary(seen)
    answer("watch-gpus", lambda: seen, lambda: [words.headline(seen), "", table(words.GPU_READINGS, rows), *written])
