"""Curves, devices and findings of a run on the watch page. Reads only the run folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import streamlit as st

from advisor import units
from advisor.errors import AdvisorError
from advisor.findings.chart_data import ChartPoint, points, rate_points, step_points
from advisor.findings.make_case import make_case
from advisor.history.devices import read_devices
from advisor.prediction.trajectory import plan_trajectory
from advisor.records import Estimate, Plan
from advisor.redact import hide_secrets
from advisor.report import charts
from advisor.report.charts import ChartAxis
from advisor.store.run_folder import STDOUT
from advisor.trainers.known import trainer_of_run
from advisor.ui import loaders
from advisor.ui.analyze import dearest_first, finding_card, nothing_found
from advisor.ui.controls import escaped, side_by_side
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze

JUDGE_SECONDS = 15.0  # analysing a long log takes a second, which is too long for every look
SMALL_LOG_BYTES = 2**20  # a larger log is drawn again only when it has grown by this much
FINDINGS_SHOWN = 3
FEWEST_POINTS = 5  # of a curve; before, its axes are steps of a tenth
TAIL_LINES, TAIL_BYTES = 40, 16 * 2**10
GAUGES: dict[str, Callable[[float], str]] = {
    "watts": units.format_watts,
    "share": units.format_percent,
    "bytes": units.format_bytes,
    "celsius": lambda value: f"{value:.0f} °C",
    "mhz": lambda value: f"{value:,.0f} MHz",
}


def curves(folder: Path, plan: Plan | None, *, running: bool) -> None:
    """Draw the loss with the expected loss, and the throughput with the predicted throughput."""
    try:
        loss, evals, speed = _drawn(str(folder), _grown(folder))
    except (OSError, AdvisorError):
        st.caption("No log yet: the trainer is starting.")
        return
    if not loss or (running and len(loss) < FEWEST_POINTS):
        ended = f"{len(loss)} of the first {FEWEST_POINTS} points" if loss else "no step"
        st.caption(f"Curves begin after {FEWEST_POINTS} points: {ended} so far.")
        return
    expected = _expected(plan) if plan is not None else None
    left, right = side_by_side("watch-curves", (1, 1))
    series = [{"step": p.step, "value": p.value, "series": "training loss"} for p in loss]
    series += [{"step": p.step, "value": p.value, "series": "validation loss"} for p in evals]
    ends = (expected.step.tolist(), expected.low.tolist(), expected.high.tolist()) if expected is not None else ()
    chart = charts.lines(
        series, x=ChartAxis(field="step", title="step"), title="loss, nats per token",
        colours={"training loss": charts.ACTUAL, "validation loss": charts.GOOD},
        band=[{"step": step, "low": low, "high": high} for step, low, high in zip(*ends, strict=True)],
    )  # fmt: skip
    left.altair_chart(chart, width="stretch")
    promised = plan.chosen.tokens_per_second if plan is not None else None
    right.altair_chart(charts.against_prediction(speed, promised, "tokens per second"), width="stretch")
    band = "Blue band: what the plan promised (80 % interval)."
    if expected is None:
        band = (
            "Blue band: the throughput that the plan promised (80 % interval). The loss has no band: the published "
            "loss laws do not cover runs this small."
        )
    st.caption(f"Orange: this run. {band} {units.format_tokens(loss[-1].tokens)} tokens seen.")


def _grown(folder: Path) -> int:
    """Return a number that changes with the log's size, in steps of a mebibyte once the log is long."""
    size = (folder / trainer_of_run(folder).log_name).stat().st_size
    return size if size < SMALL_LOG_BYTES else -(size // SMALL_LOG_BYTES)


@st.cache_data(max_entries=16, show_spinner=False)
def _drawn(folder: str, grown: int) -> tuple[list[ChartPoint], list[ChartPoint], list[ChartPoint]]:
    """Return training loss, validation loss and tokens per second of a run, up to the end of its log."""
    del grown  # only part of the cache key
    case = make_case(trainer_of_run(Path(folder)).read_log(Path(folder)))
    return points(case, "loss"), points(case, "eval_loss"), rate_points(case)


_expected = st.cache_resource(max_entries=16, show_spinner=False)(plan_trajectory)


def steps(folder: Path, planned: Estimate | None) -> None:
    """Draw the seconds of each step of an adopted command, with the planned seconds of a step."""
    try:
        points = step_points(make_case(trainer_of_run(folder).read_log(folder)))
    except (OSError, AdvisorError):
        points = []
    if len(points) < 2:
        st.caption("Fewer than two steps have finished.")
        return
    st.altair_chart(charts.against_prediction(points, planned, "seconds of a step"), width="stretch")
    st.caption("Orange: this run. Blue band: the planned step time (80 % interval).")


def devices(folder: Path) -> None:
    """Draw power, memory, temperature, clocks and throttling of each GPU."""
    try:
        devices_now = read_devices(folder)
    except AdvisorError as error:
        st.caption(f"Telemetry cannot be read: {escaped(error.message)}")
        return
    if not devices_now:
        st.caption("No readings of the machine yet. They come once a minute, unless telemetry is off.")
        return
    for device in devices_now:
        name = "Host" if device.gpu is None else f"GPU {device.gpu}"
        with st.container(key=f"pair-strip-{name.replace(' ', '-')}"):
            for column, gauge in zip(st.columns(max(1, len(device.gauges))), device.gauges, strict=False):
                with column.container(border=True):
                    st.metric(f"{name}: {gauge.name}", GAUGES[gauge.unit](gauge.now))
                    if len(gauge.over_run) > 1:
                        words = f"{name}: {gauge.name}, {GAUGES[gauge.unit](min(gauge.over_run))} to "
                        words += f"{GAUGES[gauge.unit](max(gauge.over_run))} over the run"
                        st.altair_chart(charts.sparkline(gauge.over_run, words), width="stretch")
        if device.silent_seconds is not None:
            silent = units.format_seconds(device.silent_seconds)
            st.error(f"{name} has not answered for {silent}.", icon=":material/error:")
        if device.throttled:
            st.warning(f"{name} was throttled: {', '.join(device.throttled)}.", icon=":material/thermostat:")
    newest = max(device.unix_seconds for device in devices_now)
    at = datetime.fromtimestamp(newest, UTC)
    st.caption(f"Values at {at:%H:%M} UTC; curves: the whole run.")


def findings(folder: Path, over: bool) -> None:
    """Draw what the analyzer says about the run so far, largest savings first."""
    log = folder / trainer_of_run(folder).log_name
    analysis = _judged(str(folder), _grown(folder) if over and log.exists() else None)
    if analysis is None:
        st.caption("This run cannot be judged yet.")
        return
    outlook = analysis.forecast.loss
    if outlook.final_loss is not None and not over:
        final = units.format_estimate(outlook.final_loss, units.format_number)
        st.markdown(f"Training loss at the end, estimated so far: {final}")
    if not analysis.findings and not over and not analysis.forecast.steps_done:
        st.info("Too early to judge: no step has ended yet.", icon=":material/hourglass_empty:")
    elif not analysis.findings:
        so_far = f"Nothing wrong so far (looked at every {units.format_seconds(JUDGE_SECONDS)})"
        nothing_found(analysis, "Nothing wrong was found" if over else so_far)
    ordered = dearest_first(analysis.findings)
    for finding in ordered[:FINDINGS_SHOWN]:
        finding_card(finding)
    if more := ordered[FINDINGS_SHOWN:]:
        with st.expander(f"{len(more)} more"):
            for finding in more:
                finding_card(finding)


@st.cache_resource(max_entries=16, ttl=JUDGE_SECONDS, show_spinner=False)
def _judged(folder: str, ended: int | None) -> Analysis | None:
    """Return the analysis of the run, at most every 15 seconds. Returns None if nothing can be said yet."""
    del ended  # part of the cache key, so that a run is judged once more when it is over
    try:
        return analyze(Path(folder), Given(), loaders.store())
    except AdvisorError:
        return None


def printed_last(folder: Path) -> None:
    """Show the newest lines that the run printed, with its attempts in order."""
    path = folder / STDOUT
    if not path.is_file():
        return
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = text.splitlines()[1 if size > TAIL_BYTES else 0 :][-TAIL_LINES:]
    if lines:
        with st.expander("Last output", icon=":material/terminal:"):
            st.code(hide_secrets("\n".join(lines)), language=None, wrap_lines=True)
