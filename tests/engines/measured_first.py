"""What must hold of a run that was measured where its engine started it, whatever its plan believed of the machine."""

from __future__ import annotations

from pathlib import Path

from advisor.calibration.quality import quality_of
from advisor.engines.state import RunStatus
from advisor.options import LaunchOptions
from advisor.records import Plan
from advisor.store.calibration import Verdict
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch, read_run_config
from advisor.store.store import Store, load_calibration
from advisor.workflows.plan_like import commands_first
from trainer.budget import read_spent
from trainer.runlog import load_run_log
from trainer.schema import Outcome

DEADLINE = 150.0


def first(plan: Plan, **options) -> tuple[str, ...]:
    """What its job does first, with these options of `launch`."""
    return commands_first(plan, LaunchOptions(**options))


def check_it_ended_inside(folder: Path, store: Store, plan: Plan, status: RunStatus) -> None:
    """Inside hours and dollars, by the new plan, with the calibration in the store here."""
    assert status.outcome in (Outcome.COMPLETED, Outcome.STOPPED), status
    log, measured = load_run_log(folder / "log.jsonl"), read_spent(folder).attempts[0]
    trained = log.final["time"] - log.header["time"] + log.header["startup_seconds"]
    assert measured.seconds + trained <= DEADLINE + 10.0, "a step, a checkpoint and a busy machine more"
    assert read_launch(folder).guards.max_seconds == DEADLINE
    calibration = load_calibration(folder / "calibration.yaml")
    assert calibration.id in {entry.id for entry in store.list_calibrations()}
    after = load_plan(folder / "plan.yaml")
    assert after.id == plan.id and after.run.steps == read_run_config(folder).steps == log.header["config"]["steps"]
    if quality_of(calibration).verdict != Verdict.REJECTED:  # else the machine was too restless, and the plan stayed
        assert after.run.steps != plan.run.steps and after.grounds.calibration == calibration.id
