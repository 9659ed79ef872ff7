"""The analysis as Markdown, in the sections that run reports have: configuration, loss, timing, throughput, gradients,
memory, checkpoints, money, findings, conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.findings.case import Finding
from advisor.history.comparison import Comparison
from advisor.report import measured, rows, words
from advisor.report.rows import checkpoint_rows, loss_table, phase_rows
from advisor.report.table import in_markdown
from advisor.report.table import markdown_table as table
from advisor.workflows.analysis import Analysis

_ROWS = 14  # of the loss table


def report(analyses: Sequence[Analysis], comparison: Comparison | None, left_out: Sequence[str]) -> str:
    """The document of one run; of several the runs beside each other first, then the document of each."""
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
    """One Markdown document; sections without data are left out."""
    run = analysis.run
    parts = [f"# Training run: {run.source}", "\n".join(f"- {line}" for line in analysis.verdict)]
    several = words.runs(analysis)
    parts += _section("Runs in this log", table(words.RUNS, several) if several else "")
    parts += _section("Model", _pairs(words.model_facts(analysis)))
    parts += _section("Training", _pairs(words.training_facts(analysis)))
    if analysis.case.unsure:
        parts.append("Assumed: " + "; ".join(analysis.case.unsure) + ".")
    columns, rows = loss_table(analysis, _ROWS)
    parts += _section("Loss", table(columns, rows) if rows else "")
    parts += _section("Time of a step", table(("part", "median", "share"), phase_rows(analysis)))
    parts += _section("Throughput", _pairs(words.speed(analysis)))
    parts += _section("Throughput and gradients, measured", _rows(measured.SPREAD, measured.spreads(analysis)))
    parts += _section("Gradient clipping", _rows(("", ""), measured.gradients(analysis)))
    parts += _section("GPUs", _rows(measured.CARDS, measured.cards(analysis)))
    parts += _section("Machine", _rows(("", ""), measured.machine(analysis)))
    parts += _section("Checkpoints", table(("step", "what the log says"), checkpoint_rows(analysis)))
    parts += _section("Money and time", table(("what", "takes", "costs"), words.money(analysis)))
    parts += _section("To come", _pairs(words.outlook(analysis)))
    parts += _section("The same run elsewhere", table(("GPU", "takes", "costs", ""), words.elsewhere(analysis)))
    parts += _section("The next run, on other data", _rows(("", ""), measured.next_data(analysis)))
    parts += _section("The next run on", _rows(measured.NEXT, measured.next_places(analysis)))
    parts += _section("Findings", "\n\n".join(map(_finding, analysis.findings)) or "None.")
    if analysis.insufficient:
        lines = [f"- {check.code}: {check.missing}" for check in analysis.insufficient]
        parts += _section("Insufficient telemetry", "\n".join(lines))
    parts += _section("How to reproduce", f"```\n{words.reproduce(analysis)}\n```")
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: str) -> list[str]:
    return [f"## {title}", body] if body else []


def _rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(columns, rows) if rows else ""


def _pairs(pairs: words.Pairs) -> str:
    return table(("", ""), pairs)


def _finding(finding: Finding) -> str:
    lines = [f"### {finding.severity.value}: {finding.title}", ""]
    lines += [f"- seen: {evidence.text}" for evidence in finding.evidence]
    if finding.causes:
        lines.append(f"- likely: {'; '.join(finding.causes)}")
    lines += [f"- do: {action}" for action in finding.actions]
    if saved := words.saving(finding):
        lines.append(f"- saves: {saved}")
    lines.append(f"- `{finding.code}`, {finding.confidence.value} confidence; {finding.threshold}")
    return "\n".join(lines)
