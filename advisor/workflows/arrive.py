"""Calibrates the machine that will train, plans again within the same limits, and decides whether to start."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.calibration.quality import quality_of
from advisor.calibration.remeasure import ChoiceDoesNotRunError, measure_one
from advisor.calibration.session import Event, NothingMeasuredError
from advisor.engines.arrival import CALIBRATION, PLAN_BEFORE, RECORD
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions, Goal
from advisor.planning.answer import bare_plan, same_work, what_is_left
from advisor.prediction.profile import Profile
from advisor.records import Plan
from advisor.run_records import ArrivalRecord, Arriving, Place
from advisor.store.calibration import Calibration, Settings, Verdict, calibration_to_dict
from advisor.store.disk import disk_errors, dump_yaml, write_atomic
from advisor.store.plan_files import dump_plan
from advisor.store.store import Store
from advisor.units import format_percent, format_seconds, format_usd
from advisor.workflows.calibrate import calibrate, options_for
from advisor.workflows.data import read_data
from advisor.workflows.plan import recommend
from trainer.schema import to_dict

CALIBRATION_SECONDS = 120.0  # at most; at the end the chosen configuration itself is measured
_SHARE = 0.1  # share of the planned time: a short run does not justify a long calibration
LEAST_SECONDS = 60.0  # a shorter calibration is not reliable
_CHOICE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The result of measuring a machine for a plan: the plan before and after (None: do not start), and why."""

    before: Plan
    after: Plan | None
    calibration: Calibration | None  # None: nothing could be measured
    seconds: float  # since arriving on the machine
    record: ArrivalRecord

    def write(self, folder: Path) -> None:
        """Write the previous plan, the calibration and the record of the arrival to the run folder."""
        with disk_errors("write what was learnt on arrival to", folder):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / PLAN_BEFORE, dump_plan(self.before))
            if self.calibration is not None:
                write_atomic(folder / CALIBRATION, dump_yaml(calibration_to_dict(self.calibration)))
            write_atomic(folder / RECORD, json.dumps(to_dict(self.record), indent=1) + "\n")


def is_unknown(plan: Plan, store: Store, place: Place = Place()) -> bool:  # noqa: B008 - frozen
    """Tells whether the plan uses no calibration of this store, and its run is long enough to calibrate first.

    Calibrations here say nothing of a CPU elsewhere, because all CPUs share one name.
    """
    if plan.grounds is None or plan.bill.wall_clock.total_seconds.value < LEAST_SECONDS / _SHARE:
        return False
    if place.engine != Place().engine and plan.workload.gpu == "cpu":
        return True
    return plan.grounds.calibration not in {entry.id for entry in store.list_calibrations()}


def arrive(
    plan: Plan,
    store: Store,
    asked: Arriving = Arriving(),  # noqa: B008 - frozen
    *,
    seconds: float | None = None,
    on_start: Callable[[Settings], None] = lambda settings: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Arrival:
    """Calibrate this machine for a plan, plan again with what is left of the limits, and decide whether to go on.

    `seconds` limits the calibration. Raises AdvisorError if this machine does not have the planned device.
    """
    began = time.monotonic()
    # Calibrate at the planned depth and a smaller one, or at depths around the chosen one if the depth is open.
    depth = plan.workload.shape.depth
    half = max(1, depth // 2)
    options = options_for(
        replace(plan.run, precision=plan.workload.precision),
        gpu="cpu" if plan.workload.gpu == "cpu" else "auto",
        depths=tuple(dict.fromkeys((half, depth, depth + half) if asked.may_change_depth else (half, depth))),
        budget_seconds=(seconds or calibration_seconds(plan)) - _CHOICE_SECONDS,
        price=plan.offer.usd_per_hour,
    )
    profile, calibration, problem = _measure(plan, options, store, on_start, on_event)
    choice_runs = not problem
    same = over = None
    if profile is not None and calibration is not None and choice_runs:
        # Predict the planned work on this machine, if it can do it.
        meta = read_data(None if plan.goal.data is None else Path(plan.goal.data))
        with contextlib.suppress(AdvisorError):
            same = bare_plan(same_work(plan, profile.key), profile, now=datetime.now(UTC), data_meta=meta)
            over = _over(plan, same, calibration)
    if profile is None:
        after, why = plan, f"{problem}; the plan stays"
    elif asked.stop_if_over is not None and (over is None or over > asked.stop_if_over):
        how = "cannot be done" if over is None else f"takes {format_percent(over)} more than planned"
        after, why = None, f"the planned work {how} here, and {format_percent(asked.stop_if_over)} more was allowed"
    else:
        spent = time.monotonic() - began
        goal = what_is_left(plan, profile.key, spent_seconds=spent, may_change_depth=asked.may_change_depth)
        if not choice_runs and goal.micro_batch is None:
            goal = replace(goal, micro_batch=max(1, plan.run.micro_batch // 2))
        after, why = _plan_again(plan, goal, store, over)
    took = time.monotonic() - began
    record = ArrivalRecord(
        calibration=calibration.id if calibration is not None else None,
        device_key=profile.key if profile is not None else None,
        seconds=round(took, 2),
        planned_step_seconds=plan.chosen.step_seconds,
        found_step_seconds=same.chosen.step_seconds if same else None,
        over=None if over is None else round(over, 4),
        goes_on=after is not None,
        reason=why,
    )
    return Arrival(before=plan, after=after, calibration=calibration, seconds=took, record=record)


def arrive_to_start(
    plan: Plan,
    asked: Arriving,
    store: Store,
    on_start: Callable[[Settings], None] = lambda settings: None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Arrival:
    """Calibrate this machine and plan again before a launch; AdvisorError (exit 3) if the run should not start."""
    arrival = arrive(plan, store, asked, on_start=on_start, on_event=on_event)
    if arrival.after is None:
        hint = "plan again with the measurements: advisor plan; or launch it as it is: --no-calibrate"
        raise AdvisorError(f"not started: {arrival.record.reason}", hint, exit_code=3)
    return arrival


def calibration_seconds(plan: Plan) -> float:
    """Returns the seconds that a calibration on arrival may take: a tenth of the run, but one to two minutes."""
    return min(CALIBRATION_SECONDS, max(LEAST_SECONDS, _SHARE * plan.bill.wall_clock.total_seconds.value))


def _measure(
    plan: Plan,
    options: CalibrationOptions,
    store: Store,
    on_start: Callable[[Settings], None],
    on_event: Callable[[Event], None],
) -> tuple[Profile | None, Calibration | None, str]:
    """Calibrate this machine, and on a single device also measure the planned configuration.

    The third value is "" or a problem: without a profile, why the measurements are not used; with a profile, that the
    planned configuration does not run.
    """
    try:
        done = calibrate(options, store, on_start, on_event)
    except NothingMeasuredError as error:
        return None, None, error.message
    profile, problem = done.profile, ""
    if plan.workload.gpus == 1:
        try:
            profile = measure_one(profile, replace(plan.workload, gpu=profile.key), store)
        except ChoiceDoesNotRunError:
            problem = "the planned configuration does not run here"
    calibration = store.load_calibration(done.calibration.id)
    quality = quality_of(calibration)
    if quality.verdict == Verdict.REJECTED:
        return None, calibration, f"the calibration was rejected, {quality.reason}"
    return profile, calibration, problem


def _over(plan: Plan, same: Plan, calibration: Calibration) -> float:
    """Returns the share by which the planned work plus calibration exceed the planned cost (or the time, if free)."""
    planned, found = plan.chosen, same.chosen
    if planned.cost_usd is not None and found.cost_usd is not None and planned.cost_usd.value > 0:
        return (found.cost_usd.value + (calibration.cost.usd or 0.0)) / planned.cost_usd.value - 1
    total = found.total_seconds.value + calibration.cost.seconds
    return total / planned.total_seconds.value - 1


def _plan_again(plan: Plan, goal: Goal, store: Store, over: float | None) -> tuple[Plan | None, str]:
    """Returns the plan for the remaining limits (None: nothing fits) and the reason."""
    if any(left is not None and left <= 0 for left in (goal.budget_usd, goal.deadline_seconds)):
        return None, "the calibration took all that was given"
    try:
        after = recommend(goal, store)
    except AdvisorError as error:
        if error.exit_code != 3:
            raise
        return None, f"the goal can no longer be met: {error.message}"
    gates = tuple(gate for gate in plan.run.stop.gates if gate.step <= after.run.steps)
    stop = replace(after.run.stop, gates=gates, notice=plan.run.stop.notice)
    return replace(after, id=plan.id, run=replace(after.run, stop=stop)), _why(plan, after, over)


def _why(plan: Plan, after: Plan, over: float | None) -> str:
    if over is None:
        speed = "the planned configuration does not run here"
    elif abs(over) < 0.02:
        speed = "the machine is as fast as planned"
    else:
        speed = f"the planned work takes {format_percent(abs(over))} {'more' if over > 0 else 'less'} here than planned"
    before, now = plan.chosen, after.chosen
    same = before.workload.shape == now.workload.shape and before.steps == now.steps
    if same and before.workload.micro_batch == now.workload.micro_batch:
        return f"{speed}; the plan stays"
    limits = [format_usd(plan.goal.budget_usd)] if plan.goal.budget_usd is not None else []
    limits += [format_seconds(plan.goal.deadline_seconds)] if plan.goal.deadline_seconds is not None else []
    within = f" within {' and '.join(limits)}" if limits else ""
    return f"{speed}; planned again{within}"
