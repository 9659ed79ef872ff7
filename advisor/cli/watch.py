"""`advisor watch`: follows an active run, or shows how one ended."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from advisor.cli.following import finish, follow, follow_log
from advisor.cli.params import refused
from advisor.cli.verb import json_asked, verb
from advisor.errors import AdvisorError
from advisor.history.follow import follower
from advisor.report.render import remark
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
