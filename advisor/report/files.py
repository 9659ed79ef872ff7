"""Writes reports of logs to files: Markdown, CSV, pictures, and one HTML page that loads nothing from elsewhere."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.history.comparison import Comparison
from advisor.report import rows, words
from advisor.report.table import Table, capital, in_markdown
from advisor.store.disk import write_atomic
from advisor.workflows.analysis import Analysis
from advisor.workflows.analyze import names_of

if TYPE_CHECKING:
    from advisor.report.plots import Plot

_MARKDOWN_ROWS, _HTML_ROWS = 14, 20  # of the table of some steps
_STYLE = Path(__file__).with_name("page.css")


def write_reports(
    analyses: Sequence[Analysis],
    paths: Mapping[str, Path | None],
    *,
    comparison: Comparison | None = None,
    left_out: Sequence[str] = (),
) -> list[Path]:
    """Write the reports that were asked for; returns their paths. Raises AdvisorError if a file cannot be written.

    `paths` names files under `html`, `md` and `table`, and folders under `tables` and `plots`; other keys are ignored.
    """
    if page := paths.get("html"):
        write_atomic(page, html(analyses, comparison, left_out))
    if md := paths.get("md"):
        write_atomic(md, markdown(analyses, comparison, left_out))
    if table := paths.get("table"):
        write_atomic(table, as_csv(analyses))
    if tables := paths.get("tables"):
        for name, analysis in zip(names_of(analyses), analyses, strict=True):
            if any(len(values) for values in (analysis.run.columns or analysis.run.telemetry or {}).values()):
                file = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.') or 'run'}.csv"
                write_atomic(tables / file, as_csv([analysis]))
    if plots := paths.get("plots"):
        _need_charts("--plots")
        from advisor.report.plots import write_pictures

        write_pictures(analyses, plots)
    return [path for name in ("html", "md", "table", "tables", "plots") if (path := paths.get(name))]


def _need_charts(option: str, instead: str = "") -> None:
    """Raises AdvisorError if the packages that draw charts are not installed."""
    for name in ("altair", "vl_convert"):
        if importlib.util.find_spec(name) is None:
            hint = f"pip install 'training-advisor[app]'{instead}"
            raise AdvisorError(f"{option} draws charts, and {name} is not installed", hint)


def as_csv(analyses: Sequence[Analysis]) -> str:
    """Returns the tables as read; with several, one below the other with the source in the first column.

    A file that holds only a GPU's readings gives these. Raises AdvisorError if there is no row at all.
    """
    tables = [analysis.run.columns or analysis.run.telemetry or {} for analysis in analyses]
    names = sorted({name for table in tables for name in table})
    if not any(len(values) for table in tables for values in table.values()):
        raise AdvisorError(f"{analyses[0].run.source} has no rows, so there is no table to write", "leave --table out")
    out = io.StringIO()
    writer = csv.writer(out)
    several = len(analyses) > 1
    writer.writerow([*(["source"] if several else []), *names])
    for analysis, table in zip(analyses, tables, strict=True):
        count = max(map(len, table.values()), default=0)
        columns = [table[name].tolist() if name in table else [math.nan] * count for name in names]
        for row in zip(*columns, strict=True):
            cells = ["" if math.isnan(value) else repr(value) for value in row]
            writer.writerow([*([analysis.run.source] if several else []), *cells])
    return out.getvalue()


def markdown(analyses: Sequence[Analysis], comparison: Comparison | None, left_out: Sequence[str]) -> str:
    """Returns one run's document. For several runs, their comparison comes first and each run's document follows."""
    documents = [_markdown_of(analysis) for analysis in analyses]
    if len(analyses) > 1:
        parts = ["# Runs", in_markdown(rows.run_table(analyses))]
        if comparison is not None:
            parts += ["## Compared with each other", *map(in_markdown, rows.compared(comparison))]
        lines = [*left_out, *(rows.comparison_notes(comparison) if comparison is not None else ())]
        parts.append("\n".join(f"- {line}" for line in lines))
        documents.insert(0, ("\n\n".join(part for part in parts if part) + "\n"))
    return "\n\n---\n\n".join(documents)


def _markdown_of(analysis: Analysis) -> str:
    """Returns one Markdown document, without sections that have no data."""
    parts = [f"# Training run: {analysis.run.source}"]
    parts.append("\n".join(f"- **{label}:** {text}" for label, text in analysis.verdict.lines))
    if analysis.case.unsure:
        parts.append("Assumed: " + "; ".join(analysis.case.unsure) + ".")
    findings = [
        "\n".join([f"### {one.severity.value}: {one.title}", "",
                   *(f"- {line}" for line in (*words.finding_lines(one), words.grounds(one)))])
        for one in analysis.findings
    ]  # fmt: skip
    parts += ["## Findings", "\n\n".join(findings) or "None."]
    for table in (*rows.tables(analysis), *rows.details(analysis, _MARKDOWN_ROWS)):
        parts += [f"## {capital(table.title)}", in_markdown(table)]
    if analysis.insufficient:
        lines = [f"- {check.code}: {check.missing}" for check in analysis.insufficient]
        parts += ["## Checks that need more than this log has", "\n".join(lines)]
    parts += ["## How to reproduce", f"```\n{words.reproduce(analysis)}\n```"]
    return "\n\n".join(parts) + "\n"


def html(analyses: Sequence[Analysis], comparison: Comparison | None = None, left_out: Sequence[str] = ()) -> str:
    """Returns the page of one run. For several it compares them first, and then shows each by itself.

    Raises AdvisorError if the packages for charts are not installed.
    """
    _need_charts("--html", ", or write --md instead")
    import altair
    import vl_convert

    from advisor.report.plots import overlays, plots

    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    parts: list[str] = []
    specs: list[dict[str, Any]] = []
    if len(analyses) > 1:
        tables = rows.compared(comparison) if comparison is not None else []
        lines = [*left_out, *(rows.comparison_notes(comparison) if comparison is not None else ())]
        figures = _figures(overlays(analyses), specs)
        compared = ("Compared with each other", "".join(map(_table, tables)) + _list(lines))
        body = _sections([compared, ("Over each other", figures)])
        parts.append(f"<h1>{len(analyses)} runs</h1>{_table(rows.run_table(analyses))}{body}")
    parts += [_html_of(analysis, _figures(plots(analysis), specs)) for analysis in analyses]
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


def _figures(drawn: Iterable[Plot], specs: list[dict[str, Any]]) -> str:
    """Returns the places of charts on the page, and adds their drawings to `specs`."""
    places = []
    for plot in drawn:
        places.append(
            f"<h3>{escape(plot.title)}</h3><div class=chart id=chart{len(specs)}></div>"
            f"<p class=dim>{escape(plot.caption)}</p>"
        )
        specs.append(plot.chart.properties(width="container").to_dict())
    return "".join(places)


def _html_of(analysis: Analysis, figures: str) -> str:
    findings = [
        f"<div class='finding {one.severity.value}'><h3>{one.severity.value}: {escape(one.title)}</h3>"
        f"{_list(words.finding_lines(one))}<p class=dim>{escape(words.grounds(one))}</p></div>"
        for one in analysis.findings
    ]
    tables = (*rows.tables(analysis), *rows.details(analysis, _HTML_ROWS))
    sections = [
        ("Findings", "".join(findings) or "<p>None.</p>"),
        ("Charts", figures),
        *((capital(table.title), _table(table)) for table in tables),
        (
            "Checks that need more than this log has",
            _list(f"{check.code}: {check.missing}" for check in analysis.insufficient),
        ),
        ("How it was read", _list((*analysis.case.unsure, *analysis.run.notes))),
        ("How to reproduce", f"<p><code>{escape(words.reproduce(analysis))}</code></p>"),
    ]
    verdict = "".join(f"<p><b>{label}:</b> {escape(text)}</p>" for label, text in analysis.verdict.lines)
    return f"<h1>{escape(analysis.run.source)}</h1><div class=verdict>{verdict}</div>{_sections(sections)}"


def _sections(sections: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections if content)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns) if any(table.columns) else ""
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<div class=scroll><table>{f'<tr>{head}</tr>' if head else ''}{body}</table></div>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
