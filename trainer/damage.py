"""Recognises files that are not the data their names promise: web pages, pointers, messages, or truncated files.

Files are judged by their content. Standard library only; pyarrow is loaded for Parquet and Zstandard.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

_HEAD_BYTES = 4096
_BLOCK_BYTES = 1 << 20
_MESSAGE_BYTES = 1 << 16  # no error message from a server is longer; a larger file is data
_PLACES, _PLACE_BYTES = 64, 4096  # places in a token file that are checked for zeros

_MARKS = (  # the first bytes of files that a server or a tool left in place of the data
    ("<!doctype", "an HTML page"),
    ("<html", "an HTML page"),
    ("<head", "an HTML page"),
    ("<?xml", "an XML document"),
    ("<error", "an XML error message"),
    ("404: not found", "the words “404: Not Found”"),
    ("404 not found", "the words “404 Not Found”"),
    ("403 forbidden", "the words “403 Forbidden”"),
    ("access denied", "the words “Access Denied”"),
    ("version https://git-lfs", "a Git LFS pointer"),
)
_SAYS = (  # the words of such a page
    re.compile(r"<title[^>]*>\s*([^<]{1,120}?)\s*</title>", re.IGNORECASE),
    re.compile(r"<code>\s*([^<]{1,80}?)\s*</code>", re.IGNORECASE),
    re.compile(r"<message>\s*([^<]{1,120}?)\s*</message>", re.IGNORECASE),
    re.compile(r"<h1[^>]*>\s*([^<]{1,120}?)\s*</h1>", re.IGNORECASE),
)
_COMPLAINTS = ("error", "errors", "message", "detail", "error_description")  # keys of a server's answer in JSON
_DATA_KEYS = ("text", "content", "messages", "tokens", "input_ids")  # keys of a record
_MAGIC = {".gz": (b"\x1f\x8b", "gzip"), ".zst": (b"\x28\xb5\x2f\xfd", "Zstandard")}
_PARQUET = b"PAR1"
_TOKEN_SUFFIXES = (".bin", ".npy")


def not_data(head: bytes) -> tuple[str, str] | None:
    """Return what a file with this beginning really is, and the mark that shows it. Returns None without a mark.

    White space and a byte order mark at the beginning are ignored.
    """
    text = head.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").lstrip()
    start = text[:100].lower()
    for mark, what in _MARKS:
        if start.startswith(mark):
            return f"{what}{_says(text)}", mark
    return None


def damage(file: Path) -> str | None:
    """Say what is wrong with a data file's content. Returns None if nothing is. Compressed files are read in full.

    Raises OSError if the file cannot be read.
    """
    size = file.stat().st_size
    if size == 0:
        return "it is empty"
    with file.open("rb") as stream:
        head = stream.read(_HEAD_BYTES)
    if (found := not_data(head)) is not None:
        return found[0]
    if size <= _MESSAGE_BYTES and (message := _json_message(file)) is not None:
        return message
    suffix = file.suffix.lower()
    if suffix in _MAGIC:
        return _compressed(file, suffix, head, size)
    if suffix in (".parquet", ".pq"):
        return _parquet(file, head, size)
    return _zeros(file, size) if suffix in _TOKEN_SUFFIXES else None


def _says(text: str) -> str:
    if text.startswith("version https://git-lfs"):
        size = re.search(r"^size (\d+)", text, re.MULTILINE)
        return f" to {int(size[1]):,} bytes that were not fetched" if size else ""
    said = next((found[1] for pattern in _SAYS if (found := pattern.search(text))), None)
    return f" that says “{said}”" if said else ""


def _json_message(file: Path) -> str | None:
    """Recognise a file that is one JSON object with an error message and without a record."""
    try:
        raw: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # also raised if it is not UTF-8
        return None
    if not isinstance(raw, dict) or any(key in raw for key in _DATA_KEYS):
        return None
    said = next((raw[key] for key in _COMPLAINTS if raw.get(key)), None)
    if isinstance(said, dict):
        said = said.get("message") or said.get("type")
    return None if said is None else f"a JSON error message that says “{str(said)[:120]}”"


def _compressed(file: Path, suffix: str, head: bytes, size: int) -> str | None:
    magic, name = _MAGIC[suffix]
    if not head.startswith(magic):
        return f"no {name} data: it begins with {head[:16]!r}"
    read, fault = _read_gzip(file) if suffix == ".gz" else _read_zstandard(file)
    if fault is not None:
        return f"{name} data of {size:,} bytes that break off after {read:,} bytes of content ({fault})"
    return "compressed nothing: its content is empty" if read == 0 else _inside(file, suffix)


def _read_gzip(file: Path) -> tuple[int, str | None]:
    read = 0
    try:
        with gzip.open(file, "rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                read += len(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return read, str(error)
    return read, None


def _read_zstandard(file: Path) -> tuple[int, str | None]:
    import pyarrow as pa

    read = 0
    try:
        with pa.input_stream(str(file), compression="zstd") as stream:
            while block := stream.read(_BLOCK_BYTES):
                read += len(block)
    except OSError as error:
        return read, " ".join(str(error).split())
    return read, None


def _inside(file: Path, suffix: str) -> str | None:
    """Recognise a page or message that was compressed."""
    if suffix == ".gz":
        with gzip.open(file, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
    else:
        import pyarrow as pa

        with pa.input_stream(str(file), compression="zstd") as stream:
            head = stream.read(_HEAD_BYTES)
    found = not_data(head)
    return None if found is None else f"{found[0]}, compressed"


def _parquet(file: Path, head: bytes, size: int) -> str | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not head.startswith(_PARQUET):
        return f"no Parquet file: it begins with {head[:16]!r}"
    with file.open("rb") as stream:
        stream.seek(-min(4, size), 2)
        tail = stream.read()
    if tail != _PARQUET or size < 12:
        return f"a Parquet file that breaks off at byte {size:,}: its end, which says what is where, is missing"
    try:
        rows = pq.read_metadata(file).num_rows
    except (pa.ArrowInvalid, OSError) as error:
        return f"a Parquet file whose end cannot be read ({' '.join(str(error).split())[:120]})"
    return "a Parquet file without rows" if rows == 0 else None


def _zeros(file: Path, size: int) -> str | None:
    """Recognise a file of the right length that was never filled: whole blocks of zeros instead of tokens."""
    places = [round(number * max(0, size - _PLACE_BYTES) / (_PLACES - 1)) for number in range(_PLACES)]
    empty = 0
    with file.open("rb") as stream:
        for place in places:
            stream.seek(place)
            empty += not any(stream.read(_PLACE_BYTES))
    if not empty or size < _PLACE_BYTES:
        return None
    return f"blocks of zeros at {empty} of {_PLACES} places looked at: a download or copy that was never finished"
