"""`advisor finetune`: stages that go on from a trained run, with what each takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from advisor.cli.params import FOLDER, NEW_FOLDER, USD, Number
from advisor.report.render import print_json, show, table
from advisor.units import format_count, format_estimate, format_seconds, format_tokens, format_usd


@click.command()
@click.argument("run", default="latest")
@click.option("--data", type=FOLDER, multiple=True, required=True, help="Token folder of a stage; again for the next.")
@click.option("--out", type=NEW_FOLDER, required=True, help="Where the stages' configurations are written.")
@click.option("--epochs", type=Number(min=0, min_open=True), default=2.0, show_default=True, help="Passes over each.")
@click.option(
    "--learning-rate", type=Number(min=0, min_open=True), default=0.1, show_default=True,
    help="Peak of a stage, as a share of the one before.",
)  # fmt: skip
@click.option("--price", type=USD, help="Dollars per hour of one device. Default: the run's own.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    run: str, data: tuple[Path, ...], out: Path, epochs: float, learning_rate: float, price: float | None, as_json: bool
) -> None:
    """Go on from a trained run on other data, stage by stage: base, then text of higher worth, then conversations.

    RUN as in `sample`. Each stage is a run of its own that begins with the weights of the one before it; model, batch
    and device stay, so its time is known from the pace of RUN. `advisor data prepare --conversations` makes
    conversations.
    """
    from advisor.store.store import default_store
    from advisor.workflows.finetune import plan_stages, write_stages

    stages = plan_stages(
        default_store().find_run(run), data, out, epochs=epochs, learning_rate=learning_rate, usd_per_hour=price
    )
    commands = write_stages(stages, out)
    if as_json:
        told = [replace(stage, config=None) for stage in stages]  # type: ignore[arg-type] # it lies in its file
        print_json({"stages": told, "commands": commands})
        return
    titles = ("stage", "steps", "tokens", "learnt in a pass", "learning rate", "time", "cost")
    rows = [
        (
            stage.name,
            format_count(stage.config.steps),
            format_tokens(stage.tokens),
            "all" if stage.learnt_tokens is None else format_tokens(stage.learnt_tokens),
            f"{stage.config.optimizer.learning_rate:.2g}",
            format_estimate(stage.seconds, format_seconds),
            format_estimate(stage.usd, format_usd),
        )
        for stage in stages
    ]
    show(table(titles, rows, right=titles[1:]), "next: " + " && ".join(commands))
