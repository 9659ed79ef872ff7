"""The upper half of page Launch and watch: a plan reviewed, started here or elsewhere, or taken away as files."""

from __future__ import annotations

import datetime
import io
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import streamlit as st

from advisor.engines.claim import running_with
from advisor.engines.engines import parse_place
from advisor.engines.export.targets import TARGETS
from advisor.engines.guards import NO_DATA, parse_loss_stop
from advisor.hardware.offers import offers_by_provider
from advisor.records import Plan
from advisor.report.cards import OFFER_NUMBERS, offer_rows
from advisor.report.plan import sentence
from advisor.store.plan_files import dump_plan, load_plan
from advisor.ui import loaders
from advisor.ui.controls import LAUNCH, in_controls
from advisor.ui.tables import plain, table
from advisor.workflows.export import Exported, export
from advisor.workflows.launch import HERE, Limits, beforehand, launch, with_synthetic
from advisor.workflows.preflight import Finding, preflight
from trainer.schema import dump_config

PLAN_KEY = "plan-to-launch"  # session state: path of the plan that the Plan page handed over
WATCHED = "watched"  # session state: the run folder that is looked at
FILES = "as files"
# how a place is called here: the engine's name, what it asks for, and what that is
PLACES = {
    "this machine": ("local", None, ""),
    "ssh": ("ssh", "Host", "As ssh knows it: gpu-box, or me@203.0.113.7. Needs Python there, and rsync on both sides."),
    "Slurm": ("slurm", "Partition", "Empty: the cluster's default. This machine must have sbatch."),
    "SkyPilot": ("skypilot", "Clouds", "As aws/us-east-1,gcp. Empty: wherever it is cheapest. Needs SkyPilot set up."),
    FILES: (None, None, ""),
}


def chosen_plan() -> Plan | None:
    """The plan to launch: the one that page Plan handed over, or one that is picked."""
    store = loaders.store()
    saved = sorted((store.home / "plans").glob("*.yaml"), key=lambda path: path.stat().st_mtime, reverse=True)
    handed = st.session_state.get(PLAN_KEY)
    if not saved:
        st.info("No plan yet: make one on the page Plan, then choose Launch there.", icon=":material/lightbulb:")
        return None
    names = [path.name for path in saved]
    start = names.index(Path(handed).name) if handed and Path(handed).name in names else None
    name = st.selectbox(
        "Plan to launch", names, index=start, placeholder="choose a plan", help="Plans saved on the page Plan."
    )
    return load_plan(saved[names.index(name)]) if name else None


def form(plan: Plan) -> None:
    """Review it, say where it runs and when it must stop, and start it."""
    st.markdown(f"**{plain(sentence(plan))}**")
    for warning in plan.warnings:
        st.warning(in_controls(warning, LAUNCH, plain), icon=":material/warning:")
    with st.expander("The full configuration"):
        left, right = st.columns(2)
        left.caption("run.yaml: what the trainer is given")
        left.code(dump_config(plan.run), language="yaml", height=380)
        right.caption("plan.yaml: the promise and what it rests on")
        right.code(dump_plan(plan), language="yaml", height=380)
    running = running_with(loaders.store(), plan.id)
    if running is not None:
        st.info(f"This plan is running already: `{running.name}`. It is shown below.", icon=":material/play_circle:")
        return
    if plan.run.data.path is None and not plan.run.data.synthetic:
        st.info(f"{NO_DATA[0].upper()}{NO_DATA[1:]}. Prepare your text on the page Data, and plan with it.")
        if not st.checkbox(LAUNCH["--synthetic"], help="A speed test, paid for like any run; its loss means nothing."):
            return
        plan = with_synthetic(plan, True)
    # Only missing GPUs keep this machine from running the plan at all.
    checks = preflight(loaders.store(), plan, HERE)
    lacking = "; ".join(check.words for check in checks if check.of == "card" and check.finding is Finding.MISSING)
    if lacking:
        # Say that it cannot run here, and who rents the GPU.
        workload, today = plan.workload, datetime.date.today()
        st.info(f"It cannot run on this machine: {plain(lacking)}. Run it elsewhere:", icon=":material/dns:")
        if rows := offer_rows(offers_by_provider(workload.gpu, workload.gpus), today):
            with st.expander(f"Who rents {workload.gpus} x {workload.gpu}, and how old the prices are"):
                table(rows, right=OFFER_NUMBERS)
    offered = [name for name in PLACES if not (lacking and name == "this machine")]
    where = st.segmented_control(
        "Where", offered, default=FILES if lacking else "this machine", required=True, key="launch-where",
        help="A machine of yours by ssh, a cluster's queue, a rented one, or files that run without this program.",
    )  # fmt: skip
    if where == FILES:
        # Offer the job for another engine.
        holds = "Everything the run needs but its data: unpack it there."
        offer_files(list(TARGETS), partial(export, plan), plan.id, key="launch-export", holds=holds)
        st.caption("The run's folder, brought back, is scored against the plan by `advisor import FOLDER`.")
    else:
        _start(plan, where)


def _start(plan: Plan, where: str) -> None:
    engine, asked, explained = PLACES[where]
    with st.form("launch", border=True):
        name = st.text_input(asked, key=f"launch-at-{engine}", help=explained) if asked else ""
        columns = st.columns(3)
        usd = columns[0].number_input(
            "Stop before more than ($)", min_value=0.0, value=None, help="Stops with a checkpoint. Needs a price."
        )
        hours = columns[1].number_input(
            "Stop after (hours)", min_value=0.0, value=None, help="Stops with a checkpoint; it can be resumed later."
        )
        too_high = columns[2].text_input(
            "Stop if the loss is too high (step:loss)", placeholder="500:4.2", help="Checked from that step on."
        )
        if not st.form_submit_button("Launch", type="primary", icon=":material/play_arrow:"):
            return
    place = parse_place(f"{engine}:{name.strip()}" if name.strip() else str(engine)) if asked else HERE
    loss = [parse_loss_stop(too_high)] if too_high else []
    limits = Limits(max_usd=usd or None, max_hours=hours or None, loss=loss)
    store = loaders.store()
    with st.spinner("looking at what it needs, then starting it"):
        before = beforehand(store, plan, place, limits)
        handle = launch(store, plan, limits=limits, place=place)
    for warning in (*before, *handle.warnings):
        st.warning(in_controls(warning, LAUNCH, plain), icon=":material/warning:")
    st.session_state[WATCHED] = str(handle.run_dir)
    st.rerun()


def offer_files(
    targets: Sequence[str], made_for: Callable[[str], Exported], name: str, *, key: str, holds: str,
    said: Callable[[str], str] = plain,
) -> None:  # fmt: skip
    """The job for an engine as a zip, and what to type where it is unpacked."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        to = st.selectbox("For", targets, key=key, help="A plain script, a cluster's job, or a cloud's task.")
        made = made_for(to)
        st.download_button(
            "Download", zipped(made), f"{name}-{to}.zip", "application/zip", icon=":material/folder_zip:",
            help=holds, on_click="ignore", type="primary",
        )  # fmt: skip
    for warning in made.warnings:
        st.caption(f":material/warning: {said(warning)}")
    st.code("\n".join(made.steps), language="bash", wrap_lines=True)


def zipped(made: Exported) -> bytes:
    """The files of an export as one archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in made.files.items():
            archive.writestr(name, text)
    return out.getvalue()
