"""The form for a goal. Each option in the table is a control, and the form's values become the command's goal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import streamlit as st

from advisor.hardware.catalog import load_gpus
from advisor.hardware.offers import provider_names
from advisor.options import OPTIONS, Goal, Kind, Option
from advisor.planning.models import known_names, mixture_rows
from advisor.planning.offers import GPU_COUNTS
from advisor.prediction.rl import rl_software
from advisor.prediction.software import table
from advisor.ui import controls, loaders
from advisor.ui.controls import ENTERED, PLAN, QUERY, device_names, escaped, from_address, go, to_address
from advisor.workflows.goal import goal_from, read_options, readings

OPENS_WITH = {"budget": "$50", "deadline": "24 h"}  # the goal with which the page opens
_WIDTHS = (1, 1, 1.6, 1.6, 1.5)
_DRAWERS = (4, 3, 3)  # widths: both drawers, and how the form was read
_FIRST = (("budget", "deadline", "gpu", "data", "objective"),)  # few: Tab visits all of them before Launch
_MORE = (
    ("tokens", "ratio", "spot"),
    ("model", "params", "family", "depth", "seq_len", "software"),
    ("finetune", "stage", "examples", "length", "epochs", "lora_rank"),
    ("rl", "prompts", "prompts_per_step", "group", "prompt_len"),
    ("response_len", "response_len_end", "response_max", "placement", "staleness"),
    ("rollout_gpus", "rollout_tp", "rollout_memory", "rollout_precision"),
    ("reward_seconds", "judge", "judge_len", "judge_gpus"),
    ("reference", "dropped_groups", "turns", "tool_seconds", "lora"),
    ("gpus", "provider", "price", "kwh_price", "own"),
    ("sure", "power_cap", "interruptions", "checkpoint_every", "value_of_time"),
)
_HEADS = {  # above the row that begins with this field
    "tokens": "How much", "model": "Model", "finetune": "Fine-tune", "rl": "RL post-training",
    "gpus": "Machines and prices", "sure": "Limits",
}  # fmt: skip
_REST = [name for name in OPTIONS if name not in chain(*_FIRST, *_MORE)]
_A_ROW = 6
_ADVANCED = [_REST[first : first + _A_ROW] for first in range(0, len(_REST), _A_ROW)]
LAST = "plan-form"  # session state: what the form held last, to be restored when the user comes back to the page
BROUGHT_BACK = "plan-brought-back"  # session state: the values to restore on coming back to the page
_PREPARE = "prepare text…"
PLAN_LAYOUT, OTHER_SOFTWARE = "Plan its layout", "Other software trains it: plan its layout over several GPUs."
_GOAL = "plan-form-goal"  # session state: the goal that the form gave last
_SET = "plan-set"  # session state: the values to which this run set the form
AGAIN = "plan-again"  # session state: the values to which the next run sets the form


def _choices(option: Option) -> Sequence[Any] | None:
    """Return what an option's control offers to choose from. Returns None if the control takes text or a number."""
    offered: dict[Kind, Callable[[], Sequence[Any] | None]] = {
        Kind.CHOICE: lambda: option.choices,
        Kind.YES_NO: lambda: ("yes", "no"),
        Kind.SWITCH: lambda: ("true", "false"),
        Kind.GPUS: devices,
        Kind.NUMBERS: lambda: GPU_COUNTS,
        Kind.PROVIDER: provider_names,
        Kind.MODEL: lambda: [*known_names(), *mixture_rows()],
        Kind.SOFTWARE: lambda: list(dict.fromkeys([*table(), *rl_software()])),
    }
    return offered[option.kind]() if option.kind in offered else None


def begin() -> None:
    """Restore the form's former values when the user comes to the page."""
    if not st.session_state.get(ENTERED, True):
        return
    last = st.session_state.get(LAST, {})
    st.session_state[BROUGHT_BACK] = {} if {*st.query_params} & {*last} else last


def goal() -> Goal:
    """Draw the form and return its goal. Raises AdvisorError (exit code 2) for values that make no sense."""
    st.session_state[_SET] = again = st.session_state.pop(AGAIN, {})
    for name, value in again.items():
        st.session_state[name] = value
    try:
        return _read_form()
    finally:
        state = st.session_state.to_dict()
        now = {name: state[name] for name in OPTIONS if name in state}
        before = st.session_state.pop(BROUGHT_BACK, {})
        if any(now.get(name) != value for name, value in before.items() if name in now or _is_changed(name, value)):
            # Back leads to an address that Streamlit has emptied, and the controls then follow that address
            st.session_state[AGAIN] = before
            st.rerun()
        st.session_state[LAST] = now


def _read_form() -> Goal:
    typed = rows(_FIRST, _WIDTHS)
    more, advanced, notes = st.container(key="drawers").columns(_DRAWERS, vertical_alignment="top")
    with more:
        typed |= _drawer("More: tokens, model, fine-tune, RL, machines, prices", "tune", _MORE)
    with advanced:
        typed |= _drawer("Advanced: sizes, batch, precision, data", "settings", _ADVANCED, (1,) * _A_ROW)
    # read only after everything is drawn, because a control that is not drawn forgets its value
    if typed.get("model"):
        del typed["family"]
    deadline = typed["deadline"] or ""
    typed["deadline"] = controls.typed_deadline(deadline)
    if typed["deadline"] != deadline:
        notes.caption(f"Deadline {escaped(deadline)} read as {escaped(typed['deadline'])}.")
    read = read_options({name: value for name, value in typed.items() if value not in (None, "", ())})
    goal = goal_from({"gpu": "any"} | read)
    # A moment comes nearer with each click. Only what takes away more than a hundredth of the time is another question.
    last = st.session_state.get(_GOAL)
    if goal.deadline_at is not None and last is not None and last.deadline_seconds is not None:
        passed = last.deadline_seconds - (goal.deadline_seconds or 0.0)
        if passed < last.deadline_seconds / 100 and replace(goal, deadline_seconds=last.deadline_seconds) == last:
            goal = last
    st.session_state[_GOAL] = goal
    for words in readings(read, typed["deadline"] or ""):
        notes.caption(words)
    return goal


def _drawer(
    label: str, icon: str, names: Sequence[Sequence[str]], widths: Sequence[float] | None = None
) -> dict[str, Any]:
    """Draw rows of controls in a drawer once it is opened or a control in it has a value. Empty until then."""
    drawer = st.expander(label, icon=f":material/{icon}:", key=f"drawer-{icon}", on_change="rerun")
    state, requested = st.session_state.to_dict(), st.query_params
    if not drawer.open and not any(name in requested or _is_changed(name, state.get(name)) for name in chain(*names)):
        return {}
    with drawer:
        return rows(names, widths)


def _is_changed(name: str, value: Any) -> bool:
    """Tell whether a control holds anything but its initial value."""
    return value not in (None, "", (), [], False, OPTIONS[name].default)


def rows(
    names: Sequence[Sequence[str]],
    widths: Sequence[float] | None = None,
    *,
    options: Mapping[str, Option] = OPTIONS,
    words: Mapping[str, str] = PLAN,
    prefix: str = "",
) -> dict[str, Any]:
    """Draw these options' controls in rows and return their values. `prefix` precedes their names in the address."""
    typed = {}
    for row in names:
        if row[0] in _HEADS and names is _MORE:
            st.markdown(f"**{_HEADS[row[0]]}**")
        columns = st.container(key=f"pair-{prefix}{row[0]}").columns(widths or len(row), vertical_alignment="bottom")
        for column, name in zip(columns, row, strict=False):
            help = controls.in_controls(options[name].help, words)
            typed[name] = _control(column, options[name], prefix + name, help)
    return typed


def _control(column: Any, option: Option, key: str, help: str) -> Any:
    """Draw one option's control and return its value as it would be typed on the command line."""
    bound: Any = {"key": key, "bind": QUERY, "help": help}
    choices, blank = _choices(option), {"placeholder": option.empty}
    if option.kind is Kind.SWITCH:
        return column.checkbox(option.label, **bound) or None
    if option.kind is Kind.FOLDER:
        return _folder(column, option, key, help)
    if option.kind is Kind.GPUS:
        from_address(key, known=choices or ())
        chosen = column.multiselect(
            option.label, choices or (), key=key, format_func=device_names().__getitem__, help=help, select_all=False,
            **blank,
        )  # fmt: skip
        to_address(key, chosen)
        return tuple(chosen)
    if option.kind in (Kind.NUMBERS, Kind.PROVIDER):
        chosen = tuple(column.multiselect(option.label, choices, **bound, **blank))
        return tuple(sorted(chosen)) if option.kind is Kind.NUMBERS else chosen
    if option.name in _FIRST[0] and choices:
        default, kinds = option.default, {"required": True, "width": "stretch"}
        if _needs_other_software():  # whose loss is not predicted: the cheapest by default, waiting counted
            choices, default, kinds = choices[1:], None, kinds | {"required": False}
        return column.segmented_control(option.label, choices, default=default, **kinds, **bound)
    if choices is not None:
        first = 0 if option.default is not None or option.kind is Kind.SOFTWARE else None
        free = {"accept_new_options": True} if option.kind is Kind.MODEL else {}  # a config.json, or a name on the Hub
        chosen = column.selectbox(option.label, choices, index=first, **free, **bound, **blank)
        return chosen == "yes" if option.kind is Kind.YES_NO and chosen else chosen
    if option.kind in (Kind.WHOLE, Kind.NUMBER):
        number = int if option.kind is Kind.WHOLE else float
        ends: Any = [number(end) for end in (option.least or 0, option.most or 0)]
        return column.number_input(option.label, *ends, value=None, **bound, **blank)
    initial = "" if key in st.session_state.get(_SET, ()) else OPENS_WITH.get(key, "")  # a value set needs no default
    text = column.text_input(option.label, initial, **bound, **blank).strip()
    return tuple(text.replace(",", " ").split()) if option.several else text


def _needs_other_software() -> bool:
    """Tell whether the form asks for a fine-tune, RL or a layout, also where these fields are drawn later."""
    asked = st.query_params.to_dict() | st.session_state.to_dict()
    return bool(asked.get("finetune") or asked.get("rl") or asked.get("layout") == "any")


def _folder(column: Any, option: Option, key: str, help: str) -> str:
    """Draw the control for a token folder: one that was prepared here, with its tokens and size, or another path.

    The address holds the path. Streamlit's own binding would write the words of the list.
    """
    folders = loaders.token_folders()
    from_address(key)
    chosen = column.selectbox(
        option.label, [*folders, _PREPARE], index=None, key=key, format_func=lambda path: folders.get(path, path),
        accept_new_options=True, placeholder=option.empty, help=help,
    )  # fmt: skip
    if chosen == _PREPARE:
        go("data")
    to_address(key, chosen)
    return chosen or ""


def devices() -> list[str]:
    """Return the keys of what the trainer runs on: this machine's CPU, and every CUDA GPU of the catalog."""
    return ["cpu", *(key for key, spec in load_gpus().items() if spec.is_cuda)]
