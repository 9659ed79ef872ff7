"""Rows that are JSON objects (JSON lines, log histories, W&B exports): keys to columns, nesting joined by slashes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from advisor.readers.bounded import as_number
from advisor.readers.card_columns import column_or_card
from advisor.readers.cells import NON_FINITE, looks_like_date, plain_numbers, unix_times
from advisor.readers.gather import BLOCK_ROWS, Gathered, Gatherer, stage_of
from advisor.readers.names import BYTES, SECONDS, SHARES, Named

_DEEPEST = 4
_MOST_KEYS = 5000  # of one object: more is data


@dataclass(kw_only=True)
class JsonRows:
    """Collects objects as rows; numbers written as text count, everything else is passed over."""

    name_of: Callable[[str], Named | None] = column_or_card
    _gatherer: Gatherer | None = None
    _stage: str | None = None  # what all keys of the first row begin with
    _cells: dict[str, list[tuple[int, float, int]]] = field(default_factory=dict)  # key → (row, value, printed)
    _lines: list[int] = field(default_factory=list)
    _passed: dict[str, None] = field(default_factory=dict)  # names of numbers that are none of a run's, in order

    def add(self, row: Mapping[str, Any], line: int) -> None:
        """Add one object from a 1-based line (or its number in a list)."""
        at = len(self._lines)
        self._lines.append(line)
        flat = list(flatten(row))
        if self._stage is None:
            self._stage = stage_of([key for key, _ in flat])
        for key, value in flat:
            named = self._named(key)
            if named is None:
                if as_number(value) is not None and len(self._passed) < _MOST_KEYS:
                    self._passed[key] = None
                continue
            number = _time(value) if named.kind in ("date", "time") else _count(value, named)
            if number is not None:
                self._cells.setdefault(key, []).append((at, number, _printed(value, number)))
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
        """All rows as records."""
        self._flush()
        assert self._gatherer is not None
        gathered = self._gatherer.finish()
        return replace(gathered, unread=(*gathered.unread, *self._passed))

    def _flush(self) -> None:
        self._gatherer = self._gatherer or Gatherer(name_of=self._named)
        rows = len(self._lines)
        cells, printed = {}, {}
        for key, found in self._cells.items():
            values, flags = np.full(rows, math.nan), np.zeros(rows)
            places = [place for place, _, _ in found]
            values[places] = [value for _, value, _ in found]
            flags[places] = [flag for _, _, flag in found]
            cells[key], printed[key] = values, flags
        self._gatherer.add(cells, np.array(self._lines), printed)
        self._cells, self._lines = {}, []


def rows_of(objects: Iterable[Mapping[str, Any]], name_of: Callable[[str], Named | None] = column_or_card) -> Gathered:
    """Records of a list of objects, numbered from 1."""
    rows = JsonRows(name_of=name_of)
    for number, one in enumerate(objects, 1):
        rows.add(one, number)
    return rows.finish()


def flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterable[tuple[str, Any]]:
    """Keys and values of an object, inner objects' keys joined to the outer ones by a slash."""
    for number, (key, value) in enumerate(row.items()):
        if number > _MOST_KEYS:
            return
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                yield from flatten(value, f"{prefix}{key}/", depth + 1)
        else:
            yield prefix + str(key), value


def _count(value: Any, named: Named) -> float | None:
    """A number; of a counter with its plan behind a slash ("5/80") the counter, of a clock ("0:02:38") its seconds."""
    if named.kind == "count" and isinstance(value, str):
        value = value.partition("/")[0]
    if named.kind == "seconds" and isinstance(value, str) and ":" in value:
        seconds = float(plain_numbers([value])[0])
        return None if math.isnan(seconds) else seconds
    return as_number(value)


def _time(value: Any) -> float | None:
    if isinstance(value, str) and looks_like_date(value):
        seconds = float(unix_times([value])[0])
        return None if math.isnan(seconds) else seconds
    return as_number(value)


def _printed(value: Any, number: float) -> int:
    """1 where NaN was written, as a number or a word."""
    return int(math.isnan(number) and (isinstance(value, float) or str(value).strip().lower() in NON_FINITE))
