"""Reads and applies the measurements that a run's job made on its machine and left in the run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advisor.engines.guards import Limits, guarded, make_guards, with_limits_of
from advisor.errors import AdvisorError
from advisor.hardware.here import cpu_name
from advisor.records import Plan
from advisor.run_records import ArrivalRecord, LaunchRecord
from advisor.store.calibration import Calibration
from advisor.store.disk import bad_fields, read_json, write_atomic
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import (
    CONFIG,
    LOG,
    PLAN,
    read_launch,
    read_run_config,
    write_launch,
)
from advisor.store.store import Store, load_calibration
from advisor.units import HOUR
from trainer.schema import ConfigError, RunConfig, dump_config, record_from_dict

PLAN_BEFORE, PLAN_AFTER, RECORD, CALIBRATION = "plan-before.yaml", "plan-after.yaml", "arrival.json", "calibration.yaml"
ARRIVAL_FILES = (PLAN_AFTER, CALIBRATION, RECORD)  # these files come home from the machine


def what_remains(plan: Plan, seconds: float, limits: Limits) -> Limits:
    """Return the limits that are left after the arrival."""
    limits, price = with_limits_of(plan, limits), plan.offer.usd_per_hour
    usd, hours = limits.max_usd, limits.max_hours
    return replace(
        limits,
        max_usd=usd - price * seconds / HOUR if usd is not None and price else usd,
        max_hours=None if hours is None else hours - seconds / HOUR,
        from_plan=False,  # what is left is of the plan's limits already
    )


def goes_on_with(before: Plan, after: Plan, config: RunConfig, seconds: float) -> RunConfig:
    """Return the configuration with which a run continues after its arrival: the new plan's, under tighter limits.

    Raises AdvisorError if the arrival has used up the limits.
    """
    stop = config.stop
    hours = None if stop.max_seconds is None else stop.max_seconds / HOUR
    asked = Limits(max_usd=stop.max_usd, max_hours=hours, from_plan=False)  # the job had them from its plan
    left = what_remains(before, max(0.0, seconds), asked)
    if any(most is not None and most <= 0 for most in (left.max_usd, left.max_hours)):
        raise AdvisorError("the calibration took all that was given", "plan with more: advisor plan")
    stop = replace(stop, max_usd=None, max_seconds=None, gates=after.run.stop.gates)
    run = replace(after.run, data=config.data, name=config.name, stop=stop)
    price = before.offer.usd_per_hour
    guards = make_guards(run, left, usd_per_hour=price)
    return guarded(run, guards, usd_per_hour=price, step_seconds=after.chosen.step_seconds.value)


def read_arrival(run_dir: Path) -> ArrivalRecord | None:
    """Read the machine's answer to the plan. Returns None if there is none yet."""
    path = run_dir / RECORD
    if not path.exists():
        return None
    try:
        return record_from_dict(ArrivalRecord, read_json(path, "arrival"))
    except ConfigError as error:
        raise bad_fields("arrival", path, error, f"remove it to go on without it: rm {path}") from error


def is_awaited(run_dir: Path) -> bool:
    """Tell whether a run is to be measured on arrival and the result has not been applied here yet."""
    launch = read_launch(run_dir)
    return launch is not None and launch.arriving is not None and not launch.arriving.told


def settle(run_dir: Path, store: Store, *, over: bool) -> str | None:
    """Apply the result of an arrival once: its calibration goes to the store, its new plan to the folder.

    Returns why a run that is `over` never started, or None if it did start or the reason is unknown. Files that arrive
    are not trusted: the new plan keeps this folder's name, data and price, and its limits are computed from those given
    here.
    """
    launch = read_launch(run_dir)
    if launch is None or launch.arriving is None:
        return None
    begun, problem = (run_dir / LOG).exists(), None
    if not launch.arriving.told and (over or begun):
        launch = replace(launch, arriving=replace(launch.arriving, told=True))
        try:
            launch = _settled(run_dir, store, launch)
        except AdvisorError as error:  # the run continues whatever the result was, and the result is not read again
            problem = f"what came of its arrival cannot be used: {error.message}"
        write_launch(run_dir, launch)
    if problem is not None or not over or begun:
        return problem
    record = read_arrival(run_dir)
    return f"stopped on arrival: {record.reason}" if record is not None and not record.goes_on else None


def _settled(run_dir: Path, store: Store, launch: LaunchRecord) -> LaunchRecord:
    """Store calibration and plan, and return the launch record with the limits that are left."""
    record = read_arrival(run_dir)
    if record is None:
        return launch
    if (run_dir / CALIBRATION).exists():
        enter(load_calibration(run_dir / CALIBRATION), store)
    if not record.goes_on:
        return launch
    # Write the new plan and its configuration beside the old ones.
    before, given = load_plan(run_dir / PLAN), read_run_config(run_dir)
    came = load_plan(run_dir / PLAN_AFTER)
    config = goes_on_with(before, came, given, record.seconds)
    offer = replace(came.offer, usd_per_hour=before.offer.usd_per_hour)
    goal = replace(came.goal, data=before.goal.data)
    after = replace(came, id=before.id, goal=goal, chosen=replace(came.chosen, offer=offer))
    write_atomic(run_dir / PLAN_BEFORE, dump_plan(before))
    write_atomic(run_dir / CONFIG, dump_config(config))
    write_atomic(run_dir / PLAN, dump_plan(replace(after, run=replace(after.run, data=before.run.data))))
    guards = make_guards(config, Limits(), usd_per_hour=launch.usd_per_hour)
    hours = None if config.stop.max_seconds is None else config.stop.max_seconds / HOUR
    return replace(launch, guards=replace(guards, max_hours=hours))


def enter(calibration: Calibration, store: Store) -> bool:
    """Store a calibration from elsewhere, but not of another CPU, because the key of all CPUs means this CPU."""
    kept = calibration.settings.gpu != "cpu" or calibration.device.name == cpu_name()
    if kept:
        store.save_calibration(calibration)
    return kept
