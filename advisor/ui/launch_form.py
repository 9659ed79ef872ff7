"""The upper half of the page Launch and watch: reviews a plan, starts it here or elsewhere, or offers its files."""

from __future__ import annotations

import datetime
import io
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import streamlit as st

from advisor.engines.engines import parse_place
from advisor.engines.export.targets import TARGETS
from advisor.engines.guards import NO_DATA, GuardLimits, parse_loss_stop, with_limits_of
from advisor.engines.jobs import running_with
from advisor.errors import AdvisorError
from advisor.hardware.offers import offers_by_provider
from advisor.options import Goal
from advisor.planning.explore import chances
from advisor.planning.warn import NOT_MEASURED, REPEATED
from advisor.records import Bill, Plan
from advisor.report.gpu_rows import OFFER_NUMBERS, offer_rows
from advisor.report.plan import device, sentence
from advisor.report.quantities import COST, LOSS, TIME
from advisor.report.table import capital
from advisor.store.plan_files import dump_plan, load_plan
from advisor.ui import loaders, plan_answers
from advisor.ui.controls import (
    LAUNCH,
    SPEED_TEST,
    distinct,
    download,
    escaped,
    go,
    in_controls,
    products,
    table,
    to_address,
)
from advisor.units import HOUR, format_percent
from advisor.workflows.export import Exported, export
from advisor.workflows.launch import HERE, launch, looked_at, with_synthetic
from advisor.workflows.plan import recommend
from advisor.workflows.preflight import Check, Readiness, preflight
from trainer.schema import dump_config

PLAN_KEY = "plan-to-launch"  # session state: path of the plan that came from the Plan page
PLAN_ADDRESS = "launch"  # in the address: the plan's file
WATCHED = "watched"  # session state: the run folder that is shown
WARNINGS = "launch-warnings"  # session state: the run that was started last, and the warnings about it
BUSY = "launch-busy"  # session state: the run that was started last, and the check of a busy machine before it
_CHECKED = "launch-checked"  # session state: what another place was asked, and what it answered
MOST_PLANS = 20
LOOK_AGAIN_SECONDS = 5.0
SURE = 0.9  # a limit that is kept with a higher chance than this is not mentioned
FILES = "as files"
_RANDOM = "none: random tokens, a speed test"
# the name of a place on this page: the engine's name, what the engine asks for, and an explanation
PLACES = {
    "this machine": ("local", None, ""),
    "ssh": ("ssh", "Host", "As ssh knows it: gpu-box, or me@203.0.113.7. Needs Python there, and rsync on both sides."),
    "Slurm": ("slurm", "Partition", "Empty: the cluster's default. This machine must have sbatch."),
    "SkyPilot": ("skypilot", "Clouds", "As aws/us-east-1,gcp. Empty: wherever it is cheapest. Needs SkyPilot set up."),
    FILES: (None, None, ""),
}


def chosen_plan() -> Plan | None:
    """Return the plan to launch: the one from the page Plan, or one that the user selects."""
    folder = loaders.store().home / "plans"
    saved = sorted(folder.glob("*.yaml"), key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_PLANS]
    if not saved:
        st.caption("Plan to launch: none yet. Make one on the page Plan.")
        return None
    names = [path.name for path in saved]
    handed = Path(st.session_state.get(PLAN_KEY) or st.query_params.get(PLAN_ADDRESS, "")).name
    titles = distinct({path.name: _title(str(path), path.stat().st_mtime_ns) for path in saved})
    name = st.selectbox(
        "Plan to launch", names, index=names.index(handed) if handed in names else None, key=_picker(),
        format_func=titles.__getitem__, placeholder="choose a plan",
        help=f"The newest {MOST_PLANS} plans that were saved on the page Plan.",
    )  # fmt: skip
    to_address(PLAN_ADDRESS, name)
    return load_plan(saved[names.index(name)]) if name else None


def _picker() -> str:
    """Return the key of the control with the plans, which begins anew when a plan is handed over or started."""
    started, _ = st.session_state.get(WARNINGS, ("", ()))
    return f"{PLAN_KEY}-{st.session_state.get(PLAN_KEY)}-{started}"


def put_aside() -> None:
    """Choose no plan any more, because a run is to be watched."""
    st.session_state.pop(PLAN_KEY, None)
    st.session_state[_picker()] = None
    to_address(PLAN_ADDRESS, None)


@st.cache_data(max_entries=256, show_spinner=False)
def _title(path: str, stamped: int) -> str:
    """Return a line that begins with what distinguishes this plan from others, because long ones are cut."""
    del stamped  # only part of the cache key
    try:
        plan = load_plan(Path(path))
    except AdvisorError as error:
        return f"{Path(path).name}: {error.message}"
    cost = f", {COST.expected(plan.chosen.cost_usd)}" if plan.chosen.cost_usd and plan.offer.usd_per_hour else ""
    data, planned = plan.config.data.path, datetime.datetime.fromisoformat(plan.created).astimezone()
    time, tokens = TIME.expected(plan.chosen.total_seconds), Path(data).name if data else "no data"
    size = f"depth {plan.chosen.depth}"
    return f"{time} on {products(device(plan))}{cost}, {tokens}, {planned:%H:%M on %d %b}, {size}"


def form(plan: Plan) -> bool:
    """Review the plan, ask where it runs and when it must stop, and start it. Returns True if it runs already."""
    known = plan.warnings
    if plan.config.data.path is None and not plan.config.data.synthetic:
        plan = _with_data(plan)
    st.markdown(f"**{escaped(products(sentence(plan, briefly=True)))}**")
    running = running_with(loaders.store(), plan.id)
    if running is not None:
        if st.session_state.get(WATCHED) != str(running):
            st.session_state[WATCHED] = str(running)
            st.rerun()
        st.info(f"This plan is running already: `{running.name}`. It is shown below.", icon=":material/play_circle:")
        return True
    notes = [warning for warning in plan.warnings if not warning.startswith((NOT_MEASURED, NO_DATA))]
    if any(warning.startswith(NOT_MEASURED) for warning in plan.warnings):
        _measure(plan)
    for note in notes:
        if note not in known:  # it comes from the data; the page Plan has shown the others
            words = in_controls(capital(products(note)), LAUNCH)
            if note.startswith(REPEATED):
                st.warning(words, icon=":material/warning:")
            else:
                st.caption(f":material/info: {words}")
    with st.expander("The full configuration"):
        st.markdown(escaped(products(sentence(plan))))
        for note in (note for note in notes if note in known):
            st.caption(f":material/info: {in_controls(capital(products(note)), LAUNCH)}")
        left, right = st.columns(2)
        left.caption("run.yaml: the trainer's configuration")
        left.code(dump_config(plan.config), language="yaml", height=380)
        right.caption("plan.yaml: the predictions and their sources")
        right.code(dump_plan(plan), language="yaml", height=380)
    # The plan cannot run here only if GPUs are missing.
    checks = _checks_here(str(loaders.store().home), plan.id, plan)
    lacking = "; ".join(check.words for check in checks if check.of == "card" and check.finding is Readiness.MISSING)
    if lacking:
        # Say that the plan cannot run here, and who rents the GPU.
        workload, today = plan.workload, datetime.date.today()
        st.info(f"It cannot run on this machine: {escaped(products(lacking))}. Elsewhere:", icon=":material/dns:")
        if rows := offer_rows(offers_by_provider(workload.gpu, workload.gpus), today):
            with st.expander(f"Who rents {workload.gpus} x {products(workload.gpu)}, and how old the prices are"):
                table(rows, right=OFFER_NUMBERS)
    offered = [name for name in PLACES if not (lacking and name == "this machine")]
    where = st.segmented_control(
        "Where", offered, default=FILES if lacking else "this machine", required=True, key="launch-where",
        help="A machine of yours by ssh, a cluster's queue, a rented one, or files that run without this program.",
    )  # fmt: skip
    if where == FILES:
        # Offer the job's files for another engine.
        if plan.config.data.synthetic:
            st.warning("These files run a speed test on random tokens.", icon=":material/casino:")
        holds = "All files of the run except its data: unpack it there."
        limits = _guard(plan)
        offer_files(list(TARGETS), lambda to: export(plan, to, limits), plan.id, key="launch-export", holds=holds)
        st.caption("Copy the run's folder back, then compare it with the plan: `advisor runs --import FOLDER`.")
    else:
        _start(plan, where, checks)
    return False


def _with_data(plan: Plan) -> Plan:
    """Ask on what a plan without data trains. Returns it planned again for these data, or as a test of the speed."""
    folders = loaders.token_folders()
    loaders.take_folder(f"launch-data-{plan.id}", folders)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        folder = st.selectbox(
            "Data", [*folders, _RANDOM], key=f"launch-data-{plan.id}", accept_new_options=True,
            format_func=lambda path: folders.get(path, path), help="Prepared on the page Data, or a folder's path.",
        )  # fmt: skip
        if st.button("Prepare data…", icon=":material/add:", help="Your own text, or a small corpus made here."):
            go("data")
    if folder == _RANDOM:
        st.caption("Random tokens take as long and cost as much as data. Their loss says nothing about text.")
        return with_synthetic(plan, True)
    # The vocabulary is now that of the data's tokenizer. A run of a given size is planned whatever its limits.
    data, goal = str(Path(folder).expanduser().resolve()), plan.goal
    if goal.tokens is not None:
        goal = replace(goal, budget_usd=None, deadline_seconds=None)
    goal = replace(goal, data=data, data_tokens=None, download_bytes_per_second=None, vocab_size=None)
    planned = with_limits(plan_answers.plan(goal, plan_answers.world(goal)), plan.goal)
    changes = [
        f"{quantity.name} {quantity.of(after)}"
        + (f" instead of {old}" if (old := quantity.expected(before)) != quantity.expected(after) else ", as before")
        for quantity, before, after in (
            (LOSS, plan.chosen.loss, planned.chosen.loss),
            (TIME, plan.chosen.total_seconds, planned.chosen.total_seconds),
        )
        if before or after
    ]
    st.caption(f"Planned again for these data: {escaped(', '.join(changes))}.")
    return planned


def _measure(plan: Plan) -> None:
    """Offer to train a few steps of a size that was not measured here, and then plan again."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f":material/info: {capital(NOT_MEASURED)}.", width="content")
        wanted = st.button("Measure it", icon=":material/speed:", key="launch-measure", help="Trains a few seconds.")
    if wanted:
        with st.spinner("training for a few seconds with this configuration"):
            measured = recommend(plan.goal, loaders.store(), measure=True)
        st.session_state[PLAN_KEY] = str(loaders.store().save_plan(with_limits(measured, plan.goal)))
        st.rerun()


def with_limits(plan: Plan, requested: Goal) -> Plan:
    """Return a plan with the limits of its search, because a plan made from one of its other runs has no limits."""
    limits = {name: getattr(requested, name) for name in ("budget_usd", "deadline_seconds", "deadline_at")}
    return replace(plan, goal=replace(plan.goal, **limits))


@st.cache_data(ttl=LOOK_AGAIN_SECONDS, max_entries=16, show_spinner="looking at what the run needs here")
def _checks_here(home: str, plan_id: str, _plan: Plan) -> list[Check]:
    """Return the checks of what the run needs on this machine."""
    del home, plan_id  # only part of the cache key
    return preflight(loaders.store(), _plan, HERE)


def _start(plan: Plan, where: str, here: list[Check]) -> None:
    """Draw the limits, what is there and what is missing, and the button. Another place is asked first."""
    engine, requested, explained = PLACES[where]
    name = st.text_input(requested, key=f"launch-at-{engine}", help=explained).strip() if requested else ""
    busy = None if requested else next((check for check in here if check.seconds is not None), None)
    above, limits = st.container(), _guard(plan, busy)
    store, place, checks = loaders.store(), HERE, here
    if requested:
        question = (plan.id, engine, name, limits)
        if st.button("Check that machine", icon=":material/fact_check:", key="launch-check"):
            place = parse_place(f"{engine}:{name}" if name else str(engine))
            with st.spinner(f"asking {where}"):
                st.session_state[_CHECKED] = (question, place, looked_at(store, plan, place, limits))
        answered, place, checks = st.session_state.get(_CHECKED, (None, HERE, []))
        checks = checks if answered == question else []
    # Show first what is missing and what to note, then in one line what is there. That it has no data is said above.
    shown = [check for check in checks if check.of != "data" or not plan.config.data.synthetic]
    kinds = {Readiness.MISSING: (above.error, ":material/block:")}
    kinds[Readiness.WARNING] = (above.warning, ":material/warning:")
    for finding, (draw, icon) in kinds.items():
        for check in (check for check in shown if check.finding is finding):
            draw(f"{capital(check.of)}: {in_controls(check.words, LAUNCH)}", icon=icon)
    if fine := [check for check in shown if check.finding is Readiness.FINE]:
        details = "\n".join(f"- {capital(check.of)}: {escaped(check.words)}" for check in fine)
        st.caption(f":material/check_circle: Ready: {', '.join(check.of for check in fine)}", help=details)
    ready = bool(checks) and not any(check.finding is Readiness.MISSING for check in checks)
    label = SPEED_TEST if plan.config.data.synthetic else "Launch"
    kind: Literal["primary", "secondary"] = "secondary" if plan.config.data.synthetic else "primary"
    if not st.button(label, type=kind, icon=":material/play_arrow:", disabled=not ready, key="launch-now"):
        return
    with st.spinner("starting it"):
        handle = launch(store, plan, limits=limits, place=place)
    noted = [capital(check.words) for check in checks if check.finding is Readiness.WARNING and check != busy]
    st.session_state[BUSY] = str(handle.run_dir), busy
    warnings = [in_controls(warning, LAUNCH) for warning in (*noted, *handle.warnings)]
    st.session_state[WARNINGS] = str(handle.run_dir), warnings
    st.session_state[WATCHED] = str(handle.run_dir)
    st.session_state.pop(PLAN_KEY, None)  # the run has started, and from now on the page shows it
    to_address(PLAN_ADDRESS, None)
    st.rerun()


def _guard(plan: Plan, busy: Check | None = None) -> GuardLimits:
    """Return when the run must stop. The defaults are the budget and deadline with which it was planned.

    The odds that a limit stops it count what other programs cost, if these make the machine `busy`.
    """
    key, deadline = f"guard-hours-{plan.id}", with_limits_of(plan, GuardLimits()).max_hours
    if deadline is not None and plan.goal.deadline_at is not None:  # it comes nearer
        deadline = max(0.001, math.floor(1000 * deadline) / 1000)
    st.session_state.setdefault(key, deadline)
    columns, budget = st.container(key="pair-guard").columns(3), plan.goal.budget_usd
    usd = columns[0].number_input(
        LAUNCH["--budget"], min_value=0.0, value=budget if plan.offer.usd_per_hour else None, format="%.2f",
        key=f"guard-usd-{plan.id}", disabled=not plan.offer.usd_per_hour,
        placeholder=None if plan.offer.usd_per_hour else "this machine costs nothing",
        help="Stops with a checkpoint. Needs a price. Empty: no limit.",
    )  # fmt: skip
    hours = columns[1].number_input(
        LAUNCH["--deadline"], min_value=0.0, value=None, format="%.3g", key=key,
        help="Stops with a checkpoint; it can be resumed later. Empty: no limit.",
    )  # fmt: skip
    too_high = columns[2].text_input(
        "Stop if the loss is too high (step:loss)", placeholder="500:4.2", key=f"guard-loss-{plan.id}",
        help="Compares the training loss so far, as it is shown while the run continues, from that step on.",
    )  # fmt: skip
    goal = replace(plan.goal, budget_usd=usd or None, deadline_seconds=hours * HOUR if hours else None)
    for limit, chance in chances(goal, _slowed(plan.bill, busy)).items():
        if chance is None or chance >= SURE:
            continue
        with st.container(horizontal=True, vertical_alignment="center"):
            likely, beside = (
                format_percent(min(0.99, round(1 - chance, 2))),
                " beside the other programs" if busy else "",
            )
            st.caption(
                f":material/casino: {likely} chance that the {limit} stops it before its end{beside}; it then keeps a "
                "checkpoint.",
                width="content",
            )
            if busy is not None and limit == "deadline":
                unlimited: dict[str, Any] = {"on_click": st.session_state.update, "args": ({key: None},)}
                st.button("No time limit", icon=":material/timer_off:", key="launch-no-limit", **unlimited)
    loss = [parse_loss_stop(too_high)] if too_high else []
    return GuardLimits(max_usd=usd or None, max_hours=hours or None, loss=loss, from_plan=False)


def _slowed(bill: Bill, busy: Check | None) -> Bill:
    """Return the bill of a run that other programs slow, with the time of that check of the machine."""
    if busy is None or busy.seconds is None:
        return bill
    slower = busy.seconds.value / bill.wall_clock.total_seconds.value
    cost = bill.cost_usd.scaled(slower) if bill.cost_usd else None
    return replace(bill, wall_clock=replace(bill.wall_clock, total_seconds=busy.seconds), cost_usd=cost)


def offer_files(
    targets: Sequence[str], made_for: Callable[[str], Exported], name: str, *, key: str, holds: str,
    controls: Mapping[str, str] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Offer the job for an engine as a zip, and show what to type where it is unpacked."""
    archived = io.BytesIO()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        to = st.selectbox("For", targets, key=key, help="A plain script, a cluster's job, or a cloud's task.")
        made = made_for(to)
        with zipfile.ZipFile(archived, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, text in made.files.items():
                archive.writestr(file, text)
        zipped = archived.getvalue()
        download("Download", zipped, f"{name}-{to}.zip", "application/zip", "folder_zip", holds, type="primary")
    for warning in made.warnings:
        st.caption(f":material/warning: {in_controls(warning, controls)}")
    st.code("\n".join(made.steps), language="bash", wrap_lines=True)
