"""Gradient norms and loss scaling."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.gradients import (
    detect_grad_norm_large,
    detect_grad_norm_not_collected,
    detect_loss_scale_skips,
)
from tests.advisor.findings.build import event
from tests.advisor.findings.build_learning import STEPS, learning_case, learning_run

ALL = (
    detect_grad_norm_not_collected,
    detect_grad_norm_large,
)


def with_norm(norm, **facts):
    return learning_case(learning_run(grad_norm=norm, facts=facts))


@pytest.mark.parametrize("detector", ALL)
def test_a_healthy_run_is_silent(detector):
    assert detector(learning_case()) is None


@pytest.mark.parametrize("detector", ALL)
def test_without_norms_nothing_is_judged(detector):
    assert isinstance(detector(learning_case(learning_run(grad_norm=None))), Insufficient)


def test_zero_in_every_row_was_not_collected():
    found = detect_grad_norm_not_collected(with_norm(np.zeros(STEPS)))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "not collected" in found.title


def test_placeholders_that_a_reader_dropped_were_not_collected():
    table = learning_run(49, grad_norm=None)
    noted = dataclasses.replace(table, provenance={"grad_norm": "as printed; 0.000 is read as not collected"})
    assert isinstance(detect_grad_norm_not_collected(learning_case(noted)), Finding)


def test_a_norm_of_48_times_the_clip_at_the_start():
    found = detect_grad_norm_large(learning_case(learning_run(4, grad_norm=[47.77, 2.16, 0.60, 0.48], eval_loss=None)))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "47.77" in found.title


def test_fp16_skips_at_the_start_and_now_and_then_are_normal():
    skipped = np.zeros(STEPS)
    skipped[:12] = 1
    skipped[500::500] = 1
    assert detect_loss_scale_skips(learning_case(learning_run(skipped=skipped, facts={"precision": "fp16"}))) is None


def test_frequent_late_skips_are_paid_for_nothing():
    skipped = np.zeros(STEPS)
    skipped[100::10] = 1  # 190 of the 1,950 steps after the first 50
    found = detect_loss_scale_skips(learning_case(learning_run(skipped=skipped, facts={"precision": "fp16"})))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING and "9.7%" in found.title
    assert found.saved_hours is not None and found.saved_hours.value == pytest.approx(190 / 3600, rel=0.03)


def test_all_steps_skipped_is_an_error():
    table = learning_run(3, loss=np.full(3, np.nan), skipped=np.ones(3), learning_rate=np.zeros(3), eval_loss=None)
    found = detect_loss_scale_skips(learning_case(table))
    assert isinstance(found, Finding) and found.code == "all_steps_skipped" and found.severity is Severity.ERROR


def test_a_scale_that_cannot_go_lower_is_an_error():
    hit = event("overflow", "OVERFLOW! Skipping step. Attempted loss scale: 256, reducing to 256", 0.0)
    found = detect_loss_scale_skips(learning_case(dataclasses.replace(learning_run(10), events=(hit,))))
    assert isinstance(found, Finding) and found.code == "loss_scale_at_minimum"


def test_a_scale_that_is_halved_is_not_at_its_bottom():
    hit = event("overflow", "OVERFLOW! Skipping step. Attempted loss scale: 512, reducing to 256", 0.0)
    assert detect_loss_scale_skips(learning_case(dataclasses.replace(learning_run(10), events=(hit,)))) is None


def test_bf16_without_skips_needs_no_scale():
    assert detect_loss_scale_skips(learning_case()) is None
    assert isinstance(detect_loss_scale_skips(learning_case(learning_run(facts={"precision": "fp16"}))), Insufficient)
