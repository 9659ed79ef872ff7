"""Rows of a table in a log, named by the header above them: columns apart by blanks, tabs or upright lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from advisor.readers.line_format import EVAL, TRAIN, UNITS, Found, LearntRule
from advisor.readers.names import BYTES, Named, column_of
from advisor.readers.slots import LONGEST, plain

MOST_HEADERS = 8  # different ones that one log is read by
FEWEST = 8  # rows without a header that make a table
_PAIRS = 4096  # lines that are looked at for such
_PAIR = re.compile(rb"\s*(\d{1,12})\s+(\d{1,12}\.\d{1,20}(?:[eE][-+]?\d{1,3})?)\s*")
_ROWS_BELOW = 6  # lines under a header among which its first row has to be
_NUMBER = (
    rb"(?P<value>[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)(?P<of>/\d+)?"
    rb"(?P<unit>%|ms|s|[KMGT]i?B?|k|h|min)?"
)
_CELL = re.compile(_NUMBER, re.IGNORECASE)
_CLOCK = re.compile(rb"(?:(?P<h>\d+):)?(?P<min>\d+):(?P<s>\d\d(?:\.\d+)?)")
_SHORT = {"E": "epoch", "#": "step", "Ep": "epoch"}  # above a column only
_EMPTY = (b"-", b"--", b"n/a", b"N/A", b"None")
_WORDS = re.compile(rb"[^\s|]+")
_WIDE = re.compile(rb"[^\s|]+(?: [^\s|]+)*")  # cells of several words, two blanks or a line apart
_LOSS = re.compile(rb"(?i)loss|entropy|nll|xent|[\x80-\xff]")
_RULE = re.compile(rb"[-=+|: ]*")


@dataclass(frozen=True, kw_only=True)
class TableRow(LearntRule):
    """A record whose numbers are named by place. `names[i]` is the target of cell i, "" of one that is not read."""

    names: tuple[str, ...]
    wide: bool

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Where the numbers of one row stand; None for a line that is no row of this table."""
        cells = _cells(line, self.wide)
        if len(cells) != len(self.names) or not all(_is_value(text) for text, _, _ in cells):
            return None
        out: list[Found] = []
        for target, (text, start, _) in zip(self.names, cells, strict=True):
            if target:
                out += _found(target, text, start)
        return (out, cells[-1][2]) if any(one.target in ("loss", "eval_loss") for one in out) else None


def headers(lines: Sequence[bytes], distinct: Iterable[bytes]) -> list[TableRow]:
    """The tables of some lines: words that name a loss and something that counts, with a row of numbers below.

    `distinct` has one line of each shape: a header is one of them.
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
            row = _row_of(line, wide)
            if row is not None and any(row.find(other) for other in below):
                rows.setdefault(row.names, row)
                break
    return list(rows.values())


def two_columns(lines: Sequence[bytes]) -> TableRow | None:
    """The table that some lines are which hold a rising whole number and a broken one each, and nothing else."""
    filled = [line for line in lines if line.strip()]
    pairs = [match for line in filled[:_PAIRS] if (match := _PAIR.fullmatch(line)) is not None]
    if len(pairs) < FEWEST or len(pairs) < 0.9 * len(filled[:_PAIRS]):
        return None
    steps, values = [int(match[1]) for match in pairs], [float(match[2]) for match in pairs]
    if any(b <= a for a, b in pairwise(steps)) or not 0.005 < sorted(values)[len(values) // 2] < 1000:
        return None
    return TableRow(names=("step", "loss"), wide=False)


def _may_head(line: bytes) -> bool:
    """Cheaply: words and no cell that is a number."""
    if len(line) > LONGEST or not _LOSS.search(line):
        return False
    cells = line.split()
    return 2 <= len(cells) <= 64 and not any(cell[:1].isdigit() or cell[-1:] in b":=" for cell in cells)


def _row_of(line: bytes, wide: bool) -> TableRow | None:
    named = [_named(text.decode("utf-8", "replace")) for text, _, _ in _cells(line, wide)]
    columns = [one.column if one else "" for one in named]
    taken = {column for column in columns if column}
    if not taken & {"loss", "eval_loss"} or not taken & {"step", "epoch", "tokens"}:
        return None
    names = []
    for at, one in enumerate(named):
        rivals = [other.rank for other in named if other is not None and one is not None and other.column == one.column]
        best = one is not None and one.rank == min(rivals) and one.column not in columns[:at]
        names.append(_target(one.column, one.kind, one.unit) if best and one is not None else "")
    return TableRow(names=tuple(names), wide=wide, kind=TRAIN if "loss" in taken else EVAL)


def _named(name: str) -> Named | None:
    return column_of(_SHORT.get(name, name))


def _target(column: str, kind: str, unit: str | None) -> str:
    if kind == "bytes":
        sizes = {name.lower(): name for name in UNITS if name.lower() in BYTES and len(name) > 1}
        return f"{column}__{sizes[unit]}" if unit in sizes else ""
    if kind == "time":  # of a row: whether one step's or all of them cannot be told from its name
        return ""
    if kind == "steps_per_second":
        return f"{column}__inverse"
    if kind == "share":
        return f"{column}__percent" if unit else column
    return f"{column}__{unit}" if unit in UNITS else column


def _cells(line: bytes, wide: bool) -> list[tuple[bytes, int, int]]:
    if len(line) > LONGEST:
        return []
    return [(match[0], *match.span()) for match in (_WIDE if wide else _WORDS).finditer(plain(line))]


def _is_value(text: bytes) -> bool:
    return text in _EMPTY or _CELL.fullmatch(text) is not None or _CLOCK.fullmatch(text) is not None


def _found(target: str, text: bytes, start: int) -> list[Found]:
    """The number of a cell with its own unit; a total behind a counter; nothing of a clock or an empty cell."""
    match = _CELL.fullmatch(text)
    if match is None:
        return []
    unit = (match["unit"] or b"").decode()
    if unit and "__" not in target:
        if unit not in UNITS:
            return []
        target = f"{target}__{unit}"
    out = [Found(target=target, start=start + match.start("value"), end=start + match.end("value"))]
    planned = {"step": "planned_steps", "epoch": "planned_epochs"}.get(target)
    if planned is not None and match["of"]:
        out.append(Found(target=planned, start=start + match.start("of") + 1, end=start + match.end("of")))
    return out
