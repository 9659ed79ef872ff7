"""What must hold of a run that was measured where its engine started it, whatever its plan believed of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.engines.state import RunStatus
from advisor.records import Plan
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch, read_run_config
from advisor.store.store import Store
from trainer.budget import read_spent
from trainer.runlog import load_run_log
from trainer.schema import Outcome

DEADLINE = 150.0


def check_it_ended_inside(folder: Path, store: Store, plan: Plan, status: RunStatus) -> None:
    """Inside hours and dollars, by the new plan, with the calibration in the store here."""
    assert status.outcome in (Outcome.COMPLETED, Outcome.STOPPED), status
    arrival = json.loads((folder / "arrival.json").read_text())
    assert arrival["goes_on"] and load_plan(folder / "plan-before.yaml") == plan
    log = load_run_log(folder / "log.jsonl")
    trained = log.final["time"] - log.header["time"] + log.header["startup_seconds"]
    assert arrival["seconds"] + trained <= DEADLINE + 10.0, "a step, a checkpoint and a busy machine more"
    assert read_launch(folder).guards.max_seconds == DEADLINE
    assert read_spent(folder).attempts[0].seconds == pytest.approx(arrival["seconds"], abs=0.01), "counted once"
    assert arrival["calibration"] in {entry.id for entry in store.list_calibrations()}
    after = load_plan(folder / "plan.yaml")
    assert after.id == plan.id and after.run.steps == read_run_config(folder).steps == log.header["config"]["steps"]
    if arrival["device_key"] is not None:  # else the machine was too restless, and the plan stayed
        assert after.run.steps != plan.run.steps and after.grounds.calibration == arrival["calibration"]
