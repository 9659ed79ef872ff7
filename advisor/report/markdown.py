"""Writes an analysis in Markdown: verdict, findings, all numbers, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.findings.case import Finding
from advisor.history.comparison import Comparison
from advisor.report import rows, words
from advisor.report.table import capital, in_markdown
from advisor.workflows.analysis import Analysis

_ROWS = 14  # rows of the loss table


def report(analyses: Sequence[Analysis], comparison: Comparison | None, left_out: Sequence[str]) -> str:
    """Returns one run's document. For several runs, their comparison comes first and each run's document follows."""
    documents = [document(analysis) for analysis in analyses]
    if len(analyses) > 1:
        parts = ["# Runs", in_markdown(rows.run_table(analyses))]
        if comparison is not None:
            parts += ["## Compared with each other", *map(in_markdown, rows.compared(comparison))]
        lines = [*left_out, *(rows.said(comparison) if comparison is not None else ())]
        parts.append("\n".join(f"- {line}" for line in lines))
        documents.insert(0, ("\n\n".join(part for part in parts if part) + "\n"))
    return "\n\n---\n\n".join(documents)


def document(analysis: Analysis) -> str:
    """Returns one Markdown document, without sections that have no data."""
    parts = [f"# Training run: {analysis.run.source}", "\n".join(f"- {line}" for line in analysis.verdict)]
    if analysis.case.unsure:
        parts.append("Assumed: " + "; ".join(analysis.case.unsure) + ".")
    parts += ["## Findings", "\n\n".join(map(_finding, analysis.findings)) or "None."]
    for table in (*rows.tables(analysis), *rows.details(analysis, _ROWS)):
        parts += [f"## {capital(table.title)}", in_markdown(table)]
    if analysis.insufficient:
        lines = [f"- {check.code}: {check.missing}" for check in analysis.insufficient]
        parts += ["## Insufficient telemetry", "\n".join(lines)]
    parts += ["## How to reproduce", f"```\n{words.reproduce(analysis)}\n```"]
    return "\n\n".join(parts) + "\n"


def _finding(finding: Finding) -> str:
    lines = [f"- {line}" for line in (*words.finding_lines(finding), words.grounds(finding))]
    return "\n".join([f"### {finding.severity.value}: {finding.title}", "", *lines])
