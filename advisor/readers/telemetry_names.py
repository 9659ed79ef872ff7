"""Names and units of device telemetry: nvidia-smi queries, pynvml scripts, `nvidia-smi dmon`, W&B system metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.readers.cells import number_with_unit, plain_numbers, unix_times
from advisor.readers.names import BYTES, MAX_NAME, SECONDS, bytes_factor, scaled

# name without unit, card and "gpu" → column; `memory_free_bytes` serves only to work out the total
_TABLE = {
    "power_limit_watts": r"(?:enforced_|max_)?power_(?:limit|cap|max)|tdp|watt_limit",
    "power_watts": r"power|power_draw|power_usage|pwr|draw|power_draw_(?:instant|average)|power_consumption|powerdraw",
    "memory_utilization": r"utilization_mem(?:ory)?|mem(?:ory)?_util(?:ization)?|util_mem(?:ory)?",
    "utilization": r"util(?:ization|isation)?|utilization_gpu|usage|load|sm|sm_util|compute_util|gpu|util_gpu|busy",
    "memory_free_bytes": r"mem(?:ory)?_free|free_mem(?:ory)?|vram_free",
    "memory_total_bytes": r"mem(?:ory)?_total|total_mem(?:ory)?|vram_total",
    "memory_used_bytes": r"mem(?:ory)?(?:_used|_usage|_allocated)?|used_mem(?:ory)?|vram(?:_used)?|fb",
    "temperature_celsius": r"temp(?:erature)?|temperature_gpu|gtemp|core_temp|temp_gpu|temperature_core",
    "sm_clock_mhz": r"clocks(?:_current)?_(?:sm|gr|graphics)|(?:sm|graphics|core)_clock|pclk|clock|clock_sm|clocks",
    "energy_joules": r"(?:total_)?energy(?:_consumption)?",
    "throttle_reasons": r"clocks_(?:throttle|event)_reasons(?:_active)?|throttle(?:_reasons?)?|throttling",
    "gpu": r"index|idx|id|number|gpu_index|device",
    "unix_seconds": r"timestamp|time|date|datetime|unix_time|time_stamp|_timestamp|ts|epoch_time|date_time",
    "elapsed_seconds": r"elapsed|elapsed_time|relative_time|_runtime|runtime|seconds|uptime",
    "identity": r"uuid|pci_bus_id|bus_id|serial|gpu_uuid",
}
_COMPILED = {column: re.compile(pattern) for column, pattern in _TABLE.items()}
_UNITS = frozenset((
    *BYTES, *SECONDS, "%", "pct", "percent", "w", "watt", "watts", "mw", "c", "°c", "celsius", "mhz", "ghz", "idx",
    "j", "mj", "kj",
))  # fmt: skip
_BY_UNIT = {
    **dict.fromkeys(("w", "watt", "watts", "mw"), "power_watts"),
    **dict.fromkeys(("c", "°c", "celsius"), "temperature_celsius"),
    **dict.fromkeys(("mhz", "ghz"), "sm_clock_mhz"),
    **dict.fromkeys(BYTES, "memory_used_bytes"),
}
_CARD = re.compile(r"(?:system_)?(?:gpu|cuda|device|card|nvidia|p)_?(\d{1,3})_(.+)")
_CARD_LAST = re.compile(r"(.+?)_?(?:gpu|cuda|device|card)_?(\d{1,3})")
MEASURED = (
    "power_watts",
    "utilization",
    "memory_utilization",
    "memory_used_bytes",
    "temperature_celsius",
    "sm_clock_mhz",
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a column of telemetry holds: `card` is None where another column or nothing says which card it is."""

    column: str
    unit: str | None
    card: int | None


@lru_cache(maxsize=4096)
def reading_of(name: str) -> Reading | None:
    """What a telemetry column's name stands for, or None."""
    if len(name) > MAX_NAME:
        return None
    stem, unit = _split(name)
    card = None
    if match := _CARD.fullmatch(stem):
        card, stem = int(match[1]), match[2]
    elif unit is not None and (match := re.fullmatch(r"gpu_?(\d{1,3})", stem)):
        card, stem = int(match[1]), "gpu"
    elif match := _CARD_LAST.fullmatch(stem):
        stem, card = match[1], int(match[2])
    if unit is None and "_" in stem and stem.rpartition("_")[2] in _UNITS:
        stem, _, unit = stem.rpartition("_")
    if card is None and stem == "gpu" and unit is None:
        return Reading(column="gpu", unit=None, card=None)  # "GPU" alone counts cards; "GPU%" is their use
    if stem == "gpu" and unit in _BY_UNIT:
        return Reading(column=_BY_UNIT[unit], unit=unit, card=card)
    for text in (stem, re.sub(r"^(?:gpu|cuda|device|nvidia)_|_gpu$", "", stem)):
        for column, pattern in _COMPILED.items():
            if pattern.fullmatch(text):
                return _checked(column, unit, card)
    return None


def _split(name: str) -> tuple[str, str | None]:
    text, unit = name.strip(), None
    if match := re.search(r"[(\[]\s*([^)\]]{1,12})\s*[)\]]", text):
        word = match[1].strip().lower()
        unit = word if word in _UNITS else None
        text = text[: match.start()] + " " + text[match.end() :]
    if text.rstrip().endswith("%"):
        text, unit = text.rstrip()[:-1], "%"
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()
    lead = "_" if text.startswith("_") else ""
    return lead + re.sub(r"[^a-z0-9]+", "_", text).strip("_"), unit


def _checked(column: str, unit: str | None, card: int | None) -> Reading | None:
    """Settle what a unit contradicts: "memory [%]" is traffic, not bytes; "power (%)" is nothing wanted."""
    percent = unit in ("%", "pct", "percent")
    if column == "memory_used_bytes" and percent:
        column = "memory_utilization"
    if column in ("power_watts", "power_limit_watts") and unit is not None and unit not in ("w", "watt", "watts", "mw"):
        return None
    if column in ("sm_clock_mhz", "temperature_celsius") and percent:
        return None
    return Reading(column=column, unit=unit, card=card)


def values_of(reading: Reading, cells: Sequence[str]) -> tuple[np.ndarray, str]:
    """Cells of a telemetry column in its unit, and how they were converted; units in the cells win over none."""
    if reading.column == "unix_seconds":
        return unix_times(cells), ""
    if reading.column == "throttle_reasons":
        return np.array([_bits(cell) for cell in cells], dtype=float), ""
    values = plain_numbers(cells)
    unit = reading.unit or unit_in_cells(cells)
    with np.errstate(all="ignore"):
        return in_unit(reading.column, unit, values)


def in_unit(column: str, unit: str | None, values: np.ndarray) -> tuple[np.ndarray, str]:
    """Numbers in a telemetry column's unit, and how they were converted. Units nobody wrote are told by size."""
    if column.endswith("_bytes"):
        if unit in BYTES:
            return values * BYTES[unit], f"{unit} as 1024-based"
        factor, said = bytes_factor(values)
        return values * factor, said
    known = values[np.isfinite(values)]
    most = float(np.max(known)) if len(known) else 0.0
    if column.endswith("utilization"):
        fraction = unit is None and most <= 1 and bool(np.any(known != np.round(known)))
        return (values, "by its size a share") if fraction else (values / 100, "percent")
    if column in ("power_watts", "power_limit_watts") and (unit == "mw" or (unit is None and most > 5000)):
        return values / 1000, "milliwatts" if unit else "by its size in milliwatts"  # NVML's own unit
    if column == "sm_clock_mhz" and (unit == "ghz" or (unit is None and 0 < most < 10)):
        return values * 1000, "GHz"
    if column == "energy_joules":
        factor = {"mj": 1e-3, "kj": 1e3}.get(unit or "j", 1.0)
        return scaled(values, factor), unit or ""
    if column == "elapsed_seconds" and unit in SECONDS:
        return scaled(values, SECONDS[unit]), unit
    return values, ""


def unit_in_cells(cells: Sequence[str]) -> str | None:
    """The unit behind the numbers of a column's first cells; None where there is none, or one that is not known."""
    for cell in cells[:100]:
        found = number_with_unit(cell)
        if found and found[1].lower() in _UNITS:
            return found[1].lower()
    return None


def _bits(cell: str) -> float:
    text = cell.strip().lower()
    try:
        return float(int(text, 16) if text.startswith("0x") else int(text))
    except (ValueError, OverflowError):
        return np.nan
