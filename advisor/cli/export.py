"""`advisor export`: a plan as files that another engine, or a person, can run; a trained run as a model of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli.params import FILE, NEW_FOLDER, USD, Number
from advisor.engines.export.targets import TARGETS
from advisor.report.render import print_json, remark, show
from advisor.store.adopted import is_adopted_plan, load_adopted_plan
from advisor.store.disk import read_yaml
from advisor.store.plan_files import load_plan
from advisor.store.store import default_store
from advisor.units import format_bytes, format_count
from advisor.workflows import export as flow
from advisor.workflows.launch import Limits, with_synthetic
from advisor.workflows.trained import to_huggingface

HUGGINGFACE = "huggingface"


@click.command("export")
@click.argument("source", metavar="PLAN.yaml|RUN")
@click.option("--to", type=click.Choice((*TARGETS, HUGGINGFACE)), required=True, help="For which engine or library.")
@click.option("--out", type=NEW_FOLDER, help="Write everything it needs here. Default: print the job alone.")
@click.option("--synthetic", is_flag=True, help="Train on random tokens where the plan has no data: a speed test.")
@click.option("--max-usd", type=USD, help="The run stops, with a checkpoint, before more than this is spent.")
@click.option("--max-hours", type=Number(min=0, min_open=True), help="The run stops after so many hours.")
@click.option("--data-at", help="Where the token folder lies on the machines that run it.")
@click.option("--partition", help="Slurm's.")
@click.option("--account", help="Slurm's.")
@click.option("--qos", help="Slurm's.")
@click.option("--constraint", help="Slurm's, as in h100.")
@click.option("--image", help="Container image for Kubernetes, to be built from the Dockerfile.")
@click.option("--volume-claim", "claim", help="Volume that outlives the job, for Kubernetes and dstack.")
@click.option("--infra", help="Where SkyPilot or dstack may rent, as in aws. Default: the plan's provider.")
@click.option("--bootstrap", metavar="LINE", help="Of an adopted command: what makes its environment there.")
@click.option("--folder", metavar="FOLDER", help="The same: where it is typed there. Default: as here.")
@click.option("--tokenizer", type=FILE, help="Of a RUN, for huggingface. Default: that of the run's data.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(
    ctx: click.Context, source: str, to: str, out: Path | None, tokenizer: Path | None, as_json: bool, **options: Any
) -> None:
    """Write PLAN.yaml as text that can be run without this program: a script, a Slurm or Kubernetes job, a task.

    The folder holds the trainer's sources, the run's configuration and what makes its environment. A run that was
    stopped goes on from its last checkpoint when the same is started again.

    With --to huggingface, write the newest checkpoint of RUN (a run's folder, name or id, or `latest`) as weights,
    configuration and tokenizer that the library transformers loads: the same logits.
    """
    if to == HUGGINGFACE:
        _trained(source, out, tokenizer, as_json, [name for name, value in options.items() if value])
        return
    if tokenizer is not None:
        raise click.UsageError(f"--tokenizer is for --to {HUGGINGFACE}")
    plan = FILE.convert(source, ctx.command.params[0], ctx)
    limits = Limits(max_usd=options.pop("max_usd"), max_hours=options.pop("max_hours"))
    there = options.pop("bootstrap"), options.pop("folder")
    synthetic = options.pop("synthetic")
    if is_adopted_plan(read_yaml(plan, "plan")):
        if synthetic:
            raise click.UsageError("--synthetic: an adopted command has its own data")
        exported = _adopted(plan, to, limits, flow.Engine(**options), there)
    elif any(there):
        raise click.UsageError("--bootstrap and --folder are of adopted commands")
    else:
        asked = with_synthetic(load_plan(plan), synthetic)
        exported = flow.export(asked, to, limits, flow.Engine(**options))
    if out is not None:
        exported.write(out)
    if as_json:
        print_json({"out": out, "main": exported.main, "steps": exported.steps, "warnings": exported.warnings,
                    "files": exported.files})  # fmt: skip
        return
    for warning in exported.warnings:
        remark(f"warning: {warning}")
    if out is None:
        click.echo(exported.files[exported.main], nl=False)  # as it is: neither wrapped nor coloured
        remark(f"this is {exported.main} alone: --out DIR writes all {len(exported.files)} files that it needs")
        return
    show(f"written to {out}: {exported.main} and what it needs", f"next: cd {out}", *exported.steps)


def _adopted(
    plan: Path, to: str, limits: Limits, engine: flow.Engine, there: tuple[str | None, str | None]
) -> flow.Exported:
    """The plan of an adopted command as files."""
    from advisor.workflows.adopt_elsewhere import Elsewhere, export_adopted

    if limits != Limits():
        raise click.UsageError("the limits of an adopted command are its plan's: advisor adopt --name NAME --deadline")
    needs = Elsewhere(bootstrap=there[0], folder=there[1])
    return export_adopted(default_store(), load_adopted_plan(plan), to, engine, needs)


def _trained(run: str, out: Path | None, tokenizer: Path | None, as_json: bool, others: list[str]) -> None:
    if others:
        raise click.UsageError(f"--{others[0].replace('_', '-')} is for a plan, --to {HUGGINGFACE} for a trained run")
    if out is None:
        raise click.UsageError("--out FOLDER is needed: the model's files go there")
    run_dir = default_store().find_run(run)
    model: dict[str, Any] = {}
    files: dict[str, int] = {}
    for record in to_huggingface(run_dir, out, tokenizer):
        if record["kind"] == "message":
            remark(record["text"])
        elif record["kind"] == "model":
            model = record
        else:
            files = record["files"]
    if as_json:
        kept = ("step", "parameters", "architecture")
        print_json({"run": run_dir, "out": out, "model": {name: model[name] for name in kept}, "files": files})
        return
    said = f"{format_count(model['parameters'])} parameters after step {model['step']:,} as {model['architecture']}"
    show(
        f"{said}: {format_bytes(sum(files.values()))} in {out}: {', '.join(files)}",
        f"next: python -c \"from transformers import AutoModelForCausalLM as M; print(M.from_pretrained('{out}'))\"",
    )
