"""Readings of devices as the columns of `columns.yaml`, with one row per GPU and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from advisor.readers.gather import BLOCK_ROWS
from advisor.readers.run_table import RunTable, names_of
from advisor.readers.telemetry_names import MEASURED, reading_of, values_of

MOST_READINGS = 1 << 21  # ten columns of this length take 168 MB; beyond, every second reading is dropped
Telemetry = dict[str, np.ndarray]
_OF_A_CARD = frozenset((*MEASURED, "memory_free_bytes", "memory_total_bytes", "throttle_reasons", "energy_joules"))


@dataclass(kw_only=True)
class ReadingStore:
    """Collects blocks of named cells from one telemetry file."""

    names: Sequence[str]
    rows: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    _parts: list[Telemetry] = field(default_factory=list)
    _kept_every: int = 1
    _cards: dict[str, int] = field(default_factory=dict)

    def add(self, columns: Sequence[Sequence[str]]) -> None:
        """Add rows, given as columns in the order of the names."""
        shared: Telemetry = {}
        by_card: dict[int | None, Telemetry] = {}
        for name, cells in zip(self.names, columns, strict=True):
            reading = reading_of(name)
            if reading is None:
                continue
            if reading.column == "identity":
                shared.setdefault("gpu", self._card_numbers(cells))
                continue
            values, said = values_of(reading, cells)
            if "size" in said:
                self.notes[f"{name!r} has no unit: read {said}"] = None
            of_card = reading.column in _OF_A_CARD
            target = by_card.setdefault(reading.card, {}) if of_card else shared
            target.setdefault(reading.column, values)
        length = len(columns[0]) if columns else 0
        self._put(shared, by_card, length)

    def add_rows(self, rows: Iterable[Sequence[str]]) -> None:
        """Add rows whose cells are in the order of the names."""
        rows = iter(rows)
        while block := list(islice(rows, BLOCK_ROWS)):
            self.add(list(zip(*block, strict=True)))

    def _put(self, shared: Telemetry, by_card: Mapping[int | None, Telemetry], length: int) -> None:
        numbered: dict[int | None, Telemetry] = {card: part for card, part in by_card.items() if card is not None}
        common = by_card.get(None, {})
        parts: Mapping[int | None, Telemetry] = numbered or {None: {}}
        for card, part in parts.items():
            rows = {**shared, **common, **part}
            if card is not None:
                rows["gpu"] = np.full(length, float(card))
            rows["_order"] = self.rows + np.arange(length, dtype=float)
            self._parts.append(_with_total(rows))
        self.rows += length
        self._thin()

    def _thin(self) -> None:
        if sum(len(part["_order"]) for part in self._parts) <= MOST_READINGS:
            return
        self._kept_every *= 2
        for part in self._parts:
            keep = part["_order"] % self._kept_every == 0
            for name in part:
                part[name] = part[name][keep]

    def _card_numbers(self, cells: Sequence[str]) -> np.ndarray:
        return np.array([float(self._cards.setdefault(cell.strip(), len(self._cards))) for cell in cells])

    def finish(self) -> tuple[Telemetry, int, tuple[str, ...]]:
        """Return columns sorted by time, the number of readings in the file, and notes."""
        cards = {float(part["gpu"][0]) for part in self._parts if "gpu" in part and len(part["gpu"])}
        wide = sum(reading is not None and reading.card is not None for reading in map(reading_of, self.names))
        readings = self.rows * (len(cards) if wide and cards else 1)
        joined = _joined(self._parts)
        if self._kept_every > 1:
            self.notes[f"every {self._kept_every}th reading was kept"] = None
        return self._timed(joined), readings, tuple(self.notes)

    def _timed(self, joined: Telemetry) -> Telemetry:
        order = joined.pop("_order", np.zeros(0))
        elapsed = joined.pop("elapsed_seconds", None)
        times = joined.get("unix_seconds")
        if times is None or not np.isfinite(times).any():
            joined["unix_seconds"] = elapsed if elapsed is not None else order
            if elapsed is None:
                self.notes["no time printed: 1 s between rows assumed"] = None
        if "gpu" not in joined:
            joined["gpu"] = _places(joined["unix_seconds"])
        by_time = np.lexsort((joined["gpu"], joined["unix_seconds"]))
        return {name: joined[name][by_time] for name in names_of("telemetry") if name in joined}


def _with_total(rows: Telemetry) -> Telemetry:
    free = rows.pop("memory_free_bytes", None)
    if free is not None and "memory_used_bytes" in rows and "memory_total_bytes" not in rows:
        rows["memory_total_bytes"] = free + rows["memory_used_bytes"]
    return rows


def _joined(parts: Sequence[Telemetry]) -> Telemetry:
    names = {name for part in parts for name in part}
    joined = {}
    for name in names:
        arrays = [part.get(name, np.full(len(part["_order"]), np.nan)) for part in parts]
        joined[name] = np.concatenate(arrays) if arrays else np.zeros(0)
    return joined


def _places(times: np.ndarray) -> np.ndarray:
    """Number GPUs without an index: rows with the same time stamp are numbered in their order."""
    if len(times) < 2:
        return np.zeros(len(times))
    new = np.concatenate(([True], np.diff(times) != 0))
    starts = np.flatnonzero(new)
    places = np.arange(len(times)) - starts[np.cumsum(new) - 1]
    return np.where(places < 64, places, 0).astype(float)  # a clock that stands still cannot tell GPUs apart


def is_telemetry(names: Sequence[str]) -> bool:
    """Return whether a header belongs to device readings: it names a GPU quantity and no loss of a run."""
    readings = [reading for reading in map(reading_of, names) if reading is not None]
    measured = {reading.column for reading in readings if reading.column in MEASURED}
    timed = any(reading.column in ("unix_seconds", "elapsed_seconds", "gpu", "identity") for reading in readings)
    return bool(measured) and (timed or len(measured) > 1)


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
