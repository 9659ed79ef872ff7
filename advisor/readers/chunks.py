"""Reads a text log as a list of lines in memory, and other files whole, each within a limit."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from advisor.errors import AdvisorError

# A known log has 28-73 kB in the median and 1.5 MB at most. Of a longer file than this, parts are read.
MOST_BYTES = 1 << 28
PART_BYTES = 1 << 26  # of the beginning, the middle and the end of such a file

Progress = Callable[[int, int], None]  # bytes done, bytes in the file

# CSI and OSC sequences and two-byte escapes, as in ECMA-48. The OSC text is bounded so that no input takes quadratic
# time.
ANSI = re.compile(rb"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_=>78])")

# zero bytes that a file system leaves if a log was cut during writing; binary formats have shorter runs of them
HOLE = b"\0" * 16
_HOLES = re.compile(HOLE + b"\0*")
BACKSPACES = re.compile(rb"\x08+")
NON_NUMBERS = re.compile(rb"(?<![\w.])([-+]?(?:nan|inf))\.0(?![\w.])")  # as Lightning's bars print them
ECHO = re.compile(rb"\^\[\[[A-DHF]")  # arrow keys pressed while a terminal echoed them
# what a word is made of: ASCII letters, of which capitals count as small, and any letter outside ASCII
_LETTERS = bytes(byte if chr(byte).isalpha() or byte > 127 else 32 for byte in bytes(range(256)).lower())


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of a log and the number of each in its file."""

    text: bytes  # each line with its LF
    numbers: np.ndarray  # 1-based; lines that end with a lone CR are states of one line and share its number
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def each(self) -> list[bytes]:
        """Return the lines without their ends."""
        return self.text.split(b"\n")[:-1]

    @cached_property
    def starts(self) -> np.ndarray:
        """Return the offset at which each line begins."""
        ends = np.flatnonzero(np.frombuffer(self.text, np.uint8) == 10)
        return np.concatenate(([0], ends + 1))[: len(ends)]

    @cached_property
    def _lower(self) -> bytes:
        return self.text.lower()

    @cached_property
    def _vocabulary(self) -> bytes:
        """Return each distinct word of the text, in lower case and without digits or signs."""
        return b" ".join(set(self.text.translate(_LETTERS).split()))

    def may_hold(self, words: bytes) -> bool:
        """Return whether all parts of some words occur, which rules out most words without reading the text."""
        return all(part in self._vocabulary for part in words.translate(_LETTERS).split())

    def holding(self, *words: bytes) -> np.ndarray:
        """Return the indices of the lines that hold any of the words, which are in lower case."""
        present = [re.escape(word) for word in words if self.may_hold(word)]
        offsets = [match.start() for word in present for match in re.finditer(word, self._lower)]
        return np.unique(self.indices(offsets))

    def near(self, *words: bytes) -> Lines:
        """Return the lines that hold any of the words, and the line behind each, where a value may stand."""
        at = self.holding(*words)
        at = np.union1d(at, at + 1)
        return self.take(at[at < len(self)])

    def indices(self, offsets: Sequence[int]) -> np.ndarray:
        """Return the index of the line that holds each of some offsets of the text."""
        return np.searchsorted(self.starts, np.array(offsets, np.int64), side="right") - 1

    def index(self, offset: int) -> int:
        """Return the index of the line that holds an offset of the text."""
        return int(np.searchsorted(self.starts, offset, side="right")) - 1

    def number_at(self, offset: int) -> int:
        """Return the number in the file of the line that holds an offset of the text."""
        return int(self.numbers[self.index(offset)])

    def take(self, at: np.ndarray) -> Lines:
        """Return some of the lines, by their indices."""
        if len(at) == len(self):
            return self
        each = self.each
        text = b"".join([each[index] + b"\n" for index in at.tolist()])
        return Lines(text=text, numbers=self.numbers[at])


def lines_of(raw: bytes, first: int = 1) -> Lines:
    """Return the lines of some bytes, of which the first line has the number `first`."""
    text, returns = clean(raw)
    if not text.endswith(b"\n"):
        text += b"\n"
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 10)
    counted = ~np.isin(ends, returns) if len(returns) else np.ones(len(ends), bool)
    return Lines(text=text, numbers=first + np.cumsum(counted) - counted)


def clean(raw: bytes) -> tuple[bytes, np.ndarray]:
    """Remove ANSI sequences, convert CRLF and lone CR to LF and `nan.0` to `nan`. Also returns the lone CRs' places."""
    if HOLE in raw:
        raw = _HOLES.sub(b"", raw)
    if b"\x1b" in raw:
        raw = ANSI.sub(b"", raw)
    if b"^[[" in raw:
        raw = ECHO.sub(b"", raw)
    if b"nan.0" in raw or b"inf.0" in raw:
        raw = NON_NUMBERS.sub(rb"\1", raw)
    if b"\b" in raw:  # Keras erases a bar with as many backspaces
        raw = BACKSPACES.sub(b"\r", raw)
    if b"\r" not in raw:
        return raw, np.zeros(0, np.int64)
    raw = raw.replace(b"\r\n", b"\n")
    # each overwritten state of a progress bar becomes its own line, so that the last state does not hide a record
    returns = np.flatnonzero(np.frombuffer(raw, np.uint8) == 13)
    return raw.replace(b"\r", b"\n"), returns


def read_lines(path: Path, progress: Progress | None = None) -> Lines:
    """Read a plain, gzip or UTF-16 log. Of a very long one only the beginning, the middle and the end are read.

    `progress` is called with the bytes read and the total bytes of the file on disk. If a gzip stream breaks off, its
    data up to the break is used. Raises AdvisorError if the file cannot be opened.
    """
    size = path.stat().st_size if path.exists() else 0
    with open_binary(path) as stream:
        packed = isinstance(stream, gzip.GzipFile)
        raw = read_block(stream, MOST_BYTES if packed or size <= MOST_BYTES else PART_BYTES)
        if raw[:2] in UTF16:
            raw = raw.decode("utf-16", "replace").encode("utf-8", "replace")
        if not packed and size > MOST_BYTES:
            read = _parts(stream, raw, size)
        else:
            notes = (f"of a very long log the first {MOST_BYTES >> 20} MiB are read",) if len(raw) == MOST_BYTES else ()
            read = replace(lines_of(raw), notes=notes) if raw else Lines(text=b"", numbers=np.zeros(0, np.int64))
    if progress is not None:
        progress(size, size)
    return read


def _parts(stream: BinaryIO, raw: bytes, size: int) -> Lines:
    """Return whole lines of the beginning of a very long file, which is `raw`, and of its middle and end."""
    parts, done, ends = [lines_of(raw[: raw.rfind(b"\n") + 1])], len(raw), raw.count(b"\n")
    for begin in ((size - PART_BYTES) // 2, size - PART_BYTES):
        while done < begin:  # the lines in between are only counted
            block = stream.read(min(1 << 20, begin - done))
            done, ends = done + len(block), ends + block.count(b"\n")
        raw = stream.read(PART_BYTES)
        end = raw.rfind(b"\n") + 1 if done + len(raw) < size else size
        whole = raw[raw.find(b"\n") + 1 : end]
        parts.append(lines_of(whole, ends + 2))
        done, ends = done + len(raw), ends + raw.count(b"\n")
    return Lines(
        text=b"".join(part.text for part in parts),
        numbers=np.concatenate([part.numbers for part in parts]),
        notes=(f"a log of {size >> 20:,} MiB: its first, middle and last {PART_BYTES >> 20} MiB are read",),
    )


def sample(path: Path, head_bytes: int = 1 << 20, part_bytes: int = 1 << 18) -> bytes:
    """Return a cleaned sample for sniffers: the beginning and, of a long plain file, parts of its middle and end."""
    with open_binary(path) as stream:
        head = read_block(stream, head_bytes)
        parts, size = [head], path.stat().st_size
        if head[:2] in UTF16:
            return clean(head.decode("utf-16", "replace").encode("utf-8", "replace"))[0]
        if not isinstance(stream, gzip.GzipFile) and size > len(head):
            for offset in (size // 2, max(len(head), size - part_bytes)):
                stream.seek(offset)
                parts.append(stream.read(part_bytes).partition(b"\n")[2])
    return clean(b"\n".join(parts))[0]


UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # written by a redirect in Windows PowerShell


def open_binary(path: Path) -> BinaryIO:
    """Open a file, through gzip if its first bytes say so. Raises AdvisorError if it cannot be read."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise AdvisorError(
            f"{path} cannot be read: {error.strerror or error}", "Check the path and its permissions."
        ) from error
    magic = stream.read(2)
    stream.seek(0)
    if magic != b"\x1f\x8b":
        return stream
    stream.close()
    return gzip.GzipFile(path, mode="rb")  # type: ignore[return-value]  # it is one in all but name


def read_block(stream: BinaryIO, size: int) -> bytes:
    """Return `size` bytes, or fewer at the end. If a gzip stream breaks off, return what came before the break."""
    if not isinstance(stream, gzip.GzipFile):
        return stream.read(size)
    parts, left = [], size
    while left > 0:
        try:
            part = stream.read1(left)  # one piece at a time, because an error loses the read in which it occurs
        except (EOFError, zlib.error, gzip.BadGzipFile):
            break
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


# Structured formats are read as whole files, so their size and depth are limited first.

# A parsed JSON document takes 5-15 times the memory of its text, so 64 MiB stay under 1 GiB. The log_history of a run
# of 200,000 logged steps takes about 50 MiB.
MAX_DOCUMENT_BYTES = 64 * 2**20
# A log of ten million steps takes 4 GB. A packed file that claims more is a bomb, or its owner must decide.
MAX_UNPACKED_BYTES = 4 * 2**30
_MAX_INT_DIGITS = 18  # a longer JSON integer becomes a float; no counter in a log is that large


def read_head(path: Path, size: int = 65536) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzip. Raises AdvisorError if it cannot be read."""
    with open_binary(path) as file:
        return _next_block(file, path, size)


def read_document(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return a whole file, decompressed if it is gzip. Raises AdvisorError if it exceeds `limit` or cannot be read.

    If a gzip stream breaks off, the bytes before the break are returned.
    """
    parts: list[bytes] = []
    left = limit + 1
    with open_binary(path) as file:
        while left > 0 and (block := _next_block(file, path, left)):
            parts.append(block)
            left -= len(block)
    if left <= 0:
        raise AdvisorError(
            f"{path} is larger than {limit // 2**20} MiB, the most that is read of this format",
            "give the log that the run printed instead, or an export of fewer rows",
        )
    return b"".join(parts)


@contextlib.contextmanager
def plain_file(path: Path, limit: int = MAX_UNPACKED_BYTES) -> Iterator[Path]:
    """Yield the file itself, or a temporary unpacked copy if it is gzip. Raises AdvisorError beyond the limit."""
    with open_binary(path) as file:
        if not isinstance(file, gzip.GzipFile):
            yield path
            return
        with tempfile.TemporaryDirectory(prefix="advisor-") as folder:
            copy = Path(folder) / path.stem
            left = limit
            with open(copy, "wb") as out:
                while block := _next_block(file, path, 2**20):
                    left -= out.write(block)
                    if left < 0:
                        raise AdvisorError(f"{path} unpacks to more than {limit // 2**30} GiB", "unpack it yourself")
            yield copy


def _next_block(file: BinaryIO, path: Path, most: int) -> bytes:
    try:
        return read_block(file, min(most, 2**20))
    except OSError as error:
        hint = "see that the file is whole and that this user may read it"
        raise AdvisorError(f"{path} cannot be read: {error.strerror or error}", hint) from error


def read_text(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> str:
    """Return a text file decoded from UTF-8 (any byte-order mark removed) or marked UTF-16; replace invalid bytes."""
    return decode(read_document(path, limit))


def decode(data: bytes) -> str:
    """Decode bytes by their byte-order mark, or else as UTF-8. Never raises."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def parse_json(text: str | bytes, what: str) -> Any:
    """Parse JSON as Python writes it, with NaN and Infinity. Raises AdvisorError, naming `what`, if it is invalid."""
    try:
        return json.loads(text, parse_int=bounded_int)
    except RecursionError:
        raise AdvisorError(f"{what} is nested too deeply to be a log", "give the log that the trainer wrote") from None
    except ValueError as error:
        reason = str(error)[:120]
        raise AdvisorError(f"{what} is not valid JSON ({reason})", "was it cut while being copied?") from None


def bounded_int(digits: str) -> int | float:
    """Return a JSON integer. A huge one becomes a float, so that neither the parser nor numpy fails on it."""
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else float(digits)


_DECODER = json.JSONDecoder(parse_int=bounded_int)


def as_number(value: Any) -> float | None:
    """Return a JSON number, a number as text or "NaN" as a float; None for anything else, including booleans."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and len(value) < 64:
        try:
            return float(value.replace(",", "") if "," in value else value)
        except ValueError:
            return None
    return None


def json_value(text: bytes | str) -> Any:
    """Return the value of a JSON text within a log; None if it is invalid for any reason."""
    try:
        written = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(written)
    except (TypeError, ValueError, RecursionError):
        return None


def json_object(text: bytes | str) -> Mapping[str, Any]:
    """Return a text as a JSON object; an empty one for anything else."""
    found = json_value(text)
    return found if isinstance(found, Mapping) else {}
