"""`advisor model sample`: text from a run's newest checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from advisor.cli.verb import json_asked, options_in, verb
from advisor.documents import print_json
from advisor.options import SampleOptions, filled
from advisor.report import render
from advisor.units import format_count, format_number


@verb()
@click.argument("run", default="latest")
@click.option("--prompt", default="", help="How the text begins; - reads it from stdin. Default: a new document.")
@options_in(SampleOptions)
def command(run: str, prompt: str, **asked: Any) -> None:
    """Generate text with a trained model: RUN is a run's folder, name or id, or `latest`."""
    from advisor.store.store import default_store
    from advisor.workflows.trained import sample

    options = filled(SampleOptions, asked)
    folder: Path = default_store().find_run(run)
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
            if not json_asked():
                _write(record["text"] if len(pieces) > 1 or options.chat else prompt + record["text"])
        else:
            texts.append({"text": "".join(pieces), **record})
            pieces = []
            if not json_asked():
                _write("\n\n" if len(texts) < options.samples else "\n")
    if json_asked():
        print_json("sample", {"run": folder, "model": model, "prompt": prompt, "samples": texts})
        return
    tokens, seconds = sum(text["tokens"] for text in texts), sum(text["seconds"] for text in texts)
    rate = f", {format_number(tokens / seconds)} tokens/s" if seconds else ""
    size = f"{format_count(model['parameters'])} parameters after step {model['step']:,}"
    render.remark(f"{size}, {model['precision']} on {model['device']}: {tokens} tokens{rate}")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
