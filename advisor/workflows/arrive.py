"""Calibrates the machine that will train, plans again within the same limits, and decides whether to start.

A job elsewhere calls `python -m advisor.workflows.arrive ARRIVING RUN` in its folder before the first step of a run,
or with a file of options in place of ARRIVING for a calibration alone. Exit status 0: go on, bundle.STOPS: do not. A
second start of the job measures nothing again: its seconds are an attempt in the run's budget from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from advisor.calibration.quality import quality_of
from advisor.calibration.remeasure import ChoiceDoesNotRunError, measure_one
from advisor.calibration.session import NothingMeasuredError
from advisor.engines.arrival import CALIBRATION, PLAN_AFTER, PLAN_BEFORE, RECORD, goes_on_with, read_arrival
from advisor.engines.export.bundle import CONFIG_AFTER, STOPS
from advisor.engines.guards import limit_seconds
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions, Goal
from advisor.planning.answer import remaining_goal, same_work
from advisor.records import Plan
from advisor.run_records import ArrivalRecord, Arriving, Place
from advisor.store.calibration import Calibration, Verdict, calibration_to_dict
from advisor.store.disk import disk_errors, dump_yaml, read_json, write_atomic
from advisor.store.folders import profiles_folder
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import PLAN, read_run_config
from advisor.store.store import Store
from advisor.units import format_percent
from advisor.workflows.calibrate import Calibrated, calibrate, options_for
from advisor.workflows.plan import recommend
from trainer.budget import Attempt, Spent, read_spent, write_spent
from trainer.schema import dump_config, to_dict

CALIBRATION_SECONDS = 120.0  # at most; at the end the chosen configuration itself is measured
_SHARE = 0.1  # share of the planned time: a short run does not justify a long calibration
LEAST_SECONDS = 60.0  # a shorter calibration is not reliable
_CHOICE_SECONDS = 10.0
_LONGEST = 1.5  # times the allowed seconds: an interrupted calibration has used no more
_AS_PLANNED = 0.02  # share by which a machine may be faster or slower and still be as planned
_NOT_HERE = "the planned configuration does not run here"
ALL_TAKEN = "the calibration took all that was given"
STORE = "store"  # folder in the job's folder elsewhere

Measure = Callable[[CalibrationOptions, Store], Calibrated]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The result of measuring a machine for a plan: the plan to go on with (None: do not start), and why."""

    after: Plan | None
    record: ArrivalRecord
    calibration: Calibration | None = None  # None: nothing could be measured

    def write(self, before: Plan, folder: Path) -> None:
        """Write what came of a plan to its run folder. The record comes last and makes the rest valid."""
        count(folder, self.record.seconds, before)
        with disk_errors("write the measurements on arrival to", folder):
            write_atomic(folder / PLAN_BEFORE, dump_plan(before))
            if self.calibration is not None:
                write_atomic(folder / CALIBRATION, dump_yaml(calibration_to_dict(self.calibration)))
            write_atomic(folder / RECORD, json.dumps(to_dict(self.record), indent=1) + "\n")


def count(folder: Path, seconds: float, plan: Plan) -> None:
    """Count the seconds of an arrival as the first attempt of the run in a folder."""
    attempt = Attempt(session="arrival", host=socket.gethostname(), began=time.time() - seconds,
                      seconds=round(seconds, 3), usd_per_hour=plan.offer.usd_per_hour, ended=True)  # fmt: skip
    with disk_errors("write the budget to", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_spent(folder, Spent(attempts=(attempt,)))


def is_unknown(plan: Plan, store: Store, place: Place = Place()) -> bool:  # noqa: B008 - frozen
    """Tells whether the plan uses no calibration of this store, and its run is long enough to calibrate first.

    Calibrations here say nothing of a CPU elsewhere, because all CPUs share one name.
    """
    if plan.grounds is None or plan.bill.wall_clock.total_seconds.value < LEAST_SECONDS / _SHARE:
        return False
    if place.engine != Place().engine and plan.workload.gpu == "cpu":
        return True
    return plan.grounds.calibration not in {entry.id for entry in store.list_calibrations()}


def calibration_seconds(plan: Plan) -> float:
    """Returns the seconds that a calibration on arrival may take: a tenth of the run, but one to two minutes."""
    return min(CALIBRATION_SECONDS, max(LEAST_SECONDS, _SHARE * plan.bill.wall_clock.total_seconds.value))


def arrive(plan: Plan, requested: Arriving, store: Store, measure: Measure = calibrate) -> Arrival:
    """Calibrate this machine for a plan, plan again within the remaining limits, and decide whether to continue.

    Raises AdvisorError if this machine does not have the planned device.
    """
    began = time.monotonic()
    arrival = _measured(plan, requested, store, measure)
    if arrival.record.device_key is not None:
        arrival = _decided(arrival, plan, requested, store, began)
    seconds = round(time.monotonic() - began, 2)
    return replace(arrival, record=replace(arrival.record, goes_on=arrival.after is not None, seconds=seconds))


def _measured(plan: Plan, requested: Arriving, store: Store, measure: Measure) -> Arrival:
    """Calibrate this machine, and on a single device also measure the planned configuration."""
    depth = plan.workload.shape.depth
    half = max(1, depth // 2)
    options = options_for(
        replace(plan.config, precision=plan.workload.precision),
        gpu="cpu" if plan.workload.gpu == "cpu" else "auto",
        # the planned depth and a smaller one, or depths around the chosen one if the depth is open
        depths=tuple(dict.fromkeys((half, depth, depth + half) if requested.may_change_depth else (half, depth))),
        budget_seconds=calibration_seconds(plan) - _CHOICE_SECONDS,
        price=plan.offer.usd_per_hour,
    )
    try:
        done = measure(options, store)
    except NothingMeasuredError as error:
        return unmeasured(plan, error.message)
    key, reason = done.profile.key, ""
    if plan.workload.gpus == 1:
        try:
            measure_one(done.profile, replace(plan.workload, gpu=key), store)
        except ChoiceDoesNotRunError:
            reason = _NOT_HERE
    calibration = store.load_calibration(done.calibration.id)
    arrival = unmeasured(plan, f"the calibration was rejected, {quality_of(calibration).reason}")
    if quality_of(calibration).verdict != Verdict.REJECTED:
        arrival = replace(arrival, record=replace(arrival.record, device_key=key, reason=reason))
    return replace(arrival, calibration=calibration, record=replace(arrival.record, calibration=calibration.id))


def unmeasured(plan: Plan, problem: str, seconds: float = 0.0) -> Arrival:
    """Returns an arrival without a measurement that can be used: the plan stays, but the time used still counts."""
    record = ArrivalRecord(seconds=round(seconds, 2), planned_step_seconds=plan.chosen.step_seconds, goes_on=True,
                           reason=f"{problem}; the plan stays")  # fmt: skip
    return Arrival(after=plan, record=record)


def _decided(arrival: Arrival, plan: Plan, requested: Arriving, store: Store, began: float) -> Arrival:
    """Predict the planned work on the machine that was measured, and plan again unless it exceeds too much."""
    record, key, same, over = arrival.record, str(arrival.record.device_key), None, None
    if not record.reason:  # else the planned configuration does not run here
        with contextlib.suppress(AdvisorError):  # it cannot be done here
            same = recommend(same_work(plan, key), store, brief=True).chosen
    if same is not None and arrival.calibration is not None:
        whole = same.total_seconds.value + arrival.calibration.cost.seconds
        over = whole / plan.chosen.total_seconds.value - 1
        record = replace(record, found_step_seconds=same.step_seconds, over=round(over, 4))
    if requested.stop_if_over is not None and (over is None or over > requested.stop_if_over):
        how = "cannot be done" if over is None else f"takes {format_percent(over)} more than planned"
        after, why = None, f"the planned work {how} here, and {format_percent(requested.stop_if_over)} more was allowed"
    else:
        spent = time.monotonic() - began
        goal = remaining_goal(plan, key, spent_seconds=spent, may_change_depth=requested.may_change_depth)
        if record.reason and goal.micro_batch is None:
            goal = replace(goal, micro_batch=max(1, plan.config.micro_batch // 2))
        after, why = _plan_again(plan, goal, store, over)
    return replace(arrival, after=after, record=replace(record, reason=why))


def _plan_again(plan: Plan, goal: Goal, store: Store, over: float | None) -> tuple[Plan | None, str]:
    """Returns the plan for the remaining limits (None: nothing fits) and the reason."""
    if any(left is not None and left <= 0 for left in (goal.budget_usd, goal.deadline_seconds)):
        return None, ALL_TAKEN
    try:
        after = recommend(goal, store)
    except AdvisorError as error:
        if error.exit_code != 3:
            raise
        return None, f"the goal can no longer be met: {error.message}"
    gates = tuple(gate for gate in plan.config.stop.gates if gate.step <= after.config.steps)
    stop = replace(after.config.stop, gates=gates, notice=plan.config.stop.notice)
    before, now = ((one.workload.shape, one.workload.micro_batch, one.steps) for one in (plan.chosen, after.chosen))
    speed = _NOT_HERE if over is None else "the machine is as fast as planned"
    if over is not None and abs(over) >= _AS_PLANNED:
        speed = f"the planned work takes {format_percent(abs(over))} {'more' if over > 0 else 'less'} here than planned"
    why = f"{speed}; {'the plan stays' if before == now else 'planned again within the same limits'}"
    return replace(after, id=plan.id, run=replace(after.config, stop=stop)), why


def arrive_there(job: Path, run: Path, requested: Arriving) -> ArrivalRecord:
    """Measure, plan again, and write the results to the run folder; raises AdvisorError for damaged files."""
    if (record := read_arrival(run)) is not None:
        return record
    plan, config = load_plan(job / PLAN), read_run_config(job)
    longest = _LONGEST * calibration_seconds(plan)
    if read_spent(run).attempts:
        arrival = unmeasured(plan, "its calibration was cut off and is not paid for again", longest)
    else:
        count(run, longest, plan)  # before measuring, because an interrupted one cannot report its time
        # The configuration names its tokens relative to the job's folder.
        data = config.data.path and str((job / config.data.path).resolve())
        goal, its_run = replace(plan.goal, data=plan.goal.data and data), replace(plan.config.data, path=data)
        try:
            arrival = arrive(replace(plan, goal=goal, run=replace(plan.config, data=its_run)), requested, _store(job))
        except AdvisorError as error:
            arrival = unmeasured(plan, error.message)
        seconds = round(max(arrival.record.seconds, time.time() - psutil.Process().create_time()), 2)
        arrival = replace(arrival, record=replace(arrival.record, seconds=seconds))
    most, after = limit_seconds(config.stop), arrival.after
    if after is not None and most is not None and arrival.record.seconds >= most:
        after, arrival = None, replace(arrival, record=replace(arrival.record, goes_on=False, reason=ALL_TAKEN))
    if after is not None:
        after, changed = goes_on_with(plan, after, config)
        write_atomic(run / CONFIG_AFTER, dump_config(changed))
        write_atomic(run / PLAN_AFTER, dump_plan(after))
    arrival.write(plan, run)
    return arrival.record


def _store(job: Path) -> Store:
    return Store(job / STORE, profiles_folder() / "calibrations")


def options_text(options: CalibrationOptions) -> str:
    """Returns the options of `calibrate` as text for another machine, which has no data or earlier measurements."""
    return json.dumps(asdict(replace(options, data=None, fresh=False)), indent=1) + "\n"


def calibrate_there(requested: Path, out: Path) -> None:
    """Measure this machine and write its calibration to a folder. Continues an interrupted calibration."""
    options = CalibrationOptions(**read_json(requested, "calibration's options"))
    done = calibrate(options, _store(requested.parent), on_event=lambda event: print(event.text, flush=True))
    with disk_errors("leave the calibration in", out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / CALIBRATION, dump_yaml(calibration_to_dict(done.calibration)))


def main() -> int:
    """Calibrate or arrive as a job requests, and print the result. The exit status tells whether to continue."""
    requested, out = sys.argv[1], Path(sys.argv[2]).resolve()
    try:
        if requested.endswith(".json"):
            calibrate_there(Path(requested).resolve(), out)
            return 0
        record = arrive_there(Path.cwd(), out, Arriving(**json.loads(requested)))
    except AdvisorError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    print(f"{'continues' if record.goes_on else 'stops on arrival'}: {record.reason}", file=sys.stderr)
    return 0 if record.goes_on else STOPS


if __name__ == "__main__":
    sys.exit(main())
