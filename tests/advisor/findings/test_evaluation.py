"""Evaluations: none, the training data again, none better than one long ago, worse than the first."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.evaluation import (
    detect_best_long_ago,
    detect_no_validation,
    detect_validation_is_training,
    detect_worse_than_start,
)
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run

DETECTORS = (detect_no_validation, detect_validation_is_training, detect_best_long_ago, detect_worse_than_start)


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


def test_hours_after_the_best_evaluation():
    scores = [0.2, 0.5, 0.7, *[0.69, 0.695] * 4]
    found = detect_best_long_ago(learning_case(learning_run(eval_accuracy=every(scores))))
    assert found.severity is Severity.NOTE and "0.7," in found.title
    assert found.saved_hours.value == pytest.approx((STEPS - found.evidence[0].first_step) / 3600, rel=0.02)
    late = [0.2, 0.5, 0.6, 0.65, 0.66, 0.665, 0.67, 0.7, 0.69]
    assert detect_best_long_ago(learning_case(learning_run(eval_accuracy=every(late)))) is None


def test_an_accuracy_that_ends_below_the_first():
    found = detect_worse_than_start(learning_case(learning_run(eval_accuracy=every(np.linspace(0.6, 0.4, 8)))))
    assert found.severity is Severity.WARNING and "0.6 → 0.4" in found.title
    two = detect_worse_than_start(learning_case(learning_run(eval_loss=every([2.0, 2.3]))))
    assert two.severity is Severity.NOTE
    noise = 0.5 + 0.02 * np.random.default_rng(1).standard_normal(30)
    assert detect_worse_than_start(learning_case(learning_run(eval_accuracy=every(noise)))) is None
    assert isinstance(detect_worse_than_start(learning_case(learning_run(eval_loss=every([2.0])))), Insufficient)
