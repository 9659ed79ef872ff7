"""Page Launch and watch: reviews a plan, starts it with limits, and follows it live. Runs never depend on the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import streamlit as st

from advisor import units
from advisor.engines.guards import GuardLimits
from advisor.engines.state import RunState, goes_on
from advisor.errors import AdvisorError
from advisor.history.follow import follower
from advisor.history.listing import RunSummary, list_runs
from advisor.history.progress import Progress
from advisor.records import Estimate
from advisor.report.progress import closing_lines, left_words, line
from advisor.report.quantities import COST
from advisor.store.run_folder import read_launch, read_run_plan
from advisor.trainers.adopted import ADOPTED
from advisor.trainers.known import trainer_of_run
from advisor.ui import launch_form, live, loaders
from advisor.ui.controls import RUN, escaped, go, to_address
from advisor.units import MINUTE, Formatter
from advisor.workflows.launch import resume, stop

LOOK_SECONDS = 2.0
_Colour = Literal["off", "green", "orange"]


def page() -> None:
    """Draw the runs and a plan to launch. The plan comes first if one was handed over or nothing runs."""
    st.title("Launch and watch", anchor=False)
    store = loaders.store()
    summaries = {run.path: run for run in list_runs(store)}
    live_first = launch_form.PLAN_KEY not in st.session_state and any(goes_on(run.state) for run in summaries.values())
    if live_first:
        _watch(summaries)
    plan = launch_form.chosen_plan()
    # While a plan is reviewed, no other run follows below it.
    if (plan is None or launch_form.form(plan)) and not live_first:
        _watch(summaries)


def _watch(summaries: dict[str, RunSummary]) -> None:
    if not summaries:
        return
    st.header("Watch", anchor=False)
    paths = list(summaries)
    running = [path for path in paths if goes_on(summaries[path].state)]
    named = {Path(path).name: path for path in paths}
    requested = named.get(st.query_params.get(RUN, ""))
    wanted = st.session_state.get(launch_form.WATCHED) or requested or (running[0] if running else paths[0])

    def title(path: str) -> str:
        """Return a run's title: the user's name or else the folder's name, and its state."""
        run, folder = summaries[path], Path(path).name
        name = folder if folder.startswith(run.name) else f"{run.name} ({folder})"
        return f"{name}  ·  {(run.outcome or run.state).replace('_', ' ')}"

    path = st.selectbox(
        "Run", paths, index=paths.index(wanted) if wanted in paths else 0, format_func=title,
        help="Runs continue when this page is closed; reopen it to see them.",
    )  # fmt: skip
    st.session_state[launch_form.WATCHED] = path
    to_address(RUN, Path(path).name)
    started, warnings = st.session_state.get(launch_form.WARNINGS, ("", ()))
    for words in warnings if started == path else ():
        st.warning(words, icon=":material/warning:")
    is_running = goes_on(summaries[path].state)
    st.fragment(_look, run_every=LOOK_SECONDS if is_running else None)(Path(path), is_running)

    def findings() -> None:  # in a part of the page that refreshes separately and more slowly
        st.header("Findings", anchor=False)
        live.findings(Path(path), not is_running)
        live.printed_last(Path(path))

    st.fragment(findings, run_every=live.JUDGE_SECONDS if is_running else None)()


def _look(folder: Path, was_running: bool) -> None:
    """Draw a run folder as it is now. This is drawn again every two seconds while the run continues."""
    key = f"follower-{folder}"
    try:
        # This session's follower of the run. Each look reads only what was added to the log.
        if key not in st.session_state:
            st.session_state[key] = follower(folder, loaders.store())
        progress = st.session_state[key].look()
    except AdvisorError as error:
        st.error(escaped(f"{error.message}. {error.hint or ''}"), icon=":material/error:")
        return
    if was_running and not goes_on(progress.state):
        st.rerun()  # the whole page: the list of runs has changed, and a click on a button of this look would be lost
    adopted = trainer_of_run(folder).name == ADOPTED.name
    plan = None if adopted else read_run_plan(folder)
    _numbers(progress, plan.chosen.loss if plan else None)
    if progress.steps:
        st.progress(min(1.0, progress.step / progress.steps))
    if not goes_on(progress.state):
        *lines, _ = closing_lines(progress, folder)  # the buttons show what to do next
        st.markdown("  \n".join(map(escaped, lines)))
    elif progress.state != RunState.RUNNING:
        st.info(escaped(line(progress)), icon=":material/hourglass_empty:")
    elif progress.message:
        st.warning(escaped(progress.message), icon=":material/warning:")
    _buttons(progress, folder)
    if adopted:
        live.steps(folder, progress.step_seconds_predicted)
    else:
        live.curves(folder, plan, running=goes_on(progress.state))
    live.devices(folder)
    if was_running and not goes_on(progress.state):
        st.rerun()  # reruns the whole page, because the list of runs has changed


def _numbers(progress: Progress, loss: Estimate | None) -> None:
    """Draw the numbers, each with its prediction: green if the prediction holds, orange if not, else grey."""
    left = left_words(progress)
    validation = f"; validation {units.format_number(progress.eval_loss)}" if progress.eval_loss is not None else ""
    mfu = f"; MFU {units.format_percent(progress.mfu)}" if progress.mfu is not None else ""
    at_end = f"; {COST.of(progress.usd_at_end)} at the end" if progress.usd_at_end else ""
    rate, cost = progress.tokens_per_second_predicted, progress.usd_predicted
    rows: list[tuple[str, str, str | None, _Colour, str]] = [
        ("Progress", f"{units.format_count(progress.step)} of {units.format_count(progress.steps)} steps", left, "off",
         "Optimizer steps done; the time left with its 80 % interval."),
    ]  # fmt: skip
    if progress.tokens_per_second is None and progress.tokens_planned == 0:  # an adopted command logs only steps
        pace = progress.step_seconds_predicted
        rows.append(
            ("A step", units.format_seconds(progress.step_seconds), _planned(pace, units.format_seconds),
             _colour(pace, progress.step_seconds), "Median of the newest steps.")
        )  # fmt: skip
    else:
        rows += [
            ("Training loss, smoothed" + validation, units.format_number(progress.smoothed_loss),
             _planned(loss, units.format_number), "off",
             "Nats per token, a mean of about the last ten steps."),
            ("Throughput" + mfu, units.format_rate(progress.tokens_per_second), _planned(rate, units.format_rate),
             _colour(rate, progress.tokens_per_second, least=True),
             "While it runs: of the newest steps, by the clock. MFU: model FLOPs utilisation, the share of the GPU's "
             "peak that trains the model."),
        ]  # fmt: skip
    if progress.usd_per_hour:
        spent = None if goes_on(progress.state) else progress.usd_so_far
        usd = progress.usd_at_end.value if progress.usd_at_end is not None else spent
        rows.append(
            ("Dollars so far" + at_end, units.format_usd(progress.usd_so_far), _planned(cost, units.format_usd),
             _colour(cost, usd), "Rent of all GPUs since the start of the process.")
        )  # fmt: skip
    else:  # the user's own machine costs nothing, so time is more informative
        planned = _planned(progress.total_seconds_predicted, units.format_seconds)
        rows.append(("Time so far", units.format_seconds(progress.elapsed_seconds), planned, "off", "Since its start."))
    columns = st.container(key="pair-numbers").columns(len(rows))
    for column, (label, value, plan, colour, explained) in zip(columns, rows, strict=True):
        column.metric(label, value, plan, delta_color=colour, delta_arrow="off", help=explained)


def _colour(promised: Estimate | None, actual: float | None, *, least: bool = False) -> _Colour:
    """Return green for a number in its 80 % interval or better (which is higher if `least`), else orange."""
    if promised is None or actual is None or promised.high <= 0:
        return "off"
    good = actual >= promised.low if least else actual <= promised.high
    return "green" if good else "orange"


def _planned(estimate: Estimate | None, formatter: Formatter) -> str | None:
    return f"planned {units.format_estimate(estimate, formatter)}" if estimate else None


def _buttons(progress: Progress, folder: Path) -> None:
    if goes_on(progress.state):
        if st.button("Stop with a checkpoint", icon=":material/stop_circle:", key=f"stop-{folder.name}"):
            with st.spinner("stopping: the step in progress ends, then a checkpoint is written"):
                stop(loaders.store(), folder)
            st.rerun()
    elif progress.more_hours is not None:
        # Offer to resume a run that its limit ended; the field begins with the time that the rest takes at its pace.
        reached = f"{units.format_count(progress.step)} of {units.format_count(progress.steps)}"
        st.info(f"Its limit stopped it at step {reached}.")
        used = progress.elapsed_seconds / MINUTE
        enough = math.ceil(10 * (60 * progress.more_hours - used)) / 10
        with st.container(horizontal=True, vertical_alignment="bottom"):
            more = st.number_input(
                "More minutes", min_value=0.1, value=enough, format="%.1f", key=f"more-{folder.name}",
                help="Enough for the rest at the speed that was seen.",
            )  # fmt: skip
            if st.button("Resume", icon=":material/resume:", type="primary", key=f"resume-{folder.name}"):
                launched, usd = read_launch(folder), None
                limit = launched.guards.max_usd if launched is not None else None
                if limit is not None and progress.usd_so_far is not None and progress.usd_per_hour:
                    usd = max(limit, progress.usd_so_far + more / 60 * progress.usd_per_hour)  # it grows with the time
                _resume(folder, GuardLimits(max_hours=(used + more) / 60, max_usd=usd))
    elif progress.outcome == "completed":
        if st.button("Compare with its plan", icon=":material/checklist:", key=f"compare-{folder.name}"):
            go("runs", {RUN: folder.name})
    elif st.button("Resume from the last checkpoint", icon=":material/resume:", key=f"resume-{folder.name}"):
        _resume(folder, GuardLimits())


def _resume(folder: Path, limits: GuardLimits) -> None:
    started = resume(loaders.store(), folder, limits=limits)
    st.session_state[launch_form.WARNINGS] = str(folder), [escaped(text) for text in started.warnings]
    st.session_state[launch_form.WATCHED] = str(folder)
    st.rerun()
