"""Finds a line's numbers and their names: `loss   8.2341`, `Epoch [3/10]`, `2.1 it/s`, `45/100`.

A number is named by the words before it in its own field or, failing that, by a unit of rate after it. Two numbers with
a slash between them and no words are a counter, as in a progress bar. Any other number has no name. The forms are the
rows of `slots.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from advisor.readers.line_format import LOSS
from advisor.readers.yaml_rows import filled, regex, rows_of_file

LONGEST = 4096  # bytes; a longer line is a dumped configuration and not a record
COUNTED = "counted"  # the name of `45/100`
GPU = "gpu"  # the name of `78C`
ALONE = "step time"  # the name of a line's only milliseconds if they have no other name

# drawn frames, bars and bullets separate fields, and full-width punctuation is punctuation; replacements have the same
# length, because positions must stay those of the line
_DRAWN = re.compile(rb"\xe2(?:[\x94-\x97][\x80-\xbf]|\x80\xa2|\x9a[\x80-\xbf]|\x9c[\x80-\xbf])")
_WIDE = (
    (b"\xef\xbc\x9a", b":  "),
    (b"\xef\xbc\x9d", b"=  "),
    (b"\xe2\x86\x92", b"|  "),
    *((mark, b",  ") for mark in (b"\xef\xbc\x8c", b"\xe3\x80\x81", b"\xe3\x80\x82")),
    *((mark, b"(  ") for mark in (b"\xef\xbc\x88", b"\xe3\x80\x90")),
    *((mark, b")  ") for mark in (b"\xef\xbc\x89", b"\xe3\x80\x91")),
    (b"\xc2\xa0", b"  "),
)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One number of a line: its name in English words, its place, and the unit and total after it."""

    name: str
    start: int
    end: int
    word: bytes = b""  # the last word of the name, as printed
    unit: str = ""
    total: tuple[int, int] | None = None
    sure: bool = True  # a sign, and not only spaces, stands between the name and the number
    held_out: bool = False  # validation is mentioned before it
    parts: tuple[tuple[str, int, int], ...] = ()  # parts of a clock: unit, place


def plain(line: bytes) -> bytes:
    """Return the line with ASCII for frames, bars and full-width punctuation; all positions stay the same."""
    if line.isascii():
        return line
    line = _DRAWN.sub(b"|  ", line)
    for mark, sign in _WIDE:
        line = line.replace(mark, sign)
    return line


def slots(line: bytes) -> list[Slot]:
    """Return the named numbers of one line, from left to right."""
    if len(line) > LONGEST:
        return []
    # the number of a source line counts nothing
    text = regex("source_place").sub(lambda match: b" " * len(match[0]), plain(line))
    pattern, rows = _forms()
    found: list[Slot] = []
    for match in pattern.finditer(text):
        row = rows[match.lastgroup or ""]
        reader = row.get("reader")
        if reader == "named":
            found.append(_named(match, text))
        elif reader == "listed":
            found += _listed(match, text)
        elif reader == "next_of_gpu" and not (found and found[-1].name[:3].lower() == GPU):
            continue
        else:
            found += (_slot(match, one) for one in row["slots"])
    # one of several unnamed milliseconds may mean anything
    alone = [slot for slot in found if slot.name == ALONE and not slot.word]
    return found if len(alone) < 2 else [slot for slot in found if slot not in alone]


@cache
def _forms() -> tuple[re.Pattern[bytes], dict[str, Mapping[str, Any]]]:
    """Return the pattern of all rows, and the row that each of its groups belongs to."""
    table = rows_of_file("slots")
    parts = {"LOSS": LOSS.decode(), **table["parts"]}
    patterns = [filled(row["pattern"], parts) for row in table["rows"]]
    # rows themselves are not groups, because that doubles the time
    rows = {
        group: row
        for row, pattern in zip(table["rows"], patterns, strict=True)
        for group in re.compile(pattern.encode()).groupindex
    }
    return re.compile("|".join(patterns).encode()), rows


def stamp(line: bytes) -> list[tuple[str, int, int]]:
    """Return the parts of a date and time before the record (unit, place); empty if there is none."""
    match = regex("date_and_time").match(line)
    return [] if match is None else [(part, *match.span(part)) for part in match.re.groupindex]


def _slot(match: re.Match[bytes], row: Mapping[str, Any]) -> Slot:
    """Return one number of a match, as a row of the table describes it."""
    clock = tuple((unit, *match.span(group)) for unit, group in row.get("parts", {}).items() if match[group])
    start, end = (clock[0][1], clock[-1][2]) if clock else match.span(row["at"])
    named = row["name"] if "name" in row else match[row["named_by"]].decode("utf-8", "replace").lower()
    units = [match[group].decode("utf-8", "replace") for group in row.get("unit_by", ()) if match[group]]
    total = row.get("total")
    return Slot(
        name=" ".join(named.split()),
        start=start,
        end=end,
        unit=row.get("unit") or " ".join(units),
        total=None if total is None or match[total] is None else match.span(total),
        sure=row.get("sure", True),
        parts=clock,
    )


def _named(match: re.Match[bytes], text: bytes) -> Slot:
    unit = (match["count"] or match["unit"] or match["amount"] or b"").decode("utf-8", "replace")
    key = match["key"].decode("utf-8", "replace")
    inside = (match["in"] or b"").decode("utf-8", "replace")
    return Slot(
        name=" ".join(key.split()) + inside,
        start=match.start("value"),
        end=match.end("value"),
        word=match["key"].split()[-1],
        unit=unit,
        total=None if match["total"] is None else match.span("total"),
        sure=bool(match["sep"].strip()),
        held_out=_held_out(text, match.start(), match.end("key")),
    )


def _listed(match: re.Match[bytes], text: bytes) -> list[Slot]:
    """Return the numbers of `[loss, acc]: [2.5, 0.7]`; none if they are not as many as the names."""
    names, values = (
        list(re.compile(rb"[^,\s](?:[^,]*[^,\s])?").finditer(text, *match.span(part))) for part in ("names", "values")
    )
    if len(names) != len(values):
        return []
    return [
        Slot(
            name=name[0].decode("utf-8", "replace"),
            start=value.start(),
            end=value.end(),
            word=name[0].split()[-1],
            held_out=_held_out(text, match.start(), name.end()),
        )
        for name, value in zip(names, values, strict=True)
    ]


def _held_out(text: bytes, start: int, end: int) -> bool:
    """Return whether validation is the last phase that a name, or the words before it, mention."""
    phases = list(regex("phase_word").finditer(text, max(0, start - 80), end))
    return bool(phases) and phases[-1]["held"] is not None
