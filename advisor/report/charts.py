"""Records to Altair charts. Colours are Okabe-Ito's, told apart by colour-blind eyes, on light and dark grounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

PREDICTED, ACTUAL, GOOD, WARNING, REJECTED = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8C8C8C"
PARTS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#F0E442", "#8C8C8C")
BAND = 0.2
HEIGHT = 300

Rows = Iterable[Mapping[str, Any]]


def frame(rows: Rows) -> pd.DataFrame:
    """Rows of plain values as Altair wants them."""
    return pd.DataFrame(list(rows))


def curve(
    rows: Rows,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    points: Rows = (),
    log_x: bool = False,
    zero: bool = False,
    limit: tuple[float, str] | None = None,
) -> alt.LayerChart:
    """A fitted curve (`value` over `x`, band `low` to `high`) with measured `points` and a horizontal limit.

    `x` and `y` are (field, title with unit); rows hold `x`'s field, value, low, high and a text for the tooltip in
    `label`; points hold the same without low and high.
    """
    x_scale = alt.Scale(type="log", base=2) if log_x else alt.Scale(zero=False)
    horizontal = alt.X(f"{x[0]}:Q", title=x[1], scale=x_scale)
    scale = alt.Scale(zero=zero)
    tooltip = [alt.Tooltip("label:N", title="at")]
    base = alt.Chart(frame(rows))
    band = base.mark_area(color=PREDICTED, opacity=BAND).encode(
        horizontal, alt.Y("low:Q", title=y[1], scale=scale), alt.Y2("high:Q")
    )
    line = base.mark_line(color=PREDICTED, point={"size": 30, "color": PREDICTED}).encode(
        horizontal, alt.Y("value:Q", title=y[1], scale=scale), tooltip=tooltip
    )
    layers: list[alt.Chart] = [band, line]
    measured = frame(points)
    if len(measured):
        layers.append(
            alt.Chart(measured)
            .mark_point(color=ACTUAL, filled=True, size=70)
            .encode(horizontal, alt.Y("value:Q"), tooltip=tooltip)
        )
    if limit is not None:
        layers.append(rule(limit[0], limit[1]))
    return alt.layer(*layers).properties(height=HEIGHT)


def rule(value: float, words: str) -> alt.LayerChart:
    """A horizontal line with its name."""
    data = frame([{"limit": value, "words": words}])
    line = alt.Chart(data).mark_rule(color=WARNING, strokeDash=[6, 4]).encode(y="limit:Q", tooltip="words:N")
    text = (
        alt.Chart(data)
        .mark_text(color=WARNING, align="left", dx=4, dy=-6)
        .encode(y="limit:Q", x=alt.value(0), text="words:N")
    )
    return alt.layer(line, text)


def stacked(rows: Rows, *, x: tuple[str, str], y: str, parts: Sequence[str], limit: tuple[float, str] | None = None):
    """Stacked bars over an ordinal axis: rows hold x's field, `part`, `value` and a tooltip text in `label`."""
    chart = (
        alt.Chart(frame(rows))
        .mark_bar()
        .encode(
            alt.X(f"{x[0]}:O", title=x[1], axis=alt.Axis(labelAngle=0)),
            alt.Y("value:Q", title=y),
            alt.Color("part:N", scale=alt.Scale(domain=list(parts), range=list(PARTS[: len(parts)])), title=None),
            alt.Order("order:Q"),
            tooltip=[alt.Tooltip("part:N", title="part"), alt.Tooltip("label:N", title="size")],
        )
    )
    layers = [chart] if limit is None else [chart, rule(*limit)]
    return alt.layer(*layers).properties(height=HEIGHT)


def bill(rows: Rows, *, unit: str, parts: Sequence[str]) -> alt.Chart:
    """One horizontal stacked bar: rows hold `part`, `value`, `label`, `order`."""
    return (
        alt.Chart(frame(rows))
        .mark_bar(size=36)
        .encode(
            alt.X("value:Q", title=unit, stack="zero"),
            alt.Color("part:N", scale=alt.Scale(domain=list(parts), range=list(PARTS[: len(parts)])), title=None),
            alt.Order("order:Q"),
            tooltip=[alt.Tooltip("part:N", title="part"), alt.Tooltip("label:N", title="takes")],
        )
        .properties(height=90)
    )


def lines(
    rows: Rows,
    *,
    x: tuple[str, str],
    y: tuple[str, str],
    colours: Mapping[str, str],
    band: Rows = (),
    log_y: bool = False,
    marks: Rows = (),
) -> alt.LayerChart:
    """Several named series over one axis: rows hold x's and y's field and `series`; band rows x's field, low, high.

    `marks` are vertical lines with x's field and `words`: findings, checkpoints, restarts.
    """
    horizontal = alt.X(f"{x[0]}:Q", title=x[1])
    scale = alt.Scale(type="log") if log_y else alt.Scale(zero=False)
    layers: list[alt.Chart] = []
    expected = frame(band)
    if len(expected):
        layers.append(
            alt.Chart(expected)
            .mark_area(color=PREDICTED, opacity=BAND)
            .encode(horizontal, alt.Y("low:Q", title=y[1], scale=scale), alt.Y2("high:Q"))
        )
    layers.append(
        alt.Chart(frame(rows))
        .mark_line()
        .encode(
            horizontal,
            alt.Y(f"{y[0]}:Q", title=y[1], scale=scale),
            alt.Color(
                "series:N",
                scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                title=None,
                legend=alt.Legend(orient="top") if len(colours) > 1 else None,
            ),
            tooltip=[
                alt.Tooltip(f"{x[0]}:Q", title=x[1]),
                alt.Tooltip(f"{y[0]}:Q", title=y[1], format=".4g"),
                "series",
            ],
        )
    )
    found = frame(marks)
    if len(found):
        layers.append(
            alt.Chart(found)
            .mark_rule(color=WARNING, opacity=0.6, strokeDash=[4, 3])
            .encode(horizontal, tooltip="words:N")
        )
    return alt.layer(*layers).properties(height=HEIGHT)


def identity_scatter(rows: Rows, *, unit: str) -> alt.LayerChart:
    """Predicted against actual on logarithmic axes with the identity line; rows hold predicted, low, high, actual,
    `inside` (in words), `run` and a tooltip text in `label`.
    """
    data = frame(rows)
    ends = [float(data[["low", "actual"]].min().min()), float(data[["high", "actual"]].max().max())]
    scale = alt.Scale(type="log", domain=ends, nice=True)
    diagonal = (
        alt.Chart(frame([{"x": end, "y": end} for end in ends]))
        .mark_line(color=REJECTED, strokeDash=[4, 4])
        .encode(alt.X("x:Q", scale=scale), alt.Y("y:Q", scale=scale))
    )
    colour = alt.Color(
        "inside:N",
        scale=alt.Scale(domain=["inside the interval", "outside"], range=[GOOD, WARNING]),
        title=None,
        legend=alt.Legend(orient="top"),
    )
    base = alt.Chart(data)
    bars = base.mark_rule().encode(
        alt.X("low:Q", scale=scale, title=f"predicted, {unit}"),
        alt.X2("high:Q"),
        alt.Y("actual:Q", scale=scale),
        colour,
    )
    dots = base.mark_point(filled=True, size=80).encode(
        alt.X("predicted:Q", scale=scale, title=f"predicted, {unit}"),
        alt.Y("actual:Q", scale=scale, title=f"actual, {unit}"),
        colour,
        tooltip=[alt.Tooltip("run:N"), alt.Tooltip("label:N", title="predicted and actual")],
    )
    return alt.layer(diagonal, bars, dots).properties(height=380)


def market(rows: Rows) -> alt.LayerChart:
    """Dollars per billion tokens against speed, a named point per card with its interval, prior or calibrated."""
    data = frame(rows)
    colour = alt.Color(
        "basis:N",
        scale=alt.Scale(domain=["calibrated", "prior"], range=[GOOD, PREDICTED]),
        title=None,
        legend=alt.Legend(orient="top"),
    )
    x = alt.X("tokens_per_second:Q", scale=alt.Scale(type="log"), title="tokens per second")
    y_scale = alt.Scale(type="log")
    base = alt.Chart(data)
    bars = base.mark_rule(opacity=0.4).encode(
        x, alt.Y("low:Q", scale=y_scale, title="$ per billion tokens"), alt.Y2("high:Q"), colour
    )
    tooltip = [alt.Tooltip("gpu:N", title="GPU"), alt.Tooltip("label:N", title="training")]
    dots = base.mark_point(filled=True, size=70).encode(x, alt.Y("value:Q", scale=y_scale), colour, tooltip=tooltip)
    names = base.mark_text(align="left", dx=7, fontSize=10, color=REJECTED).encode(
        x, alt.Y("value:Q", scale=y_scale), text="gpu:N"
    )
    return alt.layer(bars, dots, names).properties(height=340)
