"""Plans with other software on the page Plan: a fine-tune on each machine, a model over many GPUs, RL."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.options import Goal
from advisor.planning import explore
from advisor.planning.command import plan_call, plan_command
from advisor.planning.curves import gib
from advisor.prediction.layout_batch import memory_by_stage
from advisor.prediction.layout_memory import MEMORY_PARTS
from advisor.records import Plan
from advisor.report import charts, elsewhere, rl
from advisor.report import plan as plan_words
from advisor.report.prediction import layout_words
from advisor.report.quantities import COST, DEVICE_MEMORY, THROUGHPUT, TIME
from advisor.report.table import Table, capital, in_markdown
from advisor.ui import plan_answers, plan_options, plan_what_if
from advisor.ui.controls import download, grid, products, to_address
from advisor.ui.plan_options import Option
from advisor.ui.plan_tabs import copies, escape_dollars, numbers, with_controls
from advisor.units import format_bytes, format_estimate
from advisor.workflows.plan_rl import splits, with_split
from advisor.workflows.write_elsewhere import start_suffix, write_elsewhere

MOST = 40  # number of machines listed for a fine-tune
OPTIONS = 3  # machines that are drawn
_SPLIT = f"{plan_what_if.PREFIX}rollout_gpus"  # in the session and in the address: the split that is shown
_SPLIT_OF = "plan-split-of"  # session state: the machine that is split
_IN_TURN = "in turn"


def show(goal: Goal) -> bool:
    """Show the answer to such a goal: sentence, tables, notes, command. Returns False for any other goal."""
    if not goal.needs_other_software:
        return False
    best = plan = plan_answers.plan(goal, plan_answers.world(goal))
    problem = None
    if plan.workload.rollouts is not None:
        plan, problem = _with_split(best)
    run = plan.chosen
    what_if, headline = "" if plan is best else "What if: ", elsewhere.sentence(plan).rpartition(": ")[0]
    st.markdown(f"## {what_if}{escape_dollars(products(headline))}")
    figures = {COST: run.cost_usd, TIME: run.total_seconds, THROUGHPUT: run.tokens_per_second}
    numbers(goal, run.bill, figures | {DEVICE_MEMORY: run.prediction.device_bytes})
    for text in explore.broken_limits(goal, run):
        st.warning(escape_dollars(f"{capital(text)}."), icon=":material/warning:")
    if problem is not None:
        st.warning(escape_dollars(with_controls(f"{problem.message}. Below is the plan.")), icon=":material/warning:")
    _downloads(plan, goal if plan is best else plan.goal)
    _options(best, goal)
    plan_options.memory(run)
    if plan.workload.rollouts is not None:
        _split_slider(best, plan)
        _show("Machines", elsewhere.machines(best), (elsewhere.parts(plan),), level=3)
        parts = list(rl.PARTS.values())
        st.altair_chart(
            charts.step_parts(rl.bars(plan), across="training + generating GPUs", parts=parts), width="stretch"
        )
        st.caption(
            "With split GPUs, engines and trainer work at the same time; the longer bar determines the step time."
        )
        _show(f"Ways to use the {plan.offer.gpus} GPUs", elsewhere.layouts(plan), elsewhere.notes(plan), level=3)
    elif plan.workload.layout is None:
        _show("Machines", elsewhere.machines(plan, MOST), elsewhere.notes(plan), level=3)
    else:
        _show("Machines", elsewhere.machines(plan), (elsewhere.parts(plan),), level=3)
        _memory(plan)
        title = f"Other layouts of the {plan.offer.gpus} GPUs"
        _show(title, elsewhere.layouts(plan), elsewhere.notes(plan), level=3)
    return True


def _downloads(plan: Plan, goal: Goal) -> None:
    """Draw what can be downloaded or copied: the file that starts the run, or why there is none, and the rest."""
    unwritten = ""
    with TemporaryDirectory() as folder, st.container(horizontal=True):
        try:
            path = Path(folder) / f"run{start_suffix(plan)}"
            written = write_elsewhere(plan, path)
        except AdvisorError as error:
            unwritten = with_controls(capital(f"{error.message}; {error.hint}"))
            st.button("Start file", icon=":material/download:", disabled=True, help=unwritten)
        else:
            blanks = f", with yours in place of {' and '.join(written.to_fill_in)}" if written.to_fill_in else ""
            about = f"Where {written.software} is installed{blanks}: `{written.command}`"
            download("Start file", path.read_text(encoding="utf-8"), path.name, "text/plain", "download", about,
                     type="primary")  # fmt: skip
        tables = in_markdown(elsewhere.machines(plan))
        text = "\n\n".join([elsewhere.sentence(plan), tables, *(f"- {note}" for note in elsewhere.notes(plan))])
        about = "The plan in words, as Markdown."
        download("Summary", text, f"{plan.id}.md", "text/markdown", "description", about)
        copies(plan_command(goal), plan_call(goal))
    if unwritten:
        st.caption(unwritten)


def _options(plan: Plan, goal: Goal) -> None:
    """Draw the best machines."""
    rows = []
    for place, run in enumerate(elsewhere.best_runs(plan)[:OPTIONS]):
        work = run.workload
        how = f"{layout_words(work.layout)}, " if work.layout is not None else ""
        rows.append(
            Option(
                run=run, title=products(elsewhere.rented(run.offer)), shown=place == 0, key=str(place),
                line=f"{how}micro-batch {work.micro_batch}",
                result=f"**{THROUGHPUT.expected(run.tokens_per_second)}**",
            )
        )  # fmt: skip
    plan_options.draw(rows, goal)


def _with_split(best: Plan) -> tuple[Plan, AdvisorError | None]:
    """Return the plan with the split that the user chose for its machine, or the plan itself and why that is none."""
    state, machine = st.session_state, (best.offer.gpu, best.offer.gpus, best.goal)
    choices = {_split_name(one): one for one in splits(best)}
    if _SPLIT not in state:
        state[_SPLIT] = st.query_params.get(_SPLIT)
    if state.get(_SPLIT_OF, machine) != machine or state[_SPLIT] not in choices:
        state[_SPLIT] = None
    state[_SPLIT_OF] = machine
    its = _split_name(_engines_of(best))
    state[_SPLIT] = state[_SPLIT] or its
    to_address(_SPLIT, state[_SPLIT] if state[_SPLIT] != its else None)
    if state[_SPLIT] == its:
        return best, None
    try:
        goal = with_split(best, choices[state[_SPLIT]])
        return plan_answers.split(goal, plan_answers.world(goal)), None
    except AdvisorError as error:
        return best, error


def _engines_of(plan: Plan) -> int | None:
    rollouts = plan.workload.rollouts
    assert rollouts is not None
    return None if rollouts.colocated else rollouts.engine_gpus


def _split_name(engine_gpus: int | None) -> str:
    return _IN_TURN if engine_gpus is None else str(engine_gpus)


def _split_slider(best: Plan, shown: Plan) -> None:
    """Draw the slider of the split, and what it does to time and cost."""
    names = [_split_name(one) for one in splits(best)]
    if len(names) < 2:
        return
    rollouts = best.workload.rollouts
    gpus = best.offer.gpus - (rollouts.judge_gpus if rollouts is not None else 0)
    plan_what_if.total(
        shown.chosen, varied=st.session_state[_SPLIT] != _split_name(_engines_of(best)),
        undo=lambda: st.session_state.update({_SPLIT: _split_name(_engines_of(best))}),
    )  # fmt: skip
    st.select_slider(
        "GPUs that only generate", names, key=_SPLIT,
        format_func=lambda name: name if name == _IN_TURN else f"{gpus - int(name)} train : {name} generate",
        help="How the GPUs of this machine are divided between trainer and engines. The machine and the work stay.",
    )  # fmt: skip
    if shown is not best:
        effects = plan_words.effect_in_words(explore.difference(best.chosen, shown.chosen))
        st.caption(with_controls(f"{elsewhere.parts(shown)}; {effects}"))


def _memory(plan: Plan) -> None:
    """Draw the memory of a GPU at each end of the pipeline, part by part, and the limit of the GPU."""
    stages, spec = memory_by_stage(plan.workload), require_gpu(plan.workload.gpu)
    rows = [
        {"place": stage, "part": part, "order": order, "value": gib(size), "label": format_bytes(size)}
        for stage, held in stages.items()
        for order, (part, size) in enumerate(held.items())
    ]
    peak = plan.prediction.peak_allocated_bytes
    assert peak is not None  # a layout that was chosen surely fits
    fullest = max(stages, key=lambda stage: sum(stages[stage].values()))
    ends = [{"place": fullest, "low": gib(peak.low), "high": gib(peak.high),
             "label": format_estimate(peak, format_bytes)}]  # fmt: skip
    limit = (gib(spec.memory_bytes), f"{spec.product} has {format_bytes(spec.memory_bytes)}")
    chart = charts.memory(rows, ends, across="GPU of a pipeline stage", parts=MEMORY_PARTS, limit=limit)
    st.altair_chart(chart, width="stretch")
    st.caption("Memory at the peak of a step; grey: the 80 % interval of the fullest GPU.")


def _show(title: str, table: Table, notes: Iterable[str], level: int = 2) -> None:
    st.markdown(f"{'#' * level} {escape_dollars(products(title))}")
    grid(table)
    st.caption("\n".join(f"- {with_controls(capital(note))}" for note in notes))
