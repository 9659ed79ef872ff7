"""Reads rows of a table in a log by the header above them. Columns are separated by blanks, tabs or vertical lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.readers.generic_lines import by_size, target_of
from advisor.readers.line_format import EVAL, TRAIN, Found, Rule
from advisor.readers.records import number_in
from advisor.readers.slots import LONGEST, plain
from advisor.readers.telemetry_names import KIND, column_or_card

MOST_HEADERS = 8  # different headers by which one log is read
_ROWS_BELOW = 6  # lines below a header that must include its first row
_WORDS = re.compile(rb"[^\s|]+")
_WIDE = re.compile(rb"[^\s|]+(?: [^\s|]+)*")  # cells of several words, separated by two blanks or a vertical line
_NUMBER = re.compile(rb"(?i)([-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?|[-+]?nan|[-+]?inf)%?")
_VALUE = re.compile(rb"-{1,2}|n/a|none|[\d:.]+[a-z]{0,2}", re.IGNORECASE)  # an empty cell, or a clock
_LOSS = re.compile(rb"(?i)loss|entropy|nll|xent|rmse")
_RULE = re.compile(rb"[-=+|: ]*")


@dataclass(frozen=True, kw_only=True)
class TableRow(Rule):
    """A record whose numbers are named by position. `names[i]` is the target of cell i, or "" if it is not read."""

    names: tuple[str, ...]
    cell: re.Pattern[bytes]

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Return where the numbers of one row stand; None if the line is not a row of this table."""
        cells = [*self.cell.finditer(plain(line))] if len(line) <= LONGEST else []
        numbers = [_NUMBER.fullmatch(line, *cell.span()) for cell in cells]
        values = [number or _VALUE.fullmatch(line, *cell.span()) for number, cell in zip(numbers, cells, strict=True)]
        if len(cells) != len(self.names) or not all(values):
            return None
        out = [Found(target=target, start=number.start(1), end=number.end(1))
               for target, number in zip(self.names, numbers, strict=True) if target and number]  # fmt: skip
        return (out, cells[-1].end()) if {"loss", "eval_loss"} & {one.target for one in out} else None


def headers(lines: Sequence[bytes], distinct: Iterable[bytes]) -> list[TableRow]:
    """Return the tables in some lines: a header that names a loss and a counter, with a row of numbers below.

    `distinct` has one line of each shape, and every header is one of them.
    """
    rows: dict[tuple[str, ...], TableRow] = {}
    for line in distinct:
        if len(rows) >= MOST_HEADERS:
            break
        cells = line.split()  # a header has words, and no cell is a number
        if not _LOSS.search(line) or any(cell[:1].isdigit() or cell[-1:] in b":=" for cell in cells):
            continue
        at = lines.index(line)
        below = [other for other in lines[at + 1 : at + 1 + _ROWS_BELOW] if not _RULE.fullmatch(plain(other))]
        for cell in (_WORDS, _WIDE):
            row = _row_of(re.sub(rb"^ *#(?= )", b"", line), cell, below)
            if row is not None and any(row.find(other) for other in below):
                rows.setdefault(row.names, row)
                break
    return list(rows.values())


def _row_of(line: bytes, cell: re.Pattern[bytes], below: Sequence[bytes]) -> TableRow | None:
    named = [column_or_card(title.decode("utf-8", "replace")) for title in cell.findall(plain(line))]
    rows = [cells for other in below if len(cells := cell.findall(plain(other))) == len(named)]
    surest = {one.column: one for one in sorted(filter(None, named), key=lambda one: -one.rank)}
    if not surest.keys() & {"loss", "eval_loss"} or not surest.keys() & {"step", "epoch", "tokens"}:
        return None
    names = []
    for at, one in enumerate(named):
        if one is None or one is not surest[one.column] or one.kind == "time":
            names.append("")  # a column's name does not tell whether its time is of one step or of all steps so far
        elif one.unit is None and one.kind in (KIND, "bytes"):
            names.append(by_size(one.column, [number_in(cells[at]) for cells in rows]))
        else:
            names.append(target_of(one.column, one.kind, one.unit or "") or "")
    return TableRow(names=tuple(names), cell=cell, kind=TRAIN if "loss" in surest else EVAL)
