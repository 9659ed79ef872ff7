"""Dollars that a sentence draws from its own work, MFU, card and price, or writes out as card-hours at a price."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.roles import LEAST_WORK
from advisor.audit.paper.words import phrase

_MFU = re.compile(r"\bMFU\b|\bFLOPs? utili[sz]ation\b", re.IGNORECASE)  # not the share of the time that is rented
_FP8 = re.compile(r"\bfp8\b|\be4m3\b", re.IGNORECASE)
_TWO_THINGS = phrase(
    r"\b(?:vs\.?|versus|against|compared|than|instead of|whereas|while|but|if|saved?|saving|left|cheaper)\b",
    re.IGNORECASE,
)
_FROM = re.compile(r"[^.;\d]{0,60}[:(=]\s*(?:about |~)?")
_TIMES = re.compile(r"\s*(?:[×x*·]|at|@)\s*~?", re.IGNORECASE)
_DONE = re.compile(r"\s*(?:/|per)?\s*(?:GPU|card)?[-\s]?(?:hour|hr|h)?\s*(?:[).;,]|$)", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such sum of a sentence."""
    for passage in document.passages:
        if "?" not in passage.text and not _TWO_THINGS.search(passage.text):
            found = figures(passage.text)
            yield from _of_work(passage, found)
            yield from _of_card_hours(passage, found)


def _only(found: Sequence[Figure], *dimensions: str) -> list[Figure] | None:
    """The one figure of each dimension; None where a sentence has none or several of one."""
    chosen = [[f for f in found if f.dimension == dimension] for dimension in dimensions]
    return [one[0] for one in chosen] if all(len(one) == 1 for one in chosen) else None


def _of_work(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "2e25 FLOPs at $2/H100-hour and 32 % MFU is $35M": the work over what the card does, by its price."""
    text, only = passage.text, _only(found, "work", "fraction", "usd_per_hour", "usd")
    cards = mentions(text)
    if only is None or len({card.name for card in cards}) != 1 or not _MFU.search(text):
        return
    work, share, price, paid = only
    other = [f for f in found if f.dimension in ("gpu_hours", "seconds", "flops")]  # these are judged by themselves
    several = any((card.count or 1) > 1 for card in cards) or re.search(r"\d\s?(?:GPUs|cards)\b", text)
    if other or several or paid.side or work.value < LEAST_WORK or paid.start < max(f.start for f in only[:3]):
        return
    rates = {spec.bf16_flops or spec.fp16_flops for spec in cards[0].specs}
    rates |= {spec.fp8_flops for spec in cards[0].specs} if _FP8.search(text) else set()
    readings = [
        f"[{work.quantity.text}] / [{share.quantity.text}] / [{peak / 1e12:g} TFLOP/s] / 3600 * [{price.quantity.text}]"
        for peak in sorted((rate for rate in rates if rate), reverse=True)
    ]
    if readings:
        yield _claim(passage, paid, readings)


def _of_card_hours(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "$4.0M: 2e6 H800-hours x $2/h": a sum, and card-hours and their price as what it is made of."""
    only = _only(found, "usd", "gpu_hours", "usd_per_hour")
    if only is None or only[0].start > min(f.start for f in only[1:]):
        return
    paid, (one, other) = only[0], sorted(only[1:], key=lambda f: f.start)
    made = _FROM.fullmatch(passage.text[paid.end : one.start])
    if made and _TIMES.fullmatch(passage.text[one.end : other.start]) and _DONE.match(passage.text[other.end :]):
        yield _claim(passage, paid, [f"[{one.quantity.text}] * [{other.quantity.text}]"])


def _claim(passage: Passage, paid: Figure, readings: list[str]) -> Drafted:
    says = {"value": f"~{paid.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    return Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)
