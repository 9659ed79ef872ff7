"""What telemetry says: fallback to the CPU, utilisation, throttling, stragglers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import cards, gpu, money
from tests.advisor.findings import build

# one reading a second beside one step a second, so that step 101 belongs to reading 100
CLOCKED = {"unix_seconds": np.arange(400.0), "seconds": np.where(np.arange(400) < 100, 1.0, 1.25)}
HOT = {"throttle_reasons": np.where(np.arange(400) < 100, 0.0, 0x40)}


def with_telemetry(readings: int = 400, **columns):
    return build.case(build.healthy(telemetry=build.telemetry(readings, **columns)))


def test_cpu_fallback():
    # 124M parameters: 498 MB of 16-bit weights and gradients, 15 MB on the card; A100 limit 400 W
    idle = build.telemetry(memory_used_bytes=15e6, power_watts=60.0, utilization=0.0)
    table = build.run(seconds=5000.0, facts={"step_tokens": 524_288}, telemetry=idle)
    case = build.case(table, build.workload(compile=False))
    found = gpu.detect_cpu_fallback(case)
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title.startswith("It does not run on the GPU, ") and "5 of 5 signs" in found.title
    texts = " ".join(e.text for e in found.evidence)
    assert "15 % of its limit" in texts
    assert "89.6 GFLOP/s" in texts  # 524,288 / 5000 x 854,438,400
    assert found.saved_hours is not None


def test_cpu_fallback_of_a_report_that_gives_little():
    # 124M parameters, 256 tokens in 35 s on a card of 112.6 TFLOP/s: 7.3 tok/s x 6N = 5.44 GFLOP/s
    facts = {"parameters": 124e6, "step_tokens": 256, "gpu": "rtx-5080", "gpu_memory_bytes": 16e9}
    seconds = [8.254, 39.8, 38.0, 35.8, 33.4, 31.0]
    table = build.run(steps=6, step=np.arange(0, 60, 10), seconds=seconds, memory_bytes=244 * 2**20, facts=facts)
    case = dataclasses.replace(build.case(table), workload=None, expected=None, profile=None)
    found = gpu.detect_cpu_fallback(case)
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title == "It does not run on the GPU: 3 of 3 signs of training on the CPU"
    assert any("GFLOP/s is what a CPU gives" in e.text for e in found.evidence)
    assert found.saved_hours is None


def test_a_working_card_is_no_fallback():
    assert gpu.detect_cpu_fallback(with_telemetry()) is None
    on_cpu = build.case(build.run(), build.workload(gpu="cpu", precision="fp32"))
    assert gpu.detect_cpu_fallback(on_cpu) is None


def test_too_few_signs_are_no_acquittal():
    bare = dataclasses.replace(build.case(build.without(build.run(), "seconds")), workload=None, profile=None)
    assert isinstance(gpu.detect_cpu_fallback(bare), Insufficient)


def test_utilization_is_not_use():
    found = gpu.detect_utilization(with_telemetry(power_watts=120.0, utilization=0.97))
    assert isinstance(found, Finding) and found.code == "utilization_misleads"
    assert "97 % utilisation is not 97 % use: power 30 % of the limit" in found.title
    assert gpu.detect_utilization(with_telemetry()) is None


def test_a_waiting_card():
    busy = np.where(np.arange(400) % 4 == 0, 0.9, 0.0)  # a kernel in a quarter of the readings
    found = gpu.detect_utilization(with_telemetry(utilization=busy, power_watts=100.0))
    assert isinstance(found, Finding) and found.code == "gpu_waits"
    assert "77.5 % of the time" in found.title  # 1 - 0.9/4
    # one low reading, or low readings at full power, prove nothing
    assert gpu.detect_utilization(with_telemetry(utilization=busy, power_watts=380.0)) is None


def test_power_alone_can_say_idle():
    found = gpu.detect_utilization(with_telemetry(utilization=None, power_watts=22.0))
    assert isinstance(found, Finding) and found.title == "The GPU draws 22 W: it computes nothing"
    assert isinstance(gpu.detect_utilization(with_telemetry(utilization=None)), Insufficient)


def test_utilization_without_telemetry():
    assert isinstance(gpu.detect_utilization(build.case()), Insufficient)


def test_thermal_throttling_by_step_time():
    case = build.case(build.run(**CLOCKED, telemetry=build.telemetry(400, **HOT, temperature_celsius=93.0)))
    found = cards.detect_throttling(case)
    assert isinstance(found, Finding)
    assert found.title == "Throttled (hardware thermal slowdown) in 75 % of the readings, 1.25x slower by step time"
    # 300 of 400 steps take 0.25 s too long: 0.75 x (1 - 1/1.25) = 15 % of the time
    assert found.severity is Severity.ERROR
    assert found.saved_hours.value == pytest.approx(0.15 * 399 / 3600, rel=1e-3)
    assert found.saved_usd.value == pytest.approx(2 * found.saved_hours.value)
    assert "93 °C" in found.evidence[0].text


def test_throttling_by_clock_where_steps_have_no_time_stamps():
    reading = np.arange(400)
    clocks = np.where(reading % 2 == 0, 700.0, 1400.0)
    found = cards.detect_throttling(
        with_telemetry(throttle_reasons=np.where(reading % 2 == 0, 0x8, 0), sm_clock_mhz=clocks)
    )
    assert isinstance(found, Finding) and "2x slower by SM clock" in found.title


def test_power_cap_is_normal_unless_clocks_fall():
    capped = np.where(np.arange(400) < 200, 0.0, 0x4)
    assert cards.detect_throttling(with_telemetry(throttle_reasons=capped)) is None
    low = np.where(np.arange(400) < 200, 1410.0, 1100.0)  # 78 %
    found = cards.detect_throttling(with_telemetry(throttle_reasons=capped, sm_clock_mhz=low))
    assert isinstance(found, Finding) and "power cap" in found.title


def test_healthy_and_unknown_clocks():
    assert cards.detect_throttling(with_telemetry()) is None
    assert isinstance(cards.detect_throttling(build.case()), Insufficient)


def ranked(slow: float, ranks: int = 4, steps: int = 100):
    """Interleaved rows of four ranks; rank 2 needs `slow` times as long for forward and backward."""
    n = ranks * steps
    rank = np.tile(np.arange(ranks, dtype=float), steps)
    own = np.where(rank == 2, slow, 1.0) * (1 + 0.005 * np.random.default_rng(3).standard_normal(n))
    table = build.run(
        steps=n,
        step=np.repeat(np.arange(1, steps + 1), ranks),
        rank=rank,
        seconds=1.3,
        forward_seconds=own / 3,
        backward_seconds=own * 2 / 3,
    )
    return build.case(table, build.workload(gpus=ranks))


def test_straggler():
    found = cards.detect_straggler(ranked(1.12))
    assert isinstance(found, Finding)
    assert found.title.startswith("Rank 2 is 12 % slower") or found.title.startswith("Rank 2 is 11.9 % slower")
    assert found.saved_usd.low == 0
    assert cards.detect_straggler(ranked(1.02)) is None


def test_straggler_by_clock_and_without_data():
    two = build.workload(gpus=2)
    clocks = np.tile([1410.0, 1200.0], 400)
    case = build.case(build.healthy(two, telemetry=build.telemetry(400, gpus=2, sm_clock_mhz=clocks)), two)
    found = cards.detect_straggler(case)
    assert isinstance(found, Finding) and found.title.startswith("GPU 1")
    assert isinstance(cards.detect_straggler(build.case(build.healthy(two), two)), Insufficient)
    assert cards.detect_straggler(build.case()) is None  # one card waits for nobody


def test_minutes_without_a_kernel_are_one_finding_and_not_two():
    # 600 readings a second apart: ten minutes, the last six of them idle; before, the card is busy
    busy = np.where(np.arange(600) < 240, 0.95, 0.0)
    power = np.where(busy > 0.5, 350.0, 60.0)
    idle_later = build.case(build.healthy(telemetry=build.telemetry(600, utilization=busy, power_watts=power)))
    assert gpu.detect_utilization(idle_later) is None
    found = money.detect_idle_device(idle_later)
    assert "60 %" in found.title or "59.9 %" in found.title
    # waiting in between, never for minutes, is what it was
    waits = np.where(np.arange(600) % 4 == 0, 0.95, 0.0)
    waiting = build.case(build.healthy(telemetry=build.telemetry(600, utilization=waits, power_watts=100.0)))
    assert gpu.detect_utilization(waiting).code == "gpu_waits" and money.detect_idle_device(waiting) is None


def test_throttling_names_the_cards():
    hot = np.tile([0.0, 0x40], 400)  # the second of two
    table = build.healthy(telemetry=build.telemetry(400, gpus=2, throttle_reasons=hot))
    found = cards.detect_throttling(build.case(table))
    assert found.evidence[1].text == "by GPU: GPU 0 in 0 %, GPU 1 in 100 %"
