"""Page Plan: takes a goal, and shows the answer, four numbers, options drawn, alternatives and reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import streamlit as st

from advisor.errors import AdvisorError
from advisor.options import OPTIONS, Goal
from advisor.planning import explore
from advisor.planning.alternatives import by_price
from advisor.planning.command import plan_call, plan_command
from advisor.planning.costs import own_hour
from advisor.planning.sensitivity import passed_over
from advisor.prediction.profile import Profile
from advisor.records import Basis, Plan, Run
from advisor.report import charts
from advisor.report import search as runs
from advisor.report.charts import Listed
from advisor.report.plan import device, markdown
from advisor.report.quantities import COST, LOSS, TIME
from advisor.report.table import capital
from advisor.store.plan_files import dump_plan
from advisor.ui import (
    answer,
    controls,
    launch_form,
    loaders,
    plan_answers,
    plan_elsewhere,
    plan_form,
    plan_options,
    plan_what_if,
)
from advisor.ui.controls import PLAN, QUERY, as_text, download, go, grid, products, to_address, unknown_model
from advisor.ui.plan_options import Option
from advisor.ui.plan_tabs import ABOVE, THIN, copies, draw, escape_dollars, narrow, numbers, tabs, with_controls
from advisor.units import format_count, format_tokens

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
                st.session_state.pop(_LAST, None)  # of other work
                return
            now = plan_answers.world(goal)
            goal = _with_work(goal, now)
            answered = plan_answers.plan(goal, now)
        except AdvisorError as error:
            _refused(error)
            if change := plan_form.first_change(error.hint or ""):
                words = "Plan with the first of these changes"
                if st.button(words, icon=":material/edit:", help=", ".join(OPTIONS[name].label for name in change)):
                    st.session_state[plan_form.AGAIN] = change
                    st.rerun()
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
    least, answered = {"cost": "cheapest", "time": "fastest"}[goal.objective], plan_answers.plan(goal, now)
    unproven = explore.unproven(answered)
    words = f"The {least} run that is as good as the best one within these limits"
    if explore.run_id(answered.chosen) == explore.run_id(best):
        words = f"This is already the {least} run of this quality"
    words += " among machines whose speed is well known" if unproven else ""
    text = f"{words}: {format_count(best.parameters)} parameters and {format_tokens(best.tokens)} tokens. "
    text += "".join(f"{capital(passed_over(run))}. " for run in unproven)
    st.caption(f":material/info: {with_controls(text)}For another run, set tokens or a depth.")
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
    _answer(goal, answered, run, (shown, its), varied=varied)
    left, right = st.container(key="stack-around").columns((2, 1), gap="medium")
    with left.container(gap="xsmall"):
        _warnings(goal, shown, its, problem)  # beside the sliders, which they would move from above
        if not stale:
            _downloads(goal, goal if shown is answered else shown.goal, shown)
        _options(goal, answered, None if varied else run, now)
        _front(answered, run, shown.chosen if varied else None, (goal.budget_usd, goal.deadline_seconds))
        answer.memory(shown.chosen.prediction)
        if varied:
            st.markdown("**What the changes do**")
            plan_what_if.comparison(base.chosen, shown.chosen)
        with st.expander("Side by side", icon=":material/table_rows:"):
            columns = ("quantity", *(option.standing.name for option in answered.options))
            grid(replace(runs.options(answered.options, goal), columns=columns))
    with right.container(gap="xsmall"):
        plan_what_if.total(shown.chosen, varied=varied)
        plan_what_if.sliders(base.chosen, shown.chosen, changes, partial(_runs_of_changes, answered, run, its, now))
    tabs(goal, shown, its, answered, lambda: plan_answers.what_if(shown.goal, now, its, scaled=True))


def _varied(answered: Plan, run: Run, changes: explore.Changes, its: Profile, now: plan_answers.World) -> Plan:
    """Return the plan for another run of the search, or for a changed run."""
    pinned, stated = explore.pinned(answered.goal, run, changes), st.session_state.get("global_batch")
    return plan_answers.what_if(pinned, now, its, exact_batch=bool(stated))


def _runs_of_changes(
    answered: Plan, run: Run, its: Profile, now: plan_answers.World, varied: Sequence[explore.Changes]
) -> list[Run | str]:
    """Return the run of each of these changes, or why it is impossible."""
    pinned = tuple(explore.pinned(answered.goal, run, changes) for changes in varied)
    return plan_answers.what_ifs(pinned, now, its, exact_batch=bool(st.session_state.get("global_batch")))


def _refused(error: AdvisorError) -> None:
    """Say why a goal is impossible and what to do, naming the controls of this page."""
    kind = st.warning if error.exit_code == 3 else st.error
    message, hint = (with_controls(text) for text in (f"{error.message}.", error.hint or ""))
    tuned, other = "--finetune qlora" in hint, "--layout any" in hint
    if (tuned or other) and not hint.startswith("feasible with"):  # else the changes are listed
        hint = f"{'It can be fine-tuned. ' if tuned else ''}{plan_form.OTHER_SOFTWARE if other else ''}"
    name, pastes = st.session_state.get("model") or "", "Any other model: its config.json" in hint
    if pastes:
        advice = "Type another name, or the path of its config.json."
        message, hint = f"**Model**: {unknown_model(name, advice)}", ""
    kind("  \n".join(capital(text) for text in (message, hint)), icon=":material/block:")
    if "advisor calibrate" in hint and st.button("Calibrate this machine", icon=":material/speed:"):
        go("calibrate")
    for similar in controls.similar_models(name)[:1] if pastes else ():
        if st.button(f"Take {similar}", icon=":material/edit:", help="In place of the name that is not known."):
            st.session_state[plan_form.AGAIN] = {"model": similar}
            st.rerun()
    if pastes and st.button("Paste its config.json", icon=":material/content_paste:"):
        method = st.session_state.get("finetune") or "scratch"
        go("gpus", {"card_model": name, "card_method": method})
    if tuned and st.button("Fine-tune it (QLoRA)", icon=":material/tune:"):
        st.session_state[plan_form.AGAIN] = {"finetune": "qlora"}
        st.rerun()
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


def _show(name: str) -> None:
    plan_what_if.undo()
    _pick(name)


def _answer(goal: Goal, answered: Plan, run: Run, current: tuple[Plan, Profile], *, varied: bool) -> None:
    shown, its = current
    name = "Changed" if varied else (run.standing.name or "From the front") if shown is not answered else ""
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


def _warnings(goal: Goal, shown: Plan, its: Profile, problem: AdvisorError | None) -> None:
    """Draw what to heed of the run that is shown, and the `problem` of a change that is impossible."""
    if hour := own_hour(shown.goal, shown.chosen):
        st.caption(f"{capital(with_controls(hour))}.")
    if problem is not None:
        _refused(problem)
    for text in explore.broken_limits(goal, shown.chosen):
        st.warning(escape_dollars(f"{capital(text)}."), icon=":material/warning:")
    if words := explore.little_known(shown.chosen):
        st.warning(f"{capital(with_controls(words))}.", icon=":material/warning:")
    for text in shown.warnings:
        if text.startswith(ABOVE):
            tune = " Fine-tuning a published model may do better: page What fits." if text.startswith(THIN) else ""
            st.warning(f"{capital(with_controls(text))}.{tune}", icon=":material/warning:")
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
        download("plan.yaml", partial(dump_plan, limited), "plan.yaml", "application/yaml", "download", about)
        text, about = partial(markdown, shown, goal_shown), "The plan in words, as Markdown."
        download("Summary", text, f"{shown.id}.md", "text/markdown", "description", about)
        copies(plan_command(goal_shown, "plan.yaml"), plan_call(goal_shown))


def _layers(run: Run) -> str:
    return "1 layer" if run.depth == 1 else f"{run.depth} layers"


def _basis(basis: Basis, profile: Profile) -> tuple[Literal["green", "orange", "gray"], str, str]:
    """Return what a speed is based on: colour, name, explanation. Never green if the calibration is doubtful."""
    colour, explained = _BASES[basis]
    if profile.widening > 1 and colour == "green":
        colour, explained = "orange", f"{explained} But its calibration is doubtful."
    name = "not measured" if basis is Basis.PRIOR else str(basis)
    return colour, f"{name}{', doubtful' if profile.widening > 1 else ''}", explained


def _options(goal: Goal, answered: Plan, shown: Run | None, now: plan_answers.World) -> None:
    """Draw the named options with what each has of its own, and say once what all have in common.

    `shown` is None if a changed run is shown instead.
    """
    options = answered.options
    common, own = runs.common_and_own(options, goal)
    bases = [_basis(one.step_seconds.basis, plan_answers.profile(goal, one.offer.gpu, now)) for one in options]
    rows = []
    for option, words, (colour, basis, _) in zip(options, own, bases, strict=True):
        name = option.standing.name
        rows.append(
            Option(
                run=option, title=name.capitalize(), why=capital(option.standing.why), key=name,
                model=f"{format_count(option.parameters)}, {_layers(option)}" if "model" in words else "",
                line=products(option.offer.in_words(", ")) if "on" in words else "",  # a short one: it is one line high
                badge=f":{colour}-badge[{basis}]" if len({*bases}) > 1 else "",
                result=f"{capital(LOSS.column)} **{LOSS.expected(option.loss)}**" if option.loss else "",
                shown=shown is not None and explore.run_id(option) == explore.run_id(shown),
                show=partial(_show, name),
            )
        )  # fmt: skip
    plan_options.draw(rows, goal)
    if alike := [products(f"{name} {words}") for name, words in common.items() if name in _ALIKE]:
        st.caption(escape_dollars(f"All options: {', '.join(alike)}."))


def _front(answered: Plan, shown: Run, varied: Run | None, limits: tuple[float | None, float | None]) -> None:
    search = answered.search
    if search is None or not search.front:
        st.caption("Within the limits no other run is cheaper, faster or better, except perhaps on spot machines.")
        return
    worth = sorted((*search.front, answered.chosen), key=by_price)
    drawn_anyway = {explore.run_id(run) for run in (*worth, *search.near_misses)}
    named = (*answered.options, *search.neighbours)
    options = [option for option in named if explore.run_id(option) not in drawn_anyway]
    every = (*worth, *options, *search.near_misses)
    by_loss = any(run.loss is not None for run in (*worth, *options))  # else the score is all that is known
    labels = {explore.run_id(shown): format_count(shown.parameters)}
    labels |= {explore.run_id(option): option.standing.name for option in answered.options}
    neighbour = ""
    if varied is None and (other := explore.worth_knowing(answered, shown)) is not None:
        on = products(f"{other.offer.gpus} x {other.offer.gpu}")
        labels[explore.run_id(other)] = re.sub(r" [0-9]+ GB", "", on)
        neighbour = f"{products(runs.neighbour(other, shown))}."
    seconds = tuple(run.total_seconds.value for run in every)
    factor, unit = charts.time_unit(max(*seconds, limits[1] or 0.0))
    limits = (limits[0], limits[1] and limits[1] / factor)
    rows = [
        row | {"shown": row["id"] == explore.run_id(shown), "label": labels.get(row["id"], "")}
        for row in _front_rows(answered, every, (answered.id, seconds), factor, by_loss=by_loss)
    ]
    dots, missed = rows[: len(rows) - len(search.near_misses)], rows[len(rows) - len(search.near_misses) :]
    priced = all(row["usd"] for row in (*dots, *missed))
    if not priced and not by_loss:
        st.caption("No chart of runs, because neither cost nor loss tells them apart.")
        return
    sights = [name for name, sight in charts.SIGHTS.items() if priced or "usd" not in sight[:2]]
    if priced and len({LOSS.expected(run.loss) for run in every}) == 1:
        sights = sights[-1:]  # runs of one loss, or of none that is known, differ in cost and time
    known = sum(row["quality"] is not None for row in (*dots, *missed))
    if answered.chosen.loss is None or 2 * known < len(dots) + len(missed):
        sights = sights[::-1]  # the first shows the plan and most runs
    requested = sights[0]
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(sights) > 1:
            settings: Any = {"required": True, "key": AXES, "bind": QUERY, "label_visibility": "collapsed"}
            requested = st.segmented_control("Axes", sights, default=sights[0], **settings) or sights[0]
        st.caption(escape_dollars(neighbour), width="content")
    unplaced = 0
    if "quality" in charts.SIGHTS[requested][:2]:
        placed = [[row for row in rows if row["quality"] is not None] for rows in (dots, missed)]
        unplaced, (dots, missed) = len(dots) + len(missed) - sum(map(len, placed)), placed
    key = (answered.id, seconds, explore.run_id(shown), tuple(labels.items()))
    drawn = _front_spec(dots, missed, key, by_loss, requested, unit, limits)
    ring = varied or next((run for run in search.near_misses if explore.run_id(run) == explore.run_id(shown)), None)
    row = None if ring is None else _front_row(ring, answered, factor, by_loss=by_loss)
    if row is not None and all(row[field] is not None for field in charts.SIGHTS[requested][:2]):
        drawn = charts.ringed(drawn, row | ({"remark": "what if"} if varied else {}))
    event = st.vega_lite_chart(spec=drawn, width="stretch", on_select="rerun", selection_mode=charts.PICK, key="front")
    runs_of = "1 run without a predicted loss is" if unplaced == 1 else f"{unplaced} runs without a predicted loss are"
    elsewhere = f" {runs_of} only in the table." if unplaced else ""
    st.caption(
        f"Click a dot to see its run.{elsewhere}",
        help="Dots: the options above, and the runs that no other beats in cost, time and loss at once (the Pareto "
        "front). Crosses: better runs, but over your limits or on spot machines. Filled ring: the run that was chosen. "
        f"Open ring: with your changes under What if.{'' if by_loss else f' {capital(runs.SCORE)}.'}",
    )
    _looked_at("dot", [item.get("id") for item in event["selection"].get(charts.PICK, [])])
    table = st.expander("The same runs as a table", icon=":material/table_rows:", key="runs-table", on_change="rerun")
    if not table.open:
        return
    with table:
        drawn_too = replace(search, front=(*search.front, *options))
        missed_table, listed = runs.near_misses(search), runs.front(answered, drawn_too)
        listed = replace(listed, title="", rows=(*listed.rows, *missed_table.rows))
        listed = narrow(listed.without("score") if by_loss else listed)
        picked = draw(listed, on_select="rerun", selection_mode="single-row", key="front-table")
        st.caption("Tick a row to look at that run. From the keyboard: arrow keys to a row, then Shift and space.")
        ids = [explore.run_id(run) for run in (*sorted((*worth, *options), key=by_price), *search.near_misses)]
        _looked_at("row", [ids[row] for row in picked.selection.rows if row < len(ids)])


def _looked_at(how: str, clicked: list[str]) -> None:
    """Show the run that was just clicked in the chart or in its table."""
    if clicked and clicked != st.session_state.get(f"clicked-{how}"):
        st.session_state[f"clicked-{how}"] = clicked
        _pick(clicked[0])
        st.rerun()


@st.cache_data(max_entries=64, show_spinner=False)
def _front_spec(
    _runs: Listed, _missed: Listed, key: object, by_loss: bool, sight: str, unit: str,
    limits: tuple[float | None, float | None],
) -> dict[str, Any]:  # fmt: skip
    """Return the chart as Vega-Lite, cached because checking it is slow; the `key` stands for its rows."""
    del key
    quality = LOSS.name if by_loss else "score"
    drawn = charts.front(_runs, _missed, sight=charts.SIGHTS[sight], quality=quality, unit=unit, limits=limits)
    return charts.written_out(drawn)


@st.cache_resource(max_entries=64, show_spinner=False)
def _front_rows(
    _answered: Plan, _runs: Sequence[Run], key: object, unit_seconds: float, *, by_loss: bool
) -> list[dict[str, Any]]:
    """Return the runs of a chart, which no slider moves; the `key` stands for plan and runs."""
    del key
    return [_front_row(run, _answered, unit_seconds, by_loss=by_loss) for run in _runs]


def _front_row(run: Run, answered: Plan, unit_seconds: float, *, by_loss: bool) -> dict[str, Any]:
    """Return a run in the units of the chart, and in words."""
    name, loss = explore.run_id(run), run.loss.value if run.loss else None
    model, machine_words = runs.model(run), products(run.offer.in_words(", "))
    numbers = {TIME: run.total_seconds, COST: run.cost_usd, LOSS: run.loss}
    spoken = ", ".join(f"{quantity.column} {quantity.expected(value)}" for quantity, value in numbers.items())
    return {
        "id": name,
        "usd": run.cost_usd.value if run.cost_usd else None,
        "duration": run.total_seconds.value / unit_seconds,
        "quality": loss if by_loss else run.score,
        "model": model,
        "on": machine_words,
        **{quantity.column: quantity.of(value) for quantity, value in numbers.items()},
        "remark": "the plan" if run is answered.chosen else as_text(run.standing.why, PLAN) or "-",
        "words": f"{model} on {machine_words}: {spoken}",
    }
