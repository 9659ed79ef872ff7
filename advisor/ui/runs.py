"""Page Runs: lists every run, how accurate its prediction was, what caused the gap, and compares several runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pandas as pd
import streamlit as st

from advisor.errors import AdvisorError
from advisor.findings.chart_data import points
from advisor.history.comparison import compare_runs
from advisor.history.ledger_rows import FEWEST_FOR_COVERAGE, QuantityAccuracy, accuracy, coverages
from advisor.history.listing import RunSummary, list_runs
from advisor.history.scoring import ScoredRun
from advisor.report import charts
from advisor.report import comparison as words
from advisor.report.charts import ChartAxis
from advisor.report.plan import BASIS
from advisor.report.quantities import INTERVAL
from advisor.report.table import Table, capital, on_page
from advisor.run_records import ScoreRow
from advisor.store.folders import example_run
from advisor.store.run_folder import read_about
from advisor.ui import loaders, run_notes
from advisor.ui.controls import RUN, to_address
from advisor.ui.live import printed_last
from advisor.ui.tables import numbers_in, plain, side_by_side, table
from advisor.units import format_estimate, format_percent
from advisor.workflows.compare import Reviewed, review
from advisor.workflows.diff import diff

UNITS = {
    "step_seconds_drift_corrected": "seconds",
    "tokens_per_second": "tokens per second",
    "mfu": "share of the peak",
    "cost_usd": "dollars",
    "energy_kwh": "kWh",
    "loss": "nats per token",
}  # for other quantities the unit is the last part of the name
MOST_POINTS = 1000  # of the scatter plot; more cannot be told apart, and drawing them takes seconds
AXES = {"tokens": "tokens seen", "hours": "hours since its first step", "usd": "dollars since its first step"}


def page() -> None:
    """Draw how accurate predictions have been, then the list of runs."""
    st.title("Runs", anchor=False)
    store = loaders.store()
    summaries = list_runs(store)
    _score_new(summaries)
    scores = store.scores()
    if scores:
        _track_record(scores)
    run_notes.said()
    chosen = _choose(summaries)
    if not chosen:
        return
    reviewed = [run for folder in chosen if (run := _read(folder)) is not None]
    if len(reviewed) == 1:
        _single(reviewed[0])
    elif reviewed:
        _several(reviewed)


def _score_new(summaries: list[RunSummary]) -> None:
    """Enter finished planned runs into the ledger if they were not compared yet. Each is tried once per session."""
    store, tried = loaders.store(), st.session_state.setdefault("scored-runs", set())
    done = {row.run_id for row in store.scores()} | store.taken_back() | tried
    fresh = [run for run in summaries if run.outcome is not None and run.plan_id is not None and run.id not in done]
    for run in fresh:
        tried.add(run.id)
        try:
            review(store, run.path, record=None)
        except AdvisorError as error:
            st.warning(plain(f"{run.name} cannot be scored: {error.message}"), icon=":material/warning:")


def _track_record(scores: list[ScoreRow]) -> None:
    st.header("How accurate the predictions were", anchor=False)
    accuracies = accuracy(scores)
    quantities = [name for name in words.TITLES if any(item.quantity == name for item in accuracies)]
    name = st.selectbox(
        "Quantity", quantities, format_func=words.TITLES.__getitem__, help="Each finished run is scored on these."
    )
    left, right = st.columns((3, 2), vertical_alignment="center")
    with right:
        for item in accuracies:
            if item.quantity == name:
                st.markdown(words.record_in_words(item))
        st.caption(
            f"Each point is one finished run (the newest {MOST_POINTS:,} of them), each bar its 80 % interval. Points "
            "on the dashed line were predicted exactly."
        )
    drawn = [row for row in scores if row.quantity == name and row.actual > 0 and row.predicted.low > 0]
    rows = [_scatter_row(row) for row in drawn[-MOST_POINTS:]]  # oldest first
    if rows:
        left.altair_chart(charts.identity_scatter(rows, unit=UNITS.get(name, name.rsplit("_", 1)[-1])), width="stretch")
    _over_all(scores, accuracies)


def _over_all(scores: list[ScoreRow], accuracies: list[QuantityAccuracy]) -> None:
    """Draw a table of all quantities on all devices, and say whether intervals have the right width."""
    with st.expander("Every quantity on every device", icon=":material/table_rows:"):
        record = words.track_record(accuracies)
        _table(record, right=record.numbers)
        found = coverages(scores)
        if not found:
            st.caption(f"It takes {FEWEST_FOR_COVERAGE} outcomes to show whether intervals are too narrow or too wide.")
            return
        words_of = {c: f"{format_percent(c.held)} of {format_percent(c.promised)}" for c in found}
        rows = [{"promised": c.promised, "held": c.held, "label": label} for c, label in words_of.items()]
        st.altair_chart(charts.coverage(rows), width="stretch")
        st.caption(
            f"{found[0].runs} outcomes, all quantities together. Below the dashed line the intervals were too narrow, "
            "above it too wide. Quantities of one run are not independent of each other."
        )


def _scatter_row(row: ScoreRow) -> dict[str, object]:
    shown = words.FORMATTERS[row.quantity]
    return {
        "run": row.run_id,
        "predicted": row.predicted.value,
        "low": row.predicted.low,
        "high": row.predicted.high,
        "actual": row.actual,
        "inside": "inside the interval" if row.inside else "outside",
        "label": f"{format_estimate(row.predicted, shown)}; actual {shown(row.actual)}",
    }


def _choose(summaries: list[RunSummary]) -> list[Path]:
    """Return the runs selected in the table. Returns the recorded example if there are no runs yet."""
    if not summaries:
        st.info(
            "No run on this machine yet. Plan one and launch it, or type `advisor quickstart`. Below is a recorded "
            "example: depth 2 trained for 90 seconds on two CPU cores.",
            icon=":material/lightbulb:",
        )
        return [example_run()]
    st.header("All runs", anchor=False)
    summaries = run_notes.tagged(summaries)
    problems, any_tags = any(run.problem for run in summaries), any(run.tags for run in summaries)
    names = [Path(run.path).name for run in summaries]
    asked = [names.index(name) for name in st.query_params.get_all(RUN) if name in names]
    picked = st.dataframe(
        pd.DataFrame([_run_row(run, problems, any_tags) for run in summaries]),
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": asked or [0]}},
        column_config=numbers_in({"Step": "localized", "Done": "percent", "Training loss": "%.3f", "Spent": "$%.2f"}),
        key="runs-table",
    )
    st.caption("Tick one run to compare it with its plan, several to overlay them.")
    chosen = [Path(summaries[number].path) for number in picked.selection.rows if number < len(summaries)]
    to_address(RUN, [folder.name for folder in chosen])
    return chosen


def _run_row(run: RunSummary, problems: bool, tags: bool) -> dict[str, object]:
    return {
        "Run": _started(folder) if (folder := Path(run.path).name).startswith(run.name) else run.name,
        **({"Tags": ", ".join(run.tags)} if tags else {}),
        "Started (UTC)": run.created[:16].replace("T", " "),
        "State": (run.outcome or run.state).replace("_", " "),
        "Step": run.step,
        "Done": (run.step or 0) / run.steps if run.steps else None,
        "Training loss": run.loss,
        "Spent": run.usd,
        "Device": run.device_key or "-",
        **({"Problem": run.problem or ""} if problems else {}),
    }


def _read(folder: Path) -> Reviewed | None:
    try:
        called = read_about(folder).name or _started(folder.name)
        return replace(review(loaders.store(), str(folder), record=False), called=called)
    except AdvisorError as error:
        st.warning(plain(f"{folder.name}: {error.message}. {error.hint or ''}"), icon=":material/warning:")
        return None


def _started(name: str) -> str:
    """Return a folder's name with its start time in words, because that distinguishes runs of one model."""
    found = re.fullmatch(r"(.+)-(\d{8}-\d{6})(.*)", name)
    return f"{found[1]}, {datetime.strptime(found[2], '%Y%m%d-%H%M%S'):%d %b %H:%M:%S}{found[3]}" if found else name


def _single(reviewed: Reviewed) -> None:
    st.header(f"{reviewed.name}: {words.ending(reviewed.scored)}", anchor=False)
    for note in (*reviewed.case.run.notes, *filter(None, [words.departures(reviewed.scored)])):
        st.caption(plain(note))
    if judged := words.judgement(reviewed.scored):
        st.markdown(plain(judged))
    left, right = side_by_side("run", (3, 2))
    with left:
        scores = words.scores(reviewed.scored).without(BASIS)
        _table(scores, right=(INTERVAL, *scores.numbers))
    with right:
        _gap(reviewed.scored)
    _curves([reviewed], "tokens")
    printed_last(reviewed.path)
    run_notes.about(reviewed.path)
    st.caption(f"Run folder: {plain(reviewed.path)}")


def _gap(scored: ScoredRun) -> None:
    """Show the causes of the difference between predicted and actual time, as a chart and in numbers."""
    steps = words.gap_steps(scored)
    if steps:
        st.altair_chart(charts.waterfall(steps, unit="seconds"), width="stretch")
    if (gap := words.gap(scored)) is not None:
        _table(gap, right=gap.numbers)


def _table(rows_in_words: Table, right: Sequence[str]) -> None:
    table(on_page(rows_in_words), right=[capital(name) for name in right])


def _several(reviewed: list[Reviewed]) -> None:
    st.header("Side by side", anchor=False)
    axis = st.segmented_control(
        "Compare at equal", list(AXES), default="tokens", required=True, help="The axis on which the runs are compared."
    )
    _curves(reviewed, axis)
    try:
        comparison = compare_runs([run.case for run in reviewed], [run.name for run in reviewed])
    except AdvisorError as error:
        st.warning(plain(error.message), icon=":material/warning:")
        return
    for shown in (
        words.side_by_side(comparison.points),
        words.differences(comparison),
        words.speed_changes(comparison),
    ):
        _table(shown, right=shown.columns[:1])
    st.caption("Losses can be compared only in the same learning-rate phase: annealing alone lowers the loss.")
    st.caption(plain("; ".join((*words.groups(comparison), *comparison.notes))))
    if len(reviewed) == 2:
        _differences(*reviewed)


def _differences(one: Reviewed, other: Reviewed) -> None:
    """Show the settings that differ between two runs."""
    try:
        found = diff(loaders.store(), str(one.path), str(other.path))
    except AdvisorError as error:
        st.caption(plain(f"The differences are unknown: {error.message}"))
        return
    if found.differences:
        st.header("What differs", anchor=False)
        _table(words.setting_differences(found), right=())
    else:
        st.caption("No setting of the training differs.")


def _curves(reviewed: list[Reviewed], axis: str) -> None:
    rows = [
        {axis: place, "loss": point.value, "series": run.name}
        for run in reviewed
        for point in points(run.case, "loss")
        if (place := getattr(point, axis)) is not None
    ]
    if not rows:
        st.caption("No price is known for these runs, so no curve over dollars." if axis == "usd" else "No steps yet.")
        return
    colours = dict(zip([run.name for run in reviewed], (charts.ACTUAL, *charts.PARTS), strict=False))
    across = ChartAxis(field=axis, title=AXES[axis])
    upright = ChartAxis(field="loss", title="training loss, nats per token")
    st.altair_chart(charts.zoomable(charts.lines(rows, x=across, y=upright, colours=colours)), width="stretch")
