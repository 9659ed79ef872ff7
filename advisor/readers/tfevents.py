"""Reads TensorBoard event files: scalars by tag and step, and Hugging Face's arguments in text summaries.

Event: 1 wall_time, 2 step, 5 summary; Summary: 1 value (repeated); Value: 1 tag, 2 simple_value, 8 tensor. Source:
event.proto and summary.proto of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import json_object, open_binary
from advisor.readers.config_names import facts_of_settings
from advisor.readers.gather import rows_of_series
from advisor.readers.names import column_of
from advisor.readers.protobuf import Damaged, Message, first_number, float_of, records
from advisor.readers.run_table import RunTable

NAME = "tfevents"
_SETTINGS_TAGS = ("args/text_summary", "model_config/text_summary")  # transformers' TensorBoardCallback
_MOST_TAGS = 5000
_Scalars = dict[str, list[tuple[float, float, float]]]  # wall time, value and step of each scalar of a tag


def score(head: bytes, path: Path) -> float:
    """Return the score, by the version that the first event of every file states."""
    return 0.99 if b"brain.Event:" in head[:256] else 0.0


def read(path: Path) -> RunTable:
    """Read one event file, up to any damage, which gives a note. Raises AdvisorError if nothing can be read."""
    return read_files([path], str(path))


def read_files(paths: Sequence[Path], source: str) -> RunTable:
    """Read event files as one run, because every restart begins a new one: one row per step, the tags as columns."""
    scalars: _Scalars = {}
    settings: dict[str, Any] = {}
    notes, events, seconds = [], 0, 0.0
    for path in paths:
        times = []
        with open_binary(path) as file:
            try:
                for record in records(file):
                    event = Message(record)
                    times.append(float_of(event.last(1)) or math.nan)
                    _add(event, times[-1], scalars, settings)
            except (Damaged, EOFError, OSError, zlib.error) as error:
                notes.append(f"{path.name}: {error}; what came before it is read")
        known = [time for time in times if math.isfinite(time)]
        seconds += max(known) - min(known) if known else 0.0
        events += len(times)
    if not events:
        why = notes[0].partition(";")[0] if notes else "nothing was logged yet"
        hint = "wait for the first step, or give the run's newest event file; a damaged one can be copied anew"
        raise AdvisorError(f"{source} holds no event that can be read: {why}", hint)
    columns = {tag: np.array(rows).T for tag, rows in scalars.items() if column_of(tag) is not None}
    table = rows_of_series({tag: (times, values, steps) for tag, (times, values, steps) in columns.items()}).table(
        source,
        NAME,
        "huggingface" if settings else None,
        facts=facts_of_settings(settings),
        provenance={"unix_seconds": "wall time of the event"},
        notes=notes,
    )
    if len(table.runs) != 1 or not seconds:
        return table
    timed = dataclasses.replace(table.runs[0], clock_seconds=seconds, clock="time stamps of its events")
    return dataclasses.replace(table, runs=(timed,))


def _add(event: Message, wall_time: float, scalars: _Scalars, settings: dict[str, Any]) -> None:
    """Add the scalars of one event, and the settings that a callback wrote as text."""
    for value in (value for summary in event.inner(5) for value in summary.inner(1)):
        tag, number = value.text(1)[:200], float_of(value.last(2))
        if 8 in value.parts and tag in _SETTINGS_TAGS:
            settings[tag] = json_object(Message(value.last(8)).last(8))
        elif number is None and 0 < len(value.last(8)) < 256:
            number = first_number(Message(value.last(8)))
        if number is not None and (tag in scalars or len(scalars) < _MOST_TAGS):
            scalars.setdefault(tag, []).append((wall_time, number, event.whole(2)))
