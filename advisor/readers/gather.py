"""Turns named cells into records: which key is which column, in which unit, and whether a loss was printed as NaN.

Rows come in blocks, so long files need constant memory. The first block that contains a name decides what the name
means; all values together decide the unit.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.readers.assemble import assemble
from advisor.readers.cells import (
    NON_FINITE,
    looks_like_date,
    plain_numbers,
    printed_non_finite,
    unix_seconds,
    unix_times,
)
from advisor.readers.names import BYTES, SECONDS, SHARES, Named, by_letters, column_of, in_unit
from advisor.readers.records import EVAL, TRAIN, Records, RecordStore, has_loss
from advisor.readers.run_table import Event, RunTable
from advisor.readers.status import without_words
from advisor.readers.telemetry_names import KIND, card_column, column_or_card, converted, unit_in_cells

BLOCK_ROWS = 20_000
_LOSSES = ("loss", "eval_loss")
_OF_NUMBERS = ("csv", "jsonl", "parquet", "hf_trainer_state")  # formats that cannot say how a run ended
_MOST_TOLD = 12  # skipped names that are listed
_FEWEST_KEYS = 3  # fewest keys that must share a stage's name
_ROW_NUMBERS = ("index", "idx", "unnamed: 0")

Cells = Sequence[str] | np.ndarray  # one key's cells in a block: text as written, or numbers


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Records in the columns' units, how each column was printed, the names that were skipped, and notes on both."""

    records: Records
    provenance: dict[str, str]
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def table(
        self,
        source: str | Path,
        format: str,
        framework: str | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
        events: Sequence[Event] = (),
        provenance: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
    ) -> RunTable:
        """Return the records as a run's table; `provenance` and `notes` are added to those of the records."""
        table = assemble(
            self.records,
            source=str(source),
            format=format,
            framework=framework,
            facts=facts,
            events=events,
            provenance={**self.provenance, **(provenance or {})},
            notes=(*self.notes, *notes),
        )
        return without_words(table) if format in _OF_NUMBERS else table


def not_read(names: Sequence[str]) -> list[str]:
    """Return a note on the names or numbers that no column used; empty if all were read."""
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return [f"not read: {', '.join(names[:_MOST_TOLD])}{more}"] if names else []


@dataclass(kw_only=True)
class Gatherer:
    """Takes blocks of named cells. `name_of` returns what a name means."""

    name_of: Callable[[str], Named | None] = column_or_card
    _store: RecordStore = field(default_factory=lambda: RecordStore(kinds=(TRAIN, EVAL)))
    _key_of: dict[str, tuple[str, Named]] = field(default_factory=dict)  # column → the key that it is read from
    _passed: dict[str, None] = field(default_factory=dict)  # skipped names, in order
    _rows: int = 0
    _dates: set[str] = field(default_factory=set)

    def add(self, cells: Mapping[str, Cells], lines: np.ndarray | None = None, printed: Mapping | None = None) -> None:
        """Add a block in which all keys have the same length. `lines` are 1-based line numbers.

        `printed` gives, for keys whose cells are numbers, 1 where NaN was written and not just left out.
        """
        rows = len(next(iter(cells.values()), ()))
        if not rows:
            return
        self._settle(cells)
        columns = {column: self._numbers(key, named, cells[key])
                   for column, (key, named) in self._key_of.items() if key in cells}  # fmt: skip
        for column in _LOSSES:
            if column in columns:
                key = self._key_of[column][0]
                flags = _flags(cells[key], columns[column], (printed or {}).get(key))
                columns["loss_is_nan" if column == "loss" else "_eval_is_nan"] = flags
        order = self._rows + np.arange(rows)
        lines = order + 1 if lines is None else np.asarray(lines, np.int64)
        self._put(order, lines, columns)
        self._rows += rows

    def finish(self) -> Gathered:
        """Return all records, in the columns' units."""
        records = self._store.records()
        columns, provenance, notes = {}, {}, []
        for column, (key, named) in self._key_of.items():
            if column not in records.columns:
                continue
            target, values, said = self._converted(named, column, records.columns[column])
            if np.all(np.isnan(values)) and column not in _LOSSES:
                continue
            if target in columns and target != column:
                continue  # another key with a surer name has this column
            columns[target] = values
            provenance[target] = f"{key!r}" + (f", {said}" if said else "")
            if said and "size" in said:
                notes.append(f"{key!r} has no unit: read {said}")
        if "loss_is_nan" in records.columns:
            columns["loss_is_nan"] = records.columns["loss_is_nan"]
        done = Records(**{**records.__dict__, "columns": columns})
        return Gathered(records=done, provenance=provenance, unread=tuple(self._passed), notes=tuple(notes))

    def _settle(self, cells: Mapping[str, Cells]) -> None:
        """Choose the key for each column: the surest in the first block that has any. The choice is final."""
        found: dict[str, tuple[str, Named]] = {}
        stage = stage_of(list(cells))
        known = by_letters(list(cells))
        for key in cells:
            named = self.name_of(known.get(key, key)) or (self.name_of(key[len(stage) :]) if stage else None)
            named = _with_unit(key, named, cells[key])
            if named is None or named.per_device:
                self._passed[key] = None
                continue
            if named.column in self._key_of:
                continue
            if named.column not in found or named.rank < found[named.column][1].rank:
                if found.get(named.column):
                    self._passed[found[named.column][0]] = None
                found[named.column] = (key, named)
            else:
                self._passed[key] = None
        if "step" in found and (going_on := _going_on(cells, found["step"][0])) is not None:
            found["step"] = (going_on, found["step"][1])
        self._key_of.update(found)

    def _numbers(self, key: str, named: Named, cells: Cells) -> np.ndarray:
        if isinstance(cells, np.ndarray):
            return cells
        if named.kind in ("date", "time") and looks_like_date(next((c for c in cells if c.strip()), "")):
            self._dates.add(named.column)
            return unix_times(cells)
        return plain_numbers(cells)

    def _converted(self, named: Named, column: str, values: np.ndarray) -> tuple[str, np.ndarray, str]:
        if column in self._dates:
            return "unix_seconds", values, "date"
        if named.kind == "date":
            return column, unix_seconds(values), ""
        return converted(named, values) if named.kind == KIND else in_unit(named, values)

    def _put(self, order: np.ndarray, lines: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        rows = len(order)
        trained = has_loss(columns, rows)
        evaluated = ~np.isnan(columns.pop("_eval_is_nan", np.full(rows, np.nan)))
        # a row without a loss (validation, or an epoch's summary) completes the row with a loss that it belongs to
        is_eval = ~trained if "loss" in self._key_of else evaluated & ~trained
        for rule, mask in ((0, ~is_eval), (1, is_eval)):
            if mask.any():
                chosen = {name: values[mask] for name, values in columns.items()}
                self._store.add(order=order[mask], line=lines[mask], rule=rule, columns=chosen)
        self._store.end_of_chunk()


def _with_unit(key: str, named: Named | None, cells: Cells) -> Named | None:
    """Return what a column is if its cells state the unit but its name does not: `1094.5ms`, `56W`."""
    if isinstance(cells, np.ndarray) or (named is not None and named.unit is not None):
        return named
    unit = unit_in_cells(cells)
    if unit is None:
        return named
    if named is None or named.kind == KIND:
        return card_column(key, unit) or named
    factors = {"seconds": SECONDS, "time": SECONDS, "bytes": BYTES, "share": SHARES}.get(named.kind, {})
    return replace(named, unit=unit) if unit in factors else named


def stage_of(keys: Sequence[str]) -> str:
    """Return the prefix that all keys share, as `stage2_step` and `stage2_lr` do; "" if there is none."""
    shared = os.path.commonprefix(keys) if len(keys) >= _FEWEST_KEYS else ""
    return shared[: 1 + max(shared.rfind(mark) for mark in "_/.")]


def _going_on(cells: Mapping[str, Cells], step: str) -> str | None:
    """Return the key of row numbers that continue while the step restarts with every epoch; None if there is none."""
    key = next((key for key in cells if key.strip().lower() in _ROW_NUMBERS), None)
    if key is None or key == step:
        return None
    rows, steps = (np.diff(c if isinstance(c, np.ndarray) else plain_numbers(c)) for c in (cells[key], cells[step]))
    return key if np.any(steps < 0) and len(rows) and np.all(rows == rows[0]) and rows[0] > 0 else None


def _flags(cells: Cells, values: np.ndarray, printed: np.ndarray | None) -> np.ndarray:
    """Return 0 for a finite loss, 1 for a printed NaN, 2 for a printed infinity and NaN for an empty cell."""
    if printed is None:
        printed = np.zeros(len(values)) if isinstance(cells, np.ndarray) else _scan(cells, values)
    flags = np.where(np.isfinite(values), 0.0, np.nan)
    flags[np.isinf(values)] = 2
    flags[np.isnan(values) & (printed > 0)] = 1
    return flags


def _scan(cells: Sequence[str], values: np.ndarray) -> np.ndarray:
    flags = np.zeros(len(values))
    unknown = np.flatnonzero(~np.isfinite(values))
    flags[unknown] = printed_non_finite([cells[i] for i in unknown.tolist()])
    return flags


# Rows that are JSON objects (JSON lines, log histories, W&B exports). Keys become columns; nested keys are joined by
# slashes.

_DEEPEST = 4
_MOST_KEYS = 5000  # an object with more keys is data
_COUNTER = re.compile(r"(\d{1,12})/(\d{1,12})")
_LONGEST_VALUE = 64  # characters of a number that is written as text


@dataclass(kw_only=True)
class JsonRows:
    """Collects objects as rows. Numbers written as text count; everything else that is not a number is skipped."""

    name_of: Callable[[str], Named | None] = column_or_card
    _gatherer: Gatherer | None = None
    _stage: str | None = None  # the prefix of all keys of the first row
    _rows: list[dict[str, str]] = field(default_factory=list)
    _lines: list[int] = field(default_factory=list)
    _passed: dict[str, None] = field(default_factory=dict)  # names of numbers that are not a run's, in order

    def add(self, row: Mapping[str, Any], line: int) -> None:
        """Add one object; `line` is its 1-based line or its number in a list."""
        values = {key: value for key, value in _counters_apart(flatten(row)) if _is_value(value)}
        if self._stage is None:
            self._stage = stage_of([key for key, _ in flatten(row)])
        self._rows.append({key: str(value) for key, value in values.items() if self._named(key) is not None})
        self._lines.append(line)
        if len(self._passed) < _MOST_KEYS:
            self._passed |= dict.fromkeys(key for key in values if key not in self._rows[-1])
        if len(self._lines) == BLOCK_ROWS:
            self._flush()

    def _named(self, key: str) -> Named | None:
        named = self.name_of(key) or (self.name_of(key.removeprefix(self._stage)) if self._stage else None)
        group, _, name = key.rpartition("/")
        unit = group.rpartition("_")[2]
        if named is None and (unit in SECONDS or unit in BYTES or unit in SHARES):
            return self.name_of(f"{name}_{unit}")  # {"timing_ms": {"forward": 12.5}}
        return named

    def finish(self) -> Gathered:
        """Return all rows as records."""
        self._flush()
        assert self._gatherer is not None
        gathered = self._gatherer.finish()
        return replace(gathered, unread=(*gathered.unread, *self._passed))

    def _flush(self) -> None:
        self._gatherer = self._gatherer or Gatherer(name_of=self._named)
        keys = dict.fromkeys(key for row in self._rows for key in row)
        self._gatherer.add({key: [row.get(key, "") for row in self._rows] for key in keys}, np.array(self._lines))
        self._rows, self._lines = [], []


def _counters_apart(pairs: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Yield keys and values, with `"global_step/max_steps": "10/210"` as the two numbers that it names."""
    for key, value in pairs:
        both = _COUNTER.fullmatch(value) if isinstance(value, str) else None
        if both is not None and key.count("/") == 1:
            yield from zip(key.split("/"), both.groups(), strict=True)
        else:
            yield key, value


def _is_value(value: Any) -> bool:
    """Return whether a value is a number, a date or a clock, as a JSON number or as text."""
    if not isinstance(value, str):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return len(value) < _LONGEST_VALUE and (
        looks_like_date(value) or bool(np.isfinite(plain_numbers([value])[0])) or value.strip().lower() in NON_FINITE
    )


def rows_of(objects: Iterable[Mapping[str, Any]], name_of: Callable[[str], Named | None] = column_or_card) -> Gathered:
    """Return the records of a list of objects, which are numbered from 1."""
    rows = JsonRows(name_of=name_of)
    for number, one in enumerate(objects, 1):
        rows.add(one, number)
    return rows.finish()


Series = tuple[np.ndarray, np.ndarray, np.ndarray]  # Unix seconds, values, steps


def rows_of_series(series: Mapping[str, Series]) -> Gathered:
    """Return the records of scalars that were logged one by one, one row per step. The later of two values counts."""
    gatherer = Gatherer(name_of=lambda name: column_of(name) or column_of(name.rpartition("/")[2]))
    axis = np.unique(np.concatenate([steps for _, _, steps in series.values()])) if series else np.zeros(0)
    cells: dict[str, np.ndarray] = {"step": axis, "unix_time": np.full(len(axis), math.nan)}
    printed: dict[str, np.ndarray] = {}
    for name, (times, values, steps) in series.items():
        # the scalar's step is the row's own, and a scalar called a step only repeats it
        named = gatherer.name_of(name)
        if named is None or named.column in ("step", "unix_seconds"):
            continue
        rows = np.searchsorted(axis, steps)
        cells[name], printed[name] = np.full(len(axis), math.nan), np.zeros(len(axis))
        cells[name][rows], printed[name][rows] = values, np.isnan(values)
        cells["unix_time"][rows] = times
    gatherer.add(cells, np.arange(1, len(axis) + 1), printed)
    return gatherer.finish()


def flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Yield an object's keys and values; an inner object's keys are joined to the outer key by a slash."""
    for number, (key, value) in enumerate(row.items()):
        if number > _MOST_KEYS:
            return
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                yield from flatten(value, f"{prefix}{key}/", depth + 1)
        else:
            yield prefix + str(key), value
