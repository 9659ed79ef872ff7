"""What pages show of the run of an adopted command: its numbers beside what was planned, its steps, its end."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.findings.chart_data import step_points
from advisor.findings.make_case import make_case
from advisor.history.follow import AdoptedFollower
from advisor.history.progress import Progress
from advisor.report import charts
from advisor.report.charts import Axis
from advisor.report.progress import closing_lines
from advisor.store.adopted import PLAN, AdoptedPlan, load_adopted_plan
from advisor.trainers.adopted import ADOPTED
from advisor.ui import loaders
from advisor.ui.tables import plain
from advisor.units import format_count, format_estimate, format_seconds, format_usd
from advisor.workflows.launch import resume, stop


def panel(folder: Path, now: float) -> bool:
    """How a run stands at this moment; gives whether it goes on."""
    progress, plan = AdoptedFollower(folder, loaders.store()).look(now), load_adopted_plan(folder / PLAN)
    _numbers(progress, plan)
    st.progress(min(1.0, progress.step / progress.steps) if progress.steps else 0.0)
    if not goes_on(progress.state):
        st.markdown("  \n".join(map(plain, closing_lines(progress, folder))))
    if goes_on(progress.state):
        if st.button("Stop it", icon=":material/stop_circle:", key=f"stop-{folder.name}",
                     help="Sends SIGTERM, on which the command may save; kills it if it does not end."):  # fmt: skip
            with st.spinner("stopping"):
                stop(loaders.store(), folder)
            st.rerun()
    elif progress.outcome != "completed" and st.button(
        "Resume it", icon=":material/resume:", key=f"resume-{folder.name}",
        help="The same command with its recipe's resume option, within the rest of its limits.",
    ):  # fmt: skip
        for warning in resume(loaders.store(), folder).warnings:
            st.warning(plain(warning), icon=":material/warning:")
        st.rerun()
    _steps(folder, plan)
    return goes_on(progress.state)


def _numbers(progress: Progress, plan: AdoptedPlan) -> None:
    """Each with what was planned of it."""
    columns = st.container(key="pair-adopted-numbers").columns(4 if progress.usd_so_far is not None else 3)
    left = (
        f"about {format_estimate(progress.eta_seconds, format_seconds)} left"
        if progress.eta_seconds is not None
        else None
    )
    columns[0].metric(
        "Progress", f"{format_count(progress.step)} of {format_count(progress.steps)} steps", left,
        delta_color="off", delta_arrow="off", help="Optimizer steps, by the probe or the command's own log.",
    )  # fmt: skip
    pace = progress.step_seconds
    columns[1].metric(
        "A step", format_seconds(pace) if pace is not None else "-",
        f"planned {format_estimate(plan.step_seconds, format_seconds)}", delta_arrow="off",
        delta_color="off" if pace is None else "green" if pace <= plan.step_seconds.high else "orange",
        help="Median of the newest steps.",
    )  # fmt: skip
    columns[2].metric(
        "Time", format_seconds(progress.elapsed_seconds),
        f"planned {format_estimate(plan.total_seconds, format_seconds)}", delta_color="off", delta_arrow="off",
        help="Of all attempts, starting and saving included.",
    )  # fmt: skip
    if progress.usd_so_far is not None:
        cost = f"planned {format_estimate(plan.cost_usd, format_usd)}" if plan.cost_usd is not None else None
        columns[3].metric("Dollars so far", format_usd(progress.usd_so_far), cost, delta_color="off", delta_arrow="off")


def _steps(folder: Path, plan: AdoptedPlan) -> None:
    """Seconds of its steps over what was promised of them."""
    try:
        points = step_points(make_case(ADOPTED.read_log(folder)))
    except (OSError, AdvisorError):
        points = []
    if len(points) < 2:
        st.caption("No two steps have ended yet.")
        return
    low, high = plan.step_seconds.low, plan.step_seconds.high
    st.altair_chart(
        charts.lines(
            [{"step": p.step, "value": p.value, "series": "seconds of a step"} for p in points],
            x=Axis(field="step", title="step"),
            y=Axis(field="value", title="seconds of a step"),
            colours={"seconds of a step": charts.ACTUAL},
            band=[{"step": p.step, "low": low, "high": high} for p in (points[0], points[-1])],
        ),
        width="stretch",
    )
    st.caption("Orange: this run. Blue band: what was planned of a step (80 % interval).")
