"""Cuts Markdown into headings, tables (pipes, or aligned with spaces in code fences) and "name: value" lines.

UTF-8 text that was wrongly read as Windows-1252 ("ðŸš€", "Ã—") is repaired first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MOJIBAKE = re.compile(r"[\u0080-\u00ff\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u2122]{2,}")
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_PAIR = re.compile(r"^\**`?([A-Za-z][\w /()%#.+-]{0,50}?)`?\**\s*:\s*\**\s*(.{1,200}?)\**\s*$")
_RULED = re.compile(r"[\s:|+=-]*$")
_MOST_LINES = 200_000


@dataclass(frozen=True, kw_only=True)
class MarkdownTable:
    """A table with its header and the heading above it; `line` is the header's line."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A line that states one value."""

    heading: str
    name: str
    value: str
    line: int


def _is_rule(line: str) -> bool:
    """Return whether a line only draws a rule: `|---|:--:|`, `+====+`."""
    return "-" in line and _RULED.match(line) is not None


def repaired(text: str) -> str:
    """Return UTF-8 text that was decoded as Windows-1252, decoded correctly; other text is unchanged."""
    return _MOJIBAKE.sub(_repair, text) if re.search(r"Ã.|â[\u0080-\u02ff\u2013-\u2122]|ð\u0178", text) else text


def _repair(match: re.Match[str]) -> str:
    raw = bytearray()
    for char in match[0]:
        try:
            raw += char.encode("cp1252")
        except UnicodeEncodeError:  # five bytes that Windows-1252 does not define appear as control characters
            if ord(char) > 255:
                return match[0]
            raw.append(ord(char))
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return match[0]


def parts(text: str) -> Iterator[MarkdownTable | Pair]:
    """Yield the tables and pairs of a document in order; prose is skipped."""
    lines = text.replace("\r\n", "\n").split("\n")[:_MOST_LINES]
    heading, at, fenced = "", 0, False
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif (found := _table_at(lines, at, heading, fenced)) is not None:
            table, at = found
            yield table
            continue
        elif not fenced and (match := _PAIR.match(" ".join(_BULLET.sub("", line).split()))):
            yield Pair(heading=heading, name=match[1].strip(), value=match[2].strip(), line=at + 1)
        at += 1


def _table_at(lines: list[str], at: int, heading: str, fenced: bool) -> tuple[MarkdownTable, int] | None:
    """Return the table that begins at a line, and the line after it."""
    piped = lines[at].count("|") >= 1 and at + 1 < len(lines) and _is_rule(lines[at + 1])
    if piped:
        return _read(lines, at, at + 2, heading, _pipe_cells)
    if not fenced or len(_blank_cells(lines[at])) < 2 or not _is_words(_blank_cells(lines[at])):
        return None
    ruled = at + 1 < len(lines) and _is_rule(lines[at + 1])
    return _read(lines, at, at + (2 if ruled else 1), heading, _blank_cells)


def _read(
    lines: list[str], at: int, first: int, heading: str, cells_of: Callable[[str], list[str]]
) -> tuple[MarkdownTable, int] | None:
    header = cells_of(lines[at])
    rows, end = [], first
    while end < len(lines) and lines[end].strip() and not lines[end].lstrip().startswith("```"):
        cells = cells_of(lines[end])
        if len(cells) != len(header):
            break
        rows.append(tuple(cells))
        end += 1
    if not rows:
        return None
    return MarkdownTable(heading=heading, header=tuple(header), rows=tuple(rows), line=at + 1), end


def _pipe_cells(line: str) -> list[str]:
    clean = line.strip()
    clean = clean[1:] if clean.startswith("|") else clean
    clean = clean[:-1] if clean.endswith("|") else clean
    return [cell.strip().strip("*`").strip() for cell in clean.split("|")]


def _blank_cells(line: str) -> list[str]:
    """Return the cells of a table aligned with spaces: at least two spaces separate columns."""
    return [cell for cell in re.split(r"\s{2,}|\t", line.strip()) if cell]


def _is_words(cells: list[str]) -> bool:
    return all(re.match(r"[A-Za-z%#]", cell) for cell in cells)
