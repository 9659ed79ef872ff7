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
@click.option("--price", type=USD, help="Dollars per hour of one GPU. Default: the run's own.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    run: str, data: tuple[Path, ...], out: Path, epochs: float, learning_rate: float, price: float | None, as_json: bool
) -> None:
    """Go on from a run on other data, stage by stage: base, then text of higher worth, then conversations.

    RUN as in `sample`, or a plan.yaml: its run is then the first stage, and all are planned before any trains. Each
    stage is a run of its own that begins with the weights of the one before it; model, batch and device stay, so its
    time is known from the pace of RUN (of a plan: from what that promises). `advisor data prepare --conversations`
    makes conversations.
    """
    from advisor.store.store import default_store
    from advisor.workflows.finetune import in_all, plan_stages, write_stages

    source = Path(run) if Path(run).is_file() else default_store().find_run(run)
    stages = plan_stages(source, data, out, epochs=epochs, learning_rate=learning_rate, usd_per_hour=price)
    commands = write_stages(stages, out)
    if as_json:
        told = [replace(stage, config=None) for stage in stages]  # it lies in its file
        print_json({"stages": told, "commands": commands})
        return
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
    show(table(titles, rows, right=titles[1:]), "next: " + " && ".join(commands))
