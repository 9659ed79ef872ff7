"""Tells the kind of a trace or dump by its content, and opens each file of a folder or archive within limits."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import itertools
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, cast

from advisor.errors import AdvisorError

_MOST_BYTES = 16 * 2**30  # of one part after unpacking; the largest traces that people report have 4 GB
_MOST_RATIO, _RATIO_FROM_BYTES = 250, 16 * 2**20  # JSON of profilers shrinks 10 to 40 times, a bomb 1,000 times
_MOST_FILES = 4096  # in one folder or archive
_HEAD_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError, NotImplementedError)

RECORD_TRACE = (
    "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=2, active=3), record_shapes=True) "
    "on each rank, prof.step() after each step, and prof.export_chrome_trace('rank0.json.gz')"
)
_EXPORT_NSYS = "nsys export --type sqlite report.nsys-rep, then give report.sqlite"
_UNREADABLE = (  # by the end of the name, or by the first bytes
    (rb"(?i).*\.(?:nsys-rep|qdrep)$", "is a report of Nsight Systems in a format of its own", _EXPORT_NSYS),
    (rb"(?i).*\.xplane\.pb$", "is an XPlane profile", "xprof converts it: give the JSON of its trace_viewer"),
    (rb"(?is)\s*<html.{0,400}memory.*data:image/png", "holds only a picture of the memory timeline",
     "prof.export_memory_timeline('memory.raw.json.gz'), or torch.cuda.memory._dump_snapshot('snapshot.pickle')"),
    (rb"(?m)^.*Time \(%\),.*Total Time \(ns\)", "holds only the sums of nsys stats, without what was idle or hidden",
     _EXPORT_NSYS),
)  # fmt: skip


class Kind(StrEnum):
    """What a file is, by its content."""

    KINETO = "kineto"  # a trace of torch.profiler, or another in Chrome's JSON
    NSYS = "nsys"  # the SQLite export of Nsight Systems
    SNAPSHOT = "snapshot"  # torch.cuda.memory._dump_snapshot
    MEMORY_TIMELINE = "memory_timeline"  # export_memory_timeline
    FLIGHT_RECORDER = "flight_recorder"  # dumped if TORCH_FR_BUFFER_SIZE is set


# What the first bytes must match: how the file begins, and what else occurs in its first mebibyte.
_SIGNS = (
    (Kind.NSYS, rb"SQLite format 3\0", rb"CUPTI_ACTIVITY_KIND_|TARGET_INFO_|NVTX_EVENTS|META_DATA_EXPORT"),
    (Kind.KINETO, rb"\s*\{", rb'"traceEvents"\s*:\s*\[|"(?:deviceProperties|displayTimeUnit)"\s*:'),
    (Kind.KINETO, rb'\s*\[\s*\{[^{}]*"ph"\s*:', rb'"(?:ts|pid)"\s*:'),
    (Kind.SNAPSHOT, rb"\s*\{|\x80", rb"device_traces|segment_pool_id|segment_type"),
    (Kind.FLIGHT_RECORDER, rb"\s*\{|\x80", rb"pg_config|collective_seq_id"),
    (Kind.MEMORY_TIMELINE, rb"\s*\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*\d+\s*\]", b""),
    (Kind.MEMORY_TIMELINE, rb"\s*\[\s*\[(?:\s*-?\d[\d.eE+]*\s*,){16}", b""),
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of a case, usually of one rank. `open` starts an unpacked stream at the first byte."""

    name: str  # its path inside the folder or archive
    kind: Kind
    open: Callable[[], BinaryIO]


@contextlib.contextmanager
def opened_parts(path: Path) -> Iterator[list[Part]]:
    """Yield the traces and dumps at a path, sorted by name. Raises AdvisorError if all it has cannot be read."""
    with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
        parts, refused = [], []
        for name, file in _files(path, Path(folder)):
            head = read_head(file)
            if (kind := kind_of(head)) is not None:
                parts.append(Part(name=name, kind=kind, open=functools.partial(_stream, file)))
            elif (error := unreadable(head, name)) is not None:
                refused.append(error)
        if refused and not parts:
            raise refused[0]
        # rank_2 before rank_10: texts and numbers alternate, so that none is compared with the other.
        yield sorted(parts, key=lambda part: [int(run) if place % 2 else run
                                              for place, run in enumerate(re.split(r"(\d+)", part.name))])  # fmt: skip


def holds_traces(path: Path) -> bool:
    """Return whether these readers take a path: such a file, or an archive or folder that holds mostly such files."""
    if path.is_dir() and (path / "log.jsonl").exists():
        return False
    try:
        with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
            found = [
                kind_of(head := read_head(file)) is not None or unreadable(head, name) is not None
                for name, file in _files(path, Path(folder), heads_only=True)
            ]
    except (AdvisorError, OSError):
        return False  # the readers of logs say what is wrong
    return 2 * sum(found) > len(found)


def kind_of(head: bytes) -> Kind | None:
    """Return the kind of a file by its first bytes, unpacked; None if it is none of these."""
    for kind, start, inside in _SIGNS:
        if re.match(start, head) and re.search(inside, head):
            return kind
    return None


def unreadable(head: bytes, name: str) -> AdvisorError | None:
    """Return the error for a kind that cannot be read, with the command that makes a readable file, or None."""
    for pattern, words, hint in _UNREADABLE:
        if re.match(pattern, name.encode(errors="replace")) or re.match(pattern, head):
            return AdvisorError(f"{name} {words}", hint)
    return None


def read_head(path: Path) -> bytes:
    """Return the first mebibyte of a file, unpacked if it is gzip."""
    with _stream(path) as stream:
        return stream.read(_HEAD_BYTES)


def _files(path: Path, folder: Path, *, heads_only: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield name and place of each file at the path; `heads_only` unpacks an archive's first files' beginnings."""
    if path.is_dir():
        inside = (file for file in sorted(path.rglob("*")) if file.is_file())
        shown = (file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts))
        yield from ((str(file.relative_to(path)), file) for file in itertools.islice(shown, _MOST_FILES))
        return
    if not path.is_file():  # a pipe can be read only once
        return
    head = read_head(path)
    archive = _zipped if head[:4] == b"PK\x03\x04" else _tarred if head[257:262] == b"ustar" else None
    if archive is None:
        yield path.name, path
        return
    try:
        for number, (name, stream) in enumerate(itertools.islice(archive(path), 16 if heads_only else _MOST_FILES)):
            with stream, open(target := folder / str(number), "wb") as out:
                out.write(head := stream.read(_HEAD_BYTES))
                # Other files of the archive, such as checkpoints, stay packed.
                if not heads_only and (head[:2] == _GZIP or kind_of(head) is not None):
                    shutil.copyfileobj(stream, out, _HEAD_BYTES)
            yield name, target
    except (*_DAMAGED, RuntimeError) as error:
        hint = "unpack it and give the folder"
        raise AdvisorError(f"{path} is a damaged archive, or encrypted: {error}", hint) from error


def _zipped(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                yield member.filename, _limited(archive.open(member), member.compress_size, path)


def _tarred(path: Path) -> Iterator[tuple[str, BinaryIO]]:
    with _stream(path) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
        for member in archive:
            if member.isfile() and (stream := archive.extractfile(member)) is not None:
                yield member.name, cast(BinaryIO, stream)


def _stream(path: Path) -> BinaryIO:
    """Open a file, unpacked if it is gzip."""
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    if file.peek(2)[:2] != _GZIP:
        return file
    return _limited(gzip.GzipFile(fileobj=file), path.stat().st_size, path, file)


def _limited(stream: Any, packed_bytes: int, path: Path, *below: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Limited(stream, packed_bytes, path, below), _HEAD_BYTES))


class _Limited(io.RawIOBase):
    """An unpacked stream that refuses to grow like a bomb, and ends where damage begins, so that its start is read."""

    def __init__(self, stream: Any, packed_bytes: int, path: Path, below: tuple[BinaryIO, ...]):
        self._stream, self._path, self._below, self._bytes = stream, path, below, 0
        self._most = min(_MOST_BYTES, max(_RATIO_FROM_BYTES, _MOST_RATIO * packed_bytes))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = self._stream.read1(len(buffer))  # what comes before damage is not lost
        except _DAMAGED:
            return 0
        self._bytes += len(block)
        if self._bytes > self._most:
            raise AdvisorError(f"{self._path} unpacks to far more than a trace's size", "unpack it yourself, if at all")
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        for stream in (self._stream, *self._below):
            stream.close()
        super().close()
