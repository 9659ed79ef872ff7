"""A table in words. It is made once for its subject and laid out here for console, Markdown and page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType

from advisor.report import render

NUMBER_WIDTH = 9  # characters
_FILE = re.compile(r"[~/.]|[\w/-]+\.\w|\w+_")  # how a text begins with the name of a file
STAR = "*"  # follows a cell that a note of the table explains


@dataclass(frozen=True, kw_only=True)
class Table:
    """Titles and cells. `numbers` names the columns of numbers, `chosen` the rows that are the answer itself."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    numbers: tuple[str, ...] = ()
    chosen: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()  # explanations for the reader

    def only(self, *columns: str) -> Table:
        """Returns the table with these columns, in this order."""
        places = [self.columns.index(name) for name in columns]
        rows = tuple(tuple(row[place] for place in places) for row in self.rows)
        return replace(self, columns=columns, rows=rows, numbers=tuple(n for n in self.numbers if n in columns))

    def without(self, *columns: str) -> Table:
        """Returns the table without these columns."""
        return self.only(*(name for name in self.columns if name not in columns))


def on_console(table: Table) -> RenderableType:
    """Returns the table for `render.show`: numbers to the right, the answer in bold. The caller shows the notes."""
    styles = dict.fromkeys(table.chosen, "bold")
    numbers = [_folded(name) for name in table.numbers]
    columns = [_folded(name) if name in table.numbers else name for name in table.columns]
    return render.table(columns, table.rows, title=table.title or None, right=numbers, styles=styles)


def _folded(title: str) -> str:
    """Breaks the title of a column of numbers into lines no wider than the numbers, to leave room for words."""
    return "\n".join(textwrap.wrap(title, NUMBER_WIDTH, break_long_words=False, break_on_hyphens=False))


def in_markdown(table: Table) -> str:
    """Returns the table's cells in Markdown, without its title; empty if there are no rows."""
    return markdown_table(table.columns, table.rows)


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a Markdown table; empty if there are no rows."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    if not cells:
        return ""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells)])


def on_page(table: Table) -> list[dict[str, str]]:
    """Returns the rows by column title; titles begin with a capital letter, as all text on a page does."""
    titles = [capital(name) for name in table.columns]
    return [dict(zip(titles, row, strict=True)) for row in table.rows]


def capital(text: str) -> str:
    """Returns the text with a capital first letter and the rest unchanged; a file's name or path stays as it is."""
    return text if _FILE.match(text) else text[:1].upper() + text[1:]
