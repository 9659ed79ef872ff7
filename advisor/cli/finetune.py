"""`advisor model finetune`: further training stages after a trained run, with time and cost of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
from rich.console import RenderableType

from advisor.cli.params import FOLDER, NEW_FOLDER
from advisor.cli.verb import answer, option, options, verb
from advisor.options import Kind
from advisor.report.render import table
from advisor.units import format_count, format_estimate, format_seconds, format_tokens, format_usd


@verb()
@click.argument("run", default="latest")
@click.option("--data", type=FOLDER, multiple=True, required=True, help="Token folder of a stage; repeat for the next.")
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder for the stages' configurations.")
@options("epochs", epochs={"default": 2.0, "help": "Passes over the data of each stage."})
@option("learning_rate", Kind.NUMBER, "Peak learning rate of a stage, as a share of the previous stage's.", default=0.1,
        least=1e-9, most=1e6)  # fmt: skip
@options("one_price", one_price="Dollars per GPU-hour. Default: the run's own.")
def command(
    run: str, data: tuple[Path, ...], out: Path, epochs: float, learning_rate: float, price: float | None
) -> None:
    """Train a run further on other data, stage by stage: base, then better text, then conversations.

    RUN is given as in `model sample`. If it is a plan.yaml, its run is the first stage, and all stages are planned
    before any of them runs. Each stage is a separate run that begins with the weights of the previous stage. Model,
    batch and device stay the same, so the speed of RUN (or the plan's prediction) gives the time. Conversations are
    made by `advisor data prepare --conversations`.
    """
    from advisor.store.store import default_store
    from advisor.workflows.finetune import in_all, plan_stages, write_stages

    source = Path(run) if Path(run).is_file() else default_store().find_run(run)
    stages = plan_stages(source, data, out, epochs=epochs, learning_rate=learning_rate, usd_per_gpu_hour=price)
    commands = write_stages(stages, out)

    def shown() -> Iterator[RenderableType]:
        titles = ("stage", "steps", "tokens", "trained on in a pass", "learning rate", "time", "cost")
        rows = [
            (
                stage.name,
                format_count(stage.steps),
                format_tokens(stage.tokens),
                "all" if stage.learnt_tokens is None else format_tokens(stage.learnt_tokens),
                "as planned" if stage.config is None else f"{stage.config.optimizer.learning_rate:.2g}",
                format_estimate(stage.seconds, format_seconds),
                format_estimate(stage.usd, format_usd),
            )
            for stage in stages
        ]
        seconds, usd = in_all(stages)
        if len(stages) > 1:
            tokens = format_tokens(sum(stage.tokens for stage in stages))
            times = (format_estimate(seconds, format_seconds), format_estimate(usd, format_usd))
            rows.append(("all", "", tokens, "", "", *times))
        yield table(titles, rows, right=titles[1:])
        yield "next: " + " && ".join(commands)

    # the file has each configuration
    bare = [replace(stage, config=None) for stage in stages]
    answer("finetune", lambda: {"stages": bare, "commands": commands}, shown)
