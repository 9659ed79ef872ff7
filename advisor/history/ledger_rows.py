"""Summarises the ledger: how accurate predictions were, and how the user's runs correct the loss law."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advisor.errors import AdvisorError
from advisor.findings.detectors.machine import DISTURBED
from advisor.records import Plan
from advisor.run_records import SAME_AS_STEP_TIME, ScoreRow
from advisor.store.run_folder import read_run_plan
from advisor.store.store import Store
from advisor.units import format_percent

if TYPE_CHECKING:
    from advisor.history.scoring import ScoredRun

FEWEST_FOR_COVERAGE = 5
SHARES = (0.5, 0.8, 0.95)  # of runs that intervals of different widths should contain
_BY_THE_CLOCK = ("step_seconds", "tokens_per_second", "mfu", "wall_clock_seconds", "cost_usd", "energy_kwh")
_NORMAL = statistics.NormalDist()


def score_rows(scored: ScoredRun, created: str) -> list[ScoreRow]:
    """Return a run's rows for the ledger: one for every quantity that was both predicted and measured."""
    disturbed = f"other programs took {format_percent(scored.disturbed_share)} of its time in steps"
    aside = "" if scored.disturbed_share <= DISTURBED else disturbed
    return [
        ScoreRow(
            run_id=scored.run_id,
            quantity=score.quantity,
            device_key=scored.device_key,
            predicted=score.predicted,
            actual=score.actual,
            created=created,
            set_aside="it was stopped" if not scored.complete else aside if score.quantity in _BY_THE_CLOCK else "",
        )
        for score in scored.scores
        if score.predicted is not None and score.actual is not None
    ]


@dataclass(frozen=True, kw_only=True)
class QuantityAccuracy:
    """The accuracy of the predictions of one quantity on one device, over all scored runs."""

    device_key: str
    quantity: str
    runs: int
    median_error: float  # of |actual / predicted - 1|
    p90_error: float
    bias: float  # median of actual / predicted - 1; positive if the prediction was too low
    inside: int  # number of runs whose actual value lies in the stated 80 % interval
    coverage: float  # the same as a share


def accuracy(scores: Sequence[ScoreRow]) -> list[QuantityAccuracy]:
    """Return error and coverage by device and quantity, of the runs that count. Predictions of 0 count for coverage."""
    groups: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in (row for row in scores if not row.set_aside):
        groups.setdefault((row.device_key, row.quantity), []).append(row)
    found = []
    for (device_key, quantity), rows in sorted(groups.items()):
        errors = [row.actual / row.predicted.value - 1 for row in rows if row.predicted.value]
        inside = sum(row.inside for row in rows)
        if errors:
            found.append(
                QuantityAccuracy(
                    device_key=device_key,
                    quantity=quantity,
                    runs=len(rows),
                    median_error=statistics.median(map(abs, errors)),
                    p90_error=float(np.quantile(list(map(abs, errors)), 0.9)),
                    bias=statistics.median(errors),
                    inside=inside,
                    coverage=inside / len(rows),
                )
            )
    return found


@dataclass(frozen=True, kw_only=True)
class LedgerCoverage:
    """The share of outcomes inside an interval, and the share that the interval promised."""

    promised: float
    held: float
    runs: int


def coverages(scores: Sequence[ScoreRow]) -> list[LedgerCoverage]:
    """Return how often intervals of other widths would have held if errors are normal in the logarithm. Empty for fewer
    than `FEWEST_FOR_COVERAGE` runs, since a share of so few runs means nothing."""
    far = []  # distance of each outcome from its prediction, in standard deviations
    for row in scores:
        low, value, high = row.predicted.low, row.predicted.value, row.predicted.high
        counts = not row.set_aside and row.quantity not in SAME_AS_STEP_TIME
        if counts and 0 < low < high and value > 0 and row.actual > 0:
            deviation = math.log(high / low) / (2 * _NORMAL.inv_cdf(0.9))
            far.append(abs(math.log(row.actual / value)) / deviation)
    if len(far) < FEWEST_FOR_COVERAGE:
        return []
    reach = {share: _NORMAL.inv_cdf(0.5 + share / 2) for share in SHARES}
    return [
        LedgerCoverage(promised=share, held=sum(z <= most for z in far) / len(far), runs=len(far))
        for share, most in reach.items()
    ]


def own_loss_ratios(store: Store, data: str | None) -> list[float]:
    """Return log(measured loss / law) of every scored run on the token folder `data`, oldest first.

    Empty for synthetic tokens. The plan says which data a run used, and the store's index of runs says where its plan
    is. A run does not count if its folder is gone or if the index does not list its trainer's log.
    """
    if data is None:
        return []
    ratios = []
    for row in store.scores():
        if row.quantity != "loss" or row.log_error is None:
            continue
        plan = _plan_of(store, row.run_id)
        if plan is not None and plan.goal.data is not None and Path(plan.goal.data) == Path(data):
            ratios.append(row.log_error + plan.chosen.standing.loss_shift)  # undo the shift that the plan added, if any
    return [ratio for ratio in ratios if math.isfinite(ratio)]


def _plan_of(store: Store, run_id: str) -> Plan | None:
    try:
        return read_run_plan(store.find_run(run_id))
    except AdvisorError:  # the folder was moved or removed
        return None
