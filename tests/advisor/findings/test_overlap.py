"""Savings of several findings: each second of the run counted once, and never more than there are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.findings import overlap
from advisor.findings.case import Case, Confidence, Finding, Severity
from advisor.findings.registry import judge
from advisor.findings.run_metrics import step_times, waits
from advisor.findings.savings import (
    cost_of_steps,
    saved_share,
    spent_seconds,
    stake_seconds,
    whole_run_seconds,
    worth_saying,
)
from advisor.readers.run_table import Status
from advisor.records import Basis, Estimate
from tests.advisor.findings import build

# 400 steps of a minute: 24,000 s, 6 2/3 h at $2
SECONDS = np.full(400, 60.0)
WHOLE = 400 / 60


def case(**other) -> Case:
    return build.case(build.run(seconds=SECONDS), **other)


def finding(code: str, hours: float | None, low: float | None = None, high: float | None = None) -> Finding:
    saved = None
    if hours is not None:
        low, high = hours if low is None else low, hours if high is None else high
        saved = Estimate(value=hours, low=low, high=high, basis=Basis.MEASURED)
    return Finding(code=code, severity=Severity.WARNING, title=code, evidence=(), confidence=Confidence.HIGH,
                   saved_hours=saved)  # fmt: skip


def total(*findings: Finding, **other) -> overlap.Savings | None:
    return overlap.savings(case(**other), findings)


def parts(found: overlap.Savings) -> dict[str, float]:
    return {part.code: pytest.approx(part.hours.value) for part in found.parts}


def test_nothing_known_is_no_total():
    assert total() is None
    assert total(finding("long_epochs", None)) is None
    assert overlap.savings(build.case(build.without(build.run(), "seconds")), [finding("long_epochs", 1.0)]) is None


def test_one_finding_is_its_own_total():
    found = total(finding("long_epochs", 1.5, 1.0, 2.0))
    assert (found.hours.value, found.hours.low, found.hours.high) == pytest.approx((1.5, 1.0, 2.0))
    assert found.usd.value == pytest.approx(3.0)  # $2 an hour
    assert total(finding("long_epochs", 1.5), usd_per_hour=0.0).usd.value == 0


def test_seconds_beside_each_other_add_up():
    found = total(finding("long_epochs", 1.0), finding("machine_busy", 2.0))
    assert parts(found) == {"machine_busy": 2.0, "long_epochs": 1.0}
    assert found.hours.value == pytest.approx(3.0)


def test_a_whole_counts_what_its_parts_leave():
    found = total(finding("goodput", 2.0), finding("periodic_pauses", 1.5), finding("checkpoints_too_frequent", 1.0))
    # the checkpoints are the pauses; the time beside steady steps holds both
    assert parts(found) == {"periodic_pauses": 1.5, "goodput": 0.5, "checkpoints_too_frequent": 0.0}


def test_slow_steps_shorten_what_is_left():
    found = total(finding("data_stall", 0.2 * WHOLE), finding("bigger_batch", 0.1 * WHOLE))
    assert found.hours.value == pytest.approx((1 - 0.8 * 0.9) * WHOLE)
    found = total(finding("software_bound", 0.5 * WHOLE), finding("data_stall", 0.2 * WHOLE))
    assert parts(found) == {"software_bound": 0.3 * WHOLE, "data_stall": 0.2 * WHOLE}


def test_steps_in_vain_are_counted_first_and_once():
    found = total(finding("overfitting", 0.5 * WHOLE), finding("repeated_data", 0.3 * WHOLE),
                  finding("long_epochs", 0.2 * WHOLE))  # fmt: skip
    # long epochs of the half that is still to be done
    assert parts(found) == {"overfitting": 0.5 * WHOLE, "long_epochs": 0.1 * WHOLE, "repeated_data": 0.0}


def test_interruptions_that_may_come_are_no_seconds_of_this_run():
    assert total(finding("checkpoints_too_rare", 3.0)) is None
    assert total(finding("checkpoints_too_rare", 3.0), finding("long_epochs", 1.0)).hours.value == pytest.approx(1.0)


CODES = ("overfitting", "plateau", "goodput", "periodic_pauses", "machine_busy", "data_stall",
         "software_bound", "cpu_fallback", "bigger_batch", "throttling", "idle_device", "work_done_twice",
         "something_new")  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(CODES), st.tuples(*[st.floats(0, 30)] * 3), min_size=1))
def test_never_more_than_the_run(claims):
    findings = [finding(code, sorted(ends)[1], min(ends), max(ends)) for code, ends in claims.items()]
    found = total(*findings)
    if found is None:
        assert all(sorted(ends)[1] == 0 for ends in claims.values())
        return
    assert 0 <= found.hours.low <= found.hours.value <= found.hours.high <= WHOLE * (1 + 1e-9)
    assert sum(part.hours.value for part in found.parts) == pytest.approx(found.hours.value)
    # no finding counts more than it claims
    assert all(part.hours.value <= sorted(claims[part.code])[1] * (1 + 1e-9) for part in found.parts)


def test_a_shorter_forecast_bounds_the_total():
    found = overlap.savings(case(), [finding("overfitting", WHOLE)], most_hours=2.0)
    assert found.hours.value == pytest.approx(2.0)


def test_next_to_nothing_is_not_worth_saying():
    def hours(value):
        return Estimate(value=value, low=value, high=value, basis=Basis.MEASURED)

    assert not worth_saying(None, None) and not worth_saying(hours(59 / 3600), hours(0.04))
    assert worth_saying(hours(1 / 60), None) and worth_saying(hours(1 / 3600), hours(0.05))


def test_pauses_that_cost_next_to_nothing_are_a_note():
    step = np.arange(1, 401)
    slow = {length: np.where(step % 50 == 0, 20.0, 1.0) * length for length in (0.1, 10.0)}
    found = {}
    for length, seconds in slow.items():
        findings, _ = judge(dataclasses.replace(build.case(build.run(seconds=seconds)), profile=None, expected=None))
        found[length] = next(one for one in findings if one.code == "periodic_pauses")
    assert found[10.0].severity is Severity.WARNING and found[0.1].severity is Severity.NOTE


def test_no_finding_saves_more_than_the_run():
    # all losses are NaN: everything was in vain, but not more than everything, however noisy the steps
    noisy = 60 * np.exp(0.5 * np.random.default_rng(0).standard_normal(400))
    nan = np.full(400, np.nan)
    case_ = build.case(build.run(seconds=noisy, loss=nan, loss_is_nan=1.0))
    findings, _ = judge(case_)
    saved = next(one.saved_hours for one in findings if one.code == "loss_not_finite")
    assert saved.low <= saved.value <= saved.high <= noisy.sum() / 3600 * (1 + 1e-9)


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


NOISE = 1 + 0.01 * np.random.default_rng(5).standard_normal(1000)


@pytest.mark.parametrize("data", [0.3, 0.999, 1.5, 40.0, np.where(np.arange(1000) % 2, 3.0, 0.02)])
def test_no_share_is_above_the_whole_and_nothing_saves_more_than_the_run_took(data):
    for clock in (None, np.cumsum(NOISE + data), np.cumsum(NOISE)):
        seen = build.case(build.run(steps=1000, seconds=NOISE, data_seconds=data, unix_seconds=clock))
        times = step_times(seen)
        waited = waits(seen, times)
        assert waited is None or 0 <= waited.share <= 1
        for finding in judge(seen)[0]:
            assert finding.saved_hours is None or finding.saved_hours.high * 3600 <= spent_seconds(seen) * (1 + 1e-9)


def test_evaluations_of_a_run_that_prints_every_tenth_step_count_once():
    """They counted up to ten times in what the run took, and were capped in what its last steps cost."""
    printed = np.arange(0, 5001, 10)
    seconds = np.where((printed % 250 == 0) & (printed > 0), 8.0625, 0.0625)
    evaluated = build.case(build.run(steps=501, step=printed, seconds=seconds))
    assert spent_seconds(evaluated) == pytest.approx(5001 * 0.0625 + 20 * 8)
    hours, _ = cost_of_steps(evaluated, 3250)
    assert hours.value * 3600 == pytest.approx(3250 * 0.0625 + 13 * 8, rel=0.01)
