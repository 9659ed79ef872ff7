"""Page Plan: takes a goal, and shows the answer, four numbers, options drawn, alternatives and reasons."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import streamlit as st

from advisor.errors import AdvisorError
from advisor.options import Goal
from advisor.planning import explore
from advisor.planning.alternatives import by_price
from advisor.planning.command import plan_call, plan_command
from advisor.planning.sensitivity import machine
from advisor.prediction.profile import Profile
from advisor.records import Basis, Plan, Run
from advisor.report import charts
from advisor.report import search as runs
from advisor.report.charts import Rows
from advisor.report.plan import device, markdown
from advisor.report.quantities import COST, LOSS, TIME
from advisor.report.table import capital
from advisor.store.plan_files import dump_plan
from advisor.ui import answer, launch_form, loaders, plan_answers, plan_elsewhere, plan_form, plan_options, plan_what_if
from advisor.ui.controls import PLAN, QUERY, as_text, download, go, grid, products, to_address
from advisor.ui.plan_options import Option
from advisor.ui.plan_tabs import THIN, copies, draw, escape_dollars, narrow, numbers, tabs, with_controls
from advisor.units import HOUR, format_count, format_tokens

PICK = "pick"  # in the session and in the address: the run of the search that is shown
BALANCED = "balanced"
AXES = "front-axes"  # in the session and in the address: the axes that are drawn
_LAST = "plan-last"  # session state: the last goal for which there was an answer
# Validation losses of published models on OpenWebText, in nats per token (README of nanoGPT)
ANCHORS = ((3.12, "GPT-2 small"), (2.84, "GPT-2 medium"), (2.67, "GPT-2 large"), (2.54, "GPT-2 XL"))
NEAR = 0.1
_ALIKE = ("model", "on", "batch", runs.CHANCE, TIME.column, COST.column, LOSS.column, "left free")
_BASES: dict[Basis, tuple[Literal["green", "orange", "gray"], str]] = {
    Basis.MEASURED: ("green", "This configuration was run on this device."),
    Basis.INTERPOLATED: ("green", "Inside the range that was calibrated on this device."),
    Basis.EXTRAPOLATED: ("orange", "Outside the range that was calibrated on this device."),
    Basis.PRIOR: ("gray", "Never calibrated here: from data sheets and published runs, so the intervals are wide."),
}


def page() -> None:
    """Draw the form and the plan. If no plan is possible, show why and dim the last one."""
    with st.container(gap="xsmall"):
        head, form = st.container(key="stack-head").columns((1, 5))
        head.title("What can I train?", anchor=False)
        plan_form.begin()
        try:
            with form.container(gap="xsmall"):
                goal = plan_form.goal()
            if plan_elsewhere.show(goal):
                return
            now = plan_answers.world(goal)
            goal = _with_work(goal, now)
            answered = plan_answers.plan(goal, now)
        except AdvisorError as error:
            _refused(error)
            if last := st.session_state.get(_LAST):
                st.caption("Below is the last plan that could be made.")
                now = plan_answers.world(last)
                with st.container(key="stale-answer"):
                    _shown(last, plan_answers.plan(last, now), now, stale=True)
            return
        st.session_state[_LAST] = goal
        _shown(goal, answered, now)


def _with_work(goal: Goal, now: plan_answers.World) -> Goal:
    """Give a goal of least cost or time its work: model, tokens and batch of the best run within the same limits."""
    open_ended = goal.tokens is None and goal.epochs is None and goal.depth is None and goal.parameters is None
    if goal.objective == "loss" or not open_ended:
        return goal
    best = plan_answers.plan(replace(goal, objective="loss"), now).chosen
    # With its own batch too, the best run is among those compared, and stays within the limits.
    batch = best.workload.step_tokens
    goal = replace(goal, depth=best.depth, tokens=best.tokens, global_batch_tokens=batch)
    least = {"cost": "cheapest", "time": "fastest"}[goal.objective]
    words = f"The {least} run that is as good as the best one within these limits"
    if explore.run_id(plan_answers.plan(goal, now).chosen) == explore.run_id(best):
        words = f"This is already the {least} run of this quality"
    st.caption(
        f":material/info: {words}: {format_count(best.parameters)} parameters and {format_tokens(best.tokens)} tokens. "
        "For another run, set tokens or a depth."
    )
    return goal


def _shown(goal: Goal, answered: Plan, now: plan_answers.World, *, stale: bool = False) -> None:
    """Draw the answer and what explains or varies it. A `stale` answer, to an older goal, cannot be launched."""
    run = _picked(goal, answered)
    own = its = plan_answers.profile(goal, run.offer.gpu, now)
    changes, problem = plan_what_if.begin(run, (goal, explore.run_id(run))), None
    base = shown = answered if run is answered.chosen else _varied(answered, run, explore.Changes(), own, now)
    if changes != explore.Changes():
        try:
            if changes.gpu is not None:
                its = plan_answers.profile(explore.pinned(answered.goal, run, changes), changes.gpu, now)
            shown = _varied(answered, run, changes, its, now)
        except AdvisorError as error:
            its, problem = own, error
    varied = shown is not base
    _answer(goal, answered, run, (shown, its), problem, varied=varied)
    left, right = st.container(key="stack-around").columns((2, 1), gap="medium")
    with left.container(gap="xsmall"):
        if not stale:
            _downloads(goal, goal if shown is answered else shown.goal, shown)
        _options(goal, answered, run, now)
        hours = None if goal.deadline_seconds is None else goal.deadline_seconds / HOUR
        _front(answered, run, shown.chosen if varied else None, (goal.budget_usd, hours))
        answer.memory(shown.chosen.prediction)
        if varied:
            st.markdown("**What the changes do**")
            plan_what_if.comparison(base.chosen, shown.chosen)
        with st.expander("Side by side: memory, batch, and what each estimate rests on", icon=":material/table_rows:"):
            columns = ("quantity", *(option.standing.name for option in answered.options))
            grid(replace(runs.options(answered.options, goal), columns=columns))
    with right.container(gap="xsmall"):
        plan_what_if.total(shown.chosen, varied=varied)
        plan_what_if.sliders(
            base.chosen, shown.chosen, changes,
            lambda other: _varied(answered, run, other, its, now, brief=other != changes),
        )  # fmt: skip
    tabs(goal, shown, its, answered, lambda: plan_answers.what_if(shown.goal, now, its, scaled=True))


def _varied(
    answered: Plan, run: Run, changes: explore.Changes, its: Profile, now: plan_answers.World, *, brief: bool = False
) -> Plan:
    """Return the plan for another run of the search, or for a changed run; without its reasons if `brief`."""
    return plan_answers.what_if(explore.pinned(answered.goal, run, changes), now, its, brief=brief)


def _refused(error: AdvisorError) -> None:
    """Say why a goal is impossible and what to do, naming the controls of this page."""
    kind = st.warning if error.exit_code == 3 else st.error
    message, hint = (with_controls(text) for text in (f"{error.message}.", error.hint or ""))
    if other := "--layout any" in hint:
        hint = plan_form.OTHER_SOFTWARE
    kind("  \n".join(capital(text) for text in (message, hint)), icon=":material/block:")
    if "advisor calibrate" in hint and st.button("Calibrate this machine", icon=":material/speed:"):
        go("calibrate")
    if other and st.button(plan_form.PLAN_LAYOUT, icon=":material/account_tree:"):
        st.session_state[plan_form.AGAIN] = {"layout": "any"}
        st.rerun()


def _picked(goal: Goal, answered: Plan) -> Run:
    """Return the run that is shown. A new goal begins with its own plan."""
    requested = st.session_state.get(PICK, st.query_params.get(PICK))
    if st.session_state.get("plan-goal", goal) != goal:
        requested = None
    st.session_state["plan-goal"] = goal
    run = explore.find_run(answered, requested) if requested else None
    _pick(requested if run is not None else None)
    return answered.chosen if run is None or explore.run_id(run) == explore.run_id(answered.chosen) else run


def _pick(name: str | None) -> None:
    st.session_state[PICK] = name
    to_address(PICK, name if name != BALANCED else None)


def _answer(
    goal: Goal, answered: Plan, run: Run, current: tuple[Plan, Profile], problem: AdvisorError | None, *, varied: bool
) -> None:
    shown, its = current
    name = "What if" if varied else (run.standing.name or "From the front") if shown is not answered else ""
    chosen = shown.chosen
    model = f"a {format_count(chosen.parameters)} model ({_layers(chosen)})"
    colour, words, explained = _basis(chosen.step_seconds.basis, its)
    headline = f"{name.capitalize() + ': ' if name else ''}Train {model} on {device(shown)}"
    st.markdown(f"## {products(escape_dollars(headline))} :{colour}-badge[speed: {words}]", help=explained)
    notes = {}
    if chosen.loss is not None:  # compared with that of a well-known model
        loss = chosen.loss.value
        known, name_of = min(ANCHORS, key=lambda anchor: abs(anchor[0] - loss))
        apart = "close to" if abs(known - loss) <= NEAR else "worse than" if loss > known else "better than"
        notes[LOSS] = f"{apart} {name_of} ({known} on web text)"
    figures = {COST: chosen.cost_usd, TIME: chosen.total_seconds, LOSS: chosen.loss}
    numbers(goal, chosen.bill, figures, notes).metric("Tokens", format_tokens(chosen.tokens))
    if problem is not None:
        _refused(problem)
    for text in explore.broken_limits(goal, shown.chosen):
        st.warning(escape_dollars(f"{capital(text)}."), icon=":material/warning:")
    for text in shown.warnings:
        if text.startswith(THIN):
            st.warning(
                f"{capital(with_controls(text))}. Fine-tuning a published model may do better: page What fits.",
                icon=":material/warning:",
            )
    if its.widening > 1:
        st.warning(
            f"{with_controls(' '.join(its.caveats))}. Repeat it with nothing else running, on the page Calibrate.",
            icon=":material/warning:",
        )


def _downloads(goal: Goal, goal_shown: Goal, shown: Plan) -> None:
    """Draw the launch button, and everything that can be downloaded or copied; each has the limits of the question."""
    limited = launch_form.with_limits(shown, goal)
    with st.container(horizontal=True):
        if st.button("Launch…", type="primary", icon=":material/play_arrow:", help="Review it, then start it."):
            st.session_state[launch_form.PLAN_KEY] = str(loaders.store().save_plan(limited))
            go("watch")
        about = "The whole plan, ready for `advisor launch plan.yaml` on any machine."
        download("plan.yaml", dump_plan(limited), "plan.yaml", "application/yaml", "download", about)
        text, about = markdown(shown, goal_shown), "The plan in words, as Markdown."
        download("Summary", text, f"{shown.id}.md", "text/markdown", "description", about)
        copies(plan_command(goal_shown, "plan.yaml"), plan_call(goal_shown))


def _layers(run: Run) -> str:
    return "1 layer" if run.depth == 1 else f"{run.depth} layers"


def _basis(basis: Basis, profile: Profile) -> tuple[Literal["green", "orange", "gray"], str, str]:
    """Return what a speed is based on: colour, name, explanation. Never green if the calibration is doubtful."""
    colour, explained = _BASES[basis]
    if profile.widening > 1 and colour == "green":
        colour, explained = "orange", f"{explained} But its calibration is doubtful."
    return colour, f"{basis}{', doubtful' if profile.widening > 1 else ''}", explained


def _options(goal: Goal, answered: Plan, shown: Run, now: plan_answers.World) -> None:
    """Draw the named options with what each has of its own, and say once what all have in common."""
    options = answered.options
    common, own = runs.common_and_own(options, goal)
    rows = []
    for option, words in zip(options, own, strict=True):
        name = option.standing.name
        colour, basis, _ = _basis(option.step_seconds.basis, plan_answers.profile(goal, option.offer.gpu, now))
        rows.append(
            Option(
                run=option, title=name.capitalize(), why=capital(option.standing.why), key=name,
                model=f"{format_count(option.parameters)}, {_layers(option)}" if "model" in words else "",
                line=products(words.get("on", "")), badge=f":{colour}-badge[{basis}]",
                result=f"{capital(LOSS.column)} **{LOSS.expected(option.loss)}**" if option.loss else "",
                shown=explore.run_id(option) == explore.run_id(shown), show=partial(_pick, name),
            )
        )  # fmt: skip
    plan_options.draw(rows, goal)
    if alike := [products(f"{name} {words}") for name, words in common.items() if name in _ALIKE]:
        st.caption(escape_dollars(f"Common to all: {', '.join(alike)}."))


def _front(answered: Plan, shown: Run, varied: Run | None, limits: tuple[float | None, float | None]) -> None:
    search = answered.search
    if search is None or not search.front:
        st.caption("Spot machines aside, no run is cheaper, faster or better than this one.")
        return
    worth = sorted((*search.front, answered.chosen), key=by_price)
    drawn_anyway = {explore.run_id(run) for run in (*worth, *search.near_misses)}
    options = [option for option in answered.options if explore.run_id(option) not in drawn_anyway]
    by_loss = all(run.loss is not None for run in (*worth, *options, *search.near_misses))
    labels = {explore.run_id(shown): format_count(shown.parameters)}
    labels |= {explore.run_id(option): option.standing.name for option in answered.options}
    neighbour = ""
    if (other := explore.worth_knowing(answered, shown)) is not None:
        words = runs.neighbour(other, shown)
        on = products(f"{other.offer.gpus} x {other.offer.gpu}")
        labels[explore.run_id(other)] = f"{re.sub(r' [0-9]+ GB', '', on)}: {words}"
        neighbour = f"Worth knowing: on {products(machine(other))} it takes {words}."
    dots = [_front_row(run, answered, shown, labels, by_loss=by_loss) for run in (*worth, *options)]
    dots.sort(key=lambda row: (not row["shown"], not row["label"]))  # these stay in place
    missed = [_front_row(run, answered, shown, labels, by_loss=by_loss) for run in search.near_misses]
    priced = all(row["usd"] for row in (*dots, *missed))
    sights = [name for name, sight in charts.SIGHTS.items() if priced or "usd" not in sight[:2]]
    requested = sights[0]
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(sights) > 1:
            settings: Any = {"required": True, "key": AXES, "bind": QUERY, "label_visibility": "collapsed"}
            requested = st.segmented_control("Axes", sights, default=sights[0], **settings) or sights[0]
        st.caption(escape_dollars(neighbour), width="content")
    drawn = _front_spec(dots, missed, by_loss, requested, limits)
    ring = varied or next((run for run in search.near_misses if explore.run_id(run) == explore.run_id(shown)), None)
    if ring is not None and not (by_loss and ring.loss is None) and (ring.cost_usd or not priced):
        row = _front_row(ring, answered, shown, labels, by_loss=by_loss)
        drawn = charts.ringed(drawn, row | ({"remark": "what if"} if varied else {}))
    event = st.vega_lite_chart(spec=drawn, width="stretch", on_select="rerun", selection_mode=charts.PICK, key="front")
    st.caption(
        "Dots: the options above, and the runs that no other beats in cost, time and loss at once (the Pareto front). "
        "Dots that would overlap stand side by side. Crosses: better runs, but over your limits or on spot machines. "
        "Filled ring: the run shown. Open ring: the run with your changes under What if. Click a dot to see its run."
        + ("" if by_loss else f" {capital(runs.SCORE)}.")
    )
    _looked_at("dot", [item.get("id") for item in event["selection"].get(charts.PICK, [])])
    with st.expander("The same runs as a table", icon=":material/table_rows:"):
        missed_table, listed = runs.near_misses(search), runs.front(answered, search)
        listed = replace(listed, title="", rows=(*listed.rows, *missed_table.rows))
        listed = narrow(listed.without("score") if by_loss else listed)
        picked = draw(listed, on_select="rerun", selection_mode="single-row", key="front-table")
        st.caption("Tick a row to look at that run. From the keyboard: arrow keys to a row, then Shift and space.")
        ids = [explore.run_id(run) for run in (*worth, *search.near_misses)]
        _looked_at("row", [ids[row] for row in picked.selection.rows if row < len(ids)])


def _looked_at(how: str, clicked: list[str]) -> None:
    """Show the run that was just clicked in the chart or in its table."""
    if clicked and clicked != st.session_state.get(f"clicked-{how}"):
        st.session_state[f"clicked-{how}"] = clicked
        _pick(clicked[0])
        st.rerun()


@st.cache_data(max_entries=64, show_spinner=False)
def _front_spec(
    runs: Rows, missed: Rows, by_loss: bool, sight: str, limits: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Return the chart as Vega-Lite, cached until its rows change, because checking it is slower than a slider."""
    quality = LOSS.name if by_loss else "score"
    drawn = charts.front(runs, missed, sight=charts.SIGHTS[sight], quality=quality, limits=limits)
    return charts.written_out(drawn)


def _front_row(run: Run, answered: Plan, shown: Run, labels: dict[str, str], *, by_loss: bool) -> dict[str, object]:
    """Return a run in the units of the chart, and in words."""
    name, loss = explore.run_id(run), run.loss.value if run.loss else None
    model, machine_words = runs.model(run), products(machine(run, ", "))
    numbers = {TIME: run.total_seconds, COST: run.cost_usd, LOSS: run.loss}
    spoken = ", ".join(f"{quantity.column} {quantity.expected(value)}" for quantity, value in numbers.items())
    return {
        "id": name,
        "usd": run.cost_usd.value if run.cost_usd else None,
        "hours": run.total_seconds.value / HOUR,
        "quality": loss if by_loss else run.score,
        "shown": name == explore.run_id(shown),
        "label": labels.get(name, ""),
        "model": model,
        "on": machine_words,
        **{quantity.column: quantity.of(value) for quantity, value in numbers.items()},
        "remark": "the plan" if run is answered.chosen else as_text(run.standing.why, PLAN) or "-",
        "words": f"{model} on {machine_words}: {spoken}",
    }
