"""Percentages and factors that a text gives of two numbers beside them: "38% more (12.2 vs 8.8)"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.audit.paper.document import Document
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.laws import stated_of
from advisor.audit.paper.records import Record, plain_name, records

_VERSUS = re.compile(
    r"\s*(?:[A-Za-z][\w-]*\s+){0,2}(?:vs\.?|versus|→|->|➜|to|against|compared (?:to|with)|instead of|down to|up"
    r" to|rather than)\s+"
    r"(?:[A-Za-z'][\w'-]*\s+){0,3}",
    re.IGNORECASE,
)
_MORE = (
    r"(?:more|less|fewer|larger|smaller|bigger|faster|slower|longer|shorter|higher|lower|cheaper|better|worse|reduction"
    r"|increase|decrease|improvement|speed-?up|savings?|drop|gain|degradation|growth|decline)"
)
_COMPARED = re.compile(
    rf"\b{_MORE}\b|\b(?:saves?|cuts?|reduc\w+|increas\w+|improv\w+|drop\w*|fell|rose|grew)\b", re.IGNORECASE
)
_OTHERWISE = re.compile(
    r"\b(?:accuracy|score|confidence|p\s?[<=]|target|goal|up to|as much as|per year|annual)\b", re.IGNORECASE
)
# what is compared by which word: quantities of two subjects
_QUANTITIES = (
    (r"slower|faster|longer|shorter|quicker|speed", ("duration", "step_time", "rate", "gpu_rate", "tokens_per_hour")),
    (r"larger|bigger|smaller|more parameters", ("parameters",)),
    (r"cheaper|more expensive|dearer|cost", ("usd", "usd_per_hour")),
    (r"more memory|less memory", ("memory",)),
    (r"more tokens|fewer tokens", ("tokens",)),
)


def drafts(document: Document) -> Iterator[Drafted]:
    """Ratios of two numbers in passages and cells, shares, gaps, and ratios of two subjects of the report's tables."""
    known = records(document)
    texts = [(p.text, p.line) for p in document.passages]
    texts += [(cell, row.line) for grid in document.grids for row in grid.rows for cell in row.cells]
    for text, line in texts:
        found = figures(text)
        if len(found) >= 3:
            yield from _ratios(text, line, found)
            yield from _shares(text, line, found)
            yield from _gaps(text, line, found)
        yield from _of_subjects(text, line, found, known)


def _ratios(text: str, line: int, found: Sequence[Figure]) -> Iterator[Drafted]:
    """A percentage or factor right before a pair in parentheses, or right behind one."""
    for at, figure in enumerate(found):
        if figure.dimension not in ("fraction", "times") or _OTHERWISE.search(text):
            continue
        pair = None
        if at + 2 < len(found) and _is_pair(text, found[at + 1], found[at + 2]):
            between = text[figure.end : found[at + 1].start]
            led = re.fullmatch(r"[^().;]{0,45}(?:\(\s*(?:from |[\w ]{0,12}:?\s*)?|:\s*|, from |\bfrom )~?", between)
            pair = (
                (found[at + 1], found[at + 2]) if led and _COMPARED.search(text[figure.end : figure.end + 45]) else None
            )
        if pair is None and at >= 2 and _is_pair(text, found[at - 2], found[at - 1]):
            between = text[found[at - 1].end : figure.start]
            led = re.fullmatch(
                r"[^().;]{0,25}(?:\(\s*[-+~≈]?|, (?:a |an |about |or )?|: |= ?|- ?)(?:about |a |roughly )?~?", between
            )
            after = text[figure.end : figure.end + 30]
            told = _COMPARED.search(after) or _COMPARED.search(text[: found[at - 2].start]) or re.match(r"\s*\)", after)
            pair = (found[at - 2], found[at - 1]) if led and told else None
        if pair and _is_of(text, figure, *pair) and (readings := _readings(figure, *pair)):
            says = {"value": _about(figure), "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _is_of(text: str, ratio: Figure, one: Figure, other: Figure) -> bool:
    """Whether a ratio can be one of these numbers: sizes are not faster, and bare counts may be settings."""
    words = text[max(0, ratio.start - 30) : max(ratio.end + 40, 0)].lower()
    timely = re.search(r"faster|slower|longer|shorter|quicker|speed", words) is not None
    kind = one.dimension if one.dimension != "count" else other.dimension
    if kind == "count" and not (one.scaled or other.scaled or "." in one.raw + other.raw):
        return False
    if kind in ("bytes", "fraction", "count", "usd", "watts") and timely:
        return False
    return not (kind == "seconds" and re.search(r"larger|smaller|bigger|cheaper|parameters|memory", words))


def _is_pair(text: str, one: Figure, other: Figure) -> bool:
    """Whether two numbers of one kind are set against each other."""
    if one.dimension != other.dimension and "count" not in (one.dimension, other.dimension):
        return False
    if one.dimension == "times" or min(one.value, other.value) <= 0:
        return False
    return _VERSUS.fullmatch(text[one.end : other.start]) is not None


def _readings(ratio: Figure, one: Figure, other: Figure) -> list[str]:
    """Every sense in which a ratio is said of two numbers; a bare number takes the other's unit."""
    a, b = one.quantity.text, other.quantity.text
    if (
        one.dimension == "count"
        and other.dimension != "count"
        or one.dimension == "count"
        and other.scaled
        and not one.scaled
    ):
        a = re.sub(r"^(~?\$?[\d.,]+)", a.split()[0].replace("\\", ""), b) if " " in b else a
    if one.dimension == "fraction" and ratio.dimension == "fraction":
        points = [f"[{a}] - [{b}]", f"[{b}] - [{a}]"]
    else:
        points = []
    each = [f"[{a}] / [{b}]", f"[{b}] / [{a}]"]
    changes = [f"{r} - 1" for r in each] + [f"1 - {r}" for r in each]
    return [*changes, *each, *points]


def _about(figure: Figure) -> str:
    text = figure.quantity.text
    return text if text.startswith("~") else f"~{text}"


def _shares(text: str, line: int, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "103 GB (54% of 192 GB)", "4,853 / 50,000 (9.7%)"."""
    for one, two, three in zip(found, found[1:], found[2:], strict=False):
        first, second = text[one.end : two.start], text[two.end : three.start]
        if two.dimension == "fraction" and one.dimension == three.dimension:
            behind = re.fullmatch(r"[\w\s]{0,20}\(\s*~?|\s*,\s*(?:or|about)?\s*", first)
            if behind and re.fullmatch(r"\s*of\s*(?:the |its |a )?(?:total )?", second):
                yield _share(line, text, two, one, three)
        elif three.dimension == "fraction" and one.dimension == two.dimension != "fraction":
            of = re.fullmatch(r"\s*(?:/|of|out of)\s*(?:the )?", first)
            if of and re.fullmatch(r"[\w\s]{0,12}\(\s*~?\s*", second):
                yield _share(line, text, three, one, two)


def _share(line: int, text: str, value: Figure, part: Figure, whole: Figure) -> Drafted:
    reading = f"[{part.quantity.text}] / [{whole.quantity.text}]"
    says = {"value": _about(value), "readings": [reading, f"1 - {reading}"]}
    return Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _gaps(text: str, line: int, found: Sequence[Figure]) -> Iterator[Drafted]:
    """As "about 9 hours (matches the observed 12.3h vs 15.7h gap)": a difference of two numbers."""
    for value, one, two in zip(found, found[1:], found[2:], strict=False):
        gap = re.search(r"\b(?:gap|difference|delta)\b", text[two.end : two.end + 20], re.IGNORECASE)
        if gap and value.dimension == one.dimension == two.dimension and _is_pair(text, one, two):
            a, b = one.quantity.text, two.quantity.text
            says = {"value": _about(value), "readings": [f"[{a}] - [{b}]", f"[{b}] - [{a}]"], "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _of_subjects(text: str, line: int, found: Sequence[Figure], known: Sequence[Record]) -> Iterator[Drafted]:
    """As "Alpha is 27% slower than Beta": of two subjects whose numbers stand in tables."""
    than = re.search(rf"\b{_MORE}\b[^.;]{{0,30}}?\bthan\b", text, re.IGNORECASE)
    ratios = [f for f in found if f.dimension in ("fraction", "times")]
    if than is None or len(ratios) != 1 or not 0 <= than.start() - ratios[0].end <= 25:
        return
    first, second = _named(text[: ratios[0].start], known), _named(text[than.end() :], known)
    if first is None or second is None or first.key == second.key:
        return
    roles = next((roles for pattern, roles in _QUANTITIES if re.search(pattern, text[ratios[0].end : than.end()])), ())
    readings: list[str] = []
    for role in roles:
        one, two = (stated_of(role, r, known).stated for r in (first, second))
        for a in one[:2]:
            for b in two[:2]:
                each = [f"[{a.quantity.text}] / [{b.quantity.text}]", f"[{b.quantity.text}] / [{a.quantity.text}]"]
                readings += [f"{r} - 1" for r in each] + [f"1 - {r}" for r in each] + each
    if readings:
        says = {"value": _about(ratios[0]), "readings": list(dict.fromkeys(readings)), "in_units": True}
        yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _named(text: str, known: Sequence[Record]) -> Record | None:
    """The one subject of the report's tables that a text names; None without one, or with several."""
    words = f" {plain_name(text)} "
    named = {
        r.key.split()[0]: r for r in known if r.kind == "row" and len(r.key) > 2 and f" {r.key.split()[0]} " in words
    }
    return next(iter(named.values())) if len(named) == 1 else None
