"""Records to terminal and JSON. No arithmetic here: what is shown was computed elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 140  # columns where output goes to a file or another program and COLUMNS says nothing


def to_plain(value: Any) -> Any:
    """Turn records into what JSON can hold: dataclasses by field name, NaN and infinities as null, paths as text.

    An Estimate becomes {value, low, high, basis}. Numpy scalars and arrays become numbers and lists. Anything else
    raises TypeError: a record that JSON cannot hold is our mistake, not a string.
    """
    if value is None or isinstance(value, bool | int) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(to_plain(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [to_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if hasattr(value, "tolist"):  # numpy, which this module does not import
        return to_plain(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def print_json(value: Any) -> None:
    """Write one JSON document to stdout: the only thing a command prints there under --json."""
    sys.stdout.write(json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@cache
def console() -> Console:
    """The console on stdout, for results."""
    return _console(stderr=False)


@cache
def error_console() -> Console:
    """The console on stderr, for progress and remarks, so that stdout holds results only."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    made = Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)
    if not made.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        made.width = PLAIN_WIDTH
    return made


def show(*renderables: RenderableType) -> None:
    """Print texts and tables to stdout; text is taken as it is, without markup."""
    for item in renderables:
        _print(console(), item)


def _print(where: Console, item: RenderableType) -> None:
    if isinstance(item, str):
        where.print("\n".join(_wrapped(line, where.width) for line in item.split("\n")), soft_wrap=True)
    else:
        where.print(item)


def _wrapped(text: str, width: int) -> str:
    """A line in lines of this width in which no word is broken, nor a command at its end: both can be copied."""
    if len(text) <= width:
        return text
    words, colon, command = text.partition(": advisor ")
    filled = textwrap.fill(words, width, break_long_words=False, break_on_hyphens=False)
    return f"{filled}{colon}{command}"


def show_command(before: str, command: str) -> None:
    """Print a line that ends in a command; it is never broken, so that it can be copied."""
    console().print(f"{before}{command}", soft_wrap=True)


def points(texts: Iterable[str], *, mark: str = "-") -> Table:
    """Texts one below the other behind a mark, wrapped lines indented; a command at a text's end on its own line."""
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column()
    made.add_column(overflow="fold")
    for text in texts:
        words, colon, command = text.partition(": advisor ")
        made.add_row(Text(mark), Text(f"{words}:" if colon else text))
        if colon:
            made.add_row(Text(""), Text(f"advisor {command}"))
    return made


def remark(text: str) -> None:
    """Print a line for the person, on stderr."""
    _print(error_console(), text)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str | None = None,
    right: Iterable[str] = (),
    styles: Mapping[int, str] | None = None,
) -> Table:
    """A table of texts: `right` names the columns aligned right, `styles` gives a rich style per row number.

    None in a cell is shown as "unknown".
    """
    texts = [["unknown" if cell is None else cell for cell in row] for row in rows]
    to_the_right = set(right)
    made = _WholeWords([columns, *texts], [name in to_the_right for name in columns], title)
    for name, numeric in zip(columns, made.numeric, strict=True):
        made.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for number, row in enumerate(texts):
        made.add_row(*map(Text, row), style=(styles or {}).get(number))
    return made


class _WholeWords(Table):
    """A table whose columns are never so narrow that a word is broken, as far as the terminal allows."""

    def __init__(self, texts: Sequence[Sequence[str]], numeric: Sequence[bool], title: str | None):
        super().__init__(
            title=title and Text(title), title_justify="left", header_style="bold", box=None, pad_edge=False
        )
        self.texts, self.numeric, self.show_header = texts, numeric, any(texts[0])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths, gap = _widths(self.texts, self.numeric, options.max_width)
        self.padding = (0, gap, 0, 0)
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)


_UNBROKEN = re.compile(r"\d+ x \S+|\S+")  # so many of a card, or a word


def _widths(rows: Sequence[Sequence[str]], numeric: Sequence[bool], room: int) -> tuple[list[int], int]:
    """Columns' widths in which no word is broken, and the gap between them.

    Numbers stay with their units and cards with their count for as long as there is room.
    """
    cells = list(zip(*rows, strict=True))
    whole = [max(len(line) for cell in column for line in (cell.splitlines() or [""])) for column in cells]
    words = [max(len(word) for cell in column for word in (cell.split() or [""])) for column in cells]
    kept = [
        max([word, *(len(text) for cell in column[1:] for text in ([cell] if number else _UNBROKEN.findall(cell)))])
        for column, word, number in zip(cells, words, numeric, strict=True)
    ]
    gaps = len(cells) - 1
    tried = ((kept, 2), (kept, 1), (words, 1))
    least, gap = next(((least, gap) for least, gap in tried if sum(least) + gap * gaps <= room), (words, 1))
    widths = list(whole)
    while sum(widths) + gap * gaps > room and widths != least:  # the widest gives first
        widest = max((c for c in range(len(widths)) if widths[c] > least[c]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths, gap


@contextlib.contextmanager
def progress(description: str, total: float | None) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr: yields `update(completed=None, advance=None, description=None, total=None)`.

    Without a terminal nothing moves: a changed description is printed as a plain line instead.
    """
    err = error_console()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        last = [description]

        def update(**changes: Any) -> None:
            text = changes.get("description")
            if text is not None and text != last[0] and not err.is_terminal:
                err.print(text)
            last[0] = text or last[0]
            bar.update(task, **changes)

        yield update
