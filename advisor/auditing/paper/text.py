"""The text of a report cut into passages and tables, each with its line; the text is Markdown or plain."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.readers.chunks import read_text
from advisor.readers.markdown_text import Table, parts, repaired

# things that are written in several ways, and one way for each; applied in this order
_PLAIN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),  # links
    (re.compile(r"(?<=[\d)A-Z])\s?\*\s?(?=[\d(~$A-Z])|(?<=\w) \* (?=\w)|\\times"), " × "),  # a product, not emphasis
    (re.compile(r"\*{1,3}|`+|(?<!\w)__|__(?!\w)|</?[a-z][^>]{0,80}>|^\s*(?:\[[ x?]\]|>+)\s+|\\(?=[$%])"), ""),
    (re.compile(r"[–—‒](?=\s?[~$]?\d)|−"), "-"),
    (re.compile(r"^\s*(?:[-*+•◦▪‣]|\d{1,2}[.)])\s+(?=\S)"), ""),  # a bullet
)
_MOST_LINES = 100_000


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One line, or one cell of a table, without markup."""

    text: str
    line: int
    in_table: bool = False


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report: its title, its passages in reading order, and its tables."""

    title: str
    passages: tuple[Passage, ...]
    tables: tuple[Table, ...]


def read_document(path: Path) -> Document:
    """Return a report. Raises AdvisorError if the file cannot be read."""
    lines = repaired(read_text(path)).replace("\r\n", "\n").split("\n")[:_MOST_LINES]
    found = tuple(_passages(lines))
    heading = next((plain(line.lstrip("# ")) for line in lines if line.startswith("#")), "")
    title = heading or next((one.text for one in found if len(one.text) < 200), path.name)
    tables = tuple(one for one in parts("\n".join(lines)) if isinstance(one, Table))
    return Document(title=title, passages=found, tables=tables)


def _passages(lines: Sequence[str]) -> Iterator[Passage]:
    """Yield every line by itself, and a row of a table cell by cell."""
    fenced, held = False, ""
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced, held = not fenced, ""
        elif line.count("|") + line.count("│") >= 2:
            cells = (plain(cell) for cell in line.replace("│", "|").strip().strip("|").split("|"))
            yield from (Passage(text=cell, line=number, in_table=not fenced) for cell in cells if cell)
        else:
            own = plain(line if fenced else line.lstrip("# "))
            # in a code block, a line that begins with an operator continues the line above
            goes_on = fenced and own[:1] in "×÷+=≈" and held and "=" not in held
            held = f"{held} {own}" if goes_on else own
            yield from [Passage(text=held, line=number)] if own else []


def plain(text: str) -> str:
    """Return the text without Markdown's marks, with one spelling of dashes and signs."""
    for pattern, replacement in _PLAIN:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())
