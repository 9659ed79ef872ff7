"""Bytes of what a training or a model holds, where one sentence states what fixes them.

Weights, gradients, moments, logits, cached keys and values, shares of sharded state, token files, checkpoints kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.named_numbers import stated_once
from advisor.audit.paper.stated import size_told
from advisor.audit.paper.words import SPARSE_MODEL, phrase
from advisor.audit.quantity import Quantity

_FORMATS = tuple(
    (each, re.compile(pattern, re.IGNORECASE))
    for each, pattern in (
        (4.0, r"\bfp32\b|\bfloat32\b|\b32[- ]?bits?\b|\b(?:full|single)[- ]precision\b"),
        (2.0, r"\bb?fp?16\b|\bb?float16\b|\b16[- ]?bits?\b|\bhalf[- ]precision\b"),
        (1.0, r"\b8[- ]?bits?\b|\bint8\b|\bfp8\b"),
        (0.5, r"\b4[- ]?bits?\b|\bint4\b|\bNF4\b|\bfp4\b"),
    )
)
_ONE_PART = tuple(
    (
        part,
        re.compile(rf"(?:{pattern})[^.;,\d]{{0,40}}$", re.I),
        phrase(rf"\s*(?:just |only |alone )?(?:of|for|in)\b[^.;,\d]{{0,40}}?(?:{pattern})", re.I),
    )
    for part, pattern in (
        (
            "moments",
            r"\b(?:optimi[sz]er|Adam\w*(?:'s)?)[- ](?:\w+ )?(?:states?|moments?|buffers?|memory)\b|\bmoments?\b",
        ),
        ("gradients", r"\bgradients?\b(?![- ](?:accum|checkpoint|clip|norm|step))"),
        ("weights", r"\bweights\b"),
    )
)
_ELSEWISE = re.compile(
    r"\bshard|FSDP|ZeRO|\bper[- ](?:GPU|card|rank|device)|/GPU|\bsav(?:e|es|ed|ing)\b|\breduc|\binstead\b|\bvs\b"
    r"|\bthan\b|offload|\bdeltas?\b|\bLion\b|Adafactor|\bSGD\b|\bMuon\b|GaLore|\bif\b|\bfrom\b",
    re.IGNORECASE,
)
_NO_OFFLOADING = re.compile(r"\b(?:no|without)\b[^.;,]{0,30}\b(?:offload|shard)\w*", re.IGNORECASE)
_ADAPTER = re.compile(r"\bQ?LoRA\b|adapter|\bDoRA\b", re.IGNORECASE)
_OF_A_CARD = re.compile(
    r"\s?(?:V?RAM|GPUs?|cards?|A\d{2,4}|H\d{3}|RTX|[345]0[6-9]0|volume|machine|node)\b", re.IGNORECASE
)
_BYTES = {  # of a parameter: by part and format
    "weights": {4.0: "[4]", 2.0: "[2-2.1]", 1.0: "[1-1.3]", 0.5: "[0.5-0.7]"},
    "gradients": {4.0: "[4]", 2.0: "[2]", 1.0: "[1]"},
    "moments": {4.0: "[8]", 2.0: "[4]", 1.0: "[2-2.3]"},
}
_UNTOLD = {"gradients": ("[2]", "[4]"), "moments": ("[4]", "[8]", "[12]")}
_WITH_MASTERS = "[12]"  # fp32 weights are often counted with the optimizer's states
_SIZES_AND_FORMATS = re.compile(r"\d+(?:\.\d+)?\s?[BM]\b|\b[bf]p?(?:loat)?\d+\b|\bint\d+|\b\d+-bit", re.IGNORECASE)
_MATRIX = re.compile(r"(?<![\d.,])(\d[\d,]{2,5})\s?[x×]\s?(\d[\d,]{2,5})(?![\d.])")
_ONE_MATRIX = re.compile(
    r"\b(?:one|single|each|a|an|per|every)\b[^.;]{0,30}\b(?:projection|matrix|layer|linear|module)\b", re.IGNORECASE
)
_RANK = re.compile(r"\brank[- ]?(?:of |= ?|r ?= ?)?(\d+)\b|\br ?= ?(\d+)\b", re.IGNORECASE)
_LOGITS = re.compile(r"\blogits?\b", re.IGNORECASE)
_CACHE = re.compile(
    r"\bKV[- ]?cache|\bkey[-/ ]value cache|\bcached tokens?\b|\bcache\b[^.;]{0,20}\btoken", re.IGNORECASE
)
_EACH_TOKEN = re.compile(r"\b(?:per|each|every|a|one) (?:\w+ )?token\b|/token", re.IGNORECASE)
_SHARDED = re.compile(r"\bZeRO[- ]?(?:stage[- ]?)?3\b|\bFSDP\b|\bfull(?:y)?[- ]shard|\bsharded\b", re.IGNORECASE)
_A_RANK = re.compile(
    r"\s?(?:of [a-z ]{1,20})?(?:per|on each|each|a|/)\s?(?:GPU|card|device|rank|worker|[AH]\d{3})\b", re.IGNORECASE
)
_EACH_RANK = re.compile(
    r"\b(?:each|every|per|one) (?:GPU|card|device|rank|worker|[AH]\d{3})\b[^.;,\d]{0,40}$", re.IGNORECASE
)
_STATE = re.compile(r"\bstates?\b|\boptimi[sz]er|\bAdam|\bgradients?\b|\bbytes (?:per|/|a) ?param", re.IGNORECASE)
_ALL_STATE = ("[12]", "[14]", "[16]", "[18]", "[20]")
_STORED = (
    ("2", r"\bu?int16\b|\b16-bit\b|\b2 bytes (?:per|each|a) ?(?:token|id)?"),
    ("4", r"\bu?int32\b"),
    ("8", r"\bu?int64\b"),
)
_NUMBER_KEPT = re.compile(r"(?<![\d.,])(\d[\d,]*)\s(?:\w+\s){0,2}checkpoints\b(?!\s(?:per|a|each)\b)", re.IGNORECASE)
_APIECE = re.compile(r"\s?(?:each|apiece|per checkpoint|a piece|per save)\b", re.IGNORECASE)
_TOGETHER = re.compile(
    r"\b(?:total|altogether|in all|together|of (?:disk|storage|space)|on disk|disk|storage|volume)\b", re.IGNORECASE
)
_HOLDS = re.compile(r"\b(?:fits?|holds?|enough|plenty|suffic\w+|room)\b", re.IGNORECASE)
_ACTIVE = re.compile(r"\bactiv(?:e|ates?|ated|ating)\b", re.IGNORECASE)
_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?(?:B|billion)\b(?![- ]?tok)", re.IGNORECASE)
_SPARSE = 1.5  # times the active weights
_LOADED = re.compile(r"\b(?:weights?|V?RAM|memory|load\w*|serv\w+|hold\w*)\b", re.IGNORECASE)
_NOT_ALL = re.compile(
    r"offload|per[- ](?:GPU|card)|expert[- ]parallel|\bnot\b|n't\b|\bmore than\b|\bKV\b|\btraining\b", re.IGNORECASE
)
_DECODES = re.compile(r"\bdecod\w+|\bgenerat\w+|\bbatch (?:size )?(?:of )?(?:1|one)\b|single[- ]stream", re.IGNORECASE)
_LEAST, _LEAST_MODEL = 1e6, 1e7


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such number of a sentence or bullet."""
    for passage in document.passages:
        text = passage.text
        found = figures(text)
        sizes = [f for f in found if f.dimension == "bytes" and f.value >= _LEAST and not _OF_A_CARD.match(text, f.end)]
        cards = mentions(text)
        sizes = [f for f in sizes if not any(card.start <= f.start < card.end for card in cards)]
        if "?" in text or not found:
            continue
        stated = stated_once(text, found)
        yield from _experts(passage, found, sizes)
        yield from _decoded(passage, found)
        yield from _adapter(passage, found)
        if sizes and not SPARSE_MODEL.search(text):
            yield from _part(passage, sizes)
            yield from _logits(passage, sizes, stated)
            yield from _share(passage, sizes, stated)
            yield from _token_file(passage, sizes, stated)
            yield from _kept(passage, found)
        yield from _cache(passage, found, stated)


def _claim(passage: Passage, value: str, readings: Sequence[str]) -> Drafted:
    says = {"value": value, "readings": list(dict.fromkeys(readings)), "in_units": True}
    return Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _formats(text: str) -> list[float]:
    """Bytes of each number format that a text names."""
    return [each for each, pattern in _FORMATS if pattern.search(text)]


def _size(text: str) -> Quantity | None:
    size = size_told(text)
    return size if size is not None and size.low >= _LEAST_MODEL else None


def _part(passage: Passage, sizes: Sequence[Figure]) -> Iterator[Drafted]:
    """As "about 12 GB for Adam's moments of the 3B model", "its 4-bit weights occupy 14 GB"."""
    text, size = passage.text, _size(passage.text)
    if size is None or len(sizes) != 1 or sizes[0].side or _ELSEWISE.search(_NO_OFFLOADING.sub("", text)):
        return
    figure = sizes[0]
    earlier = _SIZES_AND_FORMATS.sub("_", text[: figure.start])
    named = [part for part, before, behind in _ONE_PART if before.search(earlier) or behind.match(text[figure.end :])]
    if len(named) != 1 or (named[0] != "weights" and _ADAPTER.search(text)):
        return
    formats = _formats(text)
    if len(formats) > 1 or (not formats and named[0] == "weights"):
        return
    each = (
        [_BYTES[named[0]][formats[0]]] if formats and formats[0] in _BYTES[named[0]] else [*_UNTOLD.get(named[0], ())]
    )
    if named[0] == "moments" and formats != [1.0]:
        each.append(_WITH_MASTERS)
    if each:
        yield _claim(passage, figure.quantity.text, [f"[{size.text.lstrip('~')}] * {one}" for one in each])


def _adapter(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "LoRA of rank 16 on one 4096 × 4096 projection adds 131,072 parameters"."""
    text = passage.text
    shape, ranks = _MATRIX.findall(text), _RANK.findall(text)
    counts = [
        f for f in found if f.dimension == "count" and re.match(r"(?:trainable |extra |new )?(?:param|weight)", f.noun)
    ]
    if not (len(shape) == len(ranks) == len(counts) == 1) or not _ADAPTER.search(text) or not _ONE_MATRIX.search(text):
        return
    (rows, columns), rank = shape[0], "".join(ranks[0])
    if counts[0].value > 0 and not counts[0].side:
        yield _claim(passage, counts[0].quantity.text, [f"[{rank}] * ([{rows}] + [{columns}])"])


def _logits(passage: Passage, sizes: Sequence[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "at batch 16, length 2048 and 128,256 tokens of vocabulary the fp32 logits take 17 GB"."""
    batch = stated.get("batch") or stated.get("micro") or stated.get("sequences")
    needed = (batch, stated.get("sequence"), stated.get("vocabulary"))
    if len(sizes) != 1 or not _LOGITS.search(passage.text) or sizes[0].side:
        return
    operands = [f"[{f.quantity.text}]" for f in needed if f is not None]
    if len(operands) == len(needed):
        formats = _formats(passage.text)
        each = [k * formats[0] for k in (1, 2, 3)] if len(formats) == 1 else [2, 4, 6, 8, 10, 12, 16]
        yield _claim(passage, sizes[0].quantity.text, [f"{' * '.join(operands)} * {one:g}" for one in each])


def _cache(passage: Passage, found: Sequence[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "32 layers, 8 key-value heads of 128: each cached token takes 128 KiB in bf16"."""
    text = passage.text
    sizes = [f for f in found if f.dimension == "bytes" and f.value > 1e3 and not _OF_A_CARD.match(text, f.end)]
    if not _CACHE.search(text) or len(sizes) != 1 or "layers" not in stated or sizes[0].side:
        return
    heads = stated.get("kv_heads") or stated.get("heads")
    if heads and "head_dim" in stated:
        width = f"[{heads.quantity.text}] * [{stated['head_dim'].quantity.text}]"
    elif "width" in stated and "kv_heads" not in stated:
        width = f"[{stated['width'].quantity.text}]"
    else:
        return
    formats = _formats(text)
    each = formats[0] if len(formats) == 1 else 2.0
    tokens = stated.get("sequence") or stated.get("tokens")
    if tokens is None and not _EACH_TOKEN.search(text):
        return
    reading = f"2 * {each:g} * [{stated['layers'].quantity.text}] * {width}"
    reading += f" * [{tokens.quantity.text}]" if tokens else ""
    reading += f" * [{stated['batch'].quantity.text}]" if tokens and "batch" in stated else ""
    yield _claim(passage, sizes[0].quantity.text, [reading])


def _share(passage: Passage, sizes: Sequence[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "with ZeRO-3 over 8 cards the 7B model's states take 14 GB on each"."""
    text, size = passage.text, _size(passage.text)
    counts = {str(card.count) for card in mentions(text) if card.count}
    counts |= {stated["gpus"].quantity.text} if "gpus" in stated else set()
    each = [f for f in sizes if _A_RANK.match(text[f.end :]) or _EACH_RANK.search(text[: f.start])]
    if size is None or len(counts) != 1 or len(each) != 1 or each[0].side or not _STATE.search(text):
        return
    if _SHARDED.search(text) and not re.search(r"offload|activation|\bLoRA|8-?bit", text, re.IGNORECASE):
        number = counts.pop()
        own = stated.get("bytes_per_param")
        parts = [f"[{own.value:g}]"] if own else _ALL_STATE
        readings = [f"[{size.text.lstrip('~')}] * {part} / [{number}]" for part in parts]
        yield _claim(passage, each[0].quantity.text, readings)


def _token_file(passage: Passage, sizes: Sequence[Figure], stated: Mapping[str, Figure]) -> Iterator[Drafted]:
    """As "10B tokens as uint16 are 20 GB"."""
    tokens = stated.get("tokens") or stated.get("dataset")
    kinds = [each for each, pattern in _STORED if re.search(pattern, passage.text, re.IGNORECASE)]
    if tokens is not None and len(sizes) == 1 == len(kinds) and not sizes[0].side:
        yield _claim(passage, sizes[0].quantity.text, [f"[{tokens.quantity.text}] * {kinds[0]}"])


def _kept(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "40 checkpoints of 12 GB each are 480 GB", "a volume of 200 GB holds 40 checkpoints of 12 GB each"."""
    text = passage.text
    number = _NUMBER_KEPT.search(text)
    sizes = [f for f in found if f.dimension == "bytes"]
    each = [f for f in sizes if _APIECE.match(text, f.end)]
    rest = [f for f in sizes if f not in each]
    if number is None or len(each) != 1 or len(rest) != 1 or not _TOGETHER.search(text):
        return
    held = _HOLDS.search(text) is not None
    if re.search(r"\bnot\b|n't\b|\btoo\b|\bexceed|\bsmall", text):
        return
    value = f"<{rest[0].quantity.text.lstrip('~<>')}" if held else rest[0].quantity.text
    if held or not rest[0].side:
        yield _claim(passage, value, [f"[{number[1]}] * [{each[0].quantity.text}]"])


def _experts(passage: Passage, found: Sequence[Figure], sizes: Sequence[Figure]) -> Iterator[Drafted]:
    """As "3B of its 30B parameters are active, so it loads in 6 GB": all experts are held, the active ones reckon."""
    text = passage.text
    told = sorted({float(m[1]) for m in _BILLIONS.finditer(text)})
    if len(told) != 2 or not _ACTIVE.search(text) or told[1] < _SPARSE * told[0]:
        return
    formats = _formats(text)
    if len(sizes) == 1 == len(formats) and _LOADED.search(text) and not _NOT_ALL.search(text):
        says = {"value": sizes[0].quantity.text, "parameters": f"{told[1]:g} billion", "bytes_each": f"{formats[0]:g}"}
        yield Drafted(kind="weights_memory", line=passage.line, text=shortened(text), says=says)
    work = [f for f in found if f.dimension == "work" and f.value > 1e17]
    tokens = [f for f in found if f.dimension == "count" and f.noun.startswith("token") and f.scaled]
    if len(work) == 1 == len(tokens):
        says = {"value": f"~{work[0].quantity.text.lstrip('~')}", "parameters": f"{told[0]:g} billion"}
        says |= {"tokens": tokens[0].quantity.text}
        yield Drafted(kind="training_work", line=passage.line, text=shortened(text), says=says)


def _decoded(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "14 GB of weights for each token at 936 GB/s: 300 tokens/s at batch 1": each token reads all weights once."""
    text = passage.text
    rates = [f for f in found if f.dimension == "rate" and f.value > 0]
    widths = [f for f in found if f.dimension == "bandwidth"]
    read = [
        f
        for f in found
        if f.dimension == "bytes" and f.value > 1e8 and re.match(r"[^.;,]{0,25}\bweights\b", text[f.end :])
    ]
    if len(rates) == len(widths) == len(read) == 1 and _DECODES.search(text) and not re.search(r"specul|draft", text):
        reading = f"[0-1] * [{widths[0].quantity.text}] / [{read[0].quantity.text}]"
        yield _claim(passage, rates[0].quantity.text, [reading])
