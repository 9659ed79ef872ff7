"""What a table's own cells say of each other: ratios of its columns, totals of its rows, parts of a whole."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from advisor.auditing.expression import gives
from advisor.auditing.paper.document import Document, Grid, Passage, Row
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures
from advisor.auditing.paper.records import is_transposed

_RATIO = re.compile(
    r"ratio|speed-?up|change|improve|reduc|increas|decreas|delta|\bvs\b|faster|slower|saving|×|factor|relative|gain",
    re.IGNORECASE,
)
_TOTAL = re.compile(
    r"^\W*(?:(?:grand|sub-?)?\s?total|sum|overall|combined)\b(?!-)(?!.*\b(?:time per|average|mean)\b)", re.IGNORECASE
)
_NOT_SUMMED = re.compile(
    r"avg|average|mean|max|min|peak|rate|per|%|speed|mfu|util|price|loss|params?\b|layers", re.IGNORECASE
)
_BASE = re.compile(r"^\W*(?:baseline|1(?:\.0+)?\s?[x×]|[-—–]|n/?a|ref(?:erence)?)\W*$", re.IGNORECASE)
_SAME = re.compile(
    r"^\W*(?:the )?(?:same|identical|equal|unchanged|no change)(?: (?:total|value|size|number))?\W*$", re.IGNORECASE
)
_COMPARING = re.compile(r"expect|ratio|speed|change|differ|compar|equal|same|vs|delta", re.IGNORECASE)
_WITHOUT = re.compile(r"\b(?:without|excluding|not counting|before|excl\.)\s+(?:the )?(\w{4,})", re.IGNORECASE)
_LEAST_FACTORS, _OVERLAP = 3, 2.0
_SOMETIMES = re.compile(r"\bevery\b|\bonce\b|\bevery-|periodic", re.IGNORECASE)
_ITEM = re.compile(r"^(?P<label>[^:=(]{2,50}(?:\([^()]{0,40}\))?[^:=(]{0,10})[:=]\s*(?P<value>\S.*)$")
_ABOUT_TOTALS = 3  # parts of a list before a total, at most, that belong to something else

_NOT_ALL = re.compile(r"\b(?:just|only|minimum|at least)\b", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Ratio columns, totals, "same", and lists that end in a total."""
    for grid in document.grids:
        for at, name in enumerate(grid.header):
            if _RATIO.search(name) and at:
                yield from _ratio_column(grid, at)
                yield from _combined(grid, at)
            elif at:
                yield from _total(grid, at)
        yield from _same(grid)
    yield from _lists(document.passages)


def _cell(row: Row, at: int) -> Figure | None:
    """The number that a cell begins with."""
    found = figures(row.cells[at])
    return found[0] if found and found[0].start <= 2 else None


def _ratio_column(grid: Grid, at: int) -> Iterator[Drafted]:
    """Each ratio against every pair of cells of its row, of its row and a base row, of a cell and a header's number."""
    base = next((row for row in grid.rows if _BASE.match(row.cells[at])), None)
    constants = [f for f in figures(grid.header[at]) if f.scaled]
    drafted = []
    for row in grid.rows:
        ratio = _cell(row, at)
        if ratio is None or row is base or ratio.dimension not in ("fraction", "times"):
            continue
        columns = [i for i in range(1, len(row.cells)) if i != at and not _RATIO.search(grid.header[i])]
        others = [(i, f) for i in columns if (f := _cell(row, i))]
        pairs = [(a, b) for (i, a), (j, b) in permutations(others, 2) if i < j and _comparable(a, b)]
        alone = len(pairs) == 1 and len(others) == 2
        if base is not None:
            pairs += [(f, b) for i, f in others if (b := _cell(base, i)) and _comparable(f, b)]
        pairs += [(f, c) for _, f in others for c in constants if f.dimension == c.dimension]
        if pairs and (alone or base is not None or constants):
            readings = list(dict.fromkeys(r for a, b in pairs for r in _senses(a, b)))
            drafted.append((row, ratio, readings, alone))
    explained = sum(gives(_about(ratio), readings) for _, ratio, readings, _ in drafted)
    for row, ratio, readings, alone in drafted:
        # where no row comes out, the column is of numbers that the table does not print
        if alone or explained >= max(2, len(drafted) / 2):
            text = shortened(f"{row.cells[0]}: {grid.header[at]} {row.cells[at]}")
            says = {"value": _about(ratio), "readings": readings, "in_units": True}
            yield Drafted(kind="expression", line=row.line, text=text, says=says)


def _comparable(one: Figure, other: Figure) -> bool:
    return one.dimension == other.dimension and one.dimension != "times" and min(one.value, other.value) > 0


def _senses(a: Figure, b: Figure) -> list[str]:
    """Every sense in which one number is said of two: quotients, changes, differences of percentages."""
    each = [f"[{a.quantity.text}] / [{b.quantity.text}]", f"[{b.quantity.text}] / [{a.quantity.text}]"]
    points = [f"[{a.quantity.text}] - [{b.quantity.text}]", f"[{b.quantity.text}] - [{a.quantity.text}]"]
    if a.dimension == "count":  # scores may be per cent without the sign
        points = [f"({point}) / 100" for point in points]
    kept = points if a.dimension in ("fraction", "count") else []
    return [*each, *(f"{r} - 1" for r in each), *(f"1 - {r}" for r in each), *kept]


def _about(figure: Figure) -> str:
    text = figure.quantity.text
    return text if text.startswith("~") else f"~{text}"


def _total(grid: Grid, at: int) -> Iterator[Drafted]:
    """A total against the cells above it, since the total before it or since the start."""
    if _NOT_SUMMED.search(grid.header[at]):
        return
    settings = is_transposed(grid)  # rows of different things: sizes and times of parts are summed, counts are not
    parts: list[Figure] = []
    for row in grid.rows:
        cell = _cell(row, at)
        if cell is None:
            return  # a hole in the column: the total may count what is not printed
        if not any(_TOTAL.match(label) for label in row.cells[:2]):
            parts.append(cell)
            continue
        if (
            len(parts) >= 3
            and len({p.dimension for p in parts} | {cell.dimension}) == 1
            and cell.dimension not in ("times", "rate", *(("count",) if settings else ()))
        ):
            yield _sum(row.line, f"{row.cells[0]}: {grid.header[at]} {row.cells[at]}", cell, parts)
        parts = []


def _sum(line: int, text: str, value: Figure, parts: Sequence[Figure]) -> Drafted:
    """A total: of all parts, or without the first few."""
    readings = [
        " + ".join(f"[{part.quantity.text}]" for part in parts[skipped:])
        for skipped in range(min(_ABOUT_TOTALS, len(parts) - 1))
        if len(parts) - skipped >= 2
    ]
    if value.quantity.low < value.quantity.high or any(p.quantity.low < p.quantity.high for p in parts):
        whole = [part.quantity.text for part in parts]
        return Drafted(kind="sum", line=line, text=shortened(text), says={"value": _about(value), "parts": whole})
    says = {"value": _about(value), "readings": readings, "in_units": True}
    return Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _combined(grid: Grid, at: int) -> Iterator[Drafted]:
    """A factor of all improvements together that is far from their product: some overlap, half of all seldom does."""
    factors: list[Figure] = []
    for row in grid.rows:
        cell = _cell(row, at)
        if cell is None or cell.dimension != "times":
            return
        if not _TOTAL.match(row.cells[0]):
            factors.append(cell)
        elif len(factors) >= _LEAST_FACTORS and min(f.quantity.low for f in factors) >= 1:
            low, high = (math.prod(getattr(f.quantity, end) for f in factors) for end in ("low", "high"))
            if not low / _OVERLAP <= cell.quantity.middle <= _OVERLAP * high:
                product = " * ".join(f"[{f.quantity.text}]" for f in factors)
                says = {"value": _about(cell), "readings": [product], "in_units": True}
                yield Drafted(kind="expression", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _same(grid: Grid) -> Iterator[Drafted]:
    """As "Same" beside two numbers of a row that differ."""
    for row in grid.rows:
        numbers = [f for i in range(1, len(row.cells)) if (f := _cell(row, i))]
        said = any(_SAME.match(c) and _COMPARING.search(h) for c, h in zip(row.cells[1:], grid.header[1:], strict=True))
        if len(numbers) == 2 and _comparable(*numbers) and said:
            yield Drafted(
                kind="agreement",
                line=row.line,
                text=shortened(" | ".join(row.cells)),
                says={"values": [number.quantity.text for number in numbers]},
            )


def _lists(passages: Sequence[Passage]) -> Iterator[Drafted]:
    """Consecutive "label: value" lines of one kind that end in a total."""
    items: list[tuple[Passage, Figure]] = []
    for passage in passages:
        match = _ITEM.match(passage.text)
        found = figures(match["value"]) if match else []
        if match is None or not found or found[0].start > 2:
            if items and items[-1][0].section != passage.section:
                items = []
            continue
        if items and (items[-1][0].section != passage.section or items[-1][1].dimension != found[0].dimension):
            items = []
        if _SOMETIMES.search(match["label"]):
            continue  # a total of each step holds a share of it that nobody prints
        behind = match["value"][found[0].end :]
        if _TOTAL.match(match["label"]) and (_NOT_ALL.search(passage.text) or re.match(r"\s*\+\s*[~$\d]", behind)):
            items = []  # the first of two, or of a part of the list
        elif _TOTAL.match(match["label"]) and found[0].dimension in ("bytes", "seconds", "usd"):
            left_out = _WITHOUT.search(passage.text)
            parts = [f for p, f in items if not (left_out and p.text.lower().startswith(left_out[1].lower()[:6]))]
            if len(parts) >= (2 if left_out else 3) and passage.line - items[-1][0].line <= 2:
                yield _sum(passage.line, passage.text, found[0], parts)
            items = []
        else:
            items.append((passage, found[0]))
