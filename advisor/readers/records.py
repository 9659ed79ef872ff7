"""Finds the records among the lines of a log and converts their numbers into columns.

Lines that differ only in their numbers have the same *shape*. A rule reads one line of each shape; the numbers of the
others stand in the same places. Lines of a shape whose numbers do not come out even are read one by one.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np

from advisor.readers.chunks import Lines
from advisor.readers.line_format import (
    DATE_PARTS,
    INVERSE,
    MORE,
    NUMBER,
    SETS,
    TRAIN,
    Found,
    Rule,
    unit_factor,
)
from advisor.readers.line_format import (
    EVAL as EVAL,
)

LONGEST_RECORD = 1 << 14  # bytes; expressions that backtrack must not see whole documents on one line
TAILS = 16  # lines of one shape whose text after the record is examined; an error shows in the first few
_DIGITS = re.compile(rb"\d[\d.]*")
# with thousands separators and, for the clock 03:04:05,678, without
_NUMBERS = (re.compile(NUMBER), re.compile(NUMBER.replace(rb"(?:,\d{3})*+", b"")))
_AT_ONCE = 1 << 13  # lines
_LETTER = re.compile(rb"[a-zA-Z]")


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records in file order, NaN where a record did not print a column. MORE records are already merged."""

    line: np.ndarray  # 1-based
    kind: np.ndarray  # TRAIN or EVAL
    rule: np.ndarray  # index of the format's row
    order: np.ndarray  # place in the file, in lines; those that end with a lone CR also count
    columns: dict[str, np.ndarray]
    losses: int  # TRAIN records with a loss, or whose steps were all skipped, in the whole file
    evals: int  # records with a validation loss
    train: int  # TRAIN records

    def __len__(self) -> int:
        return len(self.line)

    def column(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.full(len(self), np.nan))

    def take(self, index: np.ndarray) -> Records:
        """Return some of the records, by mask or index; the counts remain those of the file."""
        columns = {name: values[index] for name, values in self.columns.items()}
        own = {name: getattr(self, name)[index] for name in ("line", "kind", "rule", "order")}
        return dataclasses.replace(self, columns=columns, **own)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Records of one rule that print the same columns."""

    order: np.ndarray
    rule: int
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Number:
    """What becomes of one number of a line."""

    column: str
    part: str  # part of a date, INVERSE, or empty
    multiply: float
    divide: float


def read_records(lines: Lines, rules: Sequence[Rule], rule_of: np.ndarray | None = None) -> tuple[Records, Lines]:
    """Return a log's records, and the lines that are none or have words after their record.

    `rule_of` gives the rule of each line (-1: none), where digits decide which one it is.
    """
    each, blocks, others = lines.each, list[Block](), list[int]()
    shapes: dict[bytes, list[int]] = {}
    borders = [*lines.starts[::_AT_ONCE].tolist(), len(lines.text)]
    texts = (_DIGITS.sub(b"0", lines.text[start : end - 1]).split(b"\n") for start, end in pairwise(borders))
    for index, key in enumerate(chain.from_iterable(texts)):  # each line with a 0 in place of each number
        shapes.setdefault(key if rule_of is None else b"%d %s" % (rule_of[index], key), []).append(index)
    for at in shapes.values():
        first = each[at[0]]
        known = enumerate(rules) if rule_of is None else [(n, rules[n]) for n in rule_of[at[:1]].tolist() if n >= 0]
        for number, rule in known if len(first) <= LONGEST_RECORD else ():
            if (seen := rule.find(first)) is not None:
                found, unread = _blocks(each, at, number, rule, seen[0])
                break
        else:
            others += at
            continue
        blocks += found
        others += unread
        if _LETTER.search(first, seen[1]):
            others += [index for index in at[:TAILS] if index not in unread]
    records = joined_records(blocks, [rule.kind for rule in rules], lines.numbers)
    return records, lines.take(np.array(sorted(others), np.int64))


def _blocks(
    each: Sequence[bytes], at: list[int], number: int, rule: Rule, found: Sequence[Found]
) -> tuple[list[Block], list[int]]:
    """Return the records of lines of one shape, of which the first prints `found`, and the lines that are none."""
    first = each[at[0]]
    spans, meant = _meant(first, rule, found)
    values = None if rule.comma else _at_the_same_places([each[index] for index in at], spans)
    alike: dict[tuple[Number, ...], tuple[list[int], Any]] = {}  # lines that print the same, and their numbers
    unread = []
    if values is None:
        for index in at:
            if (seen := rule.find(each[index])) is None:
                unread.append(index)
                continue
            spans, meant = _meant(each[index], rule, seen[0])
            where, printed = alike.setdefault(tuple(meant), ([], []))
            where.append(index)
            printed.append([number_in(each[index][a:b], rule.comma) for a, b in spans])
    else:
        alike[tuple(meant)] = (at, values)
    blocks = []
    for numbers, (where, printed) in alike.items():
        columns = columns_of(numbers, np.asarray(printed, np.float64).reshape(len(where), len(numbers)))
        for name, absent in rule.missing.items():
            if name in columns:
                columns[name] = np.where(columns[name] == absent, np.nan, columns[name])
        blocks.append(Block(order=np.array(where, np.int64), rule=number, columns=columns))
    return blocks, unread


def _at_the_same_places(texts: Sequence[bytes], spans: Sequence[tuple[int, int]]) -> np.ndarray | None:
    """Return the numbers of all lines at the places that they have in the first, or None if that is in doubt."""
    values = np.full((len(texts), len(spans)), np.nan)
    places = [{match.span(): at for at, match in enumerate(pattern.finditer(texts[0]))} for pattern in _NUMBERS]
    found = [_place_of(span, places) for span in spans]
    for column, (span, place) in enumerate(zip(spans, found, strict=True)):
        if place is None:
            if _DIGITS.search(texts[0], *span):
                return None
            values[:, column] = number_in(texts[0][slice(*span)])  # nan and inf are part of the shape
    for first in range(0, len(texts), _AT_ONCE):
        some = texts[first : first + _AT_ONCE]
        for number, (pattern, of_pattern) in enumerate(zip(_NUMBERS, places, strict=True)):
            if not any(place is not None and place[0] == number for place in found):
                continue
            printed = pattern.findall(b"\n".join(some))
            if len(printed) != len(of_pattern) * len(some):
                return None
            for column, place in enumerate(found):
                if place is not None and place[0] == number:
                    texts_of = printed[place[1] :: len(of_pattern)]
                    if b"," in (joined := b" ".join(texts_of)):
                        texts_of = joined.replace(b",", b"").split()
                    numbers = np.fromiter(map(float, texts_of), float, len(texts_of))
                    values[first : first + _AT_ONCE, column] = np.abs(numbers) if place[2] else numbers
    return values


def _place_of(span: tuple[int, int], places: Sequence[Mapping[tuple[int, int], int]]) -> tuple[int, int, bool] | None:
    """Return by which pattern and as which of its numbers a number is found, and whether its hyphen is no sign."""
    for number, of_pattern in enumerate(places):
        for own, unsigned in ((span, False), ((span[0] - 1, span[1]), True)):
            if own in of_pattern:
                return number, of_pattern[own], unsigned
    return None


def _meant(line: bytes, rule: Rule, found: Sequence[Found]) -> tuple[list[tuple[int, int]], list[Number]]:
    """Return where the numbers of a record stand, and what becomes of each."""
    units = {f.target.partition("__")[0]: f for f in found if f.target.endswith("__unit")}
    spans, meant = [], []
    for f in found:
        column, _, unit = f.target.partition("__")
        if unit == "unit":
            continue
        if not unit and column in units:
            unit = line[units[column].start : units[column].end].decode("utf-8", "replace")
        part = unit if unit == INVERSE or (column == "unix_seconds" and unit in DATE_PARTS) else ""
        multiply, divide = (1.0, 1.0) if part or not unit else unit_factor(unit, column)
        spans.append((f.start, f.end))
        meant.append(Number(column=column, part=part, multiply=multiply, divide=divide))
    return spans, meant


def number_in(text: bytes, comma: bytes = b"") -> float:
    """Return a printed number, NaN for other text. Underscores are refused, although Python's float takes them."""
    try:
        return float(text.replace(b",", comma)) if b"_" not in text else math.nan
    except ValueError:
        return math.nan


def columns_of(meant: Sequence[Number], values: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns of converted values, one per line. Groups of a column add up; date parts become Unix seconds."""
    columns: dict[str, np.ndarray] = {}
    dates: dict[str, np.ndarray] = {}
    for number, raw in zip(meant, values.T, strict=True):
        if number.part in DATE_PARTS:
            dates[number.part] = np.abs(raw)
            continue
        with np.errstate(all="ignore"):
            inverse = number.part == INVERSE
            value = np.where(raw > 0, 1 / raw, np.nan) if inverse else raw * number.multiply / number.divide
        columns[number.column] = columns[number.column] + value if number.column in columns else value
        flags = np.isnan(value) + 2.0 * np.isinf(value)
        if number.column == "loss" or (number.column == "eval_loss" and flags.any()):
            columns[f"{number.column}_is_nan"] = flags
    if len(dates) >= 3:
        columns["unix_seconds"] = unix_seconds(dates, len(values))
    return columns


def unix_seconds(parts: dict[str, np.ndarray], lines: int) -> np.ndarray:
    """Return Unix seconds of a date in the proleptic Gregorian calendar, read as UTC; NaN for an invalid date.

    Days since 1970-01-01 are counted with years shifted to start in March, so that leap days come last in the year.
    """
    year, month, day = (parts.get(name, np.full(lines, np.nan)) for name in ("year", "month", "day"))
    year = np.where(year < 100, year + 2000, year)
    bad = ~((year > 1969) & (year < 10_000) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31))
    shifted = year - (month <= 2)
    days = 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400
    days += (153 * ((month + 9) % 12) + 2) // 5 + day - 1 - 719_468
    clock = sum(scale * parts[name] for name, scale in (("h", 3600), ("min", 60), ("s", 1)) if name in parts)
    return np.where(bad, np.nan, days * 86_400.0 + clock)


def joined_records(blocks: Sequence[Block], kinds: Sequence[int], numbers: np.ndarray) -> Records:
    """Return blocks of records as one, in file order. `numbers` are those of the lines that `order` counts."""
    order = np.concatenate([np.zeros(0, np.int64), *(block.order for block in blocks)])
    rule = np.repeat(np.array([block.rule for block in blocks], np.int64), [len(block.order) for block in blocks])
    columns: dict[str, np.ndarray] = {}
    at = 0
    for block in blocks:
        for name, values in block.columns.items():
            columns.setdefault(name, np.full(len(order), np.nan))[at : at + len(values)] = values
        at += len(block.order)
    by_order = np.argsort(order, kind="stable")
    order, rule = order[by_order], rule[by_order]
    kind = np.asarray([*kinds, TRAIN], np.int8)[rule]
    columns = {name: values[by_order] for name, values in columns.items()}
    for values in columns.values():
        _fill(values, kind == SETS)
        _complete(values, kind)
    train = kind == TRAIN
    whole = Records(
        line=numbers[order],
        kind=kind,
        rule=rule,
        order=order,
        columns=columns,
        losses=int((train & has_loss(columns, len(order))).sum()),
        evals=int((~np.isnan(columns["eval_loss"][kind < MORE])).sum()) if "eval_loss" in columns else 0,
        train=int(train.sum()),
    )
    return whole.take(kind < MORE)


def _fill(values: np.ndarray, sets: np.ndarray) -> None:
    """Give each record without a value of its own the last one that a SETS record before it states."""
    own = sets & ~np.isnan(values)
    source = np.maximum.accumulate(np.where(own, np.arange(len(own)), -1))
    lacking = ~sets & np.isnan(values) & (source >= 0)
    values[lacking] = values[source[lacking]]


def _complete(values: np.ndarray, kind: np.ndarray) -> None:
    """Put the values of MORE records into the record before them. If two print the same column, the first counts."""
    owner = np.maximum.accumulate(np.where(kind < MORE, np.arange(len(kind)), -1))
    source = np.flatnonzero((kind == MORE) & (owner >= 0) & ~np.isnan(values))
    targets, first = np.unique(owner[source], return_index=True)
    free = np.isnan(values[targets])
    values[targets[free]] = values[source[first[free]]]


def has_loss(columns: dict[str, np.ndarray], rows: int) -> np.ndarray:
    """Return which records count as having a training loss: one was printed, even NaN, or all steps were skipped."""
    printed = np.zeros(rows, bool)
    if "loss_is_nan" in columns:
        printed |= ~np.isnan(columns["loss_is_nan"])
    if "skipped" in columns:
        printed |= columns["skipped"] > 0
    return printed
