"""`advisor model`: samples from, evaluates and further trains a trained model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from advisor import units
from advisor.cli.verb import FILE, FOLDER, NEW_FOLDER, answer, json_asked, option, options, options_in, verb
from advisor.documents import print_json
from advisor.errors import AdvisorError
from advisor.options import Kind, SampleOptions, filled
from advisor.report import render
from advisor.store.folders import profiles_folder
from advisor.store.store import default_store


@click.group("model")
def command() -> None:
    """Use a trained model: sample text, evaluate it, train it further."""


@verb("sample", group=command)
@click.argument("run", default="latest")
@click.option("--prompt", default="", help="How the text begins; - reads it from stdin. Default: a new document.")
@options_in(SampleOptions)
def sample_command(run: str, prompt: str, **given: Any) -> None:
    """Generate text with a trained model: RUN is a run's folder, name or id, or `latest`."""
    from advisor.workflows.trained import sample

    options, as_json = filled(SampleOptions, given), json_asked()
    folder = default_store().find_run(run)
    if prompt == "-":
        prompt = sys.stdin.read()
    model: dict[str, Any] = {}
    texts: list[dict[str, Any]] = []
    pieces: list[str] = []
    for record in sample(folder, prompt, options):
        kind = record.pop("kind")
        if kind == "message":
            render.remark(record["text"])
        elif kind == "model":
            model = record
        elif kind == "text":
            pieces.append(record["text"])
            if not as_json:
                click.echo(record["text"] if len(pieces) > 1 or options.chat else prompt + record["text"], nl=False)
        else:
            texts.append({"text": "".join(pieces), **record})
            pieces = []
            if not as_json:
                click.echo("\n" if len(texts) < options.samples else "")
    if as_json:
        print_json("sample", {"run": folder, "model": model, "prompt": prompt, "samples": texts})
        return
    tokens, seconds = sum(text["tokens"] for text in texts), sum(text["seconds"] for text in texts)
    rate = f", {units.format_number(tokens / seconds)} tokens/s" if seconds else ""
    render.remark(f"{_size(model)}, {model['precision']} on {model['device']}: {tokens} tokens{rate}")


def _size(model: dict[str, Any]) -> str:
    return f"{units.format_count(model['parameters'])} parameters after step {model['step']:,}"


@verb("eval", group=command)
@click.argument("run", default="latest")
@option("max_tokens", Kind.COUNT, "Maximum number of validation tokens.", default="1M", least=1, most=1e16)
@click.option("--task", "tasks", type=FILE, multiple=True,
              help="Questions as JSON lines: context, choices and answer, or HellaSwag's ctx, endings and label. "
              "Default: forty everyday sentences that come with the program.")  # fmt: skip
@options("device", "tokenizer")
def eval_command(run: str, max_tokens: int, tasks: tuple[Path, ...], **given: Any) -> None:
    """Evaluate a run's newest checkpoint: held-out loss, and multiple-choice questions. RUN: see `model sample`."""
    from advisor.workflows.trained import evaluate

    folder = default_store().find_run(run)
    files = tasks or (profiles_folder() / "tasks" / "everyday.jsonl",)
    records: dict[str, list[dict[str, Any]]] = {"model": [], "held_out": [], "task": []}
    for record in evaluate(folder, tokens=max_tokens, tasks=files, **given):
        if (kind := record.pop("kind")) == "message":
            render.remark(f"! {record['text']}")
        elif kind in records:
            records[kind].append(record)
    model, held_out = records["model"][0], records["held_out"][0] if records["held_out"] else None

    def shown() -> Iterator[RenderableType]:
        yield f"{_size(model)}, {model['precision']} on {model['device']}"
        if held_out is not None:
            error = "" if held_out["standard_error"] is None else f" ± {held_out['standard_error']:.4f}"
            bits = "" if held_out["bits_per_byte"] is None else f", {held_out['bits_per_byte']:.4f} bits per byte"
            yield (
                f"held out: {held_out['loss']:.4f}{error} nats a token, perplexity {held_out['perplexity']:.4g}{bits}; "
                f"{held_out['tokens']:,} tokens in {held_out['windows']:,} windows"
            )
        columns = ("questions", "right", "standard error", "by chance", "right in sum", "asked")
        shares = ("right_per_byte", "standard_error", "chance", "right_in_sum")
        rows = [
            (t["name"], *(units.format_percent(t[share]) for share in shares), str(t["questions"]))
            for t in records["task"]
        ]
        yield render.table(columns, rows, right=columns[1:])

    answer("eval", lambda: {"run": folder, "model": model, "held_out": held_out, "tasks": records["task"]}, shown)


@verb("finetune", group=command)
@click.argument("run", default="latest")
@click.option("--data", type=FOLDER, multiple=True, required=True, help="Token folder to train on.")
@click.option("--out", type=NEW_FOLDER, required=True, help="Folder for the stage's configuration.")
@options("epochs", epochs={"default": 2.0, "help": "Passes over the data."})
@option("learning_rate", Kind.NUMBER, "Peak learning rate, as a share of the run's.", default=0.1,
        least=1e-9, most=1e6)  # fmt: skip
@options("one_price", one_price="Dollars per GPU-hour. Default: the run's own.")
def finetune_command(
    run: str, data: tuple[Path, ...], out: Path, epochs: float, learning_rate: float, price: float | None
) -> None:
    """Train a run further on other data: better text, or conversations.

    RUN is given as in `model sample`. The stage is a run of its own that begins with the weights of RUN. Model, batch
    and device stay the same, so the speed of RUN gives the time. Conversations are made by `advisor data prepare
    --conversations`.
    """
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
    next_command, config = write_stage(stage, out), stage.config
    assert config is not None
    titles = ("stage", "steps", "tokens", "trained on in a pass", "learning rate", "time", "cost")
    row = (
        stage.name,
        units.format_count(stage.steps),
        units.format_tokens(stage.tokens),
        "all" if stage.learnt_tokens is None else units.format_tokens(stage.learnt_tokens),
        f"{config.optimizer.learning_rate:.2g}",
        units.format_estimate(stage.seconds, units.format_seconds),
        units.format_estimate(stage.usd, units.format_usd),
    )
    answer(
        "finetune",
        lambda: {"stage": replace(stage, config=None), "command": next_command},  # the file has the configuration
        lambda: [render.table(titles, [row], right=titles[1:]), f"next: {next_command}"],
    )
