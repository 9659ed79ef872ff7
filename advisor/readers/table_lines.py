"""Reads rows of a table in a log by the header above them. Columns are separated by spaces, tabs or vertical lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from advisor.readers.cells import clock_seconds
from advisor.readers.generic_lines import by_size, target_of, whole_of
from advisor.readers.line_format import EVAL, TRAIN, UNITS, Found, Rule
from advisor.readers.names import Named
from advisor.readers.records import number_in
from advisor.readers.slots import LONGEST, plain, unstamped
from advisor.readers.telemetry_names import KIND, card_column, column_or_card

MOST_HEADERS = 8  # different headers by which one log is read
_ROWS_BELOW = 6  # lines below a header that must include its first row
_NUMBER = (
    rb"(?P<value>[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)(?:(?:W|[MG]i?B)(?=/))?"
    rb"(?P<of>/\d[\d,]*)?"
    rb"(?P<unit>%|ms|s|[KMGT]i?B?|k|h|min|W|(?:\xc2\xb0)?C)?"
)
_CELL = re.compile(_NUMBER, re.IGNORECASE)
_CLOCK = re.compile(rb"(?:(?P<h>\d+):)?(?P<min>\d+):(?P<s>\d\d(?:\.\d+)?)")
_SHORT = {"E": "epoch", "#": "step", "Ep": "epoch"}  # only as a column's header
_UNITS_BEHIND = (b"s", b"sec", b"seconds")  # as a separate cell after the last number
_EMPTY = (b"-", b"--", b"n/a", b"N/A", b"None")
_WORDS = re.compile(rb"[^\s|]+")
_WIDE = re.compile(rb"[^\s|]+(?: [^\s|]+)*")  # cells of several words, separated by two spaces or a vertical line
_LOSS = re.compile(rb"(?i)loss|entropy|nll|xent|rmse|[\x80-\xff]")
_COMMENT = re.compile(rb"^ *#(?= +[A-Za-z])")  # before column names meant to be read by other programs
_RULE = re.compile(rb"[-=+|: ]*")


@dataclass(frozen=True, kw_only=True)
class TableRow(Rule):
    """A record whose numbers are named by position. `names[i]` is the target of cell i, or "" if it is not read."""

    names: tuple[str, ...]
    wide: bool
    passed: tuple[str, ...] = ()  # names of the columns that are not read

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Return where the numbers of one row stand; None if the line is not a row of this table."""
        cells = _cells(line, self.wide)
        if len(cells) != len(self.names) or not all(_is_value(text) for text, _, _ in cells):
            return None
        out: list[Found] = []
        for target, (text, start, _) in zip(self.names, cells, strict=True):
            if target:
                out += _found(target, text, start)
        return (out, cells[-1][2]) if any(one.target in ("loss", "eval_loss") for one in out) else None


def headers(lines: Sequence[bytes], distinct: Iterable[bytes]) -> list[TableRow]:
    """Return the tables in some lines: a header that names a loss and a counter, with a row of numbers below.

    `distinct` has one line of each shape, and every header is one of them.
    """
    rows: dict[tuple[str, ...], TableRow] = {}
    for line in distinct:
        if len(rows) >= MOST_HEADERS:
            break
        if not _may_head(line):
            continue
        at = lines.index(line)
        below = [other for other in lines[at + 1 : at + 1 + _ROWS_BELOW] if not _RULE.fullmatch(plain(other))]
        for wide in (False, True):
            row = _row_of(_COMMENT.sub(b" ", line), wide, below)
            if row is not None and any(row.find(other) for other in below):
                rows.setdefault(row.names, row)
                break
    return list(rows.values())


def _may_head(line: bytes) -> bool:
    """Return whether a line may be a header, by a cheap check: it has words and no cell is a number."""
    if len(line) > LONGEST or not _LOSS.search(line):
        return False
    cells = unstamped(line).split()
    return 2 <= len(cells) <= 64 and not any(cell[:1].isdigit() or cell[-1:] in b":=" for cell in cells)


def _row_of(line: bytes, wide: bool, below: Sequence[bytes]) -> TableRow | None:
    titles = [text.decode("utf-8", "replace") for text, _, _ in _cells(line, wide)]
    rows = [cells for other in below if len(cells := [text for text, _, _ in _cells(other, wide)]) == len(titles)]
    named = [_named(title, rows[0][at] if rows else b"") for at, title in enumerate(titles)]
    columns = [one.column if one else "" for one in named]
    taken = {column for column in columns if column}
    if not taken & {"loss", "eval_loss"} or not taken & {"step", "epoch", "tokens"}:
        return None
    names = []
    for at, one in enumerate(named):
        if one is None or at != _first_of_best(named, one.column):
            names.append("")
        elif one.kind == "time" and "step" not in taken:
            names.append(_of_an_epoch([cells[at] for cells in rows]))
        elif one.unit is None and one.kind in (KIND, "bytes"):
            matches = [match for cells in rows if (match := _CELL.fullmatch(cells[at])) is not None]
            bare = not any(match["unit"] for match in matches)
            values = [number_in(match["value"]) for match in matches]
            names.append(by_size(one.column, values) if bare and values else one.column)
        else:
            # a column's name does not tell whether its time is of one step or of all steps so far
            names.append(("" if one.kind == "time" else target_of(one.column, one.kind, one.unit or "")) or "")
    passed = tuple(title for title, name in zip(titles, names, strict=True) if not name)
    return TableRow(names=tuple(names), wide=wide, passed=passed, kind=TRAIN if "loss" in taken else EVAL)


def _seconds(text: bytes) -> float | None:
    """Return the seconds of a clock or of a number with decimals."""
    bare = re.fullmatch(rb"\d{1,6}\.\d{1,9}", text) is not None
    return float(text) if bare else clock_seconds(text.decode("utf-8", "replace"))


def _first_of_best(named: Sequence[Named | None], column: str) -> int:
    """Return the first position of a column's surest name."""
    ranks = {at: one.rank for at, one in enumerate(named) if one is not None and one.column == column}
    return min(ranks, key=lambda at: (ranks[at], at))


def _of_an_epoch(cells: Sequence[bytes]) -> str:
    """Return what a time column with one row per epoch holds: the epoch's time, or all time so far if it grows."""
    seconds = [value for text in cells if (value := _seconds(text)) is not None]
    if len(seconds) < 2 or len(seconds) < len(cells):
        return ""
    grows = all(b > a for a, b in pairwise(seconds)) and seconds[-1] > 1.5 * seconds[0]
    return "elapsed_seconds" if grows else "epoch_seconds"


def _named(name: str, cell: bytes) -> Named | None:
    """Return what a column holds, by its name or, for a GPU reading, by the unit in its cells."""
    match = _CELL.fullmatch(cell)
    unit = (match["unit"] or b"").decode("utf-8", "replace") if match is not None else ""
    return column_or_card(_SHORT.get(name, name)) or card_column(name, unit)


def _cells(line: bytes, wide: bool) -> list[tuple[bytes, int, int]]:
    if len(line) > LONGEST:
        return []
    found = [(match[0], *match.span()) for match in (_WIDE if wide else _WORDS).finditer(plain(unstamped(line)))]
    unit = len(found) > 1 and found[-1][0] in _UNITS_BEHIND and _CELL.fullmatch(found[-2][0]) is not None
    return found[:-1] if unit else found


def _is_value(text: bytes) -> bool:
    return text in _EMPTY or _CELL.fullmatch(text) is not None or _CLOCK.fullmatch(text) is not None


def _found(target: str, text: bytes, start: int) -> list[Found]:
    """Return a cell's number with its own unit, and the total after a counter; none for other clocks or empty cells."""
    clock = _CLOCK.fullmatch(text)
    if clock is not None and target in ("elapsed_seconds", "epoch_seconds"):
        return [
            Found(target=f"{target}__{part}", start=start + clock.start(part), end=start + clock.end(part))
            for part in ("h", "min", "s")
            if clock[part] is not None
        ]
    match = _CELL.fullmatch(text)
    if match is None:
        return []
    unit = (match["unit"] or b"").decode("utf-8", "replace")
    if unit and "__" not in target and unit not in ("W", "C", "°C"):
        if unit not in UNITS:
            return []
        target = f"{target}__{unit}"
    out = [Found(target=target, start=start + match.start("value"), end=start + match.end("value"))]
    planned = {"step": "planned_steps", "epoch": "planned_epochs"}.get(target) or whole_of(target)
    if planned is not None and match["of"]:
        out.append(Found(target=planned, start=start + match.start("of") + 1, end=start + match.end("of")))
    return out
