"""What a text says a training takes: time, card-hours, memory, speed, of so many parameters and tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from advisor.auditing.paper.cards import Mention, mentions
from advisor.auditing.paper.document import Document, Grid, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import figures
from advisor.auditing.paper.laws import whole_run
from advisor.auditing.paper.records import Record, records
from advisor.auditing.paper.scopes import stated_of
from advisor.auditing.paper.stated import Stated, in_words, size_in, size_told
from advisor.auditing.paper.subjects import same
from advisor.auditing.paper.words import (
    ADAPTERS,
    LEANER,
    NOT_TRAINING,
    SEVERAL,
    SPARSE_MODEL,
    TRAINING,
    phrase,
    precision_of,
)

_SINGLE = re.compile(
    r"\b(?:single|one|1|(?:on|with) an?)[ x×-]*(?:single |NVIDIA |consumer )?"
    r"(?:GPU|card|[ABHLVT]\d{1,3}|RTX|[345]0[6789]0)",
    re.IGNORECASE,
)
_LONG = phrase(
    r"\b(?:context|seq\w*|window|length)\b[^.\n]{0,25}\b(?:16|32|64|128|256)[kK]\b"
    r"|\b(?:16|32|64|128|256)[kK]\b[^.\n]{0,12}\b(?:context|seq\w*|window)\b"
    r"|\b(?:8192|16384|32768|65536|131072)\b|long[- ]context",
    re.IGNORECASE,
)
_TABLES = re.compile(r"\bvalue[- ]embed|\bembedding (?:tables?|parameters)\b|\blook-?ups?\b|\bbigram", re.IGNORECASE)
_ASIDE = re.compile(r"\((?:vs|versus|compared|instead|not|rather)[^)]*\)", re.IGNORECASE)
# parts of a training that are not reckoned with its tokens
_PHASE = re.compile(
    r"\bmid-?train|\bsft\b|\brl\b|\bdpo\b|\beval|\bpost-?train|\bfine-?tun|\btokeni[sz]|\bwarm|\banneal"
    r"|\bdata\b|\bphase\b",
    re.IGNORECASE,
)
_NOT_PAID = re.compile(r"\b(?:per|each|sav\w+|less|cheaper|more|extra|API|token[s]?\))\b|/", re.IGNORECASE)
_IN_FULL = re.compile(r"^\W*full(?:[- ]parameter)?[- ](?:fine-?tun\w*|FT\b|training)(?!.*\bper\b)", re.IGNORECASE)
_SIZES = re.compile(r"(?<![\d.$])\d+(?:\.\d+)?\s?[BM]\b")
_ACTIVE = re.compile(r"\bA\d+(?:\.\d+)?B\b")  # parameters of a mixture that are at work at once: all are kept
_BESIDE = 4  # letters between a card and its number
_NEAR_FP8 = 10  # lines behind a number that may still say how it was trained
_FEW_CARDS = 2  # a text about more of them is about no one run
_MANY, _FEW = 7, 2  # numbers in a sentence
_ONE_MODEL = 1.5  # times apart: sizes that are one model's, with and without its tables
_LEAST_MODEL = 1e7  # parameters; what is smaller is a layer or a head
_MODELS = re.compile(r"(?<![\d.,-])(\d+(?:\.\d+)?)\s?B(?![A-Za-z])(?!\s*(?:tok|sample|example))")

_MOST_CARDS = 1e6


def drafts(document: Document) -> Iterator[Drafted]:
    """Times, rates and memory of trainings."""
    known = records(document)
    context = Context(document, known)
    for record in whole_run(known):
        yield from _rates(record, known, context)
    for record in known:
        if record.kind == "sentence" and len(figures(record.words)) > _MANY:
            continue  # a list of many things
        yield from _times(record, known, context)
        yield from _costs(record, known, context)
        yield from _rates(record, known, context)
        yield from _floor(record, known, context)
    for grid in document.grids:
        yield from _memory_of_rows(grid, context)
        yield from _full_training(grid)
        yield from _cards_for_models(grid, context)
    for passage in document.passages:
        yield from _replicated(passage)
        yield from _rates_of_cards(passage)


class Context:
    """What holds of the whole report."""

    def __init__(self, document: Document, known: Sequence[Record]) -> None:
        self.text = document.text
        self.title = document.title
        self.long = _LONG.search(document.text) is not None
        self.tables = _TABLES.search(document.text) is not None
        self.leaner = LEANER.search(document.title) is not None
        self.one_card = SEVERAL.search(document.text) is None
        texts = [(p.section, p.line, p.text) for p in document.passages]
        texts += [(g.section, g.line, cell) for g in document.grids for cells in _all_cells(g) for cell in cells]
        self._fp8: dict[int, int] = {}  # section → the first of its lines that names FP8
        for section, line, text in texts:
            if "fp8" in text.lower():
                self._fp8[section] = min(line, self._fp8.get(section, line))
        sizes = [s for r in known for s in r.facts.get("parameters", []) if s.quantity.low >= _LEAST_MODEL]
        least = min(sizes, key=lambda s: s.quantity.low, default=None)
        alike = least and max(s.quantity.high for s in sizes) < _ONE_MODEL * least.quantity.low
        dense = SPARSE_MODEL.search(document.text) is None
        self.model = least if alike and dense else None  # the one model that the report is about
        self.sections = {r.section: r for r in known if r.kind == "section"}
        self._cards: dict[int, list[Mention]] = {}
        for passage in document.passages:
            self._cards.setdefault(passage.section, []).extend(mentions(passage.text))
        for grid in document.grids:
            self._cards.setdefault(grid.section, []).extend(m for h in grid.header for m in mentions(h))
        self.everywhere = [m for found in self._cards.values() for m in found]
        self.counts = {m.count for m in self.everywhere if m.count} | {
            int(s.quantity.middle) for r in known for s in r.facts.get("gpus", [])
        }

    def card(self, record: Record) -> Mention | None:
        """The card of a record: its own, its section's, the report's; None where several are possible."""
        if not record.cards and re.search(r"\blaptop\b", record.words, re.IGNORECASE):
            laptops = {m.key: m for m in self.everywhere if "laptop" in m.key}
            return next(iter(laptops.values())) if len(laptops) == 1 else None
        own = mentions(_ASIDE.sub(" ", record.words)) if len(record.cards) > 1 else record.cards
        above = [mentions(heading) for heading in reversed(record.headings)]
        for found in (own, self._cards.get(record.section, []), *above, self.everywhere):
            if chips := {m.name.upper() for m in found}:
                numbers = {m.count for m in found if m.count}
                near = found is not self.everywhere or len(self.counts) == 1
                count = numbers.pop() if near and len(numbers) == 1 else None
                return replace(found[0], count=count) if len(chips) == 1 else None
        return None

    def precision(self, record: Record) -> str | None:
        """The format of a record; FP8 where its section has named it by then, since its peak is the higher one."""
        named = self._fp8.get(record.section)
        return "fp8" if named is not None and named <= record.line + _NEAR_FP8 else precision_of(record.words)


def _all_cells(grid: Grid) -> Sequence[tuple[str, ...]]:
    return [grid.header, *(row.cells for row in grid.rows)]


def _sparse(record: Record) -> bool:
    """Whether a record, or what stands above it, speaks of a mixture of experts: not all of it works on a token."""
    return SPARSE_MODEL.search(" ".join((record.words, record.subject, *record.headings))) is not None


def _one(role: str, record: Record, known: Sequence[Record]) -> Stated | None:
    found = stated_of(role, record, known).stated
    if not found and role in ("parameters", "tokens") and record.kind != "row":
        found = _in_headings(role, record)
    return found[0] if len(found) == 1 else None


def _in_headings(role: str, record: Record) -> tuple[Stated, ...]:
    """What the nearest heading that names it says of a quantity: "Stretch (3B params, 30B tokens)"."""
    for heading in reversed(record.headings):
        if role == "parameters" and len(set(_SIZES.findall(heading))) > 1:
            continue  # of several models
        found = [s for s in in_words(heading, record.line) if s.role == role]
        if not found and role == "parameters" and (size := size_in(heading)):
            found = [Stated(role=role, quantity=size, line=record.line, label="name")]
        if found:
            return tuple(found)
    return ()


def _times(record: Record, known: Sequence[Record], context: Context) -> Iterator[Drafted]:
    """Duration or card-hours of a training of stated parameters and tokens on a known card."""
    n, d, work = (_one(role, record, known) for role in ("parameters", "tokens", "work"))
    says: dict[str, Any] = {}
    told = n is not None
    lead = _continued(record, known) if n and not d and record.kind == "sentence" else None
    if lead is not None:
        d = lead.facts["tokens"][0]
    if n is None and record.kind == "sentence" and "tokens" in record.facts and _of_training(record):
        n = context.model
    if n and d and not _sparse(record):
        if not n.quantity.low >= 1e6 or not d.quantity.low >= 1e6:
            return
        says = {"parameters": n.quantity.text, "tokens": d.quantity.text}
    elif work and record.kind == "row":
        says = {"work": work.quantity.text}
    else:
        return
    if record.kind != "section" and record.facts.keys() & {"rate", "gpu_rate"}:
        return  # the time follows from the speed, and that is judged
    if "tokens" not in record.facts and _PHASE.search(record.words):
        return
    own = [s for role in ("gpu_hours", "duration") for s in record.facts.get(role, [])]
    if not own or len({s.quantity.text for s in own}) > 2:
        return
    says |= _method(record, context)
    mfu = (_one("mfu", record, known) or _assumed_mfu(record, known)) if told else None
    if mfu:
        says["mfu"] = mfu.quantity.text
    for stated in own:
        if any(f.dimension == "rate" for f in figures(stated.label)):
            continue  # it follows from that speed
        card = _of_title(stated, record) or context.card(record)
        if card is None:
            continue
        each = context.one_card or (lead is not None and "gpu_hours" in lead.facts)
        number = _cards_used(record, known, card) or ("1" if each else None)
        says = says | {"gpu": card.name}
        if stated.quantity.dimension == "seconds":
            if number is None or stated.quantity.high < 60:
                continue
            says = says | {"gpus": number}
        text = f"{record.subject or record.words}: {stated.quantity.text}"
        yield Drafted(
            kind="training_time",
            line=stated.line,
            text=shortened(text),
            says={"value": stated.quantity.text, **says},
        )


def _continued(record: Record, known: Sequence[Record]) -> Record | None:
    """The sentence of its paragraph whose tokens one leaves unsaid: "7B on 1B tokens takes 4 hours. 13B needs 8." """
    if not {"parameters"} < record.facts.keys() <= {"parameters", "duration", "gpu_hours"} or record.cards:
        return None
    before = [r for r in known if r.kind == "sentence" and r.line == record.line]
    at = next((i for i, r in enumerate(before) if r is record), 0)
    if not at or len(figures(record.words)) > _FEW:
        return None
    last = before[at - 1]
    told = len(last.facts.get("tokens", ())) == 1 and last.facts.keys() & {"duration", "gpu_hours"}
    return last if told and "parameters" in last.facts else None if told else _continued(last, known)


def _of_training(record: Record) -> bool:
    """Whether a sentence, or what stands above it, speaks of training and of no other use."""
    words = " ".join((record.words, *record.headings))
    return bool(TRAINING.search(words)) and not (NOT_TRAINING.search(words) or _PHASE.search(record.words))


def _of_title(stated: Stated, record: Record) -> Mention | None:
    """The one card that the title of a number's column names: "GPU-hours (H100)"."""
    named = mentions(stated.label) if record.kind == "row" else []
    return named[0] if len(named) == 1 else None


def _costs(record: Record, known: Sequence[Record], context: Context) -> Iterator[Drafted]:
    """Dollars of a training of stated parameters and tokens, whatever the card."""
    n, d, paid = _one("parameters", record, known), _one("tokens", record, known), record.facts.get("usd", [])
    if n is None or d is None or len(paid) != 1 or "tokens" not in record.facts or _NOT_PAID.search(paid[0].label):
        return
    if _sparse(record) or min(n.quantity.low, d.quantity.low) < _LEAST_MODEL:
        return
    words = " ".join((record.words, *record.headings))
    if _PHASE.search(words) or NOT_TRAINING.search(words) or paid[0].quantity.low <= 0:
        return
    card = context.card(record)
    says = {"value": paid[0].quantity.text, "parameters": n.quantity.text, "tokens": d.quantity.text}
    says |= {"gpu": card.name} if card and record.cards else {}
    text = shortened(f"{record.subject or record.words}: {paid[0].quantity.text}")
    yield Drafted(
        kind="training_cost", line=paid[0].line, text=text, says=says | _method(record, context, precise=False)
    )


def _cards_used(record: Record, known: Sequence[Record], card: Mention) -> str | None:
    """The number of cards as a card's field; None where it is not said."""
    for role in ("header_gpus", "gpus"):
        if stated := _one(role, record, known):
            return stated.quantity.text
    if card.count:
        return str(card.count)
    if record.kind == "section" and _alone_beside_several(record, known):
        return "1"
    return "1" if record.kind == "sentence" and _SINGLE.search(record.words) else None


def _alone_beside_several(record: Record, known: Sequence[Record]) -> bool:
    """Whether a part is titled with a card, and another one with several of it: "RTX 3090", "2x RTX 3090"."""
    own = mentions(record.subject)
    if len(own) != 1 or own[0].count:
        return False
    others = [m for r in known if r.kind == "section" for m in mentions(r.subject) if m.name == own[0].name]
    return any((m.count or 1) > 1 for m in others)


def _assumed_mfu(record: Record, known: Sequence[Record]) -> Stated | None:
    """An MFU that a sentence of the section assumes."""
    near = [r for r in known if r.kind == "sentence" and r.section == record.section and same(r.about, record.about)]
    found = [s for r in near for s in r.facts.get("mfu", [])]
    return found[0] if len({s.quantity.text for s in found}) == 1 else None


def _method(record: Record, context: Context, *, precise: bool = True) -> dict[str, Any]:
    says: dict[str, Any] = {}
    if ADAPTERS.search(record.words + record.subject + " ".join(record.headings)):
        says["method"] = "adapters"
    if precise and (precision := context.precision(record)):
        says["precision"] = precision
    return says


def _rates(record: Record, known: Sequence[Record], context: Context) -> Iterator[Drafted]:
    """Tokens per second of a training beside its size, card and MFU."""
    card = context.card(record)
    if card is None or _sparse(record) or NOT_TRAINING.search(record.words + " ".join(record.headings)):
        return
    work, n = _one("work_per_token", record, known), _one("parameters", record, known)
    if work is None and (n is None or n.quantity.low < 1e6):
        return
    for role in ("rate", "gpu_rate"):
        rate = _one(role, record, known) or _slowest(role, record)
        number = _cards_used(record, known, card) or ("1" if context.one_card else None)
        if rate is None or (role == "rate" and number is None):
            continue
        if role not in record.facts and "mfu" not in record.facts:
            continue
        says: dict[str, Any] = {"value": rate.quantity.text, "gpu": card.name, **_method(record, context)}
        says |= {"work": work.quantity.text} if work else {"parameters": n.quantity.text} if n else {}
        says |= {"per_gpu": True} if role == "gpu_rate" else {"gpus": number}
        says |= {"long": True} if context.long else {}
        says |= {"tables": True} if context.tables else {}
        line, mfu = rate.line, _one("mfu", record, known)
        if mfu:
            says["mfu"], line = mfu.quantity.text, mfu.line
        yield Drafted(
            kind="training_rate",
            line=line,
            text=shortened(record.told(rate.quantity.text + (f" at {mfu.quantity.text} MFU" if mfu else ""))),
            says=says,
        )


def _slowest(role: str, record: Record) -> Stated | None:
    """The lowest of several rates of one row: where it cannot be, none of them can."""
    stated = record.facts.get(role, []) if record.kind == "row" else []
    return min(stated, key=lambda s: s.quantity.low, default=None)


def _floor(record: Record, known: Sequence[Record], context: Context) -> Iterator[Drafted]:
    """Any tokens per second of a training: beyond the peak of all cards that are named even for the smallest model."""
    if record.kind != "sentence" or "parameters" in record.facts or NOT_TRAINING.search(record.words):
        return
    if not TRAINING.search(context.text) or NOT_TRAINING.search(" ".join(record.headings)):
        return
    stated = [(r.section, s.quantity) for r in known for s in r.facts.get("parameters", [])]
    near = [q for section, q in stated if section == record.section and q.low >= _LEAST_MODEL]
    sizes = near or ([context.model.quantity] if context.model else [])
    named = (s.quantity.most for r in known for s in r.facts.get("gpus", []) if s.quantity.most < _MOST_CARDS)
    number = max(max((m.count or 1 for m in context.everywhere), default=1), round(max(named, default=1)))
    if not sizes or not 1 <= len({m.name.upper() for m in context.everywhere}) <= _FEW_CARDS:
        return
    best = max(context.everywhere, key=lambda m: max((s.bf16_flops or s.fp16_flops or 0.0) for s in m.specs))
    for rate in [*record.facts.get("rate", []), *record.facts.get("gpu_rate", [])][:1]:
        says: dict[str, Any] = {"value": rate.quantity.text, "parameters": min(sizes, key=lambda q: q.low).text}
        alone = (context.one_card and number == 1 and _SINGLE.search(context.text)) or rate.role == "gpu_rate"
        says |= {"gpu": best.name, "gpus": "1" if alone else str(max(8, number))}
        yield Drafted(kind="training_rate", line=rate.line, text=shortened(record.words), says=says)


def _memory_of_rows(grid: Grid, context: Context) -> Iterator[Drafted]:
    """Tables of models with the memory that training them is said to take."""
    around = " ".join((*grid.headings, *grid.header))
    training = TRAINING.search(around) or TRAINING.search(context.title)
    whole = " ".join((around, context.title, *(cell for row in grid.rows for cell in row.cells[:1])))
    if not training or NOT_TRAINING.search(whole) or LEANER.search(" ".join((*grid.headings, context.title))):
        return
    for i, name in enumerate(grid.header):
        if (
            not re.search(r"\bv?ram\b|memory", name, re.IGNORECASE)
            or LEANER.search(name)
            or re.search(r"weights|optimi|activ|gradient|per layer|saved|total v?ram", name, re.IGNORECASE)
        ):
            continue
        for row in grid.rows:
            if mentions(row.cells[0]) or LEANER.search(" ".join(row.cells[:i])) or LEANER.search(row.cells[i]):
                continue
            size, found = next((s for c in row.cells[:i] if (s := size_in(c))), None), figures(row.cells[i])
            if size is None or size.low < 5e8 or not found or found[0].dimension != "bytes" or found[0].side == "<":
                continue
            yield Drafted(
                kind="training_memory",
                line=row.line,
                text=shortened(f"{row.cells[0]}: {found[0].raw} ({name})"),
                says={"parameters": size.text, "value": found[0].quantity.text},
            )


def _full_training(grid: Grid) -> Iterator[Drafted]:
    """Columns or rows titled "Full fine-tuning" beside leaner ones, with the memory that each model takes so.

    The models are the rows, or the other columns: "VRAM (7B)".
    """
    for row in grid.rows:
        for title, cell in zip(grid.header[1:], row.cells[1:], strict=True):
            method, model = (title, row.cells[0]) if _is_full(title) else (row.cells[0], title)
            size, found = size_in(_ACTIVE.sub(" ", model)), figures(cell)
            alone = len(found) == 1 and found[0].dimension == "bytes" and not found[0].side
            if not _is_full(method) or size is None or size.low < _LEAST_MODEL or not alone or LEANER.search(model):
                continue
            yield Drafted(
                kind="training_memory",
                line=row.line,
                text=shortened(f"{row.cells[0]}: {found[0].raw} ({title})"),
                says={"parameters": size.text, "value": found[0].quantity.text},
            )


def _is_full(title: str) -> bool:
    return bool(_IN_FULL.search(title)) and not (LEANER.search(title) or NOT_TRAINING.search(title))


def _cards_for_models(grid: Grid, context: Context) -> Iterator[Drafted]:
    """Tables of cards with the models that are said to be trained on one of them."""
    around = " ".join((*grid.headings, *grid.header))
    if not TRAINING.search(around) or NOT_TRAINING.search(around) or LEANER.search(around):
        return
    for row in grid.rows:
        cards = mentions(row.cells[0])
        if len(cards) != 1 or (cards[0].count or 1) > 1:
            continue
        for cell in row.cells[1:]:
            for part in re.split(r"\bor\b|;|,(?! ?\d)", cell):
                size = _MODELS.findall(part)
                if len(size) == 1 and not LEANER.search(part) and float(size[0]) >= 0.5:
                    memory = max(s.memory_gb for s in cards[0].specs)
                    yield Drafted(
                        kind="training_memory",
                        line=row.line,
                        text=shortened(f"{cards[0].name}: {part.strip()}"),
                        says={"parameters": f"{size[0]} billion", "value": f"{memory:g} GB"},
                    )


def _rates_of_cards(passage: Passage) -> Iterator[Drafted]:
    """As "7B training: H100 12K tokens/sec, A100 6K tokens/sec": each rate is of the card before it."""
    text, named = passage.text, mentions(passage.text)
    around = " ".join((text, *passage.headings[-1:]))
    size = size_told(text)
    if size is None or len(named) < _FEW_CARDS or not TRAINING.search(around) or NOT_TRAINING.search(around):
        return
    if LEANER.search(around) or SPARSE_MODEL.search(around) or size.low < _LEAST_MODEL:
        return
    for card in named:
        rate = next((f for f in figures(text) if card.end <= f.start <= card.end + _BESIDE), None)
        if rate is not None and rate.dimension == "rate" and (card.count or 1) == 1:
            says = {"value": rate.quantity.text, "parameters": size.text, "gpu": card.name, "gpus": "1"}
            what = shortened(f"{card.name}: {rate.raw}")
            yield Drafted(kind="training_rate", line=passage.line, text=what, says=says)


def _replicated(passage: Passage) -> Iterator[Drafted]:
    """Data parallelism for models of a size: each card holds the whole training state."""
    around = " ".join((*passage.headings[-2:], passage.text))
    if not re.search(r"\bdata[- ]parallel|\bDDP\b|\breplicat", around, re.IGNORECASE) or LEANER.search(around):
        return
    if not re.search(r"model", passage.text, re.IGNORECASE):
        return
    for figure in figures(passage.text):
        sized = figure.dimension == "count" and figure.scaled and re.match(r"(?:param|model)", figure.noun)
        if sized and figure.quantity.low >= 1e10 and figure.side != ">":
            yield Drafted(
                kind="training_memory",
                line=passage.line,
                text=shortened(f"{passage.text} (replicated on every card)"),
                says={"parameters": figure.quantity.text},
            )
