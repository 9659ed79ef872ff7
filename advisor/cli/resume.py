"""`advisor resume`: go on with a stopped or broken run from its last checkpoint."""

from __future__ import annotations

import click

from advisor.cli.launch import after_start
from advisor.cli.params import USD, Number
from advisor.engines.guards import parse_loss_stop
from advisor.errors import AdvisorError
from advisor.history.adopted import is_adopted
from advisor.store.store import default_store
from advisor.workflows import launch as flow
from advisor.workflows.launch import Limits


@click.command("resume")
@click.argument("run")
@click.option(
    "--price", type=USD, help="Dollars per hour from now on, of all GPUs together; earlier attempts keep theirs."
)
@click.option("--max-usd", type=USD, help="New limit on dollars, earlier attempts included.")
@click.option("--max-hours", type=Number(min=0, min_open=True), help="New limit on hours, earlier attempts included.")
@click.option("--stop-loss", multiple=True, metavar="STEP:LOSS", help="New stop on the loss, or `none`.")
@click.option("--synthetic", is_flag=True, help="Go on on random tokens, though its run.yaml does not ask for them.")
@click.option("--detach/--follow", default=False, help="Return at once, or show the run (the default).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout; progress stays on stderr.")
def command(
    run: str,
    price: float | None,
    max_usd: float | None,
    max_hours: float | None,
    stop_loss: tuple[str, ...],
    synthetic: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Start RUN again in its own folder; it goes on from its last checkpoint, or from the start without one.

    RUN is a folder, a name or the beginning of it, or `latest`. New limits replace the old ones.
    """
    store = default_store()
    loss = None if not stop_loss else [parse_loss_stop(text) for text in stop_loss if text != "none"]
    limits = Limits(max_usd=max_usd, max_hours=max_hours, loss=loss)
    run_dir = store.find_run(run)
    if is_adopted(run_dir):
        if loss is not None or price is not None or synthetic:
            message = "an adopted command has its own data and no --stop-loss, and keeps its price"
            raise AdvisorError(message, "--max-hours or --max-usd", exit_code=2)
        from advisor.workflows.adopt_launch import resume_adopted  # scipy: resuming another run starts without it

        started = resume_adopted(store, run_dir, max_usd, max_hours)
    else:
        started = flow.resume(store, run_dir, limits=limits, usd_per_hour=price, synthetic=synthetic)
    return after_start(store, started, detach=detach, as_json=as_json)
