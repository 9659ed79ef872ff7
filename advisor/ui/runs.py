"""Page Runs: lists every run with its state and promise; explains one, compares several, and shows the accuracy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pandas as pd
import streamlit as st

from advisor.engines.engines import describe
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.findings.case import Case
from advisor.findings.chart_data import ChartPoint, loss_so_far_points, points
from advisor.findings.run_facts import planned_steps
from advisor.history.comparison import compare_runs
from advisor.history.ledger_rows import accuracy, coverages
from advisor.history.listing import RunSummary, list_runs, loss_sketch, state_words
from advisor.report import charts
from advisor.report import comparison as words
from advisor.report.charts import ChartAxis
from advisor.report.plan import BASIS
from advisor.report.quantities import INTERVAL
from advisor.report.table import capital, on_page
from advisor.run_records import ScoreRow
from advisor.store.folders import example_run
from advisor.store.run_folder import LONGEST_NAME, LONGEST_NOTE, MOST_TAGS, is_run_folder, read_about
from advisor.ui import loaders
from advisor.ui.controls import (
    RUN,
    distinct,
    escaped,
    from_address,
    numbers_in,
    products,
    show,
    side_by_side,
    table,
    to_address,
)  # fmt: skip
from advisor.ui.live import printed_last
from advisor.units import UNKNOWN, format_percent
from advisor.workflows.compare import Reviewed, review
from advisor.workflows.diff import diff
from advisor.workflows.keep_runs import annotate, delete_run

STATES = {  # in one word, each with its colour
    "completed": charts.GOOD,
    "running": charts.PREDICTED,
    "queued": charts.PARTS[1],
    "stopped": charts.REJECTED,
    "failed": charts.WARNING,
    "lost": "#CC79A7",
    **dict.fromkeys(("damaged", "gone", "unstarted", "unknown"), charts.REJECTED),
}
VIEW = "view"  # in the session and in the address: the open tab
DELETED = "run-deleted"  # session state: a message to show once, after a run was deleted
MOST_POINTS = 1000  # of the scatter plot; more cannot be told apart, and drawing them takes seconds
AXES = {
    "tokens": ("tokens", "tokens seen"),
    "step": ("steps", "steps"),
    "hours": ("time", "time since its first step"),
    "usd": ("cost", "dollars since its first step"),
    "schedule": ("share of the schedule", "% of its planned steps"),
}  # the names of the axis on its button and below the chart
LOSS_SO_FAR = "the mean of the last 2 % of the steps, at least five"
BAR = "Time / predicted"
_WIDTHS = {"Loss": 60, "Done": 70, "Spent": 75, "Device": 75}  # pixels, so that a window of 900 shows the whole table
LEAST_REACH, MOST_REACH = 0.05, 0.5  # of the predicted value, to either side of it where intervals are drawn


def page() -> None:
    """Draw the list of runs with what was selected in it and, in a tab, how accurate predictions have been."""
    st.title("Runs", anchor=False)
    store = loaders.store()
    summaries, scores = list_runs(store), store.scores()
    # Enter finished planned runs into the ledger if they were not compared yet. Each is tried once per session.
    tried = st.session_state.setdefault("scored-runs", set())
    done = {row.run_id for row in scores} | store.withdrawn_runs() | tried
    new = [run for run in summaries if run.outcome is not None and run.plan_id is not None and run.id not in done]
    for run in new:
        tried.add(run.id)
        try:
            review(store, run.path, record=None)
        except AdvisorError as error:
            st.warning(escaped(f"{run.name} cannot be scored: {error.message}"), icon=":material/warning:")
    scores = store.scores() if new else scores
    if deletion_message := st.session_state.pop(DELETED, None):
        st.success(escaped(deletion_message), icon=":material/check:")
    from_address(VIEW)
    every, accurate = st.tabs(["All runs", "Accuracy"], key=VIEW, on_change="rerun")
    to_address(VIEW, "Accuracy" if accurate.open else None)
    if accurate.open:
        to_address(RUN, st.query_params.get_all(RUN))  # for the way back
        with accurate:
            _accuracy(scores)
        return
    with every:
        names = _names(summaries)
        chosen = _choose(summaries, names, scores)
        reviewed = [one for folder in chosen if (one := _read(folder, names)) is not None]
        colours = _colours([str(run.path) for run in reviewed], list(names))
        if len(reviewed) == 1:
            _single(reviewed[0], colours)
        elif reviewed:
            _several(reviewed, colours)


def _accuracy(scores: list[ScoreRow]) -> None:
    if not scores:
        st.info("No finished run was compared with its plan yet.", icon=":material/lightbulb:")
        return
    accuracies, about = accuracy(scores), "Each finished run is scored on these."
    known = {row.quantity for row in scores}
    titles = {name: quantity.name for name, quantity in words.QUANTITIES.items() if name in known}
    left, right = side_by_side("accuracy", (2, 3))
    name = right.selectbox("Quantity", list(titles), format_func=titles.__getitem__, help=about)
    drawn = [row for row in scores if row.quantity == name and row.actual > 0 and row.predicted.low > 0]
    shown = words.QUANTITIES[name].words
    factor, unit = shown.unit(max((row.actual for row in drawn), default=0.0))
    rows = [
        charts.scatter_row(
            row.run_id,
            row.predicted,
            row.actual,
            words=shown,
            factor=factor,
            inside=None if row.set_aside else row.inside,
        )  # fmt: skip
        for row in drawn[-MOST_POINTS:]  # oldest first
    ]
    if rows:
        left.altair_chart(charts.identity_scatter(rows, unit=unit or shown.prefix or "nats per token"), width="stretch")
    with right:
        for item in accuracies:
            if item.quantity == name:
                st.markdown(words.accuracy_sentence(item))
        newest = f"The newest {MOST_POINTS:,}, each with its 80 % interval. On the dashed line: predicted exactly."
        st.caption("Each point is one finished run.", help=newest)
        st.markdown(words.coverage_sentence(coverages(scores)))
        for text in words.left_out(drawn):
            st.caption(escaped(text))
    st.header("Every quantity on every device", anchor=False)
    show(words.track_record(accuracies))


def _names(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return what people call each run, by its folder: its own name, or the model with its start."""
    folders = {run.path: Path(run.path).name for run in runs}
    called = {run.path: _started(folder) if (folder := folders[run.path]).startswith(run.name) else run.name
              for run in runs}  # fmt: skip
    often = Counter(called.values())
    return distinct({path: name if often[name] == 1 else folders[path] for path, name in called.items()})


def _started(name: str) -> str:
    """Return a folder's name with its start in words, because that distinguishes runs of one model."""
    parts = re.fullmatch(r"(.+)-(\d{8}-\d{6})(.*)", name)
    return f"{parts[1]} of {datetime.strptime(parts[2], '%Y%m%d-%H%M%S'):%d %b %H:%M}{parts[3]}" if parts else name


def _colours(chosen: Sequence[str], every: Sequence[str]) -> dict[str, str]:
    """Return a colour for each chosen run. It follows from the run's place among all, so that it is always the same
    unless another chosen run has it."""
    colours: dict[str, str] = {}
    for path in chosen:
        place = (len(every) - every.index(path)) % len(charts.RUNS) if path in every else 0
        ordered = (*charts.RUNS[place:], *charts.RUNS[:place])
        colours[path] = next((one for one in ordered if one not in colours.values()), ordered[0])
    return colours


def _choose(summaries: list[RunSummary], names: dict[str, str], scores: list[ScoreRow]) -> list[Path]:
    """Return the runs selected in the table. Returns the recorded example if there are no runs yet."""
    if not summaries:
        st.info(
            "No run on this machine yet. Plan one and launch it, or type `advisor quickstart`. Below is a recorded "
            "example: depth 2 trained for 90 seconds on two CPU cores.",
            icon=":material/lightbulb:",
        )
        return [example_run()]
    if tags := sorted({tag for run in summaries for tag in run.tags}):
        wanted = set(st.multiselect("Only runs with these tags", tags, key="runs-tags", placeholder="All runs"))
        summaries = [run for run in summaries if wanted <= set(run.tags)]
    times = {row.run_id: 100 * row.actual / row.predicted.value for row in scores
             if row.quantity == "wall_clock_seconds" and row.predicted.value}  # fmt: skip
    frame = pd.DataFrame([_run_row(run, names[run.path], times.get(run.id)) for run in summaries])
    frame = frame.drop(columns=[name for name in ("Tags", "Problem") if name in frame and not any(frame[name])])
    folders = [Path(run.path).name for run in summaries]
    requested = [folders.index(name) for name in st.query_params.get_all(RUN) if name in folders]
    columns = {
        "State": st.column_config.MultiselectColumn(options=list(STATES), color=list(STATES.values()), width=100),
        "Loss curve": st.column_config.LineChartColumn(color=charts.REJECTED, width=100, help=capital(LOSS_SO_FAR)),
        BAR: st.column_config.ProgressColumn(
            min_value=0, max_value=100, format="%.0f %%", color=charts.ACTUAL, width=120,
            help="Wall clock as a share of the prediction: a full bar took as long as predicted, or longer.",
        ),
    }  # fmt: skip
    picked = st.dataframe(
        frame,
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": requested or [0]}},
        column_config={**columns, **numbers_in({"Loss": "%.3g", "Spent": "$%.2f", "Done": "%.0f %%"}, _WIDTHS)},
        key="runs-table",
        placeholder="",
        alt="The runs, newest first; tick one to compare it with its plan, several to compare them with each other",
    )
    if len(summaries) > 1:
        st.caption("Tick several to compare them.")
    chosen = [Path(summaries[number].path) for number in picked.selection.rows if number < len(summaries)]
    to_address(RUN, [folder.name for folder in chosen])
    return chosen


def _run_row(run: RunSummary, name: str, time: float | None) -> dict[str, object]:
    state, why = state_words(run.state, run.outcome)
    return {
        "State": [state],
        "Run": name,
        "Tags": ", ".join(run.tags),
        "Loss curve": loss_sketch(run.path),
        "Loss": run.loss,
        BAR: time,
        "Done": 100 * (run.step or 0) / run.steps if run.steps else None,
        "Spent": run.usd,
        "Device": products(run.device_key or "-").replace("cpu", "CPU"),
        "Problem": run.problem or why,
    }


def _read(folder: Path, names: dict[str, str]) -> Reviewed | None:
    try:
        called = names.get(str(folder)) or _started(folder.name)
        return replace(review(loaders.store(), str(folder), record=False), called=called)
    except AdvisorError as error:
        st.warning(escaped(f"{folder.name}: {error.message}. {error.hint or ''}"), icon=":material/warning:")
        return None


def _single(reviewed: Reviewed, colours: dict[str, str]) -> None:
    st.header(escaped(f"{reviewed.name}: {words.headline(reviewed.scored)}"), anchor=False)
    for note in (*reviewed.case.run.notes, *filter(None, [words.departures(reviewed.scored)])):
        st.caption(escaped(note))
    if inside := words.inside(reviewed.scored):
        held, _, explained = inside.partition(": ")
        st.markdown(escaped(held), help=capital(explained))
    left, right = side_by_side("run", (2, 1))
    with left:
        _scores(reviewed)
    with right:
        _curves([reviewed], colours, "tokens")
        if steps := words.gap_steps(reviewed.scored):
            st.altair_chart(charts.waterfall(steps, unit="seconds"), width="stretch")
    printed_last(reviewed.path)
    _about(reviewed.path)


def _scores(reviewed: Reviewed) -> None:
    """Draw predicted and actual values, with all intervals on one scale: distance from the predicted value."""
    scores, listed = words.shown_scores(reviewed.scored), words.scores(reviewed.scored).without(BASIS)
    ends = [end / p.value - 1 for s in scores if (p := s.predicted) and p.value and s.actual is not None
            for end in (p.low, p.high, s.actual)]  # fmt: skip
    reach = min(MOST_REACH, max(map(abs, (LEAST_REACH, *ends))))
    drawn, interval = f"±{format_percent(round(reach, 2))}", capital(INTERVAL)
    images = [charts.interval_image(score.predicted, score.actual, reach) for score in scores]
    # The first names decide the order of the columns. What was not measured has nothing to compare, and what lies
    # inside its interval needs no cause.
    placed = [
        {"What": "", interval: "", drawn: image} | row
        | {"Gap": row["Gap"].removesuffix(", outside"), "Cause": "" if score.inside_interval else row["Cause"]}
        for score, image, row in zip(scores, images, on_page(listed), strict=True)
        if row["Actual"] != UNKNOWN
    ]  # fmt: skip
    table(placed, (interval, "Actual", "Gap"), drawn=(drawn,))


def _several(reviewed: list[Reviewed], colours: dict[str, str]) -> None:
    legend = [f"{charts.dot_image(colours[str(run.path)])} {escaped(run.name)}" for run in reviewed]
    try:
        comparison = compare_runs([run.case for run in reviewed], [run.name for run in reviewed])
    except AdvisorError as error:
        st.warning(escaped(error.message), icon=":material/warning:")
        st.markdown(" &emsp; ".join(legend))
        _curves(reviewed, colours, "tokens")
        return
    first, *more = words.verdicts(comparison)
    st.header(escaped(first), anchor=False)
    for verdict in more:
        st.markdown(escaped(verdict))
    st.markdown(" &emsp; ".join(legend))
    known = {difference.axis for difference in comparison.differences} or {"step"}
    axis = st.segmented_control(
        "Compare at equal", offered := [name for name in AXES if name in known], default=offered[0],
        format_func=lambda name: AXES[name][0], required=True, help="The axis on which the runs are compared.",
    )  # fmt: skip
    left, right = side_by_side("several", (2, 3))
    with left:
        _curves(reviewed, colours, axis)
    with right:
        shown = words.compared(comparison, axis)
        show(shown.only(shown.columns[0], "verdict", *shown.columns[1:-1]))  # so that a telephone shows the verdict
        why = [d.verdict for d in comparison.differences if d.axis == axis and not d.comparable]
        notes = [f"Not comparable: {reason}" for reason in why[-1:]]
        for note in (*notes, *words.groups(comparison), *map(capital, comparison.notes)):
            st.caption(escaped(note))
    if len(reviewed) != 2:
        return
    try:
        settings = diff(loaders.store(), *(str(run.path) for run in reviewed))
    except AdvisorError as error:
        st.caption(escaped(f"The differences are unknown: {error.message}"))
        return
    if settings.differences:
        st.header("What differs", anchor=False)
        found = words.setting_differences(replace(settings, names=(reviewed[0].name, reviewed[1].name)))
        table(dict(zip(("Setting", *found.columns[1:]), row, strict=True)) for row in found.rows)
    else:
        st.caption("The training settings do not differ.")


def _curves(reviewed: list[Reviewed], colours: dict[str, str], axis: str) -> None:
    rows, behind = (
        [
            {axis: place, "value": point.value, "series": run.name}
            for run in reviewed
            for point in drawn(run.case)
            if (place := _place(run.case, point, axis)) is not None
        ]
        # the losses as logged are drawn faintly behind
        for drawn in (loss_so_far_points, lambda case: points(case, "loss"))
    )
    if not rows:
        st.caption("No steps yet.")
        return
    of_runs, title = {run.name: colours[str(run.path)] for run in reviewed}, "training loss, nats per token"
    across = ChartAxis(field=axis, title=AXES[axis][1])
    if axis == "hours":
        across, [rows, behind] = charts.timed(rows, behind)
    chart = charts.lines(rows, x=across, title=title, colours=of_runs, behind=behind, named=False)
    st.altair_chart(charts.zoomable(chart), width="stretch")
    st.caption(
        "Bold: smoothed. Faint: as logged.",
        help=f"{capital(LOSS_SO_FAR)}, as in the list and the comparison.",
    )


def _place(case: Case, point: ChartPoint, axis: str) -> float | None:
    """Return where a point of a curve stands on an axis, or None if the log does not tell it."""
    if axis != "schedule":
        place: float | None = getattr(point, axis)
        return place
    planned = planned_steps(case)
    return 100 * point.step / planned if planned else None


def _about(folder: Path) -> None:
    """Draw a form for the run's name, note and tags, and a way to delete it. The shipped example has none."""
    if folder == example_run() or not is_run_folder(folder):
        return
    now = read_about(folder)
    if now.note:
        st.markdown(escaped(now.note))
    with st.expander("Name, tags", icon=":material/edit:"):
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
