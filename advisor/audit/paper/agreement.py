"""One quantity of several subjects, stated in two places: where most agree, what does not is an error."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from advisor.audit.paper.document import Document
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.records import Record, plain_name, records
from advisor.audit.paper.stated import Stated, size_in
from advisor.audit.quantity import Quantity

_ROLES = ("duration", "usd", "gpu_hours", "tokens", "parameters", "memory", "step_time", "rate", "mfu")
# lists that start from something else than the others do
_ASSUMED = re.compile(
    r"\b(?:revised|realistic|optimistic|conservative|pessimistic|scenarios?|options?|alternative|extended|updated"
    r"|(?:best|worst) case)\b",
    re.IGNORECASE,
)
_LEAST_SHARED, _LEAST_AGREEING = 3, 2
_FAR = 1.25  # times apart: less is rounding, or another way to count


def drafts(document: Document) -> Iterator[Drafted]:
    """Subjects on which two lists that otherwise agree contradict each other."""
    known = [r for r in records(document) if not _ASSUMED.search(" ".join(r.headings[-2:]))]
    lists = _lists(document, known)
    for one, other in combinations(lists, 2):
        if one[0] != other[0]:
            continue
        shared = [name for name in one[1] if name in other[1]]
        apart = [name for name in shared if _apart(one[1][name].quantity, other[1][name].quantity)]
        if len(shared) < _LEAST_SHARED or not apart or len(shared) - len(apart) < max(_LEAST_AGREEING, len(apart) * 2):
            continue
        for name in apart:
            pair = sorted((one[1][name], other[1][name]), key=lambda stated: stated.line)
            text = f"{name}: {' and '.join(f'{s.quantity.text} (line {s.line})' for s in pair)}"
            values = [stated.quantity.text for stated in pair]
            for stated in pair:
                yield Drafted(kind="agreement", line=stated.line, text=shortened(text), says={"values": values})


def _apart(one: Quantity, other: Quantity) -> bool:
    if one.dimension != other.dimension or one.low <= 0 or other.low <= 0:
        return False
    return one.least > _FAR * other.most or other.least > _FAR * one.most


def _lists(document: Document, known: Sequence[Record]) -> list[tuple[str, Mapping[str, Stated]]]:
    """Every column of a table, and every list of a section, by quantity: the subject's size or name to its number."""
    grouped: dict[tuple[str, object], dict[str, Stated]] = defaultdict(dict)
    tables = {row.line: number for number, grid in enumerate(document.grids) for row in grid.rows}
    for record in known:
        if record.kind == "row" and record.line in tables:
            for role in _ROLES:
                for stated in record.facts.get(role, [])[:1]:
                    if stated.label != "name":
                        grouped[role, (tables[record.line], stated.label)].setdefault(_name(record.subject), stated)
        elif record.kind == "section":
            for role in _ROLES:
                for stated in record.facts.get(role, []):
                    if stated.label not in ("", "name") and stated.label != record.subject:
                        grouped[role, ("section", record.section)].setdefault(_name(stated.label), stated)
    return [(key[0], found) for key, found in grouped.items() if len(found) >= _LEAST_SHARED]


def _name(subject: str) -> str:
    """A subject's size where it has one, else its name."""
    size = size_in(subject)
    return size.text if size else plain_name(subject)
