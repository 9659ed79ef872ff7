"""`advisor resume`: continue a stopped or broken run from its last checkpoint."""

from __future__ import annotations

import click

from advisor.cli.following import after_start
from advisor.cli.params import hours
from advisor.cli.verb import options, verb
from advisor.engines.guards import parse_loss_stop
from advisor.store.store import default_store
from advisor.trainers.known import trainer_of_run
from advisor.workflows.flows import flow_of
from advisor.workflows.launch import Limits


@verb("resume")
@click.argument("run")
@options(
    *("one_price", "budget", "deadline", "stop_loss", "synthetic"),
    one_price="GPU-hour price when the run resumes; earlier attempts keep theirs.",
    budget="New limit on dollars, earlier attempts included.",
    deadline="New limit on time, earlier attempts included, e.g. 8h.",
    stop_loss="New stop on the loss, or `none`.",
    synthetic="Train on random tokens from here on, though the run's run.yaml does not ask for them.",
)
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
def command(run: str, price: float | None, budget: float | None, deadline: float | None, stop_loss: tuple[str, ...],
            synthetic: bool, detach: bool) -> int:  # fmt: skip
    """Continue RUN in its own folder from its last checkpoint, or from the start if it has none.

    RUN is a folder, a name or its beginning, or `latest`. New limits replace the old ones.
    """
    store = default_store()
    loss = None if not stop_loss else [parse_loss_stop(text) for text in stop_loss if text != "none"]
    limits = Limits(max_usd=budget, max_hours=hours(deadline), loss=loss)
    run_dir = store.find_run(run)
    flow = flow_of(trainer_of_run(run_dir))
    flow.refuse("resume", {"stop_loss": stop_loss, "price": price, "synthetic": synthetic})
    given = {"usd_per_gpu_hour": price, "synthetic": synthetic}
    started = flow.resume(store, run_dir, limits=limits, **{name: value for name, value in given.items() if value})
    return after_start(store, started, detach=detach)
