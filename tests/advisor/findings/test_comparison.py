"""Merged logs, and steps that were not run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.runs import detect_several_runs, detect_steps_missing
from advisor.readers.run_table import ROW_NUMBERS, Phase, Status
from tests.advisor.findings.build import event
from tests.advisor.findings.build_learning import healthy_loss, learning_case, learning_run


def test_two_starts_in_one_file_are_said_once():
    loss = np.r_[healthy_loss(1000), healthy_loss(1000)]
    table = learning_run(
        loss=loss,
        step=np.tile(np.arange(1.0, 1001), 2),
        phases=(Phase(name="first", first_row=0, last_row=999), Phase(name="second", first_row=1000, last_row=1999)),
    )
    assert isinstance(detect_several_runs(learning_case(table)), Finding)


def incomplete(done: int, status: Status = Status.INCOMPLETE):
    table = learning_run(done, facts={"planned_steps": 2000}, status=status)
    return learning_case(dataclasses.replace(table))


def test_a_log_that_ends_at_11_percent():
    found = detect_steps_missing(incomplete(222))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE
    assert "222 of 2,000 (11.1%)" in found.title
    hours = float(found.title.split("about ")[1].split(" min")[0]) / 60
    assert hours == pytest.approx(1778 / 3600, rel=0.01)  # steps of one second


def test_a_log_of_epochs_that_ends_early():
    table = learning_run(50, epoch=np.arange(1, 51), facts={"planned_epochs": 100}, status=Status.INCOMPLETE)
    table = dataclasses.replace(table, provenance={"step": ROW_NUMBERS})
    found = detect_steps_missing(learning_case(table))
    assert isinstance(found, Finding) and "epoch 50 of 100" in found.title
    whole = dataclasses.replace(table, facts={"planned_epochs": 50})
    assert isinstance(detect_steps_missing(learning_case(whole)), Insufficient)


def test_a_limit_of_its_own_is_a_note():
    found = detect_steps_missing(incomplete(1500, Status.STOPPED))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE


def test_what_is_over_by_its_own_word_has_no_rest():
    found = detect_steps_missing(incomplete(1500, Status.COMPLETED))
    assert isinstance(found, Finding) and "rest" not in found.title
    early = incomplete(1500, Status.COMPLETED)
    stopped = dataclasses.replace(early.run, events=(event("early_stop", "Early stopping", 1500.0),))
    assert detect_steps_missing(dataclasses.replace(early, run=stopped)) is None


@pytest.mark.parametrize("done", [1999, 2000])
def test_a_complete_run_is_silent(done):
    assert detect_steps_missing(incomplete(done)) is None


def test_more_steps_than_declared():
    found = detect_steps_missing(learning_case(learning_run(facts={"planned_steps": 1000})))
    assert isinstance(found, Finding) and "beyond" in found.title
