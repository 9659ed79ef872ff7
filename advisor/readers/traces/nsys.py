"""Reads the SQLite export of Nsight Systems: read-only, none of its views, and with a time limit for each query."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from advisor.errors import AdvisorError
from advisor.readers.traces.kinds import Kind
from advisor.readers.traces.timeline import COPY, KERNEL, SET, Collector, Timeline

_SECONDS_A_QUERY = 120.0
_NANOSECOND = 1e-9
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP", 11: "unified HtoD", 12: "unified DtoH", 13: "unified DtoD"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 4: "Managed"}
_RANGE_TYPES = (59, 60)  # push-pop and start-end
_PREFIX = "CUPTI_ACTIVITY_KIND_"


def read_nsys(stream: BinaryIO, name: str) -> list[Timeline]:
    """Read the trace of each process. Raises AdvisorError if the file is damaged or holds no CUDA activity."""
    with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
        path = Path(folder) / "report.sqlite"
        with open(path, "wb") as copy:
            shutil.copyfileobj(stream, copy, 2**20)
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
                return _Database(connection).timelines(name)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            hint = "export it again: nsys export --type sqlite --force-overwrite true report.nsys-rep"
            raise AdvisorError(f"{name} cannot be read: {error}", hint) from error


class _Database:
    def __init__(self, connection: sqlite3.Connection):
        self._connection = connection
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**24)
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        self._tables = {str(name) for name, sql in tables if re.match(r"CREATE TABLE\b", str(sql))}

    def _rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield rows of whole numbers, or nothing if there is no such table. A missing column is -1."""
        if table not in self._tables:
            return
        there = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
        picked = ", ".join(f"CAST({one} AS INTEGER)" if one in there else "-1" for one in columns)
        until = time.monotonic() + _SECONDS_A_QUERY
        self._connection.set_progress_handler(lambda: time.monotonic() > until, 100_000)
        for row in self._connection.execute(f"SELECT {picked} FROM {table}"):
            yield tuple(-1 if value is None else value for value in row)

    def _texts(self, table: str, key: str, text: str) -> dict[int, str]:
        if table not in self._tables:
            return {}
        short = f"substr(CAST({text} AS TEXT), 1, 400)"
        query = f"SELECT CAST({key} AS INTEGER), {short} FROM {table} WHERE {text} NOT NULL"
        return dict(self._connection.execute(query))

    def timelines(self, name: str) -> list[Timeline]:
        names = self._texts("StringIds", "id", "value")
        gpus = self._texts("TARGET_INFO_GPU", "id", "name")
        memory = dict(self._rows("TARGET_INFO_GPU", ("id", "totalMemory")))
        by_process: dict[int, Collector] = {}
        event = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")

        def add(row: tuple[Any, ...], kind: int, words: str) -> None:
            start, end, device, stream, correlation, pid, *_ = row
            rows = by_process.setdefault(pid >> 24, Collector())
            rows.add_device(device, kind, words, start * _NANOSECOND, _seconds(start, end), stream, correlation)

        for row in self._rows(f"{_PREFIX}KERNEL", (*event, "demangledName")):
            add(row, KERNEL, names.get(row[-1], "kernel"))
        if not by_process:  # whole CUDA graphs were recorded instead of their kernels
            for row in self._rows(f"{_PREFIX}GRAPH_TRACE", event):
                add(row, KERNEL, "CUDA graph")
        for row in self._rows(f"{_PREFIX}MEMCPY", (*event, "copyKind", "srcKind", "dstKind")):
            source, target = (_MEMORY.get(end, "unknown") for end in row[-2:])
            add(row, COPY, f"Memcpy {_COPY_KINDS.get(row[-3], 'other')} ({source} -> {target})")
        for row in self._rows(f"{_PREFIX}MEMSET", event):
            add(row, SET, "Memset")
        if not by_process:
            hint = "record it: nsys profile -t cuda,nvtx --export sqlite python train.py"
            raise AdvisorError(f"{name} holds no CUDA activity", hint)
        self._add_host(by_process, names)
        about = {number: (words[:80], float(memory.get(number, 0)) or None) for number, words in gpus.items()}
        many = len(by_process) > 1
        return [rows.timeline(name, Kind.NSYS, about, rank=place if many else None,
                              world_size=len(by_process) if many else None)
                for place, (_, rows) in enumerate(sorted(by_process.items()))]  # fmt: skip

    def _add_host(self, by_process: dict[int, Collector], names: dict[int, str]) -> None:
        """Add the calls of the runtime, and NVTX ranges: operators if torch wrote them, otherwise annotations."""
        call_columns = ("start", "end", "correlationId", "nameId", "globalTid")
        for start, end, correlation, number, thread in self._rows(f"{_PREFIX}RUNTIME", call_columns):
            if (rows := by_process.get(thread >> 24)) is not None:
                call, host = re.sub(r"_v\d+$", "", names.get(number, "")), rows.threads["host", thread]
                rows.calls.add(start * _NANOSECOND, _seconds(start, end), rows.names[call], host, correlation)
        texts = self._texts("NVTX_EVENTS", "rowid", "text")
        columns = ("rowid", "start", "end", "eventType", "textId", "globalTid")
        for place, start, end, kind, number, thread in self._rows("NVTX_EVENTS", columns):
            rows = by_process.get(thread >> 24)
            if rows is None or kind not in _RANGE_TYPES or end < start:
                continue
            words, host = texts.get(place, names.get(number, "")), rows.threads["host", thread]
            if re.match(r"\w+::", words):
                rows.add_op(words.split(",")[0], start * _NANOSECOND, _seconds(start, end), host)
            else:
                rows.ranges.add(start * _NANOSECOND, _seconds(start, end), rows.names[words], host)


def _seconds(start: int, end: int) -> float:
    return max(end - start, 0) * _NANOSECOND
