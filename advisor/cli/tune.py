"""`advisor calibrate --tune`: what each setting of a run does to its speed, memory and loss on this device."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli.calibrating import HERE
from advisor.cli.params import FILE
from advisor.cli.verb import answer, options, verb
from advisor.report import render


@verb()
@click.argument("plan", required=False, metavar="[PLAN.yaml]", type=FILE)
@options(
    *("gpu", "family", "depth", "seq_len", "vocab_size", "micro_batch", "grad_accum", "data", "precision", "compile"),
    *("activation_checkpointing", "optimizer", "budget_seconds"),
    **HERE,
    depth="Number of transformer blocks. Default: 4 on a CPU, 12 on a GPU.",
    micro_batch="Sequences per forward pass of the base. Default: 4 or 16.",
    grad_accum="Micro-batches per step of the first configuration. Default: 2.",
    budget_seconds="Time for the bursts. Default: 180s on a CPU, 420s on a GPU.",
)
@click.option("--calibrate/--no-calibrate", default=True, show_default=True,
              help="Calibrate with the best settings afterwards, so that plans use them.")  # fmt: skip
@options("one_price")
def command(plan: Any, **asked: Any) -> None:
    """Measure precision, compilation, recomputation, micro-batch, attention, loss chunks and optimizer, one by one.

    All are compared at equal effective batch with the run of PLAN, or with one of the given size, in short interleaved
    bursts with repeats. A difference within the noise is reported as no effect.
    """
    from advisor.report import tuning as report
    from advisor.store.store import default_store
    from advisor.workflows.tune import TuneOptions, check_budget, tune

    check_budget(asked["budget_seconds"])
    store = default_store()
    chosen = TuneOptions(plan=store.load_plan(plan) if plan else None, **asked)
    with render.progress("starting", None) as shown:
        done = tune(
            chosen,
            store,
            on_start=lambda seconds: shown(total=seconds),
            on_event=lambda event: shown(completed=event.elapsed_seconds, description=event.text),
        )
    answer(
        "tune",
        lambda: report.document(done),
        lambda: [
            f"{done.device.name or done.device_key}: {report.base_words(done.tuning.base)}",
            render.table(report.COLUMNS, list(report.rows(done.tuning)), right=("speed", "memory", "repeats")),
            *report.conclusion(done),
        ],
    )
