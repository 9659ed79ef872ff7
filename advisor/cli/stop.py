"""`advisor stop`: end a run with a checkpoint."""

from __future__ import annotations

import click

from advisor.cli.following import finish
from advisor.cli.verb import option, verb
from advisor.history.follow import follower
from advisor.options import Kind
from advisor.report.render import remark
from advisor.store.store import default_store
from advisor.workflows import launch as flow


@verb("stop")
@click.argument("run")
@option("timeout", Kind.SECONDS, "Wait this long for the checkpoint.", default="2min", least=0, most=1e6)
@click.option("--force", is_flag=True, help="Kill the run if it has not exited after --timeout.")
def command(run: str, timeout: float, force: bool) -> int:
    """Ask RUN to finish its step, save a checkpoint and exit, and wait until it has exited.

    RUN is a folder, a name or its beginning, or `latest`. A finished run does not change.
    """
    store = default_store()
    run_dir = store.find_run(run)
    if follower(run_dir, store).look().outcome is None:
        remark(f"asking {run_dir.name} to stop")
    else:
        remark(f"{run_dir.name} is over already: nothing to stop")
    flow.stop(store, run_dir, timeout_seconds=timeout, force=force)
    finish(follower(run_dir, store).look(), run_dir, store)
    return 0  # the run is not running any more, as asked
