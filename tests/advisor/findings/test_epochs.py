"""Epochs that took many times as long as the others, by what is printed and by the clock."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Insufficient, Severity
from advisor.findings.detectors.step_time import detect_long_epochs
from advisor.readers.line_clock import BAR
from advisor.readers.run_table import RunPart, Status
from tests.advisor.findings import build


def epochs(seconds, **columns):
    count = len(seconds)
    values = {"epoch": np.arange(1.0, count + 1), "epoch_seconds": np.array(seconds, dtype=float), **columns}
    return build.run(steps=count, seconds=None, **values)


def test_one_epoch_of_hours_among_epochs_of_minutes():
    found = detect_long_epochs(build.case(epochs([400.0] * 10 + [7600.0] + [400.0] * 9)))
    assert found.severity is Severity.WARNING and found.title.startswith("Epoch 11 took")
    assert found.saved_hours.value == pytest.approx(2.0)  # 7,600 s where 400 s are usual


@pytest.mark.parametrize("seconds", [
    [400.0] * 20,
    [3000.0] + [400.0] * 19,  # the first one fills caches
    [400.0] * 10 + [700.0] + [400.0] * 9,
    list(np.linspace(300, 900, 20)),  # a schedule that makes them longer
    [2.0] * 10 + [60.0] + [2.0] * 9,  # a minute is not worth a word
])  # fmt: skip
def test_epochs_that_take_their_time_are_no_stalls(seconds):
    assert detect_long_epochs(build.case(epochs(seconds))) is None


def test_epochs_told_by_time_stamps():
    stamps = np.cumsum([0.0] + [400.0] * 9 + [7600.0] + [400.0] * 9)
    table = build.run(steps=20, seconds=None, epoch=np.arange(1.0, 21), unix_seconds=1.6e9 + stamps)
    assert detect_long_epochs(build.case(table)).title.startswith("Epoch 11 took")


def test_a_last_epoch_whose_bar_went_on_for_hours_is_a_note():
    table = epochs([270.0] * 7, status=Status.INCOMPLETE)
    part = RunPart(
        name="training", status=Status.INCOMPLETE, status_reason="", phase=0, clock=BAR, clock_seconds=9000.0
    )
    found = detect_long_epochs(build.case(dataclasses.replace(table, runs=(part,))))
    assert found.severity is Severity.NOTE  # 9,000 s less seven epochs and an eighth: 6,840 s
    assert found.saved_hours.value == pytest.approx(1.9)
    whole = dataclasses.replace(part, clock_seconds=8 * 270.0)
    assert detect_long_epochs(build.case(dataclasses.replace(table, runs=(whole,)))) is None


def test_without_seconds_of_epochs_nothing_is_judged():
    assert isinstance(detect_long_epochs(build.case(build.without(epochs([1.0] * 9), "epoch_seconds"))), Insufficient)
