"""The charts of an analysis, for the HTML report and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import altair as alt

from advisor.findings.chart_data import Point, mfu_per_rate, parts_of_step, points, rate_points, telemetry_points
from advisor.report import charts
from advisor.report.charts import Axis
from advisor.units import format_bytes, format_seconds
from advisor.workflows.analysis import Analysis

_STEP = Axis(field="step", title="step")
_TELEMETRY = (
    ("power_watts", "power, W"),
    ("utilization", "share of time with a kernel"),
    ("memory_used_bytes", "memory in use"),
    ("temperature_celsius", "temperature, °C"),
    ("sm_clock_mhz", "SM clock, MHz"),
)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One chart with its heading."""

    title: str
    caption: str
    chart: alt.Chart | alt.LayerChart


def plots(analysis: Analysis) -> Iterator[Plot]:
    """Every chart that the log has data for."""
    training, validation = points(analysis.case, "loss"), points(analysis.case, "eval_loss")
    axes = (("step", "step"), ("tokens", "tokens seen"), ("hours", "time"))
    for axis, title in axes:
        rows = _rows(training, axis, "training loss") + _rows(validation, axis, "validation loss")
        if len(rows) < 2:
            continue
        both = {"training loss": charts.ACTUAL, "validation loss": charts.GOOD}
        colours = {name: colour for name, colour in both.items() if any(row["series"] == name for row in rows)}
        marks = (
            [
                {"step": evidence.first_step, "words": f"{finding.severity.value}: {finding.title}"}
                for finding in analysis.findings
                for evidence in finding.evidence
                if evidence.first_step is not None
            ]
            if axis == "step"
            else []
        )
        across = Axis(field=axis, title=title)
        if axis == "hours":
            across, [rows] = charts.timed(rows)
        chart = charts.lines(rows, x=across, y=_value("loss as printed"), colours=colours, marks=marks)
        caption = "Dashed lines: findings. Hover for their names." if marks else ""
        yield Plot(title=f"Loss against {title}", caption=caption, chart=chart)
    yield from beside_the_loss(analysis)


def beside_the_loss(analysis: Analysis) -> Iterator[Plot]:
    """Every chart but those of the loss."""
    yield from _speed(analysis)
    positive = [point for point in points(analysis.case, "grad_norm") if point.value > 0]
    rows = _rows(positive, "step", "gradient norm")
    if len(rows) > 1:
        chart = charts.lines(
            rows, x=_STEP, y=_value("gradient norm"), colours={"gradient norm": charts.ACTUAL}, log_y=True
        )
        yield Plot(title="Gradient norm", caption="", chart=chart)
    yield from _parts(analysis)
    yield from _memory(analysis)
    for name, title in _TELEMETRY:
        readings = telemetry_points(analysis.run, name)
        if len(readings) < 2:
            continue
        cards = sorted({card for _, _, card in readings})
        rows = [{"hours": hours, "value": value, "series": f"GPU {card}"} for hours, value, card in readings]
        colours = {f"GPU {card}": charts.PARTS[place % len(charts.PARTS)] for place, card in enumerate(cards)}
        words = title
        if name.endswith("_bytes"):
            rows, unit = charts.in_unit(rows, "value", format_bytes)
            words = f"{title}, {unit}"
        across, [timed] = charts.timed(rows)
        chart = charts.lines(timed, x=across, y=_value(words), colours=colours)
        yield Plot(title=f"Telemetry: {title}", caption="", chart=chart)


def _rows(curve: list[Point], axis: str, series: str) -> list[dict[str, Any]]:
    placed = [(getattr(point, axis), point.value) for point in curve]
    return [{axis: place, "value": value, "series": series} for place, value in placed if place is not None]


def _value(title: str) -> Axis:
    """The axis of the curves' values."""
    return Axis(field="value", title=title)


def _speed(analysis: Analysis) -> Iterator[Plot]:
    rates = rate_points(analysis.case)
    if len(rates) < 2:
        yield from _step_times(analysis)
        return
    rows = [{"step": point.step, "value": point.value, "series": "tokens per second"} for point in rates]
    expected = analysis.case.expected.tokens_per_second if analysis.case.expected else None
    ends = (rates[0].step, rates[-1].step)
    band = [{"step": step, "low": expected.low, "high": expected.high} for step in ends] if expected else []
    chart = charts.lines(
        rows, x=_STEP, y=_value("tokens per second"), colours={"tokens per second": charts.ACTUAL},
        band=band,
    )  # fmt: skip
    per_rate = mfu_per_rate(analysis.case)
    caption = "Blue band: what this configuration gives on this GPU, 80 % interval. " if band else ""
    if per_rate is not None:
        caption += f"An MFU of 10 % is {0.1 / per_rate:,.0f} tokens per second here."
    yield Plot(title="Throughput", caption=caption, chart=chart)


def _step_times(analysis: Analysis) -> Iterator[Plot]:
    """Where tokens per step are not known."""
    rows = _rows(points(analysis.case, "seconds"), "step", "seconds per step")
    if len(rows) > 1:
        chart = charts.lines(
            rows,
            x=_STEP,
            y=_value("seconds per step"),
            colours={"seconds per step": charts.ACTUAL},
            log_y=True,
        )
        yield Plot(title="Step time", caption="Tokens per step are not known (--config states them).", chart=chart)


def _parts(analysis: Analysis) -> Iterator[Plot]:
    parts = parts_of_step(analysis.case)
    if parts:
        rows = [
            {"part": part.name, "value": part.seconds, "label": format_seconds(part.seconds), "order": place}
            for place, part in enumerate(parts)
        ]
        chart = charts.bill(rows, unit="seconds of a step (medians)", parts=[part.name for part in parts])
        yield Plot(title="Where a step's time goes", caption="", chart=chart)


def _memory(analysis: Analysis) -> Iterator[Plot]:
    rows = _rows(points(analysis.case, "memory_bytes"), "step", "in use")
    rows += _rows(points(analysis.case, "reserved_bytes"), "step", "reserved")
    if len(rows) > 1:
        colours = {"in use": charts.ACTUAL, "reserved": charts.PREDICTED}
        rows, unit = charts.in_unit(rows, "value", format_bytes)
        chart = charts.lines(rows, x=_STEP, y=_value(unit), colours=colours)
        yield Plot(title="Device memory as logged", caption="", chart=chart)
