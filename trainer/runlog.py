"""Writes and reads the run log, `log.jsonl`. Needs no torch.

Each line is one JSON object. `docs/file-formats.md` lists the kinds and their fields.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from trainer.schema import SCHEMA

Record = dict[str, Any]

# Ends a line that a crash left unfinished. Such a line stays in the file, but readers skip it.
TORN_MARK = b" <torn>"

LOG_NAME = "log.jsonl"  # in a run folder
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NUMERIC_KINDS = ("step", "eval", "witness", "compile")  # every such string in records of these kinds is a number
_LINES_PER_PARSE = 4096  # parsed as one JSON array, so that lines share field names, which halves the memory
LEAST_ROWS, _SHARE_OF_ROWS = 5, 0.02  # of the last rows, whose mean is the loss so far; one row is noise


class RunLogError(ValueError):
    """Says that a run log cannot be read, with file and line."""


class RunLogWriter:
    """Appends records to a run log, each with one write to the file, so that a reader soon sees whole lines."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time):
        """Open for appending, after ending a line that a crash left unfinished. Raises OSError."""
        self._clock = clock
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held open for the whole run
        self._torn = False
        self._end_last_line(Path(path))

    def write(self, kind: str, **fields: Any) -> None:
        """Append one record with its `kind` and `time` (Unix seconds). Raises OSError, for example on a full disk.

        Numbers that are not finite become the strings "nan", "inf" and "-inf".
        """
        record = {"kind": kind, "time": round(self._clock(), 3), **_without_non_finite(fields)}
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if self._torn:
            line = TORN_MARK + b"\n" + line
        rest = memoryview(line)
        while rest:  # an unbuffered file may take only a part of it
            written = self._file.write(rest)
            rest = rest[written:]
            self._torn = len(rest) > 0

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_last_line(self, path: Path) -> None:
        tail = _unfinished_tail(path)
        if not tail:
            return
        try:
            json.loads(tail)
        except ValueError:
            self._torn = True  # the next record ends this line with the mark
        else:
            self._file.write(b"\n")  # only the line end was missing


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """What the log says about the lifetime of one attempt."""

    session: str  # its name in budget.json; for older logs, a name made from its position in the log
    host: str | None
    began: float  # Unix seconds
    seconds: float  # as stated at the attempt's end, or up to its last record if it has no end
    measured_seconds: float  # the sum of everything it timed, which changes of the wall clock do not affect
    usd_per_hour: float | None
    ended: bool


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """A whole run with all attempts. Each record also has `attempt` (1…), the number of the header before it.

    `steps` and `evals` are the run's one history, by step. `superseded` has what an attempt did after the step from
    which a later one resumed, and anything done twice (time spent, state lost). All records of other kinds are kept.
    """

    headers: tuple[Record, ...]
    steps: tuple[Record, ...]
    evals: tuple[Record, ...]
    checkpoints: tuple[Record, ...]
    witnesses: tuple[Record, ...]
    messages: tuple[Record, ...]
    compiles: tuple[Record, ...]
    finals: tuple[Record, ...]
    superseded: tuple[Record, ...]

    @property
    def attempts(self) -> int:
        """Return how often the run was started."""
        return len(self.headers)

    @property
    def header(self) -> Record | None:
        """Return the newest attempt's header. None before the first header is written."""
        return self.headers[-1] if self.headers else None

    @property
    def final(self) -> Record | None:
        """Return the newest attempt's final record. None while it runs, or if it died without one."""
        if self.finals and self.finals[-1]["attempt"] == self.attempts:
            return self.finals[-1]
        return None

    @property
    def used_seconds(self) -> float:
        """Return the seconds of all attempts: as stated, or up to the last record of an attempt that died."""
        return sum(life.seconds for life in self.lifetimes)

    @property
    def lifetimes(self) -> tuple[Lifetime, ...]:
        """Return the lifetime of every attempt, also of attempts that ended before their header."""
        work: dict[int, list[Record]] = {}
        for kind in (self.steps, self.evals, self.checkpoints, self.witnesses, self.superseded):
            for record in kind:
                work.setdefault(record["attempt"], []).append(record)
        headers = {header["attempt"]: header for header in self.headers}
        lives = []
        for place, final in enumerate(self.finals):
            header = headers.get(final["attempt"])
            if header is not None and final.get("session") in (None, header.get("session")):
                headers.pop(final["attempt"])
                lives.append(_lifetime(f"attempt-{final['attempt']}", header, work.get(final["attempt"], ()), final))
            else:
                lives.append(_lifetime(f"final-{place}", None, (), final))
        return (*lives, *(_lifetime(f"attempt-{n}", header, work.get(n, ()), None) for n, header in headers.items()))


def read_records(path: str | Path, offset: int = 0) -> tuple[list[Record], int]:
    """Read the whole lines from a byte offset on. Return the records and the offset for the next call.

    A last line that has no end yet is left for the next call. Raises RunLogError that names a line which is not a
    record, and OSError if the file cannot be read.
    """
    path = Path(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < offset:
            raise RunLogError(f"{path} is {size} bytes long, shorter than when it was last read ({offset})")
        file.seek(offset)
        data = file.read()
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")[:-1]
    records: list[Record] = []
    with _collector_paused():
        for start in range(0, len(lines), _LINES_PER_PARSE):
            batch = lines[start : start + _LINES_PER_PARSE]
            records += _parse_batch(path, offset, start, batch)
    return records, offset + end


def recent_rows(rows: int) -> int:
    """Return of how many of the last rows the loss so far is the mean: 2 % of them, at least five."""
    return max(LEAST_ROWS, int(_SHARE_OF_ROWS * rows))


def loss_so_far(losses: Iterable[float], rows: int) -> float | None:
    """Return the loss after `rows` rows, of which `losses` are the last ones, the newest first; None without any.

    It is the mean of the finite ones in the last rows; if the newest is not finite, it is that.
    """
    newest = list(islice(losses, recent_rows(rows)))
    if not newest or not math.isfinite(newest[0]):
        return newest[0] if newest else None
    return statistics.fmean(filter(math.isfinite, newest))


def load_run_log(path: str | Path) -> RunLog:
    """Read a whole run log. Raises RunLogError with file and line, or OSError if it cannot be read."""
    records, _ = read_records(path)
    by_kind: dict[str, list[Record]] = {}
    histories: dict[str, dict[int, Record]] = {"step": {}, "eval": {}}
    superseded: list[Record] = []
    attempt = 0
    for record in records:
        kind = record["kind"]
        if kind == "header":
            attempt += 1
            _check_schema(path, record)
            for history in histories.values():
                superseded += _rewind(history, record.get("resumed_from_step") or 0)
        record["attempt"] = attempt
        if kind in histories:
            step = record["step"]
            if step in histories[kind]:
                superseded.append(histories[kind].pop(step))
            histories[kind][step] = record
        else:
            by_kind.setdefault(kind, []).append(record)
    return RunLog(
        headers=tuple(by_kind.get("header", ())),
        steps=_by_step(histories["step"]),
        evals=_by_step(histories["eval"]),
        checkpoints=tuple(by_kind.get("checkpoint", ())),
        witnesses=tuple(by_kind.get("witness", ())),
        messages=tuple(by_kind.get("message", ())),
        compiles=tuple(by_kind.get("compile", ())),
        finals=tuple(by_kind.get("final", ())),
        superseded=tuple(superseded),
    )


def _lifetime(name: str, header: Record | None, work: Iterable[Record], final: Record | None) -> Lifetime:
    """Return an attempt's lifetime from its header, its end, or both. `work` has the records with durations."""
    first = header if header is not None else final
    assert first is not None
    startup = (header or {}).get("startup_seconds") or 0.0
    measured = startup + sum(record.get("seconds") or 0.0 for record in work)
    if final is not None:
        seconds = final.get("seconds") or 0.0
    else:
        seconds = max((record["time"] for record in work), default=first["time"]) - first["time"] + startup
    return Lifetime(
        session=first.get("session") or name,
        host=first.get("host"),
        began=first["time"] - (startup if header is not None else seconds),
        seconds=max(seconds, measured),
        measured_seconds=max(measured, 0.0 if final is None else seconds),
        usd_per_hour=first.get("usd_per_hour"),
        ended=final is not None,
    )


def mend(path: Path) -> Path | None:
    """Mark every whole line that is not a record as torn. Return the copy of the old log, or None if all are records.

    Raises OSError.
    """
    lines = path.read_bytes().split(b"\n")
    wrong = [n for n, line in enumerate(lines[:-1]) if not _is_sound(line)]  # the last part is unfinished, or empty
    if not wrong:
        return None
    for number in wrong:
        lines[number] += TORN_MARK
    kept = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    mended = path.with_name(f".{path.name}.mended")
    with open(mended, "wb") as file:
        file.write(b"\n".join(lines))
        file.flush()
        os.fsync(file.fileno())
    os.link(path, kept)  # both files exist until the new one has replaced the old one
    os.replace(mended, path)
    return kept


def _is_sound(line: bytes) -> bool:
    if not line.strip() or line.endswith(TORN_MARK):
        return True
    try:
        return _is_record(json.loads(line))
    except ValueError:
        return False


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which doubles the time to read a million lines (10 s instead of 5)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_non_finite(item) for item in value]
    return value


def _unfinished_tail(path: Path) -> bytes:
    """Return what follows the last line end."""
    with open(path, "rb") as file:
        position = os.fstat(file.fileno()).st_size
        tail = b""
        while position > 0 and b"\n" not in tail:
            start = max(0, position - 65536)
            file.seek(start)
            tail = file.read(position - start) + tail
            position = start
    return tail[tail.rfind(b"\n") + 1 :]


def _parse_batch(path: Path, offset: int, start: int, lines: list[bytes]) -> list[Record]:
    """Return the records of consecutive lines, the first `start` lines after `offset`. Slow only for a wrong line."""
    sound = [line for line in lines if line.strip() and not line.endswith(TORN_MARK)]
    try:
        records = json.loads(b"[" + b",".join(sound) + b"]")
        whole = len(records) == len(sound) and all(_is_record(record) for record in records)
    except ValueError:
        whole = False
    if not whole:
        raise _first_wrong_line(path, offset, start, lines)
    if b'"nan"' in (joined := b"".join(sound)) or b'inf"' in joined:
        for record in records:
            _restore_non_finite(record)
    return records


def _first_wrong_line(path: Path, offset: int, start: int, lines: list[bytes]) -> RunLogError:
    with open(path, "rb") as file:
        before = file.read(offset).count(b"\n") + start
    for number, line in enumerate(lines, before + 1):
        if not line.strip() or line.endswith(TORN_MARK):
            continue
        shown = line[:60].decode("utf-8", "replace")
        try:
            record = json.loads(line)
        except ValueError as error:
            return RunLogError(f"{path}, line {number}: not JSON ({error}): {shown}")
        if not _is_record(record):
            return RunLogError(f"{path}, line {number}: not a log record: {shown}")
    raise AssertionError("the lines are sound one by one but not together")


def _is_record(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return False
    return value["kind"] not in ("step", "eval") or type(value.get("step")) is int


def _restore_non_finite(record: Record) -> None:
    if record["kind"] in _NUMERIC_KINDS:
        for key, value in record.items():
            if isinstance(value, str) and value in _NON_FINITE:
                record[key] = _NON_FINITE[value]


def _check_schema(path: str | Path, header: Record) -> None:
    schema = header.get("schema", SCHEMA)
    if schema > SCHEMA:
        raise RunLogError(f"{path} was written by a newer version (schema {schema}, this one reads up to {SCHEMA})")


def _rewind(history: dict[int, Record], step: int) -> list[Record]:
    """Remove everything after `step` from the history, and return it."""
    return [history.pop(later) for later in sorted(history) if later > step]


def _by_step(history: dict[int, Record]) -> tuple[Record, ...]:
    return tuple(history[step] for step in sorted(history))
