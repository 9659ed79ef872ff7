"""The sliders of the page Plan: how each change of a run affects hours, dollars, memory and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import streamlit as st

from advisor.errors import AdvisorError
from advisor.options import Goal
from advisor.planning.explore import Changes, difference, pinned, ranges
from advisor.prediction.profile import Profile
from advisor.records import Run
from advisor.report import plan as plan_words
from advisor.report.quantities import COST, LOSS, TIME
from advisor.ui import plan_answers, plan_form
from advisor.ui.controls import device_names, to_address
from advisor.ui.plan_tabs import plain, worded
from advisor.ui.tables import grid
from advisor.units import format_tokens, format_usd_rate

PREFIX = "if_"  # of the sliders' keys, which are also their names in the address
_CARD = f"{PREFIX}gpu"
_BASE = "plan-base"  # session state: the run to which the sliders apply
_SLIDERS: tuple[tuple[str, str, Callable[[Any], str], str], ...] = (
    ("depth", "Depth", str, "Transformer blocks; the width follows by the family's proportions. Tokens stay."),
    ("tokens", "Tokens", format_tokens, "Training tokens in all."),
    ("micro_batch", "Micro-batch", str, "Sequences per GPU and forward pass. The global batch stays if it can."),
    ("seq_len", "Context length", str, "Tokens per sequence. Training tokens and the global batch stay."),
    ("gpus", "GPUs", str, "Data-parallel GPUs. The global batch stays; the price is the catalog's for this number."),
    ("usd_per_gpu_hour", "$ per GPU-hour", format_usd_rate, "Your own price for a machine that is ready: "
    "ordering, software and storage cost nothing extra."),
)  # fmt: skip


def begin(run: Run, base: object) -> Changes:
    """Set the sliders to a run when another run (`base`) is shown; the first time, to the values in the address.

    Returns the sliders' values before they are drawn.
    """
    allowed, moved = ranges(run), Changes()
    another = st.session_state.get(_BASE, base) != base
    st.session_state[_BASE] = base
    if another or st.session_state.get(_CARD) not in plan_form.devices():
        asked = None if another else st.query_params.get(_CARD)
        st.session_state[_CARD] = asked if asked in plan_form.devices() else run.offer.gpu
    if st.session_state[_CARD] != run.offer.gpu:
        moved = replace(moved, gpu=st.session_state[_CARD])
    to_address(_CARD, moved.gpu)
    for name, *_ in _SLIDERS:
        key, (own, options) = PREFIX + name, allowed[name]
        if another or st.session_state.get(key) not in options:
            asked = None if another else st.query_params.get(key)
            wanted = [option for option in options if str(option) == asked]
            st.session_state[key] = wanted[0] if wanted else options[0] if own is None else own
        value = st.session_state[key]
        if own is not None and value != own:
            moved = replace(moved, **{name: value})
        to_address(key, str(value) if value != own else None)
    return moved


def total(shown: Run, *, varied: bool) -> None:
    """Show time, cost and loss of the changed run while sliders move, and the button that undoes the changes."""
    numbers = [TIME.expected(shown.total_seconds)]
    numbers.append(COST.expected(shown.cost_usd) if shown.cost_usd else f"cost unknown: {shown.offer.source}")
    numbers += [f"{LOSS.column} {LOSS.expected(shown.loss)}"] if shown.loss is not None else []
    with st.container(key="sticky-total", horizontal=True, vertical_alignment="center"):
        st.markdown(plain(f"{'What if' if varied else 'As chosen'}: **{' · '.join(numbers)}**"))
        st.button(
            "Reset", icon=":material/restart_alt:", key="what-if-reset", on_click=_reset, disabled=not varied,
            help="All sliders and the GPU back to the run as it was chosen.",
        )  # fmt: skip


def _reset() -> None:
    st.session_state[_BASE] = None  # equals no run, so the sliders are set to the run that is shown
    for key in [name for name in st.query_params if name.startswith(PREFIX)]:
        del st.query_params[key]


def sliders(goal: Goal, run: Run, profile: Profile, now: plan_answers.World) -> None:
    """Draw the sliders, each with the effect of its change alone: at its value, or one step further."""
    st.selectbox(
        "GPU",
        plan_form.devices(),
        key=_CARD,
        format_func=device_names().__getitem__,
        help="The same model, tokens and global batch on another GPU, at its catalog price and its own best "
        "micro-batch. The sliders are for the GPU of the plan.",
    )
    allowed = ranges(run)
    useful = [slider for slider in _SLIDERS if len(allowed[slider[0]][1]) > 1]
    for first in range(0, len(useful), 2):
        pair, columns = useful[first : first + 2], st.container(key=f"pair-sliders-{first}").columns(2)
        for column, (name, label, words, explained) in zip(columns, pair, strict=False):
            own, options = allowed[name]
            with column.container(gap="small"):  # pointing at a slider writes its ends below it
                value = st.select_slider(label, options, key=PREFIX + name, format_func=words, help=explained)
                tried = value if value != own else next((option for option in options if option > value), None)
                if tried is None:
                    continue
                st.caption(worded(f"at {words(tried)}: {_alone(goal, run, Changes(**{name: tried}), profile, now)}"))


def _alone(goal: Goal, run: Run, change: Changes, profile: Profile, now: plan_answers.World) -> str:
    """Return the effect of one change alone on the run."""
    try:
        other = plan_answers.what_if(pinned(goal, run, change), now, profile).chosen
    except AdvisorError as error:
        return error.message
    said = plan_words.in_words(difference(run, other)), plan_words.unpriced(run, other)
    return " · ".join(filter(None, said))


def comparison(base: Run, shown: Run) -> None:
    """Show the chosen run and the changed run, number by number, with the differences."""
    table = plan_words.comparison(base, shown, difference(base, shown))
    grid(table)
    st.caption(worded(plan_words.kept(base, shown)))
