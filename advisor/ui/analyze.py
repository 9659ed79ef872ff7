"""Page Analyze: takes training logs, and shows what happened, what it cost and what to change."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

import streamlit as st

from advisor.documents import stamped as with_number
from advisor.errors import AdvisorError
from advisor.findings.case import Finding, Severity
from advisor.readers.run_table import Status
from advisor.report import charts, traces, words
from advisor.report import rows as report_rows
from advisor.report.files import as_csv, html, markdown
from advisor.report.plots import AXES, LOSS, Look, overlay, scalars
from advisor.report.table import capital
from advisor.store.folders import example_run
from advisor.ui import controls, loaders
from advisor.ui import uploads as form
from advisor.ui.controls import ANALYZE, QUERY, download, escaped, in_controls, pairs, show, side_by_side
from advisor.ui.uploads import Upload
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import Judged, analyze, names_of
from advisor.workflows.analyze_trace import TraceAnalysis

COLOURS = {Severity.ERROR: "red", Severity.WARNING: "orange", Severity.NOTE: "gray"}
EXAMPLE = "example"
TABLE_ROWS = 20
CURVES, AGAINST, SMOOTH, LOGARITHMIC, MARKS = ("curves", "against", "smooth", "logarithmic", "marks")
_SMOOTH = {"none": 0.0, "1 %": 0.01, "2 %": 0.02, "5 %": 0.05, "10 %": 0.1, "20 %": 0.2}
_LOG = ("y axis", "x axis")
_MOST_CURVES = 6
_NO_DEATH = (Status.COMPLETED, Status.RUNNING, Status.NO_END, Status.INCOMPLETE)  # whose cause need not come first


def page() -> None:
    """Draw the form for logs, and their report."""
    head = st.container(horizontal=True, vertical_alignment="bottom")
    head.title("Analyze", anchor=False, width="content")
    uploads = form.source()
    name = form.report_name(uploads)
    with head:
        facts = form.given()
    if name is None:
        _empty()
    elif name == EXAMPLE:
        st.caption("The recorded example: depth 2, trained for 90 seconds on two CPU cores.")
        _report(_example(facts, loaders.store_stamp()), [])
    elif (logs := form.uploaded().get(name)) is None:
        gone = "The report of this link is no longer in the server's memory: drop its log again."
        st.info(gone, icon=":material/history:")
        _empty()
    else:
        # The form is empty for a report as uploaded before.
        head.caption(f"Report on {escaped(form.title_of(logs))}{'' if uploads else ', as uploaded before'}.")
        answer = _description(name, logs)
        try:
            with st.spinner("reading and judging the log"):
                judged = _judged(name, facts, answer, loaders.store_stamp(), logs)
        except AdvisorError:
            form.close()
            raise
        if isinstance(judged, TraceAnalysis):
            _traces(judged)
        else:
            _report(judged, logs)
            if judged.traces:
                _traces(TraceAnalysis(source=form.title_of(logs), judged=judged.traces))


@st.cache_resource(max_entries=16, show_spinner=False)
def _judged(
    name: str, given: Given, answer: str | None, stamped: tuple[int, ...], _uploads: list[Upload]
) -> Judged | TraceAnalysis:
    """Judge the uploads. `name` is by content; hashing large uploads again would be slow."""
    del name, stamped  # only part of the cache key
    return form.judge_uploads(_uploads, given, loaders.store(), answer)


def _description(name: str, logs: list[Upload]) -> str | None:
    """Show the prompt for an assistant that describes a log. Return its answer from the field, or None if empty."""
    if len(logs) != 1 or (prompt := _prompt(name, logs[0])) is None:
        return None
    with st.expander(ANALYZE["--reader"], icon=":material/forum:"):
        st.caption(
            "Copy the prompt (log lines without credentials) into any assistant and paste its answer below. The answer "
            "is used only if it holds on every line; the format is kept for later logs of that program. In a terminal: "
            "`advisor analyze LOG --reader CMD`."
        )
        st.code(prompt, language=None, height=160)
        return st.text_area("The assistant's answer, in JSON", key=f"analyze-answer-{name}", height=120).strip() or None


@st.cache_data(max_entries=4, show_spinner=False)
def _prompt(name: str, _upload: Upload) -> str | None:
    del name  # only part of the cache key
    return form.prompt_for(_upload)


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
        st.session_state[form.REPORT] = EXAMPLE
        st.rerun()


def _report(judged: Judged, uploads: list[Upload]) -> None:
    """Draw the report."""
    if len(judged.analyses) == 1:
        for text in judged.left_out:
            st.warning(escaped(text), icon=":material/warning:")
        _single(judged.analyses[0], judged, uploads)
        return
    names = names_of(judged.analyses)
    with st.container(border=True):
        show(report_rows.run_table(judged.analyses), right=())
        for name, analysis in zip(names, judged.analyses, strict=True):
            if analysis.run.status not in _NO_DEATH:
                _verdict(name, analysis)
        for text in judged.left_out:
            st.warning(escaped(text), icon=":material/warning:")
        _downloads(judged, f"{len(names)}-runs")
    _curves(judged.analyses)
    if judged.comparison is not None:
        st.header("Compared with each other", anchor=False)
        for shown in report_rows.compared(judged.comparison):
            show(shown, right=())
        for text in report_rows.comparison_notes(judged.comparison):
            st.caption(escaped(text))
    st.header("One of them", anchor=False)
    name = st.selectbox("Run", names, key="analyze-run", help="Its own report is below.")
    _single(judged.analyses[names.index(name) if name in names else 0], None, uploads)


def _single(analysis: Analysis, judged: Judged | None, uploads: list[Upload]) -> None:
    """Draw the report of one run. `judged` is what can be downloaded, or None if the download is offered above."""
    with st.container(border=True):
        _verdict("", analysis)
        if judged is not None:
            _downloads(judged, PurePosixPath(analysis.run.source).name or "run")
    if judged is not None:
        _curves([analysis])
    st.header("Findings", anchor=False)
    if not analysis.findings:
        st.caption("None.")
    for finding in dearest_first(analysis.findings):
        finding_line(finding, opened=finding is analysis.main_finding)
    if analysis.insufficient:
        with st.expander(f"{len(analysis.insufficient)} checks need more than this log has"):
            missing = ((c.code.replace("_", " "), controls.as_text(c.missing, ANALYZE)) for c in analysis.insufficient)
            pairs(missing, ("Check", "What is missing"))
    _tables(analysis, uploads)


def _verdict(name: str, analysis: Analysis) -> None:
    """Draw the first lines of a report, each with its label, below the name of the run if there are several."""
    lines = [f"**{label}:** {escaped(text)}" for label, text in analysis.verdict.lines]
    st.markdown("  \n".join([f"**{escaped(name)}**", *lines] if name else lines))


def _traces(analysis: TraceAnalysis) -> None:
    """Draw what traces and dumps say: the verdict, one bar of the step or of the memory, and the findings."""
    for number, judged in enumerate(analysis.judged):
        judgement = judged.judgement
        with st.container(border=True):
            st.markdown(f"**{escaped(judgement.verdict)}**")
            st.caption(escaped("; ".join(filter(None, (traces.title(judged), traces.price_line(judged))))))
            if judgement.parts:
                names = [part.name for part in judgement.parts]
                st.altair_chart(charts.bill(traces.bar(judgement), parts=names), width="stretch", key=f"parts-{number}")
            if compared := traces.bars(judgement):
                names = list(dict.fromkeys(row["part"] for row in compared))
                chart = charts.step_parts(compared, across="the parts of a step", parts=names)
                st.altair_chart(chart, width="stretch", key=f"compared-{number}")
            for table in traces.more_tables(judgement):
                show(table, cell=escaped)
            for remark in judgement.remarks:
                st.caption(escaped(remark))
        for finding in judgement.findings:
            finding_line(finding)
        if judgement.lacking:
            with st.expander(f"{len(judgement.lacking)} remarks on what the files hold"):
                pairs(((one.code.replace("_", " "), one.missing) for one in judgement.lacking), ("About", "What"))
    document = json.dumps(with_number("analyze-trace", analysis.to_document()), indent=2, allow_nan=False)
    download("JSON", document, "trace.json", "application/json", "download", "The same numbers for programs.")


def _curves(analyses: Sequence[Analysis]) -> None:
    """Draw the controls, and a chart for each selected scalar, which at first is the loss of all runs."""
    offered = scalars(analyses)
    if not offered:
        st.caption("These logs have no curves to draw.")
        return
    names, look = _controls(offered)
    drawn, captions = [(name, overlay(analyses, name, look, validation=True)) for name in names], set[str]()
    for first in range(0, len(drawn), 2):
        pair = drawn[first : first + 2]
        columns = side_by_side(f"curves-{first}", (1,) * len(pair))
        for column, (name, plot) in zip(columns, pair, strict=True):
            if plot is None:
                known = "no value above zero" if look.log_x or look.log_y else "not known"
                column.caption(f"{offered[name]} against {AXES[look.axis]}: {known} of these logs.")
                continue
            column.markdown(f"**{escaped(plot.title)}**")
            column.altair_chart(plot.chart, width="stretch", key=f"curve-{name}")
            if plot.caption not in captions:
                column.caption(in_controls(plot.caption, ANALYZE))
            captions.add(plot.caption)


def _controls(offered: dict[str, str]) -> tuple[list[str], Look]:
    columns = st.container(key="pair-curves").columns((2.4, 1, 1, 1.4, 1.4), vertical_alignment="bottom")
    known = [name for name in st.session_state.get(CURVES, []) if name in offered]
    if CURVES in st.session_state and known != st.session_state[CURVES]:
        st.session_state[CURVES] = known  # other logs have other curves
    titles = offered | ({LOSS: "Training and validation loss"} if {LOSS, "eval_loss"} <= {*offered} else {})
    first = [name for name in (LOSS, "tokens_per_second") if name in offered] or [next(iter(offered))]
    names = columns[0].multiselect(
        "Curves", list(offered), first, key=CURVES, bind=QUERY, format_func=titles.__getitem__,
        max_selections=_MOST_CURVES, placeholder="choose some",
        help="A quantity of the logs.",
    )  # fmt: skip
    against = columns[1].selectbox(
        "Against", list(AXES), key=AGAINST, bind=QUERY, format_func=AXES.__getitem__,
        help="Dollars need a price, time a clock or step times, tokens the batch. Each run's time starts at 0.",
    )  # fmt: skip
    smooth = columns[2].selectbox(
        "Smooth", list(_SMOOTH), key=SMOOTH, bind=QUERY,
        help="A running median over this share of the rows; the logged values stay faintly behind it.",
    )  # fmt: skip
    logarithmic = columns[3].pills(
        "Logarithmic", _LOG, selection_mode="multi", key=LOGARITHMIC, bind=QUERY,
        help="The axis of the values, the axis across, or both.",
    )  # fmt: skip
    marks = columns[4].toggle(
        "Findings, phases", True, key=MARKS, bind=QUERY,
        help="Vertical lines at findings, at the end of warm-up and where the learning rate begins to fall.",
    )  # fmt: skip
    log_x, log_y = (name in logarithmic for name in ("x axis", "y axis"))
    return names, Look(axis=against, smooth=_SMOOTH[smooth], log_y=log_y, log_x=log_x, marks=marks)


def _downloads(judged: Judged, stem: str) -> None:
    """Offer files, which are written only on request."""
    reported = judged.analyses, judged.comparison, judged.left_out
    with st.container(horizontal=True):
        files: tuple[tuple[str, Callable[[], Any], str, str], ...] = (
            ("HTML report", lambda: io.BytesIO(html(*reported).encode()), "html",
             "One file with its charts, readable without a network."),
            ("Markdown", lambda: markdown(*reported), "markdown",
             "The same report as text."),
            ("CSV", lambda: as_csv(judged.analyses), "csv", "The table that was read from the log."),
        )  # fmt: skip
        for label, written, kind, about in files:
            download(label, written, f"{stem}.{kind.replace('markdown', 'md')}", f"text/{kind}", "download", about)


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


def finding_line(finding: Finding, *, opened: bool = False) -> None:
    """Draw one finding in a line, with what it saves; a click shows its evidence, likely causes and what to do.

    The first action of the main finding, which is `opened`, stands above already.
    """
    badge = f":{COLOURS[finding.severity]}-badge[{finding.severity.value}]"
    saves = f" · avoidable: {escaped(saved)}" if (saved := words.saving(finding)) else ""
    with st.expander(f"{badge} **{escaped(finding.title)}**{saves}", expanded=opened):
        lines = [line for line in words.finding_lines(finding) if not line.startswith("saves: ")]
        lines = [capital(line) for line in lines if not (opened and line == f"do: {finding.actions[0]}")]
        # what was seen quotes the log, whose options are not this page's
        st.markdown("\n".join(
            f"- {escaped(line) if line.startswith('Seen: ') else in_controls(line, ANALYZE)}" for line in lines
        ))  # fmt: skip
        st.caption(in_controls(words.grounds(finding), ANALYZE))


def _tables(analysis: Analysis, uploads: list[Upload]) -> None:
    st.header("Numbers", anchor=False)
    shown = report_rows.tables(analysis)
    for place, column in enumerate(side_by_side("numbers", (1, 1))):
        with column:
            for one in shown[place::2]:
                show(one, cell=controls.products)
    with st.expander("Model, training settings and some steps, as read from the log"):
        for one in report_rows.details(analysis, TABLE_ROWS):
            show(one, cell=controls.products)
    with st.expander("How it was read, and how to get this report again"):
        for note in (*(in_controls(text, ANALYZE) for text in analysis.case.unsure), *map(escaped, analysis.run.notes)):
            st.markdown(f"- {note}")
        # Show the command for this report, and what it needs if the log is not in a file yet.
        source = analysis.run.source
        if uploads and uploads[0].name == form.PASTED:
            st.caption(f"Save the pasted text as {form.PASTED}, then:")
        elif uploads and source == form.title_of(uploads) and len(uploads) > 1:
            st.caption(f"With these files in one folder: {escaped(', '.join(upload.name for upload in uploads))}")
            source = "FOLDER"
        st.code(words.reproduce(analysis, source), language="bash", wrap_lines=True)
