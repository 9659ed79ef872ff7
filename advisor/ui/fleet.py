"""Page Fleet: many runs over few GPUs, from a fleet file: what to buy, what starts when, each deadline's chance."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import streamlit as st

from advisor.documents import stamped
from advisor.errors import AdvisorError
from advisor.fleets.records import PoolKind
from advisor.report import charts
from advisor.report import fleet as words
from advisor.report.render import to_plain
from advisor.store.folders import examples_folder
from advisor.ui import controls, loaders
from advisor.ui.controls import download, escaped, show, side_by_side
from advisor.workflows.fleet import FleetPlan, plan_fleet

TEXT = "fleet-text"  # session state: the file that is planned
_HEIGHT = 420


def page() -> None:
    """Draw the file, and the plan of its runs."""
    st.title("Fleet", anchor=False)
    st.session_state.setdefault(TEXT, (examples_folder() / "fleet.yaml").read_text(encoding="utf-8"))
    left, right = side_by_side("fleet", (2, 3))
    text = left.text_area(
        "The runs and the GPUs that there are, as a fleet file", key=TEXT, height=_HEIGHT,
        help="Runs with deadlines, and pools of GPUs: owned, reserved, on demand, spot. All fields: docs/fleet.md.",
    )  # fmt: skip
    asked = left.button("Plan these runs", type="primary", icon=":material/calendar_month:", key="fleet-plan")
    known = st.session_state.get("fleet-planned")
    if asked:
        known = st.session_state["fleet-planned"] = text
    if known is None:
        right.info("This example can be planned as it is. Put in your own runs, GPUs, deadlines and budgets.",
                   icon=":material/lightbulb:")  # fmt: skip
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
        st.caption("A bar is the planned time, its line the ends of 8 of 10 drawn futures, the tick its deadline.")
