"""Arithmetic that a text writes out: "24 × 64 × 2 = 3,072 samples", "500B / 7B = 71:1"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from advisor.auditing.quantity import Figure, figures

_OPERATORS = {"×": "*", "x": "*", "*": "*", "/": "/", "÷": "/", "+": "+", "·": "*", "-": "-"}
_WORDS = r"(?:[A-Za-z][\w&'.-]*(?:[ /][A-Za-z&][\w&'.-]*){0,4})?"
_BESIDE = rf"\s*{_WORDS}\s*(?:\([^()=]{{0,60}}\))?\s*"  # what a number is of, and a remark
_GAP = re.compile(
    rf"{_BESIDE}(?P<close>\)?)\s*(?:(?P<op>[×x*/÷+·-])|(?P<plus>\+)\s+(?:[A-Za-z][\w-]*\s+){{1,3}}(?:of )?~?)"
    r"\s*(?P<open>\(?)\s*"
)
_EQUALS = re.compile(rf"{_BESIDE}\)?\s*(?P<sign>=|≈|==)\s*(?:about |~)?\s*")
# before an expression: the rest of a longer one
_LED = re.compile(
    r"\b(?:over|per|of|by|minus|plus|times)\s+$|[×x*/÷+^·]\s*[~(]*\s*$|[A-Za-z²³^]\s*[×*/÷·-]\s*$|\^\s*$|[A-Za-z_]\($"
)
# behind a number: a power, or the rest of another expression
_POWER = re.compile(r"\s*(?:\^|\*\*|[²³⁰-⁹]|!)|\s*[A-Za-z]?[²³]")
_GOES_ON = re.compile(r"\s*[×*÷]|\s*/\s*\d|\s+[x/+-]\s+[~$\d]")
_REMARK = re.compile(r"\((?:for|on|with|using|assuming|at)\s[^()=]{1,60}\)")  # "(for 32 cards)"
_MASSES = re.compile(r"\d\s?(?:kg|g|t|tons?|tonnes?|lbs?)\s?(?:of )?(?:CO|\w*/kWh|\b\s?e\b)")  # not read here
_MOST = 8  # operands
_LONGEST = 160


def shortened(text: str) -> str:
    """A sentence short enough for a line of the audit."""
    clean = " ".join(text.split())
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1].rsplit(" ", 1)[0] + "…"


def equations(text: str) -> Iterator[dict[str, Any]]:
    """Yields every equation of a piece of text, as "24 × 64 = 1,536", in the fields of a claim."""
    remarks = [match.span() for match in _REMARK.finditer(text)]
    found = [f for f in figures(text) if not any(a < f.start and f.end < b for a, b in remarks)]
    for at in range(1, 0 if _MASSES.search(text) else len(found)):
        result, gap = found[at], text[found[at - 1].end : found[at].start]
        equals = _EQUALS.fullmatch(gap + "≈" if result.raw.startswith(("≈", "∼")) else gap)
        if equals is None or _POWER.match(text, result.end) or _GOES_ON.match(text, result.end):
            continue
        operands = _operands(text, found, at - 1)
        if operands is None:
            continue
        expression, first = operands
        parts, readings = found[first:at], [expression]
        if result.quantity.dimension == "bytes":
            if not any(part.quantity.dimension == "bytes" or any(map(str.isalpha, part.raw)) for part in parts):
                continue  # bytes of something that stands further off
            readings.append(re.sub(r"\[(\d+(?:\.\d+)?) billion\](?!.*billion)", r"[\1 B]", expression))  # "16 B": bytes
        value = result.quantity.text
        about = equals["sign"] == "≈" and not value.startswith("~")
        claim = {"kind": "arithmetic", "that": "expression", "text": shortened(text[found[first].start : result.end])}
        yield {**claim, "value": f"~{value}" if about else value, "readings": list(dict.fromkeys(readings))}


def _operands(text: str, found: Sequence[Figure], last: int) -> tuple[str, int] | None:
    """The expression that ends with a figure, and the index of its first; None if it is no arithmetic alone."""
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
    worded = found[first].raw.startswith(("over", "per", "of", "under", "above", "below"))
    if worded or first == last or _LED.search(before) or _POWER.match(text, found[first].end):
        return None
    expression = " ".join(piece for piece in pieces if piece)
    # a parenthesis may be closed that was not opened before: "1T × 70B) / (8 × 989"
    depths = accumulate({"(": 1, ")": -1}.get(sign, 0) for sign in expression)
    if min(depths) < 0 and before.rstrip().endswith("("):
        expression = "( " + expression
    opened = expression.count("(") - expression.count(")")
    following = text[found[last].end : found[last].end + 31].partition("=")[0].partition("≈")[0]
    if opened == 1 and ")" in following:
        expression, opened = expression + " )", 0
    # what stands in the other half of the parentheses is not known
    return (" ".join(expression.split()), first) if opened == 0 else None
