"""Names and units of device telemetry in nvidia-smi queries, pynvml scripts, `nvidia-smi dmon` and W&B metrics.

The readings of a file (a pandas DataFrame) or of a training log's rows become the columns of `columns.yaml`, with one
row per GPU and time.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advisor.readers.cells import is_number, number_with_unit, numbers_in, texts_in, unix_seconds, unix_times
from advisor.readers.names import BYTES, MAX_NAME, SECONDS, SHARES, Named, bytes_factor, column_of, normalise, scaled
from advisor.readers.run_table import RunTable, names_of
from advisor.readers.yaml_rows import rows_of_file

if TYPE_CHECKING:
    import pandas as pd

Telemetry = dict[str, np.ndarray]
_BY_UNIT = {
    **dict.fromkeys(("w", "watt", "watts", "mw"), "power_watts"),
    **dict.fromkeys(("c", "°c", "celsius"), "temperature_celsius"),
    **dict.fromkeys(("mhz", "ghz"), "sm_clock_mhz"),
    **dict.fromkeys(BYTES, "memory_used_bytes"),
}
_UNITS = frozenset((*_BY_UNIT, *SECONDS, "%", "pct", "percent", "idx", "j", "mj", "kj"))
_CARD = re.compile(r"(?:system_)?(?:gpu|cuda|device|card|nvidia|p)_?(\d{1,3})_(.+)")
_CARD_LAST = re.compile(r"(.+?)_?(?:gpu|cuda|device|card)_?(\d{1,3})")
MEASURED = (
    *("power_watts", "utilization", "memory_utilization", "memory_used_bytes", "temperature_celsius"),
    "sm_clock_mhz",
)
MOST_READINGS = 1 << 21  # ten columns of this length take 168 MB; of more, every second (third …) row is read
_EACH_CARDS = frozenset((*MEASURED, "memory_free_bytes", "memory_total_bytes", "throttle_reasons", "energy_joules"))


@dataclass(frozen=True, kw_only=True)
class TelemetryReading:
    """What a telemetry column holds. `card` is None if another column says which GPU it is, or nothing does."""

    column: str
    unit: str | None
    card: int | None


@lru_cache(maxsize=4096)
def reading_of(name: str) -> TelemetryReading | None:
    """Return what a telemetry column's name means, or None."""
    if len(name) > MAX_NAME:
        return None
    stem, unit = normalise(name, _UNITS)
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
        # "GPU" alone is the GPU's index; "GPU%" is its utilisation
        return TelemetryReading(column="gpu", unit=None, card=None)
    if stem == "gpu" and unit in _BY_UNIT:
        return TelemetryReading(column=_BY_UNIT[unit], unit=unit, card=card)
    shorter = re.sub(r"^(?:gpu|cuda|device|nvidia)_|_gpu$", "", stem)
    found = (column for text in (stem, shorter) for column, pattern in _patterns().items() if pattern.fullmatch(text))
    return None if (column := next(found, None)) is None else _checked(column, unit, card)


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {column: re.compile(pattern) for column, pattern in rows_of_file("names")["telemetry"].items()}


def _checked(column: str, unit: str | None, card: int | None) -> TelemetryReading | None:
    """Correct a reading that its unit contradicts: "memory [%]" is traffic, not bytes; "power (%)" is not used."""
    percent = unit in SHARES
    if column == "memory_used_bytes" and percent:
        column = "memory_utilization"
    if column in ("power_watts", "power_limit_watts") and unit is not None and _BY_UNIT.get(unit) != "power_watts":
        return None
    if column in ("sm_clock_mhz", "temperature_celsius") and percent:
        return None
    return TelemetryReading(column=column, unit=unit, card=card)


def is_telemetry(names: Sequence[str]) -> bool:
    """Return whether a header belongs to device readings: it names a GPU quantity and no loss of a run."""
    columns = {reading.column for name in names if (reading := reading_of(name)) is not None}
    measured = columns.intersection(MEASURED)
    return bool(measured) and (
        len(measured) > 1 or bool(columns & {"unix_seconds", "elapsed_seconds", "gpu", "identity"})
    )


def in_unit(column: str, unit: str | None, values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return numbers in a telemetry column's unit, and how they were converted. Their size tells an unstated unit."""
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
        return scaled(values, {"mj": 1e-3, "kj": 1e3}.get(unit or "j", 1.0)), unit or ""
    if column == "elapsed_seconds" and unit in SECONDS:
        return scaled(values, SECONDS[unit]), unit
    return values, ""


def unit_in_cells(cells: Sequence[str]) -> str | None:
    """Return the unit after the numbers in a column's first cells; None if there is none or it is unknown."""
    found = (number_with_unit(cell) for cell in cells[:100])
    return next((one[1].lower() for one in found if one and one[1].lower() in _UNITS), None)


def by_card(parts: Mapping[int | None, Telemetry]) -> Telemetry:
    """Return the readings of several GPUs as one table, by time and GPU. All parts have `unix_seconds` and `gpu`."""
    joined = {
        name: np.concatenate([part.get(name, np.full(len(part["gpu"]), np.nan)) for part in parts.values()])
        for name in names_of("telemetry")
        if any(name in part for part in parts.values())
    }
    by_time = np.lexsort((joined["gpu"], joined["unix_seconds"]))
    return {name: values[by_time] for name, values in joined.items()}


def telemetry_of(
    frame: pd.DataFrame, name_of: Callable[[str], TelemetryReading | None] = reading_of
) -> tuple[Telemetry, int, tuple[str, ...]]:
    """Return columns sorted by time, the number of readings in the table, and notes."""
    import pandas as pd

    named = {name: reading for name in map(str, frame) if (reading := name_of(name)) is not None}
    cards = {reading.card for reading in named.values() if reading.card is not None}
    readings, notes = len(frame) * max(1, len(cards)), []
    if (every := -(-readings // MOST_READINGS)) > 1:
        frame = frame.iloc[::every]
        notes.append(f"every {every}th reading was kept")
    shared: Telemetry = {}
    parts: dict[int | None, Telemetry] = {card: {} for card in (None, *sorted(cards))}
    for name, reading in named.items():
        if reading.column == "identity":
            shared.setdefault("gpu", pd.factorize(frame[name])[0].astype(float))
            continue
        values, said = _values(reading, frame[name])
        if "size" in said:
            notes.append(f"{name!r} has no unit: read {said}")
        target = parts[reading.card] if reading.column in _EACH_CARDS else shared
        target.setdefault(reading.column, values)  # the first of several names
    shared |= parts.pop(None)
    elapsed = shared.pop("elapsed_seconds", None)
    if not np.isfinite(shared.get("unix_seconds", np.zeros(0))).any():
        shared["unix_seconds"] = np.arange(len(frame), dtype=float) if elapsed is None else elapsed
        notes += ["no time printed: 1 s between rows assumed"] if elapsed is None else []
    if "gpu" not in shared:
        shared["gpu"] = _places(shared["unix_seconds"])
    of_cards = {card: {**shared, **part, "gpu": np.full(len(frame), float(card or 0))} for card, part in parts.items()}
    for part in of_cards.values() if cards else (shared,):
        free = part.pop("memory_free_bytes", None)
        if free is not None and "memory_used_bytes" in part:
            part.setdefault("memory_total_bytes", free + part["memory_used_bytes"])
    return by_card(of_cards or {None: shared}), readings, tuple(notes)


def _values(reading: TelemetryReading, cells: pd.Series) -> tuple[np.ndarray, str]:
    """Return a telemetry column in its unit, and how it was converted. Units in cells replace a missing one."""
    if reading.column == "unix_seconds":
        return unix_seconds(numbers_in(cells)) if is_number(cells) else unix_times(texts_in(cells)), ""
    if reading.column == "throttle_reasons" and not is_number(cells):
        return np.array([_bits(cell) for cell in texts_in(cells)], dtype=float), ""
    unit = reading.unit or (None if is_number(cells) else unit_in_cells(texts_in(cells.head(100))))
    with np.errstate(all="ignore"):
        return in_unit(reading.column, unit, numbers_in(cells))


def _bits(cell: str) -> float:
    text = cell.strip().lower()
    try:
        return float(int(text, 16) if text.startswith("0x") else int(text))
    except (ValueError, OverflowError):
        return np.nan


def _places(times: np.ndarray) -> np.ndarray:
    """Number GPUs without an index: rows with the same time stamp are numbered in their order."""
    starts = np.flatnonzero(np.diff(times, prepend=np.nan) != 0)
    places = np.arange(len(times)) - np.repeat(starts, np.diff(starts, append=len(times)))
    return np.where(places < 64, places, 0).astype(float)  # a clock that stands still cannot tell GPUs apart


def telemetry_run(path: Path, format: str, telemetry: Telemetry, readings: int, notes: Sequence[str]) -> RunTable:
    """Return a RunTable that holds nothing but telemetry."""
    return RunTable(
        source=str(path),
        format=format,
        framework=None,
        columns={},
        provenance={},
        telemetry=telemetry,
        rows=readings,
        status_reason="the file holds readings of a device, which do not say how a run ended",
        notes=tuple(notes),
    )


# GPU readings in the rows of a training log: `gpu_util_pct`, `gpu_power_w`, `gpu0_temp_c` beside a loss. They stay with
# their rows as separate columns until the table is complete, so that restarts and thinning treat them like the loss.
# Then they become telemetry.

PREFIX = "card "  # prefix of such a column: "card 0 power_watts"
KIND = "card"
# a bare "power", "load" or "temperature" in a training log may belong to a sampler or a simulated plant
_OF_A_CARD = re.compile(r"(?i)gpu|cuda|vram|nvidia|nvml")
_WANTED = frozenset((*MEASURED, "memory_total_bytes", "power_limit_watts"))
_OF_NO_OTHER = frozenset(("w", "watt", "watts", "c", "°c", "celsius"))  # units that nothing else in a training log has
_UTILIZATION = re.compile(r"(?i)util")  # beside a percent sign
_ANOTHERS = re.compile(r"(?i)cpu|room|ambient|inlet|fan|dram|ssd|host|system_power")


def column_or_card(name: str) -> Named | None:
    """Return what a column of a log's rows means: a quantity of the run, else a GPU reading; None for neither."""
    return column_of(name) or card_column(name)


def card_column(name: str, unit: str = "") -> Named | None:
    """Return the GPU reading that a name means, with the unit after its number.

    Returns None if neither the name nor the unit shows that it is a GPU reading.
    """
    reading = reading_of(f"{name} ({unit})" if unit else name)
    if _ANOTHERS.search(name):
        return None
    if unit.lower() in _OF_NO_OTHER and (reading is None or reading.column not in _WANTED):
        reading = reading_of(f"gpu ({unit})")  # `draw 56W`, `T=78C`: the unit alone shows it
    if reading is None or reading.column not in _WANTED:
        return None
    own_unit = reading.unit in _OF_NO_OTHER or (reading.unit is not None and _UTILIZATION.match(name))
    if not (_OF_A_CARD.search(name) or own_unit):
        return None
    if reading.column == "memory_utilization" and "util" not in name.lower():
        return None  # `mem 15%` may be memory traffic or memory in use
    return Named(column=f"{PREFIX}{reading.card or 0} {reading.column}", kind=KIND, unit=reading.unit, rank=0)


def converted(named: Named, values: np.ndarray) -> tuple[str, np.ndarray, str]:
    """Return values of such a column in its unit, as `names.in_unit` does for other columns."""
    return named.column, *in_unit(named.column.split()[2], named.unit, values)


def with_readings_of_rows(table: RunTable) -> RunTable:
    """Return the table with the readings in its rows as telemetry, at the times of the rows."""
    found = {name: values for name, values in table.columns.items() if name.startswith(PREFIX)}
    if not found:
        return table
    columns = {name: values for name, values in table.columns.items() if name not in found}
    table = dataclasses.replace(table, columns=columns)
    times = _times(table)
    parts: dict[int | None, Telemetry] = {}
    for card in sorted({int(name.split()[1]) for name in found}):
        part = {name.split()[2]: values for name, values in found.items() if int(name.split()[1]) == card}
        read = np.any([np.isfinite(values) for values in part.values()], axis=0)
        here = {"unix_seconds": times, "gpu": np.full(len(times), float(card)), **part}
        parts[card] = {name: values[read] for name, values in here.items()}
    return dataclasses.replace(table, telemetry=by_card(parts))


def _times(table: RunTable) -> np.ndarray:
    """Return when each row was printed: by its stamp, its time since the start, else the sum of the steps' seconds."""
    for name in ("unix_seconds", "elapsed_seconds"):
        if np.isfinite(table.column(name)).any():
            return table.column(name)
    seconds, step = table.column("seconds"), table.column("step")
    if not np.isfinite(seconds).any():
        return seconds
    return np.cumsum(np.nan_to_num(seconds) * np.maximum(1.0, np.nan_to_num(np.diff(step, prepend=step[:1]))))
