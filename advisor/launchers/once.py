"""Starts a plan at most once at a time: two tabs, or a second click, find the run that is already there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.launchers.base import RunHandle, RunState, run_status
from advisor.launchers.local import LocalLauncher
from advisor.launchers.process import folder_lock
from advisor.records import Plan
from advisor.store import Store, is_run_folder
from trainer.schema import LossStop


def running_with(store: Store, plan_id: str) -> Path | None:
    """The folder of a run of this plan that is going on; None: there is none."""
    for row in store.runs():
        folder = Path(row.path)
        if row.plan_id == plan_id and is_run_folder(folder) and run_status(folder).state is RunState.RUNNING:
            return folder
    return None


def launch_once(
    store: Store,
    plan: Plan,
    *,
    max_usd: float | None = None,
    max_hours: float | None = None,
    loss: Sequence[LossStop] = (),
) -> RunHandle:
    """Launch a plan on this machine unless a run of it is going on; raises AdvisorError naming that run.

    The check and the start happen under one lock of the store, so that two pages cannot both pass the check.
    """
    store.home.mkdir(parents=True, exist_ok=True)
    with folder_lock(store.home):
        running = running_with(store, plan.id)
        if running is not None:
            raise AdvisorError(f"this plan is running already in {running}", f"advisor watch {running}")
        return LocalLauncher(store).launch(plan, max_usd=max_usd, max_hours=max_hours, loss=loss)
