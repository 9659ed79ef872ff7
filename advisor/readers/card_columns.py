"""Readings of a card in the rows of a training log: `gpu_util_pct`, `gpu_power_w`, `gpu0_temp_c` beside a loss.

They travel with their rows as columns of their own until the table is whole, so that restarts and thinning treat them
like the loss, and become telemetry then.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from advisor.readers.names import Named, column_of
from advisor.readers.run_table import TELEMETRY_COLUMNS, RunTable
from advisor.readers.telemetry_names import MEASURED, in_unit, reading_of

PREFIX = "card "  # of such a column: "card 0 power_watts"
KIND = "card"
# a bare "power", "load" or "temperature" in a training log may be anything: of a sampler, of a simulated plant
_OF_A_CARD = re.compile(r"(?i)gpu|cuda|vram|nvidia|nvml")
_WANTED = frozenset((*MEASURED, "memory_total_bytes", "power_limit_watts"))
_OF_NO_OTHER = frozenset(("w", "watt", "watts", "c", "°c", "celsius"))  # units that nothing else in a training log has
_UTILIZATION = re.compile(r"(?i)util")  # beside a percent sign
_ANOTHERS = re.compile(r"(?i)cpu|room|ambient|inlet|fan|dram|ssd|host|system_power")


def column_or_card(name: str) -> Named | None:
    """What a column of a log's rows stands for: a quantity of the run, else a reading of a card; None for neither."""
    return column_of(name) or card_column(name)


def card_column(name: str, unit: str = "") -> Named | None:
    """The reading of a card that a name says it is, with the unit that stands behind its number.

    Returns None if neither the name nor the unit says that it is one of a card.
    """
    reading = reading_of(f"{name} ({unit})" if unit else name)
    if _ANOTHERS.search(name):
        return None
    by_unit = unit.lower() in _OF_NO_OTHER
    if by_unit and (reading is None or reading.column not in _WANTED):
        reading = reading_of(f"gpu ({unit})")  # `draw 56W`, `T=78C`: the unit alone says it
    if reading is None or reading.column not in _WANTED:
        return None
    own_unit = reading.unit in _OF_NO_OTHER or (reading.unit is not None and _UTILIZATION.match(name))
    if not (_OF_A_CARD.search(name) or own_unit):
        return None
    if reading.column == "memory_utilization" and "util" not in name.lower():
        return None  # `mem 15%` may be traffic or what is in use
    return Named(column=f"{PREFIX}{reading.card or 0} {reading.column}", kind=KIND, unit=reading.unit, rank=0)


def converted(named: Named, values: np.ndarray) -> tuple[str, np.ndarray, str]:
    """Values of such a column in its unit, as `names.in_unit` gives those of others."""
    return named.column, *in_unit(named.column.split()[2], named.unit, values)


def with_readings_of_rows(table: RunTable) -> RunTable:
    """The table with its rows' readings as telemetry, at the times of the rows."""
    found = {name: values for name, values in table.columns.items() if name.startswith(PREFIX)}
    if not found:
        return table
    columns = {name: values for name, values in table.columns.items() if name not in found}
    table = dataclasses.replace(table, columns=columns)
    times, parts = _times(table), []
    for card in sorted({int(name.split()[1]) for name in found}):
        part = {name.split()[2]: values for name, values in found.items() if int(name.split()[1]) == card}
        read = np.any([np.isfinite(values) for values in part.values()], axis=0)
        here = {"unix_seconds": times, "gpu": np.full(len(times), float(card)), **part}
        parts.append({name: values[read] for name, values in here.items()})
    telemetry = {
        name: np.concatenate([part.get(name, np.full(len(part["gpu"]), np.nan)) for part in parts])
        for name in TELEMETRY_COLUMNS
        if any(name in part for part in parts)
    }
    by_time = np.lexsort((telemetry["gpu"], telemetry["unix_seconds"]))
    return dataclasses.replace(table, telemetry={name: values[by_time] for name, values in telemetry.items()})


def _times(table: RunTable) -> np.ndarray:
    """When each row was printed: by its stamp, its time since the start, else the sum of the steps' seconds."""
    for name in ("unix_seconds", "elapsed_seconds"):
        if np.isfinite(table.column(name)).any():
            return table.column(name)
    seconds, step = table.column("seconds"), table.column("step")
    if not np.isfinite(seconds).any():
        return seconds
    return np.cumsum(np.nan_to_num(seconds) * np.maximum(1.0, np.nan_to_num(np.diff(step, prepend=step[:1]))))
