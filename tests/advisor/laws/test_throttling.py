"""NVML's bits, as its header numbers them."""

from __future__ import annotations

import pynvml

from advisor.laws.throttling import ALARMS, POWER_CAP, REASONS, reasons_in


def test_bits_are_the_drivers():
    assert pynvml.nvmlClocksThrottleReasonSwPowerCap == POWER_CAP
    assert (
        pynvml.nvmlClocksThrottleReasonHwSlowdown,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    ) == ALARMS
    others = (
        pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting,
        pynvml.nvmlClocksThrottleReasonSyncBoost,
        pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
    )
    assert set(REASONS) == {POWER_CAP, *ALARMS, *others}


def test_masks_in_words():
    assert reasons_in([0x1, 0x0]) == ()  # idle
    assert reasons_in([0x80, 0x80, 0x4]) == ("power cap", "power brake")
