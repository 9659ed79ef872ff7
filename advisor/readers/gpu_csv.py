"""Device telemetry as CSV, with or without header: `nvidia-smi --query-gpu=… --format=csv` and pynvml scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.cells import looks_like_date, number_with_unit, plain_numbers
from advisor.readers.chunks import decode
from advisor.readers.csv_table import layout
from advisor.readers.delimited import Block, blocks, dialect_of, recognised
from advisor.readers.telemetry_names import MEASURED, reading_of
from advisor.readers.telemetry_table import ReadingStore, Telemetry, is_telemetry

NAME = "gpu_csv"
_SAMPLED = 2000  # rows from which a table without header and units is recognised
# the column that a unit in unnamed cells means: the first column with that unit, then the second
_IN_ORDER = {
    "%": ("utilization.gpu [%]", "utilization.memory [%]"),
    "mib": ("memory.used [MiB]", "memory.total [MiB]"),
    "w": ("power.draw [W]",),
    "mhz": ("clocks.sm",),
    "c": ("temperature.gpu",),
}


def score(head: bytes, path: Path) -> float:
    """Return the score: high for a header of GPU quantities without a loss, or for headerless cells with GPU units."""
    dialect = dialect_of(decode(head))
    if dialect is None:
        return 0.0
    if dialect.header:
        found = recognised(dialect.header)
        if "loss" in found or "eval_loss" in found or not is_telemetry(dialect.header):
            return 0.0
        return 0.7 if "step" in found else 0.9
    if b"loss" in head.lower():
        return 0.0
    rows = decode(head).split("\n")[:20]
    units = {_unit(cell) for row in rows for cell in row.split(dialect.delimiter)} - {None}
    if units:
        return 0.9 if units & {"w", "mib"} else 0.0
    cells = [row.split(dialect.delimiter) for row in decode(head).split("\n")[:_SAMPLED]]
    columns = zip(*(row for row in cells if len(row) == dialect.width), strict=True)
    return 0.6 if names_by_numbers([plain_numbers(column) for column in columns]) else 0.0


def read_readings(path: Path) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Return columns, number of readings and notes. Raises AdvisorError if no column is a GPU quantity."""
    dialect = layout(path)
    names = list(dialect.header)
    notes: tuple[str, ...] = ()
    if not names:
        first = next(blocks(path, dialect), None)
        names = _infer(first) if first is not None else []
        notes = (f"no header: columns taken as {', '.join(name or 'unknown' for name in names)}",)
    if not any((reading := reading_of(name)) is not None and reading.column in MEASURED for name in names):
        raise AdvisorError(
            f"{path} holds no power, use, memory, temperature or clock of a GPU",
            "columns are known by nvidia-smi's names, such as power.draw [W]",
        )
    store = ReadingStore(names=names)
    for block in blocks(path, dialect):
        store.add(block.columns)
    telemetry, readings, more = store.finish()
    return telemetry, readings, (*notes, *more)


def _infer(block: Block) -> list[str]:
    """Name headerless columns by the units in their cells, in the order in which people usually query them."""
    if not any(_unit(cell) for cells in block.columns for cell in cells[:20]):
        bare = names_by_numbers([plain_numbers(cells) for cells in block.columns])
        if bare is not None:
            return bare
    left = {unit: list(names) for unit, names in _IN_ORDER.items()}
    names: list[str] = []
    for number, cells in enumerate(block.columns):
        unit = next((found for cell in cells[:20] if (found := _unit(cell))), None)
        if any(looks_like_date(cell) for cell in cells[:3]):
            names.append("timestamp")
        elif unit is not None:
            names.append(left[unit].pop(0) if left[unit] else "")
        else:
            names.append(_without_unit(plain_numbers(cells), first=number <= 1))
    # if two columns are memory sizes, the one that never changes is the total
    used, total = _IN_ORDER["mib"]
    if used in names and total in names:
        one, other = names.index(used), names.index(total)
        first, second = plain_numbers(block.columns[one]), plain_numbers(block.columns[other])
        if np.ptp(first) == 0:
            names[one], names[other] = total, used
        elif np.ptp(second) > 0:
            names[other] = "memory.free [MiB]" if np.ptp(first + second) <= 64 else ""  # the driver reserves a little
    return names


def _without_unit(values: np.ndarray, *, first: bool) -> str:
    """Name a bare whole number: a GPU index in the first columns, otherwise a temperature, judged by its size."""
    known = values[np.isfinite(values)]
    if not len(known) or np.any(known != np.round(known)):
        return ""
    if first and known.max() < 16:
        return "index"
    return "temperature.gpu" if 15 <= np.median(known) <= 110 else ""


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
    names[clock], names[memory[0]], names[memory[1]] = "timestamp", "memory.used [MiB]", "memory.total [MiB]"
    for at, values in enumerate(columns):
        if not names[at] and (name := _name_by_numbers(values, names)):
            names[at] = name
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
