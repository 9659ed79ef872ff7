"""Losses near 0 that are earned: grokking, classifiers that are right, and what only looks like them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Confidence, Finding, Severity
from advisor.findings.curves import curve
from advisor.findings.detectors.first_loss import detect_too_good
from advisor.findings.detectors.held_out import detect_no_validation
from advisor.findings.detectors.nothing_learnt import detect_frozen, detect_loss_zero, detect_noise_floor
from advisor.findings.registry import judge
from advisor.findings.run_facts import is_solved
from tests.advisor.findings.build import run
from tests.advisor.findings.build_learning import learning_case

ROWS = 500
PLACE = np.arange(ROWS)
LOSS = np.round(4.6 * np.exp(-PLACE / 5) + 0.00002, 5)  # to two units of the last digit, then still
RIGHT = np.clip(PLACE / 15, 0, 1)
SEED = 4


def case(**columns):
    return learning_case(run(steps=ROWS, **{"loss": LOSS, **columns}))


def test_a_loss_that_stands_still_far_from_0_or_from_the_start_is_still_an_error():
    assert detect_frozen(case(loss=np.where(PLACE < 50, 2.5, 2.302585), accuracy=0.1)).severity is Severity.ERROR
    assert detect_frozen(case(loss=np.where(PLACE < 50, 2.5, 2.302585), accuracy=1.0)) is not None  # learnt nothing
    assert detect_frozen(case(loss=np.where(PLACE < 50, 0.7, 0.693147))).severity is Severity.ERROR
    assert detect_loss_zero(case(loss=0.0, accuracy=1.0)).severity is Severity.ERROR  # right before anything was learnt
    assert detect_loss_zero(case(loss=np.where(PLACE < 100, 2.0, 0.0))).severity is Severity.WARNING


def test_what_is_solved():
    assert is_solved(case(accuracy=RIGHT), learning_curve(case(accuracy=RIGHT)))
    slow = case(loss=np.linspace(2.3, 0.5, ROWS), accuracy=np.linspace(0.1, 0.8, ROWS))
    assert not is_solved(slow, learning_curve(slow))


def learning_curve(made):
    return curve(made.run, "loss")


def test_one_digit_in_scientific_notation_is_no_four_digits():
    small = case(loss=np.where(PLACE < 50, 1e-3, 2e-05), eval_loss=np.where(PLACE < 400, 3e-05, 2e-05))
    assert not isinstance(detect_frozen(small), Finding)


def test_scores_that_no_reader_takes_are_not_missed():
    table = {"steps": 50, "loss": np.linspace(0.11, 0.02, 50), "epoch": np.arange(50)}
    silent = learning_case(run(**table))
    assert isinstance(detect_no_validation(silent), Finding)
    yolo = dataclasses.replace(silent, run=dataclasses.replace(silent.run, format="yolo"))
    assert not isinstance(detect_no_validation(yolo), Finding)


def fallen(first: float, end: float) -> np.ndarray:
    return end + (first - end) * np.exp(-PLACE / 25)


@pytest.mark.parametrize("first", [10.4, 5.5, 4.2])
def test_held_out_data_known_to_the_last_token_are_too_good_whatever_is_trained(first):
    columns = {"loss": fallen(first, 0.0008), "eval_loss": np.where(PLACE % 80 == 79, fallen(first, 0.0009), np.nan)}
    found = detect_too_good(case(**columns))
    assert found.severity is Severity.NOTE and found.confidence is Confidence.LOW and "never seen" in found.title
    if first > 7:
        known = learning_case(run(steps=ROWS, facts={"vocab_size": 32_000}, **columns))
        assert detect_too_good(known).severity is Severity.WARNING  # the first evaluation comes late


@pytest.mark.parametrize(
    "columns",
    [
        {"loss": fallen(2.6, 0.0008), "eval_loss": fallen(2.6, 0.001)},  # a regression
        {"loss": fallen(300.0, 0.0008), "eval_loss": fallen(300.0, 0.001)},  # another one, of large numbers
        {"loss": fallen(2.3, 0.0008), "eval_loss": fallen(2.3, 0.004), "accuracy": RIGHT},  # ten classes
        {"loss": fallen(4.6, 0.0008), "eval_loss": fallen(4.6, 0.004), "accuracy": RIGHT},  # a hundred
        {"loss": fallen(10.4, 0.0008), "eval_loss": fallen(10.4, 2.5)},  # memorised, which another finding says
    ],
)
def test_what_may_end_near_0_is_not_too_good(columns):
    assert not isinstance(detect_too_good(case(**columns)), Finding)


def test_grokking_is_no_error():
    held_out = 0.015 + 6.4 / (1 + np.exp((PLACE - 250) / 12)) * np.exp(
        0.02 * np.random.default_rng(SEED).standard_normal(ROWS)
    )
    held_out[-3:] = [0.012, 0.0228, 0.021]
    grokked = case(accuracy=RIGHT, eval_loss=held_out)
    assert [f.title for f in judge(grokked)[0] if f.severity is not Severity.NOTE] == []
    for zero in (np.round(LOSS, 4), np.where(PLACE < 100, LOSS + 0.01, 0.0)):
        printed = case(loss=zero, accuracy=RIGHT, eval_loss=held_out)
        assert detect_loss_zero(printed) is None and detect_frozen(printed) is None
        assert detect_noise_floor(printed) is None  # no noise of ±0 about 0
