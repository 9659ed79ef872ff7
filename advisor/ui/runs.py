"""Page Runs: lists every run, how accurate its prediction was, what caused the gap, and compares several runs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pandas as pd
import streamlit as st

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.findings.chart_data import points
from advisor.history.comparison import compare_runs
from advisor.history.ledger_rows import FEWEST_FOR_COVERAGE, accuracy, coverages
from advisor.history.listing import RunSummary, list_runs
from advisor.report import charts
from advisor.report import comparison as words
from advisor.report.charts import ChartAxis
from advisor.report.plan import BASIS
from advisor.report.quantities import INTERVAL
from advisor.run_records import ScoreRow
from advisor.store.folders import example_run
from advisor.store.run_folder import LONGEST_NAME, LONGEST_NOTE, MOST_TAGS, is_run_folder, read_about
from advisor.ui import loaders
from advisor.ui.controls import RUN, escaped, numbers_in, show, side_by_side, to_address
from advisor.ui.live import printed_last
from advisor.units import format_percent
from advisor.workflows.compare import Reviewed, review
from advisor.workflows.diff import diff
from advisor.workflows.keep_runs import annotate, delete_run

UNITS = {
    "step_seconds_drift_corrected": "seconds",
    "tokens_per_second": "tokens per second",
    "mfu": "share of the peak",
    "cost_usd": "dollars",
    "energy_kwh": "kWh",
    "loss": "nats per token",
}  # for other quantities the unit is the last part of the name
DELETED = "run-deleted"  # session state: a message to show once, after a run was deleted
MOST_POINTS = 1000  # of the scatter plot; more cannot be told apart, and drawing them takes seconds
AXES = {"tokens": "tokens seen", "hours": "hours since its first step", "usd": "dollars since its first step"}


def page() -> None:
    """Draw the list of runs, what was selected in it, and how accurate predictions have been."""
    st.title("Runs", anchor=False)
    store = loaders.store()
    summaries = list_runs(store)
    # Enter finished planned runs into the ledger if they were not compared yet. Each is tried once per session.
    tried = st.session_state.setdefault("scored-runs", set())
    done = {row.run_id for row in store.scores()} | store.withdrawn_runs() | tried
    for run in summaries:
        if run.outcome is None or run.plan_id is None or run.id in done:
            continue
        tried.add(run.id)
        try:
            review(store, run.path, record=None)
        except AdvisorError as error:
            st.warning(escaped(f"{run.name} cannot be scored: {error.message}"), icon=":material/warning:")
    if deletion_message := st.session_state.pop(DELETED, None):
        st.success(escaped(deletion_message), icon=":material/check:")
    reviewed = [one for folder in _choose(summaries) if (one := _read(folder)) is not None]
    if len(reviewed) == 1:
        _single(reviewed[0])
    elif reviewed:
        _several(reviewed)
    if scores := store.scores():
        _track_record(scores)


def _track_record(scores: list[ScoreRow]) -> None:
    st.header("How accurate the predictions were", anchor=False)
    accuracies = accuracy(scores)
    known = {item.quantity for item in accuracies}
    titles = {name: quantity.name for name, quantity in words.QUANTITIES.items() if name in known}
    about = "Each finished run is scored on these."
    name = st.selectbox("Quantity", list(titles), format_func=titles.__getitem__, help=about)
    left, right = st.columns((3, 2), vertical_alignment="center")
    with right:
        for item in accuracies:
            if item.quantity == name:
                st.markdown(words.accuracy_sentence(item))
        st.caption(
            f"Each point is one finished run (the newest {MOST_POINTS:,} of them), each bar its 80 % interval. Points "
            "on the dashed line were predicted exactly."
        )
    drawn = [row for row in scores if row.quantity == name and row.actual > 0 and row.predicted.low > 0]
    rows = [
        charts.scatter_row(row.run_id, row.predicted, row.actual, inside=row.inside, words=words.QUANTITIES[name].words)
        for row in drawn[-MOST_POINTS:]  # oldest first
    ]
    if rows:
        left.altair_chart(charts.identity_scatter(rows, unit=UNITS.get(name, name.rsplit("_", 1)[-1])), width="stretch")
    # All quantities on all devices, and whether intervals have the right width.
    with st.expander("Every quantity on every device", icon=":material/table_rows:"):
        show(words.track_record(accuracies))
        widths = coverages(scores)
        if not widths:
            st.caption(f"It takes {FEWEST_FOR_COVERAGE} outcomes to show whether intervals are too narrow or too wide.")
            return
        words_of = [f"{format_percent(c.held)} of {format_percent(c.promised)}" for c in widths]
        shares = zip(widths, words_of, strict=True)
        rows = [{"promised": c.promised, "held": c.held, "label": label} for c, label in shares]
        st.altair_chart(charts.coverage(rows), width="stretch")
        st.caption(
            f"{widths[0].runs} outcomes, all quantities together. Below the dashed line the intervals were too narrow, "
            "above it too wide. Quantities of one run are not independent of each other."
        )


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
    if tags := sorted({tag for run in summaries for tag in run.tags}):
        wanted = set(st.multiselect("Only runs with these tags", tags, key="runs-tags", placeholder="All runs"))
        summaries = [run for run in summaries if wanted <= set(run.tags)]
    problems, any_tags = any(run.problem for run in summaries), any(run.tags for run in summaries)
    names = [Path(run.path).name for run in summaries]
    requested = [names.index(name) for name in st.query_params.get_all(RUN) if name in names]
    picked = st.dataframe(
        pd.DataFrame([_run_row(run, problems, any_tags) for run in summaries]),
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": requested or [0]}},
        column_config=numbers_in({"Step": "localized", "Done": "percent", "Training loss": "%.3f", "Spent": "$%.2f"}),
        key="runs-table",
    )
    st.caption("Tick one run to compare it with its plan, or several to overlay them.")
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
        st.warning(escaped(f"{folder.name}: {error.message}. {error.hint or ''}"), icon=":material/warning:")
        return None


def _started(name: str) -> str:
    """Return a folder's name with its start time in words, because that distinguishes runs of one model."""
    parts = re.fullmatch(r"(.+)-(\d{8}-\d{6})(.*)", name)
    return f"{parts[1]}, {datetime.strptime(parts[2], '%Y%m%d-%H%M%S'):%d %b %H:%M:%S}{parts[3]}" if parts else name


def _single(reviewed: Reviewed) -> None:
    st.header(f"{reviewed.name}: {words.ending(reviewed.scored)}", anchor=False)
    for note in (*reviewed.case.run.notes, *filter(None, [words.departures(reviewed.scored)])):
        st.caption(escaped(note))
    if judged := words.judgement(reviewed.scored):
        st.markdown(escaped(judged))
    left, right = side_by_side("run", (3, 2))
    with left:
        scores = words.scores(reviewed.scored).without(BASIS)
        show(scores, right=(INTERVAL, *scores.numbers))
    with right:
        # The causes of the difference between predicted and actual time, as a chart and in numbers.
        if steps := words.gap_steps(reviewed.scored):
            st.altair_chart(charts.waterfall(steps, unit="seconds"), width="stretch")
        if (gap := words.gap(reviewed.scored)) is not None:
            show(gap)
    _curves([reviewed], "tokens")
    printed_last(reviewed.path)
    _about(reviewed.path)
    st.caption(f"Run folder: {escaped(reviewed.path)}")


def _several(reviewed: list[Reviewed]) -> None:
    st.header("Side by side", anchor=False)
    axis = st.segmented_control(
        "Compare at equal", list(AXES), default="tokens", required=True, help="The axis on which the runs are compared."
    )
    _curves(reviewed, axis)
    try:
        comparison = compare_runs([run.case for run in reviewed], [run.name for run in reviewed])
    except AdvisorError as error:
        st.warning(escaped(error.message), icon=":material/warning:")
        return
    tables = words.side_by_side(comparison.points), words.differences(comparison), words.speed_changes(comparison)
    for shown in tables:
        show(shown, right=shown.columns[:1])
    st.caption("Losses can be compared only in the same learning-rate phase: annealing alone lowers the loss.")
    st.caption(escaped("; ".join((*words.groups(comparison), *comparison.notes))))
    if len(reviewed) != 2:
        return
    try:
        settings = diff(loaders.store(), *(str(run.path) for run in reviewed))
    except AdvisorError as error:
        st.caption(escaped(f"The differences are unknown: {error.message}"))
        return
    if settings.differences:
        st.header("What differs", anchor=False)
        show(words.setting_differences(settings))
    else:
        st.caption("The training settings do not differ.")


def _curves(reviewed: list[Reviewed], axis: str) -> None:
    rows = [
        {axis: place, "value": point.value, "series": run.name}
        for run in reviewed
        for point in points(run.case, "loss")
        if (place := getattr(point, axis)) is not None
    ]
    if not rows:
        st.caption("No price is known for these runs, so no curve over dollars." if axis == "usd" else "No steps yet.")
        return
    colours = dict(zip([run.name for run in reviewed], (charts.ACTUAL, *charts.PARTS), strict=False))
    across = ChartAxis(field=axis, title=AXES[axis])
    chart = charts.lines(rows, x=across, title="training loss, nats per token", colours=colours)
    st.altair_chart(charts.zoomable(chart), width="stretch")


def _about(folder: Path) -> None:
    """Draw a form for the run's name, note and tags, and a way to delete it. The shipped example has none."""
    if folder == example_run() or not is_run_folder(folder):
        return
    now = read_about(folder)
    if now.note:
        st.markdown(escaped(now.note))
    with st.expander("Name, note and tags", icon=":material/edit:"):
        with st.form(f"about-{folder.name}", border=False):
            name = st.text_input("Name", now.name, max_chars=LONGEST_NAME, placeholder=folder.name)
            note = st.text_area("Note", now.note, max_chars=LONGEST_NOTE)
            tags = st.multiselect(
                "Tags", now.tags, now.tags, accept_new_options=True, max_selections=MOST_TAGS, placeholder="Type a tag"
            )
            if st.form_submit_button("Save"):
                untags = [tag for tag in now.tags if tag not in tags]
                try:
                    annotate(folder, name=name, note=note, tags=tags, untags=untags)
                except AdvisorError as error:
                    st.error(escaped(f"{error.message}: {error.hint}"))
                else:
                    st.rerun()
        _delete(folder)


def _delete(folder: Path) -> None:
    store = loaders.store()
    if goes_on(describe(folder, store).state):
        st.caption("The run is still going; it can be deleted when it has ended.")
        return
    with st.popover("Delete this run", icon=":material/delete:"):
        st.markdown(
            escaped(f"{folder} and its checkpoints are removed for good. Predictions still use its measurements.")
        )
        if st.button(f"Delete {folder.name}", key=f"delete-{folder.name}"):
            stays = f"{folder.name} is not listed; its folder lies outside the advisor's own and stays: {folder}"
            is_left = delete_run(store, folder).folder_left
            st.session_state[DELETED] = stays if is_left else f"{folder.name} is deleted"
            st.rerun()
