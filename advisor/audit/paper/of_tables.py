"""What sentences say of a table's column: the gain of one step, a range over all rows, a trend, a harm that is none.

Only where heading, words and numbers agree on the column; what a table does not print is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from advisor.audit.paper.document import Document, Grid, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.records import plain_name
from advisor.audit.paper.words import phrase

_LEAST_ROWS = 3
_LEAST_PAIRS = 4
_GAIN = phrase(
    r"\b(?:performance|throughput|speed|time|memory|loss)\b[^.;]{0,30}\b(?:increas|improv|r[oi]se|gr[eo]w|drop|fell|decreas"
    r"|reduc|cut|faster|slower|higher|lower|smaller)",
    re.IGNORECASE,
)
_OTHERWISE = re.compile(
    r"\b(?:than|compared|versus|vs|up to|expected?|should|could|theor\w+|peak|over the|from)\b", re.IGNORECASE
)
_EVERYWHERE = re.compile(
    r"\bregardless\b|\bacross (?:all|every)\b|\b(?:all|every) (?:\w+ )?(?:runs?|models?|sizes?|configs?|configurations?"
    r"|settings?|rows?|experiments?|variants?|GPUs?)\b|\balways\b|\bin every case\b",
    re.IGNORECASE,
)
_TREND = re.compile(
    r"(?P<of>[A-Za-z][\w /-]{1,30}?)\s+(?:scales?|grows?|increases?|rises?|improves?)\s+(?:\w+ly\s+)?with\s+"
    r"(?:the\s+)?(?P<over>[A-Za-z][\w -]{2,30})",
    re.IGNORECASE,
)
# words for what a column's title may call otherwise
_CALLED = (
    (r"model size|number of param|param", r"^(?:param|model size|size$|n$)"),
    (r"seq|context|length", r"^(?:tokens?$|seq|context|length)"),
    (r"batch", r"batch|^bs$|^mbs$"),
    (r"gpus?|devices?|cards?|nodes?", r"^#?\s?(?:gpus?|devices?|cards?|nodes?)$"),
)
_HARMLESS = re.compile(
    r"\b(?:(?:barely|hardly) any|(?:almost|virtually) no|negligible|minimal"
    r"|no (?:real|noticeable|measurable|significant))\s+(?:\w+\s+)?(?:damage|harm|degradation|loss|drop|impact|cost)\b",
    re.IGNORECASE,
)
_HARM_IN = (("perplexity", re.compile(r"perplexity|\bppl\b", re.IGNORECASE)), ("loss", re.compile(r"\bloss\b", re.I)))
_UNHARMED = re.compile(r"^\W*(?:baseline|original|dense|unpruned|full|none|0 ?%|fp16|bf16)\b", re.IGNORECASE)
_FRACTIONS = {"half": 0.5, "quarter": 0.25, "third": 1 / 3}
_ROUNDED = 0.02


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such sentence, with the table that it speaks of."""
    grids = [grid for grid in document.grids if len(grid.rows) >= _LEAST_ROWS]
    for passage in document.passages if grids else ():
        text = passage.text
        rules = [
            *([_gain_of_step] if _GAIN.search(text) and not _OTHERWISE.search(text) else []),
            *([_range] if _EVERYWHERE.search(text) else []),
            *([_harmless] if _HARMLESS.search(text) else []),
        ]
        for grid in grids if rules else ():
            for rule in rules:
                yield from rule(passage, grid)
        yield from _trend(passage, grids)


def _column(grid: Grid, at: int) -> list[Figure | None]:
    """The number that each cell of a column begins with."""
    return [f[0] if (f := figures(row.cells[at])) and f[0].start <= 2 else None for row in grid.rows]


def _gain_of_step(passage: Passage, grid: Grid) -> Iterator[Drafted]:
    """As "speed increased by 4x" under the heading of one row of a table of steps: by the row before or the first."""
    found = figures(passage.text)
    if len(found) != 1 or found[0].dimension != "times" or not passage.headings or found[0].side:
        return
    names = [plain_name(row.cells[0]) for row in grid.rows]
    heading = plain_name(passage.headings[-1])
    if names.count(heading) != 1 or names.index(heading) == 0 or len(heading) < len("step"):
        return
    at = names.index(heading)
    readings: list[str] = []
    for column in range(1, len(grid.header)):
        cells = _column(grid, column)
        here = cells[at]
        if here is None:
            continue
        if here.dimension == "times":
            readings.append(f"[{here.quantity.text}]")
        for other in (cells[at - 1], cells[0]):
            if other is not None and other.dimension == here.dimension and min(other.value, here.value) > 0:
                a, b = here.quantity.text, other.quantity.text
                readings += [f"[{a}] / [{b}]", f"[{b}] / [{a}]", f"[{a}] / [{b}] - 1"]
    if readings:
        says = {"value": found[0].quantity.text, "readings": list(dict.fromkeys(readings))}
        text = shortened(f"{passage.headings[-1]}: {passage.text}")
        yield Drafted(kind="expression", line=passage.line, text=text, says=says | {"in_units": True})


def _range(passage: Passage, grid: Grid) -> Iterator[Drafted]:
    """As "20-46 GB regardless of size": both ends are cells of one column, and others of it lie outside."""
    spans = [f for f in figures(passage.text) if f.quantity.low < f.quantity.high and f.dimension != "count"]
    if len(spans) != 1:
        return
    low, high = spans[0].quantity.low, spans[0].quantity.high
    words = set(plain_name(passage.text).split())
    for at, title in enumerate(grid.header):
        cells = [f for f in _column(grid, at) if f and f.dimension == spans[0].dimension]
        ends = all(any(abs(f.value - end) <= _ROUNDED * end for f in cells) for end in (low, high))
        if at and len(cells) >= _LEAST_PAIRS and ends and words & set(plain_name(title).split()):
            members = [f.quantity.text for f in cells]
            says = {"value": spans[0].quantity.text.lstrip("~"), "members": members}
            yield Drafted(kind="range_of", line=passage.line, text=shortened(passage.text), says=says)
            return


def _trend(passage: Passage, grids: Sequence[Grid]) -> Iterator[Drafted]:
    """As "MFU scales with sequence length": both are columns of one table."""
    match = _TREND.match(passage.text)
    if match is None:
        return
    for grid in grids:
        ours, over = _titled(grid, match["of"]), _titled(grid, match["over"])
        if ours is None or over is None or ours == over:
            continue
        pairs = [
            (a.quantity.text, b.quantity.text)
            for a, b in zip(_column(grid, ours), _column(grid, over), strict=True)
            if a is not None and b is not None
        ]
        if len(pairs) >= _LEAST_PAIRS:
            says = {"of": [a for a, _ in pairs], "over": [b for _, b in pairs]}
            yield Drafted(kind="trend", line=passage.line, text=shortened(passage.text), says=says)
            return


def _titled(grid: Grid, name: str) -> int | None:
    """The one column that a name means, by its title or by what it may be called otherwise."""
    wanted = plain_name(name)
    exact = [i for i, title in enumerate(grid.header) if plain_name(title) == wanted]
    if exact:
        return exact[0] if len(exact) == 1 else None
    for words, titles in _CALLED:
        if re.search(words, wanted):
            found = [i for i, title in enumerate(grid.header) if re.search(titles, plain_name(title))]
            return found[0] if len(found) == 1 else None
    return None


def _harmless(passage: Passage, grid: Grid) -> Iterator[Drafted]:
    """As "half the weights gone, barely any damage" of a row whose perplexity stands beside the baseline's."""
    if passage.section != grid.section:
        return
    base = next((i for i, row in enumerate(grid.rows) if _UNHARMED.match(row.cells[0])), None)
    shares = [f.value for f in figures(passage.text) if f.dimension == "fraction"]
    clause = passage.text[: _end_of_clause(passage.text)]
    shares += [share for word, share in _FRACTIONS.items() if re.search(rf"\b{word}\b", clause, re.IGNORECASE)]
    rows = [i for i, row in enumerate(grid.rows) if (f := figures(row.cells[0])) and f[0].value in shares]
    if base is None or len(rows) != 1 or rows[0] == base:
        return
    for at, title in enumerate(grid.header):
        for of, pattern in _HARM_IN:
            cells = _column(grid, at)
            now, before = cells[rows[0]], cells[base]
            if at and pattern.search(title) and now and before:
                says = {"value": now.quantity.text, "than": before.quantity.text, "of": of}
                yield Drafted(kind="negligible", line=passage.line, text=shortened(passage.text), says=says)
                return


def _end_of_clause(text: str) -> int:
    match = _HARMLESS.search(text)
    return match.end() if match else len(text)
