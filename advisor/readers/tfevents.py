"""Reads TensorBoard event files: scalars by tag and step, and Hugging Face's arguments in text summaries.

Event: 1 wall_time, 2 step, 5 summary; Summary: 1 value (repeated); Value: 1 tag, 2 simple_value, 8 tensor. Source:
event.proto and summary.proto of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import json_object, open_binary
from advisor.readers.config_names import facts_of_settings
from advisor.readers.gather import rows_of_series
from advisor.readers.names import column_of
from advisor.readers.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    Damaged,
    double,
    fields,
    first_number,
    records,
    signed,
    single,
)
from advisor.readers.run_table import RunTable

NAME = "tfevents"
_SETTINGS_TAGS = ("args/text_summary", "model_config/text_summary")  # transformers' TensorBoardCallback
_MOST_TAGS = 5000


def score(head: bytes, path: Path) -> float:
    """Return the score, by the version that the first event of every file states."""
    return 0.99 if b"brain.Event:" in head[:256] else 0.0


@dataclass(kw_only=True)
class Scalars:
    """Scalars of one or more event files: steps, wall times and values of each tag."""

    by_tag: dict[str, tuple[array, array, array]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    seconds: float = 0.0  # from the first event of each file to its last
    _span: tuple[float, float] = (math.inf, -math.inf)  # wall times of the present file

    def passed(self, wall_time: float) -> None:
        """Record the time at which an event was written."""
        if math.isfinite(wall_time):
            self._span = min(self._span[0], wall_time), max(self._span[1], wall_time)

    def end_file(self) -> None:
        """Add the duration of a file that was read."""
        self.seconds += max(0.0, self._span[1] - self._span[0])
        self._span = math.inf, -math.inf

    def add(self, tag: str, step: int, wall_time: float, value: float) -> None:
        """Add one scalar."""
        if tag not in self.by_tag:
            if len(self.by_tag) >= _MOST_TAGS:
                return
            self.by_tag[tag] = (array("d"), array("d"), array("d"))
        for column, number in zip(self.by_tag[tag], (step, wall_time, value), strict=True):
            column.append(number)


def read(path: Path) -> RunTable:
    """Read one event file, up to any damage, which gives a note. Raises AdvisorError if nothing can be read."""
    scalars = Scalars()
    note = read_events(path, scalars)
    return table_of(scalars, source=str(path), notes=(note,) if note else ())


def read_events(path: Path, scalars: Scalars) -> str | None:
    """Add a file's scalars and return a note on damage, if any. Raises AdvisorError if the file cannot be opened."""
    with open_binary(path) as file:
        try:
            for record in records(file):
                _event(record, scalars)
        except (Damaged, EOFError, OSError, zlib.error) as error:
            if not scalars.events:
                raise AdvisorError(
                    f"{path} is no event file that can be read: {error}", "copy it anew from where the run wrote it"
                ) from error
            return f"{path.name}: {error}; what came before it is read"
        finally:
            scalars.end_file()
    if not scalars.events:
        raise AdvisorError(
            f"{path} holds no event: nothing was logged yet",
            "wait for the first step, or give the run's newest event file",
        )
    return None


def table_of(scalars: Scalars, *, source: str, notes: tuple[str, ...] = ()) -> RunTable:
    """Return one row per step, with the tags as columns."""
    known = {tag: (np.array(times), np.array(values), np.array(steps))
             for tag, (steps, times, values) in scalars.by_tag.items() if column_of(tag) is not None}  # fmt: skip
    table = rows_of_series(known).table(
        source,
        NAME,
        "huggingface" if scalars.settings else None,
        facts=facts_of_settings(scalars.settings),
        provenance={"unix_seconds": "wall time of the event"},
        notes=notes,
    )
    if len(table.runs) != 1 or not scalars.seconds:
        return table
    (run,) = table.runs
    timed = dataclasses.replace(run, clock_seconds=scalars.seconds, clock="time stamps of its events")
    return dataclasses.replace(table, runs=(timed,))


def _event(record: bytes, scalars: Scalars) -> None:
    wall_time, step = math.nan, 0
    summary: bytes | None = None
    for number, wire, value in fields(record):
        if isinstance(value, int):
            step = signed(value) if number == 2 else step
        elif number == 1 and wire == FIXED64:
            wall_time = double(value)
        elif number == 5 and wire == BYTES:
            summary = value
    scalars.events += 1
    scalars.passed(wall_time)
    if summary is not None:
        for number, wire, value in fields(summary):
            if number == 1 and wire == BYTES and isinstance(value, bytes):
                _value(value, step, wall_time, scalars)


def _value(message: bytes, step: int, wall_time: float, scalars: Scalars) -> None:
    tag, number, tensor = "", None, None
    for field_number, wire, value in fields(message):
        if isinstance(value, int):
            continue
        if field_number == 1 and wire == BYTES:
            tag = value[:200].decode("utf-8", "replace")
        elif field_number == 2 and wire == FIXED32:
            number = single(value)
        elif field_number == 8 and wire == BYTES:
            tensor = value
    if tensor is not None and tag in _SETTINGS_TAGS:
        scalars.settings[tag] = _settings(tensor)
    elif tensor is not None and number is None and len(tensor) < 256:
        number = first_number(tensor)
    if number is not None:
        scalars.add(tag, step, wall_time, number)


def _settings(tensor: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a tensor of strings (field 8); empty for anything else."""
    for number, _, value in fields(tensor):
        if number == 8 and isinstance(value, bytes) and value.lstrip()[:1] == b"{":
            return json_object(value)
    return {}
