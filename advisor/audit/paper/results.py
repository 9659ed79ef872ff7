"""What a text concludes from a result or tells of a technique, where chance, a definition or a paper says otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import figures
from advisor.audit.paper.words import phrase
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of

_LEARNT = re.compile(
    r"\b(?:shows?|showing|demonstrat\w+|proves?|indicat\w+|strong|solid|impressive|excellent|good|great|learn(?:s|ed|t|ing)"
    r"|capab\w+|reasoning abilit\w+|competitive|outperform\w*|beats?|surpass\w*)\b",
    re.IGNORECASE,
)
_DOUBTED = re.compile(
    r"\b(?:not|no|never|barely|hardly|only|just|chance|random|near|close to|below|weak|poor|still|far|limited|lower"
    r"|expected|target|should|if|although|though|but|however|despite)\b|n't\b|\?",
    re.IGNORECASE,
)
_LOSS = (
    r"\b{0}\w*\s(?:set )?loss\b(?:\s(?:is|was|of|at|reached|fell to|dropped to|ended at))?\s*[:=]?\s*~?(\d+\.\d+)"
    r"(?!\d*\s?%)"
)
_TRAIN_LOSS, _VAL_LOSS = (
    re.compile(_LOSS.format(name), re.IGNORECASE) for name in (r"train(?:ing)?", r"(?:val(?:idation)?|held-out|test)")
)
_WELL = re.compile(
    r"\b(?:excellent|great|good|strong|perfect|no overfitting|well|healthy|robust)\b|\bgenerali[sz]", re.IGNORECASE
)
_FAR_BELOW = 0.6  # of the training loss: dropout, and averages over an epoch, explain less
_SCALES = re.compile(r"\b(?:scaling|parallel|scale-?out) efficiency\b", re.IGNORECASE)
_MORE_THAN_ALL = 1.05
_FORMATS = r"(fp32|fp16|bf16|tf32|bfloat16|float16|float32)"
_COMPARED = phrase(
    rf"\b{_FORMATS}\b[^.;]{{0,25}}\b(?:has|have|having|offers?|provides?|with|gives?|keeps?)\b(?: a| an| the)?\s*"
    r"(more|higher|greater|larger|wider|better|less|lower|fewer|smaller|narrower|same|reduced)\s"
    rf"(?:\w+\s)?(mantissa|precision|dynamic range|range|exponent)(?: bits)?\s(?:than|as)\s{_FORMATS}\b",
    re.IGNORECASE,
)
_RELATIONS = {"same": "same"} | dict.fromkeys(("less", "lower", "fewer", "smaller", "narrower", "reduced"), "less")
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_WARM_UP = phrase(
    r"\bwarm-?up\b[^.;\d]{0,30}(?P<part>\d[\d,]*)\s?(?:steps|iterations|iters)?\s?(?:/|of|out of)\s?(?:the )?"
    r"(?:total )?(?P<whole>\d[\d,]*)(?:\s(?:total |training )?(?:steps|iterations|iters))?\s?"
    r"(?:\(|,|is|=|\bor\b|i\.e\.,?|\s)+(?:about |~|only )?(?P<share>\d+(?:\.\d+)?)\s?%",
    re.IGNORECASE,
)
# what is told of a technique → its words; a sentence that denies, asks or compares tells none of it
_TOLD = tuple(
    (that, phrase(pattern, re.IGNORECASE))
    for that, pattern in (
        (
            "attention_flops",
            r"\bflash[- ]?attention\b[^.;]{0,60}\b(?:reduc\w+|lower\w*|cuts?|decreas\w+|fewer|less|sav\w+)\b[^.;]{0,30}"
            r"\b(?:FLOPs?|floating[- ]point|comput\w+ complexity|time complexity|arithmetic)\b"
            r"|\bflash[- ]?attention\b[^.;]{0,40}\blinear (?:time|compute)\b",
        ),
        (
            "zero_stage_shards_weights",
            r"\b(?:ZeRO[- ]?|ZeRO[- ]stage[- ]?|stage )[12]\b(?![^.;]{0,40}\b(?:stage|ZeRO)[- ]?3)[^.;]{0,30}"
            r"\b(?:shards?|partitions?|splits?|distributes?)\b(?![^.;]{0,40}\b(?:state|optimi[sz]er))[^.;]{0,25}"
            r"\b(?:parameters|weights|model)\b",
        ),
        (
            "ddp_shards",
            r"\b(?:DDP|DistributedDataParallel)\b\s(?:\w+\s){0,3}(?:shards?|partitions?|splits?)\s(?:the |its )?"
            r"(?:model|weights|parameters|optimi[sz]er)\b",
        ),
        (
            "bf16_needs_scaling",
            r"\b(?:bf16|bfloat16)\b(?![^.;]{0,60}\b(?:fp16|float16|unlike)\b)[^.;]{0,50}"
            r"\b(?:needs?|requires?|must use)\b[^.;]{0,20}\b(?:loss scaling|GradScaler|gradient scal\w+)",
        ),
        ("parameters_per_token", r"\b(?:20|twenty) parameters (?:per|for (?:each|every)) (?:training )?token\b"),
    )
)
_DENIED = re.compile(
    r"\bnot\b|n't\b|\bno\b|\bnever\b|\bwithout\b|\bmyth|\bmisconception|\bneither\b|\bunlike\b|\brather than\b|\?",
    re.IGNORECASE,
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a sentence or bullet."""
    for passage in document.passages:
        yield from _chance(passage)
        yield from _below_training(passage)
        yield from _efficiency(passage)
        yield from _formats(passage)
        yield from _warm_up(passage)
        if not _DENIED.search(passage.text):
            for that, pattern in _TOLD:
                if pattern.search(passage.text):
                    says = {"that": that}
                    yield Drafted(kind="conclusion", line=passage.line, text=shortened(passage.text), says=says)


def _chance(passage: Passage) -> Iterator[Drafted]:
    """As "26 % on HellaSwag shows that it has learnt commonsense"."""
    text = passage.text
    shares = [f for f in figures(text) if f.dimension == "fraction"]
    task = benchmark_of(text)
    if task and len(shares) == 1 and BENCHMARKS[task].chance and _LEARNT.search(text) and not _DOUBTED.search(text):
        says = {"task": task, "value": shares[0].quantity.text}
        yield Drafted(kind="evaluation", line=passage.line, text=shortened(text), says=says)


def _below_training(passage: Passage) -> Iterator[Drafted]:
    """As "a validation loss of 1.2 at a training loss of 3.4: it generalises very well"."""
    own, held = (pattern.findall(passage.text) for pattern in (_TRAIN_LOSS, _VAL_LOSS))
    praised = _WELL.search(passage.text) and not _DENIED.search(passage.text)
    if praised and len(own) == len(held) == 1 and 0 < float(held[0]) < _FAR_BELOW * float(own[0]):
        says = {"that": "validation_far_below_training"}
        yield Drafted(kind="conclusion", line=passage.line, text=shortened(passage.text), says=says)


def _efficiency(passage: Passage) -> Iterator[Drafted]:
    """As "a scaling efficiency of 120 %"."""
    shares = [f for f in figures(passage.text) if f.dimension == "fraction"]
    told = _SCALES.search(passage.text) and len(shares) == 1 and shares[0].quantity.low > _MORE_THAN_ALL
    if told and not _DOUBTED.search(passage.text):
        says = {"that": "scales_beyond_all"}
        yield Drafted(kind="conclusion", line=passage.line, text=shortened(passage.text), says=says)


def _formats(passage: Passage) -> Iterator[Drafted]:
    """As "bf16 has more precision than fp16"."""
    match = _COMPARED.search(passage.text)
    if match is None or _DENIED.search(passage.text):
        return
    one, other = (_NAMES.get(match[at].lower(), match[at].lower()) for at in (1, 4))
    fact = "range" if re.search(r"range|exponent", match[3], re.IGNORECASE) else "precision"
    says = {"format": one, "fact": fact, "as": other, "relation": _RELATIONS.get(match[2].lower(), "more")}
    yield Drafted(kind="number_format", line=passage.line, text=shortened(passage.text), says=says)


def _warm_up(passage: Passage) -> Iterator[Drafted]:
    """As "a warm-up of 2,000 of 100,000 steps (5 %)"."""
    if match := _WARM_UP.search(passage.text):
        says = {
            "value": f"{match['share']} %",
            "readings": [f"[{match['part']}] / [{match['whole']}]"],
            "in_units": True,
        }
        yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)
