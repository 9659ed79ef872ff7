"""Cards that a text recommends against the memory that it says itself is needed, and adapters beside their weights.

A table of needs ("250M: 12 GB") counts for a row of another one that recommends a card, where the row's name says
nothing but what the need's row and its headings say, and says so of one need only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.audit.paper.cards import Mention, mentions
from advisor.audit.paper.document import Document, Grid
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.records import plain_name
from advisor.audit.paper.stated import size_in
from advisor.audit.paper.words import NOT_TRAINING
from advisor.audit.quantity import Quantity, parse_quantity

_NEED = re.compile(r"\bv?ram\b|\bmemory\b", re.IGNORECASE)
_LESS = re.compile(
    r"\bsav(?:ed|ing)|\breduc|\bper\b|\bcard|\bgpu memory\b|\bgenerat|\binferen|\bweights?\b", re.IGNORECASE
)
_CARDS = re.compile(r"\bgpus?\b|\bcards?\b|\bhardware\b", re.IGNORECASE)
_LEAST, _ADVISED = re.compile(r"\bmin(?:imum)?\b", re.IGNORECASE), re.compile(r"\brecommended\b", re.IGNORECASE)
_LORA, _QUANTISED = re.compile(r"\W*LoRA\W*", re.IGNORECASE), re.compile(r"\bQLoRA\b|\b[48]-?\s?bit", re.IGNORECASE)
_SIXTEEN_BIT = "2"  # bytes a parameter
_LEAST_MODEL = 5e8
_EMPTY = frozenset(("the", "a", "of", "for", "and", "model", "config", "configs", "training", "with"))


@dataclass(frozen=True, kw_only=True)
class _Need:
    """Memory that a row of a table says its subject needs: words of its name, and those of its headings."""

    name: frozenset[str]
    around: frozenset[str]
    memory: Figure
    line: int


def drafts(document: Document) -> Iterator[Drafted]:
    """Every card that is smaller than what the text says is needed, and adapters that take the weights alone."""
    needs = [need for grid in document.grids for need in _needs(grid)]
    for grid in document.grids:
        yield from _too_small(grid, needs)
        yield from _adapters(grid)


def _needs(grid: Grid) -> Iterator[_Need]:
    """The needs of a table's rows, by its one column of memory in training."""
    columns = [i for i, name in enumerate(grid.header) if i and _NEED.search(name) and not _LESS.search(name)]
    if len(columns) != 1 or _CARDS.search(grid.header[0]) or NOT_TRAINING.search(grid.header[columns[0]]):
        return
    around = frozenset(_words(" ".join(grid.headings[-1:])))
    for row in grid.rows:
        found = figures(row.cells[columns[0]])
        if len(found) == 1 and found[0].dimension == "bytes" and not mentions(row.cells[0]):
            yield _Need(name=frozenset(_words(row.cells[0])), around=around, memory=found[0], line=row.line)


def _words(text: str) -> list[str]:
    return [
        word for word in re.split(r"[ .]", plain_name(text.replace("_", " ").replace("-", " "))) if word not in _EMPTY
    ]


def _too_small(grid: Grid, needs: Sequence[_Need]) -> Iterator[Drafted]:
    """Rows that name a card for something whose need another table states, or a smaller card than their minimum."""
    columns = [i for i, name in enumerate(grid.header) if i and _CARDS.search(name)]
    for row in grid.rows:
        cards = {i: card for i in columns if (card := _one_card(row.cells[i])) is not None}
        words = frozenset(_words(row.cells[0]))
        meant = [n for n in needs if n.line != row.line and words and words <= n.name | n.around and words & n.name]
        for i, card in cards.items():
            memory, what = _memory(card), f"{row.cells[0]}: {grid.header[i]} {row.cells[i].strip()}"
            if memory is not None and len(meant) == 1 and meant[0].memory.value > 0:
                says = {"value": f"{memory:g} GB", "needs": meant[0].memory.quantity.text}
                yield Drafted(kind="fits_card", line=row.line, text=shortened(what), says=says)
        least, advised = (next((i for i in cards if told.search(grid.header[i])), None) for told in (_LEAST, _ADVISED))
        if least is not None and advised is not None:
            small, large = _memory(cards[advised]), _memory(cards[least])
            if small is not None and large is not None:
                says = {"value": f"{small:g} GB", "needs": f"{large:g} GB"}
                what = (
                    f"{row.cells[0]}: {row.cells[advised].strip()} recommended, {row.cells[least].strip()} the minimum"
                )
                yield Drafted(kind="fits_card", line=row.line, text=shortened(what), says=says)


def _one_card(cell: str) -> Mention | None:
    found = mentions(cell)
    return found[0] if len(found) == 1 and (found[0].count or 1) == 1 and "+" not in cell else None


def _memory(card: Mention) -> float | None:
    """Gigabytes of a card as the text has them, else of the largest that the name can mean."""
    return card.memory_gb or max((spec.memory_gb for spec in card.specs), default=None)


def _adapters(grid: Grid) -> Iterator[Drafted]:
    """Columns titled LoRA beside quantised ones: the weights stand there in 16 bits, and something beside them."""
    titles = grid.header[1:]
    column = next((i for i, name in enumerate(titles, 1) if _LORA.fullmatch(name)), None)
    if column is None or not any(_QUANTISED.search(name) for name in titles):
        return
    for row in grid.rows:
        size = next((s for cell in row.cells[:column] if (s := _size(cell)) is not None), None)
        found = figures(row.cells[column])
        if size is not None and size.low >= _LEAST_MODEL and len(found) == 1 and found[0].dimension == "bytes":
            says = {"value": found[0].quantity.text, "parameters": size.text, "bytes_each": _SIXTEEN_BIT}
            what = shortened(f"{row.cells[0]}: {found[0].raw} ({grid.header[column]})")
            yield Drafted(kind="adapter_memory", line=row.line, text=what, says=says)


def _size(cell: str) -> Quantity | None:
    """The size that a cell states ("8B" of a column of parameters) or names ("Llama-3-8B")."""
    bare = re.fullmatch(r"\W*(\d+(?:\.\d+)?)\s?B\W*", cell)
    return parse_quantity(f"{bare[1]} billion") if bare else size_in(cell)
