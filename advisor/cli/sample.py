"""`advisor sample`: text from a run's newest checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from advisor.cli.params import FILE, SIZE, Number, Whole
from advisor.report import render
from advisor.units import format_count, format_number


@click.command()
@click.argument("run", default="latest")
@click.option("--prompt", default="", help="What the text begins with; - reads it from stdin. Default: a new document.")
@click.option("--chat", is_flag=True, help="The prompt is a question to a model that learnt from conversations.")
@click.option("--tokens", type=SIZE, default=200, show_default=True, help="At most so many tokens each.")
@click.option("--samples", type=SIZE, default=1, show_default=True, help="So many texts, with seeds one after another.")
@click.option("--temperature", type=Number(min=0), default=0.8, show_default=True, help="0: always the likeliest.")
@click.option("--top-k", type=SIZE, help="Draw among the so many likeliest.")
@click.option("--top-p", type=Number(min=0, max=1, min_open=True), help="Draw among the likeliest of this probability.")
@click.option("--seed", type=Whole(0), default=0, show_default=True)
@click.option("--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto", show_default=True)
@click.option(
    "--tokenizer", type=FILE, help="A tokenizer.json or SentencePiece .model. Default: that of the run's data."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(run: str, prompt: str, as_json: bool, **options: Any) -> None:
    """Let a trained model write: RUN is a run's folder, name or id, or `latest`."""
    from advisor.store.store import default_store
    from advisor.workflows.trained import SampleOptions, sample

    folder: Path = default_store().find_run(run)
    if prompt == "-":
        prompt = sys.stdin.read()
    model: dict[str, Any] = {}
    texts: list[dict[str, Any]] = []
    pieces: list[str] = []
    for record in sample(folder, prompt, SampleOptions(**options)):
        kind = record.pop("kind")
        if kind == "message":
            render.remark(record["text"])
        elif kind == "model":
            model = record
        elif kind == "text":
            pieces.append(record["text"])
            if not as_json:
                _write(record["text"] if len(pieces) > 1 or options["chat"] else prompt + record["text"])
        else:
            texts.append({"text": "".join(pieces), **record})
            pieces = []
            if not as_json:
                _write("\n\n" if len(texts) < options["samples"] else "\n")
    if as_json:
        render.print_json({"run": folder, "model": model, "prompt": prompt, "samples": texts})
    else:
        render.remark(_said(model, texts))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _said(model: dict[str, Any], texts: list[dict[str, Any]]) -> str:
    tokens, seconds = sum(t["tokens"] for t in texts), sum(t["seconds"] for t in texts)
    rate = f", {format_number(tokens / seconds)} tokens/s" if seconds else ""
    return (
        f"{format_count(model['parameters'])} parameters after step {model['step']:,}, {model['precision']} on "
        f"{model['device']}: {tokens} tokens{rate}"
    )
