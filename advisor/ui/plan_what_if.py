"""The sliders of the page Plan: how each change of a run affects hours, dollars, memory and loss."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import streamlit as st

from advisor.planning.explore import Changes, difference, ranges
from advisor.records import Run
from advisor.report import plan as plan_words
from advisor.report.quantities import COST, LOSS, TIME
from advisor.ui import plan_form
from advisor.ui.controls import device_names, grid, to_address
from advisor.ui.plan_tabs import escape_dollars, with_controls
from advisor.units import format_fit_chance, format_tokens, format_usd_rate

PREFIX = "if_"  # of the sliders' keys, which are also their names in the address
_BASE = "plan-base"  # session state: the run to which the sliders apply
_MOVED = "plan-moved"  # session state: the changes that the user made to it, also while other pages are shown
_SLIDERS: tuple[tuple[str, str, Callable[[Any], str], str], ...] = (
    ("depth", "Depth", str, "Transformer blocks; the width follows by the family's proportions. Tokens stay."),
    ("tokens", "Tokens", format_tokens, "Training tokens in all."),
    ("micro_batch", "Micro-batch", str, "Sequences per GPU and forward pass. The global batch stays if it can."),
    ("seq_len", "Context length", str, "Tokens per sequence. Training tokens and the global batch stay."),
    ("gpus", "GPUs", str, "Data-parallel GPUs. The global batch stays; the price is the catalog's for this number."),
    ("usd_per_gpu_hour", "Price per GPU-hour", format_usd_rate, "The same machine at a price of yours."),
)  # fmt: skip
_CHOSEN_AGAIN = ("micro_batch", "usd_per_gpu_hour")  # what another change may change too


def begin(run: Run, base: object) -> Changes:
    """Return the user's changes of a run, at first from the address, or none if another run (`base`) is shown."""
    state, allowed = st.session_state, ranges(run)
    if _MOVED not in state:
        requested = {name: st.query_params.get(PREFIX + name, "") for name in ("gpu", *allowed)}
        choices = {name: options for name, (_, options) in allowed.items()} | {"gpu": plan_form.devices()}
        if re.fullmatch(r"\d+\.\d+", price := requested["usd_per_gpu_hour"]):
            choices["usd_per_gpu_hour"] = (float(price),)  # it may be of another GPU
        state[_MOVED] = {name: each for name in requested for each in choices[name] if str(each) == requested[name]}
    own = {"gpu": run.offer.gpu} | {name: value for name, (value, _) in allowed.items()}
    # A change back to the run's own value counts beside other changes, for which a value may be chosen again.
    if state.get(_BASE, base) != base or all(own[name] == value for name, value in state[_MOVED].items()):
        state[_MOVED] = {}
    state[_BASE] = base
    for name in own:
        to_address(PREFIX + name, str(state[_MOVED][name]) if name in state[_MOVED] else None)
    return Changes(**state[_MOVED])


def _move(name: str) -> None:
    st.session_state[_MOVED] = st.session_state[_MOVED] | {name: st.session_state[PREFIX + name]}


def undo() -> None:
    """Take all changes back."""
    st.session_state[_MOVED] = {}


def total(shown: Run, *, varied: bool, undo: Callable[[], None] = undo) -> None:
    """Show time, cost and loss of the changed run while sliders move, and the button that undoes the changes."""
    numbers = [TIME.expected(shown.total_seconds)]
    numbers.append(COST.expected(shown.cost_usd) if shown.cost_usd else f"cost unknown: {shown.offer.source}")
    numbers += [f"{LOSS.column} {LOSS.expected(shown.loss)}"] if shown.loss is not None else []
    with st.container(key="sticky-total", horizontal=True, vertical_alignment="center"):
        st.header("What if", anchor=False, width="content")
        st.markdown(escape_dollars(f"**{' · '.join(numbers)}**") if varied else "")
        st.button(
            "Reset", icon=":material/restart_alt:", key="what-if-reset", disabled=not varied, on_click=undo,
            help="All sliders and the GPU back to the run as it was chosen.",
        )  # fmt: skip


def sliders(run: Run, shown: Run, changes: Changes, varied: Callable[[Sequence[Changes]], Sequence[Run | str]]) -> None:
    """Draw the sliders at the values of the run that is shown, each with the effect of its change, or of one step more.

    `varied` gives the runs of other changes to `run`, all at once, or why one is impossible.
    """
    st.session_state[f"{PREFIX}gpu"] = changes.gpu or run.offer.gpu
    st.selectbox(
        "GPU", plan_form.devices(), key=f"{PREFIX}gpu", on_change=_move, args=("gpu",),
        format_func=device_names().__getitem__,
        help="The same model, tokens and global batch on another GPU, at its catalog price and its own best "
        "micro-batch.",
    )  # fmt: skip
    allowed, now = ranges(run), ranges(shown)
    others_changed = Changes() if shown is run else changes  # none if the changed run is impossible
    if changes.gpu is not None or changes.usd_per_gpu_hour is None:
        allowed["usd_per_gpu_hour"] = now["usd_per_gpu_hour"]
    drawn: list[tuple[str, str, Any, Any]] = []
    for name, label, words, explained in _SLIDERS:
        if len(allowed[name][1]) < 2:
            continue
        moved = getattr(changes, name)
        used = (now if name in _CHOSEN_AGAIN else allowed)[name][0] if moved is None else moved
        others = sorted({*allowed[name][1], used} - {None})
        options = [option for option in others if option == used or words(option) != words(used)]
        if used is None:
            options = [None, *options]
        with st.container(key=f"slider-{name}", gap="xxsmall"):
            st.session_state[PREFIX + name] = used
            st.select_slider(
                label, options, key=PREFIX + name, format_func=words, help=explained, on_change=_move, args=(name,)
            )
            further = next((option for option in options if used is None or option > used), None)
            tried = further if moved is None else moved
            if tried is not None:
                before = allowed[name][0]
                title = f"At {words(tried)}" if moved is None or before is None else f"Against {words(before)}"
                drawn.append((name, title, tried, st.empty()))
    # the runs without and with each change, beside all other changes, each once
    ends = [[replace(others_changed, **{name: value}) for value in (None, tried)] for name, _, tried, _ in drawn]
    every = list(dict.fromkeys(chain.from_iterable(ends)))
    runs = dict(zip(every, varied(every), strict=True))
    for (name, title, _, place), (without, changed) in zip(drawn, ends, strict=True):
        place.caption(with_controls(f"{title}: {_effect_of(name, runs[without], runs[changed])}"))


def _effect_of(name: str, run: Run | str, other: Run | str) -> str:
    """Return the effect of one change on the run with all other changes, and what is chosen again because of it."""
    if isinstance(run, str) or isinstance(other, str):
        return run if isinstance(run, str) else str(other)
    before, after = ranges(run), ranges(other)
    also = [
        f"{label[0].lower()}{label[1:]} {words(before[again][0])} → {words(now)}"
        for again, label, words, _ in _SLIDERS
        if again in _CHOSEN_AGAIN and again != name and (now := after[again][0]) not in (None, before[again][0])
    ]
    unpriced = plan_words.unpriced(run, other)
    effect = difference(run, other)
    if effect.seconds or effect.usd or effect.loss:
        effect = replace(effect, device_bytes=None)  # the memory bar shows it
    known = other.prediction.plannable or other.prediction.fit_probability == run.prediction.fit_probability
    unsure = "" if known else f"{format_fit_chance(other.prediction.fit_probability)}; "
    return unsure + plan_words.effect_in_words(effect, [*also, *([unpriced] if unpriced else [])])


def comparison(base: Run, shown: Run) -> None:
    """Show the chosen run and the changed run, number by number, with the differences."""
    table = plan_words.comparison(base, shown, difference(base, shown))
    grid(table)
    st.caption(with_controls(plan_words.changes(base, shown)))
