"""Quantities of one subject that follow from each other: each one stated against what the others give.

What a record does not state itself is taken from others of the same subject, then of its section, then of the whole
report where that states it once. Every combination and every charitable reading (per card, of all cards) is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product

from advisor.audit.expression import gives
from advisor.audit.paper.document import Document
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.records import Record, Stated, records, same_subject

_MOST_READINGS = 24
_MOST_VALUES = 3  # of one quantity of one subject: more are a list of different things
COMMON = ("gpus", "sequence", "usd_per_hour")  # a report that states one of them once means it throughout


@dataclass(frozen=True, kw_only=True)
class Law:
    """A quantity and the expressions that may give it; an expression counts where all its quantities are stated."""

    target: str
    readings: tuple[str, ...]
    own: bool = False  # whether all of it must stand in one record

    def roles(self, reading: str) -> list[str]:
        """The quantities of one expression."""
        return re.findall(r"\{(\w+)\}", reading)


def _law(target: str, *readings: str) -> Law:
    return Law(target=target, readings=readings)


_LASTS = "{steps} * {step_time}"  # of the steps that a sentence names, at the speed that its section states
_LAST = re.compile(
    r"\b(?:steps?|run|iterations?|training)\b[^.;()]{0,60}(?:\b(?:is|takes?|took|lasts?|needs?|in)\b|≈|=)[^.;()]{0,30}\d"
)
_OF_A_RUN = ("steps", "step_tokens", "tokens", "step_time", "rate", "gpus", "usd_per_hour", "gpu_hours")
_IN_ALL = re.compile(
    r"\b(?:whole|entire|complete|full) (?:run|training)\b|\bin (?:total|all)\b|\btotal (?:time|cost|training)\b"
    r"|\b(?:training|run) (?:took|takes|lasted|cost|costs)\b",
    re.IGNORECASE,
)
_SHARDS = (2, 4, 8, 16, 32)  # cards that hold one copy of the model
_BATCH = "{micro_batch} * {accumulation}"
LAWS = (
    _law("rate", "{step_tokens} / {step_time}", "{step_tokens} / {step_time} / {gpus}"),
    _law("gpu_rate", "{step_tokens} / {step_time} / {gpus}"),
    Law(target="rate", readings=("{gpu_rate} * {gpus}",), own=True),
    _law(
        "step_tokens", "{batch} * {sequence}", "{batch} * {sequence} * {gpus}", "{batch} * {sequence} * {accumulation}"
    ),
    _law("batch", _BATCH, f"{_BATCH} * {{gpus}}", *(f"{_BATCH} * {{gpus}} / {k}" for k in _SHARDS)),
    _law("tokens", "{steps} * {step_tokens}", "{steps} * {step_tokens} * {gpus}"),
    _law("tokens", "{steps} * {batch} * {sequence}", "{steps} * {batch} * {sequence} * {gpus}"),
    _law("duration", _LASTS, f"{_LASTS} * {{epochs}}"),
    _law("duration", "{tokens} / {gpu_rate} / {header_gpus}", "{tokens} / {gpu_rate} / {gpus}"),
    _law("duration", "{tokens} / {rate}", "{tokens} / {rate} / {gpus}"),
    Law(target="duration", readings=("{optimal_tokens} / {tokens_per_hour}",), own=True),
    _law("tokens_per_hour", "{rate}", "{rate} * {gpus}"),
    _law("gpu_hours", "{duration} * {gpus} / 3600"),
    _law("usd", "{gpu_hours} * {usd_per_hour}", "{gpu_hours} * {usd_per_hour} / {gpus}"),
    _law("usd", "{duration} / 3600 * {usd_per_hour}", "{duration} / 3600 * {usd_per_hour} * {gpus}"),
    _law("mfu", "{achieved} / {peak}", "{achieved} / {peak} / {gpus}", "{achieved} / {peak} * {gpus}"),
    _law("ratio", "{tokens} / {parameters}"),
    _law("epochs", "{tokens} / {dataset}"),
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every stated quantity that others of its subject give too."""
    known = records(document)
    drafted = [*_all(known), *_all(_told(known))]
    blamed = _blamed(drafted, known)
    for claim, far in drafted:
        if far is None or id(far) not in blamed:
            yield claim
    yield from (claim for far in blamed.values() if (claim := _of_price(far, known)).says["readings"])


def _told(known: Sequence[Record]) -> list[Record]:
    """The one run that sentences of a report tell of, each quantity in another: what is stated once in all of it."""
    once = {role: _distinct([s for r in known for s in r.facts.get(role, [])]) for role in _OF_A_RUN}
    if len({s.quantity.text.lstrip("~") for r in known for s in r.facts.get("parameters", [])}) > 1:
        return []  # of several models
    facts = {role: [*found] for role, found in once.items() if len(found) == 1}
    for role in ("duration", "usd"):
        sums = [s for r in known for s in r.facts.get(role, []) if r.kind == "sentence" and _IN_ALL.search(r.words)]
        if len(found := _distinct(sums)) == 1:
            facts[role] = [*found]
    return [Record(subject="", section=-1, headings=(), kind="run", facts=facts)]


def _blamed(drafted: Sequence[tuple[Drafted, Stated | None]], known: Sequence[Record]) -> dict[int, Stated]:
    """Prices stated elsewhere with which most of the costs that rest on them do not come out: they are at fault."""
    by_price: dict[int, list[tuple[Drafted, Stated]]] = {}
    for claim, far in drafted:
        if far is not None:
            by_price.setdefault(id(far), []).append((claim, far))
    blamed = {}
    for key, claims in by_price.items():
        failing = [claim for claim, _ in claims if not gives(claim.says["value"], claim.says["readings"])]
        confirmed = 3 * len(failing) <= 2 * len(claims) and not _of_price(claims[0][1], known).says["readings"]
        if len(failing) >= 2 and 2 * len(failing) > len(claims) and not confirmed:
            blamed[key] = claims[0][1]
    return blamed


def _of_price(price: Stated, known: Sequence[Record]) -> Drafted:
    """The price as a claim: what the costs of the report come to an hour."""
    readings = [
        reading
        for r in known
        if r.kind == "row" and len(r.facts.get("usd", ())) == 1 and r.facts.get("duration")
        for usd, time in [(r.facts["usd"][0].quantity.text, r.facts["duration"][0].quantity.text)]
        for reading in (f"[{usd}] / ([{time}] / 3600)", f"[{usd}] / ([{time}] / 3600) / 8")
    ]
    says = {"value": f"~{price.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    return Drafted(
        kind="expression", line=price.line, text=shortened(f"{price.label}: {price.quantity.text}"), says=says
    )


def _all(known: Sequence[Record]) -> Iterator[tuple[Drafted, Stated | None]]:
    for record in known:
        for law in LAWS:
            targets: Sequence[Stated] = record.facts.get(law.target, [])
            targets = _whole(targets)
            values = len({t.quantity.text for t in targets})
            if not 1 <= values <= (1 if record.kind == "sentence" else _MOST_VALUES):
                continue
            yield from _claims(law, record, targets, known)


def _claims(
    law: Law, record: Record, targets: Sequence[Stated], known: Sequence[Record]
) -> Iterator[tuple[Drafted, Stated | None]]:
    readings: list[str] = []
    far: Stated | None = None
    for template in law.readings:
        found = [stated_of(role, record, known) for role in law.roles(template)]
        if not all(found) or min(one.scope for one in found) > Scope.SUBJECT:
            continue
        alone = record.kind == "sentence" and template != _LASTS
        named = found[0].scope == Scope.OWN and _LAST.search(record.words)
        if template == _LASTS and record.kind == "sentence" and not named:
            continue
        priced = dict(zip(law.roles(template), found, strict=True)).get("usd_per_hour")
        if priced and record.kind != "row" and priced.scope > Scope.OWN:
            continue  # a price elsewhere is of the rows of a table, not of any sum that is named
        if (law.own or alone) and any(one.scope > Scope.OWN or (alone and len(one.stated) > 1) for one in found):
            continue
        for role, one in zip(law.roles(template), found, strict=True):
            if role == "usd_per_hour" and one.scope >= Scope.SECTION:
                far = one.stated[0]
        for chosen in product(*(one.stated for one in found)):
            names = dict(zip(law.roles(template), (f"[{s.quantity.text}]" for s in chosen), strict=True))
            readings.append(template.format(**names))
    unique = list(dict.fromkeys(readings))
    if not unique or len(unique) > _MOST_READINGS:
        return
    for target in targets:
        about = "" if target.quantity.text.startswith("~") else "~"
        claim = Drafted(
            kind="expression",
            line=target.line,
            text=shortened(f"{record.subject}: {target.label.lower()} {target.quantity.text}"),
            says={"value": f"{about}{target.quantity.text}", "readings": unique, "in_units": True},
        )
        yield claim, far


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


def stated_of(role: str, record: Record, known: Sequence[Record]) -> Found:
    """What is stated of a quantity, nearest first: the record's own, its subject's, its section's, the report's."""
    if own := record.facts.get(role):
        return Found(stated=_distinct(_whole(own)), scope=Scope.OWN)
    same = [r for r in known if r.kind != "sentence" and same_subject(r.key, record.key)]
    if found := _distinct([stated for r in same for stated in r.facts.get(role, [])]):
        return Found(stated=found, scope=Scope.SUBJECT)
    if role in COMMON or record.kind == "sentence":  # a row's neighbours are other subjects'
        kinds = ("section", "sentence") if role == "step_time" else ("section",)
        near = [r for r in known if r.section == record.section and r.kind in kinds]
        beside = [stated for r in near for stated in r.facts.get(role, [])]
        if found := _distinct(beside):
            return Found(stated=found if len(found) == 1 else (), scope=Scope.SECTION)
    everywhere = _distinct([s for r in known for s in r.facts.get(role, [])]) if role in COMMON else ()
    return Found(stated=everywhere if len(everywhere) == 1 else (), scope=Scope.REPORT)


def _whole(stated: Sequence[Stated]) -> Sequence[Stated]:
    """Of parts and their total, the total."""
    return [s for s in stated if re.match(r"\W*(?:grand |overall )?total\b", s.label, re.IGNORECASE)] or stated


def _distinct(stated: Sequence[Stated]) -> tuple[Stated, ...]:
    """One of each value, none where there are too many to be of one thing."""
    unique = {s.quantity.text.lstrip("~"): s for s in reversed(stated)}
    return tuple(reversed(unique.values())) if len(unique) <= _MOST_VALUES else ()
