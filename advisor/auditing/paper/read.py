"""A report's text to the draft of a card, as plain fields: to be written to a file, corrected and judged again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.auditing.card import SCHEMA, Card
from advisor.auditing.load import card_from_dict
from advisor.auditing.paper import (
    capacity,
    comparisons,
    conclusions,
    equations,
    floors,
    forms,
    formulas,
    generalities,
    hardware,
    identities,
    known_trainings,
    laws,
    parts,
    plain_sums,
    reckoned,
    run_claims,
    sentences,
    specs,
    tables,
    training,
)
from advisor.auditing.paper.document import Document, read_document
from advisor.auditing.paper.draft import Drafted, claims_of, shortened
from advisor.auditing.paper.figures import figures
from advisor.auditing.paper.run import rows_of, run_of, timing_of
from advisor.errors import AdvisorError
from advisor.readers import markdown_report
from advisor.readers.run_table import RunTable

RULES = (
    equations.drafts,
    sentences.drafts,
    identities.drafts,
    comparisons.drafts,
    tables.drafts,
    hardware.drafts,
    laws.drafts,
    training.drafts,
    capacity.drafts,
    forms.drafts,
    generalities.drafts,
    specs.drafts,
    formulas.drafts,
    parts.drafts,
    known_trainings.drafts,
    floors.drafts,
    reckoned.drafts,
    plain_sums.drafts,
)


def draft(path: Path) -> dict[str, Any]:
    """The draft of a report's card; AdvisorError where the file cannot be read or states nothing that can be judged."""
    document = read_document(path)
    table = _table(path)
    run, timing, rows = run_of(document, table), timing_of(document), rows_of(table)
    about_run = [*run_claims.drafts(document, run, timing), *conclusions.drafts(document, run)]
    drafted = [*_drafted(document), *about_run, *run_claims.volunteered(run, document)]
    claims = claims_of([_on_its_line(document, one) for one in drafted])
    claims = [entry for entry in claims if _fits(entry)]
    if not claims:
        raise AdvisorError(
            f"{path} states nothing that can be judged: no arithmetic, speed, memory, time or cost was found",
            "advisor audit --kinds lists what can be claimed; docs/file-formats.md describes cards",
        )
    told = {entry["line"] for entry in claims}
    raw: dict[str, Any] = {
        "schema": SCHEMA,
        "id": re.sub(r"[^\w-]+", "-", path.stem).strip("-") or "report",
        "title": document.title[:200] or path.name,
        "source": path.name,
        "assumed": ["this card was drafted from the text by rule; correct it and audit it again"],
        "run": run,
        **({"rows": rows} if rows else {}),
        **({"timing": timing} if timing else {}),
        "claims": claims,
    }
    if unplaced := list(_unplaced(document, told)):
        raw["unplaced"] = unplaced
    return raw


def _table(path: Path) -> RunTable | None:
    """What the reader of reports makes of the file: facts that are declared once, and its table of steps."""
    try:
        return markdown_report.read(path)
    except AdvisorError:
        return None  # not a step table in it, nor a fact: the sentences are still there


def card_of(raw: dict[str, Any]) -> Card:
    """The card of a draft."""
    problems: list[str] = []
    card = card_from_dict(raw, problems)
    assert card is not None and not problems, problems  # drafts are written in the words of cards
    return card


def _on_its_line(document: Document, one: Drafted) -> Drafted:
    """A claim on the line that prints its number, where the sentence began on an earlier one."""
    number = re.search(r"\d[\d,]*(?:\.\d+)?", str(one.says.get("value", "")))
    return replace(one, line=document.line_of(number[0], one.line)) if number else one


def _fits(entry: dict[str, Any]) -> bool:
    """Whether a claim is one that a card can hold: what was misread into none is left out."""
    problems: list[str] = []
    card_from_dict({"schema": SCHEMA, "id": "x", "title": "x", "run": {}, "claims": [entry]}, problems)
    return not problems


_MILLION = 1e6  # parameters and tokens are counted by it; steps, layers and years are not


def _unplaced(document: Document, lines: set[int]) -> Iterator[str]:
    """Sentences that state quantities, with units or in millions, and of which no claim was made."""
    for passage in document.passages:
        stated = [f for f in figures(passage.text) if f.dimension != "count" or f.value >= _MILLION]
        if stated and passage.line not in lines:
            yield f"line {passage.line}: {shortened(passage.text)}"


def _drafted(document: Document) -> list[Drafted]:
    return [one for rule in RULES for one in rule(document)]
