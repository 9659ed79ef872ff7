"""Reads the bytes of a log in chunks of whole lines, and cleans only the chunks that need it."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import math
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from advisor.errors import AdvisorError

CHUNK_BYTES = 1 << 19  # fits into a core's second-level cache for all passes over it
LONGEST_LINE_BYTES = 1 << 22  # a longer "line" is binary or one huge JSON value, so it is cut

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


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Whole lines of a log. `text` has only LF line ends, and `first_line` is the 1-based number of its first line."""

    text: bytes
    first_line: int
    returns: tuple[int, ...] = ()  # offsets of line ends that were lone CRs; line numbers do not count them

    @property
    def line_count(self) -> int:
        return self.text.count(b"\n") - len(self.returns)


def clean(raw: bytes) -> tuple[bytes, tuple[int, ...]]:
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
        return raw, ()
    raw = raw.replace(b"\r\n", b"\n")
    # each overwritten state of a progress bar becomes its own line, so that the last state does not hide a record
    returns = tuple(match.start() for match in re.finditer(rb"\r", raw))
    return raw.replace(b"\r", b"\n"), returns


def chunks(path: Path, progress: Progress | None = None) -> Iterator[Chunk]:
    """Yield a plain, gzip or UTF-16 log as cleaned chunks of whole lines. The last line may be incomplete.

    After each chunk, `progress` is called with the bytes read and the total bytes of the file on disk. If a gzip stream
    breaks off, its data up to the break is used. Raises AdvisorError if the file cannot be opened or its format is
    wrong.
    """
    size = path.stat().st_size if path.exists() else 0
    line, rest = 1, b""
    with open_binary(path) as stream:
        for raw in _blocks(stream):
            whole, rest = _cut(rest + raw)
            if whole:
                chunk = _chunk(whole, line)
                line += chunk.line_count
                yield chunk
            if progress is not None:
                progress(_position(stream), size)
    if rest:
        yield _chunk(rest + b"\n", line)


def sample(path: Path, head_bytes: int = 1 << 20, part_bytes: int = 1 << 18) -> bytes:
    """Return a cleaned sample for sniffers: the beginning and, of a long plain file, parts of its middle and end."""
    with open_binary(path) as stream:
        wide = read_block(stream, 2) in UTF16
        stream.seek(0)
        head = b"".join(_blocks(stream, limit=head_bytes))
        parts = [head]
        size = path.stat().st_size
        if isinstance(stream, gzip.GzipFile) or size <= len(head) or wide:
            return clean(head)[0]
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


def _blocks(stream: BinaryIO, limit: int | None = None) -> Iterator[bytes]:
    """Yield raw blocks up to `limit` bytes, decoded from UTF-16 if there is a byte-order mark."""
    decoder, done = None, 0
    while limit is None or done < limit:
        raw = read_block(stream, CHUNK_BYTES)
        if not raw:
            return
        if not done and raw[:2] in UTF16:
            decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        done += len(raw)
        yield raw if decoder is None else decoder.decode(raw).encode("utf-8", "replace")


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


def _cut(text: bytes) -> tuple[bytes, bytes]:
    """Split after the last line end. A line that never ends is returned up to the length limit and cut there."""
    end = text.rfind(b"\n") + 1
    if not end:
        end = text.rfind(b"\r") + 1  # a progress bar with no LF
        if end == len(text):
            end = 0  # its LF may follow in the next block
    if not end and len(text) > LONGEST_LINE_BYTES:
        return text, b""
    return text[:end], text[end:]


def _chunk(raw: bytes, line: int) -> Chunk:
    text, returns = clean(raw)
    if not text.endswith(b"\n"):
        text += b"\n"
        returns = (*returns, len(text) - 1)  # the same line continues in the next chunk
    return Chunk(text=text, first_line=line, returns=returns)


def _position(stream: BinaryIO) -> int:
    file = stream.fileobj if isinstance(stream, gzip.GzipFile) else stream
    return file.tell()


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


def is_whole(value: float | None) -> bool:
    """Return whether a number is finite and whole."""
    return value is not None and math.isfinite(value) and value == int(value)


def json_value(text: bytes | str) -> Any:
    """Return the value of a JSON text within a log; None if it is invalid for any reason."""
    try:
        return json.loads(text, parse_int=bounded_int)
    except (TypeError, ValueError, RecursionError):
        return None


def json_object(text: bytes | str) -> Mapping[str, Any]:
    """Return a text as a JSON object; an empty one for anything else."""
    found = json_value(text)
    return found if isinstance(found, Mapping) else {}
