"""`advisor tune`: what each setting of a run does to its speed, memory and loss on this device."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli.params import FILE, FOLDER, LENGTH, PRECISION, SIZE, VOCABULARY, Number
from advisor.report import render


@click.command()
@click.argument("plan", required=False, metavar="[PLAN.yaml]", type=FILE)
@click.option("--gpu", default="auto", show_default=True, help="auto, cpu, or the GPU you expect here (l4, h200, …).")
@click.option("--family", type=click.Choice(("nanochat", "gpt2", "llama")), default="nanochat", show_default=True)
@click.option("--depth", "--layers", type=SIZE, help="Transformer blocks. Default: 4 on a CPU, 12 on a GPU.")
@click.option("--seq-len", type=LENGTH, help="Context length. Default: 256 on a CPU, 2048 on a GPU.")
@click.option("--vocab-size", type=VOCABULARY, help="Default: the data's, else 4096 on a CPU, 32768 on a GPU.")
@click.option("--micro-batch", type=SIZE, help="Sequences per forward pass of the base. Default: 4 or 16.")
@click.option("--grad-accum", type=SIZE, help="Micro-batches per step of the base. Default: 2.")
@click.option("--data", type=FOLDER, help="Token folder from `advisor data prepare`; default: synthetic tokens.")
@click.option("--precision", type=PRECISION, default="auto", show_default=True)
@click.option("--compile/--no-compile", "compile", default=None, help="torch.compile in the base. Default: on a GPU.")
@click.option(
    "--activation-checkpointing", type=click.Choice(("none", "selective", "full")), default="none", show_default=True
)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), default="adamw", show_default=True)
@click.option("--budget-seconds", type=Number(min=10), help="Default: 180 on a CPU, 420 on a GPU.")
@click.option(
    "--calibrate/--no-calibrate",
    default=True,
    show_default=True,
    help="Calibrate with the best settings afterwards, so that plans use them.",
)
@click.option("--price", type=Number(min=0), help="Dollars per hour of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(plan: Any, as_json: bool, **options: Any) -> None:
    """Measure precision, compilation, recomputation, micro-batch, attention, loss chunks and optimizer, one by one.

    All are compared at equal effective batch with the run of PLAN, or with one of the given size, in short interleaved
    bursts with repeats; what does not clear the noise is said to be no effect.
    """
    from advisor.report import tuning as report
    from advisor.store.store import default_store
    from advisor.workflows.tune import TuneOptions, check_budget, tune

    check_budget(options["budget_seconds"])
    store = default_store()
    chosen = TuneOptions(plan=store.load_plan(plan) if plan else None, **options)
    with render.progress("starting", None) as shown:
        done = tune(
            chosen,
            store,
            on_start=lambda seconds: shown(total=seconds),
            on_event=lambda event: shown(completed=event.elapsed_seconds, description=event.text),
        )
    if as_json:
        render.print_json(report.document(done))
        return
    render.show(f"{done.device.name or done.device_key}: {report.base_words(done.tuning.base)}")
    render.show(render.table(report.COLUMNS, list(report.rows(done.tuning)), right=("speed", "memory", "repeats")))
    render.show(*report.conclusion(done))
