"""Reads documents from text files, JSON lines, Parquet files and folders. Rejects other content, with file and line.

Error pages or pointers saved in place of a file, damaged records and binary files are found here, before hours of
training are spent on them. Needs no torch; pyarrow is loaded only for Parquet.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import sys
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.damage import not_data
from trainer.token_folder import DataError

if TYPE_CHECKING:
    import pyarrow

TEXT_SUFFIXES = frozenset(
    """.txt .text .md .markdown .rst .tex .org .adoc .py .pyi .c .h .cc .cpp .hpp .cu .cuh .rs .go .java .kt .js .ts
    .jsx .tsx .rb .php .pl .lua .jl .r .scala .swift .hs .ml .clj .ex .sh .sql .el .lisp .f90 .zig""".split()  # noqa: SIM905
)
JSON_LINES_SUFFIXES = frozenset((".jsonl", ".ndjson"))
PARQUET_SUFFIXES = frozenset((".parquet", ".pq"))

STANDARD_LIBRARY_MAX_BYTES = 24_000_000  # keeps the first run short: about 7 million tokens

_BLOCK_BYTES = 1 << 20
_DOWNLOAD_HINT = "look at the file and fetch it again (advisor data check); --skip-bad leaves out what is not data"


class PrepareError(DataError):
    """Says that an input is not data or that an output cannot be written. `hint` is the next step."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document, or one of the parts into which a long one is cut at line ends."""

    text: str
    starts_document: bool


@dataclass(kw_only=True)
class Corpus:
    """The files to read, in order, and the files left out. `pieces` may be called repeatedly."""

    files: list[Path]
    sources: list[str]  # the inputs, in words or as absolute paths
    text_key: str = "text"
    skip_bad: bool = False
    passed_over: list[str] = field(default_factory=list)  # number of other files in the folders, by suffix
    skipped: list[str] = field(default_factory=list)  # what the latest reading left out

    @property
    def stored_bytes(self) -> int:
        """Return the bytes on disk, which are roughly the size of the text. Nothing is read for this."""
        return sum(file.stat().st_size for file in self.files)

    def pieces(self, max_chars: int) -> Iterator[Piece]:
        """Yield everything in order, cut to `max_chars`. Raises PrepareError unless bad input is skipped."""
        self.skipped = []
        for file in self.files:
            try:
                yield from self._file_pieces(file, max_chars)
            except PrepareError as error:
                self.leave_out(error)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self.leave_out(PrepareError(f"{file}: damaged or truncated gzip file ({error})", _DOWNLOAD_HINT))
            except OSError as error:
                raise PrepareError(f"cannot read {file}: {error.strerror or error}", "check file and disk") from error

    def _file_pieces(self, file: Path, max_chars: int) -> Iterator[Piece]:
        _refuse_error_page(file)
        kind = _kind(file)
        if kind == "text":
            _refuse_binary(file)
            documents: Iterable[Iterable[str]] = [_text_parts(file, max_chars)]
        else:
            texts = self._parquet_texts(file) if kind == "parquet" else self._json_texts(file)
            documents = (_cut(text, max_chars) for text in texts)
        for document in documents:
            for number, text in enumerate(document):
                yield Piece(text=text, starts_document=number == 0)

    def records(self) -> Iterator[tuple[str, Any]]:
        """Yield the key's value in every line or row, of any type, with its place. Raises as `pieces` does."""
        self.skipped = []
        for file in self.files:
            try:
                _refuse_error_page(file)
                if _kind(file) == "parquet":
                    yield from self._parquet_records(file)
                else:
                    yield from self._json_records(file)
            except PrepareError as error:
                self.leave_out(error)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self.leave_out(PrepareError(f"{file}: damaged or truncated gzip file ({error})", _DOWNLOAD_HINT))

    def _json_records(self, file: Path) -> Iterator[tuple[str, Any]]:
        with _open(file) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                where = f"{file}:{number}"
                try:
                    record = _json_field(line, self.text_key, where)
                except PrepareError as error:
                    self.leave_out(error)
                else:
                    yield where, record

    def _parquet_records(self, file: Path) -> Iterator[tuple[str, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        try:
            with pq.ParquetFile(file) as table:
                if self.text_key not in table.schema_arrow.names:
                    raise _no_column(table.schema_arrow, self.text_key, file)
                for batch in table.iter_batches(batch_size=256, columns=[self.text_key]):
                    for record in batch.column(0).to_pylist():
                        row += 1
                        yield f"{file}, row {row}", record
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            reason = " ".join(str(error).split())
            raise PrepareError(f"{file}: damaged or truncated Parquet file ({reason})", _DOWNLOAD_HINT) from error

    def leave_out(self, error: PrepareError) -> None:
        """Record an invalid input as skipped, or raise it if bad input is not skipped."""
        if not self.skip_bad:
            raise error
        self.skipped.append(error.message)

    def _json_texts(self, file: Path) -> Iterator[str]:
        with _open(file) as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    text = _json_text(line, self.text_key, f"{file}:{number}")
                except PrepareError as error:
                    self.leave_out(error)
                else:
                    yield text

    def _parquet_texts(self, file: Path) -> Iterator[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        try:
            with pq.ParquetFile(file) as table:
                _refuse_columns(table.schema_arrow, self.text_key, file)
                for batch in table.iter_batches(batch_size=256, columns=[self.text_key]):
                    for text in batch.column(0).to_pylist():
                        row += 1
                        if text is None:
                            null = f"{file}, row {row}: column {self.text_key!r} is null"
                            self.leave_out(PrepareError(null, "--skip-bad leaves such rows out"))
                        elif text:
                            yield text
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OSError) as error:
            where = f"{file}, after row {row}" if row else f"{file}"
            reason = " ".join(str(error).split())
            raise PrepareError(f"{where}: damaged or truncated Parquet file ({reason})", _DOWNLOAD_HINT) from error


def gather(inputs: list[Path] | None, *, text_key: str = "text", skip_bad: bool = False) -> Corpus:
    """List the files of the inputs, with folders read recursively in sorted order. None is the Python standard library.

    Raises PrepareError for an input that does not exist or has nothing to read.
    """
    if inputs is None:
        return _standard_library()
    files: list[Path] = []
    others: Counter[str] = Counter()
    for path in inputs:
        if path.is_dir():
            files += _folder_files(path, others)
        elif path.exists():
            files.append(path)
        else:
            raise PrepareError(f"{path} does not exist", "check the path; without inputs the standard library is used")
    if not files:
        asked = ", ".join(str(path) for path in inputs)
        raise PrepareError(f"nothing to read in {asked}", "give text, JSON lines (.jsonl) or Parquet files")
    passed_over = [f"{count} files {suffix or 'without suffix'}" for suffix, count in sorted(others.items())]
    return Corpus(
        files=list(dict.fromkeys(files)),  # a file that is named twice is read once
        sources=[str(path.resolve()) for path in inputs],
        text_key=text_key,
        skip_bad=skip_bad,
        passed_over=passed_over,
    )


def _standard_library() -> Corpus:
    """Return the interpreter's own sources, docstrings and language reference: real text on every machine."""
    apart = {"site-packages", "dist-packages", "encoded_modules"}  # encoded_modules are deliberately not UTF-8
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for file in _folder_files(root, Counter()):
        parts = file.relative_to(root).parts
        if file.suffix == ".py" and not apart & set(parts):
            found.append((bool({"test", "tests", "idle_test"} & set(parts)), file))
    files, total_bytes = [], 0
    for _, file in sorted(found):  # tests last, since some distributions omit them
        total_bytes += file.stat().st_size
        if total_bytes > STANDARD_LIBRARY_MAX_BYTES:
            break
        files.append(file)
    if not files:
        raise PrepareError(f"no readable Python sources in {root}", "name text files or folders as inputs")
    version = ".".join(str(number) for number in sys.version_info[:3])
    return Corpus(files=files, sources=[f"Python {version} standard library"], skip_bad=True)


def _folder_files(folder: Path, others: Counter[str]) -> list[Path]:
    """Return readable files below a folder, sorted, except hidden and empty ones. `others` counts other formats."""
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            file = Path(parent, name)
            if name.startswith(".") or not file.is_file():
                continue
            suffix = _suffix(file)
            if suffix not in TEXT_SUFFIXES | JSON_LINES_SUFFIXES | PARQUET_SUFFIXES:
                others[file.suffix] += 1
            elif file.stat().st_size:  # packages are full of empty __init__.py files
                files.append(file)
    return files


def _suffix(file: Path) -> str:
    """Return the suffix that shows the format, in lower case, without .gz."""
    name = file.name.lower().removesuffix(".gz")
    return Path(name).suffix


def _kind(file: Path) -> str:
    suffix = _suffix(file)
    if suffix in PARQUET_SUFFIXES:
        return "parquet"
    return "json lines" if suffix in JSON_LINES_SUFFIXES or suffix == ".json" else "text"


def _open(file: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(file, "rb") if file.name.lower().endswith(".gz") else file.open("rb")


def _refuse_error_page(file: Path) -> None:
    with file.open("rb") as raw:
        heads = [raw.read(1024)]
    if not heads[0]:
        raise PrepareError(f"{file} is empty", "leave it out, or fetch it again")
    if heads[0].startswith(b"\x1f\x8b") and file.name.lower().endswith(".gz"):
        with _open(file) as stream:
            heads.append(stream.read(1024))
    for head in heads:
        if (found := not_data(head)) is not None:
            what, mark = found
            raise PrepareError(f"{file}:1: {what}, not data: it begins with {mark!r}", _DOWNLOAD_HINT)


def _refuse_binary(file: Path) -> None:
    if fault := _text_fault(file):
        raise PrepareError(fault, "only UTF-8 text can be read: convert the file (iconv) or leave it out")


def _text_fault(file: Path) -> str | None:
    """Say where a file stops being UTF-8 text. Returns None if all of it is."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, offset, empty = 1, 0, True
    with _open(file) as stream:
        while True:
            block = stream.read(_BLOCK_BYTES)
            if (place := block.find(b"\0")) >= 0:
                line += block.count(b"\n", 0, place)
                return f"{file}:{line}: a binary file, not text (a NUL byte at offset {offset + place})"
            held = len(decoder.getstate()[0])
            try:
                empty &= not decoder.decode(block, final=not block).strip()
            except UnicodeDecodeError as error:
                place = error.start - held
                line += block.count(b"\n", 0, max(place, 0))
                byte = error.object[error.start]
                return f"{file}:{line}: not UTF-8 text (byte 0x{byte:02x} at offset {offset + place})"
            if not block:
                return f"{file} holds no text, only white space" if empty else None
            line, offset = line + block.count(b"\n"), offset + len(block)


def _text_parts(file: Path, max_chars: int) -> Iterator[str]:
    """Yield a text file's parts. It is read block by block, so that only the disk limits its size."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    held = ""
    with _open(file) as stream:
        while block := stream.read(_BLOCK_BYTES):
            *whole, held = _cut(held + decoder.decode(block), max_chars) or [""]
            yield from whole
    if held:
        yield held


def _cut(text: str, max_chars: int) -> list[str]:
    """Cut text into parts of at most `max_chars`, after a line end if there is one in the second half."""
    parts, start = [], 0
    while len(text) - start > max_chars:
        end = text.rfind("\n", start + max_chars // 2, start + max_chars) + 1 or start + max_chars
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]] if start < len(text) else parts


def _json_field(line: bytes, key: str, where: str) -> Any:
    """Return the value of a key in one JSON line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # a ValueError may be bytes that are not UTF-8
        hint = "each line must be one JSON object; --skip-bad leaves out lines that are not"
        raise PrepareError(f"{where}: not valid JSON: {error}", hint) from error
    if not isinstance(record, dict):
        kind = type(record).__name__
        raise PrepareError(f"{where}: expected an object with {key!r}, found {kind}", "one JSON object per line")
    if key not in record:
        present = ", ".join(sorted(record)) or "none"
        raise PrepareError(f"{where}: no field {key!r}; fields present: {present}", "name the field with --text-key")
    return record[key]


def _json_text(line: bytes, key: str, where: str) -> str:
    """Return the text of one JSON line, which may be empty."""
    text = _json_field(line, key, where)
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        raise PrepareError(f"{where}: field {key!r} is {kind}, not text", "name the field with --text-key")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PrepareError(f"{where}: {key!r} holds half a surrogate pair at {error.start}", _DOWNLOAD_HINT) from error
    return text


def _refuse_columns(schema: pyarrow.Schema, key: str, file: Path) -> None:
    """Raise PrepareError unless a Parquet schema (pyarrow.Schema) has a text column of that name."""
    import pyarrow.types as kinds

    if key not in schema.names:
        raise _no_column(schema, key, file)
    kind = schema.field(key).type
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    if not (kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)):
        raise PrepareError(f"{file}: column {key!r} is {kind}, not text", "name the column with --text-key")


def _no_column(schema: pyarrow.Schema, key: str, file: Path) -> PrepareError:
    present = ", ".join(schema.names) or "none"
    return PrepareError(f"{file}: no column {key!r}; columns present: {present}", "name the column with --text-key")
