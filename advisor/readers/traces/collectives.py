"""Reads the dumps of torch's flight recorder: which collectives each rank of a job has called, by any backend."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from advisor.errors import AdvisorError
from advisor.readers.traces.frames import place_of, read_stack, shown
from advisor.readers.traces.safe_pickle import entry, load, optional

_MOST_RANKS, _MOST_TENSORS, _MOST_DIMENSIONS = 2**17, 2**12, 2**6
_ENDINGS = re.compile(r"(?:\.[A-Za-z]\w*)+$")
_BETWEEN_TWO = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")
_WHOLE_JOB = "default_pg"  # how torch describes the group of all ranks
RECORD_DUMPS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 for all ranks writes one file a rank"


class Call(NamedTuple):
    """One collective that a rank has called."""

    group: str  # key of `Collectives.groups`
    number: int  # the rank's calls in this group, counted from 1
    operation: str  # such as all_reduce
    inputs: tuple[tuple[int, ...], ...]  # sizes
    outputs: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str  # scheduled, started or completed; some backends never change it
    created_ns: int
    place: str | None  # the line that called


@dataclass(frozen=True, kw_only=True)
class Group:
    """The ranks that take part in each collective of a group."""

    label: str
    ranks: tuple[int, ...]
    stated: bool = True  # False: `ranks` are those that called, since the dumps do not say


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """The calls of each rank in the order of its record, and the ranks that wrote no file."""

    calls: Mapping[int, tuple[Call, ...]]
    groups: Mapping[str, Group]
    missing_ranks: tuple[int, ...]
    rolled_ranks: frozenset[int] = frozenset()  # those that kept only their last calls


class _Dump(NamedTuple):
    """One file, before it is known which groups the other ranks are in."""

    name: str
    rank: int
    entries: list[dict[str, Any]]
    members: dict[str, tuple[int, ...]]  # ranks by name of group, as far as known

    @property
    def first_record(self) -> int:
        return (optional(self.entries[0], "record_id", int) or 0) if self.entries else 0


def read_dumps(parts: Sequence[tuple[str, BinaryIO]]) -> Collectives:
    """Read one dump a rank, pickle or JSON. Raises AdvisorError if one is damaged or a rank cannot be told."""
    dumps: dict[int, _Dump] = {}
    for name, stream in parts:
        dump = _read_dump(stream, name)
        # The same dump as pickle and as JSON: only the pickle has the lines that called.
        of_rank = (dumps.get(dump.rank, dump), dump)
        dumps[dump.rank] = max(of_rank, key=lambda one: (sum(bool(call.get("frames")) for call in one.entries),
                                                         len(one.entries)))  # fmt: skip
    known = {rank for dump in dumps.values() for ranks in dump.members.values() for rank in ranks}
    everyone = tuple(sorted({*known, *range(max(dumps, default=0) + 1)}))
    calls: dict[int, tuple[Call, ...]] = {}
    members: dict[str, tuple[str, tuple[int, ...]]] = {}
    callers: dict[str, dict[int, None]] = defaultdict(dict)
    for rank, dump in sorted(dumps.items()):
        calls[rank] = tuple(_calls(dump, everyone, members))
        for call in calls[rank]:
            callers[call.group][rank] = None
    return Collectives(
        calls=calls,
        groups={key: Group(label=label, ranks=ranks or tuple(callers[key]), stated=bool(ranks))
                for key, (label, ranks) in members.items()},
        missing_ranks=tuple(rank for rank in everyone if rank not in dumps),
        rolled_ranks=frozenset(rank for rank, dump in dumps.items() if dump.first_record > 0),
    )  # fmt: skip


def _read_dump(stream: BinaryIO, name: str) -> _Dump:
    held = load(stream, name)
    entries = entry(held, "entries", list, name)
    members: dict[str, tuple[int, ...]] = {}
    for key, one in (optional(held, "pg_config", dict) or {}).items():
        ranks = {int(rank) for rank in re.findall(r"\d{1,9}", optional(one, "ranks", str) or "")}
        members[str(key)] = tuple(sorted(rank for rank in ranks if rank < _MOST_RANKS))
    rank = _rank(name, {rank for ranks in members.values() for rank in ranks})
    return _Dump(name, rank, [entry(entries, number, dict, name) for number in range(len(entries))], members)


def _rank(name: str, known: set[int]) -> int:
    """Return the last number of a file's name that is a rank of the job."""
    base = _ENDINGS.sub("", re.split(r"[/\\]", name)[-1])
    numbers = [int(number) for number in re.findall(r"\d{1,9}", base) if int(number) < _MOST_RANKS]
    ranks = [number for number in numbers if not known or number in known]
    if not ranks:
        told = f"of {len(known)} ranks" if known else "of the job"
        raise AdvisorError(f"{name} does not say which {told} wrote it", "name the files rank_0, rank_1, …")
    return ranks[-1]


def _calls(dump: _Dump, everyone: tuple[int, ...], members: dict[str, tuple[str, tuple[int, ...]]]) -> list[Call]:
    """Return the calls of one rank; put label and known ranks of each group that they name into `members`."""
    calls: list[Call] = []
    pairs: dict[str, int] = {}
    for one in dump.entries:
        name, label, *_ = *map(str, optional(one, "process_group", list) or ()), "", ""
        ranks = dump.members.get(name, ())
        if label == _WHOLE_JOB:
            ranks = ranks or dump.members.get("", ()) or everyone
        key, number = f"{name} {ranks}", entry(one, "collective_seq_id", int, dump.name)
        operation = entry(one, "profiling_name", str, dump.name).rpartition(":")[2]
        label = label if label not in ("", "undefined") else f"group {name}"
        if one.get("is_p2p"):
            between = _BETWEEN_TWO.search(operation)
            if between is None or dump.first_record > 0:
                continue  # what bundles several, or counts from an unknown start
            first, second = int(between[2]), int(between[4])
            pair = (first, second) if between[3] == "->" else (second, first)
            key, label = f"{key} {pair}", f"{label} {pair[0]}->{pair[1]}"
            known = ranks and max(pair) < len(ranks)
            ranks = tuple(ranks[place] for place in pair) if known else pair
            number = pairs[key] = pairs.get(key, 0) + 1
            operation = "send and recv"
        members.setdefault(key, (shown(label, 60), ranks))
        inputs, outputs = (_sizes(optional(one, f"{ends}_sizes", list)) for ends in ("input", "output"))
        dtypes = tuple(shown(str(dtype), 20) for dtype in optional(one, "input_dtypes", list) or ())
        state, created_ns = str(one.get("state", "")), entry(one, "time_created_ns", int, dump.name)
        place = place_of(read_stack(one.get("frames")))
        calls.append(Call(key, number, shown(operation, 60), inputs, outputs, dtypes, state, created_ns, place))
    return calls


def _sizes(given: list[Any] | None) -> tuple[tuple[int, ...], ...]:
    tensors = (one[:_MOST_DIMENSIONS] for one in (given or ())[:_MOST_TENSORS] if type(one) in (list, tuple))
    return tuple(tuple(optional(one, place, int) or 0 for place in range(len(one))) for one in tensors)
