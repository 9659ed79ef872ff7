"""What is stated of a quantity around a record, nearest first: by itself, its subject, its section, the report.

A number of another subject, a model or run that is named, is none of a record's, however near it stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.records import Record, same_subject
from advisor.auditing.paper.stated import Stated
from advisor.auditing.paper.subjects import same

COMMON = ("gpus", "sequence", "usd_per_hour")  # a report that states one of them once means it throughout
MOST_VALUES = 3  # of one quantity of one subject: more are a list of different things
_PARTS = 2  # levels of headings: the title, and the parts of a report
# what a sentence may take from those before it
_TOLD = ("step_time", "work", "sustained", "gpu_hours", "usd_per_hour", "rate", "step_tokens")
_MOST_TOLD = 2


class Scope(IntEnum):
    """How near to a record a number is stated."""

    OWN = 0
    SUBJECT = 1
    SECTION = 2
    REPORT = 3


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is stated of a quantity; empty where nothing is, or too much to be of one thing."""

    stated: tuple[Stated, ...] = ()
    scope: Scope = Scope.REPORT

    def __bool__(self) -> bool:
        return bool(self.stated)


def stated_of(role: str, record: Record, known: Sequence[Record], told_too: str = "") -> Found:
    """What is stated of a quantity, nearest first: the record's own, its subject's, its section's, the report's."""
    if own := record.facts.get(role):
        return Found(stated=distinct(whole(own)), scope=Scope.OWN)
    named = [r for r in known if r.kind != "sentence" and same_subject(r.key, record.key) and _one_part(r, record)]
    if found := distinct([stated for r in named for stated in r.facts.get(role, [])]):
        return Found(stated=found, scope=Scope.SUBJECT)
    if role in COMMON or record.kind == "sentence":  # a row's neighbours are other subjects'
        told = record.kind == "sentence" and role in (*_TOLD, told_too)
        near = [
            r for r in known if r.section == record.section and (r.kind == "section" or (told and r.kind == "sentence"))
        ]
        near = [r for r in near if same(r.about, record.about)] if record.about else near
        beside = [stated for r in near for stated in r.facts.get(role, []) if not told or stated.line <= record.line]
        if found := distinct(beside):
            alone = len(found) <= (_MOST_TOLD if told else 1) and _of_it(found, role, record, near)
            return Found(stated=found if alone else (), scope=Scope.SECTION)
    everywhere = distinct([s for r in known for s in r.facts.get(role, [])]) if role in COMMON else ()
    alone = len(everywhere) == 1 and _of_it(everywhere, role, record, known)
    return Found(stated=everywhere if alone else (), scope=Scope.REPORT)


def _of_it(found: Sequence[Stated], role: str, record: Record, among: Sequence[Record]) -> bool:
    """Whether each of the numbers is stated of a record's own subject, wherever else it is stated too."""
    return all(
        any(
            s.quantity.text.lstrip("~") == stated.quantity.text.lstrip("~") and same(r.about, record.about)
            for r in among
            for s in r.facts.get(role, [])
        )
        for stated in found
    )


def _one_part(one: Record, other: Record) -> bool:
    """Whether two records of one name stand in one part of a report: a card's name is used in each of them."""
    if not (mentions(one.subject) and mentions(other.subject)):
        return True
    mine, its = ([h for h in r.headings if h != r.subject][:_PARTS] for r in (one, other))
    return mine[: len(its)] == its[: len(mine)]


def whole(stated: Sequence[Stated]) -> Sequence[Stated]:
    """Of parts and their total, the total."""
    return [s for s in stated if re.match(r"\W*(?:grand |overall )?total\b", s.label, re.IGNORECASE)] or stated


def distinct(stated: Sequence[Stated]) -> tuple[Stated, ...]:
    """One of each value, none where there are too many to be of one thing."""
    unique = {s.quantity.text.lstrip("~"): s for s in reversed(stated)}
    return tuple(reversed(unique.values())) if len(unique) <= MOST_VALUES else ()
