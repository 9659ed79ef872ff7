"""Plans of other people's software on the page Plan: a fine-tune on each machine, a model cut over many GPUs."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from advisor.options import Goal
from advisor.planning.command import plan_command
from advisor.report import finetune, layouts
from advisor.report.table import Table, in_markdown
from advisor.ui import loaders
from advisor.ui.controls import products
from advisor.ui.plan_tabs import plain, worded
from advisor.workflows.plan_finetune import plan_finetune
from advisor.workflows.plan_layouts import plan_layouts

MOST = 40  # machines of a fine-tune


def show(goal: Goal) -> bool:
    """The answer where the goal is one of these: its sentence, tables, notes, and the command. False: it is none."""
    if goal.layout == "any":
        with st.spinner("trying every layout"):
            cut = plan_layouts(goal)
        _show(layouts.sentence(cut), layouts.table(cut), (layouts.parts(cut),))
        _show(f"Other layouts of the {cut.chosen.gpus} GPUs", layouts.others(cut), layouts.notes(cut), level=3)
    elif goal.finetune is not None:
        with st.spinner("trying every GPU"):
            tuned = plan_finetune(goal, loaders.store())
        _show(finetune.sentence(tuned), finetune.table(tuned, MOST), finetune.notes(tuned))
    else:
        return False
    st.code(plan_command(goal), language=None)
    return True


def _show(title: str, table: Table, notes: Iterable[str], level: int = 2) -> None:
    st.markdown(f"{'#' * level} {plain(products(title))}")
    st.markdown(products(in_markdown(table).replace("$", "\\$")))
    for note in notes:
        st.caption(worded(note))
