"""Reads and judges what lies below the log: profiler traces, memory snapshots and flight recorders of collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from advisor.errors import AdvisorError
from advisor.findings.traces import memory, step, stuck
from advisor.findings.traces.judgement import Judgement, Rate
from advisor.hardware.catalog import find_gpu
from advisor.hardware.offers import cheapest_offer
from advisor.readers.traces.allocations import read_memory_timeline, read_snapshot
from advisor.readers.traces.collectives import read_dumps
from advisor.readers.traces.kinds import Kind, Part, holds_traces, opened_parts
from advisor.readers.traces.kineto import read_kineto
from advisor.readers.traces.nsys import read_nsys
from advisor.readers.traces.timeline import Timeline
from advisor.workflows.analysis import Given
from advisor.workflows.trace_memory import beside_plan

Update = Callable[[str], None]  # takes the name of the file that is read


@dataclass(frozen=True, kw_only=True)
class JudgedTrace:
    """The judgement of the traces or dumps of one run, usually one file a rank."""

    kind: Kind
    files: tuple[str, ...]
    judgement: Judgement
    rate: Rate
    price_source: str | None = None  # None: no price is known


@dataclass(frozen=True, kw_only=True)
class TraceAnalysis:
    """Everything that was judged at the given paths."""

    source: str
    judged: tuple[JudgedTrace, ...]

    @property
    def sentence(self) -> str:
        return "\n".join(one.judgement.verdict for one in self.judged)

    def to_document(self) -> dict[str, Any]:
        return {"source": self.source, "judged": list(self.judged)}


def traces_among(paths: Sequence[Path]) -> list[Path]:
    """Return the paths if they hold traces or dumps, and nothing if they hold logs. Raises AdvisorError for both."""
    found = [path for path in paths if holds_traces(path)]
    if found and len(found) < len(paths):
        raise AdvisorError(f"{found[0]} is a trace or dump, and others are not", "give them in separate commands")
    return found


def analyze_traces(paths: Sequence[Path], given: Given, update: Update = lambda name: None) -> TraceAnalysis:
    """Read and judge the traces and dumps in files, folders and archives. Several paths are ranks of one run.

    Raises AdvisorError if there is none, or if one cannot be read.
    """
    with contextlib.ExitStack() as opened:
        parts = [part for path in paths for part in opened.enter_context(opened_parts(path))]
        if not parts:
            raise AdvisorError(f"{paths[0]} holds no trace", "advisor analyze --help")
        judged = tuple(_judged(parts, given, update))
    return TraceAnalysis(source=", ".join(map(str, paths)), judged=judged)


def _judged(parts: Sequence[Part], given: Given, update: Update) -> Iterator[JudgedTrace]:
    """Judge what belongs together at once: the traces of all ranks, the dumps of all ranks, each snapshot by itself."""
    of_kind = {kind: [part for part in parts if part.kind is kind] for kind in Kind}
    with contextlib.ExitStack() as streams:
        if dumps := of_kind[Kind.FLIGHT_RECORDER]:
            update(dumps[0].name)
            found = read_dumps([(part.name, streams.enter_context(part.open())) for part in dumps])
            rate, source = _rate(given, len(found.calls) + len(found.missing_ranks))
            names = tuple(part.name for part in dumps)
            judgement = stuck.judge(found, rate)
            yield JudgedTrace(kind=dumps[0].kind, files=names, judgement=judgement, rate=rate, price_source=source)
    timelines = []
    for part in (*of_kind[Kind.KINETO], *of_kind[Kind.NSYS]):
        update(part.name)
        with part.open() as stream:
            timelines += read_nsys(stream, part.name) if part.kind is Kind.NSYS else [read_kineto(stream, part.name)]
    for ranks in _runs(timelines):
        first = ranks[0]
        rate, source = _rate(given, first.world_size or len(ranks), first.gpu, first.gpu_bytes)
        judgement, names = step.judge(ranks, rate), tuple(dict.fromkeys(one.source for one in ranks))
        yield JudgedTrace(kind=first.kind, files=names, judgement=judgement, rate=rate, price_source=source)
    for part in (*of_kind[Kind.SNAPSHOT], *of_kind[Kind.MEMORY_TIMELINE]):
        update(part.name)
        reader = read_snapshot if part.kind is Kind.SNAPSHOT else read_memory_timeline
        rate, source = _rate(given, 1)
        with part.open() as stream:
            judgement = memory.judge(reader(stream, part.name), rate)
        if given.plan is not None:
            judgement = beside_plan(judgement, given.plan)
        yield JudgedTrace(kind=part.kind, files=(part.name,), judgement=judgement, rate=rate, price_source=source)


def _runs(timelines: Sequence[Timeline]) -> list[list[Timeline]]:
    """Group the traces of one run: of different ranks, and as many in all as each of them states.

    A rank's windows of different steps are told apart by their folders, or else each is judged by itself.
    """
    ranks = [one.rank for one in timelines]
    alike = len({(one.kind, one.world_size) for one in timelines}) == 1
    if alike and None not in ranks and len(set(ranks)) == len(ranks):
        return [sorted(timelines, key=lambda one: one.rank or 0)]
    folders: dict[PurePath, list[Timeline]] = {}
    for one in timelines:
        folders.setdefault(PurePath(one.source).parent, []).append(one)
    if len(folders) > 1:
        return [run for inside in folders.values() for run in _runs(inside)]
    return [[one] for one in timelines]


def _rate(given: Given, gpus: int, named: str | None = None, gpu_bytes: float | None = None) -> tuple[Rate, str | None]:
    """Return what the GPUs cost, and where the price is from: as stated, or else the catalog's cheapest offer."""
    spec = find_gpu(named, gpu_bytes) if named and given.gpu is None else None
    gpu, gpus = given.gpu or (spec.key if spec else None), given.gpus or gpus
    if given.usd_per_gpu_hour is not None:
        return Rate(gpus=gpus, usd_per_gpu_hour=given.usd_per_gpu_hour, gpu=gpu), "as stated"
    offer = cheapest_offer(gpu, gpus) if gpu else None
    if offer is None or offer.usd_per_hour is None:
        return Rate(gpus=gpus, gpu=gpu), None
    return Rate(gpus=gpus, usd_per_gpu_hour=offer.usd_per_hour / gpus, gpu=gpu), offer.source
