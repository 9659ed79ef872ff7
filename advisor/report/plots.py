"""The charts of an analysis, for the HTML report and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import altair as alt

from advisor.findings.chart_data import Point, mfu_per_rate, parts_of_step, points, rate_points, telemetry_points
from advisor.report import charts
from advisor.units import format_seconds
from advisor.workflows.analysis import Analysis

_TELEMETRY = (
    ("power_watts", "power, W"),
    ("utilization", "share of time with a kernel"),
    ("memory_used_bytes", "memory in use, bytes"),
    ("temperature_celsius", "temperature, °C"),
    ("sm_clock_mhz", "SM clock, MHz"),
)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One chart with its heading."""

    title: str
    caption: str
    chart: alt.TopLevelMixin


def plots(analysis: Analysis) -> Iterator[Plot]:
    """Every chart that the log has data for."""
    yield from _losses(analysis)
    yield from _speed(analysis)
    yield from _gradients(analysis)
    yield from _parts(analysis)
    yield from _memory(analysis)
    yield from _telemetry(analysis)


def _losses(analysis: Analysis) -> Iterator[Plot]:
    training, validation = points(analysis.case, "loss"), points(analysis.case, "eval_loss")
    axes = (("step", "step"), ("tokens", "tokens seen"), ("hours", "hours"))
    for axis, title in axes:
        rows = _rows(training, axis, "training loss") + _rows(validation, axis, "validation loss")
        if len(rows) < 2:
            continue
        colours = {"training loss": charts.ACTUAL, "validation loss": charts.GOOD}
        marks = _marks(analysis) if axis == "step" else []
        chart = charts.lines(rows, x=(axis, title), y=("value", "loss as printed"), colours=colours, marks=marks)
        caption = "Dashed lines: findings. Hover for their names." if marks else ""
        yield Plot(title=f"Loss against {title}", caption=caption, chart=chart)


def _rows(found: list[Point], axis: str, series: str) -> list[dict[str, object]]:
    placed = [(getattr(point, axis), point.value) for point in found]
    return [{axis: place, "value": value, "series": series} for place, value in placed if place is not None]


def _marks(analysis: Analysis) -> list[dict[str, object]]:
    """Where on the step axis findings were seen."""
    return [
        {"step": evidence.first_step, "words": f"{finding.severity.value}: {finding.title}"}
        for finding in analysis.findings
        for evidence in finding.evidence
        if evidence.first_step is not None
    ]


def _speed(analysis: Analysis) -> Iterator[Plot]:
    found = rate_points(analysis.case)
    if len(found) < 2:
        yield from _step_times(analysis)
        return
    rows = [{"step": point.step, "value": point.value, "series": "tokens per second"} for point in found]
    expected = analysis.case.expected.tokens_per_second if analysis.case.expected else None
    ends = (found[0].step, found[-1].step)
    band = [{"step": step, "low": expected.low, "high": expected.high} for step in ends] if expected else []
    chart = charts.lines(
        rows, x=("step", "step"), y=("value", "tokens per second"), colours={"tokens per second": charts.ACTUAL},
        band=band,
    )  # fmt: skip
    per_rate = mfu_per_rate(analysis.case)
    caption = "Blue band: what this configuration gives on this card, 80 % interval. " if band else ""
    if per_rate is not None:
        caption += f"An MFU of 10 % is {0.1 / per_rate:,.0f} tokens per second here."
    yield Plot(title="Throughput", caption=caption, chart=chart)


def _step_times(analysis: Analysis) -> Iterator[Plot]:
    """Where tokens per step are not known."""
    rows = _rows(points(analysis.case, "seconds"), "step", "seconds per step")
    if len(rows) > 1:
        chart = charts.lines(
            rows,
            x=("step", "step"),
            y=("value", "seconds per step"),
            colours={"seconds per step": charts.ACTUAL},
            log_y=True,
        )
        yield Plot(title="Step time", caption="Tokens per step are not known (--config tells them).", chart=chart)


def _gradients(analysis: Analysis) -> Iterator[Plot]:
    rows = _rows(points(analysis.case, "grad_norm"), "step", "gradient norm")
    rows = [row for row in rows if row["value"] > 0]
    if len(rows) > 1:
        chart = charts.lines(
            rows, x=("step", "step"), y=("value", "gradient norm"), colours={"gradient norm": charts.ACTUAL}, log_y=True
        )
        yield Plot(title="Gradient norm", caption="", chart=chart)


def _parts(analysis: Analysis) -> Iterator[Plot]:
    parts = parts_of_step(analysis.case)
    if parts:
        rows = [
            {"part": one.name, "value": one.seconds, "label": format_seconds(one.seconds), "order": place}
            for place, one in enumerate(parts)
        ]
        chart = charts.bill(rows, unit="seconds of a step (medians)", parts=[one.name for one in parts])
        yield Plot(title="Where a step's time goes", caption="", chart=chart)


def _memory(analysis: Analysis) -> Iterator[Plot]:
    rows = _rows(points(analysis.case, "memory_bytes"), "step", "in use")
    rows += _rows(points(analysis.case, "reserved_bytes"), "step", "reserved")
    if len(rows) > 1:
        colours = {"in use": charts.ACTUAL, "reserved": charts.PREDICTED}
        chart = charts.lines(rows, x=("step", "step"), y=("value", "bytes"), colours=colours)
        yield Plot(title="Device memory as logged", caption="", chart=chart)


def _telemetry(analysis: Analysis) -> Iterator[Plot]:
    for name, title in _TELEMETRY:
        found = telemetry_points(analysis.run, name)
        if len(found) < 2:
            continue
        cards = sorted({card for _, _, card in found})
        rows = [{"hours": hours, "value": value, "series": f"card {card}"} for hours, value, card in found]
        colours = {f"card {card}": charts.PARTS[place % len(charts.PARTS)] for place, card in enumerate(cards)}
        chart = charts.lines(rows, x=("hours", "hours"), y=("value", title), colours=colours)
        yield Plot(title=f"Telemetry: {title}", caption="", chart=chart)
