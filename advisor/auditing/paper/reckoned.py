"""What one sentence states and its other numbers give: tokens of a step and of a run, passes, shares, size, work.

Every number gets its quantity from the words behind it or, failing these, before it. A formula counts where the
sentence states each of its quantities once; the number is wrong where no reading of any formula gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from advisor.auditing.expression import gives
from advisor.auditing.paper import plain_sums
from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.named_numbers import stated_once
from advisor.auditing.paper.records import Record
from advisor.auditing.paper.stated import EACH, size_told
from advisor.auditing.paper.words import NOT_TRAINING, SPARSE_MODEL, phrase

MOST_CORRECTED = 4  # readings of a refuted number that what rests on it is tried with
_MOST_NUMBERS = 9  # of a sentence: more are a list of many things
_BETWEEN = 40  # letters
# what makes two numbers of a sentence those of two things
_TWO_THINGS = phrase(
    r"\b(?:vs\.?|versus|beats?|against|compared|than|instead of|respectively|another|whereas|while|but"
    r"|increas\w*|decreas\w*|reduc\w*"
    r"|from [^.;]{0,20}\d[^.;]{0,20} to|if|so far|previous\w*|original\w*|up to)\b|→|->",
    re.IGNORECASE,
)
_TRAINABLE = re.compile(
    r"\b(?:of (?:the |all |its )?(?:total|model(?:'s)?|parameters|weights|base)|trainable)\b", re.IGNORECASE
)
_TEXT = re.compile(r"\b(?:text|corpus|data ?set|data|books|wikipedia|code)\b", re.IGNORECASE)
_BYTES_A_TOKEN = "[1.9-9]"  # of two bytes of a token file, and of languages and tokenizers that need most
_BLOCK = "[6-22]"  # times width²: shared keys and a lean FFN to a gated one of six times the width
_SMALL_VOCABULARY, _SMALL_BLOCK = 100_000, "[6-16]"  # with which no wider FFN is known than a gated one of four times
_IN_UNITS = {"in_units": True}
_COMPRESSED = re.compile(
    r"(?<!un)compress|\bgz|zst|parquet|\bimages?\b|audio|video|\bRAM\b|memory|VRAM|model", re.IGNORECASE
)
_READ_AGAIN = re.compile(
    r"\btrain(?:s|ed|ing)? (?:it |them )?(?:on|for|over)\b|\btimes\b|\bepochs?\b|\bpass(?:es)?\b", re.IGNORECASE
)
_TAKES = re.compile(r"\b(?:takes?|took|needs?|lasts?|training time was|finish\w*)\b", re.IGNORECASE)
_IDLE = (1.0, 1.1, 1.2)  # times as long as at full speed
_HALF_DONE = 1e5  # FLOPs and more are of a training


@dataclass(frozen=True, kw_only=True)
class _Formula:
    """A quantity and those that give it: `always` belong to it where they are stated, `more` and `less` perhaps."""

    target: str
    needs: tuple[str, ...]
    over: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()
    less_always: tuple[str, ...] = ()


_FORMULAS = (
    _Formula(target="step_tokens", needs=("batch", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="step_tokens", needs=("micro", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="step_tokens", needs=("sequences", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="tokens", needs=("steps", "batch", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="tokens", needs=("steps", "sequences", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="tokens", needs=("steps", "step_tokens"), more=("gpus",)),
    _Formula(target="ratio", needs=("tokens",), over=("parameters",)),
    _Formula(target="epochs", needs=("tokens",), over=("dataset",)),
    _Formula(target="steps", needs=("samples",), over=("batch",), always=("epochs",), less=("gpus", "accumulation")),
    _Formula(target="accumulation", needs=("batch",), over=("micro",), less_always=("gpus",)),
    _Formula(target="batch", needs=("micro", "accumulation"), always=("gpus",)),
    _Formula(target="batch", needs=("micro", "gpus"), always=("accumulation",)),
    _Formula(target="duration", needs=("tokens",), over=("rate",), less=("gpus",)),
    _Formula(target="duration", needs=("tokens",), over=("gpu_rate",), less=("gpus",)),
    _Formula(target="duration", needs=("steps", "step_time")),
    _Formula(target="gpu_hours", needs=("duration", "gpus")),
    _Formula(target="energy", needs=("power", "duration"), always=("gpus",)),
    _Formula(target="energy", needs=("power", "gpu_hours")),
)
_SEQUENCES_OF = re.compile(r"\s*(?:sequences|seqs|samples)\s+of\s+(?:length\s+)?(?:~|about )?", re.IGNORECASE)
_IN_TOKENS = re.compile(r"[- ]?tok(?:en)?s?\b(?!\s?(?:/|per )\s?(?:s|GPU|card|device)\b)", re.IGNORECASE)
_IS = re.compile(r"[^.;\d]{0,40}(?:[(=≈:]|\b(?:is|are|i\.e\.,?|that is,?))\s*", re.IGNORECASE)
_ARE = re.compile(
    r"(?:\s*tok(?:en)?s?)?[^.;\d]{0,25}(?:[(=≈:]|\b(?:is|are|makes?|gives?|i\.e\.,?|that is,?))\s*(?:about |~)?",
    re.IGNORECASE,
)
_ALL_TOLD = re.compile(r"\b(?:optimi[sz]er|global|effective|total)\b", re.IGNORECASE)  # nothing may be left out
# of a whole training `laws` reckons the time
_TOKENS_LEFT = phrase(r"\btokens (?:are )?(?:left|to go)\b|\bremaining [\d.,]+\s?\w* tokens\b", re.IGNORECASE)
_MEASURED = ("duration", "gpu_hours", "energy")
_MANY_WATTS = 1500.0  # of more than one card


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such number of a sentence or bullet."""
    before: tuple[int, Figure | None] = (0, None)
    for passage in document.passages:
        text = passage.text
        found = figures(text)
        of_line = before[1] if before[0] == passage.line else None
        worked = [f for f in found if f.dimension == "work" and f.value > _HALF_DONE]
        before = (passage.line, worked[0] if len(worked) == 1 else of_line)
        if not 2 <= len(found) <= _MOST_NUMBERS or "?" in text or _TWO_THINGS.search(text):
            continue
        stated = stated_once(text, found)
        yield from _by_formula(passage, stated)
        yield from _of_sequences(passage, found)
        yield from _share_of_weights(passage, found, stated)
        yield from _shape(passage, stated)
        yield from _tokens_of_text(passage, found, stated)
        yield from _work_of_time(passage, found, of_line)


def refuted(document: Document, known: Sequence[Record]) -> dict[int, Sequence[str]]:
    """Numbers that the other numbers of their own sentence, or a run's steps, refute, as those have them."""
    wrong = {
        (one.line, one.says["value"].lstrip("~")): one.says["readings"][:MOST_CORRECTED]
        for one in (*drafts(document), *plain_sums.drafts(document))
        if one.kind == "expression" and not gives(one.says["value"], one.says["readings"])
    }
    every = [s for r in known for stated in r.facts.values() for s in stated]
    return {id(s): wrong[key] for s in every if (key := (s.line, s.quantity.text.lstrip("~"))) in wrong}


def _by_formula(passage: Passage, stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    texts = {role: figure.quantity.text for role, figure in stated.items()}
    size = size_told(passage.text)
    if size is not None and not SPARSE_MODEL.search(passage.text):
        texts.setdefault("parameters", size.text.lstrip("~"))
    counted = {card.count for card in mentions(passage.text) if card.count}
    if len(counted) == 1:
        texts.setdefault("gpus", str(next(iter(counted))))
    whole = _ALL_TOLD.search(passage.text) is not None and not _counts_all_cards(stated)
    if "power" in stated and stated["power"].value > _MANY_WATTS:
        texts.pop("gpus", None)
    for target in dict.fromkeys(formula.target for formula in _FORMULAS):
        if target not in stated or (target == "duration" and not _TOKENS_LEFT.search(passage.text)):
            continue
        readings = [
            r for f in _FORMULAS if f.target == target for r in _readings(f, texts, "micro" in f.needs and whole)
        ]
        if readings:
            text = stated[target].quantity.text
            text = f"~{text.lstrip('~')}" if target in _MEASURED else text
            says = {"value": text, "readings": list(dict.fromkeys(readings)), "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _counts_all_cards(stated: Mapping[str, Figure]) -> bool:
    """Whether steps of accumulation may be those of all cards together, as nanoGPT counts them."""
    if not {"accumulation", "gpus"} <= stated.keys():
        return False
    steps, cards = stated["accumulation"].value, stated["gpus"].value
    return cards > 0 and steps >= cards and steps % cards == 0


def _readings(formula: _Formula, texts: Mapping[str, str], whole: bool) -> Iterator[str]:
    """The formula with and without whatever else the sentence states that may belong to it; `whole`: with all of it."""
    if any(role not in texts for role in (*formula.needs, *formula.over)):
        return
    always = [role for role in formula.always if role in texts]
    of_cards = formula.target == "step_tokens" and ("micro" not in texts or "micro" in formula.needs)
    more = [role for role in (*formula.more, *formula.less) if role in texts]
    over = "".join(f" / [{texts[role]}]" for role in (*formula.over, *formula.less_always) if role in texts)
    for count in range(len(more), len(more) - 1 if whole else -1, -1):
        for chosen in combinations(more, count):
            if of_cards and "gpus" in chosen and "accumulation" in more and "accumulation" not in chosen:
                continue  # a batch of one card is one of its several passes too
            times = [role for role in (*formula.needs, *always, *chosen) if role not in formula.less]
            less = "".join(f" / [{texts[role]}]" for role in chosen if role in formula.less)
            hours = " / 3600" if formula.target == "gpu_hours" else " * 3600" if "gpu_hours" in formula.needs else ""
            yield " * ".join(f"[{texts[role]}]" for role in times) + over + less + hours


def _of_sequences(passage: Passage, found: list[Figure]) -> Iterator[Drafted]:
    """As "4M tokens = 1024 sequences of 4096", in either order: tokens beside so many sequences of one length."""
    text = passage.text
    for number, length in zip(found, found[1:], strict=False):
        alone = number.dimension == length.dimension == "count" and not length.side and not number.side
        if not alone or not _SEQUENCES_OF.fullmatch(text[number.end : length.start]):
            continue
        others = [f for f in found if f.dimension == "count" and f not in (number, length)]
        if len(others) != 1 or EACH.search(text[length.end :]) or mentions(text):
            continue
        (tokens,) = others
        before = tokens.end <= number.start and _IS.fullmatch(text[tokens.end : number.start])
        behind = length.end <= tokens.start and _ARE.fullmatch(text[length.end : tokens.start])
        if (before or behind) and _IN_TOKENS.match(text, tokens.end) and not tokens.side:
            readings = [f"[{number.quantity.text}] * [{length.quantity.text}]"]
            says = {"value": f"~{tokens.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says)


def _share_of_weights(passage: Passage, found: list[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "LoRA trains 40M parameters of the 7B, 0.6 % of the total"."""
    part = [f for f in found if f.dimension == "count" and re.match(r"(?:trainable )?param", f.noun)]
    share = [f for f in found if f.dimension == "fraction"]
    if len(part) != 1 or len(share) != 1 or not _TRAINABLE.search(passage.text):
        return
    size = size_told(passage.text[: part[0].start] + passage.text[part[0].end :])
    if size is None:
        return
    whole = size.text.lstrip("~")
    if part[0].value < size.low * 0.999 and not re.search(r"active|activated", passage.text, re.IGNORECASE):
        readings = [f"[{part[0].quantity.text}] / [~{whole}]"]
        says = {"value": f"~{share[0].quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
        yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _shape(passage: Passage, stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "12 layers of hidden size 768 are 124M parameters"."""
    n = [f for f in figures(passage.text) if f.dimension == "count" and re.match(r"(?:total )?param", f.noun)]
    if len(n) != 1 or not {"layers", "width"} <= stated.keys() or SPARSE_MODEL.search(passage.text):
        return
    layers, width = stated["layers"], stated["width"]
    if layers.value >= 2 and width.value >= 64 and n[0].value >= 1e6:
        says: dict[str, Any] = {"value": n[0].quantity.text}
        if "vocabulary" in stated:
            depth, wide, words = (stated[role].quantity.text for role in ("layers", "width", "vocabulary"))
            block = _SMALL_BLOCK if stated["vocabulary"].value < _SMALL_VOCABULARY else _BLOCK
            says |= {"readings": [f"[{depth}] * {block} * [{wide}] * [{wide}] + [1-2] * [{words}] * [{wide}]"]}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says | _IN_UNITS)
            return
        says |= {"layers": layers.quantity.text, "width": width.quantity.text}
        yield Drafted(kind="shape_size", line=passage.line, text=shortened(passage.text), says=says)


def _tokens_of_text(passage: Passage, found: list[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "20 GB of text, roughly 5B tokens", or by the bytes of a token that the sentence states."""
    sizes = [f for f in found if f.dimension == "bytes" and f.value >= 1e6]
    tokens, each = stated.get("tokens"), stated.get("bytes_per_token")
    if len(sizes) != 1 or tokens is None or tokens.value < 1e5 or sizes[0].side or tokens.side:
        return
    if each is not None and _READ_AGAIN.search(passage.text):
        return
    if each is None:
        if _COMPRESSED.search(passage.text) or not _TEXT.search(passage.text) or NOT_TRAINING.search(passage.text):
            return
        between = passage.text[min(sizes[0].end, tokens.end) : max(sizes[0].start, tokens.start)]
        if re.search(r"[.;]", between) or len(between) > _BETWEEN:
            return
    of_each = f"[{each.value:g}]" if each else _BYTES_A_TOKEN
    value = tokens.quantity.text
    says = {"value": value, "readings": [f"[{sizes[0].quantity.text}] / {of_each}"]}
    yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says | _IN_UNITS)


def _work_of_time(passage: Passage, found: list[Figure], before: Figure | None) -> Iterator[Drafted]:
    """As "4 hours on one A100 at 35 % MFU are 1.6e18 FLOPs", or the time that so much work takes; the later is judged.

    `before`: the work that the sentence before it states.
    """
    cards = mentions(passage.text)
    own = [f for f in found if f.dimension == "work" and f.value > _HALF_DONE]
    work = own or ([before] if before else [])
    time = [f for f in found if f.dimension in ("seconds", "gpu_hours")]
    share = [f for f in found if f.dimension == "fraction"]
    if not (len(cards) == len(work) == len(time) == len(share) == 1) or not re.search(r"MFU|utili[sz]", passage.text):
        return
    peaks = sorted({p for s in cards[0].specs if (p := s.bf16_flops or s.fp16_flops)})
    number = "" if time[0].dimension == "gpu_hours" else f" * {cards[0].count or 1}"
    hours = " * 3600" if time[0].dimension == "gpu_hours" else ""
    if own and time[0].start < work[0].start:
        value = work[0].quantity.text
        readings = [
            f"[{time[0].quantity.text}] * [{share[0].quantity.text}]{hours}{number} * [{peak / 1e12:g} TFLOP/s]"
            for peak in peaks
        ]
    elif _TAKES.search(passage.text[: time[0].start]):
        value = time[0].quantity.text
        divided = f" / {hours.strip(' *')}" if hours else ""
        readings = [
            f"[{work[0].quantity.text}] / [{share[0].quantity.text}] / [{peak / 1e12:g} TFLOP/s]{divided}"
            f"{number.replace('*', '/')} * {idle:g}"
            for peak in peaks
            for idle in _IDLE
        ]
    else:
        return
    says = {"value": f"~{value.lstrip('~')}", "readings": readings, "in_units": True}
    yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)
