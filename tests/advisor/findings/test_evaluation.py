"""Evaluations: none, the training data again, none better than one long ago, worse than the first."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.held_out import (
    detect_no_validation,
    detect_validation_is_training,
)
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run

DETECTORS = (detect_no_validation, detect_validation_is_training)


def every(values) -> np.ndarray:
    """These evaluations, evenly over the run."""
    column = np.full(STEPS, np.nan)
    column[np.linspace(STEPS // len(values) - 1, STEPS - 1, len(values)).astype(int)] = values
    return column


@pytest.mark.parametrize("detector", DETECTORS)
def test_a_run_with_falling_evaluations_is_silent(detector):
    table = learning_run(epoch=np.linspace(0, 5, STEPS), eval_accuracy=every(np.linspace(0.1, 0.5, 10)))
    assert not isinstance(detector(learning_case(table)), Finding)


def test_epochs_without_an_evaluation():
    table = learning_run(eval_loss=None, loss=healthy_loss(end=1.0), epoch=np.linspace(0, 4, STEPS))
    found = detect_no_validation(learning_case(table))
    assert found.severity is Severity.NOTE and found.title.startswith("4 epochs without")
    once = learning_run(eval_loss=None, loss=healthy_loss(end=1.0), epoch=np.linspace(0, 1, STEPS))
    assert detect_no_validation(learning_case(once)) is None


def test_validation_losses_that_are_the_training_losses():
    losses = healthy_loss()
    same = every(losses[np.linspace(STEPS // 10 - 1, STEPS - 1, 10).astype(int)])
    found = detect_validation_is_training(learning_case(learning_run(loss=losses, eval_loss=same)))
    assert found.severity is Severity.WARNING and "10 of 10" in found.title
    assert detect_validation_is_training(learning_case(learning_run(loss=losses, eval_loss=same + 1e-4))) is None
    flat = learning_run(loss=np.full(STEPS, 2.3026), eval_loss=every([2.3026] * 10))
    assert detect_validation_is_training(learning_case(flat)) is None
