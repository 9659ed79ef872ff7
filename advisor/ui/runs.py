"""Page Runs: every run, how right its prediction was, where the gap went, and several runs over each other."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from advisor.errors import AdvisorError
from advisor.folders import example_run
from advisor.launchers.follow import RunSummary, summarize
from advisor.outcome import QUANTITIES, Reviewed, review, side_by_side_of
from advisor.records import ScoreRow
from advisor.report import charts
from advisor.review import QuantityAccuracy, accuracy
from advisor.side_by_side import loss_points
from advisor.store import read_launch
from advisor.ui import loaders
from advisor.ui.tables import plain, right_aligned, side_by_side, table
from advisor.units import format_count, format_estimate, format_number, format_percent, format_tokens

TITLES = {name: title for name, title, _ in QUANTITIES}
FORMATTERS = {name: formatter for name, _, formatter in QUANTITIES}
UNITS = {
    "step_seconds_drift_corrected": "seconds",
    "tokens_per_second": "tokens per second",
    "mfu": "share of the peak",
    "cost_usd": "dollars",
    "energy_kwh": "kWh",
    "loss": "nats per token",
}  # of the other quantities the unit is the last part of the name
AXES = {"tokens": "tokens seen", "hours": "hours of steps", "usd": "dollars of steps"}


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
    quantities = [name for name, _, _ in QUANTITIES if any(one.quantity == name for one in found)]
    name = st.selectbox(
        "Quantity",
        quantities,
        format_func=TITLES.get,
        help="Each finished run is scored on these.",
    )
    left, right = st.columns((3, 2), vertical_alignment="center")
    with right:
        for one in found:
            if one.quantity == name:
                st.markdown(_record_in_words(one))
        st.caption(
            "Each point is one finished run, each bar its 80 % interval; on the dashed line it was predicted exactly."
        )
    rows = [_scatter_row(row) for row in scores if row.quantity == name and row.actual > 0 and row.predicted.low > 0]
    if rows:
        left.altair_chart(charts.identity_scatter(rows, unit=UNITS.get(name, name.rsplit("_", 1)[-1])), width="stretch")


def _record_in_words(one: QuantityAccuracy) -> str:
    runs = f"{one.inside} of {one.runs} run{'s' if one.runs > 1 else ''}"
    return (
        f"**{one.device_key}**: {runs} inside the 80 % interval; median error {format_percent(one.median_error)}, "
        f"p90 {format_percent(one.p90_error)}, bias {'+' if one.bias >= 0 else '-'}{format_percent(abs(one.bias))}"
    )


def _scatter_row(row: ScoreRow) -> dict[str, object]:
    shown = FORMATTERS[row.quantity]
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
    comparison = one.comparison
    ended = (comparison.outcome or "still running, or died without a word").replace("_", " ")
    st.subheader(f"{one.run_dir.name}: {ended}", anchor=False)
    if one.problem:
        st.warning(one.problem, icon=":material/warning:")
    rows = []
    for name, title, formatter in QUANTITIES:
        score = comparison.score(name)
        if score.predicted is None and score.actual is None:
            continue
        rows.append(
            {
                "What": title,
                "Predicted (80 % interval)": format_estimate(score.predicted, formatter),
                "Actual": formatter(score.actual),
                "Error": "-" if score.error is None else _signed_percent(score.error),
                "Inside": {True: "yes", False: "no", None: "-"}[score.inside_interval],
                "Basis": score.predicted.basis.value if score.predicted else "-",
            }
        )
    left, right = side_by_side("run", (3, 2))
    with left:
        table(rows, right=("Predicted (80 % interval)", "Actual", "Error"))
    with right:
        if comparison.gap_seconds is not None:
            causes = [
                {"Where the gap went": cause.name, "Seconds": f"{cause.seconds:+.2f}", "": cause.note}
                for cause in comparison.causes
            ]
            total = {"Where the gap went": "in all", "Seconds": f"{comparison.gap_seconds:+.2f}", "": ""}
            table([*causes, total], right=("Seconds",))
    _curves([one], "tokens")
    st.caption(f"Run folder: {plain(one.run_dir)}")


def _signed_percent(share: float) -> str:
    return f"{'+' if share >= 0 else '-'}{format_percent(abs(share))}"


def _several(reviewed: list[Reviewed]) -> None:
    st.subheader("Side by side", anchor=False)
    axis = st.segmented_control(
        "At equal", list(AXES), default="tokens", required=True, help="What the runs are laid over each other by."
    )
    _curves(reviewed, axis)
    try:
        points = side_by_side_of(reviewed)
    except AdvisorError as error:
        st.warning(error.message, icon=":material/warning:")
        return
    rows = []
    for point in points:
        at = f"{format_tokens(point.value)} tokens" if point.at == "tokens" else f"{point.value:.0%} of the schedule"
        losses = {s.run_id: f"{s.loss:.4f} at {format_percent(s.rate_factor)} of peak LR" for s in point.runs}
        rows.append({"Training loss at": at, **losses, "Comparable": "yes" if point.comparable else point.problem})
    table(rows, right=("Training loss at",))
    st.caption("Losses can be compared only in the same learning-rate phase: annealing alone lowers the loss.")


def _curves(reviewed: list[Reviewed], axis: str) -> None:
    rows, names = [], []
    for one in reviewed:
        launch = read_launch(one.run_dir)
        names.append(one.run_dir.name)
        for point in loss_points(one.log, usd_per_hour=launch.usd_per_hour if launch else None):
            place = getattr(point, axis)
            if place is not None:
                rows.append({axis: place, "loss": point.loss, "series": one.run_dir.name})
    if not rows:
        st.caption(
            "No price is known for these runs: nothing to lay over dollars." if axis == "usd" else "No steps yet."
        )
        return
    colours = dict(zip(names, (charts.ACTUAL, *charts.PARTS), strict=False))
    st.altair_chart(
        charts.lines(rows, x=(axis, AXES[axis]), y=("loss", "training loss, nats per token"), colours=colours),
        width="stretch",
    )
