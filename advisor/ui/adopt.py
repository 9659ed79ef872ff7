"""Page Adopt: measures, plans, launches and watches any training command without changing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from advisor.adopt.fit import choose_fit
from advisor.adopt.plan import batch_options
from advisor.adopt.session import in_words
from advisor.calibration.quality import BELIEVED_MEDIAN
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.options import AdoptedGoal, ExportOptions, LaunchOptions, filled, options_of
from advisor.planning.goal import Limits
from advisor.report import adoption as words
from advisor.report import charts
from advisor.report.quantities import COST, STEP_TIME, TIME
from advisor.report.table import capital
from advisor.store.adopted import Adopted, AdoptedPlan, adopted_names, dump_adopted_plan, load_adopted
from advisor.ui import answer, controls, loaders, plan_form
from advisor.ui.controls import ADOPT, QUERY, RUN, download, escaped, go, in_controls, show, side_by_side
from advisor.ui.launch_form import FILES, PLACES, WARNINGS, WATCHED, offer_files
from advisor.ui.plan_tabs import link
from advisor.units import format_count, format_percent
from advisor.workflows import adopt as workflow
from advisor.workflows.adopt_launch import COMMAND_TARGETS, export_adopted, launching
from advisor.workflows.goal import read_options
from advisor.workflows.preflight import training_here

NAME = "adopted"  # in the session and in the address: the command that is shown
LOOK_SECONDS = 1.0
_ON_TOP = 3  # warnings above the numbers; the most serious come first
_FIELDS = (("deadline", "budget", "price", "steps"), ("tokens", "samples", "epochs", "gpus"))
HANDED = "adopt-handed"  # session state: whether another page has just filled in the form
_NEW = "adopted-new"  # session state: the command that has just been adopted


def page() -> None:
    """Draw the form for a command, what was found out about the command, a plan, and its runs."""
    st.title("Adopt", anchor=False)
    st.markdown(
        "Paste your own training command. It is run briefly on this machine, unchanged, and the whole run is "
        "predicted: how long it takes, what it costs, and how much memory it needs."
    )
    store = loaders.store()
    background = workflow.adopting(store)
    now = background.look()
    if now is not None and now.running:
        st.fragment(_live, run_every=LOOK_SECONDS)()
    else:
        if now is not None and not workflow.was_adopted(store, now):
            printed = _said(background.last_lines()) or "It said nothing."
            with st.container(horizontal=True, vertical_alignment="center"):
                st.error(f"**{escaped(now.subject)}** was not adopted.  \n{printed}", icon=":material/error:")
                st.button("Close", icon=":material/close:", key="adopt-close", on_click=background.forget)
        handed = bool(st.session_state.pop(HANDED, False))
        _form(", ".join(training_here(store)), opened=handed, alone=not adopted_names(store.home))
    newest = now.subject if now is not None and workflow.was_adopted(store, now) else None
    name = _picked(adopted_names(store.home), newest)
    if name is not None:
        _adopted(load_adopted(store.home, name))
        ran, about = [run.name for run in workflow.runs_of_command(store, name)], "Predicted and actual, compared."
        if ran and st.button(f"Its runs ({len(ran)})", icon=":material/checklist:", help=about):
            go("runs", {RUN: ran})


def _said(lines: Sequence[str]) -> str:
    """Return the message and hint in what a command printed last, without its progress, in the words of this page."""
    starts = [place for place, line in enumerate(lines) if line.startswith("error: ")]
    kept = lines[starts[-1] :] if starts else lines
    words_of = (line.removeprefix("error: ").removeprefix("hint: ") for line in kept)
    return "  \n".join(in_controls(capital(line), ADOPT) for line in words_of)


def _adopted(adopted: Adopted) -> None:
    """Draw a command, its plan, and in tabs what was measured of it."""
    held_out = choose_fit(adopted).held_out
    st.code(" ".join(adopted.command), language="bash", wrap_lines=True)
    if held_out is None:
        st.warning(f"{in_controls(capital(words.untested(adopted)), ADOPT)}.", icon=":material/warning:")
    elif held_out.median > BELIEVED_MEDIAN:
        # The page Calibrate rejects a calibration whose error is this large.
        error, limit = format_percent(round(held_out.median, 2)), format_percent(BELIEVED_MEDIAN)
        st.warning(
            f"Typical error {error} (limit {limit}): do not rely on the plan below. Adopt it again with nothing "
            "else running.",
            icon=":material/warning:",
        )
    plan, gpus = _plan(adopted)
    names = ["Short measurements", "Options, and whether they work"]
    tabs = st.tabs(["Why", "Batches", *names] if plan is not None else names)
    if plan is not None:
        with tabs[0]:
            lines = words.plan_lines(replace(plan, warnings=plan.warnings[_ON_TOP:]), adopted.recipe)
            st.markdown("\n".join(f"- {escaped(line)}" for line in lines))
        with tabs[1]:
            show(words.options_table(batch_options(adopted, gpus), plan))
            if plan.values:
                st.caption(escaped(f"It sets {in_words(plan.values, adopted.recipe)}."))
    with tabs[-2]:
        left, right = side_by_side("adopted", (3, 2))
        with left:
            st.markdown("\n".join(f"- {escaped(line)}" for line in words.adoption_lines(adopted)))
            show(words.bursts_table(adopted, held_out))
        if held_out is None:
            right.caption(
                "With four measured batches or more, each is predicted from the others and compared with its steps."
            )
        else:
            chart = charts.held_out(held_out, lambda batch: f"{batch.calls:g} x {batch.rows:g} x {batch.length:g}")
            right.altair_chart(chart, width="stretch")
            right.caption("On the dashed line the other bursts predicted a batch exactly; bars are 80 % intervals.")
    with tabs[-1]:
        show(words.knobs_table(adopted))


def _form(busy: str, *, opened: bool, alone: bool) -> None:
    """Draw the form for a command. It is disabled while a run trains here, because both would be measured wrong."""
    another = "Measure another command"
    with st.container() if alone else st.expander(another, icon=":material/add:", expanded=opened):
        if busy:
            st.info(
                f"{escaped(busy)} is training on this machine: bursts at the same time would be too slow.",
                icon=":material/hourglass_empty:",
            )
        lasting: Any = {"persist_state": "session"}  # a command that fails can be corrected without typing it again
        with st.form("adopt", border=False, enter_to_submit=False):
            text = st.text_area(
                "Command", key="adopt-command", **lasting, height=90,
                placeholder="python train.py --data my.txt --epochs 3",
                help="As you type it in a terminal; it is started without a shell.",
            )  # fmt: skip
            left, right = st.columns(2)
            about = "Its folder, on the machine of this app."
            folder = left.text_input("Folder", str(Path.home()), key="adopt-folder", **lasting, help=about)
            name = right.text_input("Name", key="adopt-name", **lasting, help="Name. Empty: that of its script.")
            knobs = left.text_input(
                ADOPT["--knob"], key="adopt-knobs", **lasting,
                placeholder="micro_batch=--bsz steps=--iters",
                help="KNOB=OPTION, separated by spaces: micro_batch, grad_accum, seq_len, steps, tokens, epochs, "
                "log_every; bsz= for bsz=VALUE, $BSZ for a variable.",
            )  # fmt: skip
            seconds = right.number_input(
                "Time for the test runs (seconds)", 20, value=int(workflow.BUDGET_SECONDS), key="adopt-seconds",
                help="More test runs, narrower intervals.", **lasting,
            )  # fmt: skip
            pressed = st.form_submit_button("Adopt it", icon=":material/speed:", disabled=bool(busy))
        if pressed:
            workflow.adopting(loaders.store()).forget()  # the failure of the try before
            try:
                workflow.start_adopting(
                    loaders.store(), text, Path(folder.strip()).expanduser(), name=name,
                    knobs=workflow.named_knobs(knobs.split()), budget_seconds=float(seconds),
                )  # fmt: skip
            except AdvisorError as error:  # the rest of the page stays
                st.error(controls.error_words(error, ADOPT), icon=":material/error:")
            else:
                st.rerun()


def _live() -> None:
    """Draw the adoption as it is now. This is drawn again every second while the adoption runs."""
    background = workflow.adopting(loaders.store())
    now = background.look()
    if now is None or not now.running:
        if now is not None and workflow.was_adopted(loaders.store(), now):
            st.session_state[_NEW] = now.subject
        st.rerun()
        return
    controls.time_progress(now, f"{escaped(now.subject)}: ")
    for line in background.last_lines():
        st.caption(escaped(line))
    if st.button("Cancel", icon=":material/cancel:", help="The burst is stopped; its measurements are lost."):
        with st.spinner("ending it"):
            background.cancel(with_children=True)
        st.rerun()


def _picked(names: list[str], last: str | None) -> str | None:
    """Return the command to show: the one in the address, or else the one that was adopted here last."""
    if not names:
        return None
    if (new := st.session_state.pop(_NEW, None)) in names or st.session_state.get(NAME, names[0]) not in names:
        st.session_state[NAME] = new or names[0]
    newest = last if NAME not in st.session_state else None
    return st.selectbox(
        "Adopted command", names, width=400, index=names.index(newest) if newest in names else 0, key=NAME, bind=QUERY,
        help="On this page or by `advisor adopt`.",
    )  # fmt: skip


def _plan(adopted: Adopted) -> tuple[AdoptedPlan | None, int | None]:
    """Draw the form for a goal, and the answer. Returns the plan if there is one, and the number of GPUs asked for."""
    # The fields are also in the address, so that a plan can be linked.
    options = options_of(AdoptedGoal)
    typed = plan_form.rows(_FIELDS, options=options, words=ADOPT, prefix="adopt_")
    try:
        typed["deadline"] = controls.typed_deadline(typed["deadline"])
        given = {name: value for name, value in typed.items() if value not in (None, "")}
        goal = filled(AdoptedGoal, read_options(given, options))
        if not workflow.can_be_planned(adopted, goal):
            st.info("State how long it trains: a deadline, a budget with a price, steps, tokens, samples or epochs.",
                    icon=":material/lightbulb:")  # fmt: skip
            return None, None
        plan = workflow.plan_adopted(adopted, goal)
    except AdvisorError as error:
        (st.warning if error.exit_code == 3 else st.error)(controls.error_words(error, ADOPT), icon=":material/block:")
        return None, None
    machine = f"{plan.offer.gpus} x {plan.offer.gpu}" if plan.offer.gpu != "cpu" else "this CPU"
    answer.frame(
        f"Run {adopted.name} for {format_count(plan.steps)} steps on {machine}",
        Limits(deadline_seconds=plan.max_seconds, budget_usd=plan.max_usd), plan.bill,
        {COST: plan.bill.cost_usd, TIME: plan.bill.wall_clock.total_seconds, STEP_TIME: plan.step_seconds,
         words.MEMORY[plan.memory_kind]: plan.memory_bytes},
        partial(_launch, plan), warnings=[in_controls(f"{text}.", ADOPT) for text in plan.warnings[:_ON_TOP]],
    )  # fmt: skip
    spec = find_gpu(plan.offer.gpu)
    name = words.MEMORY[plan.memory_kind].name
    answer.memory_bar(plan.memory_bytes, spec.memory_bytes if spec is not None else None, {}, name=name)
    return plan, goal.gpus


def _launch(plan: AdoptedPlan) -> None:
    """Draw what starts the run here or elsewhere, or its files for download."""
    with st.container():
        where = st.segmented_control(
            "Where", [name for name in PLACES if name != "SkyPilot"], default="this machine", required=True,
            key="adopted-where",
            help="Another machine must have its program, data and environment; the guard and the probe are copied.",
        )  # fmt: skip
        engine, requested, explained = PLACES[where]
        if where == FILES:
            needs = ExportOptions(**_there())
            # Offer the run as a zip of files for another engine.
            offer_files(
                list(COMMAND_TARGETS), lambda to: export_adopted(loaders.store(), plan, to, needs), plan.id,
                key="adopted-export", holds="The plan, the guard with its probe, and the job: unpack it there.",
                controls=ADOPT,
            )  # fmt: skip
            return
        name = st.text_input(requested, key=f"adopted-at-{engine}", help=explained).strip() if requested else ""
        there = _there() if requested else {}
        with st.container(horizontal=True):
            pressed = st.button("Launch it", type="primary", icon=":material/play_arrow:", key="launch-adopted")
            text, name_of_file = dump_adopted_plan(plan), f"{plan.trainer}-plan.yaml"
            about = "For `advisor launch` in a terminal."
            download("plan.yaml", text, name_of_file, "application/yaml", "download", about)
            link()
    if pressed:
        options = LaunchOptions(on=f"{engine}:{name}" if name else str(engine), **there)
        with st.spinner("starting it"):
            started = launching(loaders.store(), plan, options).start()
        st.session_state[WATCHED] = str(started.run_dir)
        st.session_state[WARNINGS] = str(started.run_dir), [in_controls(text, ADOPT) for text in started.warnings]
        go("watch")


def _there() -> dict[str, Any]:
    """Return what the command needs on another machine."""
    left, right = st.columns(2)
    line = left.text_input(
        "Bootstrap line", key="adopted-bootstrap", placeholder="source .venv/bin/activate",
        help="Shell line that prepares its environment there; it runs in the folder before the command.",
    )  # fmt: skip
    folder = right.text_input("Folder there", key="adopted-there", help="Its working folder there. Empty: as here.")
    return {"bootstrap": line.strip() or None, "folder": folder.strip() or None}
