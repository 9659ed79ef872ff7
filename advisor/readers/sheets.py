"""Sheets with one name and number per line (`|  AverageEpRet |  21.3 |`, `Mean reward: 4.10`), printed repeatedly.

OpenAI's loggers, Spinning Up, RSL-RL and similar programs print one after each round. A sheet ends where a name appears
again, whatever rules or blank lines stand between its lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from advisor.readers.chunks import read_lines
from advisor.readers.events import events_in
from advisor.readers.gather import rows_of
from advisor.readers.names import MAX_NAME, column_of
from advisor.readers.run_table import RunTable
from advisor.readers.yaml_rows import regex

NAME = "sheets"
FEWEST = 3  # sheets in a log, and lines in a sheet
_LIKE = 0.29  # score, above the highest for single lines of an unknown format
_SHOWN = 4000  # lines that are examined for the score
_ALIKE = 0.5  # share of a log's sheets that must hold a name
_RULE = re.compile(rb"\s*[-=#*_\xe2\x94\x80|+]{10,}\s*")
_ANSI = re.compile(rb"\x1b\[[\d;]*m")
_MEASURES = frozenset(("loss", "eval_loss", "reward", "eval_reward", "accuracy", "eval_accuracy"))
_COUNTS = frozenset(("step", "epoch", "tokens"))
_OF_AGENTS = {"loss_unit": "policy or value of an agent"}


def score(head: bytes, path: Path) -> float:
    """Return the score: high if repeated sheets have a counter and a quantity that training measures."""
    lines = head.split(b"\n")[:_SHOWN]
    if sum(_RULE.fullmatch(line) is not None for line in lines) < FEWEST:
        return 0.0
    sheets = [sheet for _, sheet in _sheets(enumerate(lines, 1))]
    names = Counter(name for sheet in sheets for name in sheet)
    common = {name for name, count in names.items() if count >= max(FEWEST, _ALIKE * len(sheets))}
    columns = {named.column for name in common if (named := column_of(name)) is not None}
    return _LIKE if len(common) >= FEWEST and columns & _MEASURES and columns & _COUNTS else 0.0


def read(path: Path) -> RunTable:
    """Read each sheet as a record. Raises AdvisorError if the file cannot be opened."""
    lines = read_lines(path)
    numbered = zip(lines.numbers.tolist(), lines.each, strict=True)
    sheets = [(line, sheet) for line, sheet in _sheets(numbered) if len(sheet) >= FEWEST]
    gathered = rows_of((sheet for _, sheet in sheets), lines=[line for line, _ in sheets])
    plays = {"reward", "eval_reward"} & gathered.provenance.keys()
    return gathered.table(path, NAME, facts=_OF_AGENTS if plays else {}, events=events_in(lines), notes=lines.notes)


def _sheets(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each sheet's names and numbers, up to a repeated name, with the number of its first line."""
    sheet: dict[str, str] = {}
    began = 0
    for number, line in lines:
        pair = _pair(line)
        if pair is None:
            continue
        if pair[0] in sheet:
            yield began, sheet
            sheet = {}
        began = began if sheet else number
        sheet[pair[0]] = pair[1]
    if sheet:
        yield began, sheet


def _pair(line: bytes) -> tuple[str, str] | None:
    """Return the name and number of a line that holds nothing else. A unit is appended to the name."""
    if len(line) > 2 * MAX_NAME or (match := regex("sheet_pair").fullmatch(_ANSI.sub(b"", line))) is None:
        return None
    name = match["name"].decode().strip()
    if match["total"]:
        return "step", match["value"].decode()  # `Learning iteration 3/1500` is the step of the sheet
    return f"{name} ({match['unit'].decode()})" if match["unit"] else name, match["value"].decode()
