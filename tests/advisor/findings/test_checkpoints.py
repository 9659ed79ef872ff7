"""Checkpoints against Daly's interval, and what is lost without them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.checkpoints import (
    detect_checkpoint_disk,
    detect_checkpoint_interval,
    detect_no_checkpoint,
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


def test_none_at_all_costs_the_expected_loss():
    assert detect_no_checkpoint(long_run(None)).severity is Severity.NOTE  # the log may only not mention them
    found = detect_no_checkpoint(long_run(None, checkpoint_every_steps=0))
    assert isinstance(found, Finding)
    # 120,000 s / (5 · 86,400 s) interruptions, each losing half of 33.3 h
    assert found.saved_hours is not None
    assert found.saved_hours.value == pytest.approx(120_000 / 432_000 * 33.333 / 2, rel=0.01)
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(3.6 * found.saved_hours.value)


def test_a_log_that_begins_far_on_says_nothing_of_earlier_checkpoints():
    case = long_run(None)
    later = dataclasses.replace(case.run, columns=dict(case.run.columns, step=case.run.columns["step"] + 30_000))
    assert detect_no_checkpoint(dataclasses.replace(case, run=later)) is None


def test_a_configuration_without_checkpoints_is_an_error():
    found = detect_no_checkpoint(long_run(None, checkpoint_every_steps=0))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR


def test_the_silence_of_formats_without_words_means_nothing():
    case = long_run(None)
    quiet = dataclasses.replace(case, run=dataclasses.replace(case.run, format="tfevents"))
    assert isinstance(detect_no_checkpoint(quiet), Insufficient)


def test_the_first_hour_of_a_long_run_needs_none_yet():
    early = dataclasses.replace(long_run(None).run, facts={"planned_steps": 200_000, "vocab_size": 50257})
    rows = {name: values[:50] for name, values in early.columns.items()}  # 50 minutes
    assert detect_no_checkpoint(learning_case(dataclasses.replace(early, columns=rows, phases=()))) is None


def test_short_runs_need_none_and_unknown_ones_cannot_be_judged():
    assert detect_no_checkpoint(long_run(None, step_seconds=1.0)) is None
    assert isinstance(detect_no_checkpoint(learning_case(learning_run(seconds=None))), Insufficient)


def test_dalys_interval_is_silent():
    # δ = 30 s, M = 432,000 s: √(2·30·432,000) = 5,091 s, Daly 5,071 s: 85 steps of a minute
    assert detect_checkpoint_interval(long_run(85)) is None
    assert detect_no_checkpoint(long_run(85)) is None


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


def test_the_disk_they_take():
    found = detect_checkpoint_disk(long_run(5))  # 400 of 1.5 GB
    assert isinstance(found, Finding) and "400 checkpoints" in found.title
    assert detect_checkpoint_disk(long_run(85)) is None
    assert isinstance(detect_checkpoint_disk(long_run(None)), Insufficient)


def test_an_interval_of_no_time_is_not_judged():
    # 1e-200 steps of 1e-185 s are below the smallest number
    table = learning_run(seconds=np.full(STEPS, 1e-185), facts={"checkpoint_every_steps": 1e-200})
    assert isinstance(detect_checkpoint_interval(learning_case(table)), Insufficient)


def test_a_run_that_went_on_from_a_later_step_had_a_checkpoint():
    quiet = long_run(None)
    again = event("restart", "steps go back from 80 to 61", 80, first_step=61.0, last_step=80.0)
    anew = event("restart", "steps go back from 80 to 1", 80, first_step=float(quiet.run.column("step").min()))
    went_on = dataclasses.replace(quiet.run, events=(*quiet.run.events, again))
    assert detect_no_checkpoint(learning_case(went_on)) is None
    assert detect_no_checkpoint(learning_case(dataclasses.replace(went_on, events=(anew,)))) is not None


def test_settings_that_write_none_are_told_at_any_length_with_what_is_at_stake():
    begun = dataclasses.replace(long_run(None).run, facts={"planned_steps": 200_000, "checkpoint_every_steps": 0})
    rows = {name: values[:50] for name, values in begun.columns.items()}  # 50 of them, a minute each
    found = detect_no_checkpoint(learning_case(dataclasses.replace(begun, columns=rows, phases=())))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.evidence[1].text == "at stake: 200,000 steps, 139 days and $12,000"  # at 3.6 dollars an hour
    short = detect_no_checkpoint(long_run(None, step_seconds=0.01, checkpoint_every_steps=0))
    assert isinstance(short, Finding) and short.severity is Severity.NOTE  # 20 seconds
    assert "2,000 steps, 20 s" in short.evidence[1].text


def test_an_own_run_that_will_write_one_by_the_clock_is_not_told_that_it_writes_none():
    own = dataclasses.replace(long_run(None, step_seconds=0.1).run, format="training-advisor")  # 200 seconds
    assert isinstance(detect_no_checkpoint(learning_case(own)), Finding)
    by_clock = dataclasses.replace(own, facts={**own.facts, "checkpoint_every_seconds": 900.0})
    assert detect_no_checkpoint(learning_case(by_clock)) is None


def test_nobody_is_told_to_write_one_less_often_than_twice_in_a_run():
    advice = detect_no_checkpoint(long_run(None, step_seconds=2.4)).actions[0]  # 80 minutes; Daly's interval is 85
    assert advice.startswith("write one every 40 min")
    assert detect_no_checkpoint(long_run(None)).actions[0].startswith("write one every 84")
    often = detect_checkpoint_interval(long_run(20, step_seconds=2.4, write=60.0))
    assert isinstance(often, Finding) and often.actions == ("checkpoint every 1,000 steps",)
