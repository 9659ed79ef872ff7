"""Page Analyze: takes training logs, and shows what happened, what it cost and what to change."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import streamlit as st

from advisor.errors import AdvisorError
from advisor.findings.case import Finding, Severity
from advisor.findings.registry import coverage
from advisor.report import rows as report_rows
from advisor.report import words
from advisor.report.markdown import report as in_markdown
from advisor.report.rows import as_csv
from advisor.report.table import Table, capital, on_page
from advisor.store.folders import example_run
from advisor.ui import analyze_log as log
from advisor.ui import loaders, workbench
from advisor.ui.controls import ANALYZE, in_controls, in_words, products
from advisor.ui.tables import pairs, plain, side_by_side, table
from advisor.ui.uploads import PASTED, Upload, judge_uploads, title_of
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import Judged, analyze, names_of

ICONS = {Severity.ERROR: ":material/error:", Severity.WARNING: ":material/warning:", Severity.NOTE: ":material/info:"}
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "orange", Severity.NOTE: "gray"}
EXAMPLE = "example"
TABLE_ROWS = 20


def page() -> None:
    """Draw the form for logs, and their report."""
    st.title("Analyze", anchor=False)
    uploads = log.source()
    name = log.looked_at(uploads)
    given = log.given()
    if name is None:
        _empty()
    elif name == EXAMPLE:
        st.caption("The recorded example: depth 2, trained for 90 seconds on two CPU cores.")
        _report(_example(given, loaders.store_stamp()), [])
    elif (kept := log.kept().get(name)) is None:
        st.info(
            "The report of this link is no longer in the server's memory: drop its log again.",
            icon=":material/history:",
        )
        _empty()
    else:
        if not uploads:
            log.above(kept)
        try:
            with st.spinner("reading and judging the log"):
                judged = _judged(name, given, loaders.store_stamp(), kept)
        except AdvisorError:
            log.close()
            raise
        _report(judged, kept)


@st.cache_resource(max_entries=16, show_spinner=False)
def _judged(name: str, given: Given, stamped: tuple[int, ...], _uploads: list[Upload]) -> Judged:
    """Judge the uploads. `name` is by content; hashing large uploads again would be slow."""
    del name, stamped  # only part of the cache key
    return judge_uploads(_uploads, given, loaders.store())


@st.cache_resource(max_entries=4, show_spinner="reading the example")
def _example(given: Given, stamped: tuple[int, ...]) -> Judged:
    del stamped
    return Judged(analyses=(analyze(example_run(), given, loaders.store()),))


def _empty() -> None:
    st.info(
        "Drop a log above. The report shows what happened, the cost, the waste and what to change, each with its "
        "evidence. nanochat, nanoGPT, llm.c, Megatron, Hugging Face, Lightning, TensorBoard, W&B and many more "
        "formats are detected.",
        icon=":material/lightbulb:",
    )
    if st.button("Look at a recorded example", icon=":material/visibility:", key="analyze-show-example"):
        st.session_state[log.REPORT] = EXAMPLE
        st.rerun()


def _report(judged: Judged, uploads: list[Upload]) -> None:
    """Draw the report."""
    if len(judged.analyses) == 1:
        for text in judged.left_out:
            st.warning(plain(text), icon=":material/warning:")
        _single(judged.analyses[0], judged, uploads)
        return
    names = names_of(judged.analyses)
    with st.container(border=True):
        table(on_page(report_rows.run_table(judged.analyses)))
        for text in judged.left_out:
            st.warning(plain(text), icon=":material/warning:")
        _downloads(judged, f"{len(names)}-runs")
    workbench.curves(judged.analyses)
    if judged.comparison is not None:
        st.header("Compared with each other", anchor=False)
        for shown in report_rows.compared(judged.comparison):
            table(on_page(shown))
        for text in report_rows.said(judged.comparison):
            st.caption(plain(text))
    st.header("One of them", anchor=False)
    name = st.selectbox("Run", names, key="analyze-run", help="Its own report is below.")
    _single(judged.analyses[names.index(name) if name in names else 0], None, uploads)


def _single(analysis: Analysis, judged: Judged | None, uploads: list[Upload]) -> None:
    """Draw the report of one run. `judged` is what can be downloaded, or None if the download is offered above."""
    happened, cost, todo = analysis.verdict
    with st.container(border=True):
        st.markdown(f"**{plain(happened)}**  \n{plain(cost)}  \n:material/arrow_forward: {plain(todo)}")
        if judged is not None:
            _downloads(judged, PurePosixPath(analysis.run.source).name or "run")
    if judged is not None:
        workbench.curves([analysis])
    st.header("Findings", anchor=False)
    if not analysis.findings:
        nothing_found(analysis, "Nothing wrong was found")
    for finding in dearest_first(analysis.findings):
        finding_card(finding)
    if analysis.insufficient:
        with st.expander(f"{len(analysis.insufficient)} checks were not possible: what they need"):
            pairs(
                ((check.code.replace("_", " "), in_words(check.missing, ANALYZE)) for check in analysis.insufficient),
                ("Check", "What is missing"),
            )
    _tables(analysis, uploads)


def _downloads(judged: Judged, stem: str) -> None:
    """Offer files, which are written only on request. A click does not rerun the page, so the others stay."""
    with st.container(horizontal=True):
        files: tuple[tuple[str, Callable[[], Any], str, str], ...] = (
            ("HTML report", lambda: _html(judged), "html", "One file with its charts, readable without a network."),
            ("Markdown", lambda: in_markdown(judged.analyses, judged.comparison, judged.left_out), "markdown",
             "The same report as text."),
            ("CSV", lambda: as_csv(judged.analyses), "csv", "The table that was read from the log."),
        )  # fmt: skip
        for label, written, kind, explained in files:
            st.download_button(
                label, written, f"{stem}.{kind.replace('markdown', 'md')}", f"text/{kind}",
                icon=":material/download:", help=explained, on_click="ignore",
            )  # fmt: skip


def _html(judged: Judged) -> io.BytesIO:
    from advisor.report.html import page as html_page  # imports a script bundle, which takes a second

    return io.BytesIO(html_page(judged.analyses, judged.comparison, judged.left_out).encode())


def nothing_found(analysis: Analysis, words: str) -> None:
    """Say in these words that nothing was found, and how much was checked. It is green only if most was checked."""
    looked = coverage(analysis.case, analysis.insufficient)
    how_much = f"{looked.possible} of {looked.checks} checks were possible"
    if 2 * looked.possible > looked.checks:
        st.success(f"{words}: {how_much}.", icon=":material/check_circle:")
        return
    lacking = f"; for the rest the log would need {', '.join(looked.lacking[:3])}" if looked.lacking else ""
    st.info(f"Too little data to judge: only {how_much}{lacking}.", icon=":material/question_mark:")


def _worded(text: str) -> str:
    return in_controls(text, ANALYZE, plain)


def dearest_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """Return the findings that save most money first, then those that save most hours.

    The rest stay in the order of the analysis, which is by severity. Savings too small to be mentioned do not count.
    """

    def order(finding: Finding) -> tuple[float, float]:
        if not words.saving(finding):
            return 0.0, 0.0
        usd, hours = finding.saved_usd, finding.saved_hours
        return -(usd.value if usd else 0.0), -(hours.value if hours else 0.0)

    return sorted(findings, key=order)


def finding_card(finding: Finding) -> None:
    """Draw one finding with its evidence, likely causes, what to do, and what that saves."""
    with st.container(border=True):
        badge = f":{COLOURS[finding.severity]}-badge[{ICONS[finding.severity]} {finding.severity.value}]"
        st.markdown(f"{badge}  \n**{plain(finding.title)}**")
        st.markdown("\n".join(f"- {_worded(capital(text))}" for text in words.finding_lines(finding)))
        st.caption(plain(words.grounds(finding)))


def _numbers(shown: Table) -> None:
    """Draw a table with numbers on the right. Streamlit requires every column to have a different name."""
    names = [capital(name) or " " * place for place, name in enumerate(shown.columns)]
    numbers = [name for name, column in zip(names, shown.columns, strict=True) if column in shown.numbers]
    pairs(([products(cell) for cell in row] for row in shown.rows), names, right=numbers)


def _tables(analysis: Analysis, uploads: list[Upload]) -> None:
    st.header("Numbers", anchor=False)
    shown = report_rows.tables(analysis)
    for place, column in enumerate(side_by_side("numbers", (1, 1))):
        with column:
            for one in shown[place::2]:
                _numbers(one)
    with st.expander("Model, training settings and some steps, as read from the log"):
        for one in report_rows.details(analysis, TABLE_ROWS):
            _numbers(one)
    with st.expander("How it was read, and how to get this report again"):
        for note in (*map(_worded, analysis.case.unsure), *map(plain, analysis.run.notes)):
            st.markdown(f"- {note}")
        # Show the command for this report, and what it needs if the log is not in a file yet.
        source = analysis.run.source
        if uploads and uploads[0].name == PASTED:
            st.caption(f"Save the pasted text as {PASTED}, then:")
        elif uploads and source == title_of(uploads) and len(uploads) > 1:
            st.caption(f"With these files in one folder: {plain(', '.join(upload.name for upload in uploads))}")
            source = "FOLDER"
        st.code(words.reproduce(analysis, source), language="bash", wrap_lines=True)
