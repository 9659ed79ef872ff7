"""Draws Altair charts of records. The Okabe-Ito colours suit colour-blind readers on light and dark backgrounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
SERIES = (PARTS[0], PARTS[3], PARTS[2], PARTS[4], PARTS[1], PARTS[5], PARTS[7], PARTS[6])  # neighbours differ
# Best first: viridis without its darkest third, which is invisible on a dark page. Lightness still falls throughout.
_SHADES = ("#F5D90A", "#7AD151", "#22A884", "#2A788E", "#50609C")
_HEIGHT = 300
_NAME_WIDTH, _NAME_HEIGHT = 0.16, 0.07  # of the name of a run, as shares of the chart
_LOG_FROM = 3.0  # an axis that spans a larger factor is logarithmic
_TIMES = {"µs": "microseconds", "ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours"}
_TIGHT = alt.Scale(zero=False)
PICK = "pick"  # name of the selection that the page Plan reads
NOTE = ("model", "on", TIME.column, COST.column, LOSS.column, "remark")  # columns about a run of the search

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ChartAxis:
    """The horizontal axis of a chart: the field of its rows, and the title with its unit."""

    field: str
    title: str
    log: bool = False  # always logarithmic, even for a small range


SIGHTS = {  # fields of the rows of `front`: for both axes, and for the colour
    "cost and loss": ("usd", "quality", "hours"),
    "time and loss": ("hours", "quality", "usd"),
    "cost and time": ("usd", "hours", "quality"),
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
    longest = max((float(row["hours"]) for rows in groups for row in rows), default=0)
    factor, suffix = format_seconds.unit(HOUR * longest)
    scaled = [[{**row, "time": row["hours"] * HOUR / factor} for row in rows] for rows in groups]
    return ChartAxis(field="time", title=_TIMES.get(suffix, suffix)), scaled


def throughput(rows: Rows, measured: Rows) -> alt.LayerChart:
    """Draws predicted tokens per second by micro-batch with their band, and measurements.

    Rows hold micro_batch, value, low, high and label; measurements hold the same without low and high.
    """
    title = "tokens per second"
    x = alt.X("micro_batch:Q", title="micro-batch (sequences per GPU)", scale=alt.Scale(type="log", base=2))
    layers = _curve(rows, x, title, _tips(label="at"), point={"size": 30, "color": PREDICTED})
    if len(dots := pd.DataFrame(list(measured))):
        dots = alt.Chart(dots).mark_point(color=ACTUAL, filled=True, size=70)
        layers.append(dots.encode(x, alt.Y("value:Q"), tooltip=_tips(label="at")))
    return _layered(*layers, height=_HEIGHT)


def _curve(rows: Rows, x: alt.X, title: str, tips: list[alt.Tooltip], **line: Any) -> list[alt.Chart]:
    """Returns a predicted curve (`value`) and its band."""
    base, y = _chart(rows), dict[str, Any](title=title, scale=_TIGHT)
    drawn = base.mark_line(color=PREDICTED, **line).encode(x, alt.Y("value:Q", **y), tooltip=tips)
    return [_interval(base, x, **y), drawn]


def loss(rows: Rows, marks: Rows) -> alt.LayerChart:
    """Draws loss against tokens with its band. Rows hold tokens, value, low, high, label; marks tokens and words."""
    words = "replace(format(datum.value, '.3~s'), 'G', 'B')"  # SI's giga is a billion to people who count tokens
    ticks = _few_ticks(labelExpr=words)
    x = alt.X("tokens:Q", title="training tokens", scale=_padded_log(), axis=ticks)
    layers = _curve(rows, x, f"{LOSS.name}, nats per token", _tips(label="loss"))
    if len(limits := pd.DataFrame(list(marks))):
        colours = dict(zip(limits["words"], (ACTUAL, WARNING, "#CC79A7", GOOD, REJECTED), strict=False))
        rules = alt.Chart(limits).mark_rule(strokeDash=[6, 4], strokeWidth=2)
        layers.append(rules.encode(x, _colours("words", colours), tooltip=_tips(words="mark")))
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
    x = alt.X("value:Q", title="share of the whole", stack="normalize", axis=alt.Axis(format="%"))
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
    layers = [bars.encode(x, alt.Y("value:Q", title="GiB per GPU")), whiskers]
    return _layered(*layers, *([] if limit is None else [_limit("y", *limit)]), height=_HEIGHT)


def memory_bar(rows: Rows, span: tuple[float, float], words: str, limit: float | None) -> alt.LayerChart:
    """Draws the memory of one device as a bar of parts, the interval of their sum, and the device's limit, in GiB."""
    rows = [{**row, "place": ""} for row in rows]
    parts = [str(row["part"]) for row in rows]
    end = 1.03 * max(span[1], limit or 0.0)
    x: dict[str, Any] = {"title": None, "scale": alt.Scale(domain=[0, end], nice=False)}
    x["axis"] = _few_ticks(labelExpr="datum.value + ' GiB'", domain=False)
    y = alt.Y("place:N", axis=None)
    bars = _stacked(rows, PARTS[: len(parts)], parts, columns=6, size=16).encode(alt.X("value:Q", **x), y)
    if len(parts) == 1:
        bars = bars.encode(alt.Color("part:N", legend=None, scale=alt.Scale(range=[PREDICTED])))
    ends = _chart([{"place": "", "low": span[0], "high": span[1], "label": words}])
    whisker = ends.mark_rule(color=REJECTED, strokeWidth=3).encode(alt.X("low:Q", **x), alt.X2("high:Q"), y)
    layers = [bars, whisker.encode(tooltip=_tips(label="in all, 80 %"))]
    if limit is not None:
        line = _chart([{"limit": limit}]).mark_rule(color=WARNING, strokeWidth=3)
        layers.append(line.encode(alt.X("limit:Q", **x)))
    return _layered(*layers, height=82 if len(parts) == 1 else 116)


def step_parts(rows: Rows, *, across: str, parts: Sequence[str]) -> alt.Chart:
    """Draws the stacked seconds of a step, one bar for each `place` named by `across`; rows as of `memory`."""
    x = alt.X("place:O", sort=None, title=across, axis=alt.Axis(labelAngle=0, labelLimit=220))
    bars = _stacked(rows, PARTS[: len(parts)], parts, columns=3, size=alt.Undefined)
    return bars.encode(x, alt.Y("value:Q", title="seconds of a step")).properties(height=_HEIGHT)


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
        alt.X("low:Q", title=unit, scale=alt.Scale(domainMin=0)),  # lengths of whole bars are compared
        alt.X2("high:Q"),
        _colours("kind", {"wall clock": REJECTED, "longer": WARNING, "shorter": GOOD}),
        tooltip=_tips(part="part", label="takes"),
    )  # fmt: skip
    return drawn.properties(height=alt.Step(24))


def whisker(estimate: Estimate, *, end: float, limit: float | None, name: str, words: str) -> alt.LayerChart:
    """Draws an estimate as a dot with its interval, and its limit (called `name`) as a line, on an axis from 0."""
    height, end = 22, 1.03 * end
    x: dict[str, Any] = {"scale": alt.Scale(domain=[0, end]), "axis": None}
    base = _chart([{"low": estimate.low, "value": estimate.value, "high": min(estimate.high, end), "words": words}])
    colour = PREDICTED if limit is None or estimate.value <= limit * 1.001 else WARNING
    middle: Any = alt.value(height / 2)
    tips: dict[str, Any] = {"tooltip": "words:N", "y": middle}
    layers = [
        base.mark_rule(color=REJECTED, opacity=0.4, aria=False).encode(alt.XDatum(0, **x), alt.X2Datum(end), y=middle),
        base.mark_rule(color=colour, strokeWidth=4, opacity=0.5, aria=False).encode(
            alt.X("low:Q", **x), alt.X2("high:Q"), **tips
        ),
    ]
    if limit is not None:
        line = _chart([{"limit": limit, "words": name}]).mark_rule(color=WARNING, strokeDash=[4, 3], aria=False)
        ends: dict[str, Any] = {"y": alt.value(0), "y2": alt.value(height)}
        layers.append(line.encode(alt.X("limit:Q", **x), tooltip="words:N", **ends))
    layers.append(
        base.mark_circle(color=colour, size=110, opacity=1).encode(alt.X("value:Q", **x), description="words:N", **tips)
    )
    return _layered(*layers, height=height).configure_view(stroke=None)


def gantt(rows: Rows, *, kinds: Sequence[str]) -> alt.LayerChart:
    """Draws each run as a bar from its start to its planned end, with the ends of 8 of 10 futures and its deadline.

    Rows hold `run`, `pool`, `kind` (of the pool), `label`, and the moments `start`, `end`, `low`, `high` and `deadline`
    (or None).
    """
    rows = list(rows)
    y = alt.Y("run:N", title=None, sort=[row["run"] for row in rows], axis=alt.Axis(labelLimit=220))
    tips = _tips(run="run", pool="on", label="")
    bars = _chart(rows).mark_bar(height=14).encode(
        alt.X("start:T", title=None), alt.X2("end:T"), y, _colours("kind", dict(zip(kinds, SERIES, strict=False))),
        tooltip=tips,
    )  # fmt: skip
    ends = _chart(rows).mark_rule(strokeWidth=2, opacity=0.6).encode(alt.X("low:T"), alt.X2("high:T"), y, tooltip=tips)
    dated = _chart(row for row in rows if row["deadline"] is not None) if any(row["deadline"] for row in rows) else None
    late = [] if dated is None else [
        dated.mark_tick(color=WARNING, thickness=3, height=18).encode(alt.X("deadline:T"), y, tooltip=tips)
    ]  # fmt: skip
    return _layered(bars, ends, *late, height=max(120, 24 * len(rows)))


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
) -> alt.LayerChart:
    """Draws named series of `value` over one axis. Rows hold x's field, value and `series`; band rows low and high.

    `log_y` is logarithmic if the values span a large factor. `marks` are vertical lines with x's field and `words`:
    findings, checkpoints, restarts. `behind` are faint rows under the others: their values before smoothing. With
    `dashes` rows also hold `kind`, one of its keys.
    """
    data, faint, expected, events = (pd.DataFrame(list(some)) for some in (rows, behind, band, marks))
    number_format = "~s" if len(data) and data[x.field].max() >= 1e4 else ".4~g"
    across = alt.Scale(nice=False, zero=False, type="log" if x.log else "linear")  # the curve fills the full width
    horizontal = alt.X(f"{x.field}:Q", title=x.title, axis=alt.Axis(format=number_format, tickCount=8), scale=across)
    vertical: dict[str, Any] = {"title": title, "scale": _TIGHT, "axis": alt.Undefined}
    if log_y or always_log:
        values = pd.concat([data, faint])["value"]
        vertical |= _from_end_to_end(float(values.min()), float(values.max()), always_log=always_log)
    y = alt.Y("value:Q", **vertical)
    colour = _colours("series", colours, columns=4, symbolOpacity=1, labelLimit=0)
    colour = colour if len(colours) > 1 else colour.legend(None)
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
    nearest = alt.selection_point(nearest=True, on="pointerover", clear="pointerout", empty=False)
    formats = ((x.field, x.title, ",.6~g"), ("value", title, ".4g"))
    tooltip = [*(alt.Tooltip(f"{field}:Q", title=name, format=form) for field, name, form in formats), "series"]
    dots = alt.Chart(data).mark_point(aria=False, filled=True, size=60).encode(horizontal, y, colour, tooltip=tooltip)
    layers.append(dots.encode(opacity=alt.condition(nearest, alt.value(1), alt.value(0))).add_params(nearest))
    if len(events):
        rules = alt.Chart(events).mark_rule(color=WARNING, opacity=0.6, strokeDash=[4, 3])
        layers.append(rules.encode(horizontal, tooltip="words:N"))
    return _layered(*layers, height=_HEIGHT, description=f"{title} against {x.title}")


def against_prediction(points: Sequence[ChartPoint], predicted: Estimate | None, title: str) -> alt.LayerChart:
    """Draws measured values over steps, and the predicted interval."""
    ends = (points[0], points[-1]) if predicted is not None and points else ()
    band = [{"step": p.step, "low": predicted.low, "high": predicted.high} for p in ends] if predicted else []
    rows = [{"step": p.step, "value": p.value, "series": title} for p in points]
    return lines(rows, x=ChartAxis(field="step", title="step"), title=title, colours={title: ACTUAL}, band=band)


def sparkline(values: Sequence[float], words: str) -> alt.Chart:
    """Draws a small line without axes; `words` describe it to people who cannot see it."""
    drawn = _chart({"place": place, "value": value} for place, value in enumerate(values))
    drawn = drawn.mark_line(color=REJECTED, strokeWidth=1.5, aria=False).properties(description=words, height=50)
    return drawn.encode(alt.X("place:Q", axis=None), alt.Y("value:Q", axis=None, scale=_TIGHT))


def scatter_row(name: str, predicted: Estimate, actual: float, *, inside: bool, words: Formatter) -> dict[str, object]:
    """Returns a row of `identity_scatter`."""
    return {
        "run": name,
        "predicted": predicted.value,
        "low": predicted.low,
        "high": predicted.high,
        "actual": actual,
        "inside": "inside the interval" if inside else "outside",
        "label": f"{format_estimate(predicted, words)}; actual {words(actual)}",
    }


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
    colour = _colours("inside", {"inside the interval": GOOD, "outside": WARNING})
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


def coverage(rows: Rows) -> alt.LayerChart:
    """Compares the nominal coverage of intervals with their actual coverage. Rows: promised, held (0…1), label."""
    scale = alt.Scale(domain=[0.0, 1.0])
    ends: dict[str, Any] = {"scale": scale, "axis": alt.Axis(format=".0%", tickCount=6)}
    line = _chart(rows).mark_line(color=PREDICTED, point={"size": 50, "color": PREDICTED}).encode(
        alt.X("promised:Q", title="promised share inside the interval", **ends),
        alt.Y("held:Q", title="actual share inside the interval", **ends),
        tooltip=_tips(label="held of promised"),
    )  # fmt: skip
    return _layered(_diagonal(scale), line, height=260)


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
    rows: Rows, missed: Rows, *, sight: tuple[str, str, str], quality: str, limits: tuple[float | None, float | None]
) -> alt.LayerChart:
    """Draws two of dollars, hours and quality on the axes, and the third as colour if all rows have it.

    Rows hold id, usd, hours, quality, shown, label and the words of NOTE for the tooltip. The first rows keep their
    labels if there is no room for all. `limits` are the budget in dollars and the deadline in hours. A click selects a
    run by its id.
    """
    data, crosses = pd.DataFrame(list(rows)), pd.DataFrame(list(missed))
    (across, up, shade), names = sight, []
    titles = {"usd": f"{COST.name}, dollars", "hours": f"{TIME.name}, hours", "quality": quality}
    formats = {"usd": "$,.3~r", "hours": ",.3~r"}  # SI's m (a thousandth) would be read as minutes or a million

    def axis(field: str, better: str) -> dict[str, Any]:
        title = f"{titles[field]} ({better} better)"
        if field in formats:
            return {"title": title, "scale": _padded_log(), "axis": _few_ticks(format=formats[field])}
        return {"title": title, "scale": alt.Scale(zero=False, padding=20), "axis": alt.Axis(tickCount=6)}

    x, y = alt.X(f"{across}:Q", **axis(across, "\u2190")), alt.Y(f"{up}:Q", **axis(up, "\u2193"))
    tooltip = [alt.Tooltip(f"{name}:N") for name in NOTE]
    colour: Any = alt.value(PREDICTED)
    if (data[shade] > 0).all() and data[shade].nunique() > 1:  # without prices there is no colour to show
        scale = alt.Scale(range=list(_SHADES), type="linear" if shade == "quality" else "log")
        legend = alt.Legend(orient="top", gradientLength=180, tickCount=4, titleLimit=300)
        colour = alt.Color(f"{shade}:Q", title=titles[shade], scale=scale, legend=legend)

    def shown(yes: Any, no: Any) -> Any:
        return alt.condition("datum.shown", alt.value(yes), alt.value(no))

    pick = alt.selection_point(name=PICK, fields=["id"], on="click", empty=False)
    dots = alt.Chart(data).mark_circle(opacity=1, cursor="pointer").add_params(pick).encode(
        x, y, color=colour, size=shown(320, 130), stroke=shown(WARNING, REJECTED), strokeWidth=shown(3, 1),
        tooltip=tooltip, description="words:N",
    )  # fmt: skip
    ends = {"usd": (limits[0], "budget"), "hours": (limits[1], "deadline")}
    named = [(way, *ends[field]) for way, field in (("x", across), ("y", up)) if field in ends]
    layers: list[Any] = [_limit(way, limit, words) for way, limit, words in named if limit is not None]
    if len(crosses):
        cross = alt.Chart(crosses).mark_point(shape="cross", angle=45, color=REJECTED, size=90, filled=True)
        layers.append(cross.encode(x, y, tooltip=tooltip, description="words:N"))
    # Only names that do not overlap are drawn: right of their dots or, near the right edge, left of them.
    both = pd.concat([data, crosses])
    right, high = (_places(data[field], both[field], log=field in formats) for field in (across, up))
    placed: list[int] = []
    for i in range(len(data)):
        if all(abs(right[i] - right[k]) > _NAME_WIDTH or abs(high[i] - high[k]) > _NAME_HEIGHT for k in placed):
            placed.append(i)
    labelled, is_left = data.iloc[placed], right[placed] <= 1 - _NAME_WIDTH
    sides: Any = (labelled[is_left], "left", 12), (labelled[~is_left], "right", -12)
    for points, align, dx in sides:
        text = alt.Chart(points).mark_text(aria=False, align=align, dx=dx, dy=-9, fontSize=11, color=REJECTED)
        names += [text.encode(x, y, text="label:N")] if len(points) else []
    return _layered(*layers, dots, *names, height=460)


def _places(values: pd.Series, whole: pd.Series, *, log: bool) -> np.ndarray:
    """Returns where values lie between the ends of an axis, as 0…1. All are 0 if the ends are equal."""
    value, every = (series.to_numpy(dtype=float) for series in (values, whole))
    if log:
        value, every = np.log(value), np.log(every)
    span = float(every.max() - every.min())
    return (value - every.min()) / span if span else np.zeros(len(value))


def ringed(spec: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the drawn chart with a ring at one more run: a what-if, which moves with its sliders, or a selected run.

    The ring is added to the finished drawing, because drawing everything again takes longer than answering a slider.
    """
    dots = next(layer for layer in spec["layer"] if layer.get("mark", {}).get("type") == "circle")
    encoding = {name: dots["encoding"][name] for name in ("x", "y", "tooltip", "description")}
    mark = {"type": "point", "filled": False, "size": 320, "strokeWidth": 3, "color": WARNING, "opacity": 1}
    return spec | {"layer": [*spec["layer"], {"data": {"values": [row]}, "mark": mark, "encoding": encoding}]}
