"""What a text sets between cards: what is in a machine type, which is cheaper, more of them, one against another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Grid, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.roles import role_of
from advisor.audit.paper.stated import size_in
from advisor.audit.paper.words import phrase
from advisor.hardware.prices import load_prices

_HAS = re.compile(
    r"\s*(?:instances?|machines?|nodes?|VMs?)?\s*(?:\(|with|has|have|offers?|:|=|-|,)\s*(?:the )?", re.IGNORECASE
)
_CHEAPER = phrase(
    r"\b(cheaper|less expensive|dearer|more expensive|costs? (?:less|more))\b[^.;]{0,25}\bper (?:GPU-)?hour\b", re.I
)
_AGAINST = re.compile(r"\b(?:vs\.?|versus|over|relative to|compared (?:to|with)|against)\s", re.IGNORECASE)
_SPEED = re.compile(r"throughput|speed|faster|training", re.IGNORECASE)
_OTHER_USE = re.compile(r"\s*[x×]?\s*(?:infer|serv|decod|generat|prefill)", re.IGNORECASE)
_RATES = re.compile(r"(?:tok(?:en)?s?|samples?|seqs?|sequences?|images?|imgs?)\s*(?:/|per)\s*s", re.IGNORECASE)
_LEAST_ROWS = 2


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of passages and tables."""
    for passage in document.passages:
        yield from _instance(passage)
        yield from _cheaper(passage, document.passages)
    for grid in document.grids:
        yield from _against_a_card(grid)
        yield from _more_cards(grid)


@cache
def _types() -> re.Pattern[str]:
    """Names of machine types with digits in them, as price lists have them."""
    names = {row.instance_type for row in load_prices() if re.search(r"\d", row.instance_type) and row.gpu}
    told = sorted((n for n in names if re.search(r"[.-]", n) and " " not in n), key=len, reverse=True)
    return re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, told))})(?![\w.-])", re.IGNORECASE)


def _instance(passage: Passage) -> Iterator[Drafted]:
    """As "a g5.48xlarge with 8 L40S": what price lists say is in a machine type."""
    for match in _types().finditer(passage.text):
        behind = _HAS.match(passage.text, match.end())
        cards = [m for m in mentions(passage.text) if behind and m.start == behind.end()]
        if cards and cards[0].count:
            says = {"name": match[1], "gpu": cards[0].name, "count": str(cards[0].count)}
            yield Drafted(kind="machine", line=passage.line, text=shortened(passage.text), says=says)


def _cheaper(passage: Passage, passages: Sequence[Passage]) -> Iterator[Drafted]:
    """As "an H100 is cheaper per hour than an A100", where the text states the rent of so many of each."""
    way = _CHEAPER.search(passage.text)
    named = mentions(passage.text)
    if way is None or len(named) != 2 or not named[0].end <= way.start() < way.end() <= named[1].start:
        return
    rents = [_rent(m.name, passages) for m in named]
    if rents[0] and rents[1] and rents[0][1] == rents[1][1]:
        less = re.match(r"cheaper|less|costs? less", way[1], re.IGNORECASE)
        low, high = (rents[0][0], rents[1][0]) if less else (rents[1][0], rents[0][0])
        yield Drafted(
            kind="cheaper", line=passage.line, text=shortened(passage.text), says={"value": low, "than": high}
        )


def _rent(name: str, passages: Sequence[Passage]) -> tuple[str, int] | None:
    """Dollars an hour of so many of one card, where the text states one such price."""
    found = set()
    for passage in passages:
        cards = [m for m in mentions(passage.text) if m.name.upper() == name.upper()]
        prices = [f for f in figures(passage.text) if f.dimension == "usd_per_hour"]
        if len(cards) == 1 == len(mentions(passage.text)) and len(prices) == 1:
            found.add((prices[0].quantity.text, cards[0].count or 1))
    return found.pop() if len(found) == 1 else None


def _against_a_card(grid: Grid) -> Iterator[Drafted]:
    """A row "throughput vs A100" under columns that each name a card."""
    titles = [mentions(title) for title in grid.header]
    for row in grid.rows:
        than = mentions(row.cells[0])
        if len(than) != 1 or not _AGAINST.search(row.cells[0]) or not _SPEED.search(row.cells[0]):
            continue
        for named, cell in zip(titles[1:], row.cells[1:], strict=True):
            found = figures(cell)
            if len(named) != 1 or not found or found[0].dimension != "times" or _OTHER_USE.match(cell, found[0].end):
                continue
            if named[0].count in (None, 1) and than[0].count in (None, 1):
                says = {"value": found[0].quantity.text, "gpu": named[0].name, "than": than[0].name}
                text = shortened(f"{row.cells[0]}: {grid.header[titles.index(named)]} {cell}")
                yield Drafted(kind="cards_speed", line=row.line, text=text, says=says)


def _more_cards(grid: Grid) -> Iterator[Drafted]:
    """Rates of one model on more and more cards: each row against the one with the fewest."""
    firsts = [next((f for row in grid.rows for f in figures(row.cells[i])[:1]), None) for i in range(len(grid.header))]
    number = [i for i, f in enumerate(firsts) if f and role_of(grid.header[i], f) == "gpus"]
    rates = [
        i for i, f in enumerate(firsts) if f and _RATES.search(grid.header[i]) and role_of(grid.header[i], f) == "rate"
    ]
    named = {m.name.upper() for row in grid.rows for cell in row.cells for m in mentions(cell)}
    sizes = {size.text for row in grid.rows for cell in row.cells[:1] if (size := size_in(cell))}
    if len(number) != 1 or len(rates) != 1 or len(named) > 1 or len(sizes) > 1 or len(grid.rows) < _LEAST_ROWS:
        return
    rows = [(n, r, row) for row in grid.rows if (n := _of(row.cells[number[0]])) and (r := _of(row.cells[rates[0]]))]
    base = min(rows, key=lambda entry: entry[0].value, default=None)
    for n, r, row in rows:
        if base and n.value > base[0].value and r.dimension == base[1].dimension:
            says = {"value": r.quantity.text, "gpus": n.quantity.text}
            says |= {"than": base[1].quantity.text, "than_gpus": base[0].quantity.text}
            text = shortened(f"{row.cells[0]}: {r.quantity.text} on {n.quantity.text}")
            yield Drafted(kind="scaling", line=row.line, text=text, says=says)


def _of(cell: str) -> Figure | None:
    found = figures(cell)
    return found[0] if found and found[0].start <= 2 and found[0].value > 0 else None
