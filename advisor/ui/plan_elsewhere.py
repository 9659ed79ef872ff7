"""Plans with other software on the page Plan: a fine-tune on each machine, a model over many GPUs, RL."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning import explore
from advisor.planning.command import plan_call, plan_command
from advisor.planning.curves import gib
from advisor.prediction.layout_batch import memory_by_stage
from advisor.prediction.layout_memory import MEMORY_PARTS
from advisor.records import Plan
from advisor.report import charts, elsewhere, rl
from advisor.report.quantities import COST, DEVICE_MEMORY, THROUGHPUT, TIME
from advisor.report.table import Table, capital
from advisor.ui import plan_answers
from advisor.ui.controls import commands, grid, products
from advisor.ui.plan_tabs import escape_dollars, numbers, with_controls
from advisor.units import format_bytes, format_estimate

MOST = 40  # number of machines listed for a fine-tune


def show(goal: Goal) -> bool:
    """Show the answer to such a goal: sentence, tables, notes, command. Returns False for any other goal."""
    if not goal.needs_other_software:
        return False
    plan = plan_answers.plan(goal, plan_answers.world(goal))
    run = plan.chosen
    st.markdown(f"## {escape_dollars(products(elsewhere.sentence(plan)))}")
    figures = {COST: run.cost_usd, TIME: run.total_seconds, THROUGHPUT: run.tokens_per_second}
    numbers(goal, run, figures | {DEVICE_MEMORY: run.prediction.device_bytes})
    for text in explore.broken_limits(goal, run):
        st.warning(escape_dollars(f"{capital(text)}."), icon=":material/warning:")
    if plan.workload.rollouts is not None:
        _show("Machines", elsewhere.machines(plan), (elsewhere.parts(plan),), level=3)
        parts = list(rl.PARTS.values())
        st.altair_chart(
            charts.step_parts(rl.bars(plan), across="training + generating GPUs", parts=parts), width="stretch"
        )
        st.caption(
            "With split GPUs, engines and trainer work at the same time; the longer bar determines the step time."
        )
        _show(f"Ways to use the {plan.offer.gpus} GPUs", elsewhere.layouts(plan), elsewhere.notes(plan), level=3)
    elif plan.workload.layout is None:
        _show("Machines", elsewhere.machines(plan, MOST), elsewhere.notes(plan), level=3)
    else:
        _show("Machines", elsewhere.machines(plan), (elsewhere.parts(plan),), level=3)
        _memory(plan)
        title = f"Other layouts of the {plan.offer.gpus} GPUs"
        _show(title, elsewhere.layouts(plan), elsewhere.notes(plan), level=3)
    commands(plan_command(goal), plan_call(goal))
    return True


def _memory(plan: Plan) -> None:
    """Draw the memory of a GPU at each end of the pipeline, part by part, and the limit of the GPU."""
    stages, spec = memory_by_stage(plan.workload), require_gpu(plan.workload.gpu)
    rows = [
        {"place": stage, "part": part, "order": order, "value": gib(size), "label": format_bytes(size)}
        for stage, held in stages.items()
        for order, (part, size) in enumerate(held.items())
    ]
    peak = plan.prediction.peak_allocated_bytes
    assert peak is not None  # a layout that was chosen surely fits
    fullest = max(stages, key=lambda stage: sum(stages[stage].values()))
    ends = [{"place": fullest, "low": gib(peak.low), "high": gib(peak.high),
             "label": format_estimate(peak, format_bytes)}]  # fmt: skip
    limit = (gib(spec.memory_bytes), f"{spec.product} has {format_bytes(spec.memory_bytes)}")
    chart = charts.memory(rows, ends, across="GPU of a pipeline stage", parts=MEMORY_PARTS, limit=limit)
    st.altair_chart(chart, width="stretch")
    st.caption("Memory at the peak of a step; grey: the 80 % interval of the fullest GPU.")


def _show(title: str, table: Table, notes: Iterable[str], level: int = 2) -> None:
    st.markdown(f"{'#' * level} {escape_dollars(products(title))}")
    grid(table)
    for note in notes:
        st.caption(with_controls(capital(note)))
