"""The meaning of NVML's clocks-event bits, and which of them are alarms (nvml.h; sources §7.4)."""

from __future__ import annotations

from collections.abc import Iterable

# The bit 0x1 (idle GPU) is omitted, because it slows no run.
REASONS = {
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
POWER_CAP = 0x4  # normal under full load
ALARMS = (0x8, 0x20, 0x40, 0x80)  # cut clocks by half or more


def reasons_in(masks: Iterable[int]) -> tuple[str, ...]:
    """Return descriptions of the reasons in NVML bitmasks, each once."""
    seen = 0
    for mask in masks:
        seen |= mask
    return tuple(words for bit, words in REASONS.items() if seen & bit)
