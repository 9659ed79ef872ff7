"""Reads delimited tables (CSV, TSV, semicolons): finds the header and the delimiter, and returns rows in blocks.

Line ends may be LF, CRLF, CR or the CR CR LF of a text-mode writer on Windows. A last row that was cut is dropped. A
header that is printed again, because the file was appended to, is skipped.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.readers.cells import EMPTY, NON_FINITE, looks_like_date, number_with_unit
from advisor.readers.chunks import Chunk, chunks
from advisor.readers.names import column_of

DELIMITERS = (",", "\t", ";", "|")
MOST_COLUMNS = 2000  # a table with more columns is a data matrix, not a log
_LINES_BEFORE_HEADER = 20
csv.field_size_limit(2**20)  # a cell of a megabyte is not a number


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The layout of a table. `header` is empty if the table has none; `skip` lines stand before its first row."""

    delimiter: str
    header: tuple[str, ...]
    skip: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Block:
    """Some rows as text, column by column; all columns have the same length."""

    columns: list[list[str]]
    lines: list[int]  # 1-based line numbers

    def __len__(self) -> int:
        return len(self.lines)


def dialect_of(head: str) -> Dialect | None:
    """Return the layout of a table, found from its first lines; None if they are not a table."""
    lines = head.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:200]
    whole = lines[:-1] if len(lines) > 1 and len(head) > 4096 else lines
    best: tuple[float, Dialect] | None = None
    for delimiter in DELIMITERS:
        found = _try(whole, delimiter)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    return best[1] if best else None


def _try(lines: list[str], delimiter: str) -> tuple[float, Dialect] | None:
    """Return how well the lines fit a table with this delimiter, and the layout."""
    filled = [(i, _cells(line, delimiter)) for i, line in enumerate(lines) if line.strip() and line.lstrip()[:1] != "#"]
    counts = [len(cells) for _, cells in filled]
    if not filled or max(counts) < 2 or max(counts) > MOST_COLUMNS:
        return None
    start = _header_row(filled)
    if start is None:
        return None
    index, header = filled[start]
    named = not _is_data(header)
    rows = [cells for _, cells in filled[start + named :]]
    width = len(header)
    fitting = sum(len(cells) == width and _is_data(cells) for cells in rows)
    if width < 2 or fitting < max(1, 0.6 * len(rows)):
        return None
    dialect = Dialect(
        delimiter=delimiter,
        header=tuple(cell.strip() for cell in header) if named else (),
        skip=index + named,
        width=width,
    )
    return width * fitting / max(1, len(rows)), dialect


def _header_row(filled: list[tuple[int, list[str]]]) -> int | None:
    """Return the index of the header: the widest row of words before the data, else the first row of data."""
    for at, (_, cells) in enumerate(filled[:_LINES_BEFORE_HEADER]):
        if len(cells) < 2:
            continue
        if _is_data(cells):
            return at
        following = filled[at + 1][1] if at + 1 < len(filled) else None
        if following is not None and len(following) == len(cells) and _is_data(following):
            return at
    return None


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return []


def _is_data(cells: list[str]) -> bool:
    """Return whether a row holds measurements: it has a number or date, and no more words than numbers."""
    kinds = [_kind(cell) for cell in cells]
    return kinds.count("number") > 0 and kinds.count("word") <= kinds.count("number")


def _kind(cell: str) -> str:
    clean = cell.strip().lower()
    if clean in EMPTY:
        return "empty"
    if clean in NON_FINITE or looks_like_date(clean):
        return "number"
    found = number_with_unit(clean)
    return "number" if found is not None and (clean[:1] in "+-.$~[" or clean[:1].isdigit()) else "word"


def blocks(path: Path, dialect: Dialect) -> Iterator[Block]:
    """Yield a table's rows in blocks, one per chunk of the file. Raises AdvisorError if the file cannot be read.

    Short rows are filled with empty cells and long rows are cut. A short last row is dropped: its writing was cut off.
    """
    held: Chunk | None = None
    for chunk in chunks(path):
        if held is not None and (block := _block(held, dialect, path, last=False)):
            yield block
        held = chunk
    if held is not None and (block := _block(held, dialect, path, last=True)):
        yield block


def _block(chunk: Chunk, dialect: Dialect, path: Path, *, last: bool) -> Block | None:
    text = chunk.text.decode("utf-8-sig" if chunk.first_line == 1 else "utf-8", "replace").replace("\0", "")
    reader = csv.reader(io.StringIO(text), delimiter=dialect.delimiter, skipinitialspace=True)
    rows, lines = [], []
    try:
        if chunk.first_line > dialect.skip and '"' not in text and "#" not in text:
            rows = list(reader)
            lines = list(range(chunk.first_line, chunk.first_line + len(rows)))
        else:
            for cells in reader:
                rows.append(cells)
                lines.append(chunk.first_line + reader.line_num - 1)
    except csv.Error as error:
        raise AdvisorError(f"{path} is not a table that can be read: {error}", "is it the right file?") from error
    if set(map(len, rows)) != {dialect.width} or (dialect.header and dialect.header[0] in text):
        rows, lines = _regular(rows, lines, dialect, last=last)
    if not rows:
        return None
    return Block(columns=[list(column) for column in zip(*rows, strict=True)], lines=lines)


def _regular(
    rows: list[list[str]], lines: list[int], dialect: Dialect, *, last: bool
) -> tuple[list[list[str]], list[int]]:
    """Return the rows with as many columns as the table, without headers, comments, blanks or an incomplete end."""
    if last and rows and len(rows[-1]) < dialect.width:
        rows, lines = rows[:-1], lines[:-1]
    kept = [
        (cells[: dialect.width] + [""] * (dialect.width - len(cells)), line)
        for cells, line in zip(rows, lines, strict=True)
        if line > dialect.skip and len(cells) > 1 and not _is_header(cells, dialect) and cells[0][:1] != "#"
    ]
    return [cells for cells, _ in kept], [line for _, line in kept]


def _is_header(cells: list[str], dialect: Dialect) -> bool:
    return bool(dialect.header) and cells[0].strip() == dialect.header[0] and cells[1].strip() == dialect.header[1]


def recognised(header: tuple[str, ...]) -> dict[str, str]:
    """Return the run columns that a header names: column → the first name that means it."""
    found: dict[str, str] = {}
    for name in header:
        named = column_of(name)
        if named is not None:
            found.setdefault(named.column, name)
    return found
