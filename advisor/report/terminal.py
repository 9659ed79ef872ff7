"""Shows the analysis on the terminal: the verdict, then findings, money and what could not be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from advisor.findings.case import Severity
from advisor.history.comparison import Comparison
from advisor.history.scoring import ScoredRun
from advisor.report import comparison as words_of_runs
from advisor.report import render, words
from advisor.report import rows as words_of_several
from advisor.report.table import on_console
from advisor.workflows.analysis import Analysis

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_MATTERING = 3


def report(analysis: Analysis, everything: bool = False, *, brief: bool = False) -> Iterator[RenderableType]:
    """Yields texts and tables in reading order: the verdict alone if `brief`; `everything` lists impossible checks."""
    yield Text(analysis.run.source, style="bold")
    yield from (f"{label}: {text}" for label, text in analysis.verdict.lines)
    if brief:
        return
    for finding in analysis.findings:
        yield ""
        yield Text(f"{finding.severity.value}: {finding.title}", style=STYLES[finding.severity])
        for text in words.finding_lines(finding):
            yield f"    {text}"
        yield Text(f"    {words.grounds(finding)}", style="dim")
    for table in words_of_several.tables(analysis):
        yield ""
        yield render.table(table.columns, table.rows)
    case = analysis.case
    if case.unsure:
        yield ""
        yield f"assumed: {'; '.join(case.unsure)}"
    if missing := case.notes.get("missing"):
        yield f"not known: {missing}"
    if analysis.insufficient and everything:
        yield ""
        yield "checks that need more than this log has:"
        for check in analysis.insufficient:
            yield f"    {check.code}: {check.missing}"
    elif analysis.insufficient:
        yield Text(f"{len(analysis.insufficient)} checks need more than this log has (--all lists them)", style="dim")
    if analysis.run.notes:
        yield ""
        for note in analysis.run.notes:
            yield Text(note if note.startswith(("not read", "an assistant")) else f"read: {note}", style="dim")
    yield ""
    # The end of the report stays on the screen, so it has the errors and warnings, or says that there are none.
    loud = [finding for finding in analysis.findings if finding.severity is not Severity.NOTE][:_MATTERING]
    if not loud:
        yield Text(": ".join(analysis.verdict.lines[1 if analysis.verdict.problem else 0]), style="bold")
        return
    yield Text("what matters:", style="bold")
    for finding in loud:
        action = f" → {finding.actions[0]}" if finding.actions else ""
        yield Text(f"    {finding.severity.value}: {finding.title}{action}", style=STYLES[finding.severity])


def several(
    analyses: Sequence[Analysis], against: Comparison | None, left_out: Sequence[str]
) -> Iterator[RenderableType]:
    """Shows a row for each run, what could not be read, and the comparison of the runs."""
    yield on_console(words_of_several.run_table(analyses))
    for line in left_out:
        yield Text(line, style="dim")
    if against is not None:
        yield ""
        yield from comparison(against)


def comparison(runs: Comparison) -> Iterator[RenderableType]:
    """Compares several runs with each other and with the first."""
    yield Text("Compared with each other", style="bold")
    yield from (*words_of_runs.verdicts(runs), *words_of_runs.groups(runs))
    for table in words_of_several.compared(runs):
        yield from ("", on_console(table))
    for note in runs.notes:
        yield Text(note, style="dim")


def scored_run(name: str, scored: ScoredRun) -> Iterator[RenderableType]:
    """Compares one run with its plan: its verdict, and the table of quantities with the causes of the gaps."""
    yield f"{name}: {words_of_runs.headline(scored)}"
    yield from filter(None, (words_of_runs.departures(scored), words_of_runs.inside(scored)))
    yield ""
    yield on_console(words_of_runs.scores(scored))
