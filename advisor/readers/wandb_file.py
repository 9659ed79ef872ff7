"""The binary `run-ID.wandb` file that W&B's client writes: history, settings, system metrics, console and exit code.

It is a LevelDB log (see its log_format.md) after a header of seven bytes (":W&B", 0xBEE1, version 0). Blocks have 32
KiB and hold records in pieces of type full, first, middle or last, each with the CRC-32 of its type and data. A record
is a protobuf `Record`. Field numbers: wandb_internal.proto. Header and checksum: wandb/sdk/internal/datastore.py.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import Lines, json_value, open_binary
from advisor.readers.config_names import facts_of_settings
from advisor.readers.events import events_in
from advisor.readers.gather import rows_of
from advisor.readers.protobuf import MAX_RECORD_BYTES, Damaged, Message
from advisor.readers.run_table import RunTable, Status
from advisor.readers.status import by_tracker, is_open
from advisor.readers.telemetry_file import system_metrics
from advisor.readers.wandb_folder import NAME as FOLDER_NAME
from advisor.readers.wandb_folder import metric_name

NAME = "wandb_file"
_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK, _PIECE = 32768, struct.Struct("<IHB")  # checksum, length, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _OUTPUT, _CONFIG, _STATS, _OUTPUT_RAW, _RUN, _EXIT = 2, 4, 5, 7, 13, 17, 18  # fields of Record
_MOST_STATS = 100_000  # eleven days with a reading every ten seconds
_MOST_SETTINGS = 20_000


def score(head: bytes, path: Path) -> float:
    """Return the score, by the file's first four bytes."""
    return 0.99 if head.startswith(_HEADER[:4]) else 0.0


@dataclass(kw_only=True)
class _Run:
    """What the records of one file hold."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # numbers of the rows' records
    settings: dict[str, Any] = field(default_factory=dict)
    stats: list[dict[str, Any]] = field(default_factory=list)
    console: list[bytes] = field(default_factory=list)  # whole lines, each with its record's number
    said: list[int] = field(default_factory=list)
    records: int = 0
    exit_code: int | None = None


def read(path: Path) -> RunTable:
    """Read a `.wandb` file, up to any damage, which gives a note. Raises AdvisorError if nothing can be read."""
    run, note = _Run(), ""
    with open_binary(path) as file:
        try:
            for record in records(file):
                _add(run, Message(record))
        except (Damaged, EOFError, OSError, zlib.error) as error:
            if not run.records:
                raise AdvisorError(
                    f"{path} is no .wandb file that can be read: {error}", "copy it anew, or give what the run printed"
                ) from error
            note = f"{path.name}: {error}; what came before it is read"
    facts, notes = facts_of_settings(run.settings), [note] if note else []
    gathered = rows_of(run.rows, metric_name, run.places)
    events = events_in(Lines(text=b"".join(run.console), numbers=np.array(run.said, int)))
    table = gathered.table(path, FOLDER_NAME, facts=facts, events=events, notes=notes)
    # rows and events were placed by their record numbers, which are not line numbers
    unplaced = tuple(dataclasses.replace(event, line=None) for event in table.events)
    table = dataclasses.replace(table, events=unplaced, telemetry=system_metrics(run.stats))
    if run.exit_code is None or not is_open(table):
        return table
    status = Status.COMPLETED if run.exit_code == 0 else Status.CRASHED
    return by_tracker(table, status, f"the program ended with exit code {run.exit_code}")


def records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the data of all whole records, up to an incomplete last one. Raises Damaged at the first wrong checksum."""
    if file.read(len(_HEADER)) != _HEADER:
        raise Damaged("it does not begin as W&B's files do")
    position = len(_HEADER)
    pieces: list[bytes] = []
    while True:
        room = _BLOCK - position % _BLOCK
        if room < _PIECE.size:  # too small for another piece, so it is padding
            position += len(file.read(room))
        head = file.read(_PIECE.size)
        if len(head) < _PIECE.size:
            return
        checksum, length, kind = _PIECE.unpack(head)
        data = file.read(length)
        if len(data) < length:
            return
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum:
            raise Damaged(f"the record at byte {position} fails its checksum")
        position += _PIECE.size + length
        pieces = [data] if kind in (_FULL, _FIRST) else [*pieces, data]
        if sum(map(len, pieces)) > MAX_RECORD_BYTES:
            raise Damaged(f"the record at byte {position} is too long")
        if kind in (_FULL, _LAST):
            yield b"".join(pieces)
            pieces = []


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How W&B identifies a run."""

    run: str
    project: str | None
    entity: str | None


def identity(path: Path) -> Identity | None:
    """Return the run that a file belongs to; None if it does not say. Raises AdvisorError if the file is damaged."""
    try:
        with open_binary(path) as file:
            for record in records(file):
                for run in Message(record).inner(_RUN):
                    name = run.text(1)
                    return Identity(run=name, entity=run.text(2) or None, project=run.text(3) or None) if name else None
    except Damaged as error:
        raise AdvisorError(f"{path} is damaged: {error}", "copy it again from where it was written") from error
    return None


def _add(run: _Run, record: Message) -> None:
    run.records += 1
    for history in record.inner(_HISTORY):
        steps = [float(step.whole(1)) for step in history.inner(2)]
        run.rows.append(_items(history, 1) | ({"_step": steps[0]} if steps else {}))
        run.places.append(run.records)
    configs = [*record.inner(_CONFIG), *(config for one in record.inner(_RUN) for config in one.inner(4))]
    for config in configs if len(run.settings) < _MOST_SETTINGS else ():
        run.settings |= _items(config, 1)
    for stats in record.inner(_STATS) if len(run.stats) < _MOST_STATS else ():
        stamps = [one.whole(1) + one.whole(2) / 1e9 for one in stats.inner(2)]  # seconds, nanoseconds
        run.stats.append(_items(stats, 3) | {"_timestamp": next(iter(stamps), None)})
    for output in (*record.inner(_OUTPUT), *record.inner(_OUTPUT_RAW)):
        for line in output.parts.get(3, ()):
            text = line if line.endswith(b"\n") else line + b"\n"
            run.console.append(text)
            run.said += [run.records] * text.count(b"\n")
    for ended in record.inner(_EXIT):
        run.exit_code = ended.whole(1)


def _items(message: Message, wanted: int) -> dict[str, Any]:
    """Return the keys and JSON values of items: 1 key, 2 nested_key (repeated), 16 value_json."""
    found = {}
    for item in message.inner(wanted):
        key = item.last(1) or b"/".join(item.parts.get(2, ()))
        if 16 in item.parts and len(item.last(16)) < 2**16:  # longer values are pictures and tables
            found[key.decode("utf-8", "replace")] = json_value(item.last(16))
    return found
