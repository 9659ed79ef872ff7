"""What lies beside a log, added to its table: facts of a configuration, telemetry, checkpoints, another file's end."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.readers.chunks import chunks
from advisor.readers.run_table import Event, RunTable
from advisor.readers.status import by_plan
from advisor.readers.telemetry_table import Telemetry


def with_facts(table: RunTable, facts: Mapping[str, Any], source: str) -> RunTable:
    """Add facts that the table does not have; differences between both are noted, the log's own word wins."""
    differing = [
        f"{source} says {name} {_short(value)}, the log says {_short(table.facts[name])}: the log's is taken"
        for name, value in facts.items()
        if name in table.facts and _differ(value, table.facts[name])
    ]
    joined = by_plan({**facts, **table.facts}, table)
    return dataclasses.replace(joined, notes=(*table.notes, *differing))


def with_readings(table: RunTable, telemetry: Telemetry) -> RunTable:
    """The table with readings already at hand."""
    return dataclasses.replace(table, telemetry=telemetry)


def with_events(table: RunTable, events: Sequence[Event]) -> RunTable:
    """Add events; of a checkpoint that the log reports itself, only what the log does not know is taken."""
    known = {event.step for event in table.events if event.kind == "checkpoint" and event.step is not None}
    new = [event for event in events if event.kind != "checkpoint" or event.step is None or event.step not in known]
    return dataclasses.replace(table, events=(*table.events, *new))


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) > 1e-6 * max(abs(one), abs(other))
    return isinstance(one, str) and isinstance(other, str) and one.lower() != other.lower()


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:40]


# Logs of one folder that are one run, written by one process after the other: jobs of a chain, attempts of a launcher.
#
# Their paths differ in one number (`slurm-7000.out`, `slurm-7001.out`; `attempt_0/0/stdout.log`, `attempt_1/0/…`), and
# each goes on where the one before had come to. Ranks print the same steps and are none.

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


# Checkpoints on disk as events: path, step by its name, size and time; never opened.

_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".distcp", ".msgpack", ".npz", ".keras", ".h5")
_LEAST_BYTES = 1000  # optimizer states of toys are larger; `training_args.bin` and indices are no weights
_NOT_WEIGHTS = ("training_args.bin", "scheduler.pt", "rng_state", "tokens.bin", "train.bin", "val.bin", "vocab.bin")
# a folder or file named after a step: checkpoint-500, step-00000100, iter_0001000, global_step1000, ckpt_2000.pt,
# epoch=3-step=1200.ckpt, Composer's ep0-ba4800; not the parts of one model, model-00001-of-00002
_STEP = re.compile(r"(?:global_step|step|iteration|iter|(?<![a-z])ba)[-_=]?0*(\d+)")
_NUMBERED = re.compile(r"(?:checkpoint|ckpt|model|state|epoch|ep)[-_=]?0*(\d+)(?!\d*-of-)")


def is_weights(path: Path) -> bool:
    """Whether a file's name is one of saved weights or optimizer states."""
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(_NOT_WEIGHTS)


def checkpoint_events(folder: Path, files: Iterable[Path]) -> list[Event]:
    """One event per checkpoint (a folder named after a step, or a single file), in the order of their steps.

    `numbers` has bytes, unix_seconds (last change) and step where the name says it.
    """
    groups: dict[Path, list[Path]] = {}
    for path in files:
        if is_weights(path) and path.stat().st_size >= _LEAST_BYTES:
            groups.setdefault(_unit(path, folder), []).append(path)
    events = [_event(unit, paths, folder) for unit, paths in groups.items()]
    return sorted(events, key=lambda event: (event.step is None, event.step or 0.0, event.text))


def step_of(name: str) -> float | None:
    """The step in a checkpoint's name; None where it has none."""
    match = _STEP.search(name.lower()) or _NUMBERED.search(name.lower())
    return float(match[1]) if match and len(match[1]) < 12 else None


def _unit(path: Path, folder: Path) -> Path:
    """The checkpoint that a file belongs to: its nearest folder named after a step, else the file itself."""
    for parent in path.parents:
        if parent == folder:
            break
        if step_of(parent.name) is not None:
            return parent
    return path


def _event(unit: Path, paths: list[Path], folder: Path) -> Event:
    stats = [path.stat() for path in paths]
    numbers = {
        "bytes": float(sum(stat.st_size for stat in stats)),
        "unix_seconds": max(stat.st_mtime for stat in stats),
    }
    step = step_of(unit.name)
    if step is not None:
        numbers["step"] = step
    return Event(kind="checkpoint", text=str(unit.relative_to(folder)), step=step, numbers=numbers)
