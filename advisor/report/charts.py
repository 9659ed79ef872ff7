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

from advisor.laws.held_out import HeldOut
from advisor.units import HOUR, Formatter, format_estimate, format_seconds

PREDICTED, ACTUAL, GOOD, WARNING, REJECTED = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8C8C8C"
PARTS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#F0E442", "#8C8C8C")
SERIES = (PARTS[0], PARTS[3], PARTS[2], PARTS[4], PARTS[1], PARTS[5], PARTS[7], PARTS[6])  # neighbours differ
BAND = 0.2
FAINT = 0.45
HEIGHT = 300
NAME_HEIGHT = 0.07  # height of a name, as a share of the chart
LOG_FROM = 3.0  # an axis that spans a larger factor is logarithmic

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ChartAxis:
    """One axis of a chart: the field of its rows, and the title with its unit."""

    field: str
    title: str
    log: bool = False  # always logarithmic, even for a small range


def layered(*layers: alt.Chart | alt.LayerChart, height: int | None = None) -> alt.LayerChart:
    """Draws charts over each other on the same axes; a chart inside another one has no `height` (in pixels)."""
    chart = alt.layer(*layers)
    assert isinstance(chart, alt.LayerChart)  # only facets would make altair return facets
    return chart if height is None else chart.properties(height=height)


def frame(rows: Rows) -> pd.DataFrame:
    """Returns rows of plain values as the data frame that Altair needs."""
    return pd.DataFrame(list(rows))


_TIMES = {"µs": "microseconds", "ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours"}


def timed(*groups: Sequence[Mapping[str, Any]]) -> tuple[ChartAxis, list[list[dict[str, Any]]]]:
    """Returns an axis and rows with `time` in place of `hours`, in a unit that suits the longest time."""
    factor, suffix = format_seconds.unit(
        HOUR * max((float(row["hours"]) for rows in groups for row in rows), default=0)
    )
    per_hour = HOUR / factor
    told = [[{**row, "time": row["hours"] * per_hour} for row in rows] for rows in groups]
    return ChartAxis(field="time", title=_TIMES.get(suffix, suffix)), told


def in_unit(rows: Sequence[Mapping[str, Any]], field: str, words: Formatter) -> tuple[list[dict[str, Any]], str]:
    """Returns rows with one field in the unit that suits its largest value, and that unit."""
    factor, suffix = words.unit(max((abs(float(row[field])) for row in rows), default=0.0))
    return [{**row, field: row[field] / factor} for row in rows], suffix


def curve(
    rows: Rows,
    *,
    x: ChartAxis,
    y: ChartAxis,
    points: Rows = (),
    log_x: bool = False,
) -> alt.LayerChart:
    """Draws a fitted curve (`value` over `x`, band `low` to `high`) with measured `points`.

    Rows hold `x`'s field, value, low, high and a tooltip text in `label`; points hold the same without low and high.
    """
    x_scale = alt.Scale(type="log", base=2) if log_x else alt.Scale(zero=False)
    horizontal = alt.X(f"{x.field}:Q", title=x.title, scale=x_scale)
    scale = alt.Scale(zero=False)
    tooltip = [alt.Tooltip("label:N", title="at")]
    base = alt.Chart(frame(rows))
    band = base.mark_area(color=PREDICTED, opacity=BAND).encode(
        horizontal, alt.Y("low:Q", title=y.title, scale=scale), alt.Y2("high:Q")
    )
    line = base.mark_line(color=PREDICTED, point={"size": 30, "color": PREDICTED}).encode(
        horizontal, alt.Y(f"{y.field}:Q", title=y.title, scale=scale), tooltip=tooltip
    )
    layers = [band, line]
    measured = frame(points)
    if len(measured):
        layers.append(
            alt.Chart(measured)
            .mark_point(color=ACTUAL, filled=True, size=70)
            .encode(horizontal, alt.Y(f"{y.field}:Q"), tooltip=tooltip)
        )
    return layered(*layers, height=HEIGHT)


def bill(rows: Rows, *, parts: Sequence[str]) -> alt.Chart:
    """Draws for each of several amounts a bar of its parts' shares; rows hold what, part, order, value and label."""
    return (
        alt.Chart(frame(rows))
        .mark_bar(size=44)
        .encode(
            alt.X("value:Q", title="share of the whole", stack="normalize", axis=alt.Axis(format="%")),
            alt.Y("what:N", title=None, sort=None),
            alt.Color(
                "part:N", title=None, scale=alt.Scale(domain=list(parts), range=[*PARTS, "#999933"]),
                legend=alt.Legend(orient="top", columns=4),
            ),
            alt.Order("order:Q"),
            tooltip=[alt.Tooltip("part:N", title="part"), alt.Tooltip("label:N", title="takes")],
        )
        .properties(height=alt.Step(70))
    )  # fmt: skip


def zoomable(chart: alt.LayerChart) -> alt.LayerChart:
    """Returns a chart that users drag to move and zoom with Shift and the wheel; the wheel alone scrolls the page."""
    return chart.add_params(alt.selection_interval(bind="scales", zoom="wheel![event.shiftKey]"))


def lines(
    rows: Rows,
    *,
    x: ChartAxis,
    y: ChartAxis,
    colours: Mapping[str, str],
    band: Rows = (),
    log_y: bool = False,
    marks: Rows = (),
    behind: Rows = (),
    dashes: Mapping[str, Sequence[int]] | None = None,
) -> alt.LayerChart:
    """Draws named series over one axis. Rows hold x's and y's field and `series`; band rows hold x's field, low, high.

    `marks` are vertical lines with x's field and `words`: findings, checkpoints, restarts. `behind` are faint rows
    under the others: their values before smoothing. With `dashes` rows also hold `kind`, one of its keys.
    """
    data, faint = frame(rows), frame(behind)
    whole = pd.concat([data, faint])
    number_format = "~s" if len(data) and data[x.field].max() >= 1e4 else ".4~g"
    across = alt.Scale(nice=False, zero=False, type="log" if x.log else "linear")  # the curve fills the full width
    horizontal = alt.X(f"{x.field}:Q", title=x.title, axis=alt.Axis(format=number_format, tickCount=8), scale=across)
    scale: alt.Scale = alt.Scale(zero=False)
    axis: Optional[alt.Axis] = alt.Undefined
    if log_y or y.log:
        ends = _with_margin(float(whole[y.field].min()), float(whole[y.field].max()))
        scale, axis = _scale(ends, always=y.log), _axis(ends)
    layers: list[alt.Chart] = []
    expected = frame(band)
    if len(expected):
        low = alt.Y("low:Q", title=y.title, scale=scale, axis=axis)
        layers.append(
            alt.Chart(expected).mark_area(color=PREDICTED, opacity=BAND).encode(horizontal, low, alt.Y2("high:Q"))
        )
    vertical = alt.Y(f"{y.field}:Q", title=y.title, scale=scale, axis=axis)
    colour = _named(colours)
    if len(faint):
        layers.append(
            alt.Chart(faint).mark_line(aria=False, opacity=FAINT, strokeWidth=1).encode(horizontal, vertical, colour)
        )
    dash = _dashed(data, dashes) if dashes is not None else alt.Undefined
    layers.append(alt.Chart(data).mark_line(aria=False).encode(horizontal, vertical, colour, strokeDash=dash))
    # The point nearest to the mouse shows its numbers, because a line of two pixels is hard to hit.
    nearest = alt.selection_point(nearest=True, on="pointerover", clear="pointerout", empty=False)
    tooltip = [
        alt.Tooltip(f"{x.field}:Q", title=x.title, format=",.6~g"),
        alt.Tooltip(f"{y.field}:Q", title=y.title, format=".4g"),
        "series",
    ]
    dots = (
        alt.Chart(data)
        .mark_point(aria=False, filled=True, size=60)
        .encode(horizontal, vertical, colour, tooltip=tooltip)
    )
    layers.append(dots.encode(opacity=alt.condition(nearest, alt.value(1), alt.value(0))).add_params(nearest))
    events = frame(marks)
    if len(events):
        rules = alt.Chart(events).mark_rule(color=WARNING, opacity=0.6, strokeDash=[4, 3])
        layers.append(rules.encode(horizontal, tooltip="words:N"))
    return layered(*layers, height=HEIGHT).properties(description=f"{y.title} against {x.title}")


def sparkline(values: Sequence[float], words: str) -> alt.Chart:
    """Draws a small line without axes; `words` describe it to people who cannot see it."""
    rows = frame([{"place": place, "value": value} for place, value in enumerate(values)])
    y = alt.Y("value:Q", axis=None, scale=alt.Scale(zero=False))
    drawn = alt.Chart(rows, description=words).mark_line(color=REJECTED, strokeWidth=1.5, aria=False)
    return drawn.encode(alt.X("place:Q", axis=None), y).properties(height=50)


def _named(colours: Mapping[str, str]) -> alt.Color:
    """Returns the colours of the series, with a legend if there are several."""
    return alt.Color(
        "series:N",
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        title=None,
        legend=alt.Legend(orient="top", columns=4, symbolOpacity=1, labelLimit=0) if len(colours) > 1 else None,
    )


def _dashed(data: pd.DataFrame, dashes: Mapping[str, Sequence[int]]) -> alt.StrokeDash:
    """Returns the dashes of the kinds in the data, with a legend if there are several."""
    drawn = {kind: list(dash) for kind, dash in dashes.items() if (data["kind"] == kind).any()}
    return alt.StrokeDash(
        "kind:N",
        scale=alt.Scale(domain=list(drawn), range=list(drawn.values())),
        title=None,
        legend=alt.Legend(orient="top") if len(drawn) > 1 else None,
    )


def held_out_rows(held: HeldOut, called: Callable[[Any], str]) -> list[dict[str, object]]:
    """Returns rows of `identity_scatter`: each configuration's step as predicted from the others, named by `called`."""
    return [
        {
            "run": called(point.configuration),
            "predicted": point.predicted.value,
            "low": point.predicted.low,
            "high": point.predicted.high,
            "actual": point.actual,
            "inside": "inside the interval" if point.inside else "outside",
            "label": f"{format_estimate(point.predicted, format_seconds)}; actual {format_seconds(point.actual)}",
        }
        for point in held.points
    ]


def identity_scatter(rows: Rows, *, unit: str) -> alt.LayerChart:
    """Draws predicted over actual values with the identity line; logarithmic if they span more than a factor of 3.

    Rows hold predicted, low, high, actual, `inside` (in words), `run` and a tooltip text in `label`.
    """
    data = frame(rows)
    ends = _with_margin(float(data[["low", "actual"]].min().min()), float(data[["high", "actual"]].max().max()))
    scale, axis = _scale(ends), _axis(ends)
    colour = alt.Color(
        "inside:N",
        scale=alt.Scale(domain=["inside the interval", "outside"], range=[GOOD, WARNING]),
        title=None,
        legend=alt.Legend(orient="top"),
    )
    base = alt.Chart(data)
    bars = base.mark_rule().encode(
        alt.X("low:Q", scale=scale, axis=axis, title=f"predicted, {unit}"),
        alt.X2("high:Q"),
        alt.Y("actual:Q", scale=scale, axis=axis),
        colour,
    )
    dots = base.mark_point(filled=True, size=80).encode(
        alt.X("predicted:Q", scale=scale, axis=axis, title=f"predicted, {unit}"),
        alt.Y("actual:Q", scale=scale, axis=axis, title=f"actual, {unit}"),
        colour,
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("label:N", title="predicted and actual")],
    )
    return layered(_diagonal(ends, scale), bars, dots, height=340)


def _diagonal(ends: tuple[float, float], scale: alt.Scale) -> alt.Chart:
    """Draws the line on which both axes have the same value."""
    line = alt.Chart(frame([{"x": end, "y": end} for end in ends])).mark_line(color=REJECTED, strokeDash=[4, 4])
    return line.encode(alt.X("x:Q", scale=scale), alt.Y("y:Q", scale=scale))


def coverage(rows: Rows) -> alt.LayerChart:
    """Compares the promised coverage of intervals with their actual one; rows hold promised, held (0…1) and `label`."""
    share = alt.Axis(format=".0%", tickCount=6)
    scale = alt.Scale(domain=[0, 1])
    line = (
        alt.Chart(frame(rows))
        .mark_line(color=PREDICTED, point={"size": 50, "color": PREDICTED})
        .encode(
            alt.X("promised:Q", scale=scale, axis=share, title="promised share inside the interval"),
            alt.Y("held:Q", scale=scale, axis=share, title="actual share inside the interval"),
            tooltip=[alt.Tooltip("label:N", title="held of promised")],
        )
    )
    return layered(_diagonal((0.0, 1.0), scale), line, height=260)


def waterfall(rows: Rows, *, unit: str) -> alt.Chart:
    """Draws bars that each begin where the bar above ended; rows hold `part`, `low`, `high`, `kind`, `label`."""
    data = frame(rows)
    kinds = ["wall clock", "longer", "shorter"]
    return (
        alt.Chart(data)
        .mark_bar(clip=True)
        .encode(
            alt.Y("part:N", sort=list(data["part"]), title=None, axis=alt.Axis(labelLimit=220)),
            alt.X("low:Q", title=unit, scale=alt.Scale(domainMin=0)),  # lengths of whole bars are compared
            alt.X2("high:Q"),
            alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=[REJECTED, WARNING, GOOD]),
                title=None,
                legend=alt.Legend(orient="top"),
            ),
            tooltip=[alt.Tooltip("part:N", title="part"), alt.Tooltip("label:N", title="takes")],
        )
        .properties(height=alt.Step(24))
    )


def _with_margin(low: float, high: float) -> tuple[float, float]:
    """Returns the ends of an axis slightly outside its values, by ratio."""
    margin = max(1.05, (high / low) ** 0.06)
    return low / margin, high * margin


def _scale(ends: tuple[float, float], always: bool = False) -> alt.Scale:
    """Returns a scale exactly from end to end, not rounded to whole decades; logarithmic if that helps or `always`."""
    kind: Literal["log", "linear"] = "log" if always or ends[1] / ends[0] > LOG_FROM else "linear"
    return alt.Scale(type=kind, domain=list(ends), nice=False, zero=False)


def _axis(ends: tuple[float, float], money: bool = False) -> alt.Axis:
    """Returns an axis with few round ticks (1, 2, 5 times powers of ten on a logarithmic scale) and short labels."""
    number_format = "$.4~g" if money else "~s" if ends[1] >= 1e4 else ".4~g"
    if ends[1] / ends[0] <= LOG_FROM:
        return alt.Axis(format=number_format, tickCount=6)
    powers = range(math.floor(math.log10(ends[0])), math.ceil(math.log10(ends[1])) + 1)
    ticks = [step * 10.0**power for power in powers for step in (1, 2, 5) if ends[0] <= step * 10.0**power <= ends[1]]
    return alt.Axis(format=number_format, values=ticks)


@dataclass(frozen=True, kw_only=True, eq=False)
class Names:
    """Points with names on one side: the alignment of the text and its distance in pixels."""

    align: Literal["left", "right"]
    dx: int
    points: pd.DataFrame


def named(points: pd.DataFrame, x: np.ndarray, y: np.ndarray, width: float) -> list[Names]:
    """Returns the points whose names do not overlap; earlier points go first. `x` and `y` are 0…1 of the chart.

    Names are right of their points or, near the right edge, left of them; `width` is the width of a name.
    """
    kept: list[int] = []
    for place in range(len(points)):
        if all(abs(x[place] - x[k]) > width or abs(y[place] - y[k]) > NAME_HEIGHT for k in kept):
            kept.append(place)
    shown, at = points.iloc[kept], x[kept]
    return [
        Names(align="left", dx=6, points=shown[at <= 1 - width]),
        Names(align="right", dx=-6, points=shown[at > 1 - width]),
    ]
