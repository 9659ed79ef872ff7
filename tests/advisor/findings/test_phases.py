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
