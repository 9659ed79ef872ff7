"""Pauses and waiting for data, each with the healthy run beside it."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import step_time
from tests.advisor.findings import build

RANDOM = np.random.default_rng(5)
NOISE = 1 + 0.01 * RANDOM.standard_normal(1000)
STEP = np.arange(1, 1001)


def case(seconds=NOISE, **other):
    return build.case(build.run(steps=1000, seconds=seconds, **other))


def test_waiting_for_data():
    found = step_time.detect_data_stall(case(data_seconds=0.2))
    assert isinstance(found, Finding) and found.code == "data_stall"
    assert found.severity is Severity.WARNING and found.title.startswith("20 %")
    assert found.saved_usd.value == pytest.approx(2 * 0.2 * 1000 / 3600, rel=0.01)
    assert step_time.detect_data_stall(case(data_seconds=0.02)) is None
    assert step_time.detect_data_stall(case(data_seconds=0.6)).severity is Severity.ERROR


def test_evaluations_seen_in_step_times():
    seconds = NOISE + np.where(STEP % 100 == 0, 30.0, 0.0)
    evals = np.where(STEP % 100 == 0, 3.0, np.nan)
    found = step_time.detect_periodic_pauses(case(seconds, eval_loss=evals))
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
    found = step_time.detect_periodic_pauses(build.case(table))
    assert found.title.startswith("Every 250 steps")
    assert "33.9 % of the time" in found.title or "33.8 % of the time" in found.title  # 8 / (250·0.0625 + 8)


def test_checkpoints_and_garbage_collection():
    saves = [build.event("checkpoint", step=float(s)) for s in range(50, 1001, 50)]
    seconds = np.where(STEP % 50 == 0, 6.0, 1.0) * NOISE
    assert "(checkpoint)" in step_time.detect_periodic_pauses(case(seconds, events=saves)).title
    declared = case(seconds, facts={"checkpoint_every_steps": 50})
    assert "(checkpoint)" in step_time.detect_periodic_pauses(declared).title
    collected = np.where(STEP % 20 == 0, 0.6, 0.1) * NOISE
    assert "garbage collection" in step_time.detect_periodic_pauses(case(collected)).title


def test_healthy_steps_do_not_pause():
    assert step_time.detect_periodic_pauses(case()) is None
    noisy = np.exp(0.15 * np.random.default_rng(1).standard_normal(1000))
    assert step_time.detect_periodic_pauses(case(noisy)) is None
    nothing = build.case(build.without(build.run(), "seconds"))
    assert isinstance(step_time.detect_periodic_pauses(nothing), Insufficient)
