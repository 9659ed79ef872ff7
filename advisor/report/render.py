"""Prints records on the terminal and as JSON. No arithmetic: all values were computed elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from itertools import zip_longest
from pathlib import PurePath
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import strip_control_codes
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

PLAIN_WIDTH = 140  # columns if the output is a file or a pipe and COLUMNS is not set


def to_plain(value: Any) -> Any:
    """Turn records into values for JSON: dataclasses by field name, NaN and infinities as null, paths as text.

    An Estimate becomes {value, low, high, basis}. Numpy scalars and arrays become numbers and lists. Anything else
    raises TypeError, because a record that JSON cannot hold is a programming error.
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


@cache
def console() -> Console:
    """Returns the console on stdout, for results."""
    return _console(stderr=False)


@cache
def error_console() -> Console:
    """Returns the console on stderr for progress and remarks, so that stdout holds only results."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not made.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        made.width = PLAIN_WIDTH
    return made


def show(*renderables: RenderableType) -> None:
    """Print texts and tables to stdout; text is printed as it is, without markup."""
    for item in renderables:
        _print(console(), item)


def _print(where: Console, item: RenderableType) -> None:
    if isinstance(item, str):
        lines = item.split("\n")
        for place, line in enumerate(lines):
            if len(line) > where.width:  # a command at its end is never broken, so that it can be copied
                words, colon, command = line.partition(": advisor ")
                lines[place] = "\n".join(_lines(words, where.width)) + f"{colon}{command}"
        where.print("\n".join(lines), soft_wrap=True)
    elif where.is_terminal:
        where.print(item)
    else:
        # rich fills a table with blanks to its width, which a file or pipe does not need
        with where.capture() as captured:
            where.print(item)
        lines = captured.get().split("\n")
        where.print("\n".join(line.rstrip() for line in lines), soft_wrap=True, end="")


_UNIT = r"%|[µm]?s|min|h|days?|weeks?|[kMBT]|[kKMGT]?i?B|k?W|[kM]?Wh|k?g|t|x|GPUs?|tok/s|samples/s|[GTP]?FLOP/s|[GT]B/s"
_NUMBER_AND_UNIT = re.compile(rf"(?<=\d) (?:[kMBT] )?(?:{_UNIT})(?![\w/])(?: (?=\w+-\d))?|(?<=\d x) (?=\S)")


def _lines(text: str, width: int) -> list[str]:
    """Breaks a text into lines of this width. No word is broken, and numbers keep their units if there is room."""
    joined = _NUMBER_AND_UNIT.sub(lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)
    wrap = partial(textwrap.wrap, width=width, break_long_words=False, break_on_hyphens=False)
    wrapped = wrap(joined)
    if any(len(line) > width for line in wrapped):
        wrapped = wrap(text)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in wrapped] or [""]


def show_command(before: str, command: str) -> None:
    """Print a line that ends in a command; it is never broken, so that it can be copied."""
    console().print(f"{before}{command}", soft_wrap=True)


@dataclasses.dataclass(frozen=True)
class Points:
    """A list of texts with a mark and indented lines; a command at a text's end has its own line."""

    texts: Sequence[str]
    mark: str = "-"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = len(self.mark) + 1
        for text in self.texts:
            words, colon, command = text.partition(": advisor ")
            first, *others = _lines(f"{words}:" if colon else text, options.max_width - indent)
            yield Text("\n".join([f"{self.mark} {first}", *(" " * indent + line for line in others)]))
            if colon:
                yield Text(f"{' ' * indent}advisor {command}", overflow="fold")


def remark(text: str) -> None:
    """Print a line for the user on stderr."""
    _print(error_console(), text)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str | None = None,
    right: Iterable[str] = (),
    styles: Mapping[int, str] | None = None,
) -> RenderableType:
    """Returns a table of texts. `right` names the columns aligned right, `styles` gives a rich style per row number.

    None in a cell is shown as "unknown". No word is broken: if columns would be too narrow for that, each row becomes a
    list of its titles and cells.
    """
    texts = [["unknown" if cell is None else cell for cell in row] for row in rows]
    to_the_right = set(right)
    return _WholeWords([list(columns), *texts], [name in to_the_right for name in columns], title, styles or {})


@dataclasses.dataclass(frozen=True)
class _WholeWords:
    texts: Sequence[Sequence[str]]  # the titles first
    numeric: Sequence[bool]
    title: str | None
    styles: Mapping[int, str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles, *rows = self.texts
        widths, gap = _widths(self.texts, self.numeric, options.max_width)
        if sum(widths) + gap * (len(widths) - 1) > options.max_width:
            yield Text("\n".join([*filter(None, [self.title]), *self._as_lists(options.max_width)]))
            return
        if self.title:
            yield Text(_in_column(self.title, sum(widths) + gap * (len(widths) - 1)))
        # rich's own table takes seconds for ten thousand rows
        for number, row in enumerate(self.texts if any(titles) else rows, -1 if any(titles) else 0):
            style = console.get_style(self.styles.get(number, "") if number >= 0 else "bold")
            columns = [_in_column(cell, width).split("\n") for cell, width in zip(row, widths, strict=True)]
            if number < 0:  # titles stand directly above their cells
                tallest = max(map(len, columns))
                columns = [[""] * (tallest - len(lines)) + lines for lines in columns]
            for line in zip_longest(*columns, fillvalue=""):
                blanks = [" " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)]
                padded = zip(line, blanks, self.numeric, strict=True)
                yield Segment((" " * gap).join(b + t if numeric else t + b for t, b, numeric in padded), style)
                yield Segment.line()

    def _as_lists(self, width: int) -> Iterator[str]:
        """Yields each row as its titles and cells."""
        titles, *rows = self.texts
        for number, row in enumerate(rows):
            if number:
                yield ""
            for title, cell in zip(titles, row, strict=True):
                named = f"{' '.join(title.split())}: {cell}" if title else cell
                first, *others = _lines(named, width - 2)
                yield from (first, *(f"  {line}" for line in others))


def _in_column(cell: str, width: int) -> str:
    if cell_len(cell) <= width and cell.isprintable():
        return cell.rstrip()
    lines = [line for text in strip_control_codes(cell).split("\n") for line in _lines(text, width)]
    # double-width letters may exceed the width although their count does not
    return "\n".join(part for line in lines for part in (chop_cells(line, width) if cell_len(line) > width else [line]))


_UNBROKEN = re.compile(r"\d+ x \S+|\S+")  # a number of GPUs, or a word


def _widths(rows: Sequence[Sequence[str]], numeric: Sequence[bool], room: int) -> tuple[list[int], int]:
    """Returns column widths in which no word is broken, and the gap between the columns.

    Numbers stay with their units, and GPUs with their count, as long as there is room.
    """
    cells = list(zip(*rows, strict=True))
    whole = [max(cell_len(line) for cell in column for line in (cell.splitlines() or [""])) for column in cells]
    words = [max(cell_len(word) for cell in column for word in (cell.split() or [""])) for column in cells]
    unbroken = [
        max([word, *(cell_len(t) for cell in column[1:] for t in ([cell] if number else _UNBROKEN.findall(cell)))])
        for column, word, number in zip(cells, words, numeric, strict=True)
    ]
    gaps = len(cells) - 1
    tried = ((unbroken, 2), (unbroken, 1), (words, 1))
    least, gap = next(((least, gap) for least, gap in tried if sum(least) + gap * gaps <= room), (words, 1))
    widths = list(whole)
    while sum(widths) + gap * gaps > room and widths != least:  # the widest column shrinks first
        widest = max((c for c in range(len(widths)) if widths[c] > least[c]), key=widths.__getitem__)
        widths[widest] -= 1
    return widths, gap


@contextlib.contextmanager
def progress(description: str, total: float | None) -> Iterator[Callable[..., None]]:
    """Shows a progress bar on stderr: yields `update(completed=None, advance=None, description=None, total=None)`.

    Without a terminal there is no bar: a changed description is printed as a plain line instead.
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
