"""Turns a table of device readings (a pandas DataFrame) into telemetry, with one row per GPU and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advisor.readers.cells import is_number, numbers_in, texts_in, unix_seconds, unix_times
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import (
    MEASURED,
    Telemetry,
    TelemetryReading,
    by_card,
    in_unit,
    reading_of,
    unit_in_cells,
)

if TYPE_CHECKING:
    import pandas as pd

MOST_READINGS = 1 << 21  # ten columns of this length take 168 MB; of more, every second (third …) row is read
_OF_A_CARD = frozenset((*MEASURED, "memory_free_bytes", "memory_total_bytes", "throttle_reasons", "energy_joules"))


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
        target = parts[reading.card] if reading.column in _OF_A_CARD else shared
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
        status_reason="readings of a device only: they do not say how a run ended",
        notes=tuple(notes),
    )
