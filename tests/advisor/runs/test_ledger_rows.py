"""How right predictions have been, by the rows of the ledger."""

from __future__ import annotations

import pytest

from advisor.run_records import ScoreRow
from advisor.runs.ledger_rows import accuracy
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
