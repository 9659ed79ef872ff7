"""Adds to a log's table what is beside it: configuration facts, telemetry, checkpoints, the end in another file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.readers.run_table import Event, RunTable
from advisor.readers.status import by_plan


def with_facts(table: RunTable, facts: Mapping[str, Any], source: str) -> RunTable:
    """Add facts that the table does not have. Differences are noted, and the log's own value wins."""
    differing = [
        f"{source} says {name} {_short(value)}, the log says {_short(table.facts[name])}: the log's is taken"
        for name, value in facts.items()
        if name in table.facts and _differ(value, table.facts[name])
    ]
    joined = by_plan({**facts, **table.facts}, table)
    return dataclasses.replace(joined, notes=(*table.notes, *differing))


def with_events(table: RunTable, events: Sequence[Event]) -> RunTable:
    """Add events. For a checkpoint that the log itself reports, only what the log does not know is added."""
    known = {event.step for event in table.events if event.kind == "checkpoint" and event.step is not None}
    new = [event for event in events if event.kind != "checkpoint" or event.step is None or event.step not in known]
    return dataclasses.replace(table, events=(*table.events, *new))


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) > 1e-6 * max(abs(one), abs(other))
    return isinstance(one, str) and isinstance(other, str) and one.lower() != other.lower()


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:40]


# Checkpoints on disk become events with path, step (from the name), size and time. They are never opened.

_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".distcp", ".msgpack", ".npz", ".keras", ".h5")
_LEAST_BYTES = 1000  # even a toy's optimizer states are larger; `training_args.bin` and indices are not weights
_NOT_WEIGHTS = ("training_args.bin", "scheduler.pt", "rng_state", "tokens.bin", "train.bin", "val.bin", "vocab.bin")
# a folder or file named after a step: checkpoint-500, step-00000100, iter_0001000, global_step1000, ckpt_2000.pt,
# epoch=3-step=1200.ckpt, Composer's ep0-ba4800; but not parts of one model, such as model-00001-of-00002
_STEP = re.compile(r"(?:global_step|step|iteration|iter|(?<![a-z])ba)[-_=]?0*(\d+)")
_NUMBERED = re.compile(r"(?:checkpoint|ckpt|model|state|epoch|ep)[-_=]?0*(\d+)(?!\d*-of-)")


def is_weights(path: Path) -> bool:
    """Return whether a file's name is one of saved weights or optimizer states."""
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(_NOT_WEIGHTS)


def checkpoint_events(folder: Path, files: Iterable[Path]) -> list[Event]:
    """Return one event per checkpoint (a folder named after a step, or a single file), in the order of their steps.

    `numbers` has bytes, unix_seconds (the last change) and, if the name states it, the step.
    """
    groups: dict[Path, list[Path]] = {}
    for path in files:
        if is_weights(path) and path.stat().st_size >= _LEAST_BYTES:
            # a checkpoint is the nearest folder named after a step, else the file itself
            inside = path.relative_to(folder).parents
            named = next((folder / parent for parent in inside if step_of(parent.name) is not None), path)
            groups.setdefault(named, []).append(path)
    events = []
    for unit, paths in groups.items():
        stats, step = [path.stat() for path in paths], step_of(unit.name)
        numbers = {"bytes": float(sum(stat.st_size for stat in stats))}
        numbers |= {"unix_seconds": max(stat.st_mtime for stat in stats)} | ({} if step is None else {"step": step})
        events.append(Event(kind="checkpoint", text=str(unit.relative_to(folder)), step=step, numbers=numbers))
    return sorted(events, key=lambda event: (event.step is None, event.step or 0.0, event.text))


def step_of(name: str) -> float | None:
    """Return the step in a checkpoint's name; None if it has none."""
    match = _STEP.search(name.lower()) or _NUMBERED.search(name.lower())
    return float(match[1]) if match and len(match[1]) < 12 else None
