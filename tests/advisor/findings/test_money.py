"""What is paid for and not used."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient
from advisor.findings.detectors import money
from advisor.findings.registry import judge
from advisor.findings.savings import saved_share, spent_seconds, stake_seconds, whole_run_seconds
from advisor.readers.run_table import Status
from tests.advisor.findings import build


def test_savings_are_of_the_whole_planned_run():
    case = build.case(build.run(seconds=1.0, facts={"planned_steps": 4000}, status=Status.INCOMPLETE))
    assert whole_run_seconds(case) == pytest.approx(4000)
    saved = saved_share(case, 0.25)
    assert saved[0].value == pytest.approx(1000 / 3600)
    assert saved[1].value == pytest.approx(2 * 1000 / 3600)
    free = saved_share(dataclasses.replace(case, usd_per_hour=None), 0.25)
    assert free[1] is None and free[0] is not None
    assert saved_share(build.case(build.without(case.run, "seconds")), 0.25) == (None, None)


def test_a_run_that_is_over_saves_no_more_than_it_took():
    ended = build.case(build.run(seconds=1.0, facts={"planned_steps": 4000}, status=Status.TIME_LIMIT))
    assert stake_seconds(ended) == pytest.approx(400)
    nan = np.where(np.arange(400) < 10, 5.0, np.nan)
    broken = build.run(seconds=1.0, loss=nan, loss_is_nan=np.isnan(nan), facts={"planned_steps": 40_000},
                       status=Status.TIME_LIMIT)  # fmt: skip
    found = next(f for f in judge(build.case(broken))[0] if f.code == "loss_not_finite")
    assert found.saved_hours.high <= 400 / 3600 + 1e-9


def test_the_longest_account_of_the_time_counts():
    stamps = 1e9 + np.arange(1, 401)
    assert spent_seconds(build.case(build.run(seconds=1.0, unix_seconds=stamps))) == pytest.approx(399)
    started = build.run(seconds=1.0, unix_seconds=stamps, facts={"total_seconds": 430.0})
    assert spent_seconds(build.case(started)) == pytest.approx(430)  # the first stamp is after the start-up
    coarse = build.run(seconds=1.0, elapsed_seconds=np.where(np.arange(400) < 399, 0.0, 0.6))
    assert spent_seconds(build.case(coarse)) == pytest.approx(400)


def test_cost_needs_a_price_and_a_pace():
    assert money.detect_cost(build.case()) is None
    assert isinstance(money.detect_cost(build.case(usd_per_hour=None)), Insufficient)
    assert isinstance(money.detect_cost(build.case(build.without(build.run(), "seconds"))), Insufficient)


def test_goodput():
    # 400 steps of a second in 800 s of wall clock
    found = money.detect_goodput(build.case(build.run(seconds=1.0, elapsed_seconds=2.0 * np.arange(400) + 1)))
    assert isinstance(found, Finding)
    assert found.title.startswith("49.9 % of the wall clock is not training")  # 1 - 400/798
    good = build.run(seconds=1.0, elapsed_seconds=1.05 * np.arange(400))
    assert money.detect_goodput(build.case(good)) is None
    assert isinstance(money.detect_goodput(build.case(build.run())), Insufficient)


def test_idle_device():
    # an hour watched, the first twenty minutes without a kernel
    busy = np.where(np.arange(3600) < 1200, 0.0, 0.95)
    found = money.detect_idle_device(build.case(build.healthy(telemetry=build.telemetry(3600, utilization=busy))))
    assert isinstance(found, Finding)
    assert "33.3 % of the time watched" in found.title
    assert "20 min, $0.67" in found.title  # a third of $2
    evals = np.where(np.arange(3600) % 300 < 60, 0.0, 0.95)  # a minute in five: evaluations
    assert (
        money.detect_idle_device(build.case(build.healthy(telemetry=build.telemetry(3600, utilization=evals)))) is None
    )
    assert isinstance(money.detect_idle_device(build.case()), Insufficient)


def test_work_done_twice():
    restart = build.event("restart", "steps go back from 300 to 201", 300, first_step=201.0, last_step=300.0)
    found = money.detect_work_done_twice(build.case(build.run(seconds=1.0, events=[restart])))
    assert isinstance(found, Finding)
    assert found.title == "100 steps were done twice in 1 restart (100 s, $0.06)"  # 100 s of $2 an hour
    resumed = build.event("restart", "Resuming from step 300", 300)
    assert money.detect_work_done_twice(build.case(build.run(events=[resumed]))) is None
