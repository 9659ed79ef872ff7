"""Finds the format of a log. Records are the best evidence, banners the second-best."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from advisor.readers.line_format import EVAL, TRAIN, LineFormat
from advisor.readers.run_table import Event
from advisor.readers.yaml_rows import regex

SURE_RECORDS = 3  # records of one format; fewer may be a coincidence
_MOST_DISTINCT = 1 << 14  # lines of different shapes that are examined
DIGITS = b"0123456789."
_LONGEST = 1 << 13  # bytes of a line; embedded JSON can be very long


@functools.lru_cache(maxsize=2)
def distinct_lines(head: bytes) -> tuple[tuple[bytes, int], ...]:
    """Return one line of each shape in a sample, and how many lines have that shape."""
    seen: dict[bytes, list[int]] = {}
    shapes = head.translate(None, DIGITS).split(b"\n")
    lines = head.split(b"\n")
    for index, key in enumerate(shapes):
        known = seen.get(key)
        if known is not None:
            known[1] += 1
        elif len(seen) < _MOST_DISTINCT:
            seen[key] = [index, 1]
    return tuple((lines[index][:_LONGEST], count) for index, count in seen.values())


@functools.lru_cache(maxsize=2)
def _prose(head: bytes) -> bytes:
    return b"\n".join(line for line, _ in distinct_lines(head))


def line_score(format: LineFormat, head: bytes, path: Path) -> float:
    """Return how surely (0…1) a sample of a log has a line format."""
    lines = distinct_lines(head)
    prose = _prose(head)
    if format.refuse and format.refuse in prose:
        return 0.0
    score = 0.0
    for sign in format.signs:
        if sign.weight > score and (sign.compiled.search(prose) or (sign.path and sign.compiled.search(_name(path)))):
            score = sign.weight
    return max(score, _record_score(format, lines, prose))


def _record_score(format: LineFormat, lines: tuple[tuple[bytes, int], ...], prose: bytes) -> float:
    found = {TRAIN: 0, EVAL: 0}
    weight = 0.0
    rows = [row for row in format.rows if row.kind in found and row.needs in prose]
    for line, count in lines if rows else ():
        for row in rows:
            if row.find(line) is not None:
                found[row.kind] += count
                weight = max(weight, row.weight)
                break
    records = found[TRAIN]
    evidence = 0.95 if records >= SURE_RECORDS else 0.9 if records else 0.7 if found[EVAL] else 0.0
    return evidence * weight * format.weight


def _name(path: Path) -> bytes:
    """Return the last parts of a path, because only a folder's name may tell whose error messages these are."""
    return "/".join(path.parts[-3:]).encode("utf-8", "replace")


# For a log that ends before its first record: was a training prepared or begun, and what were the last such words? This
# is used only if no record was found. It takes one strong sign (parameters counted, a training begun) and other signs,
# because pages about trainings, code and settings contain such words too.

KIND = "prepared"
FEWEST_OTHERS = 2  # weaker signs beside a strong one
FEWEST_OTHER_OF_ENDED = 1
CODE = 0.1  # share of lines; more of them make a program's source, not its output
NO_LOGS = frozenset((".md", ".rst", ".tex", ".html", ".htm", ".xml", ".json", ".jsonl", ".csv", ".tsv", ".ipynb"))
_OTHERS = tuple(
    re.compile(rb"(?i)" + pattern)
    for pattern in (
        rb"\bepochs?\b",
        rb"\boptimi[sz]er\b|\blearning[ _]rate\b",
        rb"\bbatch(?:es|[ _]size)?\b|\bdata ?load\w*",
        rb"\bdatasets?\b|\bx_train\b|\btrain(?:ing)? (?:set|data|images|samples|split)\b",
        rb"\bcuda\b|\bgpus?\b|\bdevice\b",
        rb"\bpytorch\b|\btorch\b|\btensorflow\b|\bkeras\b|\bwandb\b|\bw&b\b",
        rb"\bcheckpoints?\b|\bweights\b|\bpretrained\b",
        rb"\btrain(?:ing)?\W{1,3}\d{1,3}%\|",
        rb"\b(?:model|layer|conv\w*|linear|dense)\b",
    )
)
_OVER = re.compile(rb"(?i)\bfinish(?:ed)? train\w*")


def tells_of_training(head: bytes, path: Path, *, over: bool = False) -> bool:
    """Return whether a sample without records is from a program that was to train; `over`: it says it has."""
    if path.suffix.lower() in NO_LOGS or not (over or regex("training_prepared").search(head)):
        return False
    lines = sum(1 for line in head.split(b"\n") if line.strip())
    if len(regex("program_text").findall(head)) > max(1.0, CODE * lines):  # a warning quotes one line
        return False
    signs = sum(sign.search(head) is not None for sign in _OTHERS)
    return _OVER.search(head) is not None or signs >= (FEWEST_OTHER_OF_ENDED if over else FEWEST_OTHERS)


def preparations(head: bytes, path: Path) -> list[Event]:
    """Return the last words of a training that was prepared or begun, as an event; empty if there are none."""
    if not tells_of_training(head, path):
        return []
    said = [match for match in regex("training_prepared").finditer(head)][-1]
    start, end = head.rfind(b"\n", 0, said.start()) + 1, head.find(b"\n", said.end())
    line = head[start : end if end >= 0 else len(head)].strip()[:200]
    return [Event(kind=KIND, text=line.decode("utf-8", "replace"))]
