"""What a text says against its own numbers: a gap that is the share, a price that is no such multiple."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Grid, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.records import Record, records
from advisor.audit.paper.stated import in_words
from advisor.audit.paper.words import phrase

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
_MORE = phrase(r"[^.;]{0,20}\b(?:purchase|buy|capex|MSRP|list price)\b", re.IGNORECASE)
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
_ROUNDING = 0.05
_CARD_HOURS = re.compile(r"\b(?:GPU|card|device)[- ]?h(?:ou)?rs?\b", re.IGNORECASE)
_PARTS = (
    ("weights", re.compile(r"^(?:model )?(?:weights|parameters|params)\b", re.IGNORECASE)),
    ("optimizer", re.compile(r"^(?:AdamW? )?optimi[sz]er(?: states?)?\b", re.IGNORECASE)),
)
_TWICE = re.compile(
    r"^(?=.*\bAdamW?\b)(?!.*8-?bit)(?=.*(?:\b2\s?[×x]|\bmomentum (?:and|\+|&) variance))", re.IGNORECASE
)
_IN_FULL = re.compile(r"\b4 bytes\b|\bfp32\b|float32", re.IGNORECASE)
_LEAST_STATE = 1e6  # bytes
_EVERY_SHARE = re.compile(r"\b(?:sav\w+|stor\w+|writ\w+|checkpoint\w*)\s(?:one |them )?every\s(\d+(?:\.\d+)?)\s?%")
_EACH_CHECKPOINT = re.compile(r"\s*(?:/|per|each|a)\s?(?:checkpoint)?\b", re.IGNORECASE)
_STORED = re.compile(r"\+?\s*(?:of )?(?:total )?(?:storage|disk|space|on disk|in total|total)\b", re.IGNORECASE)
_OF_SPEED = re.compile(
    r"\s*(?:the |higher |more |faster )?(?:throughput|speed-?up|tokens? per second|tok/s|faster)\b", re.IGNORECASE
)
_MFU_MOVES = re.compile(r"\b(?P<name>MFU)\b[^%]{0,30}\d[\d.]*\s?%\s*(?:→|->|to)", re.IGNORECASE)
_EXPECTED = re.compile(
    r"\b(?:expected|estimated|potential|projected|typical)\b.*\b(?:gain|improvement|speed-?up|increase|boost)\b",
    re.IGNORECASE,
)
_CUMULATED = re.compile(r"\b(?:new|cumulative|total|running|resulting|after)\b", re.IGNORECASE)
_POINT = 0.0051  # of a per cent point
_FEWEST_ADDED = 2


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a text."""
    prices = _prices(document)
    for at, passage in enumerate(document.passages):
        near = [p for p in document.passages[max(0, at - _BEFORE) : at + 1] if p.section == passage.section]
        yield from _gap(passage, near)
        yield from _multiple(passage, prices)
        yield from _no_number(passage)
        yield from _checkpoints(passage)
    known = records(document)
    yield from _larger_in_less(known, document)
    yield from _prices_of_nodes(known)
    for grid in document.grids:
        yield from _card_hours_of_columns(grid)
        yield from _moments(grid)
        yield from _stacked(grid)
    yield from _in_proportion(document)


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
    for at, (size, took, record) in enumerate(told):
        for other, its, _ in told[:at]:
            if size > _CLEARLY * other and took.value * _CLEARLY < its.value:
                says = {
                    "value": took.quantity.text,
                    "parameters": f"{size / 1e9:g} billion",
                    "than": its.quantity.text,
                }
                says["than_parameters"] = f"{other / 1e9:g} billion"
                yield Drafted(kind="larger_in_less", line=record.line, text=shortened(record.words), says=says)
                break


def _card_hours_of_columns(grid: Grid) -> Iterator[Drafted]:
    """Columns "GPU hours (2x RTX 3090)" beside "GPU hours (RTX 3090)": hours of all cards, no fewer on more of them."""
    titled = [(i, mentions(h)) for i, h in enumerate(grid.header) if _CARD_HOURS.search(h)]
    columns = [(i, cards[0]) for i, cards in titled if len(cards) == 1]
    for at, card in columns:
        base = next((i for i, c in columns if c.name == card.name and (c.count or 1) == 1 and i != at), None)
        if base is None or (card.count or 1) == 1:
            continue
        for row in grid.rows:
            mine, its = figures(row.cells[at]), figures(row.cells[base])
            if len(mine) == len(its) == 1 and min(mine[0].value, its[0].value) > 0:
                says = {"value": f"{mine[0].value:g} GPU-h", "gpus": f"{card.count}", "than": f"{its[0].value:g} GPU-h"}
                text = shortened(f"{row.cells[0]}: {grid.header[at]} {mine[0].raw}, {grid.header[base]} {its[0].raw}")
                yield Drafted(kind="card_hours_of_more", line=row.line, text=text, says=says)


def _prices_of_nodes(known: Sequence[Record]) -> Iterator[Drafted]:
    """A cost of card-hours at the rent of several cards: "8x A100, 500 GPU hours at $20/h: $10,000"."""
    for record in known:
        facts = {role: record.facts.get(role, []) for role in ("gpus", "gpu_hours", "usd_per_hour", "usd")}
        if record.kind != "row" or any(len(found) != 1 for found in facts.values()) or len(record.cards) != 1:
            continue
        number, hours, price, paid = (facts[role][0].quantity for role in facts)
        alike = abs(hours.middle * price.middle / paid.middle - 1) < _ROUNDING if paid.middle > 0 else False
        if alike and number.middle > 1:
            says = {"value": f"${price.middle:g}/h", "gpu": record.cards[0].name}
            text = shortened(f"{record.subject}: {paid.text} is {hours.text} at {price.text}, each card's")
            yield Drafted(kind="card_price", line=record.line, text=text, says=says)


def _moments(grid: Grid) -> Iterator[Drafted]:
    """A table of a training's state: AdamW's moments are two numbers beside each weight."""
    rows = {name: row for row in grid.rows for name, title in _PARTS if title.search(row.cells[0])}
    if rows.keys() < {"weights", "optimizer"}:
        return
    sizes = {}
    for name, row in rows.items():
        found = [
            f for cell in row.cells[1:] for f in figures(cell) if f.dimension == "bytes" and f.value > _LEAST_STATE
        ]
        if found:
            sizes[name] = found[0]
    words = " | ".join(rows["optimizer"].cells)
    whole = _IN_FULL.search(" ".join(rows["weights"].cells))
    if sizes.keys() >= {"weights", "optimizer"} and _TWICE.search(words):
        says = {
            "value": sizes["optimizer"].quantity.text.lstrip("~"),
            "readings": [f"[{sizes['weights'].quantity.text}] * {k}" for k in ((2,) if whole else (2, 4))],
            "in_units": True,
        }
        yield Drafted(kind="expression", line=rows["optimizer"].line, text=shortened(words), says=says)


def _checkpoints(passage: Passage) -> Iterator[Drafted]:
    """As "2 GB per checkpoint, 31K checkpoints (saving every 5%): 60 GB"."""
    text, found = passage.text, figures(passage.text)
    counted = [f for f in found if f.dimension == "count" and f.noun.startswith("checkpoints")]
    if len(counted) != 1:
        return
    number = counted[0]
    if share := _EVERY_SHARE.search(text):
        says = {"value": f"~{number.quantity.text.lstrip('~')}", "readings": [f"100 / [{share[1]}]"]}
        yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says | {"in_units": True})
    sizes = [f for f in found if f.dimension == "bytes"]
    each = [f for f in sizes if _EACH_CHECKPOINT.match(text, f.end)]
    total = [f for f in sizes if _STORED.match(text, f.end) and f not in each]
    if len(each) == len(total) == 1 and total[0].side != "<":
        value = total[0].quantity.text.replace("+", "")
        says = {"value": f"~{value.lstrip('~')}", "readings": [f"[{each[0].quantity.text}] * [{number.quantity.text}]"]}
        yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says | {"in_units": True})


def _in_proportion(document: Document) -> Iterator[Drafted]:
    """As "1.4-1.6x throughput" and "MFU: 30% → 38-42%" of one change: utilisation grows as the speed does."""
    held: tuple[int, Figure] | None = None
    for passage in document.passages:
        text = passage.text
        speed = [f for f in figures(text) if f.dimension == "times" and _OF_SPEED.match(text, f.end)]
        if len(speed) == 1:
            held = (passage.section, speed[0])
        move = _MFU_MOVES.search(text)
        if not move or held is None or held[0] != passage.section:
            continue
        shares = [f for f in figures(text) if f.dimension == "fraction" and f.start >= move.end("name")]
        if len(shares) == 2 and re.fullmatch(r"\s*(?:→|->|to)\s*", text[shares[0].end : shares[1].start]):
            reading = f"[{shares[0].quantity.text}] * [{held[1].quantity.text}]"
            says = {"value": f"~{shares[1].quantity.text.lstrip('~')}", "readings": [reading], "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says)


def _stacked(grid: Grid) -> Iterator[Drafted]:
    """A table of expected gains whose last column adds each of them to the sum of those before it."""
    gain = next((i for i, h in enumerate(grid.header) if _EXPECTED.search(h)), None)
    total = next((i for i, h in enumerate(grid.header) if i != gain and _CUMULATED.search(h)), None)
    if gain is None or total is None:
        return
    sums: tuple[float, float] | None = None
    for at, row in enumerate(grid.rows):
        more, now = figures(row.cells[gain]), figures(row.cells[total])
        if len(more) != 1 or len(now) != 1 or {more[0].dimension, now[0].dimension} != {"fraction"}:
            return
        added, reached = more[0].quantity, now[0].quantity
        if sums is not None and not (
            abs(sums[0] + added.low - reached.low) < _POINT and abs(sums[1] + added.high - reached.high) < _POINT
        ):
            return
        sums = (reached.low, reached.high)
        if at >= _FEWEST_ADDED:
            says = {"value": reached.text, "parts": at + 1}
            yield Drafted(kind="stacked_gains", line=row.line, text=shortened(" | ".join(row.cells)), says=says)
