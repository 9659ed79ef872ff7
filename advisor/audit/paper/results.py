"""What a text concludes from a result, where chance or a definition says otherwise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from advisor.audit.paper.document import Document, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import figures
from advisor.audit.paper.words import phrase
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of

_LEARNT = re.compile(
    r"\b(?:shows?|showing|demonstrat\w+|proves?|indicat\w+|strong|solid|evidence|knowledge|understands?|impressive|excellent|good|great|learn(?:s|ed|t|ing)"
    r"|capab\w+|reasoning abilit\w+|competitive|outperform\w*|beats?|surpass\w*)\b",
    re.IGNORECASE,
)
_TIMES_CHANCE = re.compile(
    r"\b(?:double|twice|2x|well above|far above|clearly above)\b[^.;]{0,25}\b(?:chance|random|guess\w*)", re.IGNORECASE
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
    r"(?:\(|,|is|=|\bor\b|i\.e\.,?|\s)+(?:about |~|only |just |a modest |roughly )*(?P<share>\d+(?:\.\d+)?)\s?%",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\bnot\b|n't\b|\bno\b|\bnever\b|\bwithout\b|\bmyth|\bmisconception|\bneither\b|\bunlike\b|\brather than\b|\?",
    re.IGNORECASE,
)
_COUNTED = {"one": 1, "two": 2, "four": 4, "eight": 8, "sixteen": 16}
# what remains of the peak rate, by the schedule and the share of it that is done
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
}
_RATES = re.compile(r"(?<![\w.])(\d(?:\.\d+)?e-\d+|0?\.0\d+)(?!\w|\.\d)")
_HALFWAY = re.compile(r"\bhalf-?way\b|\bmidpoint\b|\bhalf of (?:the )?training\b|\bmiddle of\b", re.IGNORECASE)
_AT_STEP = re.compile(r"\bsteps? (\d[\d,]*)|(\d[\d,]*) steps\b", re.IGNORECASE)
_TO_ZERO = re.compile(r"\bto (?:zero|0)\b", re.IGNORECASE)
_NATS = re.compile(r"\b(?:loss|cross[- ]entropy|NLL)\b[^.;\d]{0,20}(\d+(?:\.\d+)?)|(\d+\.\d+) nats", re.IGNORECASE)
_TOKEN_BYTES = re.compile(r"(\d+(?:\.\d+)?) bytes (?:per|a|/) token", re.IGNORECASE)
_BITS_A_BYTE = re.compile(r"(\d+(?:\.\d+)?) (?:bits per byte|bpb)|\bbpb (?:of|is|=|:) ?(\d+(?:\.\d+)?)", re.IGNORECASE)
_SCALING = re.compile(r"\befficien\w+|\bof (?:perfect |ideal )?linear\b", re.IGNORECASE)
_CARDS_AT_WORK = re.compile(
    rf"\b(\d+|{'|'.join(_COUNTED)})(?: (?:GPUs?|cards?|of them))?\s(?=gave|give|gets?|got|reach|do\b|did|deliver"
    rf"|ran|run|\()",
    re.IGNORECASE,
)
_EMITTED = re.compile(
    r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s?(g|kg|tonnes?|tons?|t)\s?(?:of )?CO2?\w*\s*(/|per)?", re.IGNORECASE
)
_GRAMS = {"g": 1.0, "kg": 1e3, "t": 1e6, "ton": 1e6, "tons": 1e6, "tonne": 1e6, "tonnes": 1e6}
_LENGTHS = phrase(
    r"\b(?:context|sequence|length)\b[^.;\d]{0,30}from (?P<one>\d[\d,]*)(?: tokens)? to (?P<two>\d[\d,]*)",
    re.IGNORECASE,
)
_BY = re.compile(
    r"\bby (?:a factor of )?(?:about |~)?(\d+(?:\.\d+)?)\b(?!\s?%)|\b(\d+(?:\.\d+)?)\s?(?:x|×|times)\b", re.IGNORECASE
)
_ALL_PAIRS = re.compile(r"\battention[- ](?:score|matri|map|FLOPs|compute)\w*|\bscore matrix\b", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a sentence or bullet."""
    for passage in document.passages:
        yield from _chance(passage)
        yield from _below_training(passage)
        yield from _efficiency(passage)
        yield from _formats(passage)
        yield from _warm_up(passage)
        yield from _rate_at(passage)
        yield from _per_byte(passage)
        yield from _scaled(passage)
        yield from _carbon(passage)
        yield from _squared(passage)


def _chance(passage: Passage) -> Iterator[Drafted]:
    """As "26 % on HellaSwag shows that it has learnt commonsense"."""
    text = passage.text
    shares = [f for f in figures(text) if f.dimension == "fraction"]
    task = benchmark_of(text)
    learnt = _TIMES_CHANCE.search(text) or (_LEARNT.search(text) and not _DOUBTED.search(text))
    if task and len(shares) == 1 and BENCHMARKS[task].chance and learnt:
        says = {"task": task, "value": shares[0].quantity.text}
        yield Drafted(kind="evaluation", line=passage.line, text=shortened(text), says=says)


def _below_training(passage: Passage) -> Iterator[Drafted]:
    """As "a validation loss of 1.2 at a training loss of 3.4: it generalises very well"."""
    own, held = (pattern.findall(passage.text) for pattern in (_TRAIN_LOSS, _VAL_LOSS))
    praised = _WELL.search(passage.text) and not _DENIED.search(passage.text)
    if praised and len(own) == len(held) == 1 and 0 < float(held[0]) < _FAR_BELOW * float(own[0]):
        says = {"that": "validation_far_below_training"}
        yield Drafted(kind="generality", line=passage.line, text=shortened(passage.text), says=says)


def _efficiency(passage: Passage) -> Iterator[Drafted]:
    """As "a scaling efficiency of 120 %"."""
    shares = [f for f in figures(passage.text) if f.dimension == "fraction"]
    told = _SCALES.search(passage.text) and len(shares) == 1 and shares[0].quantity.low > _MORE_THAN_ALL
    if told and not _DOUBTED.search(passage.text):
        says = {"that": "scales_beyond_all"}
        yield Drafted(kind="generality", line=passage.line, text=shortened(passage.text), says=says)


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


def _expression(passage: Passage, value: str, *readings: str) -> Drafted:
    says = {"value": value, "readings": list(readings), "in_units": True}
    return Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _rate_at(passage: Passage) -> Iterator[Drafted]:
    """As "cosine from 6e-4 to zero: halfway the learning rate is 3e-4"."""
    text = passage.text
    named = [name for name in _SCHEDULES if re.search(rf"\b{name}(?:ly)?\b", text, re.IGNORECASE)]
    rates = _RATES.findall(text)
    if len(named) != 1 or len(rates) != 2 or not _TO_ZERO.search(text) or re.search(r"warm-?up of|\?", text):
        return
    steps = sorted({float((a or b).replace(",", "")) for a, b in _AT_STEP.findall(text)} - {0.0})
    if _HALFWAY.search(text) and len(steps) < 2:
        done = 0.5
    elif len(steps) == 2 and not _HALFWAY.search(text):
        done = steps[0] / steps[1]
    else:
        return
    yield _expression(passage, rates[1], f"[{rates[0]}] * {_SCHEDULES[named[0]](done):.6g}")


def _per_byte(passage: Passage) -> Iterator[Drafted]:
    """As "2.77 nats a token at 4 bytes per token are 1.0 bits per byte"."""
    found = [pattern.findall(passage.text) for pattern in (_NATS, _TOKEN_BYTES, _BITS_A_BYTE)]
    if all(len(one) == 1 for one in found) and "?" not in passage.text:
        loss, each, bits = ("".join(one[0]) for one in found)
        yield _expression(passage, f"~{bits}", f"[{loss}] / [{each}] / {math.log(2):.6f}")


def _scaled(passage: Passage) -> Iterator[Drafted]:
    """As "one GPU gives 25k tok/s, eight give 120k tok/s: an efficiency of 60 %"."""
    text = passage.text
    rates = [f for f in figures(text) if f.dimension == "rate"]
    shares = [f for f in figures(text) if f.dimension == "fraction"]
    numbers = [_COUNTED.get(n.lower()) or int(n) for n in _CARDS_AT_WORK.findall(text) if not n.isdigit() or int(n)]
    if len(rates) != 2 or len(shares) != 1 or len(numbers) != 2 or not _SCALING.search(text):
        return
    if re.search(r"\bper (?:GPU|card)\b|\beach\b", text) or _DENIED.search(text):
        return
    (one, other), (few, many) = (f.quantity.text for f in rates), numbers
    yield _expression(passage, f"~{shares[0].quantity.text.lstrip('~')}", f"[{other}] / [{one}] / [{many}] * [{few}]")


def _carbon(passage: Passage) -> Iterator[Drafted]:
    """As "500 kWh at 400 g of CO2 per kWh are 200 kg"."""
    energy = [f for f in figures(passage.text) if f.dimension == "energy"]
    told = [(float(m[1].replace(",", "")) * _GRAMS[m[2].lower()], m) for m in _EMITTED.finditer(passage.text)]
    each, total = ([entry for entry in told if bool(entry[1][3]) is rate] for rate in (True, False))
    if len(energy) == len(each) == len(total) == 1:
        grams = f"~{total[0][0]:.10g}"
        yield _expression(passage, grams, f"[{energy[0].quantity.text}] / 3600000 * [{each[0][0]:.10g}]")


def _squared(passage: Passage) -> Iterator[Drafted]:
    """As "from 2,048 to 8,192 tokens the attention scores cost 16 times as much"."""
    lengths, times = _LENGTHS.search(passage.text), _BY.findall(passage.text)
    alone = not re.search(r"\bper token\b|\beach token\b|linear|flash|memory", passage.text, re.IGNORECASE)
    if lengths and len(times) == 1 and alone and _ALL_PAIRS.search(passage.text) and not _DENIED.search(passage.text):
        ratio = f"[{lengths['two']}] / [{lengths['one']}]"
        yield _expression(passage, "".join(times[0]), f"{ratio} * {ratio}")
