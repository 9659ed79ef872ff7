"""Waiting for data beside the step's own time and within it."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors import money, step_time
from advisor.findings.registry import judge
from advisor.findings.run_metrics import seconds_beside, step_times, waits
from advisor.findings.savings import spent_seconds
from tests.advisor.findings import build

RANDOM = np.random.default_rng(5)
STEP = np.arange(1, 1001)
NOISE = 1 + 0.01 * RANDOM.standard_normal(1000)
ALTERNATING = np.where(STEP % 2 == 0, 3.0, 0.02)  # every other step waits three times as long as it works


def case(seconds=NOISE, **other):
    return build.case(build.run(steps=1000, seconds=seconds, **other))


def test_what_waits_longer_than_a_step_lies_beside_it():
    beside = case(data_seconds=ALTERNATING)
    found = step_time.detect_data_stall(beside)
    assert found.severity is Severity.ERROR and found.title == "60.2 % of the time is spent waiting for data"
    assert "beside the seconds of the step" in found.evidence[0].text
    # 1,000 steps of 1 s and 1.51 s of waiting
    assert spent_seconds(beside) == pytest.approx(2510, rel=0.01)
    assert found.saved_hours.value == pytest.approx(1510 / 3600, rel=0.01)
    within = case(NOISE + 0.5, data_seconds=0.5)
    assert seconds_beside(within) == 0
    assert step_time.detect_data_stall(within).title.startswith("33.3 %")


def test_the_clock_tells_whether_waiting_is_a_part_of_the_step():
    within, beside = np.cumsum(NOISE), np.cumsum(NOISE + 0.4)
    assert step_time.detect_data_stall(case(data_seconds=0.4, unix_seconds=within)).title.startswith("40 %")
    # a clock of whole seconds sees it as well: 0.4 / 1.4
    far = case(NOISE * 4, data_seconds=3.0, unix_seconds=np.round(np.cumsum(NOISE * 4 + 3.0)))
    assert step_time.detect_data_stall(case(data_seconds=0.4, unix_seconds=beside)).title.startswith("28.6 %")
    assert step_time.detect_data_stall(far).title.startswith("42.9 %")


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
