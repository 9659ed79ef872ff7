"""Bytes of a log in chunks of whole lines, cleaned only where there is something to clean."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from advisor.errors import AdvisorError

CHUNK_BYTES = 1 << 19  # stays in a core's second-level cache through all passes over it
LONGEST_LINE_BYTES = 1 << 22  # a "line" beyond this is binary or one huge JSON value: it is cut

Progress = Callable[[int, int], None]  # bytes of the file done, bytes of the file

# CSI and OSC sequences and two-byte escapes, ECMA-48; the OSC text is bounded so that no input makes this quadratic
ANSI = re.compile(rb"\x1b(?:\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_=>78])")

# what a file system leaves where a log was cut while it was written; formats of bytes have shorter ones
HOLE = b"\0" * 16
_HOLES = re.compile(HOLE + b"\0*")
BACKSPACES = re.compile(rb"\x08+")
ECHO = re.compile(rb"\^\[\[[A-DHF]")  # arrow keys pressed while a terminal echoed them


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Whole lines of a log. `text` has LF line ends only; `first_line` is the 1-based number of its first line."""

    text: bytes
    first_line: int
    returns: tuple[int, ...] = ()  # offsets of line ends that were lone CRs, which no line number counts

    @property
    def line_count(self) -> int:
        return self.text.count(b"\n") - len(self.returns)


def clean(raw: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Remove ANSI sequences, make CRLF and lone CR line ends; also say where the lone CRs were."""
    if HOLE in raw:
        raw = _HOLES.sub(b"", raw)
    if b"\x1b" in raw:
        raw = ANSI.sub(b"", raw)
    if b"^[[" in raw:
        raw = ECHO.sub(b"", raw)
    if b"\b" in raw:  # Keras takes a bar back by as many backspaces
        raw = BACKSPACES.sub(b"\r", raw)
    if b"\r" not in raw:
        return raw, ()
    raw = raw.replace(b"\r\n", b"\n")
    # what a progress bar overwrites is a line of its own: the last state of the bar must not hide the record behind it
    returns = tuple(match.start() for match in re.finditer(rb"\r", raw))
    return raw.replace(b"\r", b"\n"), returns


def chunks(path: Path, progress: Progress | None = None) -> Iterator[Chunk]:
    """Read a log, plain, gzip or UTF-16, as cleaned chunks of whole lines; the last line may be torn.

    `progress` is called with bytes read and total bytes of the file on disk after each chunk. A gzip stream that breaks
    off gives what came before the break. Raises AdvisorError when the file cannot be opened or is not what it says.
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
    """What sniffers look at, cleaned: the beginning and, of a long plain file, parts of its middle and end too."""
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


UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # what a redirect in Windows PowerShell writes


def open_binary(path: Path) -> BinaryIO:
    """Open a file, through gzip when its first bytes say so; AdvisorError when it cannot be read."""
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
    """Raw blocks up to `limit` bytes, decoded from UTF-16 where a byte-order mark says so."""
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
    """Up to `size` bytes, fewer at the end only; of a gzip stream that breaks off, what came before the break."""
    if not isinstance(stream, gzip.GzipFile):
        return stream.read(size)
    parts, left = [], size
    while left > 0:
        try:
            part = stream.read1(left)  # one piece at a time: an error loses the read that meets it
        except (EOFError, zlib.error, gzip.BadGzipFile):
            break
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _cut(text: bytes) -> tuple[bytes, bytes]:
    """Split at the last line end; a line that never ends is given up to its limit and cut there."""
    end = text.rfind(b"\n") + 1
    if not end:
        end = text.rfind(b"\r") + 1  # a progress bar without one line end
        if end == len(text):
            end = 0  # its LF may follow in the next block
    if not end and len(text) > LONGEST_LINE_BYTES:
        return text, b""
    return text[:end], text[end:]


def _chunk(raw: bytes, line: int) -> Chunk:
    text, returns = clean(raw)
    if not text.endswith(b"\n"):
        text += b"\n"
        returns = (*returns, len(text) - 1)  # the same line goes on in the next chunk
    return Chunk(text=text, first_line=line, returns=returns)


def _position(stream: BinaryIO) -> int:
    file = stream.fileobj if isinstance(stream, gzip.GzipFile) else stream
    return file.tell()
