"""Logs of one folder that are one run, written by one process after the other: jobs of a chain, attempts of a launcher.

Their paths differ in one number (`slurm-7000.out`, `slurm-7001.out`; `attempt_0/0/stdout.log`, `attempt_1/0/…`), and
each goes on where the one before had come to. Ranks print the same steps and are none.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from advisor.readers.chunks import chunks
from advisor.readers.run_table import RunTable

MOST_BYTES = 1 << 30  # of all of them together
_NUMBER = re.compile(r"\d+")
_GAP = 0.1  # of the steps so far: what may lie between the last line of one and the first of the next

Log = tuple[Path, RunTable]


def chain_of(folder: Path, logs: Sequence[Log]) -> list[Path]:
    """The files of a chain in order, each link's log first, then what its other processes said; empty without one."""
    found: list[list[Log]] = []
    for group in _groups(folder, logs).values():
        links = sorted(group, key=lambda link: link[0])
        alike = len({table.format for _, (_, table) in links}) == 1
        if len(links) > 1 and alike and all(_goes_on(a[1][1], b[1][1]) for a, b in zip(links, links[1:], strict=False)):
            found.append([log for _, log in links])
    chain = max(found, key=lambda links: sum(table.rows for _, table in links), default=None)
    if chain is None or sum(path.stat().st_size for path, _ in logs) > MOST_BYTES:
        return []
    return [path for at in range(len(chain)) for path in _link(folder, chain, at, logs)]


def read_chain(paths: Sequence[Path], read: Callable[[Path], RunTable | None]) -> RunTable | None:
    """All files one after the other as one log; None where no reader knows it."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, f"chain{paths[0].suffix or '.log'}")
        with whole.open("wb") as out:
            for path in paths:
                for chunk in chunks(path):
                    out.write(chunk.text)
                out.write(b"\n")
        return read(whole)


def _groups(folder: Path, logs: Sequence[Log]) -> dict[tuple[str, str], list[tuple[int, Log]]]:
    """Logs whose paths are the same but for one number, with that number."""
    groups: dict[tuple[str, str], list[tuple[int, Log]]] = defaultdict(list)
    for path, table in logs:
        if table.rows and table.first_step is not None and table.counts_steps:
            name = path.relative_to(folder).as_posix()
            for match in _NUMBER.finditer(name):
                groups[name[: match.start()], name[match.end() :]].append((int(match[0]), (path, table)))
    return groups


def _goes_on(one: RunTable, other: RunTable) -> bool:
    """Whether a log begins behind the beginning of another, at most a little behind its end, and goes further."""
    ends = (one.first_step, one.last_step, other.first_step, other.last_step)
    if any(end is None for end in ends):
        return False
    first, last, begins, goes = (float(end or 0.0) for end in ends)
    return first < begins <= last + max(1.0, _GAP * (last - first)) and goes > last


def _link(folder: Path, chain: Sequence[Log], at: int, logs: Sequence[Log]) -> Iterator[Path]:
    """One link's log and, where other files of the same number say something without a row, those."""
    path = chain[at][0]
    yield path
    names = [other.relative_to(folder).as_posix() for other, _ in chain[:2]]
    place = next(i for i, (a, b) in enumerate(zip(*map(_numbers, names), strict=True)) if a[0] != b[0])
    number, begins = _numbers(path.relative_to(folder).as_posix())[place]
    before = path.relative_to(folder).as_posix()[:begins]
    for other, table in logs:
        name = other.relative_to(folder).as_posix()
        own = name.startswith(before) and (match := _NUMBER.match(name, begins)) is not None and match[0] == number
        if own and not table.rows and table.events:
            yield other


def _numbers(name: str) -> list[tuple[str, int]]:
    return [(match[0], match.start()) for match in _NUMBER.finditer(name)]
