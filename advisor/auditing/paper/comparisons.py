"""Percentages and factors that a text gives of two numbers beside them: "38% more (12.2 vs 8.8)"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.auditing.paper.document import Document, Grid, Row
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import plain_name
from advisor.auditing.paper.roles import role_of

_VERSUS = re.compile(
    r"\s*(?:[A-Za-z][\w-]*\s+){0,2}(?:vs\.?|versus|→|->|➜|to|against|compared (?:to|with)|instead of|down to|up"
    r" to|rather than)\s+"
    r"(?:[A-Za-z'][\w'-]*\s+){0,3}",
    re.IGNORECASE,
)
_AGAINST = re.compile(r"[^;.]{0,60}?\b(?:than|vs\.?|versus|compared (?:to|with)|against|instead of)\b[^;.]{0,30}")
_TWO = re.compile(r"\b(?:than|vs\.?|versus|compared|relative to|against|over)\b", re.IGNORECASE)
_SHORT = 2  # letters of a name that is none without its column's word
_LONG_FORMS = {"val": "validation", "acc": "accuracy", "ppl": "perplexity", "params": "parameters", "mem": "memory"}
_NAMED = re.compile(r"\b[A-Z][A-Za-z]+[ -]$")  # "Llama 2"
_NEAR_TABLE = 25  # lines from a table within which its rows' plain words are names
_ASIDE = 25  # letters behind a comma that still say something of the pair
_MANY = 7  # numbers of a sentence: more are a list of many things
_FAR = 60  # letters from a ratio to the pair that it is of
_MORE = (
    r"(?:more|less|fewer|larger|smaller|bigger|faster|slower|longer|shorter|higher|lower|cheaper|better|worse|reduction"
    r"|increase|decrease|improvement|speed-?up|savings?|drop|gain|degradation|growth|decline)"
)
_COMPARED = re.compile(
    rf"\b{_MORE}\b|\b(?:saves?|cuts?|reduc\w+|increas\w+|improv\w+|drop\w*|fell|rose|grew|rais\w+|lower\w*|shr[aiu]nk\w*"
    r"|decreas\w+|i\.e\. by)\b",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(
    r"\b(?:exceed\w*|threshold|accuracy|score|confidence|p\s?[<=]|target|goal|up to|as much as|per year|annual)\b",
    re.IGNORECASE,
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
    texts = [(p.text, p.line) for p in document.passages]
    texts += [(cell, row.line) for grid in document.grids for row in grid.rows for cell in row.cells]
    for text, line in texts:
        found = figures(text)
        if 3 <= len(found) <= _MANY:
            yield from _ratios(text, line, found)
            yield from _shares(text, line, found)
            yield from _gaps(text, line, found)
        measured = [f.dimension for f in found if f.dimension not in ("count", "fraction", "times")]
        own = len(measured) > len(set(measured))  # two of one kind: it compares these
        for grid in () if own else document.grids:
            near = any(abs(line - row.line) <= _NEAR_TABLE for row in grid.rows)
            yield from _of_rows(text, line, found, grid, near=near)


def _ratios(text: str, line: int, found: Sequence[Figure]) -> Iterator[Drafted]:
    """A percentage or factor with words of change beside it, and the pair of numbers that stands nearest to it."""
    ratios = [f for f in found if f.dimension in ("fraction", "times")]
    pairs = [(one, two) for one, two in _neighbours(found) if _is_pair(text, one, two)]
    for pair in pairs if not _OTHERWISE.search(text) else ():
        near = [r for r in ratios if r not in pair and pair == min(pairs, key=lambda p: _distance(r, *p))]
        gaps = {_gap(text, r, *pair): r for r in near}
        figure = gaps[min(gaps)] if gaps else None
        if figure is None or min(gaps) > _FAR or not _told(text, figure) or not _is_of(text, figure, *pair):
            continue
        if readings := _readings(figure, *pair):
            says = {"value": _about(figure), "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _told(text: str, ratio: Figure) -> bool:
    """Whether words of change stand beside a ratio."""
    return _COMPARED.search(text[max(0, ratio.start - 60) : ratio.end + 45]) is not None


def _neighbours(found: Sequence[Figure]) -> Iterator[tuple[Figure, Figure]]:
    """Numbers that follow each other; a percentage or factor between two others separates them not."""
    yield from zip(found, found[1:], strict=False)
    for one, between, two in zip(found, found[1:], found[2:], strict=False):
        if between.dimension in ("fraction", "times") and between.dimension not in (one.dimension, two.dimension):
            yield one, two


def _distance(ratio: Figure, one: Figure, two: Figure) -> int:
    """Letters between a ratio and a pair."""
    return max(0, ratio.start - two.end, one.start - ratio.end)


def _gap(text: str, ratio: Figure, one: Figure, two: Figure) -> int:
    """The same, far where another clause begins between them."""
    between = text[two.end : ratio.start] if ratio.start >= two.end else text[ratio.end : one.start]
    behind = ratio.start >= two.end
    aside = ")" in between or (behind and "," in between and len(between) > _ASIDE)
    other = re.search(r"(?<!i\.e)(?<!vs)[;.]\s|\b(?:while|whereas|but|and|with|plus)\b", between)
    return _FAR + 1 if aside or other else _distance(ratio, one, two)


def _is_of(text: str, ratio: Figure, one: Figure, other: Figure) -> bool:
    """Whether a ratio can be one of these numbers: sizes are not faster, and bare counts may be settings."""
    words = text[max(0, ratio.start - 30) : max(ratio.end + 40, 0)].lower()
    timely = re.search(r"faster|slower|longer|shorter|quicker|speed", words) is not None
    kind = one.dimension if one.dimension != "count" else other.dimension
    if kind == "count" and not (one.scaled or other.scaled or re.search(r"[.,]", one.raw + other.raw)):
        return False
    if kind in ("bytes", "fraction", "count", "usd", "watts") and timely:
        return False
    return not (kind == "seconds" and re.search(r"larger|smaller|bigger|cheaper|parameters|memory", words))


def _is_pair(text: str, one: Figure, other: Figure) -> bool:
    """Whether two numbers of one kind are set against each other."""
    between = text[one.end : other.start]
    two_units = _VERSUS.fullmatch(between) is None  # "12.2 vs 8.8 s" leaves one out, longer words do not
    if one.dimension != other.dimension and (two_units or "count" not in (one.dimension, other.dimension)):
        return False
    if one.dimension == other.dimension == "count" and (
        one.scaled != other.scaled or _NAMED.search(text[: other.start])
    ):
        return False
    if re.search(r"[=_]\s?$", text[: one.start]):
        return False  # a setting: "DP=128"
    if one.dimension == "times" or min(one.value, other.value) <= 0:
        return False
    return _VERSUS.fullmatch(between) is not None or _AGAINST.fullmatch(between) is not None


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
    if other.dimension == "count" != one.dimension and " " in a:
        b = re.sub(r"^(~?\$?[\d.,]+)", other.quantity.text.lstrip("~").split()[0], a)
    if one.dimension == "fraction" and ratio.dimension == "fraction":
        points = [f"[{a}] - [{b}]", f"[{b}] - [{a}]"]
    else:
        points = []
    each = [f"[{a}] / [{b}]", f"[{b}] / [{a}]"]
    changes = [f"{r} - 1" for r in each] + [f"1 - {r}" for r in each]
    if ratio.dimension == "fraction":  # "60% less" is never the quotient
        return [*changes, *points]
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
            alike = one.dimension != "count" or one.scaled == three.scaled
            if alike and behind and re.fullmatch(r"\s*of\s*(?:the |its |a )?(?:total )?", second):
                yield _share(line, text, two, one, three)
        elif three.dimension == "fraction" and one.dimension == two.dimension != "fraction":
            of = re.fullmatch(r"\s*(?:/|of|out of)\s*(?:the )?", first)
            alike = one.dimension != "count" or one.scaled == two.scaled
            if of and alike and re.fullmatch(r"[\w\s]{0,12}\(\s*~?\s*", second):
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


def _of_rows(text: str, line: int, found: Sequence[Figure], grid: Grid, *, near: bool) -> Iterator[Drafted]:
    """As "Alpha is 27% slower than Beta", "compared with Beta, Alpha lowers the loss by 5%": of two rows of a table."""
    ratios = [f for f in found if f.dimension in ("fraction", "times")]
    if len(ratios) != 1 or not _TWO.search(text) or _OTHERWISE.search(text):
        return
    if not _COMPARED.search(text[max(0, ratios[0].start - 40) : ratios[0].end + 25]):
        return
    rows = [row for row in _named(text, grid) if near or _is_proper(row.cells[0], text)]
    readings = [r for i in _columns(text, grid) for r in _senses(i, *rows)] if len(rows) == 2 else []
    if readings:
        says = {"value": _about(ratios[0]), "readings": list(dict.fromkeys(readings)), "in_units": True}
        yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _is_proper(cell: str, text: str) -> bool:
    """Whether a row's name is a name in the text too, with its capital or its digits, and no common word."""
    first = next(iter(re.findall(r"[\w.-]+", cell)), "")
    return len(first) > _SHORT and not first.islower() and not first.isdigit() and first in text


def _named(text: str, grid: Grid) -> list[Row]:
    """Rows of a table that a text names; a short name counts only behind the word of its column: "run A"."""
    words = f" {plain_name(text)} "
    found = []
    for row in grid.rows:
        name = plain_name(row.cells[0])
        if len(name) <= _SHORT:
            name = f"{plain_name(grid.header[0])} {name}"
        names = [name, *([name.split()[0]] if len(name.split()[0]) > _SHORT and not name[0].isdigit() else [])]
        if name.strip() and any(f" {n} " in words for n in names):
            found.append(row)
    exact = [row for row in found if f" {plain_name(row.cells[0])} " in words]
    return exact if len(exact) == 2 else found


def _columns(text: str, grid: Grid) -> list[int]:
    """Columns that a comparison is about: those whose title it says, else those of the quantity that its verb means."""
    words = _full(text)
    said = [i for i, h in enumerate(grid.header) if i and (t := _full(h)) and t <= words]
    if said:
        return said
    roles = next((roles for pattern, roles in _QUANTITIES if re.search(pattern, text, re.IGNORECASE)), ())
    cells = [
        [f for row in grid.rows if (f := next(iter(figures(row.cells[i])), None))] for i in range(len(grid.header))
    ]
    return [i for i, column in enumerate(cells) if i and column and role_of(grid.header[i], column[0]) in roles]


def _full(text: str) -> set[str]:
    """The words of a text, what is usually shortened written out."""
    return {_LONG_FORMS.get(word, word) for word in plain_name(text).split()}


def _senses(at: int, one: Row, other: Row) -> list[str]:
    """Every sense in which a ratio is said of two cells of a column."""
    a, b = (next(iter(figures(row.cells[at])), None) for row in (one, other))
    if a is None or b is None or a.dimension != b.dimension or min(a.value, b.value) <= 0:
        return []
    each = [f"[{a.quantity.text}] / [{b.quantity.text}]", f"[{b.quantity.text}] / [{a.quantity.text}]"]
    points = [f"[{x.quantity.text}] - [{y.quantity.text}]" for x, y in ((a, b), (b, a))]
    kept = points if a.dimension == "fraction" else []
    return [*(f"{r} - 1" for r in each), *(f"1 - {r}" for r in each), *each, *kept]
