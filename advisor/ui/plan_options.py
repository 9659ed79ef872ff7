"""The options of an answer, drawn: a row each, time and cost as dots with intervals on one axis, limits as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor.options import Goal
from advisor.planning import explore
from advisor.records import Estimate, Run
from advisor.report import charts
from advisor.report import search as runs
from advisor.report.quantities import COST, TIME, Quantity
from advisor.ui.plan_tabs import escape_dollars, with_controls

_WIDTHS = (2.5, 2.25, 2.25, 0.75, 0.8)
_LIMITS = {TIME: ("deadline", "time"), COST: ("budget", "budget")}  # the limit of a quantity, and what is kept
_IN_SIGHT = 2.0  # a limit is drawn unless it lies this many times beyond the longest interval


@dataclass(frozen=True, kw_only=True)
class Option:
    """One row: a run, its name and description, its third number, and what its button does (None without a button)."""

    run: Run
    title: str
    line: str
    result: str  # what it gives besides time and cost: its loss or its throughput
    shown: bool
    key: str
    model: str = ""  # beside the title
    badge: str = ""  # what its speed is based on, beside the line
    why: str = ""  # shown where the mouse is
    show: Callable[[], None] | None = None


def draw(options: Sequence[Option], goal: Goal) -> None:
    """Draw the options below each other: name, time, cost, result and button of each."""
    limits = {TIME: goal.deadline_seconds, COST: goal.budget_usd}
    ends = {}
    for quantity, limit in limits.items():
        longest = max((e.high for o in options if (e := _estimate(o.run, quantity)) is not None), default=0.0)
        if limit is not None and limit > _IN_SIGHT * longest:
            limits[quantity] = None
        ends[quantity] = max(longest, limits[quantity] or 0.0)
    with st.container(border=True, key="options", gap="xxsmall"):
        for option in options:
            cells = st.container(key=f"option-{option.key}").columns(_WIDTHS, vertical_alignment="center")
            first, chances = cells[0].container(gap=None), explore.chances(goal, option.run.bill)
            check = ":material/check_circle: " if option.shown and option.show is None else ""
            title = f"**{option.title}** {check}{option.model}"
            first.markdown(escape_dollars(title), help=with_controls(option.why) or None)
            first.markdown(f":small[{escape_dollars(option.line)}] {option.badge}")
            for cell, (quantity, (name, kept)) in zip(cells[1:], _LIMITS.items(), strict=False):
                estimate, chance = _estimate(option.run, quantity), chances[name]
                centre = quantity.expected(estimate)
                words = f"**{centre}** {quantity.of(estimate).removeprefix(centre).strip()}"
                words += f" · {runs.percent(chance)} in {kept}" if chance is not None else ""
                _drawn([cell.container(gap=None)], words, estimate, ends[quantity], limits[quantity], name)
            cells[3].markdown(f":small[{escape_dollars(option.result)}]")
            if option.show is not None:
                label = "Shown" if option.shown else "Show"
                cells[4].button(label, key=f"card-{option.key}", disabled=option.shown, on_click=option.show,
                                width="stretch")  # fmt: skip


def _estimate(run: Run, quantity: Quantity) -> Estimate | None:
    return run.total_seconds if quantity is TIME else run.cost_usd


def _drawn(
    cells: Sequence[DeltaGenerator], words: str, estimate: Estimate | None, end: float | None, limit: float | None,
    name: str,
) -> None:  # fmt: skip
    """Write an estimate into the first cell and draw it in the last one, as a dot with its interval on an axis."""
    cells[0].markdown(f":small[{escape_dollars(words)}]")
    if estimate is not None and end:
        spec = charts.whisker(estimate, end=end, limit=limit, name=name, words=words.replace("**", ""))
        cells[-1].vega_lite_chart(spec=spec, width="stretch")
