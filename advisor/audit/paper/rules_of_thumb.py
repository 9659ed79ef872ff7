"""What is said of techniques and of parts of a card without a measurement: checkpointing, Adam's arithmetic, NVLink."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.audit.paper.cards import Mention, mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import figures
from advisor.audit.paper.words import phrase

_LEFT_OUT = re.compile(
    r"(?:\bno|\bnot|n't|\bwithout|\binstead of|\bdisabl\w+)\b[^.;]{0,20}"
    r"\b(?:gradient|activation) (?:re)?(?:checkpointing|computation)\b",
    re.IGNORECASE,
)
_RECOMPUTED = re.compile(r"\b(?:gradient|activation) (?:re)?(?:checkpointing|computation)\b", re.IGNORECASE)
_FASTER = phrase(
    r"\b(?:increas|improv|boost|rais|speed)\w*(?: up)?(?: \w+){0,2} (?:throughput|speed|training)\b[^.;]{0,20}\d"
    r"|\bfaster\b",
    re.IGNORECASE,
)
# a batch that fits thanks to it may be faster; what goes without it surely is
_BY_WAY_OF = re.compile(
    r"\b(?:larger|bigger|batch|without|disabl\w+|turn\w* off|off|selective|instead|than|not|no|vs)\b", re.IGNORECASE
)
_ONE_MORE = re.compile(
    r"\b(?:one |an )?(?:additional|extra|second|one more|another) forward[- ](?:pass|propagation)", re.IGNORECASE
)
_OF_TIME = re.compile(r"\b(?:wall[- ]clock|time|slower|overhead|slowdown|cost)\b", re.IGNORECASE)
_SMALLER = re.compile(r"\b(?:teacher|reference|draft|small|frozen|subset|some|every|once|eval\w*)\b", re.IGNORECASE)
_ADAM = phrase(
    r"\b(?:AdamW?|optimi[sz]er)\b[^.;]{0,30}\b(?:adds?|costs?|needs?|requires?|takes?|doubles?)\b[^.;]{0,40}"
    r"\b(?:FLOPs?|floating[- ]point operations)\b",
    re.IGNORECASE,
)
_LINK = phrase(r"NVLink\b[^.;,]{0,25}?$")
_LINKED = re.compile(r"\s*(?:of |bidirectional |per GPU |\w+ )?NVLink\b")
_OF_SEVERAL = re.compile(
    r"\b(?:aggregate|total|combined|NVSwitch|bisection|node|system|rack|NVL\d+|domain|HBM\w*|memory)\b", re.IGNORECASE
)
_EVERY = re.compile(
    r"(?P<rate>\d+(?:\.\d+)?)\s*(?:iterations?|iters?|it|steps?)\s?(?:/|per )\s?s(?:ec(?:ond)?)?\b\s*"
    r"[(,=]\s*(?:i\.e\.,? |about |~|≈|or )*(?:1|one) (?:iteration|iter|it|step) (?:every|per|in|each)\s"
)
_NEWER = re.compile(r"\b(?:or|and) (?:newer|later|above|up)\b", re.IGNORECASE)
_GENERATIONS = ("kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")


# public test sets with wrong labels or hard questions: nobody answers all of them rightly
_PUBLIC = re.compile(
    r"\b(?:IMDB|SST-?[25]|CIFAR-?100?|ImageNet|MNLI|QNLI|SQuAD|MMLU|GSM8K|HellaSwag|ARC-[CE]\w*|WinoGrande|AG ?News"
    r"|Yelp|COCO|LibriSpeech)\b",
    re.IGNORECASE,
)
_TEST_SCORE = re.compile(r"\b(?:test|held-out|final) (?:set )?acc(?:uracy)?\b", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a sentence, bullet or row."""
    public = _PUBLIC.search(document.text)
    texts = [(p.text, p.line) for p in document.passages]
    texts += [(" | ".join(row.cells), row.line) for grid in document.grids for row in grid.rows]
    for text, line in texts if public else ():
        yield from _perfect(text, line, public[0] if public else "")
    for passage in document.passages:
        yield from _checkpointing(passage)
        yield from _forward(passage)
        yield from _optimizer(passage)
        yield from _reciprocal(passage)
        named = mentions(passage.text)
        yield from _link(passage, named)
        yield from _older(passage, named)


def _perfect(text: str, line: int, name: str) -> Iterator[Drafted]:
    """As "Test Accuracy | 100.00%" in a report on IMDB."""
    told = _TEST_SCORE.search(text)
    scores = [f for f in figures(text) if told and f.start >= told.end() and f.dimension == "fraction"]
    if scores and not re.search(r"\b(?:target|goal|not|never|impossible)\b", text, re.IGNORECASE):
        says = {"value": scores[0].quantity.text, "benchmark": name}
        yield Drafted(kind="perfect_score", line=line, text=shortened(text), says=says)


def _checkpointing(passage: Passage) -> Iterator[Drafted]:
    """As "gradient checkpointing increases throughput by 15-25 %"."""
    text = passage.text
    if _RECOMPUTED.search(text) and _FASTER.search(text) and not _BY_WAY_OF.search(text) and not _LEFT_OUT.search(text):
        says = {"name": "activation_checkpointing", "effect": "speed"}
        yield Drafted(kind="technique", line=passage.line, text=shortened(text), says=says)


def _forward(passage: Passage) -> Iterator[Drafted]:
    """As "5-10 % wall-clock time for one additional forward pass"."""
    shares = [f for f in figures(passage.text) if f.dimension == "fraction"]
    said = _ONE_MORE.search(passage.text) and _OF_TIME.search(passage.text) and not _SMALLER.search(passage.text)
    if said and len(shares) == 1 and shares[0].side != ">":
        says = {"value": shares[0].quantity.text}
        yield Drafted(kind="recompute_cost", line=passage.line, text=shortened(passage.text), says=says)


def _optimizer(passage: Passage) -> Iterator[Drafted]:
    """As "Adam adds 2-3x FLOPs"."""
    found = [f for f in figures(passage.text) if f.dimension in ("times", "fraction")]
    if _ADAM.search(passage.text) and len(found) == 1:
        says = {"value": found[0].quantity.text}
        yield Drafted(kind="optimizer_work", line=passage.line, text=shortened(passage.text), says=says)


def _reciprocal(passage: Passage) -> Iterator[Drafted]:
    """As "0.174 iterations/s (1 iteration every 7 s)"."""
    for match in _EVERY.finditer(passage.text):
        behind = [f for f in figures(passage.text) if match.end() - 1 <= f.start <= match.end() + 2]
        if behind and behind[0].dimension == "seconds":
            says = {"value": behind[0].quantity.text, "readings": [f"1 / [{match['rate']}]"], "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _link(passage: Passage, named: list[Mention]) -> Iterator[Drafted]:
    """As "H100 with 3 TB/s NVLink"."""
    text = passage.text
    if len({card.name for card in named}) != 1 or _OF_SEVERAL.search(text):
        return
    for figure in figures(text):
        beside = _LINK.search(text[: figure.start]) or _LINKED.match(text[figure.end :])
        if figure.raw.endswith("B/s") and beside:
            says = {"value": figure.quantity.text, "gpu": named[0].name, "fact": "link"}
            yield Drafted(kind="card_figure", line=passage.line, text=shortened(text), says=says)


def _older(passage: Passage, named: list[Mention]) -> Iterator[Drafted]:
    """As "Volta/Turing/Ampere or newer: GTX 1080 Ti": a card that is older than all generations that are named."""
    words = passage.text.lower()
    told = [at for at, name in enumerate(_GENERATIONS) if re.search(rf"\b{name}\b", words)]
    newer = _NEWER.search(passage.text)
    for card in named if told and newer else ():
        own = {_GENERATIONS.index(s.architecture.lower()) for s in card.specs if s.architecture.lower() in _GENERATIONS}
        if newer and card.start > newer.end() and own and max(own) < min(told):
            says = {"fact": "architecture", "gpu": card.name, "words": passage.text}
            yield Drafted(kind="gpu_fact", line=passage.line, text=shortened(passage.text), says=says)
