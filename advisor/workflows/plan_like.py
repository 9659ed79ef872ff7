"""Plans again what a saved plan wants, on this machine as it was measured and within what is left of the limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.calibration.remeasure import ChoiceDoesNotRunError
from advisor.engines.export.bundle import PLAN_AFTER
from advisor.errors import AdvisorError
from advisor.hardware.here import device_key
from advisor.options import CalibrationOptions, LaunchOptions
from advisor.planning.answer import remaining_goal, same_work
from advisor.planning.command import calibrate_command
from advisor.records import Plan
from advisor.store.run_folder import PLAN
from advisor.store.store import Store
from advisor.units import format_count, format_percent, format_seconds
from advisor.workflows.plan import profile_for, recommend

CALIBRATION_SECONDS = 110.0  # at most
LEAST_SECONDS = 50.0  # a shorter calibration is not reliable
PLANNING_SECONDS = 20  # that planning takes, with a few seconds in which the new choice is measured


def plan_like(
    plan: Plan,
    store: Store,
    *,
    spent: float | None = None,
    may_change: str | None = None,
    stop_if_over: float | None = None,
    measure: bool = False,
    on_text: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Returns a plan for the goal of a plan by this machine's calibration; its id, name, data and price stay.

    `spent` seconds are used up of its limits. `may_change` ("depth") frees the model as far as the goal left it open.
    Raises AdvisorError: exit code 3 if the goal cannot be met here, or takes longer than planned by more than
    `stop_if_over`; 1 if this machine has no calibration that can be used.
    """
    key = "cpu" if plan.workload.gpu == "cpu" else device_key("auto")
    if key == "cpu" and plan.workload.gpu != "cpu":
        hint = "plan for what is here: advisor plan"
        raise AdvisorError(f"the plan is for {plan.workload.gpu}, and this machine has no GPU", hint)
    spent, own = spent or 0.0, {entry.id for entry in store.list_calibrations() if not entry.shipped}
    if profile_for(plan.goal, key, store).calibration_id not in own:
        message = f"no calibration of this machine's {key} can be used"
        raise AdvisorError(message, f"measure it: advisor calibrate --gpu {key}")
    if stop_if_over is not None:
        whole = recommend(same_work(plan, key), store, brief=True).chosen.total_seconds.value + spent
        if (over := whole / plan.chosen.total_seconds.value - 1) > stop_if_over:
            message = f"the planned work takes {format_percent(over)} more than planned here"
            allowed = f"{message}, and {format_percent(stop_if_over)} more was allowed"
            raise AdvisorError(allowed, "allow more, or plan again: advisor plan", exit_code=3)
    goal = remaining_goal(plan, key, spent_seconds=spent, may_change_depth=may_change == "depth")
    if goal.deadline_at is not None:
        left = datetime.fromisoformat(goal.deadline_at) - datetime.now(UTC)
        goal = replace(goal, deadline_seconds=left.total_seconds())
    if any(left is not None and left <= 0 for left in (goal.budget_usd, goal.deadline_seconds)):
        raise AdvisorError("nothing is left of the plan's limits", "plan again: advisor plan", exit_code=3)
    try:
        after = recommend(goal, store, measure=measure, on_text=on_text)
    except ChoiceDoesNotRunError:
        if goal.micro_batch is not None:
            raise
        after = recommend(replace(goal, micro_batch=max(1, plan.config.micro_batch // 2)), store)
    old = plan.config
    gates = tuple(gate for gate in old.stop.gates if gate.step <= after.config.steps)
    stop = replace(old.stop, gates=gates, step_seconds=after.chosen.step_seconds.value)
    run = replace(after.config, name=old.name, seed=old.seed, data=old.data, init_from=old.init_from, stop=stop,
                  trace_steps=old.trace_steps)  # fmt: skip
    offer = replace(after.offer, usd_per_hour=plan.offer.usd_per_hour)
    before, now = (f"{format_count(one.steps)} steps in {format_seconds(one.total_seconds.value)}"
                   for one in (plan.chosen, after.chosen))  # fmt: skip
    on_text(f"planned again: {now} instead of {before}")
    return replace(after, id=plan.id, run=run, chosen=replace(after.chosen, offer=offer))


def calibration_for(plan: Plan, *, may_change: str | None = None) -> CalibrationOptions:
    """Returns the options that calibrate a machine for a plan, in a tenth of its time, but in one to two minutes.

    They measure the planned depth and a smaller one, or depths around it if the depth may change.
    """
    config, depth, total = plan.config, plan.workload.shape.depth, plan.bill.wall_clock.total_seconds.value
    half = max(1, depth // 2)
    return CalibrationOptions(
        gpu="cpu" if plan.workload.gpu == "cpu" else "auto",
        family=config.model.family,
        depths=tuple(dict.fromkeys((half, depth, depth + half) if may_change else (half, depth))),
        seq_len=config.model.seq_len,
        vocab_size=config.model.vocab_size,
        data=None if config.data.path is None else Path(config.data.path),
        precision=plan.workload.precision,
        compile=config.compile,
        activation_checkpointing=config.activation_checkpointing,
        optimizer=config.optimizer.name,
        budget_seconds=min(CALIBRATION_SECONDS, max(LEAST_SECONDS, total / 10)),
        price=plan.offer.usd_per_hour,
        fresh=True,
    )


def commands_first(plan: Plan, options: LaunchOptions) -> tuple[str, str]:
    """Returns the commands of `advisor`, quoted for a shell, by which a job measures its machine and plans again."""
    words = f'plan --like {PLAN} --out "$RUN/{PLAN_AFTER}" --spent "$((SECONDS + {PLANNING_SECONDS}))s"'
    words += " --measure" if plan.workload.gpus == 1 else ""
    words += "" if options.may_change is None else f" --may-change {options.may_change}"
    words += "" if options.stop_if_over is None else f" --stop-if-over {100 * options.stop_if_over:g}%"
    return calibrate_command(calibration_for(plan, may_change=options.may_change)), words


def measured_first(
    plan: Plan,
    options: LaunchOptions,
    store: Store,
    measure: Callable[[CalibrationOptions], Any],
    say: Callable[[str], None],
) -> Plan:
    """Calibrate this machine and return the plan made again, or the plan as it is if nothing could be measured.

    Raises AdvisorError (exit code 3) as `plan_like` does.
    """
    began, alone = time.monotonic(), plan.workload.gpus == 1
    try:
        measure(calibration_for(plan, may_change=options.may_change))
        spent = time.monotonic() - began + PLANNING_SECONDS
        return plan_like(plan, store, spent=spent, may_change=options.may_change,
                          stop_if_over=options.stop_if_over, measure=alone, on_text=say)  # fmt: skip
    except AdvisorError as error:
        if error.exit_code == 3:
            raise
        say(f"{error.message}; the plan stays")
        return plan
