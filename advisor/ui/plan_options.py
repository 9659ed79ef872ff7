"""The options of an answer, drawn: a row each, time and cost as dots with intervals on one axis, limits as lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import streamlit as st

from advisor.options import Goal
from advisor.planning import explore
from advisor.records import Estimate, Run
from advisor.report import charts
from advisor.report import search as runs
from advisor.report.quantities import COST, TIME, Quantity
from advisor.ui.plan_tabs import escape_dollars, with_controls

_WIDTHS = (2.3, 2.5, 2.35, 0.75, 0.8)
_LIMITS = {TIME: "deadline", COST: "budget"}
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
    asked, ends = dict(limits), {}
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
            for cell, (quantity, name) in zip(cells[1:], _LIMITS.items(), strict=False):
                estimate, chance = _estimate(option.run, quantity), chances[name]
                odds = f" · {runs.chance_of(quantity, asked[quantity], chance)}" if chance is not None else ""
                with cell.container(gap=None):
                    st.markdown(f":small[{escape_dollars(f'**{quantity.expected(estimate)}**{odds}')}]")
                    if estimate is not None and (end := ends[quantity]):
                        words, limit = f"{quantity.of(estimate)}{odds}", limits[quantity]
                        drawn = charts.whisker(estimate, end=end, limit=limit, name=name, words=words)
                        st.vega_lite_chart(spec=drawn, width="stretch")
            cells[3].markdown(f":small[{escape_dollars(option.result)}]")
            if option.show is not None:
                label = "Shown" if option.shown else "Show"
                cells[4].button(label, key=f"card-{option.key}", disabled=option.shown, on_click=option.show,
                                width="stretch")  # fmt: skip


def _estimate(run: Run, quantity: Quantity) -> Estimate | None:
    return run.total_seconds if quantity is TIME else run.cost_usd
