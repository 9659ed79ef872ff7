"""A report's text to the draft of a card, as plain fields: to be written to a file, corrected and judged again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.audit.card import SCHEMA, Card
from advisor.audit.load import card_from_dict
from advisor.audit.paper import equations, hardware, laws, training
from advisor.audit.paper.document import Document, read_document
from advisor.audit.paper.draft import Drafted, claims_of, shortened
from advisor.audit.paper.figures import figures
from advisor.errors import AdvisorError

RULES = (equations.drafts, hardware.drafts, laws.drafts, training.drafts)


def draft(path: Path) -> dict[str, Any]:
    """The draft of a report's card; AdvisorError where the file cannot be read or states nothing that can be judged."""
    document = read_document(path)
    claims = claims_of(list(_drafted(document)))
    if not claims:
        raise AdvisorError(
            f"{path} states nothing that can be judged: no arithmetic, speed, memory, time or cost was found",
            "advisor audit --kinds lists what can be claimed; docs/file-formats.md describes cards",
        )
    lines = {entry["line"] for entry in claims}
    raw: dict[str, Any] = {
        "schema": SCHEMA,
        "id": re.sub(r"[^\w-]+", "-", path.stem).strip("-") or "report",
        "title": document.title[:200] or path.name,
        "source": path.name,
        "assumed": ["this card was drafted from the text by rule; correct it and audit it again"],
        "run": {},
        "claims": claims,
    }
    if unplaced := list(_unplaced(document, lines)):
        raw["unplaced"] = unplaced
    return raw


def card_of(raw: dict[str, Any]) -> Card:
    """The card of a draft."""
    problems: list[str] = []
    card = card_from_dict(raw, problems)
    assert card is not None and not problems, problems  # drafts are written in the words of cards
    return card


def _unplaced(document: Document, lines: set[int]) -> Iterator[str]:
    """Sentences that state quantities with units and of which no claim was made."""
    for passage in document.passages:
        stated = [f for f in figures(passage.text) if f.dimension != "count"]
        if stated and passage.line not in lines:
            yield f"line {passage.line}: {shortened(passage.text)}"


def _drafted(document: Document) -> list[Drafted]:
    return [one for rule in RULES for one in rule(document)]
