"""`advisor calibrate --tune`: the effects of each setting on a run's speed, memory and loss on this device."""

from __future__ import annotations

from typing import Any

import click

from advisor.cli.params import FILE
from advisor.cli.verb import answer, options_in, verb
from advisor.options import TuneOptions
from advisor.report import render


@verb()
@click.argument("plan", required=False, metavar="[PLAN.yaml]", type=FILE)
@options_in(TuneOptions)
def command(plan: Any, **asked: Any) -> None:
    """Measure the effects of precision, compilation, recomputation, micro-batch, attention, loss chunks and optimizer.

    One setting at a time is changed in the run of PLAN, or in a run of the given size, at equal effective batch. The
    bursts are short, repeated and interleaved. A difference within the noise is reported as no effect.
    """
    from advisor.report import tuning as report
    from advisor.store.store import default_store
    from advisor.workflows.tune import tune

    store = default_store()
    with render.progress("starting", None) as shown:
        done = tune(
            TuneOptions(**asked),
            store,
            store.load_plan(plan) if plan else None,
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
