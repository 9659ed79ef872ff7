"""Draws the charts of logs: curves of one or several runs over each other, all charts of a report, and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import altair as alt

from advisor.errors import AdvisorError
from advisor.findings import chart_data
from advisor.findings.case import Case
from advisor.findings.chart_data import ChartPoint
from advisor.report import charts
from advisor.report.charts import ChartAxis
from advisor.units import format_bytes, format_percent, format_seconds
from advisor.workflows.analysis import Analysis
from advisor.workflows.analyze import names_of

AXES = {"step": "steps", "tokens": "tokens", "hours": "time", "usd": "dollars"}  # field of a point → name of the choice
LOSS = "loss"  # its validation loss is drawn with it
_ACROSS = {"step": "step", "tokens": "tokens seen", "hours": "time", "usd": "dollars"}
_MOST = 400  # largest number of points of a curve
_KINDS = {"training": (1, 0), "validation": (5, 3)}  # solid and dashed
_PICTURE_SCALE = 2.0  # for print and high-resolution screens

_Curve = Callable[[Case, int, float], list[ChartPoint]]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One chart with its heading."""

    title: str
    caption: str
    chart: alt.Chart | alt.LayerChart


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A quantity that can be drawn: its name, the unit on its axis, and the function that gets it from a `Case`."""

    title: str
    unit: str
    curve: _Curve
    log_y: bool = False  # logarithmic if its values span a large factor
    positive: bool = False  # values at or below zero are not readings


@dataclass(frozen=True, kw_only=True)
class Look:
    """The view of curves: the axis, the share of rows to smooth over, logarithmic axes, and marks."""

    axis: str = "step"  # one of AXES
    smooth: float = 0.0
    log_x: bool = False
    log_y: bool = False
    marks: bool = False


def _column(name: str) -> _Curve:
    return lambda case, most, smooth: chart_data.points(case, name, most, smooth)


_SCALARS = {
    LOSS: Scalar(title="Training loss", unit="loss as printed", curve=_column(LOSS)),
    "eval_loss": Scalar(title="Validation loss", unit="loss as printed", curve=_column("eval_loss")),
    "learning_rate": Scalar(
        title="Learning rate", unit="share of the run's peak", curve=chart_data.learning_rate_points
    ),
    "mfu": Scalar(title="MFU", unit="share of the dense peak", curve=chart_data.mfu_points),
    "seconds": Scalar(
        title="Step time", unit="seconds", curve=chart_data.step_points, log_y=True, positive=True
    ),
}  # fmt: skip
# telemetry of the machine that can be chosen; not among the curves of every report
_TELEMETRY = {
    "telemetry/utilization": ("Utilisation", "share of time with a kernel"),
    "telemetry/power_watts": ("Power", "watts of a GPU"),
    "telemetry/memory_used_bytes": ("Memory in use", "of a GPU"),
    "telemetry/temperature_celsius": ("Temperature", "°C"),
}
_REPORTED_TELEMETRY = (
    ("power_watts", "power, W"),
    ("utilization", "share of time with a kernel"),
    ("memory_used_bytes", "memory in use"),
    ("temperature_celsius", "temperature, °C"),
    ("sm_clock_mhz", "SM clock, MHz"),
)
# columns that are axes or not readings, and a learning rate's column that repeats its share
_NO_SCALARS = {
    "step", "tokens", "elapsed_seconds", "unix_seconds", "phase", "rank", "loss_is_nan", "eval_loss_is_nan",
    "learning_rate_share",
}  # fmt: skip


def scalars(analyses: Sequence[Analysis]) -> dict[str, str]:
    """Returns the curves that at least one run has, with name and title; those that every log may have come first."""

    def has_points(name: str) -> bool:
        return any(len(_scalar(name).curve(analysis.case, 2, 0.0)) > 1 for analysis in analyses)

    columns = {name for analysis in analyses for name in chart_data.columns_with_curves(analysis.case)}
    others = sorted(columns - {*_SCALARS} - _NO_SCALARS)
    names = (*filter(has_points, _SCALARS), *others, *filter(has_points, _TELEMETRY))
    return {name: _scalar(name).title for name in names}


def _scalar(name: str) -> Scalar:
    """Returns a scalar by its name; an unknown name stands for a column of the table."""
    if name in _SCALARS:
        return _SCALARS[name]
    if name in _TELEMETRY:
        title, unit = _TELEMETRY[name]
        column = name.removeprefix("telemetry/")
        telemetry = chart_data.telemetry_at_steps
        return Scalar(title=title, unit=unit, curve=lambda case, most, smooth: telemetry(case, column, most, smooth))
    title = name.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ").capitalize()
    unit = "seconds" if name.endswith("_seconds") else "as printed"
    return Scalar(title=title, unit=unit, curve=_column(name), log_y=name == "grad_norm", positive=name == "grad_norm")


def overlays(analyses: Sequence[Analysis]) -> Iterator[Plot]:
    """Yields loss, learning rate, MFU and step time of all runs, one chart for each axis that a run has."""
    drawn = (overlay(analyses, name, Look(axis=axis)) for name in _SCALARS for axis in AXES)
    yield from filter(None, drawn)


def overlay(analyses: Sequence[Analysis], name: str, look: Look, *, validation: bool = False) -> Plot | None:
    """Draws one scalar of all runs in one chart; None if no run has it on this axis.

    `validation` draws the validation loss beside the training loss: dashed, or in its own colour if there is
    only one run.
    """
    names = names_of(analyses)
    rows = _rows(analyses, names, name, look, validation)
    if len(rows) < 2:
        return None
    behind = _rows(analyses, names, name, replace(look, smooth=0.0), validation) if look.smooth else []
    marks = _marks(analyses, names, look) if look.marks else []
    scalar, field, unit = _scalar(name), look.axis, _scalar(name).unit
    across = ChartAxis(field=field, title=_ACROSS[field])
    if name.endswith("_bytes"):
        scaled, unit = charts.in_unit([*rows, *behind], "value", format_bytes)  # in the unit of the larger
        rows, behind = scaled[: len(rows)], scaled[len(rows) :]
    if field == "hours":
        across, [rows, behind, marks] = charts.timed(rows, behind, marks)
    shown = [run for run in names if any(row["run"] == run for row in rows)]
    colours = {run: charts.SERIES[names.index(run) % len(charts.SERIES)] for run in shown}
    dashes = _KINDS if validation and name == LOSS else None
    if len(names) == 1 and dashes:
        both = {"training": charts.ACTUAL, "validation": charts.GOOD}
        colours = {kind: colour for kind, colour in both.items() if any(row["kind"] == kind for row in rows)}
        rows, behind = ([{**row, "series": row["kind"]} for row in some] for some in (rows, behind))
        dashes = None
    chart = charts.lines(
        rows, x=replace(across, log=look.log_x), title=unit, colours=colours, log_y=scalar.log_y,
        always_log=look.log_y, marks=marks, behind=behind, dashes=dashes,
    )  # fmt: skip
    caption = "Drag to move, Shift and wheel to zoom, double-click to go back. "
    if look.smooth:
        caption += f"Running median of {format_percent(look.smooth)} of the rows; faint: as logged. "
    if marks:
        caption += "Dashed vertical lines: findings and phases of the learning rate; hover for their names. "
    if missing := [run for run in names if run not in shown]:
        caption += f"Not in the logs of {', '.join(missing)}."
    title = f"{'Loss' if validation and name == LOSS else scalar.title} against {_ACROSS[field]}"
    return Plot(title=title, caption=caption, chart=charts.zoomable(chart))


def _rows(
    analyses: Sequence[Analysis], names: Sequence[str], name: str, look: Look, validation: bool
) -> list[dict[str, Any]]:
    """Returns the rows of every run's curve, with its validation loss if that is drawn."""
    wanted = [(name, "training")] + ([("eval_loss", "validation")] if validation and name == LOSS else [])
    rows = []
    for run, analysis in zip(names, analyses, strict=True):
        for column, kind in wanted:
            scalar = _scalar(column)
            # evaluations are too few to smooth, so they are drawn as they are
            points = scalar.curve(analysis.case, _MOST, 0.0 if kind == "validation" else look.smooth)
            rows += [
                {look.axis: place, "value": point.value, "series": run, "run": run, "kind": kind}
                for point in points
                if (place := getattr(point, look.axis)) is not None
                and (place > 0 or not look.log_x)
                and (point.value > 0 or not (look.log_y or scalar.positive))
            ]
    return rows


def _marks(analyses: Sequence[Analysis], names: Sequence[str], look: Look) -> list[dict[str, Any]]:
    """Returns where findings occurred and phases of the learning rate begin, with texts that name the run."""
    marks = []
    for run, analysis in zip(names, analyses, strict=True):
        seen = [
            (float(evidence.first_step), f"{finding.severity.value}: {finding.title}")
            for finding in analysis.findings
            for evidence in finding.evidence
            if evidence.first_step is not None
        ]
        marks += [
            {look.axis: place, "words": mark.words if len(names) == 1 else f"{run}: {mark.words}"}
            for mark in (*chart_data.place_marks(analysis.case, seen), *chart_data.phase_marks(analysis.case))
            if (place := getattr(mark.at, look.axis)) is not None and (place > 0 or not look.log_x)
        ]
    return marks


def plots(analysis: Analysis) -> Iterator[Plot]:
    """Yields every chart that the log has data for."""
    curve = partial(overlay, [analysis], validation=True)
    yield from filter(
        None, (curve(LOSS, Look(axis=axis, marks=axis == "step")) for axis in ("step", "tokens", "hours"))
    )
    rated = list(_speed(analysis))
    yield from rated or filter(None, [curve("seconds", Look())])
    yield from filter(None, [curve("grad_norm", Look())])
    if parts := chart_data.parts_of_step(analysis.case):
        rows: list[dict[str, Any]] = [
            {"what": "a step", "part": part.name, "value": part.seconds, "label": format_seconds(part.seconds),
             "order": place}
            for place, part in enumerate(parts)
        ]  # fmt: skip
        shares = charts.bill(rows, parts=[part.name for part in parts])
        yield Plot(title="Where a step's time goes", caption="", chart=shares)
    yield from filter(None, (curve(name, Look()) for name in ("memory_bytes", "reserved_bytes")))
    for name, title in _REPORTED_TELEMETRY:
        readings = chart_data.telemetry_points(analysis.run, name)
        if len(readings) < 2:
            continue
        gpus = sorted({gpu for _, _, gpu in readings})
        rows = [{"hours": hours, "value": value, "series": f"GPU {gpu}"} for hours, value, gpu in readings]
        colours = {f"GPU {gpu}": charts.PARTS[place % len(charts.PARTS)] for place, gpu in enumerate(gpus)}
        words = title
        if name.endswith("_bytes"):
            rows, unit = charts.in_unit(rows, "value", format_bytes)
            words = f"{title}, {unit}"
        across, [timed] = charts.timed(rows)
        chart = charts.lines(timed, x=across, title=words, colours=colours)
        yield Plot(title=f"Telemetry: {title}", caption="", chart=chart)


def _speed(analysis: Analysis) -> Iterator[Plot]:
    rates = chart_data.rate_points(analysis.case)
    if len(rates) < 2:
        return
    expected = analysis.case.expected.tokens_per_second if analysis.case.expected else None
    caption = "Blue band: what this configuration gives on this GPU, 80 % interval. " if expected else ""
    per_rate = chart_data.mfu_per_rate(analysis.case)
    if per_rate is not None:
        caption += f"An MFU of 10 % is {0.1 / per_rate:,.0f} tokens per second here."
    chart = charts.against_prediction(rates, expected, "tokens per second")
    yield Plot(title="Throughput", caption=caption, chart=chart)


def write_pictures(analyses: Sequence[Analysis], folder: Path) -> None:
    """Write every chart as PNG and as SVG to a folder, for one run or for several over each other."""
    import vl_convert

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AdvisorError(f"cannot create {folder}: {error.strerror}", "name another folder", exit_code=2) from error
    for plot in overlays(analyses) if len(analyses) > 1 else plots(analyses[0]):
        spec = plot.chart.properties(width=900, title=plot.title).to_dict()
        name = re.sub(r"[^a-z0-9]+", "-", plot.title.lower()).strip("-")
        (folder / f"{name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=_PICTURE_SCALE))
        (folder / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")
