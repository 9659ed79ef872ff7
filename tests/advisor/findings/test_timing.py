"""Drift, lasting changes, pauses, stalls, waiting for data, warm-up: each with the healthy run beside it."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import drift, pauses, timing
from tests.advisor.findings import build

RANDOM = np.random.default_rng(5)
NOISE = 1 + 0.01 * RANDOM.standard_normal(1000)
STEP = np.arange(1, 1001)


def case(seconds=NOISE, **other):
    return build.case(build.run(steps=1000, seconds=seconds, **other))


def test_drift():
    # 1 % in every hundred steps, in log: e^0.1 over the run
    found = drift.detect_drift(case(NOISE * np.exp(STEP / 10_000), tokens=1000 * STEP))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.title.endswith("slower from step 1 to 1000")
    grown = float(found.title.split()[2])
    assert grown == pytest.approx(100 * (np.e**0.1 - 1), abs=0.5)
    # against its first steps the run loses the integral of e^0.1x - 1: 5.17 % of 1,000 s
    assert found.saved_hours.value == pytest.approx(51.7 / 3600, rel=0.06)


def test_no_drift():
    assert drift.detect_drift(case()) is None
    assert drift.detect_drift(case(NOISE * np.exp(-STEP / 10_000))) is None  # faster is no complaint
    assert drift.detect_drift(case(NOISE * np.exp(STEP / 50_000))) is None  # 2 %
    assert isinstance(drift.detect_drift(build.case(build.run(steps=20))), Insufficient)


def test_drift_is_split_into_data_and_compute():
    grown = NOISE * np.exp(STEP / 10_000)
    found = drift.detect_drift(case(grown, data_seconds=grown - 0.95 * NOISE))
    assert found.causes[0] == "the data loader"
    found = drift.detect_drift(case(grown, data_seconds=0.02))
    assert found.causes[0] == "the GPU or the host, not the data loader"


def test_lasting_change():
    changed = NOISE * np.where(STEP > 600, 1.5, 1.0)
    found = drift.detect_shift(case(changed, tokens=1000 * STEP))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.title.endswith("each step takes 1.5x as long")
    assert found.evidence[0].first_step == pytest.approx(601, abs=6)
    # 400 of 1,000 steps take half a second too long: 200 of 1,200 s
    assert found.saved_hours.value == pytest.approx(200 / 3600, rel=0.05)
    assert drift.detect_drift(case(changed)) is None  # one cause, one finding


def test_a_schedule_that_makes_steps_longer_is_no_fault_of_the_machine():
    changed = NOISE * np.where(STEP > 600, 1.5, 1.0)
    batch = np.where(STEP > 600, 48, 32)
    assert drift.detect_shift(case(changed, step_samples=batch)) is None
    assert drift.detect_shift(case(changed, tokens=np.cumsum(1024 * batch))) is None
    unknown = drift.detect_shift(case(changed))
    assert unknown.severity is Severity.NOTE and unknown.saved_hours is None
    assert "schedule" in unknown.causes[0] and "if no schedule" in unknown.actions[0]
    same = drift.detect_shift(case(changed, step_samples=32))
    assert same.severity is Severity.WARNING and not any("schedule" in cause for cause in same.causes)


def test_steps_that_swing_are_no_lasting_change():
    to_and_fro = NOISE * np.where((STEP > 300) & (STEP % 10 < 7), 3.0, 1.0)
    found = drift.detect_shift(case(to_and_fro, step_samples=8))
    assert found is None or (found.severity is Severity.NOTE and found.title.endswith("to and fro"))


def test_stairs_of_one_width_are_a_schedule():
    random = np.random.default_rng(8)
    step = np.arange(0, 6001, 10)
    wide = 128 + 256 * np.minimum(step // 1000, 5)  # attention windows, which no column holds
    climbing = (0.13 + 7e-5 * wide) * (1 + 0.01 * random.standard_normal(601))
    assert drift.detect_shift(build.case(build.run(steps=601, step=step, seconds=climbing))) is None
    uneven = 0.15 * np.where(step > 5200, 1.9, np.where(step > 1400, 1.45, np.where(step > 800, 1.2, 1.0)))
    assert isinstance(drift.detect_shift(build.case(build.run(steps=601, step=step, seconds=uneven))), Finding)


def test_no_lasting_change():
    assert drift.detect_shift(case()) is None
    assert drift.detect_shift(case(NOISE * np.exp(STEP / 3000))) is None  # a slope is no step
    assert drift.detect_shift(case(NOISE * np.where(STEP > 600, 0.7, 1.0))) is None  # faster


def test_waiting_for_data():
    found = timing.detect_data_stall(case(data_seconds=0.2))
    assert isinstance(found, Finding) and found.code == "data_stall"
    assert found.severity is Severity.WARNING and found.title.startswith("20 %")
    assert found.saved_usd.value == pytest.approx(2 * 0.2 * 1000 / 3600, rel=0.01)
    assert timing.detect_data_stall(case(data_seconds=0.02)) is None
    assert timing.detect_data_stall(case(data_seconds=0.6)).severity is Severity.ERROR


def test_gaps_between_steps():
    found = timing.detect_data_stall(case(unix_seconds=1.7e9 + 1.25 * STEP))
    assert isinstance(found, Finding) and found.code == "gaps_between_steps"
    assert found.title == "20 % of the time lies between steps"  # 1 - 1/1.25
    assert timing.detect_data_stall(case(unix_seconds=1.7e9 + np.cumsum(NOISE))) is None
    assert isinstance(timing.detect_data_stall(case()), Insufficient)


def test_evaluations_seen_in_step_times():
    seconds = NOISE + np.where(STEP % 100 == 0, 30.0, 0.0)
    evals = np.where(STEP % 100 == 0, 3.0, np.nan)
    found = pauses.detect_periodic_pauses(case(seconds, eval_loss=evals))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    # ten pauses of 30 s beside 1,000 s
    assert found.title == "Every 100 steps one takes 30 s longer: 23.1 % of the time (evaluation)"
    assert "evaluate every 200 steps" in found.actions
    assert found.saved_hours.high == pytest.approx(300 / 3600, rel=0.02)


def test_rows_printed_now_and_then_count_what_lies_between():
    # every tenth step printed, each 250th evaluating for 8 s: 5 s in 62.5 + 8 per 250 steps
    step = np.arange(0, 5001, 10)
    seconds = np.where((step % 250 == 0) & (step > 0), 8.0625, 0.0625)
    random = np.random.default_rng(0)
    table = build.run(steps=501, step=step, seconds=seconds * (1 + 0.01 * random.standard_normal(501)))
    found = pauses.detect_periodic_pauses(build.case(table))
    assert found.title.startswith("Every 250 steps")
    assert "33.9 % of the time" in found.title or "33.8 % of the time" in found.title  # 8 / (250·0.0625 + 8)


def test_checkpoints_and_garbage_collection():
    saves = [build.event("checkpoint", step=float(s)) for s in range(50, 1001, 50)]
    seconds = np.where(STEP % 50 == 0, 6.0, 1.0) * NOISE
    assert "(checkpoint)" in pauses.detect_periodic_pauses(case(seconds, events=saves)).title
    declared = case(seconds, facts={"checkpoint_every_steps": 50})
    assert "(checkpoint)" in pauses.detect_periodic_pauses(declared).title
    collected = np.where(STEP % 20 == 0, 0.6, 0.1) * NOISE
    assert "garbage collection" in pauses.detect_periodic_pauses(case(collected)).title


def test_healthy_steps_do_not_pause():
    assert pauses.detect_periodic_pauses(case()) is None
    assert pauses.detect_stalls(case()) is None
    noisy = np.exp(0.15 * np.random.default_rng(1).standard_normal(1000))
    assert pauses.detect_periodic_pauses(case(noisy)) is None
    assert pauses.detect_stalls(case(noisy)) is None
    nothing = build.case(build.without(build.run(), "seconds"))
    assert isinstance(pauses.detect_periodic_pauses(nothing), Insufficient)


def test_irregular_stalls():
    seconds = NOISE.copy()
    seconds[[130, 141, 390, 733, 737, 902]] = 20.0
    found = pauses.detect_stalls(case(seconds))
    assert isinstance(found, Finding)
    # six times 19 s of 1,114 s
    assert found.title == "6 irregular pauses cost 10.2 % of the time"
    assert pauses.detect_periodic_pauses(case(seconds)) is None


def test_warm_up():
    seconds = NOISE.copy()
    seconds[:3] = [45, 12, 3]
    found = timing.detect_warm_up(case(seconds))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE
    assert found.title == "The first 3 printed steps cost 57 s more than steady ones; no rate counts them"
    assert timing.detect_warm_up(case()) is None
    seconds[:3] = [19_000, 1, 1]  # the program stood still over night
    assert timing.detect_warm_up(case(seconds)) is None
