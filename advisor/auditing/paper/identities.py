"""Identities between the columns of a table: what most rows follow to the last digit, all must follow.

No meaning is read but the kind of a column. That one column is the product, the quotient or the total of others in so
many rows is no coincidence; a row that breaks the identity far beyond rounding is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from statistics import median

from advisor.auditing.paper.document import Document, Grid
from advisor.auditing.paper.draft import Drafted, shortened
from advisor.auditing.paper.figures import Figure, figures

_LEAST_ROWS, _LEAST_FOLLOWING, _SHARE = 3, 2, 0.6
_LEAST_OF_FREE = 3  # rows that follow where the factor is not known but found
_ROUNDING = 0.004  # of each number, beside its last digit
_EXACT = 1000  # whole numbers below it are counted, not rounded
_BROKEN = 0.06  # so far off is no rounding of what was reckoned from unrounded numbers
_MOST_COLUMNS = 9
_LEAST_SPREAD, _TIMES_SLACK = 0.08, 4.0  # a column that varies less than that beside its rounding follows anything
_SUM = re.compile(r"\b(?:total|sum|overall|combined|all)\b(?!-)", re.IGNORECASE)
# pairs of columns of which the second is the first times a constant by definition, not by measurement
_PROPORTIONAL = (
    (r"^\W*(?:steps?|iter(?:ation)?s?|updates?)\b", r"tok(?:en)?s?\b(?!.{0,3}(?:/|per))|samples|epochs?\b"),
    (r"(?:gpu|card|[ahv]\d{2,3})[- ]?h(?:ou)?rs?|\bhours?\b|\btime\b", r"cost|price|\$|usd"),
    (r"\bparam|^\W*(?:model|size)", r"weights|gradients?|optimi[sz]er|adam|states?"),
    (r"micro[- ]?batch|batch", r"tok(?:en)?s? ?(?:/|per) ?(?:step|iter|batch)"),
)
_HOURS = re.compile(r"hours?\b|\bhrs?\b|\(h\)|\btime\b", re.IGNORECASE)
_COUNTS = re.compile(r"^\W*(?:#|rank|no\.?|id|year|layers?|depth|heads?|seed)\W*$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class _Column:
    """One column's numbers, None where a cell has none."""

    name: str
    cells: tuple[Figure | None, ...]

    @property
    def is_time(self) -> bool:
        """Whether it holds times or card-hours."""
        return any(c.dimension in ("seconds", "gpu_hours") for c in self.cells if c) or bool(_HOURS.search(self.name))

    @property
    def is_money(self) -> bool:
        """Whether it holds sums of money."""
        return any(c.dimension == "usd" for c in self.cells if c)

    def value(self, row: int) -> float:
        """The number of a row in the house's unit; 0 where there is none."""
        cell = self.cells[row]
        return cell.value if cell else 0.0

    def text(self, row: int) -> str:
        """The number of a row as it is printed."""
        cell = self.cells[row]
        return cell.quantity.text if cell else ""

    def slack(self, row: int) -> float:
        """How much of itself the printed number may be off."""
        cell = self.cells[row]
        if cell is None or (cell.dimension == "count" and cell.raw.isdigit() and cell.value < _EXACT):
            return _ROUNDING
        return _ROUNDING + min(cell.quantity.slack / cell.value, 0.1)


@dataclass(frozen=True, kw_only=True)
class _Identity:
    """A column as a term of others, times a factor."""

    target: _Column
    over: tuple[_Column, ...]
    under: tuple[_Column, ...] = ()
    factor: float = 1.0
    added: bool = False

    def gives(self, row: int) -> float:
        """What the others give for a row."""
        if self.added:
            return sum(c.value(row) for c in self.over)
        result = self.factor
        for column in self.over:
            result *= column.value(row)
        for column in self.under:
            result /= column.value(row)
        return result

    def slack(self, row: int) -> float:
        """How far rounding alone may move a row."""
        parts = [c.slack(row) for c in (self.target, *self.over, *self.under)]
        return max(parts) if self.added else sum(parts)

    def off(self, row: int) -> float:
        """How far a row is from the identity, as a share."""
        return abs(self.target.value(row) / self.gives(row) - 1)

    def reading(self, row: int) -> str:
        """The term with the row's numbers."""
        over, under = ([f"[{c.text(row)}]" for c in part] for part in (self.over, self.under))
        if self.added:
            return " + ".join(over)
        factor = "" if self.factor == 1.0 else f" * {self.factor:.6g}"
        return " * ".join(over) + "".join(f" / {u}" for u in under) + factor

    def is_price(self, prices: Sequence[float]) -> bool:
        """Whether the factor is one of some prices an hour."""
        each = (self.factor, self.factor * 3600.0)
        return any(abs(factor / price - 1) < _BROKEN for factor in each for price in prices if price > 0)

    @property
    def words(self) -> str:
        """The identity by the columns' names."""
        sign = " + " if self.added else " × "
        divided = "".join(f" ÷ {c.name}" for c in self.under)
        return f"{self.target.name} = {sign.join(c.name for c in self.over)}{divided}"


def drafts(document: Document) -> Iterator[Drafted]:
    """Rows that break what the rest of their table follows."""
    for grid in document.grids:
        if len(grid.rows) >= _LEAST_ROWS and len(grid.header) <= _MOST_COLUMNS:
            yield from _broken(grid, _prices(document.text))


def _prices(text: str) -> list[float]:
    """Dollars an hour that a report states."""
    return [f.value for line in text.split("\n") for f in figures(line) if f.dimension == "usd_per_hour"]


def _broken(grid: Grid, prices: Sequence[float]) -> Iterator[Drafted]:
    told: set[int] = set()
    derived = _derived(grid)
    for identity in _identities(grid):
        if identity.target.name in derived:
            continue  # what follows from other columns in every row breaks nothing
        if identity.over[0].is_time and identity.target.is_money and not identity.is_price(prices):
            continue  # each row may have its own price
        rows = _rows(identity, len(grid.rows))
        follow = [r for r in rows if identity.off(r) <= identity.slack(r)]
        broken = [r for r in rows if identity.off(r) > max(_BROKEN, 3 * identity.slack(r))]
        if len(follow) + len(broken) < len(rows) or not broken:
            continue  # what is neither true nor false is no identity
        for row in broken:
            cell = identity.target.cells[row]
            line = grid.rows[row].line
            if cell is None or line in told:
                continue
            told.add(line)
            text = f"{' | '.join(grid.rows[row].cells)} (the other rows: {identity.words})"
            value = cell.quantity.text
            says = {"value": value.lstrip("~"), "readings": [identity.reading(row)], "in_units": True}
            yield Drafted(kind="expression", line=line, text=shortened(text), says=says)


def _derived(grid: Grid) -> set[str]:
    """Columns that are the exact product or quotient of two others in every row, or one other by a constant."""
    columns, count = [c for i in range(len(grid.header)) if (c := _column(grid, i))], len(grid.rows)
    scaled = (
        _fitted(_Identity(target=target, over=over, under=under), count)
        for target in columns
        for other in columns
        for over, under in (((other,), ()), ((), (other,)))
        if other is not target
    )
    exact = (
        _Identity(target=target, over=over, under=under)
        for target in columns
        for a, b in combinations([c for c in columns if c is not target], 2)
        for over, under in (((a, b), ()), ((a,), (b,)), ((b,), (a,)))
    )
    return {i.target.name for i in (*exact, *scaled) if i is not None and _in_all(i, count)}


def _in_all(identity: _Identity, count: int) -> bool:
    rows = _rows(identity, count)
    return len(rows) >= _LEAST_OF_FREE and all(identity.off(r) <= identity.slack(r) for r in rows)


def _rows(identity: _Identity, count: int) -> list[int]:
    """Rows that have all numbers of an identity."""
    columns = (identity.target, *identity.over, *identity.under)
    return [r for r in range(count) if all(c.value(r) > 0 for c in columns)]


def _identities(grid: Grid) -> Iterator[_Identity]:
    """What most rows follow: totals first, then exact products and quotients, then with a factor found in the rows."""
    columns = [c for i in range(len(grid.header)) if (c := _column(grid, i))]
    count = len(grid.rows)
    for target in columns:
        if _SUM.search(target.name):
            same = [c for c in columns if c is not target and _alike(c, target) and not _SUM.search(c.name)]
            yield from (i for i in _sums(target, same) if _followed(i, count, _LEAST_FOLLOWING))
    for at, target in enumerate(columns):  # what is derived stands behind what it is derived from
        for a, b in combinations(columns[:at], 2):
            for over, under in (((a, b), ()), ((a,), (b,)), ((b,), (a,))):
                exact = _Identity(target=target, over=over, under=under)
                if _followed(exact, count, _LEAST_FOLLOWING):
                    yield exact
                elif (free := _fitted(exact, count)) and _followed(free, count, _LEAST_OF_FREE):
                    yield free
    for a, target in permutations(columns, 2):
        defined = any(
            re.search(x, a.name, re.IGNORECASE) and re.search(y, target.name, re.IGNORECASE) for x, y in _PROPORTIONAL
        )
        free = _fitted(_Identity(target=target, over=(a,)), count) if defined else None
        if free and _followed(free, count, _LEAST_OF_FREE):
            yield free


def _sums(target: _Column, same: Sequence[_Column]) -> Iterator[_Identity]:
    """A total of two or more columns of its kind: of all, or of all but one."""
    for size in (len(same), len(same) - 1):
        if size >= 2:
            yield from (_Identity(target=target, over=part, added=True) for part in combinations(same, size))


def _alike(one: _Column, other: _Column) -> bool:
    """Whether two columns are of one dimension."""
    dimensions = ({c.dimension for c in column.cells if c} for column in (one, other))
    return len(set.union(*dimensions)) == 1


def _fitted(identity: _Identity, count: int) -> _Identity | None:
    """The same identity with the factor that the middle row has."""
    ratios = [identity.target.value(r) / identity.gives(r) for r in _rows(identity, count)]
    if len(ratios) < _LEAST_OF_FREE:
        return None
    return _Identity(target=identity.target, over=identity.over, under=identity.under, factor=median(ratios))


def _followed(identity: _Identity, count: int, least: int) -> bool:
    """Whether enough rows follow, and whether they vary enough to say anything."""
    rows = _rows(identity, count)
    follow = [r for r in rows if identity.off(r) <= identity.slack(r)]
    if len(rows) < _LEAST_ROWS or len(follow) < max(least, _SHARE * len(rows)) or len(follow) == len(rows):
        return False
    columns = (identity.target, *identity.over, *identity.under)
    spread = 1 + max(_LEAST_SPREAD, _TIMES_SLACK * max(identity.slack(r) for r in follow))
    varying = sum(max(values) >= spread * min(values) for c in columns if (values := [c.value(r) for r in follow]))
    # with a factor that was found, a constant column would leave two that merely rise together
    return varying >= (len(columns) if identity.factor != 1.0 else 2)


def _column(grid: Grid, at: int) -> _Column | None:
    """A column of numbers of one kind; None for one of words, of ranges or of mixed kinds."""
    if _COUNTS.match(grid.header[at]):
        return None
    cells = []
    for row in grid.rows:
        found = figures(row.cells[at])
        first = found[0] if found and found[0].start <= 2 else None
        cells.append(first if first and first.quantity.low == first.quantity.high and first.value > 0 else None)
    kinds = {c.dimension for c in cells if c}
    known = sum(c is not None for c in cells)
    if len(kinds) != 1 or known < _LEAST_ROWS or known < _SHARE * len(cells):
        return None
    return _Column(name=grid.header[at], cells=tuple(cells))
