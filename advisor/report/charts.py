"""Draws Altair charts of records. The Okabe-Ito colours suit colour-blind readers on light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import Optional

from advisor.findings.chart_data import ChartPoint
from advisor.laws.held_out import HeldOut
from advisor.records import Estimate
from advisor.report.quantities import COST, LOSS, TIME
from advisor.units import HOUR, Formatter, format_estimate, format_seconds

PREDICTED, ACTUAL, GOOD, WARNING, REJECTED = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8C8C8C"
PARTS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#F0E442", "#8C8C8C")
RUNS = (ACTUAL, GOOD, "#CC79A7", WARNING, REJECTED, "#999933")  # told apart from blue, the colour of predictions
SERIES = (PARTS[0], PARTS[3], PARTS[2], PARTS[4], PARTS[1], PARTS[5], PARTS[7], PARTS[6])  # neighbours differ
# Best first: viridis without its darkest third, which is invisible on a dark page. Lightness still falls throughout.
_SHADES = ("#F5D90A", "#7AD151", "#22A884", "#2A788E", "#50609C")
_HEIGHT = 300
_INSIDE = (700, 150)  # pixels between the ends of both axes of the front, as it is usually drawn
_DOT, _BESIDE = 14, 12  # pixels: the width of a dot, and the distance of its label
_SIDES: tuple[tuple[Literal["left", "right"], int], ...] = (  # of labels, by preference: alignment, pixels down
    *(("left", -9), ("right", -9), ("left", 11), ("right", 11), ("left", -22), ("right", -22)),
    *(("left", 24), ("right", 24), ("left", -36), ("right", -36), ("left", 38), ("right", 38)),
)
# of axes: 0.015, 35k and 2B (SI's giga); never 15m, 0k or 65,536.000000
_SHORT = "replace(format(datum.value, abs(datum.value) < 1000 ? '.5~g' : '.5~s'), 'G', 'B')"
_FLAT = 1e-4  # a curve that varies by a smaller share is drawn as a flat line, on an axis that reaches 5 % further
_SHARED_EXTENT, _SHARED_HEIGHT = 40, 310  # pixels: room for the numbers of the vertical axis; of the drawing
_LOG_FROM = 3.0  # an axis that spans a larger factor is logarithmic
_TIMES = {"µs": "microseconds", "ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours"}
_TIGHT = alt.Scale(zero=False)
PICK = "pick"  # name of the selection that the page Plan reads
NOTE = ("model", "on", TIME.column, COST.column, LOSS.column, "remark")  # columns about a run of the search

Rows = Iterable[Mapping[str, Any]]
Listed = Sequence[Mapping[str, Any]]  # rows that are read more than once


@dataclass(frozen=True, kw_only=True)
class ChartAxis:
    """The horizontal axis of a chart: the field of its rows, and the title with its unit."""

    field: str
    title: str
    log: bool = False  # always logarithmic, even for a small range


SIGHTS = {  # fields of the rows of `front`: for both axes, and for the colour
    "cost and loss": ("usd", "quality", "duration"),
    "time and loss": ("duration", "quality", "usd"),
    "cost and time": ("usd", "duration", "quality"),
}


def _chart(rows: Rows) -> alt.Chart:
    return alt.Chart(pd.DataFrame(list(rows)))


def _layered(*layers: alt.Chart | alt.LayerChart, **properties: Any) -> alt.LayerChart:
    """Draws charts over each other on the same axes."""
    chart = alt.layer(*layers)
    assert isinstance(chart, alt.LayerChart)  # only facets would make altair return facets
    return chart.properties(**properties)


def _colours(field: str, colours: Mapping[str, str], **legend: Any) -> alt.Color:
    """Returns the colours of a field's values, with a legend above the chart."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color(f"{field}:N", title=None, scale=scale, legend=alt.Legend(orient="top", **legend))


def _tips(**titles: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:N", title=title) for field, title in titles.items()]


def _interval(chart: alt.Chart, x: alt.X, **y: Any) -> alt.Chart:
    """Draws the band between the fields `low` and `high`."""
    return chart.mark_area(color=PREDICTED, opacity=0.2).encode(x, alt.Y("low:Q", **y), alt.Y2("high:Q"))


def in_unit(rows: Sequence[Mapping[str, Any]], field: str, words: Formatter) -> tuple[list[dict[str, Any]], str]:
    """Returns rows with one field in the unit that suits its largest value, and that unit."""
    factor, suffix = words.unit(max((abs(float(row[field])) for row in rows), default=0.0))
    return [{**row, field: row[field] / factor} for row in rows], suffix


def timed(*groups: Sequence[Mapping[str, Any]]) -> tuple[ChartAxis, list[list[dict[str, Any]]]]:
    """Returns an axis and rows with `time` in place of `hours`, in a unit that suits the longest time."""
    factor, unit = time_unit(HOUR * max((float(row["hours"]) for rows in groups for row in rows), default=0))
    scaled = [[{**row, "time": row["hours"] * HOUR / factor} for row in rows] for rows in groups]
    return ChartAxis(field="time", title=unit), scaled


def time_unit(longest_seconds: float) -> tuple[float, str]:
    """Returns the seconds of the unit that suits the longest of some times, and the unit's name."""
    factor, suffix = format_seconds.unit(longest_seconds)
    return factor, _TIMES.get(suffix, suffix)


def throughput(rows: Rows, measured: Rows) -> alt.LayerChart:
    """Draws predicted tokens per second by micro-batch with their band, and measurements.

    Rows hold micro_batch, value, low, high, label and whether they are `chosen`, which a ring marks; measurements hold
    micro_batch, value and label.
    """
    rows, title = list(rows), "tokens per second"
    x = alt.X("micro_batch:Q", title="micro-batch (sequences per GPU)", scale=alt.Scale(type="log", base=2))
    layers = _curve(rows, x, title, _tips(label="at"), point={"size": 30, "color": PREDICTED})
    ring = _chart(row for row in rows if row["chosen"]).mark_point(color=WARNING, size=320, strokeWidth=3)
    layers.append(ring.encode(x, alt.Y("value:Q"), tooltip=_tips(label="at")))
    if len(dots := pd.DataFrame(list(measured))):
        dots = alt.Chart(dots).mark_point(color=ACTUAL, filled=True, size=70)
        layers.append(dots.encode(x, alt.Y("value:Q"), tooltip=_tips(label="at")))
    return _layered(*layers, height=_HEIGHT)


def _curve(rows: Rows, x: alt.X, title: str, tips: list[alt.Tooltip], **line: Any) -> list[alt.Chart]:
    """Returns a predicted curve (`value`) and its band."""
    base, y = _chart(rows), dict[str, Any](title=title, scale=_TIGHT, axis=alt.Axis(labelExpr=_SHORT))
    drawn = base.mark_line(color=PREDICTED, **line).encode(x, alt.Y("value:Q", **y), tooltip=tips)
    return [_interval(base, x, **y), drawn]


def loss(rows: Rows, marks: Rows) -> alt.LayerChart:
    """Draws loss against tokens with its band. Rows hold tokens, value, low, high, label; marks tokens and words."""
    ticks = _few_ticks(labelExpr=_SHORT)
    x = alt.X("tokens:Q", title="training tokens", scale=_padded_log(), axis=ticks)
    layers = _curve(rows, x, f"{LOSS.name}, nats per token", _tips(label="loss"))
    if len(limits := pd.DataFrame(list(marks))):
        colours = dict(zip(limits["words"], (ACTUAL, WARNING, "#CC79A7", GOOD, REJECTED), strict=False))
        # The first mark, the plan, is a whole line, which shows through the dashes of a limit at the same place.
        dash: Any = alt.condition(alt.datum.words == limits["words"][0], alt.value([1, 0]), alt.value([6, 4]))
        rules = alt.Chart(limits).mark_rule(strokeWidth=2).encode(x, _colours("words", colours, labelLimit=0))
        layers.append(rules.encode(strokeDash=dash, tooltip=_tips(words="mark")))
    return _layered(*layers, height=_HEIGHT)


def scaling(rows: Rows, ideal: Rows) -> alt.LayerChart:
    """Draws tokens/s against GPUs, and the ideal line. Rows hold gpus, value, label; `ideal` holds the first two."""
    ticks = alt.Axis(values=[row["gpus"] for row in rows], format="d")
    x = alt.X("gpus:Q", title="GPUs", scale=_padded_log(2), axis=ticks)
    y = alt.Y("value:Q", title="tokens per second", scale=_padded_log(), axis=_few_ticks(format=".3~s"))
    straight = _chart(ideal).mark_line(color=REJECTED, strokeDash=[6, 4]).encode(x, y)
    line = _chart(rows).mark_line(color=PREDICTED, point={"size": 60, "color": PREDICTED})
    return _layered(straight, line.encode(x, y, tooltip=_tips(label="on so many")), height=_HEIGHT)


def bill(rows: Rows, *, parts: Sequence[str]) -> alt.Chart:
    """Draws for each of several amounts a bar of its parts' shares; rows hold what, part, order, value and label."""
    x = alt.X("value:Q", title="share of the whole", stack="normalize", axis=alt.Axis(format="%", tickCount=5))
    return _stacked(rows, (*PARTS, "#999933"), parts, columns=4, size=44).encode(
        x, alt.Y("what:N", title=None, sort=None)
    ).properties(height=alt.Step(70))  # fmt: skip


def memory(
    rows: Rows, ends: Rows, *, across: str, parts: Sequence[str], limit: tuple[float, str] | None
) -> alt.LayerChart:
    """Draws stacked GiB of one device, one bar for each `place` named by `across`, with the interval of their sum.

    Rows hold place, part, order, value and label; `ends` hold place, low, high and label. The limit is its memory.
    """
    x = alt.X("place:O", sort=None, title=across, axis=alt.Axis(labelAngle=0))
    sums = pd.DataFrame(list(ends))
    wide: Optional[float] = 90 if sums["place"].nunique() < 3 else alt.Undefined
    bars = _stacked(rows, PARTS[: len(parts)], parts, columns=3, size=wide)
    whiskers = alt.Chart(sums).mark_rule(color=REJECTED, strokeWidth=2)
    whiskers = whiskers.encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), tooltip=_tips(label="in all, 80 %"))
    layers = [bars.encode(x, alt.Y("value:Q", title="GiB per GPU", axis=alt.Axis(labelExpr=_SHORT))), whiskers]
    return _layered(*layers, *([] if limit is None else [_limit("y", *limit)]), height=_HEIGHT)


def memory_bar(rows: Rows, span: tuple[float, float], words: str, limit: float | None) -> dict[str, Any]:
    """Returns the memory of one device as a bar of parts, the interval of their sum, and the device's limit, in GiB."""
    # Vega-Lite written out, like `whisker`
    rows, end = list(rows), 1.03 * max(span[1], limit or 0.0)
    parts = [str(row["part"]) for row in rows]
    axis = _few_ticks(labelExpr="datum.value || '0 GiB'", domain=False).to_dict()
    across = {"type": "quantitative", "title": None, "scale": {"domain": [0, end], "nice": False}, "axis": axis}
    legend = {"orient": "top", "columns": 6} if len(parts) > 1 else None
    colour = {
        "field": "part",
        "title": None,
        "scale": {"domain": parts, "range": PARTS[: len(parts)]},
        "legend": legend,
    }

    def layer(data: Listed, field: str, mark: dict[str, Any], tips: dict[str, str], **more: Any) -> dict[str, Any]:
        tooltip = [{"field": name, "type": "nominal", "title": title} for name, title in tips.items()]
        more |= {"tooltip": tooltip, "y": {"datum": "", "type": "nominal", "axis": None}} if tips else {}
        return {"data": {"values": data}, "mark": mark, "encoding": {"x": {"field": field, **across}, **more}}

    order, bar = {"field": "order", "type": "quantitative"}, {"type": "bar", "size": 16}
    ends, rule = [{"low": span[0], "high": span[1], "label": words}], {"type": "rule", "strokeWidth": 3}
    layers = [
        layer(rows, "value", bar, {"part": "part", "label": "takes"}, color=colour | {"type": "nominal"}, order=order),
        layer(ends, "low", rule | {"color": REJECTED}, {"label": "in all, 80 %"}, x2={"field": "high"}),
        *([] if limit is None else [layer([{"limit": limit}], "limit", rule | {"color": WARNING}, {})]),
    ]
    return {"layer": layers, "height": 116 if len(parts) > 1 else 82}


def step_parts(rows: Rows, *, across: str, parts: Sequence[str]) -> alt.Chart:
    """Draws the stacked seconds of a step, one bar for each `place` named by `across`; rows as of `memory`."""
    x = alt.X("place:O", sort=None, title=across, axis=alt.Axis(labelAngle=0, labelLimit=220))
    bars = _stacked(rows, PARTS[: len(parts)], parts, columns=3, size=alt.Undefined)
    y = alt.Y("value:Q", title="seconds of a step", axis=alt.Axis(labelExpr=_SHORT))
    return bars.encode(x, y).properties(height=_HEIGHT)


def _stacked(
    rows: Rows, colours: Sequence[str], parts: Sequence[str], *, columns: int, size: Optional[float]
) -> alt.Chart:
    """Returns bars of coloured parts, in order; the caller adds the axes."""
    scale = alt.Scale(domain=list(parts), range=list(colours))
    colour = alt.Color("part:N", title=None, scale=scale, legend=alt.Legend(orient="top", columns=columns))
    return (
        _chart(rows).mark_bar(size=size).encode(colour, alt.Order("order:Q"), tooltip=_tips(part="part", label="takes"))
    )


def waterfall(rows: Rows, *, unit: str) -> alt.Chart:
    """Draws bars that each begin where the bar above ended; rows hold `part`, `low`, `high`, `kind`, `label`."""
    data = pd.DataFrame(list(rows))
    drawn = alt.Chart(data).mark_bar(clip=True).encode(
        alt.Y("part:N", sort=list(data["part"]), title=None, axis=alt.Axis(labelLimit=220)),
        # lengths of whole bars are compared
        alt.X("low:Q", title=unit, scale=alt.Scale(domainMin=0), axis=alt.Axis(labelExpr=_SHORT)),
        alt.X2("high:Q"),
        _colours("kind", {"wall clock": REJECTED, "longer": WARNING, "shorter": GOOD}),
        tooltip=_tips(part="part", label="takes"),
    )  # fmt: skip
    return drawn.properties(height=alt.Step(24))


def whisker(estimate: Estimate, *, end: float, limit: float | None, name: str, words: str) -> dict[str, Any]:
    """Returns an estimate as a dot with its interval, and its limit (called `name`) as a line, on an axis from 0.

    This is Vega-Lite written out, because several are drawn for each move of a slider, and altair checks slowly.
    """
    height, end = 22, 1.03 * end
    colour = PREDICTED if limit is None or estimate.value <= limit * 1.001 else WARNING
    row = {
        "low": estimate.low,
        "value": estimate.value,
        "high": min(estimate.high, end),
        "limit": limit,
        "words": words,
    }
    tip, middle = {"field": "words", "type": "nominal"}, {"value": height / 2}
    across = {"type": "quantitative", "scale": {"domain": [0, end]}, "axis": None}

    def layer(kind: str, of: dict[str, Any], **mark: Any) -> dict[str, Any]:
        encoding = {"y": middle, "tooltip": tip} | of
        return {"data": {"values": [row]}, "mark": {"type": kind, **mark}, "encoding": encoding}

    low, value, at = ({"field": field, **across} for field in ("low", "value", "limit"))
    whole = {"x": {"datum": 0, **across}, "x2": {"datum": end}, "tooltip": None}
    limits = {"x": at, "y": {"value": 0}, "y2": {"value": height}, "tooltip": {"value": name}}
    layers = [
        layer("rule", whole, color=REJECTED, opacity=0.4, aria=False),
        layer("rule", {"x": low, "x2": {"field": "high"}}, color=colour, strokeWidth=4, opacity=0.5, aria=False),
        *([layer("rule", limits, color=WARNING, strokeDash=[4, 3], aria=False)] if limit is not None else []),
        layer("circle", {"x": value, "description": tip}, color=colour, size=110, opacity=1),
    ]
    return {"layer": layers, "height": height, "config": {"view": {"stroke": None}}}


def gantt(rows: Rows, *, kinds: Sequence[str]) -> alt.LayerChart:
    """Draws each run as a bar from its start to its planned end, with the ends of 8 of 10 futures and its deadline.

    Rows hold `run`, `pool`, `kind` (of the pool), `label`, and the moments `start`, `end`, `low`, `high` and `deadline`
    (or None).
    """
    rows = list(rows)
    y = alt.Y("run:N", title=None, sort=[row["run"] for row in rows], axis=alt.Axis(labelLimit=220, labelOverlap=False))
    tips = _tips(run="run", pool="on", label="")
    bars = _chart(rows).mark_bar(height=14).encode(
        alt.X("start:T", title=None, axis=_days(rows)), alt.X2("end:T"), y,
        _colours("kind", dict(zip(kinds, SERIES, strict=False))), tooltip=tips,
    )  # fmt: skip
    ends = _chart(rows).mark_rule(strokeWidth=2, opacity=0.6).encode(alt.X("low:T"), alt.X2("high:T"), y, tooltip=tips)
    dated = _chart(row for row in rows if row["deadline"] is not None) if any(row["deadline"] for row in rows) else None
    late = [] if dated is None else [
        dated.mark_tick(color=WARNING, thickness=3, height=18).encode(alt.X("deadline:T"), y, tooltip=tips)
    ]  # fmt: skip
    # Streamlit's height includes the legend and the axis.
    return _layered(bars, ends, *late, height=90 + 24 * len({row["run"] for row in rows}))


def _days(rows: Rows) -> alt.Axis:
    """Returns an axis of days, or of hours with their day if all is over within two days."""
    moments = [datetime.fromisoformat(str(row[end])) for row in rows for end in ("start", "high")]
    lasts = max(moments, default=datetime.min) - min(moments, default=datetime.min)
    if lasts > timedelta(days=180):
        return alt.Axis(format="%b %Y", tickCount=6, labelOverlap=True)
    if lasts > timedelta(days=2):
        return alt.Axis(format="%a %d %b", tickCount="day", labelOverlap=True)
    return alt.Axis(format="%a %H:%M", tickCount=6, labelOverlap=True)


def zoomable(chart: alt.LayerChart) -> alt.LayerChart:
    """Returns a chart that users drag to move and zoom with Shift and the wheel; the wheel alone scrolls the page."""
    return chart.add_params(alt.selection_interval(bind="scales", zoom="wheel![event.shiftKey]"))


def lines(
    rows: Rows,
    *,
    x: ChartAxis,
    title: str,
    colours: Mapping[str, str],
    band: Rows = (),
    log_y: bool = False,
    always_log: bool = False,
    marks: Rows = (),
    behind: Rows = (),
    dashes: Mapping[str, Sequence[int]] | None = None,
    shared: tuple[float, float] | None = None,
    named: bool = True,
) -> alt.LayerChart:
    """Draws named series of `value` over one axis. Rows hold x's field, value and `series`; band rows low and high.

    `log_y` is logarithmic if the values span a large factor. `marks` are vertical lines with x's field and `words`:
    findings, checkpoints, restarts. `behind` are faint rows under the others: their values before smoothing. With
    `dashes` rows also hold `kind`, one of its keys. Without `named` the page names the series. `shared` are the ends of
    an axis that charts side by side have in common: they are drawn without legends, equally wide and with a crosshair
    (`CROSSHAIR` in advisor/ui/live.py).
    """
    data, faint, expected, events = (pd.DataFrame(list(some)) for some in (rows, behind, band, marks))
    number_format = "~s" if len(data) and data[x.field].max() >= 1e4 else ".4~g"
    # the curve fills the full width
    ends: Any = alt.Undefined if shared is None else list(shared)
    across = alt.Scale(nice=False, zero=False, type="log" if x.log else "linear", domain=ends)
    ticks = 8 if named and shared is None else 4  # fewer where numbers stand around the chart
    below = alt.Axis(format=number_format, tickCount=ticks)
    horizontal = alt.X(f"{x.field}:Q", title=x.title, axis=below, scale=across)
    extent: dict[str, Any] = {} if shared is None else {"minExtent": _SHARED_EXTENT, "maxExtent": _SHARED_EXTENT}
    vertical: dict[str, Any] = {
        "title": title,
        "scale": _TIGHT,
        "axis": alt.Axis(labelExpr=_SHORT, tickCount=ticks, **extent),
    }
    values = pd.concat([data, faint])["value"] if len(data) else pd.Series([0.0])
    low, high = float(values.min()), float(values.max())
    if log_y or always_log:
        vertical |= _from_end_to_end(low, high, always_log=always_log)
    elif not len(expected) and high - low < _FLAT * max(abs(low), abs(high)):
        margin = 0.05 * max(abs(low), abs(high))
        vertical["scale"] = alt.Scale(zero=False, domain=[low - margin, high + margin])
    y = alt.Y("value:Q", **vertical)
    colour = _colours("series", colours, columns=4, symbolOpacity=1, labelLimit=0)
    colour = colour if named and len(colours) > 1 and shared is None else colour.legend(None)
    layers = [_interval(alt.Chart(expected), horizontal, **vertical)] if len(expected) else []
    if len(faint):
        before = alt.Chart(faint).mark_line(aria=False, opacity=0.45, strokeWidth=1)
        layers.append(before.encode(horizontal, y, colour))
    dash: Optional[alt.StrokeDash] = alt.Undefined
    if dashes is not None:
        drawn = {kind: list(dash) for kind, dash in dashes.items() if (data["kind"] == kind).any()}
        scale = alt.Scale(domain=list(drawn), range=list(drawn.values()))
        legend = alt.Legend(orient="top") if len(drawn) > 1 else None
        dash = alt.StrokeDash("kind:N", scale=scale, title=None, legend=legend)
    layers.append(alt.Chart(data).mark_line(aria=False).encode(horizontal, y, colour, strokeDash=dash))
    # The point nearest to the mouse shows its numbers, because a line of two pixels is hard to hit.
    across_only: Any = alt.Undefined if shared is None else ["x"]
    nearest = alt.selection_point(
        nearest=True, on="pointerover", clear="pointerout", empty=False, encodings=across_only
    )
    formats = ((x.field, x.title, ",.6~g"), ("value", title, ".4g"))
    tooltip = [*(alt.Tooltip(f"{field}:Q", title=name, format=form) for field, name, form in formats), "series"]
    dots = alt.Chart(data).mark_point(aria=False, filled=True, size=60).encode(horizontal, y, colour, tooltip=tooltip)
    layers.append(dots.encode(opacity=alt.condition(nearest, alt.value(1), alt.value(0))).add_params(nearest))
    if shared is not None:
        under_mouse = alt.Chart(data).transform_filter(nearest)
        layers.append(under_mouse.mark_rule(aria=False, color=REJECTED).encode(horizontal))
        first = under_mouse.transform_filter(alt.datum.series == next(iter(colours)))
        number = f"format(datum.value, ',.4~g') + ' at {x.title} ' + datum.{x.field}"
        words = first.transform_calculate(words=number).mark_text(aria=False, align="right", baseline="top", dx=-4)
        layers.append(words.encode(x=alt.value("width"), y=alt.value(4), text="words:N"))
    if len(events):
        rules = alt.Chart(events).mark_rule(color=WARNING, opacity=0.6, strokeDash=[4, 3])
        layers.append(rules.encode(horizontal, tooltip="words:N"))
    return _layered(
        *layers, height=_HEIGHT if shared is None else _SHARED_HEIGHT, description=f"{title} against {x.title}"
    )


def against_prediction(
    points: Sequence[ChartPoint], predicted: Estimate | None, title: str, shared: tuple[float, float] | None = None
) -> alt.LayerChart:
    """Draws measured values over steps, and the predicted interval."""
    ends = (points[0], points[-1]) if predicted is not None and points else ()
    band = [{"step": p.step, "low": predicted.low, "high": predicted.high} for p in ends] if predicted else []
    rows = [{"step": p.step, "value": p.value, "series": title} for p in points]
    x = ChartAxis(field="step", title="step")
    return lines(rows, x=x, title=title, colours={title: ACTUAL}, band=band, shared=shared)


def dot_image(colour: str) -> str:
    """Returns a dot of one colour as an image in Markdown."""
    return _in_markdown("", 12, f'<circle cx="6" cy="6" r="5" fill="{colour}"/>')


def interval_image(predicted: Estimate | None, actual: float | None, reach: float) -> str:
    """Draws an interval and the actual value as an image in Markdown. Returns "" if nothing was predicted, or 0.

    The predicted value is in the middle; the ends are the share `reach` of it away.
    """
    if predicted is None or not predicted.value:
        return ""

    def place(value: float) -> float:
        return 55 + 50 * max(-1.0, min(1.0, (value / predicted.value - 1) / reach))

    low, high = place(predicted.low), place(predicted.high)
    drawn = f'<path d="M0 9H110M55 3V15" stroke="{REJECTED}" stroke-opacity=".6"/>'
    drawn += f'<rect x="{low:.1f}" y="6" width="{max(1.0, high - low):.1f}" height="6" fill="{PARTS[1]}"/>'
    words = "not measured"
    if actual is not None:
        colour, words = (GOOD, "inside") if predicted.contains(actual) else (WARNING, "outside")
        drawn += f'<circle cx="{place(actual):.1f}" cy="9" r="5" fill="{colour}"/>'
    return _in_markdown(words, 110, drawn)


def _in_markdown(words: str, width: int, drawn: str) -> str:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{min(width, 18)}">{drawn}</svg>'
    return f"![{words}](data:image/svg+xml;utf8,{quote(svg)})"


def scatter_row(
    name: str, predicted: Estimate, actual: float, *, inside: bool | None, words: Formatter, factor: float = 1.0
) -> dict[str, object]:
    """Returns a row of `identity_scatter`, in a unit that is `factor` times the numbers' own.

    `inside` is None for a run that does not count.
    """
    numbers = {"predicted": predicted.value, "low": predicted.low, "high": predicted.high, "actual": actual}
    where = {True: "inside the interval", False: "outside", None: "does not count"}[inside]
    label = f"{format_estimate(predicted, words)}; actual {words(actual)}"
    return {"run": name, **{key: value / factor for key, value in numbers.items()}, "inside": where, "label": label}


def held_out(predictions: HeldOut, name_of: Callable[[Any], str]) -> alt.LayerChart:
    """Draws each configuration's step as predicted from the others, against its measurement."""
    rows = [
        scatter_row(name_of(p.configuration), p.predicted, p.actual, inside=p.inside, words=format_seconds)
        for p in predictions.points
    ]
    return identity_scatter(rows, unit="seconds of a step")


def identity_scatter(rows: Rows, *, unit: str) -> alt.LayerChart:
    """Draws predicted over actual values with the identity line; rows are made by `scatter_row`."""
    data = pd.DataFrame(list(rows))
    low, high = float(data[["low", "actual"]].min().min()), float(data[["high", "actual"]].max().max())
    ends = _from_end_to_end(low, high)
    shown = {"inside the interval": GOOD, "outside": WARNING, "does not count": REJECTED}
    colour = _colours("inside", {name: shown[name] for name in shown if (data["inside"] == name).any()})
    x = {"title": f"predicted, {unit}", **ends}
    bars = alt.Chart(data).mark_rule().encode(alt.X("low:Q", **x), alt.X2("high:Q"), alt.Y("actual:Q", **ends), colour)
    dots = alt.Chart(data).mark_point(filled=True, size=80).encode(
        alt.X("predicted:Q", **x), alt.Y("actual:Q", title=f"actual, {unit}", **ends), colour,
        tooltip=[alt.Tooltip("run:N"), *_tips(label="predicted and actual")],
    )  # fmt: skip
    return _layered(_diagonal(ends["scale"]), bars, dots, height=320)


def _diagonal(scale: alt.Scale) -> alt.Chart:
    """Draws the line on which both axes have the same value."""
    line = _chart({"x": end, "y": end} for end in scale.domain).mark_line(color=REJECTED, strokeDash=[4, 4])
    return line.encode(alt.X("x:Q", scale=scale), alt.Y("y:Q", scale=scale))


def _from_end_to_end(low: float, high: float, *, always_log: bool = False) -> dict[str, Any]:
    """Returns the scale and ticks of an axis slightly wider than its values.

    It is logarithmic if the values span a wide range or if `always_log` is set. The ends are not rounded to
    whole decades. Ticks are few and round: 1, 2, 5 times powers of ten if logarithmic.
    """
    margin = max(1.05, (high / low) ** 0.06)
    low, high = low / margin, high * margin
    is_wide = high / low > _LOG_FROM
    kind: Literal["log", "linear"] = "log" if always_log or is_wide else "linear"
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if is_wide else ()
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    marked: dict[str, Any] = {"values": ticks} if is_wide else {"tickCount": 6}
    axis = alt.Axis(format="~s" if high >= 1e4 else ".4~g", **marked)
    return {"scale": alt.Scale(type=kind, domain=[low, high], nice=False, zero=False), "axis": axis}


def _few_ticks(**settings: Any) -> alt.Axis:
    return alt.Axis(labelOverlap="greedy", tickCount=6, gridOpacity=0.4, **settings)


def _padded_log(base: int = 10) -> alt.Scale:
    return alt.Scale(type="log", base=base, nice=False, padding=20)


def _limit(axis: str, value: float, words: str) -> alt.LayerChart:
    """Draws a named dashed line across the chart at a limit."""
    data = _chart([{"limit": value, "words": words}])
    rule = data.mark_rule(color=WARNING, strokeDash=[6, 4]).encode(**{axis: "limit:Q"}, tooltip="words:N")
    if axis == "x":
        text = data.mark_text(color=WARNING, align="right", dx=-5, baseline="top", dy=4)
        return _layered(rule, text.encode(x="limit:Q", y=alt.value(0), text="words:N"))
    text = data.mark_text(color=WARNING, align="left", dx=4, dy=-7)
    return _layered(rule, text.encode(y="limit:Q", x=alt.value(0), text="words:N"))


def front(
    rows: Listed, missed: Listed, *, sight: tuple[str, str, str], quality: str, unit: str,
    limits: tuple[float | None, float | None],
) -> alt.LayerChart:  # fmt: skip
    """Draws two of dollars, time and quality on the axes, and the third as colour if all rows have it.

    Rows hold id, usd, duration, quality, shown, label ("" for none) and the words of NOTE for the tooltip. A label is
    left out where it has no room. `limits` are the budget in dollars and the deadline, which is in the `unit` of
    durations. A click selects a run by its id.
    """
    across, up, shade = sight
    titles = {"usd": f"{COST.name}, dollars", "duration": f"{TIME.name}, {unit}", "quality": quality}
    formats = {"usd": "$,.3~r", "duration": ",.3~r"}  # SI's m (a thousandth) would be read as minutes or a million
    ends = {"usd": (limits[0], "budget"), "duration": (limits[1], "deadline"), "quality": (None, "")}
    # The run shown has the largest dot, so it lies below the dots that overlap it.
    ordered = sorted(rows, key=lambda row: not row["shown"])
    crosses, data = pd.DataFrame(list(missed)), pd.DataFrame(ordered)
    labels = _placed([*rows, *missed], [(field, ends[field][0]) for field in (across, up)])

    def axis(field: str, better: str) -> dict[str, Any]:
        title = f"{titles[field]} ({better} better)"
        if field in formats:
            # More room near the limit, where most runs are, than on a logarithmic axis
            scale = alt.Scale(type="sqrt", zero=False, nice=False, padding=20)
            return {"title": title, "scale": scale, "axis": _few_ticks(format=formats[field])}
        scale = alt.Scale(zero=False, nice=False, padding=20)
        return {"title": title, "scale": scale, "axis": alt.Axis(tickCount=6, format=".3~f", tickMinStep=0.001)}

    x, y = alt.X(f"{across}:Q", **axis(across, "\u2190")), alt.Y(f"{up}:Q", **axis(up, "\u2193"))
    tooltip = [alt.Tooltip(f"{name}:N") for name in NOTE]
    colour: Any = alt.value(PREDICTED)
    # Without prices, or for runs of one quality, there is no colour to show.
    if (data[shade] > 0).all() and data[shade].max() > 1.01 * data[shade].min():
        ticks: Any = np.linspace if shade == "quality" else np.geomspace
        values = ticks(data[shade].min(), data[shade].max(), 4).tolist()  # from end to end
        scale = alt.Scale(range=list(_SHADES), type="linear" if shade == "quality" else "log")
        legend = alt.Legend(gradientLength=150, titleLimit=120, format=".3~r", values=values)
        colour = alt.Color(f"{shade}:Q", title=titles[shade].partition(" (")[0], scale=scale, legend=legend)

    def shown(yes: Any, no: Any) -> Any:
        return alt.condition("datum.shown", alt.value(yes), alt.value(no))

    pick = alt.selection_point(name=PICK, fields=["id"], on="click", empty=False)
    dots = alt.Chart(data).mark_circle(opacity=1, fillOpacity=0.7, cursor="pointer").add_params(pick).encode(
        x, y, color=colour, size=shown(320, 130), stroke=shown(WARNING, REJECTED), strokeWidth=shown(3, 1),
        tooltip=tooltip, description="words:N",
    )  # fmt: skip
    drawn = [(way, *ends[field]) for way, field in (("x", across), ("y", up))]
    layers: list[Any] = [_limit(way, limit, words) for way, limit, words in drawn if limit is not None]
    if len(crosses):
        cross = alt.Chart(crosses).mark_point(shape="cross", angle=45, color=REJECTED, size=90, filled=True)
        layers.append(cross.encode(x, y, tooltip=tooltip, description="words:N"))
    return _layered(*layers, dots, *_labels(labels, x, y), height=270)


def written_out(chart: alt.LayerChart) -> dict[str, Any]:
    """Returns a chart as Vega-Lite whose layers hold their rows, which Streamlit need not convert at each rerun."""
    spec = chart.to_dict()
    datasets, layers = spec.pop("datasets"), [*spec["layer"]]
    while layers:
        layers += layers[0].get("layer", [])
        if "data" in (layer := layers.pop(0)):
            layer["data"] = {"values": datasets[layer["data"]["name"]]}
    return spec


def _labels(rows: Sequence[Mapping[str, Any]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Returns the labels of dots at the sides that the rows name, with a line to those that stand further away."""
    drawn, room = [], alt.expr("width < 450 ? 0 : 1")  # a telephone has none
    for align, down in _SIDES:
        if some := [row for row in rows if (row["align"], row["down"]) == (align, down)]:
            dots, dx = _chart(some).encode(x, y), _BESIDE if align == "left" else -_BESIDE
            text = dots.mark_text(aria=False, align=align, dx=dx, dy=down, fontSize=11, color=REJECTED, opacity=room)
            drawn.append(text.encode(text="label:N"))
            if abs(down) > _DOT:
                line = dots.mark_rule(aria=False, color=REJECTED, x2Offset=dx, y2Offset=down, opacity=room)
                drawn.append(line.encode(alt.X2(x.shorthand), alt.Y2(y.shorthand)))
    return drawn


def _placed(rows: Listed, axes: Sequence[tuple[str, float | None]]) -> list[dict[str, Any]]:
    """Returns the rows whose labels have room, each with the side of its label, on a chart of usual size.

    `axes` are the fields on both axes with their limits.
    """
    points, (wide, high), placed = [], _INSIDE, list[dict[str, Any]]()
    for (field, limit), pixels in zip(axes, _INSIDE, strict=True):
        values = np.array([*(row[field] for row in rows), limit], float)
        values = values if field == "quality" else np.sqrt(values)
        low = np.nanmin(values)
        points.append((values - low) * pixels / ((np.nanmax(values) - low) or 1.0))
    *at, limits = np.stack(points, axis=1)
    # Names of the limits (`_limit`) and labels placed before also take room.
    taken = [(x - _DOT / 2, x + _DOT / 2, y - _DOT / 2, y + _DOT / 2) for x, y in at]
    taken += [(limits[0] - 50, limits[0] - 5, high, high + 20), (-20, 40, limits[1], limits[1] + 14)]
    for row, (x, y) in zip(rows, at, strict=True):
        width = 5.5 * len(row["label"])
        for align, down in _SIDES if row["label"] else ():
            left = x + _BESIDE if align == "left" else x - _BESIDE - width
            box = (left, left + width, y - down - 7, y - down + 7)
            inside = left >= -20 and left + width <= wide + 20
            if inside and not any(box[0] < b and a < box[1] and box[2] < d and c < box[3] for a, b, c, d in taken):
                taken.append(box)
                placed.append({**row, "align": align, "down": down})
                break
    return placed


def ringed(spec: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the drawn chart with a ring at one more run: a what-if, which moves with its sliders, or a selected run.

    The ring is added to the finished drawing, because drawing everything again takes longer than answering a slider.
    """
    dots = next(layer for layer in spec["layer"] if layer.get("mark", {}).get("type") == "circle")
    encoding = {name: dots["encoding"][name] for name in ("x", "y", "tooltip", "description")}
    mark = {"type": "point", "filled": False, "size": 320, "strokeWidth": 3, "color": WARNING, "opacity": 1}
    return spec | {"layer": [*spec["layer"], {"data": {"values": [row]}, "mark": mark, "encoding": encoding}]}
