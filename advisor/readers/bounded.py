"""Whole files with a limit: structured formats are read at once, so their size and depth are bounded first."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from advisor.errors import AdvisorError
from advisor.readers.chunks import open_binary, read_block

# A parsed JSON document takes 5-15 times its text: 64 MiB stay under 1 GiB. The log_history of a run of 200,000
# logged steps is about 50 MiB.
MAX_DOCUMENT_BYTES = 64 * 2**20
# A log of ten million steps is 4 GB; a packed file that claims more is a bomb or needs a decision of its owner.
MAX_UNPACKED_BYTES = 4 * 2**30
_MAX_INT_DIGITS = 18  # above, a JSON integer becomes a float: no counter of a log is larger


def read_head(path: Path, size: int = 65536) -> bytes:
    """The first bytes of a file, decompressed where it is gzip; AdvisorError where it cannot be read."""
    with open_binary(path) as file:
        return _next_block(file, path, size)


def read_document(path: Path, limit: int = MAX_DOCUMENT_BYTES) -> bytes:
    """A whole file, decompressed where it is gzip; AdvisorError where it is larger than `limit` or unreadable.

    A gzip stream that breaks off gives what came before the break.
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
    """The file itself, or for as long as it is needed an unpacked copy of a gzip; AdvisorError beyond the limit."""
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
    """A whole text file; UTF-8 (a byte order mark is dropped) or UTF-16 with its mark, wrong bytes replaced."""
    return decode(read_document(path, limit))


def decode(data: bytes) -> str:
    """Text of bytes, by byte order mark, else UTF-8; never raises."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def parse_json(text: str | bytes, what: str) -> Any:
    """Parse JSON as Python writes it, NaN and Infinity included; AdvisorError naming `what` where it is none."""
    try:
        return json.loads(text, parse_int=bounded_int)
    except RecursionError:
        raise AdvisorError(f"{what} is nested too deeply to be a log", "give the log that the trainer wrote") from None
    except ValueError as error:
        reason = str(error)[:120]
        raise AdvisorError(f"{what} is not valid JSON ({reason})", "was it cut while being copied?") from None


def bounded_int(digits: str) -> int | float:
    """An integer of JSON; huge ones as floats, so that neither the parser nor numpy stumbles over them."""
    return int(digits) if len(digits) <= _MAX_INT_DIGITS else float(digits)


def as_number(value: Any) -> float | None:
    """A float of a JSON value: numbers, numbers as text, "NaN"; None for anything else, truth values included."""
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
    """Whether a number is finite and whole."""
    return value is not None and math.isfinite(value) and value == int(value)
