"""The options of an answer, drawn: a row each, time and cost as dots with intervals on one axis, limits as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor.options import Goal
from advisor.planning import explore
from advisor.records import Estimate, Run
from advisor.report import charts
from advisor.report import search as runs
from advisor.report.quantities import COST, DEVICE_MEMORY, TIME, Quantity
from advisor.report.table import capital
from advisor.ui.plan_tabs import escape_dollars

_WIDTHS = (2.7, 2.2, 2.2, 1.7, 1, 1.1)
_LIMITS = {TIME: ("deadline", "time"), COST: ("budget", "budget")}  # the limit of a quantity, and what is kept
_IN_SIGHT = 2.0  # a limit is drawn unless it lies this many times beyond the longest interval


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row: a run, its name and description, its third number, and what its button does (None without a button)."""

    run: Run
    title: str
    lines: Sequence[str]
    result: str  # what it gives besides time and cost: its loss or its throughput
    shown: bool
    key: str
    badge: str = ""  # what its speed is based on
    show: Callable[[], None] | None = None


def draw(options: Sequence[Option], goal: Goal) -> None:
    """Draw the options below each other: name, time, cost, memory, result and button of each."""
    limits = {TIME: goal.deadline_seconds, COST: goal.budget_usd}
    ends = {}
    for quantity, limit in limits.items():
        longest = max((e.high for o in options if (e := _estimate(o.run, quantity)) is not None), default=0.0)
        if limit is not None and limit > _IN_SIGHT * longest:
            limits[quantity] = None
        ends[quantity] = max(longest, limits[quantity] or 0.0)
    with st.container(border=True, key="options"):
        for option in options:
            cells = st.container(key=f"pair-option-{option.key}").columns(_WIDTHS, vertical_alignment="center")
            first, chances = cells[0].container(gap=None), explore.chances(goal, option.run.bill)
            first.markdown(f"**{option.title}** {':material/check_circle: ' if option.shown else ''}{option.badge}")
            first.caption(escape_dollars("  \n".join(filter(None, option.lines))))
            for cell, (quantity, (name, kept)) in zip(cells[1:], _LIMITS.items(), strict=False):
                estimate, chance = _estimate(option.run, quantity), chances[name]
                centre = quantity.expected(estimate)
                words = f"{capital(quantity.name)} **{centre}** {quantity.of(estimate).removeprefix(centre).strip()}"
                words += f" · {runs.percent(chance)} in {kept}" if chance is not None else ""
                _drawn(cell, words, estimate, ends[quantity], limits[quantity], name)
            needs, has = option.run.prediction.device_bytes, option.run.prediction.device_memory_bytes
            of_all = f" of {DEVICE_MEMORY.words(has)}" if has else ""
            _drawn(
                cells[3], f"Memory **{DEVICE_MEMORY.expected(needs)}**{of_all}", needs, has, has, "memory of the GPU"
            )
            cells[4].markdown(escape_dollars(option.result))
            if option.show is not None:
                label = "Shown" if option.shown else "Show this one"
                cells[5].button(label, key=f"card-{option.key}", disabled=option.shown, on_click=option.show,
                                width="stretch")  # fmt: skip


def _estimate(run: Run, quantity: Quantity) -> Estimate | None:
    return run.total_seconds if quantity is TIME else run.cost_usd


def _drawn(
    cell: DeltaGenerator, words: str, estimate: Estimate | None, end: float | None, limit: float | None, name: str
) -> None:
    """Draw an estimate in words, and below them as a dot with its interval if the axis has an end."""
    cell = cell.container(gap=None)
    cell.markdown(escape_dollars(words))
    if estimate is not None and end:
        cell.vega_lite_chart(spec=_spec(estimate, end, limit, name, words.replace("**", "")), width="stretch")


@st.cache_data(max_entries=256, show_spinner=False)
def _spec(estimate: Estimate, end: float, limit: float | None, name: str, words: str) -> dict[str, Any]:
    """Return the chart as Vega-Lite, cached, because checking it is slower than a slider."""
    return charts.whisker(estimate, end=end, limit=limit, name=name, words=words).to_dict()
