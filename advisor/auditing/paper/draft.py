"""The draft of a card: claims as plain fields, the way a card's file holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """One claim found in a text, in the words of a card: kind and its fields."""

    kind: str
    line: int
    text: str
    says: dict[str, Any] = field(default_factory=dict)

    def entry(self, number: int) -> dict[str, Any]:
        """As an entry of the card's `claims`."""
        return {
            "id": f"c{number}-line{self.line}",
            "kind": self.kind,
            "line": self.line,
            "text": self.text,
            **self.says,
        }


def claims_of(drafted: Sequence[Drafted]) -> list[dict[str, Any]]:
    """Entries in the order of the report, what says the same of the same line once."""
    unique: dict[tuple[Any, ...], Drafted] = {}
    for one in drafted:
        unique.setdefault((one.kind, one.line, str(one.says.get("value")), str(one.says)), one)
    kept = [one for one in unique.values() if not any(_is_part_of(one, other) for other in unique.values())]
    ordered = sorted(kept, key=lambda one: one.line)
    return [one.entry(number) for number, one in enumerate(ordered, 1)]


def _is_part_of(one: Drafted, other: Drafted) -> bool:
    """Whether one equation is among those by which the same number of the same line is judged already."""
    if (one.kind, one.line, one.says.get("value")) != (other.kind, other.line, other.says.get("value")):
        return False
    mine, others = set(one.says.get("readings", ())), set(other.says.get("readings", ()))
    return bool(mine) and mine < others


def shortened(text: str, most: int = 160) -> str:
    """A sentence short enough for a line of the audit."""
    clean = " ".join(text.split())
    return clean if len(clean) <= most else clean[: most - 1].rsplit(" ", 1)[0] + "…"
