"""Draws curves of one or several runs over each other, against steps, tokens, time and dollars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from advisor.findings import chart_data
from advisor.findings.case import Case
from advisor.findings.chart_data import ChartMark, ChartPoint
from advisor.report import charts
from advisor.report.charts import ChartAxis
from advisor.units import format_bytes, format_percent
from advisor.workflows.analysis import Analysis
from advisor.workflows.analyze import names_of

AXES = {"step": "steps", "tokens": "tokens", "hours": "time", "usd": "dollars"}  # field of a point → name of the choice
LOSS = "loss"  # its validation loss is drawn with it
_ACROSS = {"step": "step", "tokens": "tokens seen", "hours": "time", "usd": "dollars"}
_MOST = 400  # largest number of points of a curve
_KINDS = {"training": (1, 0), "validation": (5, 3)}  # solid and dashed

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
# telemetry of the machine; not among the charts of every report
_TELEMETRY = {
    "telemetry/utilization": ("Utilisation", "share of time with a kernel"),
    "telemetry/power_watts": ("Power", "watts of a GPU"),
    "telemetry/memory_used_bytes": ("Memory in use", "of a GPU"),
    "telemetry/temperature_celsius": ("Temperature", "°C"),
}
# columns that are axes or not readings, and a learning rate's column that repeats its share
_NO_SCALARS = {
    "step",
    "tokens",
    "elapsed_seconds",
    "unix_seconds",
    "phase",
    "rank",
    "loss_is_nan",
    "learning_rate_share",
}


def scalars(analyses: Sequence[Analysis]) -> dict[str, str]:
    """Returns the curves that at least one run has, with name and title; those that every log may have come first."""
    held = {name for analysis in analyses for name in chart_data.columns_with_curves(analysis.case)}
    known = {
        name
        for name, scalar in _SCALARS.items()
        if any(len(scalar.curve(analysis.case, 2, 0.0)) > 1 for analysis in analyses)
    }
    names = [name for name in _SCALARS if name in known]
    read = [
        name for name in _TELEMETRY if any(len(_scalar(name).curve(analysis.case, 2, 0.0)) > 1 for analysis in analyses)
    ]
    return {name: _scalar(name).title for name in (*names, *sorted(held - {*_SCALARS} - _NO_SCALARS), *read)}


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
    for name in _SCALARS:
        for axis in AXES:
            plot = overlay(analyses, name, Look(axis=axis))
            if plot is not None:
                yield plot


def overlay(analyses: Sequence[Analysis], name: str, look: Look, *, validation: bool = False) -> Plot | None:
    """Draws one scalar of all runs in one chart; None if no run has it on this axis.

    `validation` draws the validation loss beside the training loss: dashed, or in its own colour if there is
    only one run.
    """
    names = names_of(analyses)
    rows = _drawn(analyses, names, name, look, validation)
    if len(rows) < 2:
        return None
    behind = _drawn(analyses, names, name, replace(look, smooth=0.0), validation) if look.smooth else []
    marks = _marks(analyses, names, look) if look.marks else []
    scalar, field, unit = _scalar(name), look.axis, _scalar(name).unit
    across = ChartAxis(field=field, title=_ACROSS[field])
    if name.endswith("_bytes"):
        told, unit = charts.in_unit([*rows, *behind], "value", format_bytes)  # in the unit of the larger
        rows, behind = told[: len(rows)], told[len(rows) :]
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
        rows, x=replace(across, log=look.log_x), y=ChartAxis(field="value", title=unit, log=look.log_y),
        colours=colours,
        log_y=scalar.log_y, marks=marks, behind=behind, dashes=dashes,
    )  # fmt: skip
    title = f"{'Loss' if validation and name == LOSS else scalar.title} against {_ACROSS[field]}"
    return Plot(title=title, caption=_caption(names, shown, look, marked=bool(marks)), chart=charts.zoomable(chart))


def _drawn(
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
        found: list[ChartMark] = [*chart_data.place_marks(analysis.case, seen), *chart_data.phase_marks(analysis.case)]
        marks += [
            {look.axis: place, "words": mark.words if len(names) == 1 else f"{run}: {mark.words}"}
            for mark in found
            if (place := getattr(mark.at, look.axis)) is not None and (place > 0 or not look.log_x)
        ]
    return marks


def _caption(names: Sequence[str], shown: Sequence[str], look: Look, *, marked: bool) -> str:
    missing = [name for name in names if name not in shown]
    words = "Drag to move, Shift and wheel to zoom, double-click to go back. "
    if look.smooth:
        words += f"Running median of {format_percent(look.smooth)} of the rows; faint: as logged. "
    words += (
        "Dashed vertical lines: findings and phases of the learning rate; hover for their names. " if marked else ""
    )
    return words + (f"Not in the logs of {', '.join(missing)}." if missing else "")
