"""How right predictions have been, by the rows of the ledger."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from advisor.history.ledger_rows import accuracy, coverages
from advisor.records import Basis, Estimate
from advisor.run_records import ScoreRow
from tests.advisor.plans import guess


def row(actual, predicted=1.0, quantity="step_seconds", device="cpu"):
    return ScoreRow(
        run_id=f"r{actual}", quantity=quantity, device_key=device, predicted=guess(predicted, 0.1), actual=actual,
        created="now",
    )  # fmt: skip


def test_running_error_and_coverage():
    scores = [row(value) for value in (0.95, 1.0, 1.05, 1.08, 1.5)] + [row(2.0, 1.0, "loss"), row(1.0, device="l4")]
    table = {(a.device_key, a.quantity): a for a in accuracy(scores)}
    step = table["cpu", "step_seconds"]
    assert step.runs == 5 and step.coverage == pytest.approx(0.8)
    assert step.median_error == pytest.approx(0.05) and step.bias == pytest.approx(0.05)
    assert step.p90_error == pytest.approx(0.08 + 0.6 * 0.42)
    assert table["cpu", "loss"].coverage == 0.0 and table["l4", "step_seconds"].median_error == 0.0
    assert accuracy([]) == [] and accuracy([row(0.0, 0.0)]) == []


def test_intervals_of_other_widths_by_the_normal_distribution():
    """80 % is 1.2816 standard deviations either way; outcomes at 0.25, 0.6, 1, 1.5 and 2.2 of them."""
    deviation = math.log(1.21 / (1 / 1.21)) / (2 * 1.2815516)
    spread = Estimate(value=1.0, low=1 / 1.21, high=1.21, basis=Basis.MEASURED)
    rows = [replace(row(math.exp(k * deviation)), predicted=spread) for k in (0.25, -0.6, 1.0, -1.5, 2.2)]
    held = {point.promised: point.held for point in coverages(rows)}
    # of a normal variable 20 % lie within 0.253, 50 % within 0.674, 60 % within 0.842, 70 % within 1.036, 95 % in 1.96
    assert held == {0.2: 0.2, 0.4: 0.2, 0.5: 0.4, 0.6: 0.4, 0.7: 0.6, 0.8: 0.6, 0.9: 0.8, 0.95: 0.8}
    assert coverages(rows[:4]) == []
