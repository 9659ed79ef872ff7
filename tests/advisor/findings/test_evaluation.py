"""Epochs without an evaluation."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.held_out import detect_no_validation
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run


def every(values) -> np.ndarray:
    """These evaluations, evenly over the run."""
    column = np.full(STEPS, np.nan)
    column[np.linspace(STEPS // len(values) - 1, STEPS - 1, len(values)).astype(int)] = values
    return column


def test_a_run_with_falling_evaluations_is_silent():
    table = learning_run(epoch=np.linspace(0, 5, STEPS), eval_accuracy=every(np.linspace(0.1, 0.5, 10)))
    assert not isinstance(detect_no_validation(learning_case(table)), Finding)


def test_epochs_without_an_evaluation():
    table = learning_run(eval_loss=None, loss=healthy_loss(end=1.0), epoch=np.linspace(0, 4, STEPS))
    found = detect_no_validation(learning_case(table))
    assert found.severity is Severity.NOTE and found.title.startswith("4 epochs without")
    once = learning_run(eval_loss=None, loss=healthy_loss(end=1.0), epoch=np.linspace(0, 1, STEPS))
    assert detect_no_validation(learning_case(once)) is None
