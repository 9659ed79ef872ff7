"""Models of a size that are said to be trained in a device's memory, or to need so much of it.

The size, the memory and the training may stand in one sentence, or the sentence leaves them to its heading or to the
line that opens its list. What is sharded, quantised or only run is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.stated import in_words, size_in, size_told
from advisor.auditing.paper.words import LEANER, NOT_TRAINING, TRAINING, phrase
from advisor.auditing.quantity import Quantity, parse_quantity

_TRAINS = re.compile(
    r"\bfine-?tun\w*|\bcheckpointing\b|\bAdamW?\b|\bmodel (?:training|capacity)\b|\bgradients?\b|\bdevice_batch",
    re.IGNORECASE,
)
_HOLDS = re.compile(
    r"\bup to\b|\bmax(?:imum)? (?:model|params?|parameters|size)\b|\bfits?\b|\benough for\b|\bcomfortabl"
    r"|\bsufficient for\b|\bcan (?:train|handle|fine-?tune|fit|hold|accommodate)\b|\btrains?\b|\bhandles?\b"
    r"|\blargest model\b|\bto fit\b",
    re.IGNORECASE,
)
_LARGEST = re.compile(
    r"\bmax(?:imum)? (?:model|params?|parameters|size)\b|\blargest model\b"
    r"|\bsmaller (?:model )?to fit\b|\breduced to fit\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\bnot\b|n't\b|\bcannot\b|\btoo (?:big|large|small)\b|\bmore than\b|\bexceed|\bbeyond\b|\binsufficient\b|\bnode\b"
    r"|\bmulti|\bcluster\b|\b(?:hours?|days?)\b|\$|/s\b|\?|\bactivation(?:s| memory)\b|\btokens\b|OOM|out of memory",
    re.IGNORECASE,
)
_NEEDS = re.compile(r"\b(?:v?ram|memory|gpu mem)\b", re.IGNORECASE)
_PART = re.compile(
    r"\b(?:weights?|gradients?|optimi[sz]er|moments?|states?|cache|activations?|checkpoint)\b", re.IGNORECASE
)
_OCCUPIES = re.compile(r"\b(?:occup\w+|takes?|needs?|requires?|uses?|consumes?)\b", re.IGNORECASE)
_PARTS_OF_STATE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"\bweights?\b", r"\bgradients?\b", r"\boptimi[sz]er|\bmoments?\b")
)
_THIS_MODEL = re.compile(r"\b(?:this|the|that) model\b", re.IGNORECASE)
_MEMORY = re.compile(
    r"\bfit (?:in|on|into) (?P<fit>\d+(?:\.\d+)?)\s?GB"
    r"|(?P<has>\d+(?:\.\d+)?)\s?GB (?:of )?(?:V?RAM|unified|memory|GPU)",
    re.IGNORECASE,
)
_OF_DEVICE = re.compile(r"\s?(?:of )?(?:V?RAM|GPU memory|(?:peak )?memory)\b", re.IGNORECASE)
_WITH_ADAM = re.compile(r"\bAdamW?\b", re.IGNORECASE)
_WHOLE = re.compile(r"\bfull(?:-parameter)? fine-?tun", re.IGNORECASE)
_BEGINS = re.compile(r"\W*(?:pre-?)?training (?:a|an|the|our|this)?\s?[\w.-]*\d+(?:\.\d+)?\s?[BM]\b", re.IGNORECASE)
_FEWEST = phrase(
    r"\b(?:min(?:imum)?|fewest|at least)\b[^.;]{0,25}\bGPUs?\b|\bGPUs? (?:needed|required)\b", re.IGNORECASE
)
_SO_MANY = re.compile(
    r"\b(?:use|need|needs|requires?|round(?:ed)? up to)\s+(\d{1,4})\b(?!\.\d)|(?<![\d.,])(\d{1,4}) GPUs\b",
    re.IGNORECASE,
)
_OWN_STATE = re.compile(
    r"\bparam\w*\s*[×x*]\s*(1[02468]|20)\s*bytes\b|\b(1[02468]|20) bytes (?:per|/|a|for each) ?param", re.IGNORECASE
)
_LEAST_CARD = 4e9
_MOMENTS_IN_FP32 = "12"  # bytes a parameter: bf16 weights and gradients beside two fp32 moments
_LEAST_MODEL = 1e8


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a sentence or bullet."""
    lead: Passage | None = None
    for passage in document.passages:
        if lead is None or lead.section != passage.section:
            lead = None
        around = _around(passage, lead)
        if passage.text.rstrip().endswith(":"):
            lead = passage
        if not _is_training(passage.text, around, document) or _DENIED.search(passage.text):
            continue
        size = _size(passage.text) or _size_above(passage)
        if size and size.low >= _LEAST_MODEL:
            yield from _claims(passage, size, around)
            yield from _fewest_cards(passage, size, document)


def _fewest_cards(passage: Passage, size: Quantity, document: Document) -> Iterator[Drafted]:
    """As "Minimum GPUs: 70B × 4 / 80GB = 4.2 → use 8": so many cards hold the model in training together.

    By the bytes a parameter that the text itself reckons with, where it states them.
    """
    text = passage.text
    if not _FEWEST.search(text) or LEANER.search(text):
        return
    memory = next((f for f in figures(text) if f.dimension == "bytes" and f.value > _LEAST_CARD), None)
    each = memory.value if memory else next((c.memory_gb * 1e9 for c in mentions(text) if c.memory_gb), None)
    numbers = [m for m in _SO_MANY.finditer(text)]
    if each is None or not numbers:
        return
    number = int(numbers[-1][1] or numbers[-1][2])
    says = {"parameters": size.text, "value": f"{number * each / 1e9:g} GB"}
    if own := _OWN_STATE.search(document.text):
        says["state"] = own[1] or own[2]
    yield Drafted(kind="training_memory", line=passage.line, text=shortened(f"{text} ({number} cards)"), says=says)


def _claims(passage: Passage, size: Quantity, around: Sequence[str]) -> Iterator[Drafted]:
    text = passage.text
    says = {"parameters": size.text}
    if any(_WITH_ADAM.search(words) for words in (text, *around)):
        says["state"] = _MOMENTS_IN_FP32
    needed = _needed(text)
    if needed is not None:
        says["value"] = needed.quantity.text
        yield Drafted(kind="training_memory", line=passage.line, text=shortened(text), says=says)
    elif _HOLDS.search(text) and (memory := _device(text, around)):
        says["value"] = memory
        yield Drafted(kind="training_memory", line=passage.line, text=shortened(f"{text} ({memory})"), says=says)
        if _LARGEST.search(text):
            says = {"parameters": size.text, "value": memory}
            yield Drafted(kind="largest_model", line=passage.line, text=shortened(f"{text} ({memory})"), says=says)


def _around(passage: Passage, lead: Passage | None) -> list[str]:
    """What a sentence leaves to others, nearest first: the line that opens its list, its headings."""
    above = [passage.under] if passage.under else [lead.text] if lead else []
    return [*above, *reversed(passage.headings)]


def _is_training(text: str, around: Sequence[str], document: Document) -> bool:
    """Whether all of a model is trained, on one device."""
    near = [text, *around[:3]]
    if _WHOLE.search(text) and not LEANER.search(text) and not NOT_TRAINING.search(text):
        return True  # whatever its heading is about
    if TRAINING.search(text) and not LEANER.search(text) and not NOT_TRAINING.search(text):
        return not any(LEANER.search(words) for words in around[:1])
    if any(LEANER.search(words) or NOT_TRAINING.search(words) for words in near):
        return False
    if _LARGEST.search(text) and TRAINING.search(document.text):
        return True
    return any(TRAINING.search(words) or _TRAINS.search(words) for words in (*near, document.title))


def _size(text: str) -> Quantity | None:
    """The one model size that a text names, of a range its larger end."""
    sizes = [s.quantity for s in in_words(text, 0) if s.role == "parameters"]
    if len(sizes) == 1:
        return sizes[0]
    ranged = re.findall(r"(?<![\w.-])(\d+(?:\.\d+)?)\s?B?\s?-\s?(\d+(?:\.\d+)?)\s?B\b(?!\s?tok)", text)
    if len(ranged) == 1 and not sizes and float(ranged[0][0]) < float(ranged[0][1]):
        return parse_quantity(f"{ranged[0][0]}-{ranged[0][1]} billion")
    return size_in(text) if not sizes else None


def _size_above(passage: Passage) -> Quantity | None:
    """The size that the nearest heading names, where a sentence says of one card that it holds "this model"."""
    told = _THIS_MODEL.search(passage.text) and len(mentions(passage.text)) == 1 and not size_told(passage.text)
    return _size(passage.headings[-1]) if told and passage.headings else None


def _needed(text: str) -> Figure | None:
    """The memory that a text says is needed: not that of a card, nor of a part of the state."""
    found = [f for f in figures(text) if f.dimension == "bytes"]
    found = [f for f in found if _OF_DEVICE.match(text[f.end :])] or found
    parts = all(part.search(text) for part in _PARTS_OF_STATE)
    whole = _OCCUPIES.search(text) and (
        parts or ((_WHOLE.search(text) or _BEGINS.match(text)) and not _PART.search(text))
    )
    if len(found) != 1 or mentions(text) or found[0].side == "<":
        return None
    if not whole and (not _NEEDS.search(text) or _PART.search(text)):
        return None
    return None if _HOLDS.search(text) else found[0]


def _device(text: str, around: Sequence[str]) -> str | None:
    """The memory of the one device that a text or what stands around it names."""
    for words in (text, *around[:3]):
        cards = mentions(words)
        if len({c.name for c in cards}) > 1 or any((c.count or 1) > 1 for c in cards):
            return None
        if cards:
            return f"{max(s.memory_gb for s in cards[0].specs):g} GB"
        if memory := _MEMORY.search(words):
            return f"{memory['fit'] or memory['has']} GB"
    return None
