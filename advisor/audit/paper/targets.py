"""Rows of a table that set a value against a target and say that it is met: they have to agree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.audit.paper.document import Document, Grid, Row
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.quantity import parse_quantity

_TARGET = re.compile(r"\b(?:target|goal|budget|limit|threshold|allowed|required|requirement|expected)\b", re.IGNORECASE)
_STATUS = re.compile(
    r"^\W*(?:status|result|verdict|compliance|passed|pass\??|gate|met\??|within.{0,12})\W*$", re.IGNORECASE
)
_MET = re.compile(r"^\W*(?:✅|✓|passed|pass|compliant|ok|met|within|yes|green)(?:\W+\w+)?\W*$", re.IGNORECASE)
_SIGN = re.compile(r"^\W*(?P<sign><=?|≤|>=?|≥|under|below|at most|max\.?|at least|over|above|min\.?)", re.IGNORECASE)
_UPPER = re.compile(r"<|≤|under|below|at most|max", re.IGNORECASE)


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such row."""
    for grid in document.grids:
        at = _columns(grid)
        if at is not None:
            for row in grid.rows:
                yield from _row(row, *at)


def _columns(grid: Grid) -> tuple[int, int, int] | None:
    """The columns of values, of their targets and of what is said of them."""
    targets = [i for i, title in enumerate(grid.header) if _TARGET.search(title)]
    said = [i for i, title in enumerate(grid.header) if _STATUS.match(title)]
    if len(targets) != 1 or len(said) != 1 or targets[0] < 1 or targets == said:
        return None
    beside = [i for i in (targets[0] - 1, targets[0] + 1) if 0 < i < len(grid.header) and i not in said]
    numeric = [i for i in beside if sum(len(figures(row.cells[i])) == 1 for row in grid.rows) * 2 > len(grid.rows)]
    return (numeric[0], targets[0], said[0]) if len(numeric) == 1 else None


def _row(row: Row, value: int, target: int, said: int) -> Iterator[Drafted]:
    own, asked = figures(row.cells[value]), figures(row.cells[target])
    if len(own) != 1 or len(asked) != 1 or own[0].dimension != asked[0].dimension or not _MET.match(row.cells[said]):
        return
    allowed = _allowed(row.cells[target], asked[0])
    if allowed is not None and not own[0].side:
        says = {"value": allowed, "readings": [f"[{own[0].quantity.text.lstrip('~')}]"], "in_units": True}
        yield Drafted(kind="expression", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _allowed(cell: str, asked: Figure) -> str | None:
    """The target as a quantity: a range, or all on one side of a number; None where the cell does not say which."""
    text = asked.quantity.text.lstrip("~<>")
    if sign := _SIGN.match(cell):
        return f"{'<' if _UPPER.match(sign['sign']) else '>'}{text}"
    return text if parse_quantity(text).high > parse_quantity(text).low else None
