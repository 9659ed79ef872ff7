"""Well-known trainings: what their publications say of tokens, cards and card-hours.

Reads profiles/trainings.yaml, where each has its source (format in profiles/README.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import yaml

from advisor.auditing.quantity import Quantity
from advisor.auditing.verdict import Judgement, Question, holds, unknown, wrong
from advisor.store.folders import profiles_folder
from advisor.units import format_count

_ROOM = 0.12  # of a published number: what later reports and roundings move it by


@dataclass(frozen=True, kw_only=True)
class Training:
    """One published training; several numbers are several that its publications state."""

    pattern: re.Pattern[str]
    tokens: tuple[float, ...]
    cards: tuple[str, ...]  # as names begin
    card_hours: tuple[float, ...]
    source: str


@cache
def trainings() -> tuple[Training, ...]:
    """Every training of the list."""
    with (profiles_folder() / "trainings.yaml").open(encoding="utf-8") as file:
        rows = yaml.safe_load(file)
    return tuple(
        Training(
            pattern=re.compile(rf"(?<![\w.-])(?:{'|'.join(row['names'])})(?![\w.]|-\d|-[A-Z])", re.IGNORECASE),
            tokens=tuple(map(float, row.get("tokens", ()))),
            cards=tuple(row.get("cards", ())),
            card_hours=tuple(map(float, row.get("card_hours", ()))),
            source=row["source"],
        )
        for row in rows
    )


def named(text: str) -> tuple[str, Training] | None:
    """The one training that a text names, as it is printed; None where it names none, or several."""
    found = {(m.start(), m.end(), t) for t in trainings() for m in t.pattern.finditer(text)}
    whole = {(a, b, t) for a, b, t in found if not any((c, d) != (a, b) and c <= a and b <= d for c, d, _ in found)}
    told = {text[a:b].lower(): (text[a:b], t) for a, b, t in whole}
    return next(iter(told.values())) if len(told) == 1 else None


def published_training(q: Question) -> Judgement:
    """Tokens, card-hours or card of a well-known training, against its publication."""
    training = named(q.get("name"))
    if training is None:
        return unknown(f"nothing is known here of the training of {q.get('name')}")
    name, known = training
    words = f"{name}: {known.source}"
    if q.get("words" if q.get("fact") == "card" else "value") is None:
        return unknown("the claim does not say which card, or how many")
    if q.get("fact") == "card":
        if not known.cards:
            return unknown(f"no publication says what {name} was trained on")
        right = any(q.get("words").upper().startswith(card.upper()) for card in known.cards)
        told = " or ".join(known.cards)
        return holds(told, words) if right else wrong(f"{name} was trained on {told}, not {q.get('words')}", words)
    numbers: Sequence[float] = known.tokens if q.get("fact") == "tokens" else known.card_hours
    unit = "tokens" if q.get("fact") == "tokens" else "card-hours"
    value: Quantity = q.get("value")
    if not numbers:
        return unknown(f"no publication says how many {unit} {name} took")
    told = " or ".join(format_count(n) for n in numbers)
    if any(value.admits((1 - _ROOM) * n, (1 + _ROOM) * n) for n in numbers):
        return holds(f"{told} {unit}", words)
    return wrong(f"{name} took {told} {unit}, not {value.text}", words)
