"""Signs of a run on the CPU: two runs on record, one that used its card and one that did not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.laws.cpu_fallback import CONVICTING, Readings, cpu_signs

# 124 M parameters, 256 tokens in 35 s on a card of 112.6 TFLOP/s: 7.3 tokens/s × 6N = 5.4 GFLOP/s, 244 MiB in use
FALLEN_BACK = Readings(
    parameters=124e6,
    memory_used_bytes=244 * 2**20,
    flops_per_second=7.3 * 6 * 124e6,
    peak_flops=112.6e12,
    first_step_seconds=8.254,
    later_step_seconds=35.8,
)
# an A100 at work: 12 GB in use, 370 of 400 W, 40 % of its peak
AT_WORK = Readings(
    parameters=124e6,
    memory_used_bytes=12e9,
    power_watts=370.0,
    power_limit_watts=400.0,
    utilization=0.98,
    flops_per_second=125e12,
    peak_flops=312e12,
    first_step_seconds=30.0,
    later_step_seconds=0.5,
)


def applying(readings: Readings) -> int:
    return sum(sign.applies for sign in cpu_signs(readings))


def test_a_run_on_the_cpu_is_convicted_by_what_little_is_known():
    assert len(cpu_signs(FALLEN_BACK)) == applying(FALLEN_BACK) == CONVICTING
    assert "5.43 GFLOP/s is what a CPU gives" in cpu_signs(FALLEN_BACK)[1].text


def test_a_run_on_its_card_shows_no_sign():
    assert len(cpu_signs(AT_WORK)) == 5 and applying(AT_WORK) == 0
    assert cpu_signs(Readings()) == []


@pytest.mark.parametrize(
    ("watts", "limit", "idle"),
    [
        (55, 300, True),  # V100 with 6.7 GB in use, nothing running
        (35 + 66, 350, True),  # L40S: bare idle and what an open context adds (Vadari 2026)
        (120, 350, False),
        (200, 400, False),  # half of the limit: launch- or data-bound (sources §7.4)
    ],
)
def test_idle_power_is_what_a_card_with_an_open_context_draws(watts, limit, idle):
    [sign] = cpu_signs(Readings(power_watts=watts, power_limit_watts=limit))
    assert sign.applies is idle


def test_a_reading_of_eight_percent_is_no_idle_card():
    # sources §7.4: an L4 read 38 % and 8 % at the same tokens per second
    assert applying(Readings(utilization=0.08)) == 0 and applying(Readings(utilization=0.01)) == 1


def test_a_slow_card_is_not_taken_for_a_cpu():
    assert len(cpu_signs(Readings(flops_per_second=1e11, peak_flops=4e12))) == 0
    assert applying(Readings(flops_per_second=1e11, peak_flops=6e12)) == 1


def test_sixteen_bit_weights_with_gradients_or_fp32_weights_are_the_least():
    assert applying(replace(AT_WORK, memory_used_bytes=0.49e9)) == 1  # 124 M × 4 bytes = 496 MB
    assert applying(replace(AT_WORK, memory_used_bytes=0.50e9)) == 0
