"""What a sentence draws from its own numbers: the share of one device, passes over data, bytes by bits, more cards.

Only what units and the words beside the numbers settle; a number whose subject stands elsewhere is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper.cards import mentions
from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.equations import equations
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.stated import size_in
from advisor.auditing.paper.words import SPARSE_MODEL, phrase

_DEVICES = r"(?:GPUs?|devices?|cards?|chips?|accelerators?|nodes?|[AHBV]\d{2,3}s?)"
_OF_EACH = re.compile(rf"\s*(?:per|/|each|on each)\s*(?:single )?{_DEVICES}\b", re.IGNORECASE)
_A_SECOND = re.compile(
    r"\s*(?:tok\w*|seq\w*|samples?|examples?|images?)\s*(?:/|per)\s*s(?:ec(?:ond)?)?\b", re.IGNORECASE
)
_SO_EACH = re.compile(r"[^.;\d]{0,50}?(?:,|\(|=|\bor\b|\bso\b|i\.e\.,?|\bthat is\b)\s*(?:so |or |i\.e\.,? |about |~)?")
_EPOCHS = re.compile(r"epochs?\b|pass(?:es)?\b")
_ARE = re.compile(r"[^.;\d]{0,40}(?:\b(?:is|are|makes?|means|i\.e\.,?)|=)\s*(?:only |just )?")
_OVER = re.compile(r"[^.;\d]{0,30}\b(?:of|over|through|on)\b[^.;\d]{0,30}")
_LEAST_DATA = 1000
_BITS = re.compile(r"\b(4|8|16|32)[- ]?bits?\b|\b(?:b?fp?|b?float|int)-?(4|8|16|32)\b", re.IGNORECASE)
_TAKES = re.compile(r"\b(?:needs?|takes?|is|requires?|occup\w+|becomes?|uses?|weighs?|fits? in)\b|=", re.IGNORECASE)
_MORE_THAN_WEIGHTS = re.compile(
    r"LoRA|adapter|\bKV\b|activation|context|\btrain|fine-?tun|total|optimi[sz]er|checkpoint|gradient|overhead|reduc"
    r"|sav(?:es?|ing)|instead|from\b|cards?\b|GPUs\b",
    re.IGNORECASE,
)
_OVERHEADS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)  # times the weights: scales of quantised blocks, buffers
_MOMENTS = re.compile(r"\b(?:two|both|2) (?:fp32 )?(?:\w+ )?(?:moments?|states|copies|values|momentum)", re.IGNORECASE)
_HALVED = re.compile(r"bf16|fp16|float16|half|16-?bit|8-?bit|2 bytes|quanti", re.IGNORECASE)
_STATES = re.compile(r"\b(?:optimi[sz]er|Adam\w*)\b[^.]{0,20}\bstates?\b|\bmoments?\b", re.IGNORECASE)
_IN_FP32 = re.compile(r"\bfp32\b|\bfloat32\b|\b32-?bit\b|\bfull precision\b", re.IGNORECASE)
_OF_MORE = re.compile(r"\b(?:each|per (?:state|moment)|master|weights?|gradients?|total|instead|vs)\b", re.IGNORECASE)
_MOST_EACH = 64  # bytes a parameter
_WITH_STATES = re.compile(
    r"\b(?:with|includ\w+|plus|\+|and)\b[^.;]{0,20}\b(?:AdamW?|optimi[sz]er|moments?)\b", re.IGNORECASE
)
_OF_SEVERAL = re.compile(
    r"\b(?:total|all|keep|last \d|\d+ checkpoints|without|only|8-?bit|LoRA|adapter)\b", re.IGNORECASE
)
_BYTES_SAVED = (6, 8, 10, 12, 14, 16, 18)  # a parameter: all in bf16, to weights twice and gradients beside the moments
_MORE_CARDS = re.compile(rf"\b(\d+)\s*(?:to|→|->)\s*(\d+)\s*(?:x\s*)?{_DEVICES}", re.IGNORECASE)
_OF_A_CARD = re.compile(r"(?:GPU|card|chip|[AHBV]\d{2,3}\w*)", re.IGNORECASE)
_OF_ONE = re.compile(r"\b(?:each|single|one|a|per)\s+(?:GPU|card|[AHBV]\d{2,3})\b(?![- ]h)", re.IGNORECASE)

_A_MONTH = phrase(r"\b(?:monthly|(?:per|a|each) month)\b[^.;$]{0,40}$", re.IGNORECASE)
_MONTHLY = re.compile(r"\s*(?:/|per|a)\s?month\b", re.IGNORECASE)
_PERIOD = re.compile(r"\s?(?:/|per|a|each)\s?(day|week|month|year|yr|mo)\b", re.IGNORECASE)
_DAYS = {"day": 1.0, "week": 7.0, "month": 365 / 12, "mo": 365 / 12, "year": 365.0, "yr": 365.0}
_HOURS_A_MONTH = 730
_HALVES = phrase(r"\bhalv\w+\b[^.;]{0,20}\bweights?\b|\bweights?\b[^.;]{0,20}\bhalv\w+", re.IGNORECASE)
_FOUR_BITS = re.compile(r"\b4[- ]?bits?\b|\bNF4\b|\bint4\b", re.IGNORECASE)
_EIGHT_BITS = re.compile(r"\b8[- ]?bits?\b|\bint8\b|\bfp8\b", re.IGNORECASE)
_SIXTEEN = re.compile(r"\bbf16\b|\bfp16\b|\b16[- ]?bits?\b|\bhalf[- ]precision\b", re.IGNORECASE)
_LEAST_NEEDED = re.compile(r"\b(?:minimum(?: of)?|at least|requires?|needs?)\s+$", re.IGNORECASE)
_A_PARAMETER = re.compile(r"\s*(?:/|per|for each|an?|each)\s*param", re.IGNORECASE)
_SO_MUCH = re.compile(
    r"^[^.;\d]*(?:\bso|\bthus|\bor|\bi\.e\.,?|[=≈→]|\bthat is|\bwhich is|\bmakes?|\bgives?)\s*(?:about |around )?~?$"
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of a passage."""
    everywhere = _counts(document.passages)
    for passage in document.passages:
        found = figures(passage.text)
        yield from _of_each(passage, found, everywhere)
        yield from _epochs(passage, found)
        yield from _by_bits(passage, found)
        yield from _by_bytes(passage, found)
        yield from _moments(passage)
        yield from _bytes_of_moments(passage, found)
        yield from _of_checkpoint(passage, found)
        yield from _more_cards(passage, found)
        own = [p for p in document.passages if p.section == passage.section]
        yield from _of_all_cards(passage, found, _counts(own))
        yield from _hour_of_month(passage, found, _counts(own))
        yield from _by_period(passage, found)
        yield from _halved(passage, own)
        yield from _alike(passage.text, passage.line)
    for grid in document.grids:
        for row in grid.rows:
            for cell in row.cells:
                yield from _alike(cell, row.line)


def _counts(passages: Sequence[Passage]) -> set[int]:
    """Every number of devices that is stated."""
    texts = {p.text for p in passages} | {h for p in passages for h in p.headings}
    named = {card.count for text in texts for card in mentions(text) if card.count}
    return named | {
        int(n) for text in texts for n in re.findall(rf"(?<![\d.,])(\d{{1,5}})\s?x?\s?{_DEVICES}\b(?![- ]?h)", text)
    }


def _of_each(passage: Passage, found: Sequence[Figure], everywhere: set[int]) -> Iterator[Drafted]:
    """As "291k tokens/s for the box, 36k per device": a rate and the share of each, for any stated number of them."""
    numbers = sorted(n for n in everywhere if n > 1)
    for whole, each in zip(found, found[1:], strict=False):
        behind, between = passage.text[each.end :], passage.text[whole.end : each.start]
        rated = whole.dimension == "rate" or _A_SECOND.match(passage.text, whole.end)
        alone = each.dimension == "rate" or (each.dimension == "count" and _OF_EACH.match(behind))
        if not rated or not alone or not _OF_EACH.match(behind) or _OF_EACH.match(between):
            continue
        if numbers and each.value < whole.value and _SO_EACH.fullmatch(between):
            total = whole.quantity.text if each.dimension == whole.dimension else f"{whole.value:.8g}"
            readings = [f"[{total}] / {n}" for n in numbers]
            yield _claim(passage, each, readings)


def _epochs(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "6.1M characters, which is 30 epochs of its 201,570" and "930M tokens over 470M tokens is 2 epochs"."""
    for one, two, three in zip(found, found[1:], found[2:], strict=False):
        first, second = passage.text[one.end : two.start], passage.text[two.end : three.start]
        are = _ARE.fullmatch(first) or re.fullmatch(r"\s*tokens?\s?[,(]\s*", first)
        if _EPOCHS.match(two.noun) and are and _OVER.fullmatch(second):
            data, passes, unique = one, two, three
        elif _EPOCHS.match(three.noun) and _OVER.fullmatch(first) and _ARE.fullmatch(second):
            data, unique, passes = one, two, three
        else:
            continue
        if {data.dimension, unique.dimension, passes.dimension} == {"count"} and unique.value >= _LEAST_DATA:
            yield _claim(passage, passes, [f"[{data.quantity.text}] / [{unique.quantity.text}]"])


def _by_bits(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "a 7B model in 4 bits takes 3.5 GB": its weights, and some more for scales and buffers."""
    text = passage.text
    bits, size = {int(one or other) for one, other in _BITS.findall(text)}, size_in(text)
    stated = [f for f in found if f.dimension == "bytes"]
    if len(bits) != 1 or size is None or not stated or SPARSE_MODEL.search(text) or _MORE_THAN_WEIGHTS.search(text):
        return
    value = stated[-1]
    if len(stated) > 1 and not re.search(r"=\s*~?$", text[: value.start]):
        return
    if value.side or not _TAKES.search(text[: value.start]) or size.low < _LEAST_DATA:
        return
    each = bits.pop() / 8
    yield _claim(passage, value, [f"[{size.text.lstrip('~')}] * {each * k:g}" for k in _OVERHEADS])


def _by_bytes(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "a 7B model takes 16 bytes per parameter, so 112 GB"."""
    text, size = passage.text, size_in(passage.text)
    if size is None or SPARSE_MODEL.search(text) or size.low < _LEAST_DATA:
        return
    for each, total in zip(found, found[1:], strict=False):
        both = each.dimension == total.dimension == "bytes" and not total.side
        if both and _A_PARAMETER.match(text, each.end) and _SO_MUCH.search(text[each.end : total.start]):
            yield _claim(passage, total, [f"[{size.text.lstrip('~')}] * {each.value:g}"])


def _moments(passage: Passage) -> Iterator[Drafted]:
    """As "Adam keeps two moments: 7 billion × 4 bytes = 28 GB": one of the two is left out."""
    text = passage.text
    if not _MOMENTS.search(text) or not re.search(r"\bAdamW?\b|optimi[sz]er", text) or _HALVED.search(text):
        return
    for equation in equations(text, passage.line):
        operands = re.findall(r"\[([^\]]+)\]", equation.says["readings"][0])
        if len(operands) == 2 and operands[1] == "4 B" and "*" in equation.says["readings"][0]:
            says = {"value": equation.says["value"], "readings": [f"[{operands[0]}] * 8"], "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says)


def _bytes_of_moments(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "AdamW keeps 4 bytes a parameter in fp32": two moments of 4 bytes."""
    text = passage.text
    if (
        not re.search(r"\bAdamW?\b", text)
        or not _STATES.search(text)
        or not _IN_FP32.search(text)
        or _HALVED.search(text)
    ):
        return
    each = [f for f in found if f.dimension == "bytes" and _A_PARAMETER.match(text, f.end) and f.value < _MOST_EACH]
    if len(each) == 1 and not _OF_MORE.search(text) and not each[0].side:
        says = {"value": each[0].quantity.text, "readings": ["[8 B]"], "in_units": True}
        yield Drafted(kind="expression", line=passage.line, text=shortened(text), says=says)


def _of_checkpoint(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "each checkpoint of the 1.3B model is 2.6 GB, with Adam's states": weights and two moments at the least."""
    text, size = passage.text, size_in(passage.text)
    stated = [f for f in found if f.dimension == "bytes"]
    told = re.search(r"\bcheckpoints?\b", text, re.IGNORECASE) and _WITH_STATES.search(text)
    if size is None or size.low < _LEAST_DATA or len(stated) != 1 or not told or SPARSE_MODEL.search(text):
        return
    if not re.search(
        r"\b(?:total|all|keep|last \d|\d+ checkpoints|without|only|8-?bit|LoRA|adapter)\b", text, re.IGNORECASE
    ):
        yield _claim(passage, stated[0], [f"[{size.text.lstrip('~')}] * {each}" for each in _BYTES_SAVED])


def _more_cards(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "from 8 to 16 devices the job went from 125 hours to 48 hours"."""
    cards = _MORE_CARDS.findall(passage.text)
    times = [f for f in found if f.dimension == "seconds"]
    if len(cards) != 1 or len(times) != 2 or re.search(r"token|param|\d+\s?B\b", passage.text):
        return
    if re.fullmatch(r"\s*(?:to|→|->|down to)\s*(?:about |~)?", passage.text[times[0].end : times[1].start]):
        says = {"value": times[1].quantity.text, "gpus": cards[0][1]}
        says |= {"than": times[0].quantity.text, "than_gpus": cards[0][0]}
        yield Drafted(kind="linear_speedup", line=passage.line, text=shortened(passage.text), says=says)


def _of_all_cards(passage: Passage, found: Sequence[Figure], counts: set[int]) -> Iterator[Drafted]:
    """As "19 days × 24 h × $2.50 per H100-hour = $1,152" where 64 of them run: the price of one, not of all."""
    numbers = {n for n in counts if n > 1}
    prices = [f for f in found if f.dimension == "usd_per_hour" and _OF_A_CARD.search(f.raw)]
    several = any(f.dimension == "gpu_hours" or f.value in numbers for f in found) or _OF_ONE.search(passage.text)
    if len(numbers) != 1 or 1 in counts or len(prices) != 1 or several:
        return
    for equation in equations(passage.text, passage.line):
        reading, value = equation.says["readings"][0], equation.says["value"]
        product = set(re.findall(r"[-+*/]", re.sub(r"\[[^\]]*\]", "", reading))) == {"*"}
        if "$" in value and f"[{prices[0].quantity.text}]" in reading and product:
            bare = re.sub(r"\[[~$]*([\d.,]+)[^\]]*\]", r"[\1]", reading)
            says = {"value": value, "readings": [f"{bare} * {numbers.pop()}"], "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)
            return


def _hour_of_month(passage: Passage, found: Sequence[Figure], counts: set[int]) -> Iterator[Drafted]:
    """As "8 cards: $8,000 a month, or $1.00/GPU-hour": the month by its hours and by the number of cards."""
    paid = [f for f in found if f.dimension == "usd"]
    each = [f for f in found if f.dimension == "usd_per_hour" and _OF_A_CARD.search(f.raw)]
    monthly = [f for f in paid if _A_MONTH.search(passage.text[: f.start]) or _MONTHLY.match(passage.text, f.end)]
    if len(monthly) != 1 or len(each) != 1 or not _SO_EACH.fullmatch(passage.text[monthly[0].end : each[0].start]):
        return
    numbers = sorted(n for n in counts if n > 1) or [1]
    readings = [f"[{monthly[0].quantity.text}] / {_HOURS_A_MONTH} / {n}" for n in numbers]
    bare = each[0].quantity.text.removesuffix("/h").strip()  # dollars either way
    says = {"value": f"~{bare.lstrip('~')}", "readings": readings, "in_units": True}
    yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _by_period(passage: Passage, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "$2.04/week = $106/month": the same money by days, weeks, months or years."""
    paid = [(f, match) for f in found if f.dimension == "usd" and (match := _PERIOD.match(passage.text, f.end))]
    for (one, by), (other, then) in zip(paid, paid[1:], strict=False):
        between = passage.text[by.end() : other.start]
        days, more = _DAYS[by[1].lower()], _DAYS[then[1].lower()]
        if days != more and re.fullmatch(r"\s*(?:=|≈|→|, or|or|, i\.e\.)\s*(?:about |~)?", between):
            readings = [f"[{one.quantity.text}] * {more / days:.8g}", f"[{one.quantity.text}] * {round(more / days)}"]
            says = {"value": f"~{other.quantity.text.lstrip('~')}", "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _halved(passage: Passage, section: Sequence[Passage]) -> Iterator[Drafted]:
    """As "4-bit weights halve the memory of bf16 ones": 16 bits to 4 are a quarter."""
    match = _HALVES.search(passage.text)
    words = " ".join(p.text for p in section)
    if match is None or not _FOUR_BITS.search(passage.text) or _EIGHT_BITS.search(words) or not _SIXTEEN.search(words):
        return
    says = {"value": "~0.5 x", "readings": ["[4 bits] / [16 bits]"], "in_units": True}
    yield Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)


def _alike(text: str, line: int) -> Iterator[Drafted]:
    """As "at least 2x H100 80GB or 4x A100 80GB": cards that hold the same are needed in the same number."""
    named = [m for m in mentions(text) if m.count and m.memory_gb]
    if len(named) != 2 or not _LEAST_NEEDED.search(text[: named[0].start]) or named[0].count == named[1].count:
        return
    between = text[named[0].end : named[1].start]
    if named[0].memory_gb == named[1].memory_gb and re.fullmatch(r"\s*(?:,\s*)?or\s*", between):
        values = [f"{m.count * m.memory_gb:g} GB" for m in named if m.count and m.memory_gb]
        yield Drafted(kind="agreement", line=line, text=shortened(text), says={"values": values})


def _claim(passage: Passage, value: Figure, readings: list[str]) -> Drafted:
    text = value.quantity.text
    says = {"value": text if text.startswith("~") else f"~{text}", "readings": readings, "in_units": True}
    return Drafted(kind="expression", line=passage.line, text=shortened(passage.text), says=says)
