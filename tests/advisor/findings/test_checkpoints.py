"""Checkpoints against Daly's interval."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient
from advisor.findings.detectors.money import (
    detect_checkpoint_interval,
)
from tests.advisor.findings.build import event
from tests.advisor.findings.build_learning import STEPS, learning_case, learning_run


def long_run(every: int | None, step_seconds: float = 60.0, write: float = 30.0, **facts):
    """2,000 steps of a minute: 33 hours; a checkpoint every so many steps, taking 30 s."""
    events = [] if every is None else [
        event("checkpoint", "saved", float(s), seconds=write, bytes=1.5e9) for s in range(every, STEPS + 1, every)
    ]  # fmt: skip
    table = learning_run(seconds=np.full(STEPS, step_seconds), facts=facts)
    return learning_case(dataclasses.replace(table, events=tuple(events)))


def test_dalys_interval_is_silent():
    # δ = 30 s, M = 432,000 s: √(2·30·432,000) = 5,091 s, Daly 5,071 s: 85 steps of a minute
    assert detect_checkpoint_interval(long_run(85)) is None


def test_too_rare():
    found = detect_checkpoint_interval(long_run(1000))
    assert isinstance(found, Finding) and found.code == "checkpoints_too_rare"
    assert "every 84 steps" in found.actions[0] or "every 85 steps" in found.actions[0]
    # half of 60,000 s instead of half of 5,071 s, 0.278 times
    assert found.saved_hours is not None
    assert found.saved_hours.value == pytest.approx(0.2778 * (60_000 - 5_071) / 2 / 3600, rel=0.01)


def test_too_frequent():
    found = detect_checkpoint_interval(long_run(5))  # 30 s every 300 s
    assert isinstance(found, Finding) and found.code == "checkpoints_too_frequent"
    assert found.saved_hours is not None
    assert found.saved_hours.value == pytest.approx((30 / 300 - 30 / 5071) * 33.333, rel=0.01)


def test_an_interval_of_no_time_is_not_judged():
    # 1e-200 steps of 1e-185 s are below the smallest number
    table = learning_run(seconds=np.full(STEPS, 1e-185), facts={"checkpoint_every_steps": 1e-200})
    assert isinstance(detect_checkpoint_interval(learning_case(table)), Insufficient)


def test_nobody_is_told_to_write_one_less_often_than_twice_in_a_run():
    often = detect_checkpoint_interval(long_run(20, step_seconds=2.4, write=60.0))
    assert isinstance(often, Finding) and often.actions == ("checkpoint every 1,000 steps",)
