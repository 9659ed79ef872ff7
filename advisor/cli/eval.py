"""`advisor eval`: how well a trained model predicts what it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli.params import FILE, TOKENS
from advisor.report import render
from advisor.units import format_count, format_percent


@click.command()
@click.argument("run", default="latest")
@click.option("--tokens", type=TOKENS, default="1M", show_default=True, help="Of the validation split, at most.")
@click.option(
    "--task",
    "tasks",
    type=FILE,
    multiple=True,
    help="Questions as JSON lines: context, choices, answer; or ctx, endings, label as HellaSwag has them. "
    "Default: forty everyday sentences that come with the program.",
)
@click.option("--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto", show_default=True)
@click.option(
    "--tokenizer", type=FILE, help="A tokenizer.json or SentencePiece .model. Default: that of the run's data."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(run: str, tokens: float, tasks: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Evaluate a run's newest checkpoint: held-out loss, and questions with several answers. RUN as in `sample`."""
    from advisor.store.folders import profiles_folder
    from advisor.store.store import default_store
    from advisor.workflows.trained import evaluate

    folder = default_store().find_run(run)
    files = tasks or (profiles_folder() / "tasks" / "everyday.jsonl",)
    records = list(evaluate(folder, tokens=max(1, int(tokens)), tasks=files, **options))
    for record in records:
        if record["kind"] == "message":
            render.remark(f"! {record['text']}")
    found = {kind: [_without_kind(r) for r in records if r["kind"] == kind] for kind in ("model", "held_out", "task")}
    if as_json:
        held = found["held_out"][0] if found["held_out"] else None
        render.print_json({"run": folder, "model": found["model"][0], "held_out": held, "tasks": found["task"]})
        return
    for model in found["model"]:
        where = f"{model['precision']} on {model['device']}"
        render.show(f"{format_count(model['parameters'])} parameters after step {model['step']:,}, {where}")
    for held in found["held_out"]:
        render.show(_held_out(held))
    columns = ("questions", "right", "standard error", "by chance", "right in sum", "asked")
    render.show(render.table(columns, [_task(task) for task in found["task"]], right=columns[1:]))


def _without_kind(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "kind"}


def _held_out(held: dict[str, Any]) -> str:
    error = "" if held["standard_error"] is None else f" ± {held['standard_error']:.4f}"
    bits = "" if held["bits_per_byte"] is None else f", {held['bits_per_byte']:.4f} bits per byte"
    return (
        f"held out: {held['loss']:.4f}{error} nats a token, perplexity {held['perplexity']:.4g}{bits}; "
        f"{held['tokens']:,} tokens in {held['windows']:,} windows"
    )


def _task(task: dict[str, Any]) -> tuple[str, ...]:
    right = format_percent(task["right_per_byte"])
    return (
        task["name"],
        right,
        format_percent(task["standard_error"]),
        format_percent(task["chance"]),
        format_percent(task["right_in_sum"]),
        str(task["questions"]),
    )
