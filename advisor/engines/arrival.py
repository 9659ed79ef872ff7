"""Reads and applies the measurements that a run's job made on its machine and left in the run folder.

The seconds of an arrival are an attempt in `budget.json`: the trainer counts them against the limits like any other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.here import cpu_name
from advisor.records import Plan
from advisor.run_records import ArrivalRecord
from advisor.store.calibration import Calibration
from advisor.store.disk import read_record, write_atomic
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import CONFIG, LOG, PLAN, read_launch, read_run_config, write_launch
from advisor.store.store import Store, load_calibration
from trainer.budget import BUDGET_NAME
from trainer.schema import RunConfig, dump_config

PLAN_BEFORE, PLAN_AFTER, RECORD, CALIBRATION = "plan-before.yaml", "plan-after.yaml", "arrival.json", "calibration.yaml"
ARRIVAL_FILES = (PLAN_AFTER, CALIBRATION, RECORD, BUDGET_NAME)  # these files come home from the machine


def goes_on_with(before: Plan, came: Plan, given: RunConfig) -> tuple[Plan, RunConfig]:
    """Return the plan made on arrival and its configuration, with the name, data, price and limits that were given."""
    offer = replace(came.offer, usd_per_hour=before.offer.usd_per_hour)
    goal, run = replace(came.goal, data=before.goal.data), replace(came.config, data=before.config.data)
    plan = replace(came, id=before.id, goal=goal, run=run, chosen=replace(came.chosen, offer=offer))
    stop = replace(given.stop, gates=came.config.stop.gates, step_seconds=came.chosen.step_seconds.value)
    return plan, replace(came.config, data=given.data, name=given.name, stop=stop)


def read_arrival(run_dir: Path) -> ArrivalRecord | None:
    """Read the machine's answer to the plan. Returns None if there is none yet."""
    return read_record(ArrivalRecord, run_dir / RECORD, "arrival")


def is_awaited(run_dir: Path) -> bool:
    """Tell whether a run is to be measured on arrival and the result has not been applied here yet."""
    launch = read_launch(run_dir)
    return launch is not None and launch.arriving is not None and not launch.arriving.told


def settle(run_dir: Path, store: Store, *, over: bool) -> str | None:
    """Apply the result of an arrival once: its calibration goes to the store, its new plan to the folder.

    Returns why a run that is `over` never started, or None if it did start or the reason is unknown. Files that arrive
    are not trusted: see `goes_on_with`.
    """
    launch = read_launch(run_dir)
    if launch is None or launch.arriving is None:
        return None
    begun, problem = (run_dir / LOG).exists(), None
    if not launch.arriving.told and (over or begun):
        try:
            record = read_arrival(run_dir)
            if record is not None and (run_dir / CALIBRATION).exists():
                enter(load_calibration(run_dir / CALIBRATION), store)
            if record is not None and record.goes_on:  # the new plan and configuration replace the old ones
                before = load_plan(run_dir / PLAN)
                plan, config = goes_on_with(before, load_plan(run_dir / PLAN_AFTER), read_run_config(run_dir))
                texts = {PLAN_BEFORE: dump_plan(before), CONFIG: dump_config(config), PLAN: dump_plan(plan)}
                for name, text in texts.items():
                    write_atomic(run_dir / name, text)
        except AdvisorError as error:  # the run continues whatever the result was, and the result is not read again
            problem = f"what came of its arrival cannot be used: {error.message}"
        write_launch(run_dir, replace(launch, arriving=replace(launch.arriving, told=True)))
    if problem is not None or not over or begun:
        return problem
    record = read_arrival(run_dir)
    return f"stopped on arrival: {record.reason}" if record is not None and not record.goes_on else None


def enter(calibration: Calibration, store: Store) -> bool:
    """Store a calibration from elsewhere, but not of another CPU, because the key of all CPUs means this CPU."""
    if calibration.settings.gpu == "cpu" and calibration.device.name != cpu_name():
        return False
    store.save_calibration(calibration)
    return True
