"""Writes one self-contained HTML file with words, tables and interactive charts. It loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.findings.case import Finding
from advisor.history.comparison import Comparison
from advisor.report import rows, words
from advisor.report.table import capital
from advisor.workflows.analysis import Analysis

if TYPE_CHECKING:
    from advisor.report.overlays import Plot

_ROWS = 20
_STYLE = Path(__file__).with_name("page.css")


def page(analyses: Sequence[Analysis], comparison: Comparison | None = None, left_out: Sequence[str] = ()) -> str:
    """Returns the report of one run. For several it compares them first, and then shows each by itself.

    Raises AdvisorError if the packages for charts are not installed.
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
    # JSON that cannot end its script element, whatever the log's lines contain
    safe = [json.dumps(spec, allow_nan=False).replace("</", "<\\/").replace("<!--", "<\\!--") for spec in specs]
    draw = "".join(f"vegaEmbed('#chart{i}', {spec}, {{actions: false}});" for i, spec in enumerate(safe))
    scripts = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # its stub forgets a default
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE.read_text(encoding="utf-8")}</style>'
        f"</head><body>{'<hr>'.join(parts)}"
        f"<script>{scripts}</script><script>{draw}</script></body></html>\n"
    )


def _figures(drawn: Sequence[Plot], specs: list[dict[str, Any]]) -> list[str]:
    """Returns the places of charts on the page, and adds their drawings to `specs`."""
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


def _run(analysis: Analysis, figures: list[str]) -> str:
    tables = (*rows.tables(analysis), *rows.details(analysis, _ROWS))
    sections = [
        ("Findings", "".join(map(_finding, analysis.findings)) or "<p>None.</p>"),
        ("Charts", "".join(figures)),
        *((capital(table.title), _table(table.columns, table.rows)) for table in tables),
        ("Insufficient telemetry", _list(f"{check.code}: {check.missing}" for check in analysis.insufficient)),
        ("How it was read", _list((*analysis.case.unsure, *analysis.run.notes))),
        ("How to reproduce", f"<p><code>{escape(words.reproduce(analysis))}</code></p>"),
    ]
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections if content)
    verdict = "".join(f"<p>{escape(line)}</p>" for line in analysis.verdict)
    return f"<h1>{escape(analysis.run.source)}</h1><div class=verdict>{verdict}</div>{body}"


def _finding(finding: Finding) -> str:
    return (
        f"<div class='finding {finding.severity.value}'><h3>{finding.severity.value}: {escape(finding.title)}</h3>"
        f"{_list(words.finding_lines(finding))}<p class=dim>{escape(words.grounds(finding))}</p></div>"
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
