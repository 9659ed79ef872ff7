"""Reads a Markdown report about a run: its step table as rows, its key-value tables and lines as facts.

A report is a claim: it is read as written and judged elsewhere. Tables of *expected* values are not rows, nor are log
lines quoted as examples. If a report states several values of one fact, none is used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.readers.cells import number_with_unit
from advisor.readers.chunks import decode, read_text
from advisor.readers.config_names import name_of, value_of
from advisor.readers.csv_table import recognised
from advisor.readers.gather import Gathered, gather
from advisor.readers.markdown_text import MarkdownTable, Pair, parts, repaired
from advisor.readers.names import SECONDS, scaled
from advisor.readers.run_table import RunTable, Status

NAME = "markdown"
_PRICE = re.compile(r"\$\s*(\d+(?:\.\d+)?)\s*(?:/|per )\s*(?:hr|hour|h)\b", re.IGNORECASE)
_CARDS = re.compile(r"^\s*(\d{1,5})\s*[x×]\s+(.*)")
_DURATIONS = ("wall_time", "training_time", "total_time", "duration", "wall_clock")
_STATISTICS = ("max_grad_norm",)  # a setting if written as code, but "Max grad norm" is a measurement


def score(head: bytes, path: Path) -> float:
    """Return the score: headings, tables, bold names and fences show a document, whatever log lines it quotes."""
    text = decode(head)
    heading = re.search(r"^#{1,3} \S", text, re.MULTILINE)
    signs = [
        re.match(r"\s*# \S", text) is not None,
        len(re.findall(r"^#{2,4} \S", text, re.MULTILINE)) >= 2,
        re.search(r"^[ \t]*\|?[ \t]*:?-{3,}:?[ \t]*\|[ :|-]*$", text, re.MULTILINE) is not None,
        len(re.findall(r"^[ \t]*(?:[-*] )?\*\*[^*\n]+\*\*", text, re.MULTILINE)) >= 2,
        text.count("```") >= 2,
        path.suffix.lower() in (".md", ".markdown"),
    ]
    if heading is None or sum(signs) < 3:
        return 0.0
    return 0.96 if sum(signs) >= 4 else 0.7


def read(path: Path) -> RunTable:
    """Read a report as a RunTable, without rows if it has no step table. Raises AdvisorError if it cannot be read."""
    found = list(parts(repaired(read_text(path))))
    tables = [part for part in found if isinstance(part, MarkdownTable)]
    facts, notes = _facts(found)
    table = _rows([table for table in tables if _is_steps(table)]).table(path, NAME, facts=facts, notes=notes)
    if table.rows and (table.status not in (Status.UNKNOWN, Status.INCOMPLETE) or "planned_steps" in table.facts):
        return table
    reason = "a report: somebody's word on how the run went; `advisor audit` judges what it claims"
    return dataclasses.replace(table, status=Status.UNKNOWN, status_reason=reason)


def _is_steps(table: MarkdownTable) -> bool:
    """Return whether a table holds measured steps: in most rows, a step and a loss are numbers."""
    found = recognised(table.header)
    loss = found.get("loss", found.get("eval_loss"))
    if "step" not in found or loss is None:
        return False
    at = [table.header.index(name) for name in (found["step"], loss)]
    measured = sum(all(number_with_unit(row[place]) is not None for place in at) for row in table.rows)
    return measured > len(table.rows) / 2


def _rows(tables: list[MarkdownTable]) -> Gathered:
    """Return the records of the longest step table, because shorter tables usually repeat part of it."""
    import pandas as pd

    main = max(tables, key=lambda table: (len(table.rows), len(table.header)), default=None)
    if main is None:
        return gather(pd.DataFrame())
    lines = range(main.line + 1, main.line + 1 + len(main.rows))
    frame = pd.DataFrame(main.rows, columns=list(main.header), index=lines, dtype=object)
    return gather(frame.loc[:, (frame.columns != "") & ~frame.columns.duplicated(keep="last")])


def _facts(found: Iterable[MarkdownTable | Pair]) -> tuple[dict[str, Any], list[str]]:
    """Return facts from key-value tables and lines. A key with several different values is ignored."""
    stated: dict[str, list[Any]] = {}
    for name, value in _pairs(found):
        for fact, read in _stated(name, value):
            stated.setdefault(fact, []).append(read)
    facts, notes = {}, []
    for fact, values in stated.items():
        distinct = list(dict.fromkeys(values))
        if len(distinct) == 1 or isinstance(distinct[0], str):
            facts[fact] = distinct[0]
        else:
            shown = ", ".join(f"{value:g}" for value in distinct[:4])
            notes.append(f"the report states {fact} as {shown}: none is taken")
    return facts, notes


def _pairs(found: Iterable[MarkdownTable | Pair]) -> Iterable[tuple[str, str]]:
    for part in found:
        if isinstance(part, Pair):
            yield part.name, part.value
        elif len(part.header) == 2 and not _is_steps(part):
            yield from ((name, value) for name, value in part.rows)


def _stated(name: str, value: str) -> Iterable[tuple[str, Any]]:
    """Yield the facts that one name and its value state."""
    price = _PRICE.search(value)
    if price:
        yield "usd_per_hour", float(price[1])
    plain = "_".join(re.findall(r"[a-z0-9]+", name.lower()))
    if plain in _DURATIONS:
        seconds = _in_unit(value, SECONDS)
        if seconds is not None:
            yield "total_seconds", seconds
        return
    named = ("gpu", "text", 0) if plain == "hardware" else name_of((name,))
    if named is None or (plain in _STATISTICS and " " in name.strip()):
        return
    value = re.split("→|->", value)[-1]  # "8 → 2": the value after the change
    fact, kind, _ = named
    if fact == "gpu":
        yield from _cards(value)
        return
    read = value_of(kind, _first_word(value) if kind in ("word", "precision") else value)
    if read is not None:
        yield fact, read
    lowest = re.search(r"\bmin:?\s*([\d.e+-]+)", value)
    if fact == "learning_rate" and lowest and (low := number_with_unit(lowest[1])):
        yield "min_learning_rate", low[0]


def _cards(value: str) -> Iterable[tuple[str, Any]]:
    match = _CARDS.match(value)
    if match:
        yield "world_size", int(match[1])
    text = (match[2] if match else value).strip("`* ")
    text = re.sub(r"\s*[(`].*$", "", text).strip()
    if re.search(r"[A-Za-z]", text):
        yield "gpu", text[:80]


def _first_word(value: str) -> str:
    return re.split(r"[\s(,;]", value.strip(), maxsplit=1)[0]


def _in_unit(value: str, units: Mapping[str, float]) -> float | None:
    found = number_with_unit(value)
    if found is None or found[1].lower() not in units:
        return None
    return float(scaled(np.array(found[0]), units[found[1].lower()]))
