"""A plan runs once at a time: whoever starts it holds its claim while looking for its run and starting it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from advisor.engines.engines import describe
from advisor.engines.process import try_lock
from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors
from advisor.store.run_folder import is_run_folder
from advisor.store.store import Store

_WAIT_SECONDS = 30.0  # whoever holds a claim is done within one: it writes a few files and starts a process


@contextlib.contextmanager
def claim(store: Store, plan_id: str) -> Iterator[None]:
    """Hold the claim on a plan, waiting for who has it now; the system frees the claim of a process that dies.

    Raises AdvisorError when a run of the plan is going on, or when the claim is not free within half a minute.
    """
    path = store.claim_path(plan_id)
    with disk_errors("claim the plan with", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed below, on every way out
    with file:
        deadline = time.monotonic() + _WAIT_SECONDS
        while not try_lock(file):
            if time.monotonic() >= deadline:
                message = f"another command has been starting plan {plan_id} for half a minute"
                raise AdvisorError(message, "see whether it runs: advisor runs")
            time.sleep(0.05)
        refuse_a_running_plan(store, plan_id)
        yield


def refuse_a_running_plan(store: Store, plan_id: str) -> None:
    """Raise AdvisorError when a run of this plan is going on."""
    if (running := running_with(store, plan_id)) is not None:
        message = f"this plan is running already: {running.name}, in {running}"
        again = "start a second run beside it: advisor launch PLAN.yaml --again"
        raise AdvisorError(message, f"advisor watch {running}, or {again}")


def running_with(store: Store, plan_id: str) -> Path | None:
    """The folder of a run of this plan that is going on; None: there is none."""
    for row in store.runs():
        folder = Path(row.path)
        if row.plan_id == plan_id and is_run_folder(folder) and goes_on(describe(folder, store).state):
            return folder
    return None
