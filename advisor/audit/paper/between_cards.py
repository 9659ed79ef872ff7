"""What a text sets between cards: what is in a machine type, which is cheaper, more of them, one against another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from advisor.audit.paper.cards import Mention, mentions
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
_AT_START = 3  # letters
_TITLE = re.compile(r"\s*(?:GPUs?|cards?)?\s*(?:\([^)]{1,30}\)\s*)?(?::|$)", re.IGNORECASE)
_LIMIT = re.compile(
    r"\b(?:max(?:imum)?|largest)[ _.-]*"
    r"(?:(?P<model>model(?:[ _]size)?|param\w*)|(?P<batch>(?:micro-?)?batch(?:[ _-]size)?)"
    r"|(?P<length>(?:seq\w*|context)(?:[ _-](?:len\w*|window))?))\s*(?:[:=]|is|of)?\s*(?=[~≈\d])",
    re.IGNORECASE,
)
_SMALLER = re.compile(r"\bfp8\b|\bquanti|\bint8\b|\b[48]-?bit\b|\boffload|\bMIG\b|\bspeed|\bfast", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of passages and tables."""
    for passage in document.passages:
        yield from _instance(passage)
        yield from _cheaper(passage, document.passages)
    yield from _unequal_limits(document.passages)
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


@dataclass(frozen=True, kw_only=True)
class _Limit:
    """What a text says is the most that one card holds: "Max batch: 32" of what stands under "A100 80GB:"."""

    card: Mention
    of: str
    most: Figure
    line: int


def _unequal_limits(passages: Sequence[Passage]) -> Iterator[Drafted]:
    """The largest model, batch, length of cards of one memory, where one has more of something and less of nothing."""
    by_section: dict[tuple[str, ...], list[_Limit]] = {}
    for limit, above in _limits(passages):
        by_section.setdefault(above, []).append(limit)
    for limits in by_section.values():
        held: dict[str, list[_Limit]] = {}
        for limit in limits:
            held.setdefault(limit.card.name.upper(), []).append(limit)
        for one, other in combinations(held.values(), 2):
            pairs = [(a, b) for a in one for b in other if a.of == b.of]
            ways = {b.most.value > a.most.value for a, b in pairs if a.most.value != b.most.value}
            if len(ways) != 1 or len({limit.of for limit in one}) < len(one) or not _of_one_memory(one[0], other[0]):
                continue
            for a, b in pairs:
                says = {"value": b.most.quantity.text, "gpu": b.card.name}
                says |= {"than": a.most.quantity.text, "than_gpu": a.card.name, "memory": f"{_memory(a.card):g} GB"}
                what = f"max {a.of}: {b.most.raw} on {b.card.name}, {a.most.raw} on {a.card.name}"
                yield Drafted(kind="equal_memory", line=b.line, text=shortened(what), says=says)


def _limits(passages: Sequence[Passage]) -> Iterator[tuple[_Limit, tuple[str, ...]]]:
    """Limits with the headings above their card's."""
    card: Mention | None = None
    section = -1
    above: tuple[str, ...] = ()
    for passage in passages:
        text = passage.text
        named = mentions(text)
        titled = _TITLE.match(text[named[0].end :]) if len(named) == 1 and named[0].start <= _AT_START else None
        if titled and (titled[0].strip() or text == (passage.headings or ("",))[-1]):
            card, section = named[0], passage.section
            above = tuple(h for h in passage.headings if h != text)
        elif named or passage.section != section:
            card = None
        if card is None or _SMALLER.search(text):
            continue
        for match in _LIMIT.finditer(text):
            rest = figures(text[match.end() :])
            if rest and rest[0].start <= _AT_START and rest[0].dimension == "count" and rest[0].value > 0:
                of = next(name for name, words in match.groupdict().items() if words)
                yield _Limit(card=card, of=of, most=rest[0], line=passage.line), above


def _of_one_memory(one: _Limit, other: _Limit) -> bool:
    return (one.card.count or 1) == (other.card.count or 1) and _memory(one.card) == _memory(other.card) != 0.0


def _memory(card: Mention) -> float:
    """Gigabytes of a card as the text has them, else of all that its name can mean; 0 where these differ."""
    sizes = {card.memory_gb} if card.memory_gb else {spec.memory_gb for spec in card.specs}
    return float(sizes.pop() or 0.0) if len(sizes) == 1 else 0.0


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
