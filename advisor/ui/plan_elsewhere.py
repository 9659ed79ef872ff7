"""Plans with other software on the page Plan: a fine-tune on each machine, a model over many GPUs, RL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.hardware.here import cards_of
from advisor.offer import OWN_MACHINE, Offer
from advisor.options import Goal
from advisor.planning import explore
from advisor.planning.command import plan_call, plan_command
from advisor.planning.offers import ANY, OWN, on_machine
from advisor.records import Plan, Run
from advisor.report import charts, elsewhere, rl
from advisor.report import plan as plan_words
from advisor.report.plan import RESTS_ON
from advisor.report.prediction import layout_words
from advisor.report.quantities import COST, DEVICE_MEMORY, THROUGHPUT, TIME
from advisor.report.table import Table, capital, in_markdown
from advisor.store.plan_files import dump_plan
from advisor.ui import answer, loaders, plan_answers, plan_form, plan_options, plan_what_if
from advisor.ui.controls import download, escaped, go, products, to_address
from advisor.ui.plan_options import Option
from advisor.ui.plan_tabs import copies, draw, with_controls
from advisor.units import MAY_NOT_FIT, format_count
from advisor.workflows.goal import find_any_model
from advisor.workflows.plan_finetune import EXAMPLES, FASTER, with_usual_examples
from advisor.workflows.plan_layouts import TOKENS_PER_PARAMETER
from advisor.workflows.plan_rl import splits, with_split
from advisor.workflows.write_elsewhere import Written, start_suffix, write_elsewhere

MOST = 40  # number of machines listed for a fine-tune
OPTIONS = 3  # that are drawn
MACHINE = "machine"  # in the session and in the address: the machine that is shown, if it is not the best
_SPLIT = f"{plan_what_if.PREFIX}rollout_gpus"  # in the session and in the address: the split that is shown
_SPLIT_OF = "plan-split-of"  # session state: the machine that is split
_COLOCATED = "colocated"
# Other ways to fine-tune on the same machine: fields of the goal and of the form.
_WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("with Unsloth", {"software": "unsloth"}),
    ("LoRA on 16-bit weights", {"finetune": "lora"}),
    ("QLoRA on 4-bit weights", {"finetune": "qlora"}),
    ("on 2 GPUs", {"gpus": 2}),
    ("with TRL", {"software": "trl"}),
    ("with axolotl", {"software": "axolotl"}),
    ("training all weights", {"finetune": "full"}),
)


def show(goal: Goal) -> bool:
    """Show the answer to such a goal: sentence, numbers, options, memory, reasons. Returns False for any other goal."""
    if not goal.needs_other_software:
        return False
    goal = _with_amount(goal)
    best = plan = plan_answers.plan(goal, plan_answers.world(goal))
    machine = plan = _on_picked_machine(best, goal)
    problem = None
    if plan.workload.rollouts is not None:
        plan, problem = _with_split(machine)
    run, varied = plan.chosen, plan is not machine
    warnings = [with_controls(f"{text}.") for text in _to_heed(goal, machine)]
    layout = run.workload.layout if run.workload.rollouts is None else None
    headline, _, amount = elsewhere.headline(plan).partition("; ")  # of RL
    about = f"{layout_words(layout)}: {elsewhere.split_words(layout)}." if layout is not None else ""
    about = about or " ".join(f"{capital(with_controls(text))}." for text in (*plan.reasons, *filter(None, [amount])))
    answer.frame(
        ("Changed: " if varied else "") + headline, goal, run.bill,
        {COST: run.cost_usd, TIME: run.total_seconds, THROUGHPUT: run.tokens_per_second,
         DEVICE_MEMORY: run.prediction.device_bytes},
        partial(_buttons, plan, goal if plan is best else plan.goal),
        about=about, warnings=warnings,
    )  # fmt: skip
    drawn, about = _options(best, machine.chosen, varied=varied)
    plan_options.draw(drawn, goal)
    other = elsewhere.passed_over(best)
    if words := [*filter(None, [about, other and f"Unproven: {with_controls(products(other))}."])]:
        st.caption("  \n".join(words))
    answer.memory(run.prediction)
    if run.workload.rollouts is not None:
        _split_slider(machine, plan)
        # of a split, below its slider, which they would move from above
        of_split = [text for text in _to_heed(goal, plan) if text not in _to_heed(goal, machine)]
        for text in (*([f"{problem.message}; shown is the plan"] if problem is not None else []), *of_split):
            st.warning(f"{capital(with_controls(text))}.", icon=":material/warning:")
    _tabs(best, plan)
    return True


def _to_heed(goal: Goal, plan: Plan) -> tuple[str, ...]:
    """Return the limits that a plan breaks, and its warnings."""
    return *explore.broken_limits(goal, plan.chosen), *plan.warnings


def _with_amount(goal: Goal) -> Goal:
    """Draw what the answer depends on most: the amount of training, and whether the GPUs are one's own.

    Returns the goal, with a usual amount if it states none.
    """
    state, gpus = st.session_state, [] if goal.gpu in (ANY, OWN) else goal.gpu.split(",")
    mine, stated, why = bool(goal.own), dict[str, Any](), ""
    # in what the amount is counted, and its usual number; "" if another field has it
    name, usual = ("examples", EXAMPLES) if goal.finetune else ("prompts", 20_000)
    if goal.layout == "any" and goal.model is not None and goal.ratio is None:
        name, usual = "tokens", round(TOKENS_PER_PARAMETER * find_any_model(goal.model).model.active)
        why = f": {TOKENS_PER_PARAMETER} for each active parameter"
    elif goal.layout == "any" or goal.tokens is not None:
        name = ""
    with st.container(horizontal=True, vertical_alignment="center"):
        if name:
            stated[name] = getattr(goal, name) or usual
            key = f"amount-{name}-{stated[name]}"
            st.markdown("For", width="content")
            st.text_input(
                f"Number of {name}", format_count(stated[name]), key=key, width=110, label_visibility="collapsed",
                on_change=lambda: state.update({plan_form.AGAIN: {name: state[key]}}),
            )  # fmt: skip
            unstated = "" if getattr(goal, name) else f" **(assumed{why})**"
            st.markdown(f"{name}{unstated}", width="content")
        if gpus and goal.layout != "any":
            own = "" if mine else " ".join(f"{gpu}:{goal.gpus}" for gpu in gpus)
            st.checkbox(
                "Mine, not rented", mine, key=f"mine-{goal.gpu}-{mine}", help="It then costs no rent.",
                on_change=lambda: state.update({plan_form.AGAIN: {"own": own}}),
            )  # fmt: skip
    return goal if with_usual_examples(goal) != goal else replace(goal, **stated)


def _tabs(best: Plan, plan: Plan) -> None:
    """Draw the tables and reasons below the answer, in tabs."""
    kind = elsewhere.kind_of(plan)
    machines = elsewhere.machines(best, MOST)
    short = machines.only(*(name for name in machines.columns if name != "failures, checkpoints"))
    tabs: dict[str, Callable[[], Any]] = {"All machines": lambda: _draw(short)}
    if kind != "finetune":
        name = "Ways to use the GPUs" if kind == "rl" else "Other layouts"
        tabs[name] = lambda: _with_notes(lambda: _draw(elsewhere.layouts(plan)), [elsewhere.parts(plan)])
    if kind == "rl":
        tabs["Step"] = lambda: _step(plan)
    remarks = [note for note in elsewhere.notes(plan) if note not in (*plan.warnings, *plan.reasons)]
    tabs[RESTS_ON] = lambda: _with_notes(lambda: None, [*remarks, *plan.inputs])
    for body, tab in zip(tabs.values(), st.tabs(list(tabs)), strict=True):
        with tab:
            body()


def _draw(table: Table) -> None:
    draw(replace(table, rows=tuple(tuple(map(products, row)) for row in table.rows)))


def _with_notes(body: Callable[[], Any], notes: Iterable[str]) -> None:
    body()
    st.markdown("\n".join(f"- {with_controls(capital(note))}" for note in notes))


def _buttons(plan: Plan, goal: Goal) -> None:
    """Draw how the run is started, and what can be downloaded or copied; or why no start file can be written."""
    with TemporaryDirectory() as folder:
        try:
            path = Path(folder) / f"run{start_suffix(plan)}"
            written, unwritten = write_elsewhere(plan, path), ""
            text = path.read_text(encoding="utf-8")
        except AdvisorError as error:
            written, text, unwritten = None, "", with_controls(capital(f"{error.message}; {error.hint}"))
    if written is not None:
        _launch(plan, written, text)
    else:
        st.button("Start file", icon=":material/download:", disabled=True, help=unwritten)
    saved = replace(plan, search=None)  # the other machines would make it a hundred times as long
    about = "This plan with its predictions and where they come from."
    download("plan.yaml", partial(dump_plan, saved), "plan.yaml", "application/yaml", "download", about)
    tables = in_markdown(elsewhere.machines(plan))
    summary = "\n\n".join([elsewhere.sentence(plan), tables, *(f"- {note}" for note in elsewhere.notes(plan))])
    download("Summary", summary, f"{plan.id}.md", "text/markdown", "description", "The plan in words, as Markdown.")
    copies(plan_command(goal), plan_call(goal))
    if unwritten:
        st.caption(unwritten)


def _launch(plan: Plan, written: Written, text: str) -> None:
    """Draw what starts the run: on this machine through the page Adopt, or anywhere by its start file."""
    name, command = written.path.name, written.command
    with st.popover("Launch…", type="primary", icon=":material/play_arrow:", help="Here, or by files elsewhere."):
        for blank in written.to_fill_in:
            about = "The start file has this name unless you give one."
            given = st.text_input(
                f"Your data, in place of {blank}" if "DATA" in blank else f"Yours, in place of {blank}",
                key=f"start-{blank}",
                help=about,
            )
            if given.strip().endswith((".json", ".jsonl")) and written.data.startswith("a folder"):
                st.warning(f"{escaped(given)} is a file: {written.software} takes the folder that holds it.")
            elif given.strip():
                text, command = text.replace(blank, given.strip()), command.replace(blank, given.strip())
        gpu, gpus = plan.offer.gpu, plan.offer.gpus
        here = cards_of(gpu)
        if here >= gpus:
            about = "Runs it briefly, corrects the plan by what is measured, and launches it: page Adopt."
            if st.button("Measure and launch it here", type="primary", icon=":material/speed:", help=about):
                folder = loaders.store().home / "starts" / plan.id
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
                st.session_state.update({"adopt-command": command, "adopt-folder": str(folder), "adopt-handed": True})
                go("adopt")
        else:
            has = f"{here} of {gpus}" if here else "no"
            where = "one" if gpus == 1 else "them"
            st.markdown(
                f"This machine has {has} {require_gpu(gpu).product}. On one with {where}, the steps of **Start file**:"
            )
        st.code(command, language="bash", wrap_lines=True)
        blanks = tuple(blank for blank in written.to_fill_in if blank in text)
        st.caption(f"**Start file**: {replace(written, command=command, to_fill_in=blanks).steps}.")
        st.caption(f"Watched, stopped at its limits and compared with this plan: `advisor adopt -- {command}`")
    download("Start file", text, name, "text/plain", "download", "Its steps are under Launch.")


def _machine_name(offer: Offer) -> str:
    return f"{offer.gpus}x{offer.gpu}{'-spot' if offer.spot else ''}{'-own' if offer.source == OWN_MACHINE else ''}"


def _pick(name: str) -> None:
    st.session_state.update({MACHINE: name, _SPLIT: None})


def _on_picked_machine(best: Plan, asked: Goal) -> Plan:
    """Return the plan on the machine that the user chose. A new goal begins with the best machine."""
    state = st.session_state
    requested = state.get(MACHINE, st.query_params.get(MACHINE))
    if state.get("machine-goal", best.goal) != best.goal:
        requested = None
    state["machine-goal"] = best.goal
    others = {_machine_name(run.offer): run.offer for run in elsewhere.best_runs(best)[1:]}
    state[MACHINE] = requested if requested in others else None
    to_address(MACHINE, state[MACHINE])
    if state[MACHINE] is None:
        return best
    offer = others[state[MACHINE]]
    goal = on_machine(best.goal, offer.gpu, offer.gpus, own=offer.source == OWN_MACHINE)
    goal = replace(goal, examples=asked.examples)  # left open, the plan says how many the budget buys
    goal = replace(goal, spot="only" if offer.spot else "none", providers=(offer.provider,) if offer.provider else ())
    return plan_answers.plan(goal, plan_answers.world(goal))


def _options(best: Plan, shown: Run, *, varied: bool) -> tuple[list[Option], str]:
    """Return the machines to draw, or other ways to use the only one, and a sentence about them.

    None of the machines is shown if a `varied` split is.
    """
    runs, state = elsewhere.named_runs(best, OPTIONS), st.session_state
    rows = [
        _option(run, products(elsewhere.rented(run.offer)), label, partial(_pick, _machine_name(run.offer)),
                shown=not varied and _machine_name(run.offer) == _machine_name(shown.offer))
        for run, label in runs
    ]  # fmt: skip
    if len(rows) > 1:
        why = "All train the same model equally well. "
        if "cheap" not in runs[0][1]:
            why += "The recommended one costs least if each hour after the first day has a price and machines that few "
            why += "have measured count as slow. "
        why += "For the fastest, set **Minimise** to *time*."
        return rows, why if best.goal.objective == "loss" else ""
    others = best.considered[: OPTIONS - 1]
    if best.workload.rollouts is not None:
        splits_of = [_split_name(_engines_of(run)) for run in (best.chosen, *others)]
        rows = [
            _option(run, elsewhere.way(run), run.standing.why or runs[0][1], partial(state.update, {_SPLIT: split}),
                    shown=split == state[_SPLIT])
            for run, split in zip((best.chosen, *others), splits_of, strict=True)
        ]  # fmt: skip
        return rows, ""
    rows += [_option(run, elsewhere.way(run), run.standing.why, None) for run in others]
    if elsewhere.kind_of(best) != "finetune":
        return rows, ""
    impossible, now = [], replace(best.goal, software=best.goal.software or "trl")
    for label, change in _WAYS:
        if all(getattr(now, name) == value for name, value in change.items()):
            continue
        if "gpus" in change and (best.goal.own or best.goal.counts or best.goal.gpus != 1):
            continue
        goal = replace(best.goal, **change)
        try:
            way = plan_answers.plan(goal, plan_answers.world(goal))
            run, problem = way.chosen, "" if way.prediction.plannable else way.warnings[0].partition(";")[0]
        except AdvisorError as error:
            problem = error.message
        if problem:
            needs = problem.partition(": ")[2]
            verdict = problem if problem.startswith(MAY_NOT_FIT) else f"does not fit{f': {needs}' if needs else ''}"
            impossible.append(f"{capital(label)} {verdict}.")
            continue
        form = {name: [value] if name == "gpus" else value for name, value in change.items()}
        proviso = f"if {label.removeprefix('with ')} supports this model" if change.get("software") == FASTER else ""
        rows.append(_option(run, capital(label), proviso, partial(state.update, {plan_form.AGAIN: form})))
    return rows[:OPTIONS], " ".join(impossible)


def _option(run: Run, title: str, label: str, show: Callable[[], None] | None, *, shown: bool = False) -> Option:
    work = run.workload
    how = f"{elsewhere.way(run)}, " if work.layout is not None or work.rollouts is not None else ""
    how = "" if how.startswith(title) else how
    return Option(
        run=run, title=title, shown=shown, key=f"{title}-{label}", show=show,
        line=capital(" · ".join(filter(None, (label, f"{how}micro-batch {work.micro_batch}")))),
        result=f"**{THROUGHPUT.expected(run.tokens_per_second)}**",
    )  # fmt: skip


def _with_split(best: Plan) -> tuple[Plan, AdvisorError | None]:
    """Return the plan with the split that the user chose for its machine, or the plan itself and why that is none."""
    state, machine = st.session_state, (best.offer.gpu, best.offer.gpus, best.goal)
    choices = {_split_name(one): one for one in splits(best)}
    if _SPLIT not in state:
        state[_SPLIT] = st.query_params.get(_SPLIT)
    if state.get(_SPLIT_OF, machine) != machine or state[_SPLIT] not in choices:
        state[_SPLIT] = None
    state[_SPLIT_OF] = machine
    its = _split_name(_engines_of(best.chosen))
    state[_SPLIT] = state[_SPLIT] or its
    to_address(_SPLIT, state[_SPLIT] if state[_SPLIT] != its else None)
    if state[_SPLIT] == its:
        return best, None
    try:
        goal = with_split(best, choices[state[_SPLIT]])
        return plan_answers.split(goal, plan_answers.world(goal)), None
    except AdvisorError as error:
        return best, error


def _engines_of(run: Run) -> int | None:
    rollouts = run.workload.rollouts
    assert rollouts is not None
    return None if rollouts.colocated else rollouts.engine_gpus


def _split_name(engine_gpus: int | None) -> str:
    return _COLOCATED if engine_gpus is None else str(engine_gpus)


def _split_slider(best: Plan, shown: Plan) -> None:
    """Draw the slider of the split, and what it does to time and cost."""
    names = [_split_name(one) for one in splits(best)]
    if len(names) < 2:
        return
    rollouts = best.workload.rollouts
    gpus = best.offer.gpus - (rollouts.judge_gpus if rollouts is not None else 0)
    plan_what_if.total(
        shown.chosen, varied=st.session_state[_SPLIT] != _split_name(_engines_of(best.chosen)),
        undo=lambda: st.session_state.update({_SPLIT: _split_name(_engines_of(best.chosen))}),
    )  # fmt: skip
    st.select_slider(
        "GPUs that only generate", names, key=_SPLIT,
        format_func=lambda name: name if name == _COLOCATED else f"{gpus - int(name)} train : {name} generate",
        help="How the GPUs of this machine are divided between trainer and engines. The machine and the work stay.",
    )  # fmt: skip
    if shown is not best:
        effects = plan_words.effect_in_words(explore.difference(best.chosen, shown.chosen))
        st.caption(with_controls(f"{elsewhere.parts(shown)}; {effects}"))


def _step(plan: Plan) -> None:
    """Draw the parts of a step of RL for the best ways to use the GPUs."""
    parts = list(rl.PARTS.values())
    st.altair_chart(charts.step_parts(rl.bars(plan), across="training + generating GPUs", parts=parts), width="stretch")
    st.caption("With split GPUs, engines and trainer work at the same time; the longer bar determines the step time.")
