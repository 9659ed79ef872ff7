"""What a plain sentence draws from few numbers: a run by its steps, checkpoints by their number, a relative gain.

An optimizer's step moves every weight, gradient and moment through the card's memory; a full training keeps them there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import figures
from advisor.auditing.paper.records import Record, records
from advisor.auditing.paper.stated import size_told
from advisor.auditing.paper.subjects import same
from advisor.auditing.paper.words import LEANER, SPARSE_MODEL, phrase

_SO = re.compile(r"\b(?:so|thus|hence|therefore|that is)\b|[=≈:→]", re.IGNORECASE)
_PART = re.compile(
    r"\b(?:each|per|every|another|extra|more|less|saved?|instead|than|vs\.?|only|first|last|rest|if)\b"
    r"(?! (?:\w+ )?(?:step|iter))",
    re.IGNORECASE,
)
_IDLE = ("", " * 1.1", " * 1.2")  # times as long as its steps: evaluations, checkpoints, start and end
_CHECKPOINTS = re.compile(r"\bcheckpoints?\b", re.IGNORECASE)
_IN_ALL = re.compile(r"\s*(?:in (?:all|total)|of them|altogether)\b", re.IGNORECASE)
_EACH_SIZE = re.compile(r"\bcheckpoints?\s(?:of|at|with)\s(?:about |~)?$", re.IGNORECASE)
_RESULT = re.compile(r"(?:[:=≈]|\b(?:is|are|takes?|needs?|makes?))\s(?:about |~)?$", re.IGNORECASE)
_RELATIVE = re.compile(
    r"\brelative (?:gain|improvement|increase|rise)(?: of)?\s(?:about |~)?$|\b(?:gain|improvement|increase|rise) of "
    r"(?:about |~)?$",
    re.IGNORECASE,
)
_RELATIVE_BEHIND = re.compile(r"\s*(?:in )?relative\b", re.IGNORECASE)
_OPTIMIZER_STEP = phrase(
    r"\boptimi[sz]er(?:'s)? (?:step|update)\b[^.;,\d]{0,40}(?:\d[\d.]* ?[BM][^.;,\d]{0,25})?$", re.IGNORECASE
)
_SHARED = re.compile(r"LoRA|adapter|frozen|shard|ZeRO|FSDP|parallel|\bper (?:layer|GPU|card)|offload", re.IGNORECASE)
_IN_FULL = re.compile(r"\bfull(?:[- ]parameter)?[- ](?:fine-?tun\w*|FT\b|training)|\bfrom scratch\b", re.IGNORECASE)
_LEAN_OPTIMIZER = re.compile(r"LOMO|\bSGD\b|Adafactor|MeZO|\bLion\b|APOLLO|zeroth", re.IGNORECASE)
_FITS = re.compile(r"\b(?:fits?|runs?|possible|works?|enough|suffic\w+)\b", re.IGNORECASE)
_DENIED = re.compile(
    r"\bnot\b|n't\b|\bcannot\b|\bnever\b|\btoo\b|\bneeds? more\b|\bexceed|\bno\b|\?|\bif\b|\bunless\b", re.IGNORECASE
)
_WITHOUT = re.compile(r"\bwithout (?:any )?(?:CPU )?(?:offload\w*|shard\w*|quanti\w*|LoRA|adapters?)", re.IGNORECASE)
_ONE = re.compile(r"\b(?:an?|one|single|1)[\s-](?:[\w-]+ ){0,2}$", re.IGNORECASE)
_OF_A_CARD = re.compile(r"[\s-]*(?:V?RAM |memory )?(?:GPU|card)\b", re.IGNORECASE)
_LEAST_MODEL, _LEAST_CARD, _MOST_CARD = 1e8, 4e9, 300e9


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such sum of a sentence."""
    known = records(document)
    for record in known:
        if record.kind == "sentence":
            yield from _by_steps(record, known)
    for passage in document.passages:
        yield from _checkpoints(passage)
        yield from _gain(passage)
        yield from _optimizer_step(passage)
        yield from _in_full(passage)


def _by_steps(record: Record, known: Sequence[Record]) -> Iterator[Drafted]:
    """As "Each step takes 0.5 s, so the run takes 1.4 h." of the steps that the report states once."""
    times, lasts = record.facts.get("step_time", []), record.facts.get("duration", [])
    told = [s for r in known if same(r.about, record.about) for s in r.facts.get("steps", [])]
    if len(times) != 1 or len(lasts) != 1 or "steps" in record.facts or len({s.quantity.middle for s in told}) != 1:
        return
    found = [f for f in figures(record.words) if f.dimension == "seconds"]
    if len(found) != 2 or found[1].quantity.text != lasts[0].quantity.text:
        return
    between = record.words[found[0].end : found[1].start]
    if _SO.search(between) and not _PART.search(between) and not found[1].side:
        each = [f"[{told[0].quantity.text}] * [{times[0].quantity.text}]{idle}" for idle in _IDLE]
        yield _claim(record.words, record.line, lasts[0].quantity.text, each)


def _checkpoints(passage: Passage) -> Iterator[Drafted]:
    """As "Checkpoints of 500 MB, 10 in all: 5 GB."."""
    text, found = passage.text, figures(passage.text)
    sizes = [f for f in found if f.dimension == "bytes"]
    number = [f for f in found if f.dimension == "count" and _IN_ALL.match(text, f.end)]
    if not _CHECKPOINTS.search(text) or len(sizes) != 2 or len(number) != 1 or sizes[1].side:
        return
    if _EACH_SIZE.search(text[: sizes[0].start]) and _RESULT.search(text[: sizes[1].start]):
        readings = [f"[{sizes[0].quantity.text}] * [{number[0].quantity.text}]"]
        yield _claim(text, passage.line, sizes[1].quantity.text, readings)


def _gain(passage: Passage) -> Iterator[Drafted]:
    """As "from 61.2 % to 64.0 %, a relative gain of 4.6 %": of what it was, or of what was wrong."""
    text = passage.text
    shares = [f for f in figures(text) if f.dimension == "fraction"]
    if len(shares) != 3 or not re.search(r"\bfrom\s+~?$", text[: shares[0].start]) or shares[2].side:
        return
    one, other, gain = shares
    if not re.fullmatch(r"\s*(?:to|→)\s*~?", text[one.end : other.start]) or not 0 < one.value < other.value <= 1:
        return
    relative = "relative" in text.lower()
    if relative and (_RELATIVE.search(text[: gain.start]) or _RELATIVE_BEHIND.match(text, gain.end)):
        a, b = (f"[{f.quantity.text}]" for f in (one, other))
        readings = [f"( {b} - {a} ) / {a}", f"( {b} - {a} ) / ( 1 - {a} )", f"( {b} - {a} ) / {b}"]
        yield _claim(text, passage.line, gain.quantity.text, readings)


def _optimizer_step(passage: Passage) -> Iterator[Drafted]:
    """As "the optimizer step of the 1.3B model takes 0.1 ms on an A100"."""
    text, cards = passage.text, mentions(passage.text)
    size = size_told(text)
    times = [f for f in figures(text) if f.dimension == "seconds" and _OPTIMIZER_STEP.search(text[: f.start])]
    if size is None or len(times) != 1 or len(cards) != 1 or (cards[0].count or 1) > 1 or _SHARED.search(text):
        return
    if size.low >= _LEAST_MODEL and not times[0].side:
        says = {"value": times[0].quantity.text, "parameters": size.text.lstrip("~"), "gpu": cards[0].name}
        yield Drafted(kind="optimizer_time", line=passage.line, text=shortened(text), says=says)


def _in_full(passage: Passage) -> Iterator[Drafted]:
    """As "Full fine-tuning of a 13B model with AdamW fits a 24 GB card"."""
    text = _WITHOUT.sub(" ", passage.text)
    size, cards = size_told(text), mentions(text)
    if size is None or not (_IN_FULL.search(text) and _FITS.search(text)) or size.low < _LEAST_MODEL:
        return
    if (
        LEANER.search(text)
        or _LEAN_OPTIMIZER.search(text)
        or SPARSE_MODEL.search(text)
        or _DENIED.search(text)
        or len(cards) > 1
    ):
        return
    sizes = [f for f in figures(text) if f.dimension == "bytes" and _LEAST_CARD < f.value < _MOST_CARD]
    if cards and (cards[0].count or 1) == 1 and _ONE.search(text[: cards[0].start]):
        memory = f"{cards[0].memory_gb or max(s.memory_gb for s in cards[0].specs):g} GB"
    elif len(sizes) == 1 and not sizes[0].side and _OF_A_CARD.match(text, sizes[0].end) and not cards:
        if not _ONE.search(text[: sizes[0].start]):
            return
        memory = sizes[0].quantity.text
    else:
        return
    says = {"parameters": size.text.lstrip("~"), "value": memory}
    yield Drafted(kind="training_memory", line=passage.line, text=shortened(passage.text), says=says)


def _claim(text: str, line: int, value: str, readings: Sequence[str]) -> Drafted:
    says = {"value": f"~{value.lstrip('~')}", "readings": list(readings), "in_units": True}
    return Drafted(kind="expression", line=line, text=shortened(text), says=says)
