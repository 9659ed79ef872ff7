"""What one sentence states and its other numbers give: tokens of a step and of a run, passes, shares, size, work.

Every number gets its quantity from the words behind it or, failing these, before it. A formula counts where the
sentence states each of its quantities once; the number is wrong where no reading of any formula gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.stated import size_told
from advisor.audit.paper.words import NOT_TRAINING, SPARSE_MODEL, phrase

_BEHIND, _BEFORE = 32, 40  # letters in which a number's name stands
_MOST_NUMBERS = 9  # of a sentence: more are a list of many things
# quantity → its name behind the number, its name before it
_NAMES: tuple[tuple[str, str, str], ...] = (
    (
        "accumulation",
        r"(?:gradient[- ])?accum\w*(?: steps?)?\b|micro-?steps\b",
        r"(?:gradient[- ])?accum\w*(?: steps?)?",
    ),
    (
        "step_tokens",
        r"tok(?:en)?s?(?: (?:per|a|each|every|in (?:a|each|every)) |\s?/\s?)(?:optimi[sz]er |global |training )?"
        r"(?:step|batch|iteration|update)\b",
        r"(?:each|every|one|per|a) (?:optimi[sz]er |training )?(?:step|batch|update|iteration)"
        r"(?: (?:processes|sees|has|holds|contains|is|uses|consumes|covers))?"
        r"|tokens per (?:step|batch|iteration|update)",
    ),
    (
        "sequence",
        r"(?:tok(?:en)?s? each|tokens? (?:long|per (?:sequence|sample|example)))\b",
        r"seq(?:uence)?(?:[_ -]?len(?:gth)?)|(?:context|block)[_ -](?:length|size|window)|max[_ -]?(?:seq\w*|length)"
        r"|(?:sequences|samples) of",
    ),
    ("sequences", r"(?:sequences|seqs|samples|examples)(?: (?:per|a|each) (?:step|batch|update|GPU))\b", r"$^"),
    ("batch", r"(?:sequences|seqs)\b", r"(?:(?:global|effective|total|train(?:ing)?)[_ -])?batch(?:[_ -]?size)?"),
    ("micro", r"$^", r"(?:micro|device|per[- ](?:device|GPU))[_ -]?batch(?:[_ -]?size)?"),
    ("layers", r"(?:transformer |decoder |hidden )?(?:layers|blocks)\b", r"(?:n_?|num_?|number of )?(?:layers|depth)"),
    (
        "width",
        r"(?:hidden (?:units|dim\w*|size)|dim(?:ension)?s?\b|d_model)",
        r"(?:hidden|embedding|model)[_ -](?:size|dim\w*|width)|d_model|n_embd|width|d_embed",
    ),
    ("vocabulary", r"(?:vocab\w*|token types)", r"vocab\w*(?: size)?"),
    ("heads", r"(?:attention |query )?heads\b", r"n_?heads"),
    (
        "ratio",
        r"tok(?:en)?s? ?(?:per|/|to each|for each|for every) ?param\w*",
        r"tokens?[- ](?:per|to)[- ]param\w*(?: ratio)?",
    ),
    ("epochs", r"(?:full )?(?:epochs?|pass(?:es)?)\b", r"(?:num_)?epochs"),
    (
        "steps",
        r"(?:optimi[sz]er |training |gradient |total )?(?:steps|updates|iterations|iters)\b(?! per|/| accum)",
        r"(?:max|total|num)?[_ ]?(?:steps|iters|iterations)",
    ),
    (
        "samples",
        r"(?:training )?(?:samples|examples|images|rows|pairs|documents)\b",
        r"dataset size|(?:training )?(?:samples|examples)",
    ),
    ("dataset", r"(?:unique tokens|tokens? (?:corpus|data ?set)|-?token (?:corpus|data ?set))\b", r"$^"),
    ("tokens", r"(?:training |total )?tok(?:en)?s?\b(?! ?(?:per|/|each|a second))", r"$^"),
    ("gpus", r"(?:[A-Z]{1,3}\d{2,4}\w* ?)?(?:GPUs|cards|devices|accelerators)\b", r"(?:GPUs|num_gpus|world[_ ]size)"),
)
_COMPILED = tuple(
    (
        role,
        re.compile(rf"[ -]?(?:{behind})", re.IGNORECASE),
        re.compile(rf"\b(?:{before})(?:\s(?:of|is|was|to|at|about|around))*\W{{1,3}}$", re.IGNORECASE),
    )
    for role, behind, before in _NAMES
)
_AROUND_STEPS = re.compile(
    r"\bwarm-?up|\bevery\b|\bfirst\b|\blast\b|\bdecay|\binterval|\beval\w*\b|\bcheckpoint|\blog\w*\b|\bup to\b",
    re.IGNORECASE,
)
# what makes two numbers of a sentence those of two things
_TWO_THINGS = phrase(
    r"\b(?:vs\.?|versus|compared|than|instead of|respectively|another|whereas|while|but|increas\w*|decreas\w*|reduc\w*"
    r"|from [^.;]{0,20}\d[^.;]{0,20} to|per (?:GPU|device|card|worker|rank|node)|each (?:GPU|device|card|worker)"
    r"|if|remaining|left|so far|previous\w*|original\w*|up to)\b|→|->",
    re.IGNORECASE,
)
_TRAINABLE = re.compile(
    r"\b(?:of (?:the |all |its )?(?:total|model(?:'s)?|parameters|weights|base)|trainable)\b", re.IGNORECASE
)
_TEXT = re.compile(r"\b(?:text|corpus|data ?set|data|books|wikipedia|code)\b", re.IGNORECASE)
_BYTES_A_TOKEN = "[1.9-9]"  # of two bytes of a token file, and of languages and tokenizers that need most
_BLOCK = "[6-22]"  # times width²: shared keys and a lean FFN to a gated one of five times the width
_IN_UNITS = {"in_units": True}
_COMPRESSED = re.compile(r"compress|\bgz|zst|parquet|\bimages?\b|audio|video|\bRAM\b|memory|VRAM|model", re.IGNORECASE)
_HALF_DONE = 1e5  # FLOPs and more are of a training


@dataclass(frozen=True, kw_only=True)
class _Formula:
    """A quantity and the quantities that give it, times `more` and by `less` where they are stated too."""

    target: str
    needs: tuple[str, ...]
    over: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()


_FORMULAS = (
    _Formula(target="step_tokens", needs=("batch", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="step_tokens", needs=("micro", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="step_tokens", needs=("sequences", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="tokens", needs=("steps", "batch", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="tokens", needs=("steps", "sequences", "sequence"), more=("accumulation", "gpus")),
    _Formula(target="tokens", needs=("steps", "step_tokens"), more=("gpus",)),
    _Formula(target="ratio", needs=("tokens",), over=("parameters",)),
    _Formula(target="epochs", needs=("tokens",), over=("dataset",)),
    _Formula(target="steps", needs=("samples",), over=("batch",), more=("epochs",), less=("gpus", "accumulation")),
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such number of a sentence or bullet."""
    for passage in document.passages:
        text = passage.text
        found = figures(text)
        if not 2 <= len(found) <= _MOST_NUMBERS or "?" in text or _TWO_THINGS.search(text):
            continue
        stated = _stated(text, found)
        yield from _by_formula(passage, stated)
        yield from _share_of_weights(passage, found, stated)
        yield from _shape(passage, stated)
        yield from _tokens_of_text(passage, found, stated)
        yield from _work_of_time(passage, found)


def _stated(text: str, found: list[Figure]) -> dict[str, Figure]:
    """The quantities that a sentence states once."""
    several: set[str] = set()
    stated: dict[str, Figure] = {}
    for figure in found:
        role = _role(text, figure) if figure.dimension == "count" else None
        if role is None:
            continue
        if role in stated and stated[role].value != figure.value:
            several.add(role)
        stated.setdefault(role, figure)
    return {role: figure for role, figure in stated.items() if role not in several}


def _role(text: str, figure: Figure) -> str | None:
    behind, before = text[figure.end : figure.end + _BEHIND], text[max(0, figure.start - _BEFORE) : figure.start]
    role = next((role for role, after, name in _COMPILED if after.match(behind) or name.search(before)), None)
    return None if role == "steps" and _AROUND_STEPS.search(before) else role


def _by_formula(passage: Passage, stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    texts = {role: figure.quantity.text for role, figure in stated.items()}
    size = size_told(passage.text)
    if size is not None and not SPARSE_MODEL.search(passage.text):
        texts.setdefault("parameters", size.text.lstrip("~"))
    counted = {card.count for card in mentions(passage.text) if card.count}
    if len(counted) == 1:
        texts.setdefault("gpus", str(next(iter(counted))))
    for target in dict.fromkeys(formula.target for formula in _FORMULAS):
        if target not in stated:
            continue
        readings = [r for f in _FORMULAS if f.target == target for r in _readings(f, texts)]
        if readings:
            text = stated[target].quantity.text
            says = {"value": text, "readings": list(dict.fromkeys(readings)), "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _readings(formula: _Formula, texts: Mapping[str, str]) -> Iterator[str]:
    """The formula with and without whatever else the sentence states that may belong to it."""
    if any(role not in texts for role in (*formula.needs, *formula.over)):
        return
    more = [role for role in formula.more if role in texts]
    over = "".join(f" / [{texts[role]}]" for role in formula.over)
    for count in range(len(more), -1, -1):
        for chosen in combinations(more, count):
            yield " * ".join(f"[{texts[role]}]" for role in (*formula.needs, *chosen)) + over
            if formula.target == "steps" and "gpus" in texts:
                yield (
                    " * ".join(f"[{texts[role]}]" for role in (*formula.needs, *chosen))
                    + over
                    + f" / [{texts['gpus']}]"
                )


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
            says |= {"readings": [f"[{depth}] * {_BLOCK} * [{wide}] * [{wide}] + [1-2] * [{words}] * [{wide}]"]}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says | _IN_UNITS)
            return
        says |= {"layers": layers.quantity.text, "width": width.quantity.text}
        yield Drafted(kind="shape_size", line=passage.line, text=shortened(passage.text), says=says)


def _tokens_of_text(passage: Passage, found: list[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "20 GB of text, roughly 5B tokens"."""
    sizes = [f for f in found if f.dimension == "bytes" and f.value >= 1e6]
    tokens = stated.get("tokens")
    if len(sizes) != 1 or tokens is None or tokens.value < 1e5 or _COMPRESSED.search(passage.text):
        return
    if not _TEXT.search(passage.text) or sizes[0].side or tokens.side or NOT_TRAINING.search(passage.text):
        return
    between = passage.text[min(sizes[0].end, tokens.end) : max(sizes[0].start, tokens.start)]
    if re.search(r"[.;]", between) or len(between) > _BEFORE:
        return
    says = {"value": tokens.quantity.text, "readings": [f"[{sizes[0].quantity.text}] / {_BYTES_A_TOKEN}"]}
    yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says | {"in_units": True})


def _work_of_time(passage: Passage, found: list[Figure]) -> Iterator[Drafted]:
    """As "4 hours on one A100 at 35 % MFU are 1.6e18 FLOPs"."""
    cards = mentions(passage.text)
    work = [f for f in found if f.dimension == "work" and f.value > _HALF_DONE]
    time = [f for f in found if f.dimension in ("seconds", "gpu_hours")]
    share = [f for f in found if f.dimension == "fraction"]
    if not (len(cards) == len(work) == len(time) == len(share) == 1) or not re.search(r"MFU|utili[sz]", passage.text):
        return
    peaks = {s.bf16_flops or s.fp16_flops for s in cards[0].specs} - {None}
    number = "" if time[0].dimension == "gpu_hours" else f" * {cards[0].count or 1}"
    hours = " * 3600" if time[0].dimension == "gpu_hours" else ""
    readings = [
        f"[{time[0].quantity.text}] * [{share[0].quantity.text}]{hours}{number} * [{peak / 1e12:g} TFLOP/s]"
        for peak in sorted(p for p in peaks if p)
    ]
    says = {"value": f"~{work[0].quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
    yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)
