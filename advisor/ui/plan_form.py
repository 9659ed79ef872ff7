"""The form for a goal. Each option in the table is a control, and the form's values become the command's goal."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.hardware.prices import price_list
from advisor.hardware.software_support import wheels_for
from advisor.offer import seller_of
from advisor.options import OPTIONS, Goal, Kind, Option
from advisor.planning.offers import GPU_COUNTS
from advisor.prediction.rl import rl_software
from advisor.prediction.software import OWN_NAME, table
from advisor.ui import controls, loaders
from advisor.ui.controls import ENTERED, PLAN, QUERY, device_names, escaped, from_address, go, to_address
from advisor.workflows.goal import RL_SOFTWARE, find_model, goal_from, idle_options, read_options, readings

OPENS_WITH = {"budget": "$50", "deadline": "24 h"}  # the goal with which the page opens
_FIRST = {  # with widths; few, because Tab visits all of them before Launch
    "budget": 0.8, "deadline": 0.8, "gpu": 1.7, "model": 1.4, "finetune": 1.1, "data": 0.9, "objective": 1.45,
}  # fmt: skip
_MORE = {
    "How much": (("tokens", "ratio", "spot"),),
    "Model": (("params", "family", "depth", "seq_len", "software"),),
    "Fine-tune": (("stage", "examples", "length", "epochs", "lora_rank"),),
    "RL post-training": (
        ("prompts", "prompts_per_step", "group", "prompt_len"),
        ("response_len", "response_len_end", "response_max", "placement", "staleness"),
        ("rollout_gpus", "rollout_tp", "rollout_memory", "rollout_precision"),
        ("reward_seconds", "judge", "judge_len", "judge_gpus"),
        ("reference", "dropped_groups", "turns", "tool_seconds", "lora"),
    ),
    "Machines": (("gpus", "own", "provider", "power_cap", "interruptions", "checkpoint_every"),),
    "Money": (("price", "kwh_price", "value_of_time", "sure"),),
}
_ADVANCED = {
    "Sizes of the model": (("width", "heads", "kv_heads", "ffn_width", "vocab_size", "ratio_counts"),),
    "Batch and precision": (
        ("micro_batch", "global_batch", "precision", "compile", "activation_checkpointing", "optimizer"),
    ),
    "Several GPUs and other software": (("layout", "sharding", "network", "measured"),),
    "Data": (("data_tokens", "synthetic", "inference_tokens", "download_rate", "grid_carbon"),),
}
# the ways to train a published model, which two options state: --finetune and --rl
TRAIN = {
    "lora": "LoRA", "qlora": "QLoRA", "full": "all weights", "grpo": "RL: GRPO", "dapo": "RL: DAPO", "ppo": "RL: PPO",
}  # fmt: skip
_USED = {"finetune": "trl", "rl": RL_SOFTWARE, "layout": "nemo"}  # if no software is named
LAST = "plan-form"  # session state: what the form held last, to be restored when the user comes back to the page
BROUGHT_BACK = "plan-brought-back"  # session state: the values to restore on coming back to the page
_PREPARE = "prepare text…"
_BY_COST = "both"  # the cost with a price of waiting, which is minimised where no loss is predicted
PLAN_LAYOUT, OTHER_SOFTWARE = "Plan its layout", "Other software can train it: plan its layout over several GPUs."
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
        Kind.PROVIDER: lambda: price_list().providers,
        Kind.SOFTWARE: lambda: [*(rl_software() if "rl" in _asked() else table())],
    }
    return offered[option.kind]() if option.kind in offered else None


_FLAG = r"--[a-z-]+(?: (?!or\b)[^\s()-][^\s()]*)?"  # an option of a hint, with its value


def first_change(hint: str) -> dict[str, Any]:
    """Return the values of the controls for the first change that a refusal names; empty if it names none of them."""
    found = re.search(rf"feasible with (?:[^()]*?\()?({_FLAG}(?: {_FLAG})*)", hint, re.IGNORECASE)
    by_flag = {option.flag: option for option in OPTIONS.values()}
    values: dict[str, Any] = {}
    for typed in re.findall(_FLAG, found[1]) if found else ():
        flag, _, value = typed.partition(" ")
        if (option := by_flag.get(flag)) is None:
            return {}
        values[option.name] = _field_value(option.kind, value)
    return values


def _field_value(kind: Kind, typed: str) -> Any:
    """Return the value that an option's control holds for what is typed on the command line."""
    if kind is Kind.SWITCH:
        return True
    if kind is Kind.GPUS:
        return [] if typed == "any" else typed.split(",")
    if kind is Kind.NUMBERS:
        return [int(count) for count in typed.split(",")]
    return int(typed) if kind is Kind.WHOLE else float(typed) if kind is Kind.NUMBER else typed


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
    _begin_train()
    idle = idle_options(_asked())
    if "model" in _asked():
        idle -= {"finetune"}  # its control also says --rl
    first = [name for name in _FIRST if name not in idle]
    for name in {*_FIRST} - {*first}:
        to_address(name, None)
    typed = rows([first], [_FIRST[name] for name in first])
    drawers = st.container(key="drawers", horizontal=True, vertical_alignment="center")
    with drawers:
        typed |= _drawer("More", "Amount, software, machines, prices.", "tune", _MORE, idle)
        typed |= _drawer("Advanced", "Sizes, batch, precision, data.", "settings", _ADVANCED, idle)
        if st.button("A run failed? Drop its log", type="tertiary", icon=":material/troubleshoot:"):
            go("analyze")
    notes = drawers.container(gap=None)
    # read only after everything is drawn, because a control that is not drawn forgets its value
    if (way := typed.get("finetune")) in OPTIONS["rl"].choices:
        typed |= {"finetune": None, "rl": way}
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
    label: str, holds: str, icon: str, groups: Mapping[str, Sequence[Sequence[str]]], idle: Collection[str]
) -> dict[str, Any]:
    """Draw groups of controls over the page, once the drawer is opened or a control in it has a value."""
    drawer = st.popover(label, icon=f":material/{icon}:", key=f"drawer-{icon}", on_change="rerun", help=holds)
    drawn = {head: [[name for name in row if name not in idle] for row in rows] for head, rows in groups.items()}
    if not drawer.open and not _asked() & {*chain(*chain(*drawn.values()))}:
        return {}
    typed: dict[str, Any] = {}
    with drawer:
        for head, names in drawn.items():
            if any(names):
                st.markdown(f"**{head}**")
                typed |= rows(list(filter(None, names)), (1,) * 6)
    return typed


def _asked() -> set[str]:
    """Return the options to which the address or a control gives a value, also where they are drawn later."""
    values = OPENS_WITH | st.query_params.to_dict() | st.session_state.to_dict()
    asked = {name for name in OPTIONS if _is_changed(name, values.get(name))}
    if values.get("finetune") in OPTIONS["rl"].choices:
        asked = asked - {"finetune"} | {"rl"}
    return asked - {"layout"} if values.get("layout") != "any" else asked


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
    if option.kind in (Kind.GPUS, Kind.PROVIDER):
        from_address(key, known=choices or ())
        names = device_names().__getitem__ if option.kind is Kind.GPUS else seller_of
        chosen = column.multiselect(
            option.label, choices or (), key=key, format_func=names, help=help, select_all=False, **blank
        )
        to_address(key, chosen)
        return tuple(chosen)
    if option.kind is Kind.NUMBERS:
        return tuple(sorted(column.multiselect(option.label, choices, **bound, **blank)))
    if option.kind is Kind.MODEL:
        return controls.model_box(column, option.label, key, help=help, **blank)
    if option.name == "finetune":
        return _train(column, key, f"{help} RL: {controls.in_controls(OPTIONS['rl'].help, PLAN)}")
    other = None
    if key in OPTIONS and (option.name == "objective" or option.kind is Kind.SOFTWARE):
        asked = _asked()
        other = next((kind for kind in _USED if kind in asked), None)
    if option.name == "objective":
        bound |= {"required": True, "width": "stretch", "default": option.default}
        if other:  # whose loss is not predicted: the cheapest by default, waiting counted
            bound["format_func"] = lambda name: _BY_COST if name == option.default else name
            bound["help"] = f"{help} *{_BY_COST}*: the cost, with a price for each hour after the first day."
        return column.segmented_control(option.label, choices, **bound)
    if choices is not None:
        first = 0 if option.default is not None or option.kind is Kind.SOFTWARE else None
        if other and option.kind is Kind.SOFTWARE:
            first, blank = None, {"placeholder": _USED[other]}
            choices = [name for name in choices if name != OWN_NAME]
        chosen = column.selectbox(option.label, choices, index=first, **bound, **blank)
        return chosen == "yes" if option.kind is Kind.YES_NO and chosen else chosen
    if option.kind in (Kind.WHOLE, Kind.NUMBER):
        number = int if option.kind is Kind.WHOLE else float
        ends: Any = [number(end) for end in (option.least or 0, option.most or 0)]
        return column.number_input(option.label, *ends, value=None, **bound, **blank)
    initial = "" if key in st.session_state.get(_SET, ()) else OPENS_WITH.get(key, "")  # a value set needs no default
    text = column.text_input(option.label, initial, **bound, **blank).strip()
    return tuple(text.replace(",", " ").split()) if option.several else text


def _train(column: Any, key: str, help: str) -> str | None:
    """Draw how the model is trained: from scratch, fine-tuned or by RL. The address names the option that says it."""
    chosen: str | None = column.selectbox(
        OPTIONS[key].label, list(TRAIN), index=None, key=key, format_func=TRAIN.__getitem__, help=help,
        placeholder=OPTIONS[key].empty,
    )  # fmt: skip
    for name in (key, "rl"):
        to_address(name, chosen if chosen in OPTIONS[name].choices else None)
    return chosen


def _begin_train() -> None:
    """Settle how a model that was just chosen is trained, on which the other controls depend."""
    model, asked = st.session_state.get("model", st.query_params.get("model")), st.query_params
    if model and "finetune" not in st.session_state:
        way = asked.get("finetune") or asked.get("rl")
        st.session_state["finetune"] = way if way in TRAIN else _only_way(model)
    elif not model:
        st.session_state.pop("finetune", None)
        to_address("finetune", None)
        to_address("rl", None)


def _only_way(model: str) -> str | None:
    """Return "qlora" if the chosen model can be fine-tuned but not trained from scratch. Returns None otherwise."""
    if _asked() & {"layout", "rl"}:
        return None
    try:
        find_model(model)
    except AdvisorError as error:
        return "qlora" if "--finetune qlora" in (error.hint or "") else None
    return None


def _folder(column: Any, option: Option, key: str, help: str) -> str:
    """Draw the control for a token folder: one that was prepared here, with its tokens and size, or another path.

    The address holds the path. Streamlit's own binding would write the words of the list.
    """
    folders = loaders.token_folders()
    from_address(key)
    loaders.take_folder(key, folders)
    chosen = column.selectbox(
        option.label, [*folders, _PREPARE], index=None, key=key, format_func=lambda path: folders.get(path, path),
        accept_new_options=True, placeholder=option.empty, help=help,
    )  # fmt: skip
    if chosen == _PREPARE:
        go("data")
    to_address(key, chosen)
    return chosen or ""


def devices() -> list[str]:
    """Return the keys of what the trainer runs on: this machine's CPU, and every GPU that PyTorch supports."""
    return ["cpu", *(key for key, spec in load_gpus().items() if wheels_for(spec))]
