"""The frame of an answer: its sentence, what to heed, four numbers with odds, buttons, and a memory bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor.options import Goal
from advisor.planning.curves import MEMORY_PARTS, gib
from advisor.planning.goal import Limits
from advisor.prediction.depths import memory_bill
from advisor.prediction.profile import Profile
from advisor.records import Bill, Estimate, Prediction, Workload
from advisor.report import charts
from advisor.report.quantities import DEVICE_MEMORY, Quantity
from advisor.report.table import capital
from advisor.ui.controls import products
from advisor.ui.plan_tabs import NONE, escape_dollars, numbers
from advisor.units import format_fit

_OUTSIDE = "driver and workspaces"  # memory that a prediction knows in total but not by part


def frame(
    sentence: str,
    limits: Goal | Limits,
    bill: Bill | None,
    figures: Mapping[Quantity, Estimate | None],
    buttons: Callable[[], None],
    *,
    about: str = "",
    warnings: Sequence[str] = (),
    notes: Mapping[Quantity, str] = NONE,
) -> DeltaGenerator:
    """Draw the upper half of an answer. `about` and each warning are Markdown; warnings stand above the numbers.

    Returns an empty column beside the numbers if there is room.
    """
    st.markdown(f"## {escape_dollars(products(sentence))}")
    if about:
        st.caption(about)
    if warnings:
        mark = "- " if len(warnings) > 1 else ""
        st.warning("\n".join(mark + capital(text) for text in warnings), icon=":material/warning:")
    column = numbers(limits, bill, figures, notes)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        buttons()
    return column


def memory(prediction: Prediction) -> None:
    """Draw what one device must hold, part by part where the parts are known, and its limit."""
    has, parts, chance = prediction.device_memory_bytes, prediction.peak_parts, prediction.fit_probability
    if prediction.workload.rollouts is not None:  # its peaks follow each other
        parts = None
    name = "memory of this process" if prediction.workload.gpu == "cpu" else "memory of a GPU"
    memory_bar(prediction.device_bytes, has, parts or {}, chance, name)


def parts_of(profile: Profile, workload: Workload) -> dict[str, float]:
    """Return the memory of one device by part, for a run of the trainer here."""
    bill = memory_bill(profile, workload)
    assert bill is not None
    return {name: getattr(bill, f"{name}_bytes") for name in MEMORY_PARTS if name != "overhead"}


def memory_bar(
    needs: Estimate | None,
    has: float | None,
    parts: Mapping[str, float],
    chance: float | None = None,
    name: str = "memory of a GPU",
) -> None:
    """Draw one bar of memory with its 80 % interval. The device holds at most `has` bytes; None is unknown."""
    if needs is None:
        return
    outside = needs.value - sum(parts.values())
    named = {"needed": needs.value} if not parts or outside < 0 else dict(parts) | {_OUTSIDE: outside}
    rows = [
        {"part": capital(name), "order": order, "value": gib(size), "label": DEVICE_MEMORY.words(size)}
        for order, (name, size) in enumerate(named.items())
        if size > 0
    ]
    amount, span = DEVICE_MEMORY.of(needs), (gib(needs.low), gib(needs.high))
    sentence = f"{capital(name)}: **{amount}**" + (f" of {DEVICE_MEMORY.words(has)}" if has else "")
    sentence += "" if chance is None else f" · {format_fit(chance)} chance that it fits"
    with st.container(gap=None):
        st.markdown(sentence)
        st.vega_lite_chart(spec=charts.memory_bar(rows, span, amount, gib(has) if has else None), width="stretch")
