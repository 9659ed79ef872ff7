"""`advisor model finetune`: one more stage of training after a trained run, with its time and cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import RenderableType

from advisor.cli.params import FOLDER, NEW_FOLDER
from advisor.cli.verb import answer, option, options, verb
from advisor.errors import AdvisorError
from advisor.options import Kind
from advisor.report.render import table
from advisor.units import format_count, format_estimate, format_seconds, format_tokens, format_usd


@verb()
@click.argument("run", default="latest")
@click.option("--data", type=FOLDER, multiple=True, required=True, help="Token folder to train on.")
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder for the stage's configuration.")
@options("epochs", epochs={"default": 2.0, "help": "Passes over the data."})
@option("learning_rate", Kind.NUMBER, "Peak learning rate, as a share of the run's.", default=0.1,
        least=1e-9, most=1e6)  # fmt: skip
@options("one_price", one_price="Dollars per GPU-hour. Default: the run's own.")
def command(
    run: str, data: tuple[Path, ...], out: Path, epochs: float, learning_rate: float, price: float | None
) -> None:
    """Train a run further on other data: better text, or conversations.

    RUN is given as in `model sample`. The stage is a run of its own that begins with the weights of RUN. Model, batch
    and device stay the same, so the speed of RUN gives the time. Conversations are made by `advisor data prepare
    --conversations`.
    """
    from advisor.store.store import default_store
    from advisor.workflows.finetune import RUNS, plan_stage, write_stage

    if len(data) > 1:
        hint = (
            f"train this stage, then: advisor model finetune {out}/{RUNS}/{data[0].name} --data {data[1]} --out {out}"
        )
        raise AdvisorError("one stage at a time: --data was given more than once", hint, exit_code=2)
    if Path(run).is_file():
        raise AdvisorError(f"{run} is a plan, not a trained run", f"train it first: advisor launch {run}", exit_code=2)
    folder = default_store().find_run(run)
    stage = plan_stage(folder, data[0], out, epochs=epochs, learning_rate=learning_rate, usd_per_gpu_hour=price)
    command, config = write_stage(stage, out), stage.config
    assert config is not None

    def shown() -> Iterator[RenderableType]:
        titles = ("stage", "steps", "tokens", "trained on in a pass", "learning rate", "time", "cost")
        row = (
            stage.name,
            format_count(stage.steps),
            format_tokens(stage.tokens),
            "all" if stage.learnt_tokens is None else format_tokens(stage.learnt_tokens),
            f"{config.optimizer.learning_rate:.2g}",
            format_estimate(stage.seconds, format_seconds),
            format_estimate(stage.usd, format_usd),
        )
        yield table(titles, [row], right=titles[1:])
        yield f"next: {command}"

    # the file has the configuration
    answer("finetune", lambda: {"stage": replace(stage, config=None), "command": command}, shown)
