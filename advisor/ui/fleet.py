"""Page Fleet: many runs over few GPUs, from a fleet file: what to buy, what starts when, each deadline's chance."""

from __future__ import annotations

import json
import re
import tempfile
from datetime import datetime
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor import units
from advisor.documents import stamped
from advisor.errors import AdvisorError
from advisor.fleets.records import PoolKind
from advisor.planning.models import known_names, mixture_rows
from advisor.report import charts
from advisor.report import fleet as words
from advisor.report.render import to_plain
from advisor.store.folders import examples_folder
from advisor.ui import controls, loaders, plan_form
from advisor.ui.controls import download, escaped, show, side_by_side
from advisor.workflows.fleet import FleetPlan, plan_fleet
from advisor.workflows.goal import find_any_model, goal_from, read_options

TEXT = "fleet-text"  # session state: the file that is planned
_HEIGHT = 420
_ADDED = "fleet-added"  # session state: what a button has just written
_NO_RUNS = "pools:\nruns:\n"
_EMPTY = "The file is empty: add GPUs and runs, each with its button above the file, then plan them."


def page() -> None:
    """Draw the file, and the plan of its runs."""
    st.title("Fleet", anchor=False)
    st.session_state.setdefault(TEXT, (examples_folder() / "fleet.yaml").read_text(encoding="utf-8"))
    left, right = side_by_side("fleet", (2, 3))
    _adders(left)
    text = left.text_area(
        "Your runs and GPUs, as a fleet file", key=TEXT, height=_HEIGHT,
        help="Runs with deadlines, and pools of GPUs: owned, reserved, on demand, spot. All fields: docs/fleet.md.",
    )  # fmt: skip
    asked = left.button("Plan these runs", type="primary", icon=":material/calendar_month:", key="fleet-plan")
    known = st.session_state.get("fleet-planned")
    if asked:
        known = st.session_state["fleet-planned"] = text
    if known is None:
        example = "This is an example, which can be planned as it is. Yours: start empty, then add GPUs and runs."
        shipped = (examples_folder() / "fleet.yaml").read_text(encoding="utf-8")
        yours = example if text == shipped else "The file is yours and was not planned yet: Plan these runs."
        right.info(_EMPTY if text == _NO_RUNS else yours, icon=":material/lightbulb:")
        return
    with right:
        if known != text:
            st.caption(":material/history: Of the file as it was planned last.")
        plan = _planned(known, loaders.store_stamp())
        _answer(plan)
    for shown in words.tables(plan):
        st.header(shown.title, anchor=False)
        show(shown, cell=controls.products)
    for line in words.lines(plan):
        st.markdown(f"- {escaped(controls.products(line))}")


def _adders(place: DeltaGenerator) -> None:
    """Draw what writes the file: start empty, add a run, add GPUs."""
    state = st.session_state
    if added := state.pop(_ADDED, ""):
        st.toast(f"{added} added to the file", icon=":material/check:")
    row = place.container(horizontal=True)
    with row.popover("Add a run", icon=":material/add:", key="fleet-runs", on_change="rerun"):
        name = st.text_input("Name", key="fleet-name", placeholder="mine")
        model = st.selectbox("Model", [*known_names(), *mixture_rows()], key="fleet-model", accept_new_options=True)
        refused = False
        try:
            find_any_model(model)
        except AdvisorError:
            refused = True
            st.error(controls.unknown_model(model, "Or type the path of its config.json."), icon=":material/error:")
        method = st.selectbox("Method", ["from scratch", "qlora", "lora", "full"], key="fleet-method")
        unit = "tokens" if method == "from scratch" else "examples"
        amount = st.text_input(f"Number of {unit}", {"tokens": "2B", "examples": "10k"}[unit], key=f"fleet-{unit}")
        deadline = st.text_input("Deadline", "3d", key="fleet-deadline", help="From now, or 2026-12-24T18:00.")
        goal = {"model": model, unit: amount} | ({} if unit == "tokens" else {"finetune": method})
        try:
            goal_from(read_options({"gpu": "any"} | goal))
            units.parse_deadline(deadline or "1d", datetime.now())
        except AdvisorError as error:
            if not refused:  # the model's own error stands below its field
                st.error(_in_form(error, unit), icon=":material/error:")
            refused = True
        run = {"name": name or "mine", "goal": goal} | ({"deadline": deadline} if deadline else {})
        st.button("Add", key="fleet-add-run", disabled=refused, on_click=_write, args=("runs", f"- {json.dumps(run)}"))
    with row.popover("Add GPUs", icon=":material/memory:", key="fleet-pools", on_change="rerun"):
        names = controls.device_names()
        gpu = st.selectbox("GPU", plan_form.devices()[1:], key="fleet-gpu", format_func=names.__getitem__)
        kind = st.selectbox("Kind", [PoolKind.OWNED, PoolKind.ON_DEMAND, PoolKind.SPOT], key="fleet-kind")
        gpus = st.number_input("GPUs", 1, None, 8, key="fleet-gpus", help="That you own, or may rent at once.")
        line = {"kind": kind.value, "gpu": gpu, "gpus": gpus} | ({"usd_per_gpu_hour": 0} if kind == "owned" else {})
        st.button("Add", key="fleet-add-gpus", on_click=_write, args=("pools", f"{gpu}-{kind}: {json.dumps(line)}"))
    with row.popover("Budget", icon=":material/payments:", key="fleet-limit", on_change="rerun"):
        budget = st.number_input("Dollars for all runs", 1, None, 1000, key="fleet-budget")
        st.button("Set", key="fleet-set-budget", on_click=_write, args=("budget", f"{budget}"))
    row.button("Start empty", icon=":material/delete:", on_click=lambda: state.update({TEXT: _NO_RUNS}))


def _in_form(error: AdvisorError, unit: str) -> str:
    """Return why a run is refused and what to do, in the labels of its form."""
    hint = (error.hint or "").removesuffix(f", or leave --{unit} out")
    if "--finetune qlora" in hint:
        hint = "it can be fine-tuned: choose qlora under --finetune"
    labels = {"--model": "Model", "--finetune": "Method", f"--{unit}": f"Number of {unit}"}
    return controls.error_words(AdvisorError(error.message, hint), labels)


def _write(key: str, line: str) -> None:
    """Write a line under a key of the file, or the file's budget, and close the form that it came from."""
    st.session_state.update(dict.fromkeys(("fleet-runs", "fleet-pools", "fleet-limit"), False))
    st.session_state[_ADDED] = {"runs": "Run", "pools": "GPUs", "budget": "Budget"}[key]
    text = st.session_state[TEXT].rstrip("\n")
    if key == "budget":
        text = re.sub(r"(?m)^budget:.*\n?", "", text)
        st.session_state[TEXT] = f"budget: {line}\n{text}\n"
        return
    text = text if re.search(rf"(?m)^{key}:", text) else f"{text}\n{key}:"
    st.session_state[TEXT] = re.sub(rf"(?m)^({key}:.*)$", lambda head: f"{head[1]}\n  {line}", text) + "\n"


@st.cache_resource(max_entries=8, show_spinner="looking for what to buy and for a schedule")
def _planned(text: str, stamped_: tuple[int, ...]) -> FleetPlan:
    del stamped_  # only part of the cache key
    with tempfile.TemporaryDirectory(prefix="advisor-fleet-") as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            return plan_fleet(file, loaders.store())
        except AdvisorError as error:  # without the name of the temporary folder
            message = error.message.replace(f"{file}: ", "")
            raise AdvisorError(message, "the example shows each field", exit_code=error.exit_code) from None


def _answer(plan: FleetPlan) -> None:
    with st.container(border=True):
        st.markdown(f"**{escaped(words.sentence(plan))}**")
        document = json.dumps(stamped("fleet", to_plain(words.document(plan))), indent=2, ensure_ascii=False)
        download("JSON", document, f"{plan.fleet.name}.json", "application/json", "data_object", "The whole plan.")
    for name, why in plan.schedule.left_out.items():
        st.error(f"{escaped(name)} has no place: {escaped(why)}", icon=":material/block:")
    if plan.schedule.placements:
        st.altair_chart(charts.gantt(words.bars(plan), kinds=[kind.value for kind in PoolKind]), width="stretch")
        st.caption("A bar is a run in the middle of 500 drawn futures; 8 of 10 end on its line. Tick: deadline.")
