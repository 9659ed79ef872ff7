"""Logs whose lines were broken at the width of a terminal: the breaks can be taken out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from advisor.readers.chunks import Chunk

NARROWEST, WIDEST = 30, 250
LEAST_SHARE = 0.2  # of lines that end at the width, where others do before it and none behind


def width_of(head: bytes) -> int | None:
    """The width that lines of a sample were broken at; None where they were not."""
    lengths = Counter(len(line) for line in head.split(b"\n")[:-1] if line)
    if not lengths:
        return None
    widest = max(lengths)
    broken = lengths[widest] >= LEAST_SHARE * lengths.total() and lengths[widest] < 0.95 * lengths.total()
    return widest if broken and NARROWEST <= widest <= WIDEST else None


def joined(text: bytes, width: int) -> bytes:
    """Text whose lines of full width go on in the next one."""
    return re.sub(rb"(?m)^([^\n]{%d})\n(?=[^\n])" % width, rb"\1", text)


def joining(width: int) -> Callable[[Chunk], Chunk]:
    """What takes the breaks out of a log's chunks; line numbers are then those of the joined text."""

    def whole(chunk: Chunk) -> Chunk:
        return Chunk(text=joined(chunk.text, width), first_line=chunk.first_line)

    return whole
