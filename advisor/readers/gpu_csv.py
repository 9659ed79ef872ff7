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
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import MEASURED, Telemetry, is_telemetry, reading_of, telemetry_of, telemetry_run

if TYPE_CHECKING:
    import pandas as pd

NAME = "gpu_csv"
_SAMPLED = 2000  # rows from which a table without header and units is recognised
_CLOCK, _POWER, _HEAT, _BUSY = "timestamp", "power.draw [W]", "temperature.gpu", "utilization.gpu [%]"
_USED, _TOTAL = "memory.used [MiB]", "memory.total [MiB]"
_LEAST_MEMORY = 2000  # MiB; no GPU with less is used for training
_MOST_WATTS = 1500
_COOLEST, _HOTTEST = 15, 110  # °C
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


def read(path: Path) -> RunTable:
    """Read the readings as a run's table that holds nothing else. Raises AdvisorError if there are none."""
    return telemetry_run(path, NAME, *read_readings(path))


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Return columns, number of readings and notes. Raises AdvisorError if no column is a GPU quantity."""
    layout, frame = read_frame(path)
    notes: tuple[str, ...] = ()
    if not layout.header:
        frame = frame.set_axis(_infer(frame.head(20_000)), axis=1)
        notes = (f"no header: columns taken as {', '.join(name or 'unknown' for name in map(str, frame))}",)
        frame = frame.loc[:, ~frame.columns.duplicated()]
    if not any((reading := reading_of(name)) is not None and reading.column in MEASURED for name in map(str, frame)):
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
        unit, known = next((found for cell in cells if (found := _unit(cell))), None), values[np.isfinite(values)]
        if any(looks_like_date(cell) for cell in cells[:3]):
            names.append(_CLOCK)
        elif unit is not None:
            names.append(left[unit].pop(0) if left[unit] else "")
        elif not len(known) or np.any(known != np.round(known)):
            names.append("")
        elif number <= 1 and known.max() < 16:
            names.append("index")
        else:
            names.append(_HEAT if _COOLEST <= np.median(known) <= _HOTTEST else "")
    # if two columns are memory sizes, the one that never changes is the total
    if _USED in names and _TOTAL in names:
        one, other = names.index(_USED), names.index(_TOTAL)
        if np.ptp(columns[one]) == 0:
            names[one], names[other] = _TOTAL, _USED
        elif np.ptp(columns[other]) > 0:  # the driver reserves a little
            names[other] = "memory.free [MiB]" if np.ptp(columns[one] + columns[other]) <= 64 else ""
    return names


def _unit(cell: str) -> str | None:
    found = number_with_unit(cell)
    return found[1].lower() if found and found[1].lower() in _IN_ORDER else None


def names_by_numbers(columns: Sequence[np.ndarray]) -> list[str] | None:
    """Return names of columns of plain numbers, "" for unknown columns; None if they are not telemetry.

    Nothing is read without a clock and a memory size that never changes beside the amount in use.
    """
    names: list[str] = []
    if not all(len(values) and np.isfinite(values).all() for values in columns):
        return None
    total = max((float(values[0]) for values in columns if np.ptp(values) == 0), default=0.0)
    for values in columns:
        low, high, whole = float(values.min()), float(values.max()), bool(np.all(values == np.round(values)))
        guesses = {
            _CLOCK: np.median(values) > 1e9 and low < high and np.all(np.diff(values) >= 0),
            _TOTAL: whole and low == high == total and _LEAST_MEMORY <= low < 1e7,
            _USED: whole and low >= 0 and _HOTTEST < high <= total,
            _POWER: not whole and low >= 1 and high <= _MOST_WATTS,
            _HEAT: whole and low >= _COOLEST and high <= _HOTTEST and high - low <= 50,
            _BUSY: whole and low >= 0 and 8 < high <= 100,
        }
        names.append(next((name for name, fits in guesses.items() if fits and name not in names), ""))
    return names if {_CLOCK, _TOTAL, _USED} <= set(names) else None
