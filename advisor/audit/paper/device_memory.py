"""What a text says fills a card: overhead nobody measured, accumulation, sharded gradients, needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from advisor.audit.paper.cards import mentions
from advisor.audit.paper.document import Document, Grid, Passage
from advisor.audit.paper.draft import Drafted, shortened
from advisor.audit.paper.figures import Figure, figures
from advisor.audit.paper.words import phrase

_OVERHEAD = phrase(
    r"\b(?:CUDA|memory|allocator|framework|PyTorch)\b[^.;|]{0,30}\b(?:overhead|fragmentation)\b"
    r"|\boverhead\b[^.;|]{0,20}\b(?:fragmentation|CUDA|context)\b|\bunaccounted\b",
    re.IGNORECASE,
)
_NOT_MEASURED = re.compile(r"\bwithout\b|\bwould\b|\bsav|\breduc|\bavoid|\bvs\b|\btotal:|\bleak", re.IGNORECASE)
_ACCUMULATION = re.compile(r"\b(?:gradient )?accumulation\b|\bmicro-?(?:step|batch)", re.IGNORECASE)
_ADDS_UP = phrase(
    r"\bactivations? (?:memory )?(?:accumulate|add up|pile up|build up)\b"
    r"|\b(?:each|every) (?:micro-?(?:step|batch)|accumulation step) (?:adds|stores|keeps|holds)\b"
    r"[^.;]{0,25}\bactivation",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\bnot\b|n't\b|\bnever\b|\bfreed\b|\bwithout accum", re.IGNORECASE)
_SHARDED = re.compile(r"\bFSDP\d?\b|\bfully sharded\b|\bZeRO-?3\b|\bfully_shard\b", re.IGNORECASE)
_ALL_REDUCED = phrase(
    r"\bgradients?\b[^.;]{0,30}\ball-?reduced?\b|\ball-?reduces? (?:the )?gradients?\b", re.IGNORECASE
)
_REPLICATED = re.compile(
    r"\bDDP\b|HSDP|hybrid|replica|\bNO_SHARD\b|\bZeRO-?1\b|instead|unlike|\bvs\b|\bnot\b", re.IGNORECASE
)
_TOO_MUCH = phrase(
    r"\b(?:exceeds?|does(?:n't| not) fit|too (?:large|big|much) for|more than|beyond)\b"
    r"[^.;]{0,25}\b(?:GPU|card|VRAM|device)\b",
    re.IGNORECASE,
)
_OUT_OF = re.compile(r"\b(?:out|used) of (?:the )?~?$|\d\s?Gi?B\s*/\s*$")
_LEAST_CARD, _MOST_CARD = 4e9, 400e9  # bytes


def drafts(document: Document) -> Iterator[Drafted]:
    """Every such claim of sentences and rows."""
    room = _room(document)
    sharded = _SHARDED.search(document.text) is not None
    for passage in document.passages:
        yield from _overhead(passage)
        yield from _told(passage, sharded)
        yield from _too_much(passage, room)
    for grid in document.grids:
        yield from _rows(grid)


def _overhead(passage: Passage) -> Iterator[Drafted]:
    """As "50-60 GB of CUDA overhead is normal"."""
    sizes = [f for f in figures(passage.text) if f.dimension == "bytes"]
    if len(sizes) == 1 and _OVERHEAD.search(passage.text) and not _NOT_MEASURED.search(passage.text):
        says = {"value": sizes[0].quantity.text}
        yield Drafted(kind="memory_overhead", line=passage.line, text=shortened(passage.text), says=says)


def _rows(grid: Grid) -> Iterator[Drafted]:
    """A row "CUDA overhead" of a table of what fills the card; its bare numbers are in the unit of their title."""
    for row in grid.rows:
        if not _OVERHEAD.search(row.cells[0]):
            continue
        for title, cell in zip(grid.header[1:], row.cells[1:], strict=True):
            found = figures(cell)
            unit = re.search(r"\bGi?B\b", title)
            if len(found) != 1 or not (found[0].dimension == "bytes" or (unit and found[0].dimension == "count")):
                continue
            text = found[0].quantity.text
            says = {"value": text if found[0].dimension == "bytes" else f"{text} {unit[0] if unit else ''}"}
            yield Drafted(kind="memory_overhead", line=row.line, text=shortened(" | ".join(row.cells)), says=says)


def _told(passage: Passage, sharded: bool) -> Iterator[Drafted]:
    """As "with accumulation the activations accumulate", "FSDP: gradients are all-reduced"."""
    text = passage.text
    around = " ".join((text, *passage.headings[-1:]))
    if _ADDS_UP.search(text) and _ACCUMULATION.search(around) and not _DENIED.search(text):
        says = {"that": "accumulation_holds_activations"}
        yield Drafted(kind="generality", line=passage.line, text=shortened(text), says=says)
    heading = " ".join(passage.headings)
    told = _SHARDED.search(text) or re.search(r"\bsharded\b", heading, re.IGNORECASE) or _SHARDED.search(heading)
    if sharded and told and _ALL_REDUCED.search(text) and not _REPLICATED.search(text):
        yield Drafted(
            kind="conclusion", line=passage.line, text=shortened(text), says={"that": "gradients_all_reduced"}
        )


def _room(document: Document) -> Figure | None:
    """The one memory of a card that a text states: "74.7 GB used out of 93.6 GB", "8x H100 80GB"."""
    stated: dict[str, Figure] = {}
    for passage in document.passages:
        found = [f for f in figures(passage.text) if f.dimension == "bytes" and _LEAST_CARD < f.value < _MOST_CARD]
        for figure in found:
            beside = any(m.memory_gb and m.start <= figure.start < m.end for m in mentions(passage.text))
            if beside or _OUT_OF.search(passage.text[: figure.start]):
                stated[figure.quantity.text] = figure
    return next(iter(stated.values())) if len(stated) == 1 else None


def _too_much(passage: Passage, room: Figure | None) -> Iterator[Drafted]:
    """As "Total: 86.4 GB (exceeds single GPU!)" of a card of 93.6."""
    sizes = [f for f in figures(passage.text) if f.dimension == "bytes"]
    if room is not None and len(sizes) == 1 and _TOO_MUCH.search(passage.text, sizes[0].end):
        says = {"value": sizes[0].quantity.text, "than": room.quantity.text}
        yield Drafted(kind="exceeds_card", line=passage.line, text=shortened(passage.text), says=says)
