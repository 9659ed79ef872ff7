"""Waiting for data beside the step's own time and within it; gaps between steps by clocks that are rounded."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors import money, phases, timing
from advisor.findings.registry import judge
from advisor.findings.run_metrics import step_times
from advisor.findings.savings import spent_seconds
from advisor.findings.series import resolution
from advisor.findings.waits import seconds_beside, waits
from tests.advisor.findings import build

RANDOM = np.random.default_rng(5)
STEP = np.arange(1, 1001)
NOISE = 1 + 0.01 * RANDOM.standard_normal(1000)
ALTERNATING = np.where(STEP % 2 == 0, 3.0, 0.02)  # every other step waits three times as long as it works


def case(seconds=NOISE, **other):
    return build.case(build.run(steps=1000, seconds=seconds, **other))


def test_what_waits_longer_than_a_step_lies_beside_it():
    beside = case(data_seconds=ALTERNATING)
    found = timing.detect_data_stall(beside)
    assert found.severity is Severity.ERROR and found.title == "60.2 % of the time is spent waiting for data"
    assert "beside the seconds of the step" in found.evidence[0].text
    # 1,000 steps of 1 s and 1.51 s of waiting
    assert spent_seconds(beside) == pytest.approx(2510, rel=0.01)
    assert found.saved_hours.value == pytest.approx(1510 / 3600, rel=0.01)
    within = case(NOISE + 0.5, data_seconds=0.5)
    assert seconds_beside(within) == 0
    assert timing.detect_data_stall(within).title.startswith("33.3 %")


def test_the_clock_tells_whether_waiting_is_a_part_of_the_step():
    within, beside = np.cumsum(NOISE), np.cumsum(NOISE + 0.4)
    assert timing.detect_data_stall(case(data_seconds=0.4, unix_seconds=within)).title.startswith("40 %")
    # a clock of whole seconds sees it as well: 0.4 / 1.4
    far = case(NOISE * 4, data_seconds=3.0, unix_seconds=np.round(np.cumsum(NOISE * 4 + 3.0)))
    assert timing.detect_data_stall(case(data_seconds=0.4, unix_seconds=beside)).title.startswith("28.6 %")
    assert timing.detect_data_stall(far).title.startswith("42.9 %")


@pytest.mark.parametrize("data", [0.3, 0.999, 1.5, 40.0, ALTERNATING])
def test_no_share_is_above_the_whole_and_nothing_saves_more_than_the_run_took(data):
    for clock in (None, np.cumsum(NOISE + data), np.cumsum(NOISE)):
        seen = case(data_seconds=data, unix_seconds=clock)
        times = step_times(seen)
        waited = waits(seen, times)
        assert waited is None or 0 <= waited.share <= 1
        for finding in judge(seen)[0]:
            assert finding.saved_hours is None or finding.saved_hours.high * 3600 <= spent_seconds(seen) * (1 + 1e-9)


def test_waiting_beside_the_step_is_not_said_twice():
    clock = np.cumsum(NOISE + ALTERNATING)
    assert money.detect_goodput(case(data_seconds=ALTERNATING, unix_seconds=clock)) is None
    assert isinstance(money.detect_goodput(case(unix_seconds=clock)), Finding)  # nobody knows what it waits for


def test_parts_that_are_the_step_without_the_data_add_up():
    parts = {"forward_seconds": 0.8, "backward_seconds": 1.6, "optimizer_seconds": 0.01}
    assert phases.detect_phase_sum(build.case(build.healthy(seconds=2.5, data_seconds=0.7, **parts))) is None
    wrong = phases.detect_phase_sum(build.case(build.healthy(seconds=2.0, data_seconds=0.7, **parts)))
    assert isinstance(wrong, Finding) and wrong.severity is Severity.ERROR


def test_the_unit_a_clock_is_rounded_to():
    assert resolution(0.6 * np.arange(50)) == pytest.approx(0.6)
    assert resolution(1.7e9 + np.floor(1.3 * np.arange(50))) == 1.0
    assert resolution(np.cumsum(NOISE)) == 0.0
    assert resolution(np.full(5, 7.0)) == 0.0


@pytest.mark.parametrize("seconds", [0.478, 3.4])
def test_a_clock_of_hundredths_of_a_minute_shows_no_gap_where_there_is_none(seconds):
    taken = seconds * NOISE
    clock = np.where(STEP > 10, np.cumsum(np.where(STEP > 10, taken, 0.0)), 0.0)  # nanochat leaves out the first ten

    def rounded(more: float) -> object:
        printed = 60 * np.round((clock + more * seconds * np.maximum(0, STEP - 10)) / 60, 2)
        return timing.detect_data_stall(case(taken, elapsed_seconds=printed))

    assert not isinstance(rounded(0.0), Finding)
    found = rounded(0.25)
    assert found.code == "gaps_between_steps"
    assert float(found.title.split()[0]) == pytest.approx(20, abs=1)  # 1 - 1/1.25


def test_evaluations_within_the_stretches_of_a_coarse_clock_are_no_gap():
    evals = np.where(STEP % 20 == 0, 3.0, np.nan)
    clock = np.floor(np.cumsum(0.1 * NOISE + np.where(STEP % 20 == 0, 4.0, 0.0)))
    assert not isinstance(timing.detect_data_stall(case(0.1 * NOISE, unix_seconds=clock, eval_loss=evals)), Finding)
