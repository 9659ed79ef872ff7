"""Epochs, token budgets, floors and files that hold no data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.data_budget import (
    detect_error_page,
    detect_loss_below_floor,
    detect_repeated_data,
    error_page,
    loss_floor,
)
from tests.advisor.findings.build import event
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run


def test_48_epochs_waste_two_thirds():
    # sources §4.3: 10.6 M tokens, 512 M asked for: 48 epochs, worth 167 M, 67 % of the compute bought nothing
    facts = {"step_tokens": 512e6 / STEPS, "dataset_tokens": 512e6 / 48}
    still_falling = detect_repeated_data(learning_case(learning_run(facts=facts)))
    assert isinstance(still_falling, Finding) and still_falling.severity is Severity.NOTE  # on held-out data
    found = detect_repeated_data(learning_case(learning_run(facts=facts, eval_loss=None)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert "48 times" in found.title and "67%" in found.title
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(0.67 * 2.0, rel=0.02)


@pytest.mark.parametrize(("epochs", "fires"), [(1, False), (4, False), (8, True)])
def test_up_to_four_epochs_are_nearly_free(epochs, fires):
    facts = {"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 / epochs}
    found = detect_repeated_data(learning_case(learning_run(facts=facts)))
    assert isinstance(found, Finding) == fires
    if fires:  # handbook: 8 epochs are worth 6.62
        assert "6.62" in found.evidence[0].text


def test_fine_tuning_for_ten_epochs_is_not_judged_by_a_law_of_pre_training():
    table = learning_run(loss=healthy_loss(start=1.7, end=0.6), epoch=np.linspace(0, 10, STEPS))
    assert detect_repeated_data(learning_case(table)) is None


def test_a_loss_below_the_floor():
    # E = 1.8172 at 4.4 bytes per token
    assert loss_floor(None) == pytest.approx(1.8172)
    assert loss_floor(2.2) == pytest.approx(0.9086)
    found = detect_loss_below_floor(learning_case(learning_run(loss=healthy_loss(end=1.1), eval_loss=None)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    promised = detect_loss_below_floor(learning_case(notes={"target_loss": "1.2"}))
    assert isinstance(promised, Finding) and promised.severity is Severity.ERROR
    assert detect_loss_below_floor(learning_case()) is None
    table = learning_run(facts={"vocab_size": 256}, loss=healthy_loss(start=5.545, end=0.8))
    assert isinstance(detect_loss_below_floor(learning_case(table)), Insufficient)


@pytest.mark.parametrize(
    ("head", "page"),
    [
        ("<!DOCTYPE html><html>", True),
        ("\ufeff\n<HTML>", True),
        ("404: Not Found", True),
        ("version https://git-lfs.github.com/spec/v1", True),
        ("First Citizen:\nBefore we proceed", False),
        ("HTML pages begin with <html>", False),
    ],
)
def test_error_pages_are_told_by_their_beginning(head, page):
    assert (error_page(head) is not None) == page


def test_a_data_file_that_is_a_page_is_an_error():
    found = detect_error_page(learning_case(notes={"data_head": "404: Not Found"}))
    assert isinstance(found, Finding) and found.code == "error_page" and found.severity is Severity.ERROR
    table = dataclasses.replace(learning_run(), events=(event("error_page", "<!DOCTYPE html>"),))
    assert isinstance(detect_error_page(learning_case(table)), Finding)


def test_a_data_set_smaller_than_a_step():
    found = detect_error_page(learning_case(learning_run(facts={"dataset_tokens": 4})))
    assert isinstance(found, Finding) and found.code == "data_set_too_small"


def test_real_data_are_silent_and_unknown_ones_insufficient():
    assert detect_error_page(learning_case(notes={"data_head": "Call me Ishmael."})) is None
    assert isinstance(detect_error_page(learning_case()), Insufficient)
