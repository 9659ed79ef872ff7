"""`advisor watch`: follow a run that is on its way, or see how one ended."""

from __future__ import annotations

from pathlib import Path

import click

from advisor.cli.following import finish, follow, follow_log
from advisor.history.follow import follower
from advisor.report.render import remark
from advisor.store.store import default_store
from advisor.workflows import launch as flow


@click.command("watch")
@click.argument("run", default="latest")
@click.option("--once", is_flag=True, help="Look once and return.")
@click.option("--fetch", is_flag=True, help="Bring the checkpoints of a run on another machine home as well.")
@click.option("--json", "as_json", is_flag=True, help="Look once and print one JSON document.")
def command(run: str, once: bool, fetch: bool, as_json: bool) -> int:
    """Follow RUN: its folder, its name or the beginning of it, or `latest` (the default); or another program's log.

    Of a log, the time left goes by what it gained while it was watched. Ctrl-C stops the showing, not the run. Exit
    code 0 while it runs or when it completed or was stopped, else 1.
    """
    if Path(run).is_file():
        return follow_log(Path(run), once=once, as_json=as_json)
    store = default_store()
    run_dir = store.find_run(run)
    progress = follower(run_dir, store).look() if once or as_json else follow(run_dir, store)
    if fetch and progress is not None:
        remark(flow.fetch(store, run_dir))
    return finish(progress, run_dir, store, as_json=as_json)
