"""Reads many lines of one shape at once.

Lines that differ only in digits have the same *shape*. The regular expressions see one line of each shape. What they
find becomes a plan (which number of the line goes to which column), and numpy converts all other lines of the shape at
once. A plan that is not certain says so, and its lines go through the expressions one by one. A line with a record's
letters and count of numbers, but in other places, would be misread; no log has shown one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.readers.line_format import DATE_PARTS, INVERSE, Found, Rule, unit_factor

DIGITS = b"0123456789."
NOT_A_RECORD = -1
LONGEST_RECORD = 1 << 14  # bytes; expressions that backtrack must not see whole documents on one line
_HYPHEN = re.compile(rb"-(?<=\d-)(?=\d)")  # the sign comes first because it is searched
_DIGIT = re.compile(rb"\d")
_EXPONENTS = ((b"e-", b"\x01\x02"), (b"e+", b"\x01\x03"), (b"E-", b"\x01\x02"), (b"E+", b"\x01\x03"))


@dataclass(frozen=True, kw_only=True)
class Take:
    """One number of a line and what becomes of it."""

    column: str
    part: str  # part of a time stamp, INVERSE, or empty
    multiply: float
    divide: float
    token: int = -1  # index among the line's numbers; -1 if every line of the shape has `value`
    value: float = math.nan


@dataclass(frozen=True, kw_only=True)
class LinePlan:
    """How lines of one shape are read: `rule` indexes the format's rows, `numbers` is how many each line has."""

    rule: int
    takes: tuple[Take, ...] = ()
    numbers: int = 0  # 0: line by line
    table: bytes = b""
    delete: bytes = b""
    exponents: tuple[tuple[bytes, bytes], ...] = ()  # how they are written, and the bytes that the table makes of them
    hyphens: bool = False  # hyphens join some numbers (2025-10-07) while others have a sign
    junk: tuple[bytes, ...] = ()  # signs and points that stand alone (--, ...)
    tail: bool = False  # the text after the record may have its own meaning


def shape(text: bytes) -> bytes:
    """Return the text without digits and points; lines that differ only in their numbers give the same."""
    return text.translate(None, DIGITS)


def make_plan(line: bytes, rules: Sequence[Rule]) -> LinePlan:
    """Read one line by the first rule that knows it, and generalise the result to its shape."""
    for index, rule in enumerate(rules if len(line) <= LONGEST_RECORD else ()):
        seen = rule.find(line)
        if seen is not None:
            found, end = seen
            return _generalise(line, index, rule, found, any(97 <= c <= 122 for c in line[end:].lower()))
    return LinePlan(rule=NOT_A_RECORD)


def takes_of(line: bytes, rule: Rule) -> list[Take] | None:
    """Return the numbers of one line as takes with values. This is the slow way, and shows a plan its units."""
    seen = rule.find(line) if len(line) <= LONGEST_RECORD else None
    return None if seen is None else [take for take, _ in _read(line, rule, seen[0])]


def bulk(text: bytes, plan: LinePlan, lines: int, long_log: bool = False) -> np.ndarray | None:
    """Return the numbers of `lines` lines of one shape, (lines, plan.numbers); None if they do not come out even.

    For a long log, importing pyarrow pays off, because it converts twice as fast as numpy.
    """
    spaced = _numbers_only(text, plan)
    flat = _arrow_numbers(spaced) if long_log else _numpy_numbers(spaced)
    if flat is None:
        return None
    return flat.reshape(lines, plan.numbers) if flat.size == lines * plan.numbers else None


def _numpy_numbers(spaced: bytes) -> np.ndarray | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy only warns about text that is not a number
        try:
            return np.fromstring(spaced, dtype=np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None


def _arrow_numbers(spaced: bytes) -> np.ndarray | None:
    """Return numbers between spaces, cast from an Arrow array of strings that uses the text's own bytes."""
    import pyarrow

    inside = np.frombuffer(b" " + spaced + b" ", np.uint8) != 32
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    offsets = np.zeros(len(edges) // 2 + 1, np.int32)
    np.cumsum(edges[1::2] - edges[::2], out=offsets[1:])
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(spaced.translate(None, b" "))]
    try:
        strings = pyarrow.Array.from_buffers(pyarrow.string(), len(offsets) - 1, buffers)
        return strings.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    except pyarrow.ArrowInvalid:
        return None


def to_columns(takes: Sequence[Take], numbers: np.ndarray | None, lines: int) -> dict[str, np.ndarray]:
    """Return columns of converted values, one per line. Groups of a column add up; date parts become Unix seconds."""
    columns: dict[str, np.ndarray] = {}
    dates: dict[str, np.ndarray] = {}
    for take in takes:
        raw = np.full(lines, take.value) if take.token < 0 or numbers is None else numbers[:, take.token]
        if take.part in DATE_PARTS:
            dates[take.part] = np.abs(raw)
            continue
        value = _convert(raw, take)
        columns[take.column] = columns[take.column] + value if take.column in columns else value
        if take.column == "loss":
            columns["loss_is_nan"] = np.isnan(value) + 2.0 * np.isinf(value)
    if len(dates) >= 3:
        columns["unix_seconds"] = unix_seconds(dates, lines)
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


def _convert(raw: np.ndarray, take: Take) -> np.ndarray:
    with np.errstate(all="ignore"):
        if take.part == INVERSE:
            return np.where(raw > 0, take.divide / raw, np.nan)
        value = raw * take.multiply if take.multiply != 1 else raw
        return value / take.divide if take.divide != 1 else value + 0.0  # a copy; views would keep the chunk's numbers


def _read(line: bytes, rule: Rule, found: Sequence[Found]) -> list[tuple[Take, Found]]:
    units = {f.target.partition("__")[0]: f for f in found if f.target.endswith("__unit")}
    out = []
    for f in found:
        column, _, unit = f.target.partition("__")
        if unit == "unit":
            continue
        if not unit and column in units:
            unit = line[units[column].start : units[column].end].decode("utf-8", "replace")
        date = column == "unix_seconds" and unit in DATE_PARTS
        factor = (1.0, 1.0) if date or unit == INVERSE or not unit else unit_factor(unit, column)
        part = unit if date or unit == INVERSE else ""
        value = number(line[f.start : f.end], rule.comma)
        out.append((Take(column=column, part=part, multiply=factor[0], divide=factor[1], value=value), f))
    return out


def number(text: bytes, comma: bytes = b"") -> float:
    """Return a printed number, NaN for other text. Underscores are refused, although Python's float takes them."""
    try:
        return float(text.replace(b",", comma)) if b"_" not in text else math.nan
    except ValueError:
        return math.nan


def _generalise(line: bytes, index: int, rule: Rule, found: Sequence[Found], tail: bool) -> LinePlan:
    read = _read(line, rule, found)
    texts = [line[f.start : f.end] for _, f in read]
    signs = any(t[:1] == b"-" for t in texts)
    exponents = tuple(pair for pair in _EXPONENTS if any(pair[0] in t for t in texts))
    kept = b"0123456789." + (b"-" if signs else b"") + (b"," if rule.comma else b"")
    table = bytearray(c if c in kept else 32 for c in range(256))
    if rule.comma:
        table[ord(",")] = rule.comma[0]
    if exponents:
        table[1], table[2], table[3] = b"e-+"
    slow = LinePlan(rule=index, takes=tuple(take for take, _ in read), tail=tail)
    plan = LinePlan(
        rule=index, table=bytes(table), delete=b"" if rule.comma else b",", exponents=exponents, tail=tail, numbers=1
    )
    return _with_tokens(line, plan, read) or slow


def _with_tokens(line: bytes, plan: LinePlan, read: Sequence[tuple[Take, Found]]) -> LinePlan | None:
    """Return the plan with each take's place among the line's numbers; None if any place is in doubt."""
    plan, tokens = _without_junk(line, plan)
    if not tokens or any(math.isnan(number(t)) for t in tokens):
        return None
    takes = []
    for take, f in read:
        text = line[f.start : f.end]
        token = -1
        if text.lower().lstrip(b"+-") != b"nan":
            token = len(_numbers_only(line[: f.start], plan).split())
            if token >= len(tokens) or tokens[token] != _numbers_only(text, plan).strip() or math.isnan(take.value):
                return None
        takes.append(Take(column=take.column, part=take.part, multiply=take.multiply, divide=take.divide, token=token))
    return dataclasses.replace(plan, takes=tuple(takes), numbers=len(tokens))


def _without_junk(line: bytes, plan: LinePlan) -> tuple[LinePlan, list[bytes]]:
    """Return the plan that leaves only numbers of a line, as far as possible, and the tokens that remain."""
    if _HYPHEN.search(line) and b"-" in _numbers_only(line, plan):
        plan = dataclasses.replace(plan, hyphens=True)
    junk = {token for token in _numbers_only(line, plan).split() if not _DIGIT.search(token)}
    plan = dataclasses.replace(plan, junk=tuple(sorted(junk)))
    return plan, _numbers_only(line, plan).split()


def _numbers_only(text: bytes, plan: LinePlan) -> bytes:
    for printed, kept in plan.exponents:
        text = text.replace(printed, kept)
    if plan.hyphens:
        text = _HYPHEN.sub(b" ", text)
    text = text.translate(plan.table, plan.delete)
    if plan.junk:
        text = b" " + text + b" "
        for token in plan.junk * 2:  # neighbours share a space
            text = text.replace(b" " + token + b" ", b"  ")
    return text
