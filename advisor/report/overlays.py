"""The curves of several runs over each other, against steps, tokens, hours and dollars; and charts as pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import vl_convert

from advisor.errors import AdvisorError
from advisor.findings.chart_data import Point, learning_rate_points, mfu_points, points, step_points
from advisor.report import charts
from advisor.report.charts import Axis
from advisor.report.plots import Plot, plots
from advisor.workflows.analysis import Analysis
from advisor.workflows.analyze import names_of

_AXES = (("step", "step"), ("tokens", "tokens seen"), ("hours", "hours"), ("usd", "dollars"))
_MOST = 400  # points of a curve: there are many
_SCALE = 2.0  # of pictures: for print and dense screens


def overlays(analyses: Sequence[Analysis]) -> Iterator[Plot]:
    """Loss, learning rate, MFU and step time of all runs, a chart for each axis that at least one run knows."""
    names = names_of(analyses)
    for title, unit, log_y, curve_of in (
        ("Training loss", "loss as printed", False, lambda case: points(case, "loss", _MOST)),
        ("Validation loss", "loss as printed", False, lambda case: points(case, "eval_loss", _MOST)),
        ("Learning rate", "share of the run's peak", False, lambda case: learning_rate_points(case, _MOST)),
        ("MFU", "share of the dense peak", False, lambda case: mfu_points(case, _MOST)),
        ("Step time", "seconds", True, lambda case: [p for p in step_points(case, _MOST) if p.value > 0]),
    ):
        curves = [(name, curve_of(analysis.case)) for name, analysis in zip(names, analyses, strict=True)]
        for axis, across in _AXES:
            rows = [row for name, curve in curves for row in _rows(curve, axis, name)]
            if len(rows) < 2:
                continue
            shown = [name for name in names if any(row["series"] == name for row in rows)]
            colours = {name: charts.PARTS[names.index(name) % len(charts.PARTS)] for name in shown}
            chart = charts.lines(
                rows, x=Axis(field=axis, title=across), y=Axis(field="value", title=unit), colours=colours, log_y=log_y
            )
            yield Plot(title=f"{title} against {across}", caption=_caption(names, shown), chart=chart.interactive())


def _caption(names: Sequence[str], shown: Sequence[str]) -> str:
    missing = [name for name in names if name not in shown]
    words = "Drag to move, scroll to zoom, double-click to go back. "
    return words + (f"Not told by the logs of {', '.join(missing)}." if missing else "")


def _rows(curve: list[Point], axis: str, series: str) -> list[dict[str, Any]]:
    placed = [(getattr(point, axis), point.value) for point in curve]
    return [{axis: place, "value": value, "series": series} for place, value in placed if place is not None]


def write_pictures(analyses: Sequence[Analysis], folder: Path) -> None:
    """Every chart as PNG and as SVG in a folder, of one run or of several over each other."""
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
