"""What the user's finished runs say about the loss law: measured over predicted, run by run, on one data set."""

from __future__ import annotations

import math
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.store import Store, read_run_plan


def own_loss_ratios(store: Store, data: str | None) -> list[float]:
    """Log of measured loss over the law's for every scored run on the token folder `data`, oldest first.

    Empty for synthetic tokens. A run whose folder is gone no longer says what it was trained on, and is left out.
    """
    if data is None:
        return []
    found = []
    for row in store.scores():
        if row.quantity != "loss" or row.log_error is None:
            continue
        plan = _plan_of(store, row.run_id)
        if plan is not None and plan.goal.data is not None and Path(plan.goal.data) == Path(data):
            found.append(row.log_error + plan.prediction.loss_shift)  # back to the law, if that plan was shifted
    return [ratio for ratio in found if math.isfinite(ratio)]


def _plan_of(store: Store, run_id: str) -> Plan | None:
    try:
        return read_run_plan(store.find_run(run_id))
    except AdvisorError:  # the folder was moved or removed
        return None
