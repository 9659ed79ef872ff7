"""What cannot be whatever else is so: more than all of a peak, a bill that no rent explains, weights beyond the memory.

Only sentences and rows whose own numbers are enough; what trains fewer weights or bits is judged by the bits it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.auditing.paper.cards import Mention, mentions
from advisor.auditing.paper.document import Document
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import figures
from advisor.auditing.paper.records import Record, records
from advisor.auditing.paper.stated import size_told
from advisor.auditing.paper.words import SPARSE_MODEL, phrase

_RELATIVE = re.compile(
    r"\b(?:by|than|relative|improve\w*|increas\w*|gain\w*|higher|better|uplift|of (?:the )?baseline)\b"
)
_NO_RENT = re.compile(
    r"\b(?:buy\w*|bought|purchas\w*|own(?:ing|ed)?|salar\w*|month\w*|yearly|annual\w*|sav\w*|cheaper|less expensive"
    r"|electric\w*|energy|power|credits?|subsid\w*|free|grant|dataset|data|API|inference|storage|per|each|spot)\b|/",
    re.IGNORECASE,
)
_HOLDS = re.compile(
    r"\bfits?\b|\bruns?\b|\brun(?:ning)?\b|\bload(?:s|ed|ing)?\b|\bfine-?tun\w*|\btrain\w*|\bhandles?\b|\bserv(?:e|es|ing)\b"
    r"|\bhosts?\b|\bcan hold\b|\benough for\b|\bsufficient for\b|\bdeploy\w*",
    re.IGNORECASE,
)
_DENIED = phrase(
    r"\bnot\b|n't\b|\bcannot\b|\bnever\b|\btoo (?:big|large|small)\b|\bmore than\b|\bexceed|\bbeyond\b|\binsufficient\b"
    r"|\?|\bOOM\b|out of memory|\bif\b|\bunless\b|\bwithout\b|\bfail|\bimpossible|\blayer[- ](?:by|wise)|\bstream"
    r"|offload|\bCPU\b|\bdisk\b|\bNVMe\b|\bRAM\b|unified|\bMac\b|\bshard|parallel|FSDP|ZeRO|DeepSpeed|\bnodes?\b"
    r"|\b(?:[123]|1\.58|2\.\d+|3\.\d+)[- ]?bits?\b|\bQ[23]_|\bIQ[123]|exllama|\bbpw\b"
    r"|prun|distil|draft|AQLM|QuIP|ternary",
    re.IGNORECASE,
)
_BITS = (
    (
        4,
        re.compile(
            r"\bQLoRA\b|\b4[- ]?bits?\b|\bint-?4\b|\bNF4\b|\bfp4\b|\bQ4\b|\bQ4_|\bGPTQ\b|\bAWQ\b", re.IGNORECASE
        ),
    ),
    (8, re.compile(r"\b8[- ]?bits?\b|\bint-?8\b|\bfp8\b|\bQ8\b|\bQ8_", re.IGNORECASE)),
    (16, re.compile(r"\bb?fp?16\b|\bfloat16\b|\bbfloat16\b|\b16[- ]?bits?\b|\bhalf[- ]precision\b", re.IGNORECASE)),
)
_ONE = re.compile(r"\b(?:single|one|1|an?|my|per)\b[- x×]*(?:\w+[- ]){0,3}$", re.IGNORECASE)
_OF_A_CARD = re.compile(r"(?:\d+\s?x\s?)?[- ]?(?:V?RAM|GPU|card|consumer|graphics|gaming)", re.IGNORECASE)
_LEAST_MODEL, _LEAST_CARD, _MOST_CARD = 1e9, 4e9, 300e9


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a record, and of a sentence about one card."""
    for record in records(document):
        yield from _utilisation(record)
        yield from _rent(record)
    for passage in document.passages:
        yield from _held(passage.text, passage.line)


def _utilisation(record: Record) -> Iterator[Drafted]:
    """As "an MFU of 124 %"."""
    for stated in record.facts.get("mfu", ()):
        if not _RELATIVE.search(f"{record.words if record.kind != 'section' else ''} {stated.label}"):
            says = {"value": stated.quantity.text}
            text = shortened(record.told(f"MFU {stated.quantity.text}"))
            yield Drafted(kind="utilisation", line=stated.line, text=text, says=says)


def _rent(record: Record) -> Iterator[Drafted]:
    """As "100 hours on 8 H100 for $50"."""
    facts = record.facts
    names = {card.name.upper() for card in record.cards}
    if record.kind == "section" or len(names) != 1 or len(facts.get("usd", ())) != 1 or "usd_per_hour" in facts:
        return
    if _NO_RENT.search(record.words.replace("GPU/", "").replace("w/", "")):
        return
    says = {"value": facts["usd"][0].quantity.text, "gpu": record.cards[0].name}
    if len(facts.get("gpu_hours", ())) == 1:
        says["time"] = facts["gpu_hours"][0].quantity.text
    elif len(facts.get("duration", ())) == 1 and (number := _number(record)):
        says |= {"time": facts["duration"][0].quantity.text, "gpus": number}
    else:
        return
    yield Drafted(kind="rent", line=facts["usd"][0].line, text=shortened(record.words), says=says)


def _number(record: Record) -> str | None:
    """How many cards were rented; one where a sentence says so."""
    if len(stated := record.facts.get("gpus", [])) == 1:
        return stated[0].quantity.text
    counts = {card.count for card in record.cards}
    if len(counts) != 1:
        return None
    count = counts.pop()
    return str(count) if count else "1" if _ONE.search(record.words[: record.cards[0].start]) else None


def _held(text: str, line: int) -> Iterator[Drafted]:
    """As "QLoRA fine-tunes a 70B model on a single 24 GB card"."""
    size = size_told(text)
    bits = [number for number, pattern in _BITS if pattern.search(text)]
    if size is None or len(bits) != 1 or size.low < _LEAST_MODEL:
        return
    if not _HOLDS.search(text) or _DENIED.search(text) or SPARSE_MODEL.search(text):
        return
    if memory := _memory(text, mentions(text)):
        says = {"value": memory, "parameters": size.text, "bits": str(bits[0])}
        yield Drafted(kind="weights_fit", line=line, text=shortened(text), says=says)


def _memory(text: str, named: list[Mention]) -> str | None:
    """The memory of the one card that a sentence speaks of."""
    if len({card.name for card in named}) > 1 or any((card.count or 1) > 1 for card in named):
        return None
    if named:
        return f"{named[0].memory_gb or max(s.memory_gb for s in named[0].specs):g} GB"
    sizes = [f for f in figures(text) if f.dimension == "bytes" and _LEAST_CARD < f.value < _MOST_CARD]
    alone = len(sizes) == 1 and _ONE.search(text[: sizes[0].start]) and not sizes[0].side
    return sizes[0].quantity.text if alone and _OF_A_CARD.match(text[sizes[0].end :].lstrip(" -")) else None
