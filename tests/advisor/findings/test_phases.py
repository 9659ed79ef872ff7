"""Timers that cannot be true, with floors worked out by hand."""

from __future__ import annotations

from advisor.findings.case import Confidence, Finding, Insufficient, Severity
from advisor.findings.detectors import speed
from tests.advisor.findings import build

# GPT-2 124M on an A100 80 GB: 28 · 124,439,808 bytes at 2,039 GB/s are 1.709 ms
FLOOR = 28 * 124_439_808 / 2.039e12


def test_optimizer_below_its_traffic():
    found = speed.detect_optimizer_floor(build.case(build.healthy(optimizer_seconds=0.6e-3)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title == "The optimizer step is timed at 600 µs, where physics needs 1.71 ms or more"
    assert found.confidence is Confidence.HIGH  # not even 16-bit states could
    almost = speed.detect_optimizer_floor(build.case(build.healthy(optimizer_seconds=0.9 * FLOOR)))
    assert almost.confidence is Confidence.MEDIUM


def test_optimizer_above_its_traffic_or_of_another_kind():
    assert speed.detect_optimizer_floor(build.case(build.healthy(optimizer_seconds=1.05 * FLOOR))) is None
    lion = build.healthy(optimizer_seconds=0.6e-3, facts={"optimizer": "Lion"})
    assert speed.detect_optimizer_floor(build.case(lion)) is None
    assert isinstance(speed.detect_optimizer_floor(build.case()), Insufficient)  # not timed
    sharded = build.workload(gpus=4)  # perhaps a quarter of the parameters each
    assert speed.detect_optimizer_floor(build.case(build.healthy(sharded, optimizer_seconds=0.6e-3), sharded)) is None


def test_optimizer_floor_needs_the_card():
    case = build.case(build.healthy(optimizer_seconds=0.6e-3), profile=None)
    assert isinstance(speed.detect_optimizer_floor(case), Insufficient)


def test_passes_faster_than_the_peak():
    # forward: 854,438,400 / 3 FLOPs x 524,288 tokens at 312 TFLOP/s are 478.6 ms; backward without the head's
    # 6 x 50,304 x 768 FLOPs: 622,637,568 x 2/3 x 524,288 / 312e12 = 697.5 ms
    found = speed.detect_pass_floor(build.case(build.healthy(forward_seconds=0.05, backward_seconds=2.0)))
    assert isinstance(found, Finding) and "The forward pass is timed at 50 ms" in found.title
    assert "479 ms" in found.title
    found = speed.detect_pass_floor(build.case(build.healthy(forward_seconds=0.6, backward_seconds=0.65)))
    assert "The backward pass" in found.title and "698 ms" in found.title
    assert speed.detect_pass_floor(build.case(build.healthy(forward_seconds=0.6, backward_seconds=0.9))) is None
    assert speed.detect_pass_floor(build.case(build.healthy(forward_seconds=0.8, backward_seconds=1.6))) is None
