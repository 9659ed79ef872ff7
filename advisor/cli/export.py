"""`advisor export`: a plan as files that another engine or a person can run; a trained run as a model for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli.verb import FILE, NEW_FOLDER, answer, json_asked, options, options_in, verb
from advisor.documents import print_json
from advisor.engines.export.targets import TARGETS
from advisor.options import ExportOptions
from advisor.report.render import remark, show
from advisor.store.store import default_store
from advisor.trainers.known import trainer_of_plan
from advisor.units import format_bytes, format_count
from advisor.workflows.flows import flow_of
from advisor.workflows.trained import to_huggingface

HUGGINGFACE = "huggingface"


@verb("export")
@click.argument("source", metavar="PLAN.yaml|RUN")
@click.option("--to", type=click.Choice((*TARGETS, HUGGINGFACE)), required=True, help="Engine or library to write for.")
@click.option("--out", type=NEW_FOLDER, help="Write all files to this folder. Default: print only the job.")
@options_in(ExportOptions)
@options("tokenizer", tokenizer="With --to huggingface: the tokenizer. Default: that of the run's data.")
@click.pass_context
def command(ctx: click.Context, source: str, to: str, out: Path | None, tokenizer: Path | None, **given: Any) -> None:
    """Write PLAN.yaml as files that run without this program: a script, a Slurm or Kubernetes job, a cloud task.

    The folder holds the trainer's sources, the run's configuration and a script that makes its environment. A stopped
    run continues from its last checkpoint when the same job is started again.

    With --to huggingface, write the newest checkpoint of RUN (a run's folder, name or id, or `latest`) as weights,
    configuration and tokenizer for the library transformers, which then computes the same logits.
    """
    if to == HUGGINGFACE:
        if other := next((name for name, value in given.items() if value), None):
            raise click.UsageError(f"--{other.replace('_', '-')} is for a plan, --to {HUGGINGFACE} for a trained run")
        _trained(source, out, tokenizer)
        return
    if tokenizer is not None:
        raise click.UsageError(f"--tokenizer is for --to {HUGGINGFACE}")
    plan = FILE.convert(source, ctx.command.params[0], ctx)
    wanted = ExportOptions(**given)
    exported = flow_of(trainer_of_plan(plan), "export", wanted).export(default_store(), plan, to, wanted)
    if out is not None:
        exported.write(out)
    if json_asked():
        said = {"main": exported.main, "steps": exported.steps, "warnings": exported.warnings, "files": exported.files}
        print_json("export", {"out": out, **said})
        return
    for warning in exported.warnings:
        remark(f"warning: {warning}")
    if out is None:
        click.echo(exported.files[exported.main], nl=False)  # as it is: neither wrapped nor coloured
        remark(f"this is {exported.main} alone: --out DIR writes all {len(exported.files)} files that it needs")
    else:
        show(f"written to {out}: {exported.main} and what it needs", f"next: cd {out}", *exported.steps)


def _trained(run: str, out: Path | None, tokenizer: Path | None) -> None:
    """Write a trained run as a model of the library transformers."""
    if out is None:
        raise click.UsageError("--out FOLDER is needed: the model's files go there")
    run_dir = default_store().find_run(run)
    model: dict[str, Any] = {}
    files: dict[str, int] = {}
    for record in to_huggingface(run_dir, out, tokenizer):
        if record["kind"] == "message":
            remark(record["text"])
        elif record["kind"] == "model":
            model = {name: record[name] for name in ("step", "parameters", "architecture")}
        else:
            files = record["files"]
    size = f"{format_count(model['parameters'])} parameters after step {model['step']:,} as {model['architecture']}"
    load = f"from transformers import AutoModelForCausalLM as M; print(M.from_pretrained('{out}'))"
    answer(
        "export-model",
        lambda: {"run": run_dir, "out": out, "model": model, "files": files},
        lambda: [f"{size}: {format_bytes(sum(files.values()))} in {out}: {', '.join(files)}",
                 f'next: python -c "{load}"'],
    )  # fmt: skip
