"""Speeds and times that are told in steps, by the batch, size and card that the report declares elsewhere.

As "0.9 steps/s", "100k steps in 12 hours", "each step takes 2 s": tokens a second that no peak gives are impossible.
Degrees of parallelism against the number of cards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.records import Record, records
from advisor.audit.paper.settings import settings, settings_in, together
from advisor.audit.paper.stated import size_told
from advisor.audit.paper.words import LEANER, NOT_TRAINING, SPARSE_MODEL, TRAINING

_STEPS_A_SECOND = re.compile(
    r"(?<![\w.])(?P<low>\d+(?:\.\d+)?)(?:\s?-\s?(?P<high>\d+(?:\.\d+)?))?\s?(?:optimi[sz]er |training )?"
    r"(?P<what>its?|iter(?:ation)?s?|steps?|updates?)\s?(?:/|per )\s?s(?:ec(?:ond)?)?\b",
    re.IGNORECASE,
)
_SO_MANY_STEPS = re.compile(
    r"(?<![\w.,])(?P<number>\d[\d,]*(?:\.\d+)?)\s?(?P<scale>[kKM])?\s(?:training |optimi[sz]er )?"
    r"(?P<what>steps|iterations|iters|updates)\b(?!\s?(?:/|per))",
    re.IGNORECASE,
)
_ONE_STEP = re.compile(
    r"\b(?:each|every|a|one)\s(?:training |optimi[sz]er )?(?:step|iteration)\s(?:takes?|took|lasts?|needs?"
    r"|is)\s(?:about |~)*$"
    r"|\bstep time\W{1,3}(?:is |of |about |~)*$",
    re.IGNORECASE,
)
_PART_OF_IT = re.compile(
    r"\bwarm-?up|\bevery\b|\bper\b|\beval\w*|\bcheckpoint|\bfirst\b|\blast\b|\bremaining\b|\bdecay|\bfine-?tun|\bsaved?\b"
    r"|\bfaster\b|\bslower\b|\bsav(?:es|ing)\b|\binfer",
    re.IGNORECASE,
)
_SO_MANY_CARDS = re.compile(r"(?<![\d.,])(\d[\d,]*)\s?x?[\s-](?:GPUs?|cards?|devices|ranks)\b(?![- ]?h)", re.IGNORECASE)
_LEAST_TIME = 60.0  # seconds
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6}
_BLOCK = 11  # times width² for each layer: a little less than most have
_ONE_MODEL = 1.3  # times from the least to the largest number that is told of it
_LEAST_MODEL, _LEAST_STEPS = 1e7, 100
_DEGREES = ("tensor_parallel", "pipeline_parallel", "data_parallel")


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such statement of a passage about training."""
    declared = settings(document)
    known = records(document)
    yield from _parallel(document, declared)
    yield from _by_clock(document)
    for _, group in groupby(document.passages, key=lambda p: p.section):
        passages = list(group)
        yield from _of_section(passages)
        yield from _tokens_in_time(passages)
    size = _size(known, declared)
    everywhere = mentions(document.text)
    if size is None or not everywhere or SPARSE_MODEL.search(document.text):
        return
    number = max([m.count or 1 for m in everywhere] + [round(v) for v in _cards(known, declared)])
    for passage in document.passages:
        about = f"{passage.text} {' '.join(passage.headings[-1:])}"
        if LEANER.search(about) or NOT_TRAINING.search(about) or _PART_OF_IT.search(passage.text):
            continue
        for rate in _rates(passage.text, declared):
            yield from _claim(passage, rate, size, number, document)


def _size(known: Sequence[Record], declared: Mapping[str, Sequence[float]]) -> float | None:
    """Parameters of the one model that is declared, else of its blocks."""
    stated = [s.quantity for r in known for s in r.facts.get("parameters", []) if s.quantity.low >= _LEAST_MODEL]
    least, most = min((q.low for q in stated), default=0.0), max((q.high for q in stated), default=0.0)
    if stated and most <= _ONE_MODEL * least:
        return least
    if {"layers", "width"} <= declared.keys():
        blocks = _BLOCK * declared["layers"][0] * declared["width"][0] ** 2
        return blocks if blocks >= _LEAST_MODEL else None
    return None


def _cards(known: Sequence[Record], declared: Mapping[str, Sequence[float]]) -> list[float]:
    """Every number of cards that is stated, nodes times cards of one included."""
    numbers = [s.quantity.high for r in known for s in r.facts.get("gpus", []) if math.isfinite(s.quantity.high)]
    nodes = declared.get("nodes", [1.0])[-1] * declared.get("gpus_per_node", [1.0])[-1]
    return [*numbers, *declared.get("gpus", []), nodes]


def _tokens(own: Mapping[str, float], declared: Mapping[str, Sequence[float]], whole: bool) -> float | None:
    """The fewest tokens of a step, or of a micro-step where it is not told which is meant."""
    least = {name: values[0] for name, values in declared.items()} | dict(own)
    if "sequence" not in least:
        return None
    if whole and "global_batch" in least:
        return least["global_batch"] * least["sequence"]
    if "micro_batch" not in least:
        return None
    return least["micro_batch"] * (least.get("accumulation", 1.0) if whole else 1.0) * least["sequence"]


def _rates(text: str, declared: Mapping[str, Sequence[float]]) -> Iterator[float]:
    """Tokens a second that a text tells in steps, at the least."""
    own = settings_in(text)
    for match in _STEPS_A_SECOND.finditer(text):
        whole = not match["what"].lower().startswith("it")
        if tokens := _tokens(own, declared, whole):
            yield float(match["low"]) * tokens
    times = [f for f in figures(text) if f.dimension == "seconds"]
    if len(times) != 1 or times[0].side == ">":
        return
    longest = times[0].quantity.most
    if not longest > 0:
        return
    if _ONE_STEP.search(text[: times[0].start]) and (tokens := _tokens(own, declared, whole=True)):
        yield tokens / longest
    numbers = _steps(text)
    if len(numbers) == 1 and numbers[0] >= _LEAST_STEPS and (tokens := _tokens(own, declared, whole=False)):
        yield numbers[0] * tokens / longest


def _steps(text: str) -> list[float]:
    return [
        float(m["number"].replace(",", "")) * _SCALES[(m["scale"] or "").lower()] for m in _SO_MANY_STEPS.finditer(text)
    ]


def _claim(passage: Passage, rate: float, size: float, number: int, document: Document) -> Iterator[Drafted]:
    """Against the cards that the passage names, else the only one of the report."""
    own = mentions(passage.text)
    cards = own or mentions(document.text)
    if len({card.name.upper() for card in cards}) != 1 and not own:
        best = max(cards, key=lambda m: max((s.bf16_flops or s.fp16_flops or 0.0) for s in m.specs))
        cards = [best]
    if len({card.name.upper() for card in cards}) != 1:
        return
    says = {"value": f"{rate:.0f} tok/s", "parameters": f"{size / 1e6:g} M", "gpu": cards[0].name}
    says["gpus"] = str(cards[0].count or number if own else number)
    yield Drafted(kind="training_rate", line=passage.line, text=shortened(passage.text), says=says)


def _of_section(passages: Sequence[Passage]) -> Iterator[Drafted]:
    """Tokens a second of a section about one model on one kind of card, against all of the cards that it names."""
    text = "\n".join(p.text for p in passages)
    cards = mentions(f"{text}\n{passages[0].headings[-1] if passages[0].headings else ''}")
    sizes = {size.text: size for p in passages if (size := size_told(p.text)) and size.low >= _LEAST_MODEL}
    if len({card.name.upper() for card in cards}) != 1 or len(sizes) != 1 or not TRAINING.search(text):
        return
    if SPARSE_MODEL.search(text) or NOT_TRAINING.search(text) or LEANER.search(text):
        return
    number = max([c.count or 1 for c in cards] + [int(n.replace(",", "")) for n in _SO_MANY_CARDS.findall(text)])
    (size,) = sizes.values()
    for passage in passages:
        for figure in figures(passage.text):
            if figure.dimension == "rate" and figure.side != "<" and len(passages) > 1:
                says = {"value": figure.quantity.text, "parameters": size.text, "gpu": cards[0].name}
                says["gpus"] = str(number)
                yield Drafted(kind="training_rate", line=passage.line, text=shortened(passage.text), says=says)


def _tokens_in_time(passages: Sequence[Passage]) -> Iterator[Drafted]:
    """As "8-10 hours for 6B tokens" beside "600-800K tokens/s": the section's one speed gives the time."""
    found = [(p, figures(p.text)) for p in passages]
    rates = {f.quantity.text: f for _, fs in found for f in fs if f.dimension == "rate"}
    several = [f for _, fs in found for f in fs if f.dimension == "count" and f.noun.startswith("token") and f.scaled]
    if len(rates) != 1 or len({f.quantity.text for f in several}) != 1:
        return
    ((told, rate),) = rates.items()
    for passage, own in found:
        times = [f for f in own if f.dimension == "seconds"]
        tokens = [f for f in own if f in several]
        alone = len(times) == len(tokens) == 1 and not times[0].side and rate not in own
        if alone and not _PART_OF_IT.search(passage.text) and times[0].value > _LEAST_TIME:
            about = f"~{times[0].quantity.text.lstrip('~')}"
            readings = [f"[{tokens[0].quantity.text}] / [{told}] * {idle:g}" for idle in (1.0, 1.1, 1.2)]
            says = {"value": about, "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _by_clock(document: Document) -> Iterator[Drafted]:
    """As "79 minutes (1,610 steps)" and elsewhere "3.4 steps/second": the speed by the report's one such pair."""
    pairs: dict[tuple[float, str], Figure] = {}
    for passage in document.passages:
        times = [f for f in figures(passage.text) if f.dimension == "seconds"]
        numbers = _steps(passage.text)
        if (
            len(times) == 1
            and len(numbers) == 1
            and numbers[0] >= _LEAST_STEPS
            and not _PART_OF_IT.search(passage.text)
        ):
            pairs[numbers[0], times[0].quantity.text] = times[0]
    if len(pairs) != 1:
        return
    ((steps, time),) = pairs
    for passage in document.passages:
        told = list(_STEPS_A_SECOND.finditer(passage.text))
        if len(told) == 1 and told[0]["what"].lower().startswith("step") and not told[0]["high"]:
            says = {"value": f"~{told[0]['low']}", "readings": [f"[{steps:.10g}] / [{time}]"], "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _parallel(document: Document, declared: Mapping[str, Sequence[float]]) -> Iterator[Drafted]:
    """As "tensor 8, pipeline 8, data 64" of 2,048 cards: their product is the number of cards."""
    nodes, each = declared.get("nodes", []), declared.get("gpus_per_node", [])
    of_all = declared.get("gpus", []) or ([nodes[0] * each[0]] if len(nodes) == len(each) == 1 else [])
    for _, group in groupby(document.passages, key=lambda p: (p.section, p.fenced)):
        passages = list(group)
        degrees = together(p.text for p in passages)
        own = {float(n.replace(",", "")) for p in passages for n in _SO_MANY_CARDS.findall(p.text)}
        cards = [*own] or (of_all if passages[0].fenced else [])
        if (
            len(cards) == 1
            and all(len(degrees.get(name, [])) == 1 for name in _DEGREES)
            and len(degrees.get("context_parallel", [1])) == 1
        ):
            parts = [degrees[name][0] for name in _DEGREES] + degrees.get("context_parallel", [])
            product = " * ".join(f"[{part:g}]" for part in parts)
            at = next(p for p in reversed(passages) if settings_in(p.text).keys() & {*_DEGREES, "context_parallel"})
            says = {"value": f"{cards[0]:g}", "readings": [product], "in_units": True}
            what = f"{' × '.join(f'{part:g}' for part in parts)} of {cards[0]:,.0f} cards"
            yield Drafted(kind="expression", line=at.line, text=shortened(what), says=says)
