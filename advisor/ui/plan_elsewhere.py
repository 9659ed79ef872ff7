"""Plans with other software on the page Plan: a fine-tune on each machine, and a model over many GPUs."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from advisor.options import Goal
from advisor.planning.command import plan_call, plan_command
from advisor.planning.curves import gib
from advisor.prediction.layout_batch import memory_by_stage
from advisor.prediction.layout_memory import MEMORY_PARTS
from advisor.report import charts, finetune, layouts
from advisor.report.table import Table, capital
from advisor.ui import plan_answers
from advisor.ui.controls import commands, grid, products
from advisor.ui.plan_tabs import plain, worded
from advisor.units import format_bytes, format_estimate
from advisor.workflows.plan_layouts import LayoutPlan

MOST = 40  # number of machines listed for a fine-tune


def show(goal: Goal) -> bool:
    """Show the answer to such a goal: sentence, tables, notes, command. Returns False for any other goal."""
    if goal.layout == "any":
        cut = plan_answers.layouts(goal, plan_answers.world(goal))
        _show(layouts.sentence(cut), layouts.table(cut), (layouts.parts(cut),))
        _memory(cut)
        _show(f"Other layouts of the {cut.chosen.gpus} GPUs", layouts.others(cut), layouts.notes(cut), level=3)
    elif goal.finetune is not None:
        tuned = plan_answers.finetune(goal, plan_answers.world(goal))
        _show(finetune.sentence(tuned), finetune.table(tuned, MOST), finetune.notes(tuned))
    else:
        return False
    commands(plan_command(goal), plan_call(goal))
    return True


def _memory(cut: LayoutPlan) -> None:
    """Draw the memory of a GPU at each end of the pipeline, part by part, and the limit of the GPU."""
    best = cut.chosen.search.best
    assert best is not None
    stages = memory_by_stage(best.run)
    rows = [
        {"place": stage, "part": part, "order": order, "value": gib(size), "label": format_bytes(size)}
        for stage, held in stages.items()
        for order, (part, size) in enumerate(held.items())
    ]
    peak, has = best.prediction.peak_allocated_bytes, float(best.run.gpu.memory_bytes)
    fullest = max(stages, key=lambda stage: sum(stages[stage].values()))
    ends = [{"place": fullest, "low": gib(peak.low), "high": gib(peak.high),
             "label": format_estimate(peak, format_bytes)}]  # fmt: skip
    limit = (gib(has), f"{best.run.gpu.product} has {format_bytes(has)}")
    chart = charts.memory(rows, ends, across="GPU of a pipeline stage", parts=MEMORY_PARTS, limit=limit)
    st.altair_chart(chart, width="stretch")
    st.caption("Memory at the peak of a step; grey: the 80 % interval of the fullest GPU.")


def _show(title: str, table: Table, notes: Iterable[str], level: int = 2) -> None:
    st.markdown(f"{'#' * level} {plain(products(title))}")
    grid(table)
    for note in notes:
        st.caption(worded(capital(note)))
