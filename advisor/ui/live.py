"""Curves, devices and findings of a run on the watch page. Reads only the run folder."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import streamlit as st

from advisor import units
from advisor.errors import AdvisorError
from advisor.findings.chart_data import ChartPoint, points, rate_points, step_points
from advisor.findings.make_case import make_case
from advisor.findings.registry import coverage
from advisor.history.devices import Gauge, read_devices
from advisor.prediction.trajectory import plan_trajectory
from advisor.records import Estimate, Plan
from advisor.redact import hide_secrets
from advisor.report import charts
from advisor.report.charts import ChartAxis
from advisor.store.run_folder import STDOUT
from advisor.trainers.known import trainer_of_run
from advisor.ui import loaders
from advisor.ui.analyze import dearest_first, finding_line
from advisor.ui.controls import escaped, side_by_side
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze

JUDGE_SECONDS = 15.0  # analysing a long log takes a second, which is too long for every look
SMALL_LOG_BYTES = 2**20  # a larger log is drawn again only when it has grown by this much
_SAID_ABOVE = ("steps_missing", "loss_noise")  # how far the run came, what the rest takes, and the loss so far
FEWEST_POINTS = 5  # of a curve; before, its axes are steps of a tenth
TAIL_LINES, TAIL_BYTES = 40, 16 * 2**10
# Streamlit draws each chart on its own, and a chart of two would not fit its width to the page. So what the mouse does
# in one chart is repeated at the same place in the other, which is equally large and has the same axis.
CROSSHAIR = """<script>
if (!window.sharedCrosshair) {
  window.sharedCrosshair = true;
  let repeating = false;
  const repeat = (event) => {
    const row = !repeating && event.target.closest?.(".st-key-stack-run-curves");
    if (!row) return;
    const charts = [...row.querySelectorAll(".marks")], here = charts.find((chart) => chart.contains(event.target));
    if (!here) return;
    repeating = true;
    for (const other of charts.filter((chart) => chart !== here)) {
      const from = here.getBoundingClientRect(), to = other.getBoundingClientRect();
      const at = {clientX: event.clientX - from.left + to.left, clientY: event.clientY - from.top + to.top};
      const under = document.elementFromPoint(at.clientX, at.clientY);
      if (other.contains(under)) under.dispatchEvent(new PointerEvent(event.type, {bubbles: true, ...at}));
    }
    repeating = false;
  };
  for (const kind of ["pointerover", "pointermove", "pointerout"]) document.addEventListener(kind, repeat, true);
}
</script>"""
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
    if not loss or (running and min(len(loss), len(speed)) < FEWEST_POINTS):
        ended = f"{len(loss)} of the first {FEWEST_POINTS} points" if loss else "no step"
        st.caption(f"Curves begin after {FEWEST_POINTS} points: {ended} so far.")
        return
    expected = _expected(plan) if plan is not None else None
    left, right = side_by_side("run-curves", (1, 1))
    shared = min(loss[0].step, *(p.step for p in speed[:1])), max(loss[-1].step, *(p.step for p in speed[-1:]))
    series = [{"step": p.step, "value": p.value, "series": "training loss"} for p in loss]
    series += [{"step": p.step, "value": p.value, "series": "validation loss"} for p in evals]
    ends = (expected.step.tolist(), expected.low.tolist(), expected.high.tolist()) if expected is not None else ()
    chart = charts.lines(
        series, x=ChartAxis(field="step", title="step"), title="loss, nats per token", shared=shared,
        colours={"training loss": charts.ACTUAL, "validation loss": charts.GOOD},
        band=[{"step": step, "low": low, "high": high} for step, low, high in zip(*ends, strict=True)],
    )  # fmt: skip
    left.altair_chart(chart, width="stretch")
    promised = plan.chosen.tokens_per_second if plan is not None else None
    chart = charts.against_prediction(speed, promised, "tokens per second", shared)
    right.altair_chart(chart, width="stretch")
    about = f"Orange: this run{'; green: its validation loss' if evals else ''}. The band is an 80 % interval."
    about += "" if expected else " The loss has none: the published loss laws do not cover runs this small."
    st.caption(f"Blue band: as planned.{' Green: validation.' if evals else ''}", help=about)


def crosshair() -> None:
    """Let the crosshair of one of two charts side by side appear in both."""
    st.html(CROSSHAIR, unsafe_allow_javascript=True)


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
    st.caption("Blue band: as planned.", help="Orange: this run. The band is an 80 % interval.")


def devices(folder: Path) -> None:
    """Draw power, memory, temperature, clocks and throttling of each GPU."""
    try:
        devices_now = read_devices(folder)
    except AdvisorError as error:
        st.caption(f"Telemetry cannot be read: {escaped(error.message)}")
        return
    with st.expander("Machine", icon=":material/memory:"):
        if not devices_now:
            st.caption("No readings yet. They come once a minute, unless telemetry is off.")
            return
        names = ["Host" if device.gpu is None else f"GPU {device.gpu}" for device in devices_now]
        rows = (
            f"<tr><th scope='row'>{name}</th>{''.join(map(_gauge, device.gauges))}</tr>"
            for name, device in zip(names, devices_now, strict=True)
        )
        st.html(f"<div style='overflow-x: auto'><table class='run-gauges'>{''.join(rows)}</table></div>")
        newest = datetime.fromtimestamp(max(device.unix_seconds for device in devices_now), UTC)
        st.caption(f"Values at {newest:%H:%M} UTC; curves: the whole run.")
    for name, device in zip(names, devices_now, strict=True):
        if device.silent_seconds is not None:
            silent = units.format_seconds(device.silent_seconds)
            st.error(f"{name} has not answered for {silent}.", icon=":material/error:")
        if device.throttled:
            st.warning(f"{name} was throttled: {', '.join(device.throttled)}.", icon=":material/thermostat:")


def _gauge(gauge: Gauge) -> str:
    """Return a cell in HTML: a quantity, its value, and its course over the run as a small line."""
    name, show, values = html.escape(gauge.name), GAUGES[gauge.unit], gauge.over_run
    line = ""
    if len(values) > 1:
        low, high = min(values), max(values)
        last, span = len(values) - 1, (high - low) or 1.0
        at = " ".join(f"{100 * i / last:.1f},{18 - 16 * (value - low) / span:.1f}" for i, value in enumerate(values))
        course = f"{name}: {show(low)} to {show(high)} over the run"
        drawn = f"<polyline points='{at}' fill='none' stroke='{charts.REJECTED}' stroke-width='1.5'/>"
        drawn = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 20'>{drawn}</svg>"
        line = f'<img alt="{course}" src="data:image/svg+xml,{quote(drawn)}">'  # Streamlit removes drawings themselves
    return f"<td>{name} <b>{show(gauge.now)}</b>{line}</td>"


def findings(folder: Path, over: bool) -> None:
    """Draw what the analyzer says about the run so far, largest savings first."""
    log = folder / trainer_of_run(folder).log_name
    analysis = _judged(str(folder), _grown(folder) if over and log.exists() else None)
    if analysis is None:
        st.caption("This run cannot be judged yet.")
        return
    if not over and analysis.run.attempts and analysis.run.attempts[-1].outcome is not None:
        st.info("The run continues: its findings come with its next steps.", icon=":material/hourglass_empty:")
        return
    outlook = analysis.forecast.loss
    if outlook.final_loss is not None and not over:
        final = units.format_estimate(outlook.final_loss, units.format_number)
        st.markdown(f"Training loss at the end: {final}")
    shown = [finding for finding in analysis.findings if finding.code not in _SAID_ABOVE]
    if not shown and not analysis.forecast.steps_done:
        st.info(f"Nothing found yet: the run is judged every {JUDGE_SECONDS:.0f} s.", icon=":material/hourglass_empty:")
    elif not shown:
        said = "Nothing wrong was found" if over else "Nothing wrong so far"
        looked = coverage(analysis.case, analysis.insufficient)
        possible = f"{looked.possible} of {looked.checks} checks possible"
        st.info(f"{said}: {possible}.", icon=":material/check_circle:")
    for finding in dearest_first(tuple(shown)):
        finding_line(finding)


@st.cache_resource(max_entries=16, ttl=JUDGE_SECONDS, show_spinner=False)
def _judged(folder: str, ended: int | None) -> Analysis | None:
    """Return the analysis of the run, at most every 15 seconds. Returns None if nothing can be said yet."""
    del ended  # part of the cache key, so that a run is judged once more when it is over
    try:
        return analyze(Path(folder), Given(), loaders.store())
    except AdvisorError:
        return None


def printed_last(folder: Path) -> None:
    """Show the newest lines that the run printed, with its attempts in order, and where its folder is."""
    path, lines = folder / STDOUT, list[str]()
    if path.is_file():
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        lines = text.splitlines()[1 if size > TAIL_BYTES else 0 :][-TAIL_LINES:]
    with st.expander("Output", icon=":material/terminal:"):
        if lines:
            st.code(hide_secrets("\n".join(lines)), language=None, wrap_lines=True)
        st.caption(escaped(folder))
