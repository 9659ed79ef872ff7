"""Epochs over the same data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.data_budget import detect_repeated_data
from advisor.readers.run_table import Status
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run


def test_48_epochs_waste_two_thirds():
    # sources §4.3: 10.6 M tokens, 512 M asked for: 48 epochs, worth 167 M, 67 % of the compute bought nothing
    facts = {"step_tokens": 512e6 / STEPS, "dataset_tokens": 512e6 / 48}
    still_falling = detect_repeated_data(learning_case(learning_run(facts=facts)))
    assert isinstance(still_falling, Finding) and still_falling.severity is Severity.NOTE  # on held-out data
    found = detect_repeated_data(learning_case(learning_run(facts=facts, eval_loss=None)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert "48 times" in found.title and "67.4 %" in found.title
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(0.67 * 2.0, rel=0.02)


@pytest.mark.parametrize(("epochs", "fires"), [(1, False), (4, False), (8, True)])
def test_up_to_four_epochs_are_nearly_free(epochs, fires):
    facts = {"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 / epochs}
    found = detect_repeated_data(learning_case(learning_run(facts=facts)))
    assert isinstance(found, Finding) == fires
    if fires:  # handbook: 8 epochs are worth 6.62
        assert "6.62" in found.evidence[0].text


@pytest.mark.parametrize(("status", "fires"), [(Status.STOPPED, False), (Status.COMPLETED, True)])
def test_a_run_that_was_stopped_before_its_data_repeated_wasted_nothing(status, fires):
    # planned for 48 passes; the log holds a twentieth of them
    facts = {"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 * 20 / 48, "planned_steps": STEPS * 20}
    table = replace(learning_run(facts=facts), status=status)
    assert isinstance(detect_repeated_data(learning_case(table)), Finding) == fires


def test_fine_tuning_for_ten_epochs_is_not_judged_by_a_law_of_pre_training():
    table = learning_run(loss=healthy_loss(start=1.7, end=0.6), epoch=np.linspace(0, 10, STEPS))
    assert detect_repeated_data(learning_case(table)) is None
