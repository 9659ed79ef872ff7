"""What finished runs have taught, by the rows of the ledger: how right predictions were, and one's own loss law."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.run_records import ScoreRow
from advisor.store.run_folder import read_run_plan
from advisor.store.store import Store

if TYPE_CHECKING:
    from advisor.runs.scoring import ScoredRun


def score_rows(scored: ScoredRun, created: str) -> list[ScoreRow]:
    """The ledger's rows of a run: every quantity that was both predicted and measured."""
    return [
        ScoreRow(
            run_id=scored.run_id,
            quantity=score.quantity,
            device_key=scored.device_key,
            predicted=score.predicted,
            actual=score.actual,
            created=created,
        )
        for score in scored.scores
        if score.predicted is not None and score.actual is not None
    ]


@dataclass(frozen=True, kw_only=True)
class QuantityAccuracy:
    """How right the predictions of one quantity have been on one device, over all scored runs."""

    device_key: str
    quantity: str
    runs: int
    median_error: float  # of |actual / predicted - 1|
    p90_error: float
    bias: float  # median of actual / predicted - 1: positive means promised too little
    inside: int  # runs whose actual value fell into the stated 80 % interval
    coverage: float  # their share


def accuracy(scores: Sequence[ScoreRow]) -> list[QuantityAccuracy]:
    """Running error and coverage per device and quantity; quantities predicted as 0 count as covered or not only."""
    groups: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in scores:
        groups.setdefault((row.device_key, row.quantity), []).append(row)
    return [item for key, rows in sorted(groups.items()) if (item := _accuracy_of(*key, rows)) is not None]


def _accuracy_of(device_key: str, quantity: str, rows: Sequence[ScoreRow]) -> QuantityAccuracy | None:
    errors = [row.actual / row.predicted.value - 1 for row in rows if row.predicted.value]
    if not errors:
        return None
    inside = sum(row.inside for row in rows)
    return QuantityAccuracy(
        device_key=device_key,
        quantity=quantity,
        runs=len(rows),
        median_error=statistics.median(abs(error) for error in errors),
        p90_error=float(np.quantile([abs(error) for error in errors], 0.9)),
        bias=statistics.median(errors),
        inside=inside,
        coverage=inside / len(rows),
    )


def own_loss_ratios(store: Store, data: str | None) -> list[float]:
    """Log of measured loss over the law's for every scored run on the token folder `data`, oldest first.

    Empty for synthetic tokens. What a run was trained on its plan says, and plans are looked up in the store's index of
    runs: a run whose folder is gone, or of another trainer, whose log the index does not have, does not move the law.
    """
    if data is None:
        return []
    ratios = []
    for row in store.scores():
        if row.quantity != "loss" or row.log_error is None:
            continue
        plan = _plan_of(store, row.run_id)
        if plan is not None and plan.goal.data is not None and Path(plan.goal.data) == Path(data):
            ratios.append(row.log_error + plan.prediction.loss_shift)  # back to the law, if that plan was shifted
    return [ratio for ratio in ratios if math.isfinite(ratio)]


def _plan_of(store: Store, run_id: str) -> Plan | None:
    try:
        return read_run_plan(store.find_run(run_id))
    except AdvisorError:  # the folder was moved or removed
        return None
