"""Columns of a telemetry table that has neither header nor units, told by what their numbers can be only.

A memory of fixed size beside what is used of it is the evidence without which nothing is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LEAST_MEMORY = 2000  # MiB: no card with less trains
_MOST_WATTS = 1500
_HOTTEST = 110  # °C, and the coolest in a room
_COOLEST = 15


def names_of(columns: Sequence[np.ndarray]) -> list[str] | None:
    """Names of columns of plain numbers, "" of unknown ones; None where it is no telemetry."""
    if len(columns) < 3 or any(not np.isfinite(values).any() for values in columns):
        return None
    names = [""] * len(columns)
    clock = next((at for at, values in enumerate(columns) if np.nanmedian(values) > 1e9 and _rises(values)), None)
    memory = _memory(columns, clock)
    if clock is None or memory is None:
        return None
    names[clock], names[memory[0]], names[memory[1]] = "timestamp", "memory.used [MiB]", "memory.total [MiB]"
    for at, values in enumerate(columns):
        if not names[at] and (name := _one(values, names)):
            names[at] = name
    return names


def _memory(columns: Sequence[np.ndarray], clock: int | None) -> tuple[int, int] | None:
    """The column that is used of another, which never changes and is no smaller."""
    for total, values in enumerate(columns):
        if total == clock or np.ptp(values) != 0 or not _LEAST_MEMORY <= values[0] < 1e7:
            continue
        for used, other in enumerate(columns):
            apart = used not in (clock, total) and _whole(other)
            if apart and other.min() >= 0 and _HOTTEST < other.max() <= values[0]:
                return used, total
    return None


def _one(values: np.ndarray, taken: Sequence[str]) -> str:
    low, high = float(values.min()), float(values.max())
    if not _whole(values):
        return "power.draw [W]" if low >= 1 and high <= _MOST_WATTS and "power.draw [W]" not in taken else ""
    if low >= _COOLEST and high <= _HOTTEST and high - low <= 50 and "temperature.gpu" not in taken:
        return "temperature.gpu"
    if low >= 0 and high <= 100 and "utilization.gpu [%]" not in taken and high > 8:
        return "utilization.gpu [%]"
    return ""


def _whole(values: np.ndarray) -> bool:
    return bool(np.all(values == np.round(values)))


def _rises(values: np.ndarray) -> bool:
    return bool(np.all(np.diff(values) >= 0)) and values[-1] > values[0]
