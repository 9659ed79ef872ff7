"""Arithmetic that a text writes out: "24 × 64 × 2 = 3,072 samples", "500B / 7B = 71:1"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper.document import Document, Passage
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures

_OPERATORS = {"×": "*", "x": "*", "*": "*", "/": "/", "÷": "/", "+": "+", "·": "*", "-": "-"}
_WORDS = r"(?:[A-Za-z][\w&'.-]*(?:[ /][A-Za-z&][\w&'.-]*){0,4})?"
_GAP = re.compile(
    rf"\s*{_WORDS}\s*(?:\([^()=]{{0,60}}\))?\s*(?P<close>\)?)\s*"
    r"(?:(?P<op>[×x*/÷+·-])|(?P<plus>\+)\s+(?:[A-Za-z][\w-]*\s+){1,3}(?:of )?~?)\s*(?P<open>\(?)\s*"
)
_ADDED = re.compile(r"[×x*/÷+-]\s*(?:[A-Za-z][\w-]*\s+){0,3}$")  # "+ optimizer 56 GB"
_EQUALS = re.compile(rf"\s*{_WORDS}\s*(?:\([^()=]{{0,60}}\))?\s*\)?\s*(?P<sign>=|≈|==|→)\s*(?:about |~)?\s*")
_LED = re.compile(
    r"\b(?:over|per|of|by|minus|plus|times)\s+$|[×x*/÷+^·]\s*\(?\s*$|[A-Za-z²³^]\s*[×*/÷·-]\s*$|\^\s*$|[A-Za-z_]\($"
)
_POWER = re.compile(r"\s*(?:\^|\*\*|[²³⁰-⁹]|!)|\s*[A-Za-z]?[²³]")
_NAMED = r"(?:[A-Za-z_][\w ]{0,20}\s?[=:]\s?)?"  # "batch=20"
_IS_MADE_OF = re.compile(
    r"[- ]?(?:tokens?|sequences?|samples?|batch)\b(?:[- ][a-z]+){0,3}\s+(?:is|are|means|comes from)\s+", re.IGNORECASE
)
_INNER = re.compile(rf"\s*{_WORDS}\s*(?P<op>[×x*/÷·])\s*{_NAMED}")
_REMARK = re.compile(r"\((?:for|on|with|using|assuming|at)\s[^()=]{1,60}\)")  # "(for 32 cards)"
_MOST = 8
_MASSES = re.compile(r"\d\s?(?:kg|g|t|tons?|tonnes?|lbs?)\s?(?:of )?(?:CO|\w*/kWh|\b\s?e\b)")

_BESIDE = 6  # letters
_SAME_DIGITS = 0.01  # of three powers of ten


def drafts(document: Document) -> Iterator[Drafted]:
    """Every equation of passages and cells, as a claim of kind `expression`."""
    for passage in _joined(document.passages):
        yield from equations(passage.text, passage.line)
    for grid in document.grids:
        for row in grid.rows:
            for cell in row.cells:
                yield from equations(cell, row.line)


def _joined(passages: Sequence[Passage]) -> Iterator[Passage]:
    """Lines of a code block that begin with an operator belong to the line above; the equation stands in the last."""
    held: Passage | None = None
    for passage in passages:
        if held and passage.fenced and held.fenced and re.match(r"[×÷+=≈]", passage.text) and "=" not in held.text:
            text = f"{held.text} {passage.text}"
            held = Passage(
                text=text, line=passage.line, headings=passage.headings, fenced=True, section=passage.section
            )
            continue
        if held:
            yield held
        held = passage
    if held:
        yield held


def equations(text: str, line: int) -> Iterator[Drafted]:
    """The equations of one piece of text, with an equals sign or with the arithmetic in parentheses."""
    if _MASSES.search(text):
        return  # units that are not read here
    remarks = [match.span() for match in _REMARK.finditer(text)]
    found = [f for f in figures(text) if not any(a < f.start and f.end < b for a, b in remarks)]
    yield from _explained(text, line, found)
    yield from _restated(text, line, found)
    for at in range(1, len(found)):
        gap = text[found[at - 1].end : found[at].start]
        equals = _EQUALS.fullmatch(gap + "≈" if found[at].raw.startswith(("≈", "∼")) else gap)
        if equals is None or equals["sign"] == "→" or _POWER.match(text, found[at].end):
            continue
        if re.match(r"\s*[×*÷]|\s*/\s*\d|\s+[x/+-]\s+[~$\d]", text[found[at].end :]):
            continue  # another expression, no result
        operands = _operands(text, found, at - 1)
        if operands is None:
            continue
        expression, first = operands
        parts = found[first:at]
        if found[at].dimension == "bytes" and not any(f.dimension == "bytes" or f.scaled for f in parts):
            continue  # bytes of something that stands further off
        readings = [expression]
        if found[at].dimension == "bytes":  # "16 B" is 16 bytes there
            readings.append(re.sub(r"\[(\d+(?:\.\d+)?) billion\](?!.*billion)", r"[\1 B]", expression))
            if any(re.match(r"-?bits?\b", part.noun) for part in parts):  # 7 billion × 4 bits = 3.5 GB
                readings.append(f"( {expression} ) / 8")
        yield Drafted(
            kind="expression",
            line=line,
            text=shortened(text[found[first].start : found[at].end]),
            says={
                "value": _value(found[at], approximate=equals["sign"] == "≈"),
                "readings": list(dict.fromkeys(readings)),
            },
        )


def _explained(text: str, line: int, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "65,536 tokens (4 × 16 × 1024)", "a 65,536-token step is 4 × 16 × 1024": a number and what it is made of."""
    for at in range(len(found) - 2):
        between = text[found[at].end : found[at + 1].start]
        told = _IS_MADE_OF.fullmatch(between)
        opened = re.fullmatch(rf"\s*{_WORDS}\s*\(\s*(?:=|i\.e\.,?|from)?\s*{_NAMED}", between)
        if (opened or told) is None or found[at].dimension in ("times", "fraction"):
            continue
        if re.search(r"[A-Za-z_]=$", text[: found[at].start]):
            continue  # a setting, and of what
        if found[at].dimension == "seconds" and re.match(r"tok|seq|sample|step|iter|batch", found[at + 1].noun):
            continue  # how much is done in that time
        last, pieces = at + 1, [f"[{found[at + 1].quantity.text}]"]
        while last + 1 < len(found):
            gap = _INNER.fullmatch(text[found[last].end : found[last + 1].start])
            if gap is None or _POWER.match(text, found[last].end):
                break
            pieces += [_OPERATORS[gap["op"]], f"[{found[last + 1].quantity.text}]"]
            last += 1
        end = r"(?:[.;,]|$)" if told else r"\)"
        closed = re.match(rf"\s*{_WORDS}\s*{end}", text[found[last].end :])
        if (
            last > at + 1
            and closed
            and not _POWER.match(text, found[last].end)
            and not _LED.search(text[: found[at].start])
        ):
            says = {"value": _value(found[at], approximate=False), "readings": [" ".join(pieces)]}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _restated(text: str, line: int, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "171 hours (~7 days)": one time, size or rate in two units."""
    for one, other in zip(found, found[1:], strict=False):
        units = {re.sub(r"[\d.,~$\s+-]", "", q.quantity.text) for q in (one, other)}
        same = one.dimension == other.dimension and one.dimension in ("seconds", "bytes", "flops", "rate", "gpu_hours")
        equal = re.fullmatch(r"\s*(?:≈|=|, i\.e\.,?|, or about)\s*~?", text[one.end : other.start] + other.raw[:1])
        equal = equal or re.fullmatch(r"\s*(?:=|, i\.e\.,?|, or about)\s*", text[one.end : other.start])
        equal = equal or (re.fullmatch(r"\s*,? or\s*", text[one.end : other.start]) if other.about else None)
        alone = _ADDED.search(text[: one.start]) is None and not re.match(r"\s*[×*/÷+]", text[other.end :])
        alone = alone and not re.match(r"\s*(?:/|per\b|each\b)", text[other.end :])
        if same and equal and alone and one.raw != other.raw:
            says = {"value": _value(other, approximate=True), "readings": [f"[{one.quantity.text}]"], "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)
            continue
        opened = re.match(r"\s*\(\s*(?:≈|~|about |=|i\.e\.,?)", text[one.end :])
        powers = math.log10(other.value / one.value) / 3 if min(one.value, other.value) > 0 else 0.0
        beside = one.dimension == "work" and other.dimension in ("work", "flops") and other.start - one.end < _BESIDE
        if beside and opened and round(powers) != 0 and abs(powers - round(powers)) < _SAME_DIGITS:
            says = {"value": f"~{other.value:g} FLOP", "readings": [f"[{one.quantity.text}]"], "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)
        same = same and one.dimension != "rate" and len(units) == 2
        opened = re.fullmatch(r"\s*\(\s*(?:≈|about |or |i\.e\.,? |=)?\s*", text[one.end : other.start])
        opened = opened or re.fullmatch(r"\s\w+\s*\((?:or|=|i\.e\.,?)\s+", text[one.end : other.start])
        opened = opened if other.about or re.search(r"[≈=]|or |i\.e", text[one.end : other.start]) else None
        if same and opened and re.match(r"\s*\)", text[other.end :]) and not other.side:
            says = {"value": _value(other, approximate=True), "readings": [f"[{one.quantity.text}]"], "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _operands(text: str, found: Sequence[Figure], last: int) -> tuple[str, int] | None:
    """The expression that ends with a figure, and the index of its first; None where it is no arithmetic alone."""
    first, pieces = last, [f"[{found[last].quantity.text}]"]
    while first > 0 and last - first < _MOST:
        gap = _GAP.fullmatch(text[found[first - 1].end : found[first].start])
        if gap is None or _POWER.match(text, found[first].end):
            break
        if found[first - 1].raw.endswith("%") and gap["op"] == "-":
            return None
        operator = _OPERATORS[gap["op"] or gap["plus"]]
        pieces[:0] = [f"[{found[first - 1].quantity.text}]", gap["close"], operator, gap["open"]]
        first -= 1
    before = text[: found[first].start]
    if re.match(r"over|per|of|under|above|below", found[first].raw):
        return None
    if re.search(r"[+×*÷/]\s?[~(]+\s?$", before):
        return None  # the last terms of a longer one
    if first == last or _LED.search(before) or _POWER.match(text, found[first].end):
        return None
    expression = " ".join(piece for piece in pieces if piece)
    if _closes_first(expression) and before.rstrip().endswith("("):
        expression = "( " + expression
    opened = expression.count("(") - expression.count(")")
    if opened == 1 and re.match(r"[^=≈]{0,30}\)", text[found[last].end :]):
        expression, opened = expression + " )", 0
    if opened:
        return None  # what stands in the other half of the parentheses is not known
    return " ".join(expression.split()), first


def _closes_first(expression: str) -> bool:
    """Whether a parenthesis is closed that was not opened before: "1T × 70B) / (8 × 989"."""
    depth = 0
    for sign in re.findall(r"[()]", expression):
        depth += 1 if sign == "(" else -1
        if depth < 0:
            return True
    return False


def _value(figure: Figure, *, approximate: bool) -> str:
    text = figure.quantity.text
    return f"~{text}" if (approximate or figure.about) and not text.startswith("~") else text
