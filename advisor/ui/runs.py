"""Page Runs: every run, how right its prediction was, where the gap went, and several runs over each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from advisor.errors import AdvisorError
from advisor.findings.chart_data import points
from advisor.records import ScoreRow
from advisor.report import charts
from advisor.report import comparison as words
from advisor.runs.comparison import compare_runs
from advisor.runs.follow import RunSummary, summarize
from advisor.runs.ledger_rows import accuracy
from advisor.store.folders import example_run
from advisor.ui import loaders
from advisor.ui.tables import pairs, plain, right_aligned, side_by_side
from advisor.units import format_count, format_estimate, format_number
from advisor.workflows.compare import Reviewed, review

UNITS = {
    "step_seconds_drift_corrected": "seconds",
    "tokens_per_second": "tokens per second",
    "mfu": "share of the peak",
    "cost_usd": "dollars",
    "energy_kwh": "kWh",
    "loss": "nats per token",
}  # of the other quantities the unit is the last part of the name
AXES = {"tokens": "tokens seen", "hours": "hours since its first step", "usd": "dollars since its first step"}


def page() -> None:
    """How right the advice has been, then the runs behind it."""
    st.header("Runs", anchor=False)
    store = loaders.store()
    summaries = [summarize(row) for row in store.runs()]
    _score_new(summaries)
    scores = store.scores()
    if scores:
        _track_record(scores)
    chosen = _choose(summaries)
    if not chosen:
        return
    reviewed = [one for folder in chosen if (one := _read(folder)) is not None]
    if len(reviewed) == 1:
        _one(reviewed[0])
    elif reviewed:
        _several(reviewed)


def _score_new(summaries: list[RunSummary]) -> None:
    """Enter finished planned runs that nobody has compared yet into the ledger; each is tried once a session."""
    store, tried = loaders.store(), st.session_state.setdefault("scored-runs", set())
    known = {row.run_id for row in store.scores()} | tried
    fresh = [one for one in summaries if one.outcome is not None and one.plan_id is not None and one.id not in known]
    for one in fresh:
        tried.add(one.id)
        try:
            review(store, one.path, record=True)
        except AdvisorError as error:
            st.warning(plain(f"{one.name} cannot be scored: {error.message}"), icon=":material/warning:")


def _track_record(scores: list[ScoreRow]) -> None:
    st.subheader("How right the predictions have been", anchor=False)
    found = accuracy(scores)
    quantities = [name for name in words.TITLES if any(one.quantity == name for one in found)]
    name = st.selectbox(
        "Quantity",
        quantities,
        format_func=words.TITLES.get,
        help="Each finished run is scored on these.",
    )
    left, right = st.columns((3, 2), vertical_alignment="center")
    with right:
        for one in found:
            if one.quantity == name:
                st.markdown(words.record_in_words(one))
        st.caption(
            "Each point is one finished run, each bar its 80 % interval; on the dashed line it was predicted exactly."
        )
    rows = [_scatter_row(row) for row in scores if row.quantity == name and row.actual > 0 and row.predicted.low > 0]
    if rows:
        left.altair_chart(charts.identity_scatter(rows, unit=UNITS.get(name, name.rsplit("_", 1)[-1])), width="stretch")


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
    """The runs picked in the table; the recorded example where there is none yet."""
    if not summaries:
        st.info(
            "No run on this machine yet. Plan one and launch it, or type `advisor quickstart`. Below is a recorded "
            "example: depth 2 trained for 90 seconds on two CPU cores.",
            icon=":material/lightbulb:",
        )
        return [example_run()]
    st.subheader("All runs", anchor=False)
    picked = st.dataframe(
        [_run_row(one, any(one.problem for one in summaries)) for one in summaries],
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [0]}},
        column_config=right_aligned(("Steps", "Training loss")),
        key="runs-table",
    )
    st.caption("Tick one run for its comparison with the plan, several to lay them over each other.")
    return [Path(summaries[number].path) for number in picked.selection.rows if number < len(summaries)]


def _run_row(run: RunSummary, problems: bool) -> dict[str, str]:
    steps = f"{format_count(run.step or 0)} of {format_count(run.steps)}" if run.steps else "-"
    return {
        "Run": run.name,
        "Started (UTC)": run.created[:16].replace("T", " "),
        "State": (run.outcome or run.state).replace("_", " "),
        "Steps": steps,
        "Training loss": format_number(run.loss) if run.loss is not None else "-",
        "Device": run.device_key or "-",
        **({"Problem": run.problem or ""} if problems else {}),
    }


def _read(folder: Path) -> Reviewed | None:
    try:
        return review(loaders.store(), str(folder), record=False)
    except AdvisorError as error:
        st.warning(plain(f"{folder.name}: {error.message}. {error.hint or ''}"), icon=":material/warning:")
        return None


def _one(one: Reviewed) -> None:
    st.subheader(f"{one.name}: {words.ending(one.scored)}", anchor=False)
    for note in (*one.case.run.notes, *filter(None, [words.departures(one.scored)])):
        st.caption(plain(note))
    left, right = side_by_side("run", (3, 2))
    with left:
        _table(words.scores(one.scored), right=("predicted (80 % interval)", *words.SCORE_NUMBERS))
    with right:
        if (gap := words.gap(one.scored)) is not None:
            _table(gap, right=words.GAP_NUMBERS)
    _curves([one], "tokens")
    st.caption(f"Run folder: {plain(one.path)}")


def _table(shown: words.Table, right: Sequence[str]) -> None:
    """A table of the report with its columns' names begun as the page begins them."""
    columns, rows = shown
    pairs(rows, [_begun(name) for name in columns], right=[_begun(name) for name in right])


def _begun(title: str) -> str:
    return title[:1].upper() + title[1:]


def _several(reviewed: list[Reviewed]) -> None:
    st.subheader("Side by side", anchor=False)
    axis = st.segmented_control(
        "At equal", list(AXES), default="tokens", required=True, help="What the runs are laid over each other by."
    )
    _curves(reviewed, axis)
    try:
        found = compare_runs([one.case for one in reviewed], [one.name for one in reviewed])
    except AdvisorError as error:
        st.warning(plain(error.message), icon=":material/warning:")
        return
    for shown in (words.side_by_side(found.points), words.differences(found), words.speed_changes(found)):
        _table(shown, right=shown[0][:1])
    st.caption("Losses can be compared only in the same learning-rate phase: annealing alone lowers the loss.")
    st.caption(plain("; ".join((*words.groups(found), *found.notes))))


def _curves(reviewed: list[Reviewed], axis: str) -> None:
    rows = [
        {axis: place, "loss": point.value, "series": one.name}
        for one in reviewed
        for point in points(one.case, "loss")
        if (place := getattr(point, axis)) is not None
    ]
    if not rows:
        st.caption(
            "No price is known for these runs: nothing to lay over dollars." if axis == "usd" else "No steps yet."
        )
        return
    colours = dict(zip([one.name for one in reviewed], (charts.ACTUAL, *charts.PARTS), strict=False))
    st.altair_chart(
        charts.lines(rows, x=(axis, AXES[axis]), y=("loss", "training loss, nats per token"), colours=colours),
        width="stretch",
    )
