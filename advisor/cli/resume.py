"""`advisor resume`: continue a stopped or broken run from its last checkpoint."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli.following import after_start
from advisor.cli.verb import options_in, verb
from advisor.options import ResumeOptions
from advisor.store.store import default_store
from advisor.trainers.known import trainer_of_run
from advisor.workflows.flows import flow_of
from advisor.workflows.launch import give_more, limits_of, resume


@verb("resume")
@click.argument("run")
@options_in(ResumeOptions)
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
def command(run: str, detach: bool, **given: Any) -> int:
    """Continue RUN in its own folder from its last checkpoint, or from the start if it has none.

    RUN is a folder, a name or its beginning, or `latest`. A new limit replaces only the old one of its kind, at once if
    the run is still running on this machine.
    """
    store, options = default_store(), ResumeOptions(**given)
    run_dir = store.find_run(run)
    flow_of(trainer_of_run(run_dir), "resume", options)  # refuses options that its trainer does not support
    limits = limits_of(options)
    if options.price is None and not options.synthetic:
        started = give_more(store, run_dir, limits)
    else:
        started = resume(store, run_dir, limits=limits, usd_per_gpu_hour=options.price, synthetic=options.synthetic)
    return after_start(store, started, detach=detach)
