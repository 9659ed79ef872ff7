"""Page Analyze: a training log in, what happened, what it cost and what to change out."""

from __future__ import annotations

import io
from pathlib import PurePosixPath

import streamlit as st

from advisor.findings.case import Finding, Severity
from advisor.findings.forecast import Targets
from advisor.hardware.catalog import load_gpus
from advisor.report import measured, words
from advisor.report.markdown import document
from advisor.report.plots import plots
from advisor.report.rows import as_csv, checkpoint_rows, loss_table, phase_rows
from advisor.store.folders import example_run
from advisor.ui import loaders
from advisor.ui.controls import ANALYZE, in_controls, in_words
from advisor.ui.tables import pairs, plain, side_by_side
from advisor.ui.uploads import MOST_MEGABYTES, PASTED, Upload, judge_uploads
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze

ICONS = {Severity.ERROR: ":material/error:", Severity.WARNING: ":material/warning:", Severity.NOTE: ":material/info:"}
COLOURS = {Severity.ERROR: "red", Severity.WARNING: "orange", Severity.NOTE: "gray"}
EXAMPLE_KEY = "analyze-example"  # session state: whether the recorded example is looked at
TABLE_ROWS = 20


def page() -> None:
    """A log in, its report out."""
    st.header("Analyze", anchor=False)
    uploads, key = _source()
    given = _given()
    if uploads:
        with st.spinner("reading and judging the log"):
            analysis = _judged(key, given, loaders.store_stamp(), uploads)
        _report(analysis)
    elif st.session_state.get(EXAMPLE_KEY):
        st.caption("The recorded example: depth 2, trained for 90 seconds on two CPU cores.")
        _report(_example(given, loaders.store_stamp()))
    else:
        _empty()


def _source() -> tuple[list[Upload], tuple[str, ...]]:
    """What was uploaded or pasted, and what names it: the same content keeps the same name between reruns."""
    left, right = st.columns((3, 2))
    files = left.file_uploader(
        "A training log, several files of one run, or a zip of its folder",
        accept_multiple_files=True,
        max_upload_size=MOST_MEGABYTES,
        key="analyze-files",
        help="Console output, CSV, JSONL, TensorBoard events, trainer_state.json and many more. Files are read on this "
        "machine, never executed, and deleted after reading.",
    )
    text = right.text_area(
        "or paste its text",
        placeholder="step 10 | loss 4.21 | lr 3e-4 | 812 ms | 161 k tok/s …",
        key="analyze-text",
        height=110,
        help="The lines a training script printed.",
    )
    if files:
        return [Upload(name=file.name, content=file.getbuffer) for file in files], tuple(f.file_id for f in files)
    if text.strip():
        return [Upload(name=PASTED, content=text.encode)], (text,)
    return [], ()


def _given() -> Given:
    with st.expander("What the log may not say: card, price, targets"):
        columns = st.columns(3)
        cards = ["cpu", *sorted(load_gpus())]
        gpu = columns[0].selectbox("Card", cards, index=None, placeholder="as the log says", help="Type to search.")
        gpus = columns[1].number_input("Number of cards", 1, value=None, placeholder="as the log says", help="In all.")
        price = columns[2].number_input(
            "Price ($ per card and hour)",
            min_value=0.0,
            value=None,
            placeholder="the cheapest in the catalog",
            help="What you pay. Without it the catalog's cheapest price for the card is taken.",
        )
        columns = st.columns(3)
        loss = columns[0].number_input(
            "Loss to reach",
            min_value=0.0,
            value=None,
            help="In the log's own unit: says whether the run will get there.",
        )
        usd = columns[1].number_input(
            "Budget ($)", min_value=0.0, value=None, help="Says whether the whole run stays within it."
        )
        hours = columns[2].number_input("Deadline (hours)", min_value=0.0, value=None, help="From the run's start.")
    return Given(
        gpu=gpu,
        gpus=gpus,
        usd_per_gpu_hour=price,
        targets=Targets(final_loss=loss or None, usd=usd or None, hours=hours or None),
    )


@st.cache_resource(max_entries=8, show_spinner=False)
def _judged(key: tuple[str, ...], given: Given, stamped: tuple[int, ...], _uploads: list[Upload]) -> Analysis:
    """`key` names the content; uploads themselves are not hashed: they may be large."""
    del key, stamped  # in the key only
    return judge_uploads(_uploads, given, loaders.store())


@st.cache_resource(max_entries=4, show_spinner="reading the example")
def _example(given: Given, stamped: tuple[int, ...]) -> Analysis:
    del stamped
    return analyze(example_run(), given, loaders.store())


def _empty() -> None:
    st.info(
        "Drop a log above: you get what happened, what it cost, what was wasted and what to change, each with its "
        "evidence. nanochat, nanoGPT, llm.c, Megatron, Hugging Face, Lightning, TensorBoard, W&B and many more "
        "formats are recognised by themselves.",
        icon=":material/lightbulb:",
    )
    if st.button("Look at a recorded example", icon=":material/visibility:", key="analyze-show-example"):
        st.session_state[EXAMPLE_KEY] = True
        st.rerun()


def _report(analysis: Analysis) -> None:
    happened, cost, todo = analysis.verdict
    with st.container(border=True):
        st.markdown(f"**{plain(happened)}**")
        st.markdown(plain(cost))
        st.markdown(f":material/arrow_forward: {plain(todo)}")
        _downloads(analysis)
    pairs(words.runs(analysis), [name.capitalize() for name in words.RUNS], right=("Takes", "Costs"))
    _findings(analysis)
    _figures(analysis)
    _tables(analysis)


def _downloads(analysis: Analysis) -> None:
    stem = PurePosixPath(analysis.run.source).name or "run"
    with st.container(horizontal=True):
        st.download_button(
            "HTML report",
            lambda: _html(analysis),
            file_name=f"{stem}.html",
            mime="text/html",
            icon=":material/download:",
            help="One file with its charts, readable without a network.",
        )
        st.download_button(
            "Markdown", lambda: document(analysis), file_name=f"{stem}.md", mime="text/markdown",
            icon=":material/download:", help="The same report as text.",
        )  # fmt: skip
        st.download_button(
            "CSV", lambda: as_csv([analysis]), file_name=f"{stem}.csv", mime="text/csv",
            icon=":material/download:", help="The table that was read from the log.",
        )  # fmt: skip


def _html(analysis: Analysis) -> io.BytesIO:
    from advisor.report.html import page as html_page  # its script bundle takes a second to load

    return io.BytesIO(html_page([analysis]).encode())


def _findings(analysis: Analysis) -> None:
    st.subheader("Findings", anchor=False)
    if not analysis.findings:
        st.success("Nothing wrong was found in what the log holds.", icon=":material/check_circle:")
    for finding in dearest_first(analysis.findings):
        finding_card(finding)
    if analysis.insufficient:
        with st.expander(f"{len(analysis.insufficient)} checks could not judge: what they would need"):
            pairs(
                ((check.code.replace("_", " "), in_words(check.missing, ANALYZE)) for check in analysis.insufficient),
                ("Check", "Is missing"),
            )


def _worded(text: str) -> str:
    return in_controls(text, ANALYZE, plain)


def dearest_first(findings: tuple[Finding, ...]) -> list[Finding]:
    """What saves most money first, then most hours; the rest as the analysis ordered it, by severity.

    A saving too small to be worth words does not count.
    """

    def order(finding: Finding) -> tuple[float, float]:
        if not words.saving(finding):
            return 0.0, 0.0
        usd, hours = finding.saved_usd, finding.saved_hours
        return -(usd.value if usd else 0.0), -(hours.value if hours else 0.0)

    return sorted(findings, key=order)


def finding_card(finding: Finding) -> None:
    """One finding with its evidence, likely causes, what to do and what that saves."""
    with st.container(border=True):
        badge = f":{COLOURS[finding.severity]}-badge[{ICONS[finding.severity]} {finding.severity.value}]"
        saved = words.saving(finding)
        worth = f"  :green-badge[:material/savings: saves {plain(saved)}]" if saved else ""
        st.markdown(f"{badge}{worth}  \n**{plain(finding.title)}**")
        lines = [f"- Seen: {plain(evidence.text)}" for evidence in finding.evidence]
        lines += [f"- Likely: {_worded('; '.join(finding.causes))}"] if finding.causes else []
        lines += [f"- **Do:** {_worded(action)}" for action in finding.actions]
        st.markdown("\n".join(lines))
        st.caption(f"{finding.code}, {finding.confidence.value} confidence. {plain(finding.threshold)}")


def _figures(analysis: Analysis) -> None:
    drawn = list(plots(analysis))
    if not drawn:
        return
    st.subheader("Charts", anchor=False)
    for first in range(0, len(drawn), 2):
        for column, plot in zip(side_by_side(f"charts-{first}", (1, 1)), drawn[first : first + 2], strict=False):
            column.markdown(f"**{plain(plot.title)}**")
            column.altair_chart(plot.chart, width="stretch")
            if plot.caption:
                column.caption(_worded(plot.caption))


def _tables(analysis: Analysis) -> None:
    st.subheader("Numbers", anchor=False)
    left, right = side_by_side("numbers", (1, 1))
    with left:
        pairs(words.money(analysis), ("Money and time", "Takes", "Costs"), right=("Takes", "Costs"))
        pairs(words.outlook(analysis), ("To come", " "))
        pairs(phase_rows(analysis), ("Part of a step", "Median", "Share"), right=("Median", "Share"))
    with right:
        pairs(words.speed(analysis), ("Speed", " "), right=(" ",))
        pairs(
            measured.spreads(analysis),
            ("Measured", "Mean", "Least", "Most", "Last", "Rows"),
            right=("Mean", "Least", "Most", "Last", "Rows"),
        )
        pairs(measured.cards(analysis), ("Card", " ", "Mean", "Least", "Most"), right=("Mean", "Least", "Most"))
        pairs(words.elsewhere(analysis), ("The whole run on", "Takes", "Costs", " "), right=("Takes", "Costs"))
    with st.expander("Model and training as the log declares them"):
        left, right = st.columns(2)
        with left:
            pairs(words.model_facts(analysis), ("Model", " "), right=(" ",))
        with right:
            pairs(words.training_facts(analysis), ("Training", " "), right=(" ",))
    with st.expander("Some of its steps"):
        columns, rows = loss_table(analysis, TABLE_ROWS)
        pairs(rows, columns, right=columns)
        pairs(checkpoint_rows(analysis), ("Step", "Checkpoint"))
    with st.expander("How it was read, and how to get this report again"):
        for note in (*map(_worded, analysis.case.unsure), *map(plain, analysis.run.notes)):
            st.markdown(f"- {note}")
        st.code(words.reproduce(analysis), language="bash", wrap_lines=True)
