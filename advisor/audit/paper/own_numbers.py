"""What a text says against its own numbers: a gap that is the share, a price that is no such multiple."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.records import Record, records
from advisor.audit.paper.stated import in_words

_GAP = re.compile(
    r"\s*(?:of (?:the|its|your|that) (?:compute|capacity|peak|performance|GPU) )?(?:performance |efficiency )?"
    r"(?:gap|shortfall|idle|unused|wasted|lost|loss|left on the table|waste|goes unused)\b",
    re.IGNORECASE,
)
_BEFORE = 2  # sentences that a gap may speak of
_TIMES = re.compile(
    r"(?P<times>\d+(?:\.\d+)?)\s?[x×]\s(?:as much as |the )?(?P<cost>(?:cost|price|hourly (?:rate|cost)) (?:of )?)?"
    r"(?:an? |the )?(?:NVIDIA )?(?:RTX |GTX )?[A-Z]{0,3}\d{1,4}\w*$",
    re.IGNORECASE,
)
_COST = re.compile(r"(?:'s|s)?\s(?:hourly |rental )?(?:cost|price|rate)\b", re.IGNORECASE)
_MORE = re.compile(r"[^.;]{0,20}\b(?:purchase|buy|capex|MSRP|list price)\b", re.IGNORECASE)
_NO_NUMBER = re.compile(
    r"^\W*(?:(?:final|best|validation|val|test|training|train|eval(?:uation)?)[ _])*loss\s*[:=]\s*[-+]?"
    r"(?P<word>inf(?:inity)?|nan)\b",
    re.IGNORECASE,
)
_SPOKEN_OF = re.compile(
    r"\bdiverg|\bcrash|\bfail|\boverflow|\bunstable|\bif\b|\bwhen\b|\bbug\b|\bcheck\b|\bfix", re.IGNORECASE
)
_FAMILY = re.compile(
    r"\b(?:LLaMA[ -]?[123]?(?:\.\d)?|GPT-?[23]|Pythia|OPT|Falcon|Mistral|Qwen[ -]?[123]?(?:\.\d)?)", re.IGNORECASE
)
_CLEARLY = 1.2


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a text."""
    prices = _prices(document)
    for at, passage in enumerate(document.passages):
        near = [p for p in document.passages[max(0, at - _BEFORE) : at + 1] if p.section == passage.section]
        yield from _gap(passage, near)
        yield from _multiple(passage, prices)
        yield from _no_number(passage)
    yield from _larger_in_less(records(document), document)


def _gap(passage: Passage, near: Sequence[Passage]) -> Iterator[Drafted]:
    """As "312 TFLOPS; it computes at 94. That 30% gap": the part that is used is not the part that is lost."""
    stated = [f for f in figures(passage.text) if f.dimension == "fraction"]
    gaps = [f for f in stated if _GAP.match(passage.text, f.end)]
    rates = [f for p in near for f in figures(p.text) if f.dimension == "flops"]
    if len(gaps) == 1 == len(stated) and len(rates) == 2 and min(r.value for r in rates) > 0:
        low, high = sorted(rates, key=lambda f: f.value)
        says = {
            "value": f"~{gaps[0].quantity.text.lstrip('~')}",
            "readings": [f"1 - [{low.quantity.text}] / [{high.quantity.text}]"],
            "in_units": True,
        }
        yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _prices(document: Document) -> dict[str, list[Figure]]:
    """Dollars an hour of one card by its name, as tables with one price a row have them."""
    found: dict[str, list[Figure]] = {}
    for grid in document.grids:
        priced = [
            i
            for i, h in enumerate(grid.header)
            if re.search(r"(?:\$|price|cost|rate)[^|]{0,20}(?:/|per) ?\(?h|hourly", h, re.I)
        ]
        for row in grid.rows if len(priced) == 1 else ():
            cards = mentions(row.cells[0])
            cell = figures(row.cells[priced[0]])
            if (
                len(cards) == 1
                and (cards[0].count or 1) == 1
                and len(cell) == 1
                and cell[0].dimension in ("usd", "usd_per_hour")
            ):
                found.setdefault(cards[0].name.upper(), []).append(cell[0])
    return found


def _multiple(passage: Passage, prices: dict[str, list[Figure]]) -> Iterator[Drafted]:
    """As "B200: 5x H100 cost" beside a table of their prices."""
    text, named = passage.text, mentions(passage.text)
    for one, other in zip(named, named[1:], strict=False):
        told = _TIMES.search(text[one.end : other.end])
        if told is None or _MORE.match(text, other.end) or one.name.upper() == other.name.upper():
            continue
        costs = told["cost"] or _COST.match(text, other.end)
        mine, its = prices.get(one.name.upper()), prices.get(other.name.upper())
        if costs and mine and its:
            says = {
                "value": f"~{told['times']} x",
                "readings": [f"[{a.value:g}] / [{b.value:g}]" for a in mine for b in its],
                "in_units": True,
            }
            yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says)


def _no_number(passage: Passage) -> Iterator[Drafted]:
    """As "Validation loss: inf" among the results."""
    told = _NO_NUMBER.match(passage.text)
    if told and not _SPOKEN_OF.search(passage.text):
        yield Drafted(
            kind="no_loss", line=passage.line, text=shortened(passage.text), says={"words": told["word"].lower()[:3]}
        )


def _larger_in_less(known: Sequence[Record], document: Document) -> Iterator[Drafted]:
    """As "7B took 180,000 GPU hours; for 10B we assume 100,000": a larger model of a family in fewer card-hours."""
    told: list[tuple[float, Figure, Record]] = []
    held: tuple[int, float] | None = None  # line of a paragraph, and the size it speaks of
    for passage in document.passages:
        hours = [f for f in figures(passage.text) if f.dimension == "gpu_hours"]
        sizes = {s.quantity.middle for s in in_words(passage.text, passage.line) if s.role == "parameters"}
        record = next((r for r in known if r.kind == "sentence" and r.words == passage.text), None)
        if record is not None:
            sizes |= {s.quantity.middle for s in record.facts.get("parameters", ())}
        family = {re.sub(r"[ -]", "", m).lower() for m in _FAMILY.findall(passage.text)}
        if len(sizes) == 1:
            held = (passage.line, sizes.pop())
        elif sizes:
            held = None
        if record is None or held is None or held[0] != passage.line or len(hours) != 1 or "tokens" in record.facts:
            continue
        if family or passage.line == held[0]:
            told.append((held[1], hours[0], record))
    names = {re.sub(r"[ -]", "", m).lower() for m in _FAMILY.findall(document.text)}
    if len(names) != 1:
        return
    for at, (size, hours, record) in enumerate(told):
        for other, its, _ in told[:at]:
            if size > _CLEARLY * other and hours.value * _CLEARLY < its.value:
                says = {
                    "value": hours.quantity.text,
                    "parameters": f"{size / 1e9:g} billion",
                    "than": its.quantity.text,
                }
                says["than_parameters"] = f"{other / 1e9:g} billion"
                yield Drafted(kind="larger_in_less", line=record.line, text=shortened(record.words), says=says)
                break
