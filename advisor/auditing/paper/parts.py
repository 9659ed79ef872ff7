"""Parts of a training step, each by its size: tensors by their shape, gradients by the model, passes by their work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from advisor.auditing.paper.cards import Mention, mentions
from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import records
from advisor.auditing.paper.words import NOT_TRAINING, SEVERAL
from advisor.auditing.quantity import parse_quantity

_SHAPE = re.compile(r"(?<![/×x*÷] )(?<![/×*÷])[\[(](?P<shape>\d[\d,]*(?:\s*[,×x]\s+?\d+){1,5})[\])]\s*(?:=|≈|→|:)\s*")
_NARROW = re.compile(r"\b(?:fp8|int8|uint8|8-?bit|bool)\b", re.IGNORECASE)
_WIDE = re.compile(r"\b(?:fp64|float64|int64|double|complex)\b|\blong\b", re.IGNORECASE)
# most bytes that a parameter's share takes: fp32; two fp32 moments with an fp32 copy of the weights
_HELD = (
    (re.compile(r"^\W*(?:plus |and |\+ ?)?(?:the |all )?gradients?\b[^:=]{0,20}[:=]\s*", re.IGNORECASE), 4),
    (re.compile(r"^\W*(?:plus |and |\+ ?)?(?:the )?optimi[sz]er(?: states?)?\s*[:=]\s*", re.IGNORECASE), 12),
)
_ROOM = 1.5  # buckets of a reduction, alignment
_SIZES = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([MBT]|million|billion)\b")
_LEAST_MODEL = 1e6
_A_STEP = re.compile(r"\bper[- ](?:training[- ])?(?:step|iteration)\b|\bstep (?:time )?breakdown", re.IGNORECASE)
_PASS = re.compile(r"^\W*(?P<what>forward|backward|total)\b(?: pass)?(?: time)?\s*:\s*", re.IGNORECASE)
# FLOPs of a pass for each parameter and token
_WORK = {"forward": 2, "backward": 4, "total": 6}
_BATCH = re.compile(r"\b(?:batch(?:[ _]size)?)\s*[=:]\s*(\d[\d,]*)\b(?!\s*[×x*])", re.IGNORECASE)
_SEQUENCE = re.compile(r"\b(?:seq(?:uence)?(?:[ _]len(?:gth)?)?|block[ _]size)\s*[=:]\s*(\d[\d,]*)", re.IGNORECASE)
_LINES = 30  # that a list of a step's parts runs on


def drafts(document: Document) -> Iterator[Drafted]:
    """Claims of such parts."""
    largest = _largest(document.text)
    for passage in document.passages:
        yield from _tensor(passage, document.text)
        if largest:
            yield from _held(passage, largest)
    yield from _passes(document)


def _tensor(passage: Passage, whole: str) -> Iterator[Drafted]:
    """As "[64, 512, 768] = 25 MB": so many numbers of two or four bytes."""
    for match in _SHAPE.finditer(passage.text):
        size = _next(passage.text, match.end(), 1)
        if size is None or size.dimension != "bytes":
            continue
        sides = [side.strip() for side in re.split(r"\s*[×x]\s+|,\s+", match["shape"])]
        widths = [2, 4, *([1] if _NARROW.search(whole) else []), *([8] if _WIDE.search(whole) else [])]
        product = " * ".join(f"[{side}]" for side in sides)
        readings = [f"{product} * [{width}]" for width in widths]
        readings += [f"{reading} * 1.048576" for reading in readings]  # MiB and GiB written as MB and GB
        readings += [f"{product} * [{width}] / 1.048576" for width in widths]
        yield _sized(passage, size, readings)


def _held(passage: Passage, largest: str) -> Iterator[Drafted]:
    """Gradients and moments that are larger than the largest model of the report can have."""
    for pattern, width in _HELD:
        match = pattern.match(passage.text)
        size = _next(passage.text, match.end(), 8) if match else None
        if match is None or size is None or size.dimension != "bytes":
            continue
        if size.quantity.least > _ROOM * width * parse_quantity(largest).most:
            yield _sized(passage, size, [f"[{largest}] * [{width}]"])


def _sized(passage: Passage, size: Figure, readings: list[str]) -> Drafted:
    says = {"value": f"~{size.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    return Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _next(text: str, at: int, words: int) -> Figure | None:
    """The first number behind a place, with so many letters between at most."""
    return next((f for f in figures(text) if at - 1 <= f.start <= at + words), None)


def _largest(text: str) -> str:
    """The largest number of parameters that any number of the report can mean; "" where none is stated."""
    factors = {"M": 1e6, "m": 1e6, "B": 1e9, "b": 1e9, "T": 1e12}
    sizes = [float(number) * factors[scale[0]] for number, scale in _SIZES.findall(text)]
    most = max(sizes, default=0.0)
    return f"{most / 1e6:g} M" if most >= _LEAST_MODEL else ""


def _passes(document: Document) -> Iterator[Drafted]:
    """Times of the passes of a step against the peak of the report's one card."""
    cards = [m for p in document.passages for m in mentions(p.text)]
    stated = [s.quantity for r in records(document) for s in r.facts.get("parameters", [])]
    sizes = [size for size in stated if size.low >= 10 * _LEAST_MODEL]
    if len({card.name.upper() for card in cards}) != 1 or not sizes or SEVERAL.search(document.text):
        return
    least = min(sizes, key=lambda q: q.low)
    opened: Passage | None = None
    tokens = None
    for passage in document.passages:
        if _A_STEP.search(passage.text):
            opened, tokens = passage, _tokens(passage.text) or _tokens(document.text)
        match = _PASS.match(passage.text)
        if match is None or opened is None or tokens is None:
            continue
        time = _next(passage.text, match.end(), 1)
        near = passage.section == opened.section and passage.line - opened.line <= _LINES
        if not near or time is None or time.dimension != "seconds" or NOT_TRAINING.search(opened.text):
            continue
        yield _rate(passage, time, tokens, least.middle * _WORK[match["what"].lower()], cards[0])


def _tokens(text: str) -> int | None:
    """Tokens of a step: batch times sequence, each stated once."""
    found = [{number.replace(",", "") for number in pattern.findall(text)} for pattern in (_BATCH, _SEQUENCE)]
    return math.prod(int(each.pop()) for each in found) if all(len(each) == 1 for each in found) else None


def _rate(passage: Passage, time: Figure, tokens: int, work: float, card: Mention) -> Drafted:
    says = {
        "value": f"{tokens / time.quantity.most:.0f} tok/s",
        "work": f"{work / 1e9:g} GFLOP",
        "gpu": card.name,
        "gpus": "1",
    }
    return Drafted(kind="training_rate", line=passage.line, text=shortened(passage.text), says=says)
