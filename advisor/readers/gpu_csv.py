"""Device telemetry as CSV, with or without header: `nvidia-smi --query-gpu=… --format=csv` and pynvml scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.cells import is_number, looks_like_date, number_with_unit, numbers_in, plain_numbers, texts_in
from advisor.readers.chunks import decode
from advisor.readers.csv_table import layout_of, read_frame, recognised
from advisor.readers.telemetry_names import MEASURED, Telemetry, is_telemetry, reading_of
from advisor.readers.telemetry_table import telemetry_of

if TYPE_CHECKING:
    import pandas as pd

NAME = "gpu_csv"
_SAMPLED = 2000  # rows from which a table without header and units is recognised
_CLOCK, _POWER, _HEAT, _BUSY = "timestamp", "power.draw [W]", "temperature.gpu", "utilization.gpu [%]"
_USED, _TOTAL = "memory.used [MiB]", "memory.total [MiB]"
# the column that a unit in unnamed cells means: the first column with that unit, then the second
_IN_ORDER = {
    "%": (_BUSY, "utilization.memory [%]"),
    "mib": (_USED, _TOTAL),
    "w": (_POWER,),
    "mhz": ("clocks.sm",),
    "c": (_HEAT,),
}


def score(head: bytes, path: Path) -> float:
    """Return the score: high for a header of GPU quantities without a loss, or for headerless cells with GPU units."""
    text = decode(head)
    layout = layout_of(text)
    if layout is None:
        return 0.0
    if layout.header:
        found = recognised(layout.header)
        if "loss" in found or "eval_loss" in found or not is_telemetry(layout.header):
            return 0.0
        return 0.7 if "step" in found else 0.9
    if b"loss" in head.lower():
        return 0.0
    rows = [row.split(layout.delimiter) for row in text.split("\n")[:_SAMPLED]]
    units = {_unit(cell) for row in rows[:20] for cell in row} - {None}
    if units:
        return 0.9 if units & {"w", "mib"} else 0.0
    columns = zip(*(row for row in rows if len(row) == layout.width), strict=True)
    return 0.6 if names_by_numbers([plain_numbers(column) for column in columns]) else 0.0


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Return columns, number of readings and notes. Raises AdvisorError if no column is a GPU quantity."""
    layout, frame = read_frame(path)
    notes: tuple[str, ...] = ()
    if not layout.header:
        frame = frame.set_axis(_infer(frame.head(20_000)), axis=1)
        notes = (f"no header: columns taken as {', '.join(name or 'unknown' for name in frame)}",)
        frame = frame.loc[:, ~frame.columns.duplicated()]
    if not any((reading := reading_of(name)) is not None and reading.column in MEASURED for name in frame):
        raise AdvisorError(
            f"{path} holds no power, use, memory, temperature or clock of a GPU",
            "columns are known by nvidia-smi's names, such as power.draw [W]",
        )
    telemetry, readings, more = telemetry_of(frame)
    return telemetry, readings, (*notes, *more)


def _infer(frame: pd.DataFrame) -> list[str]:
    """Name headerless columns by the units in their cells, in the order in which people usually query them."""
    columns = [numbers_in(frame[name]) for name in frame]
    firsts = [[] if is_number(frame[name]) else texts_in(frame[name].head(20)) for name in frame]
    if not any(_unit(cell) for cells in firsts for cell in cells) and (bare := names_by_numbers(columns)):
        return bare
    left = {unit: list(names) for unit, names in _IN_ORDER.items()}
    names: list[str] = []
    for number, (values, cells) in enumerate(zip(columns, firsts, strict=True)):
        unit = next((found for cell in cells if (found := _unit(cell))), None)
        if any(looks_like_date(cell) for cell in cells[:3]):
            names.append(_CLOCK)
        elif unit is not None:
            names.append(left[unit].pop(0) if left[unit] else "")
        else:
            names.append(_without_unit(values, first=number <= 1))
    # if two columns are memory sizes, the one that never changes is the total
    if _USED in names and _TOTAL in names:
        one, other = names.index(_USED), names.index(_TOTAL)
        if np.ptp(columns[one]) == 0:
            names[one], names[other] = _TOTAL, _USED
        elif np.ptp(columns[other]) > 0:  # the driver reserves a little
            names[other] = "memory.free [MiB]" if np.ptp(columns[one] + columns[other]) <= 64 else ""
    return names


def _without_unit(values: np.ndarray, *, first: bool) -> str:
    """Name a bare whole number: a GPU index in the first columns, otherwise a temperature, judged by its size."""
    known = values[np.isfinite(values)]
    if not len(known) or np.any(known != np.round(known)):
        return ""
    if first and known.max() < 16:
        return "index"
    return _HEAT if 15 <= np.median(known) <= 110 else ""


def _unit(cell: str) -> str | None:
    found = number_with_unit(cell)
    return found[1].lower() if found and found[1].lower() in _IN_ORDER else None


# Columns of a telemetry table without header and units, recognised where their numbers can mean only one thing. Nothing
# is read without this evidence: a memory size that never changes beside the amount in use.

_LEAST_MEMORY = 2000  # MiB; no GPU with less is used for training
_MOST_WATTS = 1500
_HOTTEST = 110  # °C, and the coolest a room can be
_COOLEST = 15


def names_by_numbers(columns: Sequence[np.ndarray]) -> list[str] | None:
    """Return names of columns of plain numbers, "" for unknown columns; None if they are not telemetry."""
    if len(columns) < 3 or any(not np.isfinite(values).any() for values in columns):
        return None
    names = [""] * len(columns)
    clock = next((at for at, values in enumerate(columns) if np.nanmedian(values) > 1e9 and _rises(values)), None)
    memory = _memory(columns, clock)
    if clock is None or memory is None:
        return None
    names[clock], names[memory[0]], names[memory[1]] = _CLOCK, _USED, _TOTAL
    for at, values in enumerate(columns):
        names[at] = names[at] or _name_by_numbers(values, names)
    return names


def _memory(columns: Sequence[np.ndarray], clock: int | None) -> tuple[int, int] | None:
    """Return the column of used memory and the column of total memory, which never changes and is never smaller."""
    for total, values in enumerate(columns):
        if total == clock or np.ptp(values) != 0 or not _LEAST_MEMORY <= values[0] < 1e7:
            continue
        for used, other in enumerate(columns):
            apart = used not in (clock, total) and _whole(other)
            if apart and other.min() >= 0 and _HOTTEST < other.max() <= values[0]:
                return used, total
    return None


def _name_by_numbers(values: np.ndarray, taken: Sequence[str]) -> str:
    low, high = float(values.min()), float(values.max())
    if not _whole(values):
        return _POWER if low >= 1 and high <= _MOST_WATTS and _POWER not in taken else ""
    if low >= _COOLEST and high <= _HOTTEST and high - low <= 50 and _HEAT not in taken:
        return _HEAT
    return _BUSY if low >= 0 and 8 < high <= 100 and _BUSY not in taken else ""


def _whole(values: np.ndarray) -> bool:
    return bool(np.all(values == np.round(values)))


def _rises(values: np.ndarray) -> bool:
    return bool(np.all(np.diff(values) >= 0)) and values[-1] > values[0]
