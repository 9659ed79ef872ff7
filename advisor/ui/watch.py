"""Page Launch and watch: review a plan, start it with limits, follow it live. The run never depends on the page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor.errors import AdvisorError
from advisor.launch.claim import running_with
from advisor.launch.guards import parse_loss_stop
from advisor.launch.state import RunState, goes_on
from advisor.records import Estimate, Plan
from advisor.report.progress import closing_lines, line
from advisor.runs.follow import RunFollower, summarize
from advisor.runs.progress import Progress
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import read_run_plan
from advisor.ui import live, loaders
from advisor.ui.controls import LAUNCH, in_controls
from advisor.ui.tables import plain
from advisor.units import (
    Formatter,
    format_count,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_usd,
)
from advisor.workflows.launch import HERE, Limits, beforehand, launch, resume, stop
from trainer.schema import dump_config

LOOK_SECONDS = 2.0
PLAN_KEY = "plan-to-launch"  # session state: path of the plan that the Plan page handed over


def page() -> None:
    """Launch above, what runs below."""
    st.header("Launch and watch", anchor=False)
    plan = _chosen_plan()
    if plan is not None:
        _launch_form(plan)
    _watch()


def _chosen_plan() -> Plan | None:
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


def _launch_form(plan: Plan) -> None:
    from advisor.report.plan import sentence

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
    with st.form("launch", border=True):
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
        st.caption("Where: this machine. On a rented one: copy plan.yaml there and type `advisor launch plan.yaml`.")
        if st.form_submit_button("Launch", type="primary", icon=":material/play_arrow:"):
            loss = [parse_loss_stop(too_high)] if too_high else []
            limits = Limits(max_usd=usd or None, max_hours=hours or None, loss=loss)
            before = beforehand(loaders.store(), plan, HERE, limits)
            handle = launch(loaders.store(), plan, limits=limits)
            for warning in (*before, *handle.warnings):
                st.warning(in_controls(warning, LAUNCH, plain), icon=":material/warning:")
            st.session_state["watched"] = str(handle.run_dir)
            st.rerun()


def _watch() -> None:
    store = loaders.store()
    rows = store.runs()
    if not rows:
        return
    st.subheader("Watch", anchor=False)
    summaries = {row.path: summarize(row, store) for row in rows}
    paths = list(summaries)
    running = [path for path in paths if goes_on(summaries[path].state)]
    wanted = st.session_state.get("watched") or (running[0] if running else paths[0])
    path = st.selectbox(
        "Run",
        paths,
        index=paths.index(wanted) if wanted in paths else 0,
        format_func=lambda p: f"{Path(p).name}  ·  {(summaries[p].outcome or summaries[p].state).replace('_', ' ')}",
        help="Runs go on when this page is closed; reopen it and they are here.",
    )
    st.session_state["watched"] = path
    is_running = goes_on(summaries[path].state)
    st.fragment(_look, run_every=LOOK_SECONDS if is_running else None)(Path(path), is_running)
    st.fragment(_judge, run_every=live.JUDGE_SECONDS if is_running else None)(Path(path), is_running)


def _look(folder: Path, was_running: bool) -> None:
    """One look at a run folder; drawn again every two seconds while it runs."""
    try:
        progress = _follower(folder).look()
    except AdvisorError as error:
        st.error(plain(f"{error.message}. {error.hint or ''}"), icon=":material/error:")
        return
    plan = read_run_plan(folder)
    _numbers(progress, plan)
    if progress.steps:
        st.progress(min(1.0, progress.step / progress.steps))
    if not goes_on(progress.state):
        st.markdown("  \n".join(plain(line) for line in closing_lines(progress, folder)))
    elif progress.state != RunState.RUNNING:
        st.info(plain(line(progress)), icon=":material/hourglass_empty:")
    elif progress.message:
        st.warning(plain(progress.message), icon=":material/warning:")
    _buttons(progress, folder)
    live.curves(folder, plan)
    live.devices(folder)
    if was_running and not goes_on(progress.state):
        st.rerun()  # the whole page: the list of runs has changed


def _follower(folder: Path) -> RunFollower:
    """This session's follower of the run: each look reads only what the log has grown by."""
    key = f"follower-{folder}"
    if key not in st.session_state:
        st.session_state[key] = RunFollower(folder, loaders.store())
    return st.session_state[key]


def _judge(folder: Path, is_running: bool) -> None:
    """The findings so far, in a part of the page that is drawn anew at its own, slower pace."""
    st.subheader("Findings", anchor=False)
    live.findings(folder, not is_running)


def _numbers(progress: Progress, plan: Plan | None) -> None:
    """Four numbers, each with its prediction beside it."""
    promised = plan.prediction if plan else None
    columns = st.container(key="pair-numbers").columns(4)
    _number(
        columns[0],
        "Progress",
        f"{format_count(progress.step)} of {format_count(progress.steps)} steps",
        f"{format_estimate(progress.eta_seconds, format_seconds)} left" if progress.eta_seconds else None,
        "Optimizer steps done; the time left with its 80 % interval.",
    )
    validation = f"; validation {format_number(progress.eval_loss)}" if progress.eval_loss is not None else ""
    _number(
        columns[1],
        "Training loss" + validation,
        format_number(progress.smoothed_loss),
        _planned(promised.loss, format_number) if promised else None,
        "Nats per token, smoothed over about ten steps.",
    )
    mfu = f"; MFU {format_percent(progress.mfu)}" if progress.mfu is not None else ""
    _number(
        columns[2],
        "Throughput" + mfu,
        format_rate(progress.tokens_per_second),
        _planned(promised.tokens_per_second, format_rate) if promised else None,
        "MFU: model FLOPs utilisation, the share of the device's peak that trains the model.",
    )
    at_end = f"; {format_estimate(progress.usd_at_end, format_usd)} at the end" if progress.usd_at_end else ""
    _number(
        columns[3],
        "Dollars so far" + at_end,
        format_usd(progress.usd_so_far),
        _planned(promised.cost_usd, format_usd) if promised else None,
        "Rent of all devices since the process started.",
    )


def _number(column: DeltaGenerator, label: str, value: str, beside: str | None, help: str) -> None:
    """One number with words beside it, neither good nor bad in itself."""
    column.metric(label, value, beside, delta_color="off", delta_arrow="off", help=help)


def _planned(estimate: Estimate | None, formatter: Formatter) -> str | None:
    return f"planned {format_estimate(estimate, formatter)}" if estimate else None


def _buttons(progress: Progress, folder: Path) -> None:
    if goes_on(progress.state):
        if st.button("Stop with a checkpoint", icon=":material/stop_circle:", key=f"stop-{folder.name}"):
            with st.spinner("stopping: the step in progress ends, then a checkpoint is written"):
                stop(loaders.store(), folder)
            st.rerun()
    elif progress.outcome != "completed" and st.button(
        "Resume from the last checkpoint", icon=":material/resume:", key=f"resume-{folder.name}"
    ):
        resume(loaders.store(), folder)
        st.session_state["watched"] = str(folder)
        st.rerun()
