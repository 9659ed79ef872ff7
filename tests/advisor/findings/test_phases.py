"""Timers that cannot be true, with floors worked out by hand."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Confidence, Finding, Insufficient, Severity
from advisor.findings.detectors import phases
from tests.advisor.findings import build

# GPT-2 124M on an A100 80 GB: 28 · 124,439,808 bytes at 2,039 GB/s are 1.709 ms
FLOOR = 28 * 124_439_808 / 2.039e12


def test_optimizer_below_its_traffic():
    found = phases.detect_optimizer_floor(build.case(build.healthy(optimizer_seconds=0.6e-3)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title == "The optimizer step is timed at 600 µs, where physics needs 1.71 ms or more"
    assert found.confidence is Confidence.HIGH  # not even 16-bit states could
    almost = phases.detect_optimizer_floor(build.case(build.healthy(optimizer_seconds=0.9 * FLOOR)))
    assert almost.confidence is Confidence.MEDIUM


def test_optimizer_above_its_traffic_or_of_another_kind():
    assert phases.detect_optimizer_floor(build.case(build.healthy(optimizer_seconds=1.05 * FLOOR))) is None
    lion = build.healthy(optimizer_seconds=0.6e-3, facts={"optimizer": "Lion"})
    assert phases.detect_optimizer_floor(build.case(lion)) is None
    assert isinstance(phases.detect_optimizer_floor(build.case()), Insufficient)  # not timed
    sharded = build.workload(gpus=4)  # perhaps a quarter of the parameters each
    assert phases.detect_optimizer_floor(build.case(build.healthy(sharded, optimizer_seconds=0.6e-3), sharded)) is None


def test_optimizer_floor_needs_the_card():
    case = build.case(build.healthy(optimizer_seconds=0.6e-3), profile=None)
    assert isinstance(phases.detect_optimizer_floor(case), Insufficient)


def test_passes_faster_than_the_peak():
    # forward: 854,438,400 / 3 FLOPs x 524,288 tokens at 312 TFLOP/s are 478.6 ms; backward without the head's
    # 6 x 50,304 x 768 FLOPs: 622,637,568 x 2/3 x 524,288 / 312e12 = 697.5 ms
    found = phases.detect_pass_floor(build.case(build.healthy(forward_seconds=0.05, backward_seconds=2.0)))
    assert isinstance(found, Finding) and "The forward pass is timed at 50 ms" in found.title
    assert "479 ms" in found.title
    found = phases.detect_pass_floor(build.case(build.healthy(forward_seconds=0.6, backward_seconds=0.65)))
    assert "The backward pass" in found.title and "698 ms" in found.title
    assert phases.detect_pass_floor(build.case(build.healthy(forward_seconds=0.6, backward_seconds=0.9))) is None
    assert phases.detect_pass_floor(build.case(build.healthy(forward_seconds=0.8, backward_seconds=1.6))) is None


def test_backward_shorter_than_forward():
    found = phases.detect_short_backward(build.case(build.healthy(forward_seconds=1.0945, backward_seconds=0.9729)))
    assert isinstance(found, Finding) and "0.89" in found.evidence[0].text
    assert phases.detect_short_backward(build.case(build.healthy(forward_seconds=0.8, backward_seconds=1.6))) is None
    assert isinstance(phases.detect_short_backward(build.case()), Insufficient)


def test_short_passes_are_launches_and_cpus_do_not_lie():
    short = build.healthy(forward_seconds=16 * 0.006, backward_seconds=16 * 0.005)  # 16 micro-batches of 6 and 5 ms
    found = phases.detect_short_backward(build.case(short))
    assert found.severity is Severity.NOTE and "launches" in found.causes[0]
    on_cpu = build.case(
        build.run(forward_seconds=1.0, backward_seconds=0.9), build.workload(gpu="cpu", precision="fp32")
    )
    assert phases.detect_short_backward(on_cpu) is None


def test_first_step_faster_than_the_rest():
    seconds = np.full(400, 2.5)
    seconds[0] = 0.4
    found = phases.detect_fast_first_step(build.case(build.healthy(seconds=seconds)))
    assert isinstance(found, Finding)
    assert found.title == "The first step takes 400 ms, later ones 2.5 s"
    seconds[0] = 30.0
    assert phases.detect_fast_first_step(build.case(build.healthy(seconds=seconds))) is None
    later = build.healthy(seconds=np.r_[0.4, np.full(399, 2.5)], step=np.arange(2001, 2401))  # resumed
    assert isinstance(phases.detect_fast_first_step(build.case(later)), Insufficient)


def test_parts_and_whole():
    parts = {"data_seconds": 0.01, "forward_seconds": 0.8, "backward_seconds": 1.6, "optimizer_seconds": 0.01}
    assert phases.detect_phase_sum(build.case(build.healthy(seconds=2.5, **parts))) is None  # 96.8 %
    found = phases.detect_phase_sum(build.case(build.healthy(seconds=2.2, **parts)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title == "The parts of a step add up to 110 % of it"
    found = phases.detect_phase_sum(build.case(build.healthy(seconds=4.84, **parts)))
    assert found.severity is Severity.NOTE and "50 % is not accounted for" in found.title


def test_one_timed_step_is_enough_for_what_cannot_be():
    once = np.where(np.arange(400) == 399, 1.0, np.nan)
    table = build.healthy(optimizer_seconds=0.6e-3 * once, forward_seconds=1.09 * once, backward_seconds=0.97 * once)
    assert isinstance(phases.detect_optimizer_floor(build.case(table)), Finding)
    assert isinstance(phases.detect_short_backward(build.case(table)), Finding)


def test_parts_timed_on_some_steps_only():
    step = np.arange(400)
    sometimes = np.where(step % 50 == 0, 1.0, np.nan)
    table = build.healthy(seconds=2.5, forward_seconds=0.8 * sometimes, backward_seconds=1.6 * sometimes)
    assert phases.detect_phase_sum(build.case(table)) is None
