"""One self-contained HTML file: words, tables and interactive charts, nothing fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.findings.case import Finding
from advisor.history.comparison import Comparison
from advisor.report import measured, rows, words
from advisor.report.rows import checkpoint_rows, loss_table, phase_rows
from advisor.workflows.analysis import Analysis

if TYPE_CHECKING:
    from advisor.report.overlays import Plot

_ROWS = 20
_STYLE = Path(__file__).with_name("page.css")


def page(analyses: Sequence[Analysis], comparison: Comparison | None = None, left_out: Sequence[str] = ()) -> str:
    """The report of one run, or of several over and beside each other and then each by itself.

    Raises AdvisorError where the packages for charts are not installed.
    """
    try:
        import altair
        import vl_convert

        from advisor.report.overlays import overlays
        from advisor.report.plots import plots
    except ImportError as error:
        hint = "pip install 'training-advisor[app]', or write --md instead"
        raise AdvisorError(f"--html draws charts, and {error.name} is not installed", hint) from error
    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    parts: list[str] = []
    specs: list[dict[str, Any]] = []
    if len(analyses) > 1:
        parts.append(_several(analyses, comparison, left_out, _figures(list(overlays(analyses)), specs)))
    for analysis in analyses:
        parts.append(_run(analysis, _figures(list(plots(analysis)), specs)))
    title = escape(analyses[0].run.source if len(analyses) == 1 else f"{len(analyses)} runs")
    draw = "".join(f"vegaEmbed('#chart{i}', {_script_safe(spec)}, {{actions: false}});" for i, spec in enumerate(specs))
    scripts = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # its stub forgets a default
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE.read_text(encoding="utf-8")}</style>'
        f"</head><body>{'<hr>'.join(parts)}"
        f"<script>{scripts}</script><script>{draw}</script></body></html>\n"
    )


def _figures(drawn: Sequence[Plot], specs: list[dict[str, Any]]) -> list[str]:
    """The places of charts on the page; their drawings are added to `specs`."""
    first = len(specs)
    specs += [plot.chart.properties(width="container").to_dict() for plot in drawn]
    return [
        f"<h3>{escape(plot.title)}</h3><div class=chart id=chart{first + i}></div>"
        f"<p class=dim>{escape(plot.caption)}</p>"
        for i, plot in enumerate(drawn)
    ]


def _several(
    analyses: Sequence[Analysis], comparison: Comparison | None, left_out: Sequence[str], figures: list[str]
) -> str:
    runs = rows.run_table(analyses)
    tables = rows.compared(comparison) if comparison is not None else []
    lines = [*left_out, *(rows.said(comparison) if comparison is not None else ())]
    against = "".join(_table(table.columns, table.rows) for table in tables) + _list(lines)
    parts = (("Compared with each other", against), ("Over each other", "".join(figures)))
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in parts if content)
    return f"<h1>{len(analyses)} runs</h1>{_table(runs.columns, runs.rows)}{body}"


def _script_safe(spec: dict[str, Any]) -> str:
    """JSON that cannot end the script it stands in, whatever a log's lines hold."""
    return json.dumps(spec, allow_nan=False).replace("</", "<\\/").replace("<!--", "<\\!--")


def _run(analysis: Analysis, figures: list[str]) -> str:
    columns, rows = loss_table(analysis, _ROWS)
    findings = "".join(_finding(finding) for finding in analysis.findings) or "<p>None.</p>"
    missing = _list(f"{check.code}: {check.missing}" for check in analysis.insufficient)
    sections = (
        ("Runs in this log", _table(words.RUNS, words.runs(analysis))),
        ("Findings", findings),
        ("Money and time", _table(("", "takes", "costs"), words.money(analysis))),
        ("Speed", _table(("", ""), words.speed(analysis))),
        ("Throughput and gradients, measured", _table(measured.SPREAD, measured.spreads(analysis))),
        ("Gradient clipping", _table(("", ""), measured.gradients(analysis))),
        ("GPUs", _table(measured.CARDS, measured.cards(analysis))),
        ("Machine", _table(("", ""), measured.machine(analysis))),
        ("Charts", "".join(figures)),
        ("Parts of a step in numbers", _table(("part", "median", "share"), phase_rows(analysis))),
        ("To come", _table(("", ""), words.outlook(analysis))),
        ("The same run elsewhere", _table(("GPU", "takes", "costs", ""), words.elsewhere(analysis))),
        ("The next run, on other data", _table(("", ""), measured.next_data(analysis))),
        ("The next run on", _table(measured.NEXT, measured.next_places(analysis))),
        ("Model", _table(("", ""), words.model_facts(analysis))),
        ("Training", _table(("", ""), words.training_facts(analysis))),
        ("Some of its steps", _table(columns, rows)),
        ("Checkpoints", _table(("step", "what the log says"), checkpoint_rows(analysis))),
        ("Insufficient telemetry", missing),
        ("How it was read", _list((*analysis.case.unsure, *analysis.run.notes))),
        ("How to reproduce", f"<p><code>{escape(words.reproduce(analysis))}</code></p>"),
    )
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections if content)
    verdict = "".join(f"<p>{escape(line)}</p>" for line in analysis.verdict)
    return f"<h1>{escape(analysis.run.source)}</h1><div class=verdict>{verdict}</div>{body}"


def _finding(finding: Finding) -> str:
    saved = words.saving(finding)
    lines = [f"seen: {evidence.text}" for evidence in finding.evidence]
    lines += [f"likely: {cause}" for cause in finding.causes]
    lines += [f"do: {action}" for action in finding.actions]
    lines += [f"saves: {saved}"] if saved else []
    return (
        f"<div class='finding {finding.severity.value}'><h3>{finding.severity.value}: {escape(finding.title)}</h3>"
        f"{_list(lines)}<p class=dim>{finding.code}, {finding.confidence.value} confidence; "
        f"{escape(finding.threshold)}</p></div>"
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [list(row) for row in rows]
    if not cells:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns) if any(columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f"<div class=scroll><table>{f'<tr>{head}</tr>' if head else ''}{body}</table></div>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
