"""`advisor model eval`: how well a trained model predicts text that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from advisor.cli.params import FILE
from advisor.cli.verb import answer, option, options, verb
from advisor.options import Kind
from advisor.report import render
from advisor.units import format_count, format_percent


@verb()
@click.argument("run", default="latest")
@option("max_tokens", Kind.COUNT, "Maximum number of validation tokens.", default="1M", least=1, most=1e16)
@click.option("--task", "tasks", type=FILE, multiple=True,
              help="Questions as JSON lines: context, choices and answer, or HellaSwag's ctx, endings and label. "
              "Default: forty everyday sentences that come with the program.")  # fmt: skip
@options("device", "tokenizer")
def command(run: str, max_tokens: int, tasks: tuple[Path, ...], **asked: Any) -> None:
    """Evaluate a run's newest checkpoint: held-out loss, and multiple-choice questions. RUN: see `model sample`."""
    from advisor.store.folders import profiles_folder
    from advisor.store.store import default_store
    from advisor.workflows.trained import evaluate

    folder = default_store().find_run(run)
    files = tasks or (profiles_folder() / "tasks" / "everyday.jsonl",)
    found: dict[str, list[dict[str, Any]]] = {"model": [], "held_out": [], "task": []}
    for record in evaluate(folder, tokens=max_tokens, tasks=files, **asked):
        if (kind := record.pop("kind")) == "message":
            render.remark(f"! {record['text']}")
        elif kind in found:
            found[kind].append(record)
    held = found["held_out"][0] if found["held_out"] else None
    answer(
        "eval",
        lambda: {"run": folder, "model": found["model"][0], "held_out": held, "tasks": found["task"]},
        lambda: _shown(found["model"][0], held, found["task"]),
    )


def _shown(model: dict[str, Any], held: dict[str, Any] | None, tasks: list[dict[str, Any]]) -> Iterator[RenderableType]:
    size, where = format_count(model["parameters"]), f"{model['precision']} on {model['device']}"
    yield f"{size} parameters after step {model['step']:,}, {where}"
    if held is not None:
        error = "" if held["standard_error"] is None else f" ± {held['standard_error']:.4f}"
        bits = "" if held["bits_per_byte"] is None else f", {held['bits_per_byte']:.4f} bits per byte"
        yield (
            f"held out: {held['loss']:.4f}{error} nats a token, perplexity {held['perplexity']:.4g}{bits}; "
            f"{held['tokens']:,} tokens in {held['windows']:,} windows"
        )
    columns = ("questions", "right", "standard error", "by chance", "right in sum", "asked")
    shares = ("right_per_byte", "standard_error", "chance", "right_in_sum")
    rows = [
        (task["name"], *(format_percent(task[share]) for share in shares), str(task["questions"])) for task in tasks
    ]
    yield render.table(columns, rows, right=columns[1:])
