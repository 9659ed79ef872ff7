"""The charts that only the page Plan has: marks, scales and titles. Every number comes from the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import Optional

from advisor.report.charts import ACTUAL, BAND, HEIGHT, PARTS, PREDICTED, REJECTED, WARNING, Rows, frame, layered, named
from advisor.report.quantities import COST, LOSS, TIME

PICK = "pick"  # name of the selection that the page reads
MONEY, HOURS, PLAIN = "$,.3~r", ",.3~r", ".3~s"  # SI's m (a thousandth) would be read as minutes or a million
TALL = 460
_LABEL = 0.16  # share of the chart's width that the label of a dot takes
NOTE = ("model", "on", TIME.column, COST.column, LOSS.column, "remark")  # columns about a run of the search
# Best first: viridis without its darkest third, which is invisible on a dark page. Lightness still falls throughout.
GROUNDS = ("#F5D90A", "#7AD151", "#22A884", "#2A788E", "#50609C")


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The axes and the colour of the chart of runs, as names of fields in its rows."""

    x: str
    y: str
    colour: str


SIGHTS = {
    "cost and loss": Sight(x="usd", y="quality", colour="hours"),
    "time and loss": Sight(x="hours", y="quality", colour="usd"),
    "cost and time": Sight(x="usd", y="hours", colour="quality"),
}


def front(
    rows: Rows, missed: Rows, *, sight: Sight, quality: str, limits: tuple[float | None, float | None]
) -> alt.LayerChart:
    """Draw two of dollars, hours and quality on the axes, and the third as colour if all rows have it.

    Rows hold id, usd, hours, quality, shown, label and the words of NOTE for the tooltip. The first rows keep their
    labels if there is no room for all. `limits` are the budget in dollars and the deadline in hours. A click selects a
    run by its id.
    """
    data, crosses = frame(rows), frame(missed)
    both = pd.concat([data, crosses])
    pick = alt.selection_point(name=PICK, fields=["id"], on="click", empty=False)
    titles = {"usd": f"{COST.name}, dollars", "hours": f"{TIME.name}, hours", "quality": quality}
    better = {"x": " (\u2190 better)", "y": " (\u2193 better)"}
    words = {"usd": MONEY, "hours": HOURS}

    def axis(field: str, way: str) -> dict[str, Any]:
        title = titles[field] + better[way]
        if field in words:
            return {"title": title, "scale": _log(), "axis": _axis(words[field])}
        return {"title": title, "scale": alt.Scale(zero=False, padding=20), "axis": alt.Axis(tickCount=6)}

    x, y = alt.X(f"{sight.x}:Q", **axis(sight.x, "x")), alt.Y(f"{sight.y}:Q", **axis(sight.y, "y"))
    tooltip = [alt.Tooltip(f"{name}:N") for name in NOTE]
    legend = alt.Legend(orient="top", gradientLength=180, tickCount=4, titleLimit=300)
    colour: Any = alt.value(PREDICTED)
    if (data[sight.colour] > 0).all() and data[sight.colour].nunique() > 1:  # without prices there is no colour to show
        scale = alt.Scale(range=list(GROUNDS), type="linear" if sight.colour == "quality" else "log")
        colour = alt.Color(f"{sight.colour}:Q", title=titles[sight.colour], scale=scale, legend=legend)
    dots = (
        alt.Chart(data)
        .mark_circle(opacity=1, cursor="pointer")
        .encode(
            x,
            y,
            color=colour,
            size=alt.condition("datum.shown", alt.value(320), alt.value(130)),
            stroke=alt.condition("datum.shown", alt.value(WARNING), alt.value(REJECTED)),
            strokeWidth=alt.condition("datum.shown", alt.value(3), alt.value(1)),
            tooltip=tooltip,
            description="words:N",
        )
        .add_params(pick)
    )
    ends = {"usd": limits[0], "hours": limits[1]}
    layers: list[alt.Chart | alt.LayerChart] = [
        _line(way, limit, "budget" if field == "usd" else "deadline")
        for way, field in (("x", sight.x), ("y", sight.y))
        if (limit := ends.get(field)) is not None
    ]
    if len(crosses):
        base = alt.Chart(crosses).mark_point(shape="cross", angle=45, color=REJECTED, size=90, filled=True)
        layers.append(base.encode(x, y, tooltip=tooltip, description="words:N"))
    across, up = (_places(data[field], both[field], log=field in words) for field in (sight.x, sight.y))
    texts = [
        alt.Chart(names.points)
        .mark_text(
            aria=False, align=names.align, dx=names.dx + (6 if names.dx > 0 else -6), dy=-9, fontSize=11, color=REJECTED
        )
        .encode(x, y, text="label:N")
        for names in named(data, across, up, width=_LABEL)
        if len(names.points)
    ]
    return layered(*layers, dots, *texts, height=TALL)


def ringed(spec: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawn chart with a ring at one more run: a what-if, which moves with its sliders, or a selected run.

    The ring is added to the finished drawing, because drawing everything again takes longer than answering a slider.
    """
    dots = next(layer for layer in spec["layer"] if layer.get("mark", {}).get("type") == "circle")
    encoding = {name: dots["encoding"][name] for name in ("x", "y", "tooltip", "description")}
    mark = {"type": "point", "filled": False, "size": 320, "strokeWidth": 3, "color": WARNING, "opacity": 1}
    return spec | {"layer": [*spec["layer"], {"data": {"values": [row]}, "mark": mark, "encoding": encoding}]}


def _places(values: pd.Series, whole: pd.Series, *, log: bool) -> np.ndarray:
    """Return where values lie between the ends of an axis, as 0…1. All are 0 if the ends are equal."""
    value, every = (series.to_numpy(dtype=float) for series in (values, whole))
    if log:
        value, every = np.log(value), np.log(every)
    span = float(every.max() - every.min())
    return (value - every.min()) / span if span else np.zeros(len(value))


def memory(
    rows: Rows, ends: Rows, *, across: str, parts: Sequence[str], limit: tuple[float, str] | None
) -> alt.LayerChart:
    """Draw stacked GiB of one device, one bar for each `place` named by `across`, with the interval of their sum.

    Rows hold place, part, order, value and label; `ends` hold place, low, high and label. The limit is its memory.
    """
    x = alt.X("place:O", sort=None, title=across, axis=alt.Axis(labelAngle=0))
    wide: Optional[float] = 90 if frame(ends)["place"].nunique() < 3 else alt.Undefined
    bars = (
        alt.Chart(frame(rows))
        .mark_bar(size=wide)
        .encode(
            x,
            alt.Y("value:Q", title="GiB per GPU"),
            alt.Color(
                "part:N",
                scale=alt.Scale(domain=list(parts), range=list(PARTS[: len(parts)])),
                title=None,
                legend=alt.Legend(orient="top", columns=3),
            ),
            alt.Order("order:Q"),
            tooltip=[alt.Tooltip("part:N", title="part"), alt.Tooltip("label:N", title="takes")],
        )
    )
    whiskers = (
        alt.Chart(frame(ends))
        .mark_rule(color=REJECTED, strokeWidth=2)
        .encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), tooltip=[alt.Tooltip("label:N", title="in all, 80 %")])
    )
    layers: list[alt.Chart | alt.LayerChart] = [bars, whiskers]
    if limit is not None:
        layers.append(_line("y", limit[0], limit[1]))
    return layered(*layers, height=HEIGHT)


def loss(rows: Rows, marks: Rows) -> alt.LayerChart:
    """Draw loss against tokens with its band. Rows hold tokens, value, low, high, label; marks tokens and words."""
    words = "replace(format(datum.value, '.3~s'), 'G', 'B')"  # SI's giga is a billion to people who count tokens
    ticks = alt.Axis(labelExpr=words, labelOverlap="greedy", tickCount=6, gridOpacity=0.4)
    x = alt.X("tokens:Q", title="training tokens", scale=_log(), axis=ticks)
    base = alt.Chart(frame(rows))
    y_scale = alt.Scale(zero=False)
    band = base.mark_area(color=PREDICTED, opacity=BAND).encode(
        x, alt.Y("low:Q", title=f"{LOSS.name}, nats per token", scale=y_scale), alt.Y2("high:Q")
    )
    line = base.mark_line(color=PREDICTED).encode(
        x, alt.Y("value:Q", scale=y_scale), tooltip=[alt.Tooltip("label:N", title="loss")]
    )
    layers: list[alt.Chart | alt.LayerChart] = [band, line]
    limits = frame(marks)
    if len(limits):
        colour = alt.Color(
            "words:N",
            title=None,
            scale=alt.Scale(domain=list(limits["words"]), range=[ACTUAL, WARNING, "#CC79A7", "#009E73", REJECTED]),
            legend=alt.Legend(orient="top"),
        )
        rules = alt.Chart(limits).mark_rule(strokeDash=[6, 4], strokeWidth=2)
        layers.append(rules.encode(x, colour, tooltip=[alt.Tooltip("words:N", title="mark")]))
    return layered(*layers, height=HEIGHT)


def scaling(rows: Rows, ideal: Rows) -> alt.LayerChart:
    """Draw tokens/s against GPUs, and the ideal line. Rows hold gpus, value, label; `ideal` holds the first two."""
    ticks = [row["gpus"] for row in rows]
    x = alt.X("gpus:Q", title="GPUs", scale=_log(2), axis=alt.Axis(values=ticks, format="d"))
    y = alt.Y("value:Q", title="tokens per second", scale=_log(), axis=_axis(PLAIN))
    straight = alt.Chart(frame(ideal)).mark_line(color=REJECTED, strokeDash=[6, 4]).encode(x, y)
    line = (
        alt.Chart(frame(rows))
        .mark_line(color=PREDICTED, point={"size": 60, "color": PREDICTED})
        .encode(x, y, tooltip=[alt.Tooltip("label:N", title="on so many")])
    )
    return layered(straight, line, height=HEIGHT)


def _axis(words: str) -> alt.Axis:
    return alt.Axis(format=words, labelOverlap="greedy", tickCount=6, gridOpacity=0.4)


def _log(base: int = 10) -> alt.Scale:
    return alt.Scale(type="log", base=base, nice=False, padding=20)


def _line(axis: str, value: float, words: str) -> alt.LayerChart:
    """Draw a named dashed line across the chart at a limit."""
    data = frame([{"limit": value, "words": words}])
    rule = alt.Chart(data).mark_rule(color=WARNING, strokeDash=[6, 4]).encode(**{axis: "limit:Q"}, tooltip="words:N")
    if axis == "x":
        text = alt.Chart(data).mark_text(color=WARNING, align="right", dx=-5, baseline="top", dy=4)
        return layered(rule, text.encode(x="limit:Q", y=alt.value(0), text="words:N"))
    text = alt.Chart(data).mark_text(color=WARNING, align="left", dx=4, dy=-7)
    return layered(rule, text.encode(y="limit:Q", x=alt.value(0), text="words:N"))
