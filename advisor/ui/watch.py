"""Page Launch and watch: reviews a plan, starts it with limits, and follows it live. Runs never depend on the page."""

from __future__ import annotations

import html
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import streamlit as st

from advisor import units
from advisor.engines.guards import GuardLimits
from advisor.engines.jobs import limits_may_change
from advisor.engines.state import RunState, goes_on
from advisor.errors import AdvisorError
from advisor.history.follow import follower
from advisor.history.listing import RunSummary, list_runs
from advisor.history.progress import NOW_STEPS, PACE_STEPS, Progress
from advisor.history.scoring import ScoredRun
from advisor.records import Estimate
from advisor.report import comparison
from advisor.report.progress import TimeBar, state_words, time_bar
from advisor.report.table import capital
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.adopted import load_adopted_plan
from advisor.store.run_folder import read_launch, read_run_config, read_run_plan
from advisor.trainers.adopted import ADOPTED
from advisor.trainers.known import trainer_of_run
from advisor.ui import launch_form, live, loaders
from advisor.ui.controls import RUN, distinct, escaped, go, to_address
from advisor.units import HOUR, MINUTE, Formatter
from advisor.workflows.compare import review
from advisor.workflows.launch import give_more, resume, stop
from trainer.schema import Outcome

LOOK_SECONDS, DRAW_SECONDS = 2.0, 6.0  # between two looks at the numbers; at the curves, which lose their crosshair
_LABEL_ROOM = 0.12  # of a bar: a mark's words end at the mark, not begin there, if less room is left
_Colour = Literal["off", "green", "orange"]


def page() -> None:
    """Draw a plan to launch or, if none is chosen, a run. Both are chosen beside the title."""
    runs = {run.path: run for run in list_runs(loaders.store())}
    title, plans, watched = st.container(key="pair-option-title").columns((3, 4, 4), vertical_alignment="bottom")
    title.title("Launch and watch", anchor=False)
    with plans:
        plan = launch_form.chosen_plan()
    with watched:
        path = _chosen_run(runs) if runs else None
    if plan is None and path is None:
        st.info("No run yet: choose a plan above, or make one on the page Plan.", icon=":material/lightbulb:")
    elif (plan is None or launch_form.form(plan)) and path is not None:
        _watch(Path(path), goes_on(runs[path].state))


def _chosen_run(runs: dict[str, RunSummary]) -> str:
    """Return the run to watch: the one started last, that of the address, one that is active, or else the newest."""
    paths, named = list(runs), {Path(path).name: path for path in runs}
    active = next((path for path in paths if goes_on(runs[path].state)), paths[0])
    wanted = st.session_state.get(launch_form.WATCHED) or named.get(st.query_params.get(RUN, ""))

    def title(path: str) -> str:
        """Return a run's title: the user's name or else the folder's name, and its state."""
        run, folder = runs[path], Path(path).name
        name = folder if folder.startswith(run.name) else f"{run.name} ({folder})"
        return f"{name}  ·  {(run.outcome or run.state).replace('_', ' ')}"

    titles = distinct({path: title(path) for path in paths})
    path = st.selectbox(
        "Run", paths, index=paths.index(wanted if wanted in paths else active), format_func=titles.__getitem__,
        on_change=launch_form.put_aside, help="Runs continue when this page is closed; reopen it to see them.",
    )  # fmt: skip
    st.session_state[launch_form.WATCHED] = path
    to_address(RUN, Path(path).name)
    return path


def _watch(folder: Path, is_running: bool) -> None:
    started, warnings = st.session_state.get(launch_form.WARNINGS, ("", ()))
    for words in warnings if started == str(folder) else ():
        st.warning(words, icon=":material/warning:")
    live.crosshair()
    st.fragment(_look, run_every=LOOK_SECONDS if is_running else None)(folder, is_running)
    # Parts of the page that refresh separately and more slowly.
    st.fragment(_curves, run_every=DRAW_SECONDS if is_running else None)(folder, is_running)

    def findings() -> None:
        st.header("Findings", anchor=False)
        live.findings(folder, not is_running)
        live.printed_last(folder)

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
    if progress.step_seconds is None and goes_on(progress.state):
        progress = _on_a_busy_machine(progress, folder)
    plan = None if _is_adopted(folder) else read_run_plan(folder)
    _strip(progress, folder)
    _numbers(progress, plan.chosen.loss if plan else None)


def _on_a_busy_machine(progress: Progress, folder: Path) -> Progress:
    """Return the progress of a run without steps, with the time that was estimated when other programs were seen."""
    started, busy = st.session_state.get(launch_form.BUSY, ("", None))
    if started != str(folder) or busy is None or busy.seconds is None:
        return progress
    total, room = busy.seconds, progress.guard_seconds_left
    low, value, high = (max(0.0, end - progress.elapsed_seconds) for end in (total.low, total.value, total.high))
    left = Estimate(value=value, low=low, high=high, basis=total.basis)
    early = room is not None and room < value
    return replace(progress, eta_seconds=left, stops_early=early, message=capital(busy.words))


def _curves(folder: Path, is_running: bool) -> None:
    """Draw a run's curves and its machine."""
    if _is_adopted(folder):
        live.steps(folder, load_adopted_plan(folder / ADOPTED_PLAN).step_seconds)
    else:
        live.curves(folder, read_run_plan(folder), running=is_running)
    live.devices(folder)


def _is_adopted(folder: Path) -> bool:
    return trainer_of_run(folder).name == ADOPTED.name


def _strip(progress: Progress, folder: Path) -> None:
    """Draw the run's state, its bar, a sentence about its end, and what can be done now."""
    with st.container(border=True, key="strip"):
        left, right = st.columns((5, 2), vertical_alignment="center")
        word, sentence = state_words(progress)
        scored = _scored(folder) if progress.outcome in (Outcome.COMPLETED, Outcome.STOPPED) else None
        with left:
            state = f"**{escaped(word.capitalize())}**{':' if sentence else ''} {escaped(sentence)}"
            if scored is not None and scored.complete:
                state = f"**{escaped(capital(comparison.headline(scored)))}**"
            elif scored is not None and (pace := comparison.pace(scored)):
                state += f". **{escaped(capital(pace))}**"
            st.markdown(state)
            st.html(_bar(time_bar(progress), sentence or word))
            if scored is not None and (causes := comparison.largest_causes(scored)):
                st.caption(escaped(f"The difference: {causes}"))
            if progress.message and goes_on(progress.state):
                st.caption(f":material/warning: {escaped(progress.message)}")
        with right.container(horizontal=True, horizontal_alignment="right", vertical_alignment="bottom"):
            _buttons(progress, folder)


def _scored(folder: Path) -> ScoredRun | None:
    """Compare an ended run with its plan, and record the scores; returns None if its log cannot be read."""
    try:
        return review(loaders.store(), str(folder), record=None).scored
    except AdvisorError:  # what is wrong with the log is said below
        return None


def _bar(bar: TimeBar, sentence: str) -> str:
    """Return the bar in HTML: what has passed, the expected end with its interval, and the limit."""

    def mark(name: str, at: float, words: str) -> str:
        side = "before" if at > 1 - _LABEL_ROOM else "after"
        return f'<i class="{name} {side}" style="left:{at:.2%}"><b>{html.escape(words)}</b></i>'

    parts = [f'<u style="width:{min(1.0, bar.now):.2%}"></u>']
    if bar.end is not None:
        at, low, high = bar.end
        parts += [f'<s style="left:{low:.2%};width:{high - low:.2%}"></s>', mark("end", at, bar.end_words)]
    if bar.limit is not None:
        parts.append(mark("limit", bar.limit, bar.limit_words))
    elif bar.limit_words:
        parts.append(mark("far", 1.0, f"{bar.limit_words} →"))
    return f'<div class="run-bar" role="img" aria-label="{html.escape(sentence)}">{"".join(parts)}</div>'


def _numbers(progress: Progress, loss: Estimate | None) -> None:
    """Draw the numbers, each with its prediction: green if the prediction holds, orange if not, else grey."""
    running = goes_on(progress.state)
    validation = f"validation {units.format_number(progress.eval_loss)}" if progress.eval_loss is not None else ""
    mfu = f" Now {units.format_percent(progress.mfu)}." if progress.mfu is not None else ""
    rate, cost = progress.tokens_per_second_predicted, progress.usd_predicted
    steps = f"{units.format_count(progress.step)} of {units.format_count(progress.steps)} steps"
    complete = progress.outcome == Outcome.COMPLETED  # whose time and plan stand above
    done = units.format_percent(progress.step / progress.steps) if progress.steps else None
    seen = f"Optimizer steps done; {units.format_tokens(progress.tokens)} tokens seen."
    rows: list[tuple[str, str, str | None, _Colour, str]] = []
    if not complete:
        rows.append(("Progress", steps, done, "off", seen))
    if progress.tokens_per_second is None and progress.tokens_planned == 0:  # an adopted command logs only steps
        pace = progress.step_seconds_predicted
        rows.append(
            ("A step", units.format_seconds(progress.step_seconds), _planned(pace, units.format_seconds),
             _colour(pace, progress.step_seconds), f"Median of the newest {PACE_STEPS} steps.")
        )  # fmt: skip
    else:
        here = progress.loss_expected if running else None
        expected = f"{_planned(here, units.format_number)} here" if here else _planned(loss, units.format_number)
        below = "; ".join(filter(None, (expected, validation) if here else (validation, expected)))
        numbers = units.format_number(progress.loss_so_far), units.format_rate(progress.tokens_per_second)
        smoothed, speed = ("–", "–") if progress.step_seconds is None else numbers  # no step has ended
        rows += [
            ("Training loss, smoothed", smoothed, below or None, "off",
             "In nats per token: the mean of the last 2 % of the steps, at least five."),
            ("Throughput now" if running else "Throughput, median step", speed, _planned(rate, units.format_rate),
             _colour(rate, progress.tokens_per_second, least=True),
             f"{f'Mean of the newest {NOW_STEPS} steps' if running else 'At the median of all steady steps'}. MFU: "
             f"model FLOPs utilisation, the share of the peak of the GPU, or of this CPU, that trains the model.{mfu}"),
        ]  # fmt: skip
    if progress.usd_per_hour:
        end = progress.usd_at_end
        where = "its limit" if progress.stops_early else "the end"
        at_end = f" ({units.format_usd(end.value)} at {where})" if end and running else ""
        usd = end.value if end else progress.usd_so_far
        whole = not progress.stops_early if running else complete
        rows.append(
            ("Dollars" + ("" if complete else " so far") + at_end, units.format_usd(progress.usd_so_far),
             _planned(cost, units.format_usd), _colour(cost, usd if whole else None),
             "Rent of all GPUs since the start of the process.")
        )  # fmt: skip
    elif not complete:  # the user's own machine costs nothing, so time is more informative
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
    """Draw what can be done: stop and more time while it runs; then resume, with more time if its limit ended it."""
    if goes_on(progress.state):
        room, may_change = progress.guard_seconds_left, limits_may_change(read_launch(folder))
        if room is not None and may_change and progress.state == RunState.RUNNING:
            more = HOUR if progress.elapsed_seconds + room >= 2 * HOUR else 5 * MINUTE
            label = f"+{units.format_seconds(more)}{_price_of(progress, more)}"
            if st.button(label, icon=":material/more_time:", key=f"more-{folder.name}", help="Raises its limit now."):
                give_more(loaders.store(), folder, _more(progress, folder, room + more))
                st.rerun()
        if st.button("Stop", icon=":material/stop_circle:", key=f"stop-{folder.name}", help="With a checkpoint."):
            with st.spinner("stopping: the step in progress ends, then a checkpoint is written"):
                stop(loaders.store(), folder)
            st.rerun()
    elif progress.more_hours is not None:
        # The field begins with the time that the rest takes at the run's pace.
        enough = math.ceil(10 * (progress.more_hours * HOUR - progress.elapsed_seconds) / MINUTE) / 10
        minutes = st.number_input(
            "More minutes", min_value=0.1, value=enough, format="%.1f", key=f"minutes-{folder.name}", width=150,
            help="What the rest takes at the speed that was seen. More can be added while it runs.",
        )  # fmt: skip
        label = f"Resume{_price_of(progress, minutes * MINUTE)}"
        if st.button(label, icon=":material/resume:", type="primary", key=f"resume-{folder.name}"):
            _resume(folder, _more(progress, folder, minutes * MINUTE))
    elif progress.outcome == Outcome.COMPLETED:
        if st.button("Compare with its plan", icon=":material/checklist:", key=f"compare-{folder.name}"):
            go("runs", {RUN: folder.name})
    elif st.button("Resume from the last checkpoint", icon=":material/resume:", key=f"resume-{folder.name}"):
        _resume(folder, GuardLimits())


def _price_of(progress: Progress, seconds: float) -> str:
    return f" · {units.format_usd(seconds / HOUR * progress.usd_per_hour)}" if progress.usd_per_hour else ""


def _more(progress: Progress, folder: Path, seconds: float) -> GuardLimits:
    """Return the run's limits, raised where they leave less than these seconds from now."""
    limits = read_run_config(folder).stop
    hours, usd = limits.max_seconds, limits.max_usd
    if hours is not None:
        hours = max(hours, progress.elapsed_seconds + seconds) / HOUR
    if usd is not None and progress.usd_so_far is not None and progress.usd_per_hour:
        usd = max(usd, progress.usd_so_far + seconds / HOUR * progress.usd_per_hour)
    return GuardLimits(max_usd=usd, max_hours=hours)


def _resume(folder: Path, limits: GuardLimits) -> None:
    started = resume(loaders.store(), folder, limits=limits)
    st.session_state[launch_form.WARNINGS] = str(folder), [escaped(text) for text in started.warnings]
    st.session_state[launch_form.WATCHED] = str(folder)
    st.rerun()
