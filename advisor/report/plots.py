"""Draws the charts of an analysis for the HTML report and as pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import vl_convert

from advisor.errors import AdvisorError
from advisor.findings.chart_data import mfu_per_rate, parts_of_step, rate_points, telemetry_points
from advisor.report import charts
from advisor.report.charts import ChartAxis
from advisor.report.overlays import LOSS, Look, Plot, overlay, overlays
from advisor.units import format_bytes, format_seconds
from advisor.workflows.analysis import Analysis

_SCALE = 2.0  # scale of pictures, for print and high-resolution screens
_STEP = ChartAxis(field="step", title="step")
_TELEMETRY = (
    ("power_watts", "power, W"),
    ("utilization", "share of time with a kernel"),
    ("memory_used_bytes", "memory in use"),
    ("temperature_celsius", "temperature, °C"),
    ("sm_clock_mhz", "SM clock, MHz"),
)


def plots(analysis: Analysis) -> Iterator[Plot]:
    """Yields every chart that the log has data for."""
    for axis in ("step", "tokens", "hours"):
        yield from _curve(analysis, LOSS, Look(axis=axis, marks=axis == "step"))
    rated = list(_speed(analysis))
    yield from rated or _curve(analysis, "seconds")
    yield from _curve(analysis, "grad_norm")
    yield from _parts(analysis)
    for name in ("memory_bytes", "reserved_bytes"):
        yield from _curve(analysis, name)
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
        chart = charts.lines(timed, x=across, y=ChartAxis(field="value", title=words), colours=colours)
        yield Plot(title=f"Telemetry: {title}", caption="", chart=chart)


def _curve(analysis: Analysis, name: str, look: Look = Look()) -> Iterator[Plot]:  # noqa: B008 - frozen
    """Yields one scalar of the run if its log has it on this axis."""
    if (plot := overlay([analysis], name, look, validation=True)) is not None:
        yield plot


def _speed(analysis: Analysis) -> Iterator[Plot]:
    rates = rate_points(analysis.case)
    if len(rates) < 2:
        return
    rows = [{"step": point.step, "value": point.value, "series": "tokens per second"} for point in rates]
    expected = analysis.case.expected.tokens_per_second if analysis.case.expected else None
    ends = (rates[0].step, rates[-1].step)
    band = [{"step": step, "low": expected.low, "high": expected.high} for step in ends] if expected else []
    chart = charts.lines(
        rows, x=_STEP, y=ChartAxis(field="value", title="tokens per second"),
        colours={"tokens per second": charts.ACTUAL},
        band=band,
    )  # fmt: skip
    per_rate = mfu_per_rate(analysis.case)
    caption = "Blue band: what this configuration gives on this GPU, 80 % interval. " if band else ""
    if per_rate is not None:
        caption += f"An MFU of 10 % is {0.1 / per_rate:,.0f} tokens per second here."
    yield Plot(title="Throughput", caption=caption, chart=chart)


def _parts(analysis: Analysis) -> Iterator[Plot]:
    parts = parts_of_step(analysis.case)
    if parts:
        rows = [
            {
                "what": "a step",
                "part": part.name,
                "value": part.seconds,
                "label": format_seconds(part.seconds),
                "order": place,
            }
            for place, part in enumerate(parts)
        ]
        chart = charts.bill(rows, parts=[part.name for part in parts])
        yield Plot(title="Where a step's time goes", caption="", chart=chart)


def write_pictures(analyses: Sequence[Analysis], folder: Path) -> None:
    """Write every chart as PNG and as SVG to a folder, for one run or for several over each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AdvisorError(f"{folder} cannot be made: {error.strerror}", "name another folder", exit_code=2) from error
    drawn = list(overlays(analyses)) if len(analyses) > 1 else list(plots(analyses[0]))
    for plot in drawn:
        spec = plot.chart.properties(width=900, title=plot.title).to_dict()
        name = re.sub(r"[^a-z0-9]+", "-", plot.title.lower()).strip("-")
        (folder / f"{name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=_SCALE))
        (folder / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
