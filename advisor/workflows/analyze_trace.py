"""Reads and judges what lies below the log: profiler traces, memory snapshots and flight recorders of collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from advisor.errors import AdvisorError
from advisor.findings.case import Case
from advisor.findings.traces import memory, step, stuck
from advisor.findings.traces.judgement import Judgement, Rate
from advisor.hardware.catalog import find_gpu
from advisor.hardware.offers import cheapest_offer
from advisor.readers.run_table import RunTable
from advisor.readers.traces.allocations import read_memory_timeline, read_snapshot
from advisor.readers.traces.collectives import read_dumps
from advisor.readers.traces.kinds import Kind, Part, holds_traces, opened_parts
from advisor.readers.traces.kineto import read_kineto
from advisor.readers.traces.nsys import read_nsys
from advisor.readers.traces.timeline import Timeline
from advisor.store.run_folder import LOG
from advisor.store.store import default_store
from advisor.workflows.analysis import Given, case_of
from advisor.workflows.trace_memory import against_prediction
from trainer.schema import TRACES

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


def traces_and_logs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the paths with traces, also inside a single run folder, and the log. Raises AdvisorError for two logs."""
    traces = [path for path in paths if holds_traces(path)]
    logs = [path for path in paths if path not in traces]
    if traces and len(logs) > 1:
        raise AdvisorError(
            f"{traces[0]} is a trace or dump, and there are {len(logs)} logs", "give it with its own log"
        )
    if len(logs) == 1 and (logs[0] / LOG).is_file():
        inside = [path for path in sorted(logs[0].iterdir()) if path.is_file() or path.name == TRACES]
        traces += [path for path in inside if not path.name.startswith(".") and holds_traces(path)]
    return traces, logs


def analyze_traces(
    paths: Sequence[Path], given: Given, update: Update = lambda name: None, *, case: Case | None = None
) -> TraceAnalysis:
    """Read and judge the traces and dumps in files, folders and archives. Several paths are ranks of one run.

    `case` is what the run's log tells. Without one, the plan or the settings in `given` tell what the run trains. What
    is predicted for it is put beside what the traces measure. Raises AdvisorError if there is no trace, or if one
    cannot be read.
    """
    with contextlib.ExitStack() as opened:
        parts = [part for path in paths for part in opened.enter_context(opened_parts(path))]
        if not parts:
            raise AdvisorError(f"{paths[0]} holds no trace", "advisor analyze --help")
        judged = tuple(_judged(parts, given, case, update))
    return TraceAnalysis(source=", ".join(map(str, paths)), judged=judged)


def _judged(parts: Sequence[Part], given: Given, case: Case | None, update: Update) -> Iterator[JudgedTrace]:
    """Judge what belongs together at once: the traces of all ranks, the dumps of all ranks, each snapshot by itself."""
    of_kind = {kind: [part for part in parts if part.kind is kind] for kind in Kind}
    with contextlib.ExitStack() as streams:
        if dumps := of_kind[Kind.FLIGHT_RECORDER]:
            update(dumps[0].name)
            found = read_dumps([(part.name, streams.enter_context(part.open())) for part in dumps])
            rate, source = _rate(given, len(found.calls) + len(found.missing_ranks), case=case)
            yield JudgedTrace(kind=dumps[0].kind, files=tuple(part.name for part in dumps),
                              judgement=stuck.judge(found, rate), rate=rate, price_source=source)  # fmt: skip
    timelines = []
    for part in (*of_kind[Kind.KINETO], *of_kind[Kind.NSYS]):
        update(part.name)
        with part.open() as stream:
            timelines += read_nsys(stream, part.name) if part.kind is Kind.NSYS else [read_kineto(stream, part.name)]
    for ranks in _runs(timelines):
        first = ranks[0]
        run = case or _stated(given, first)
        rate, source = _rate(given, first.world_size or len(ranks), first.gpu, first.gpu_bytes, case=run)
        yield JudgedTrace(kind=first.kind, files=tuple(dict.fromkeys(one.source for one in ranks)),
                          judgement=step.judge(ranks, rate, run), rate=rate, price_source=source)  # fmt: skip
    for part in (*of_kind[Kind.SNAPSHOT], *of_kind[Kind.MEMORY_TIMELINE]):
        update(part.name)
        reader = read_snapshot if part.kind is Kind.SNAPSHOT else read_memory_timeline
        run = case or _stated(given)
        rate, source = _rate(given, 1, case=run)
        with part.open() as stream:
            judgement = memory.judge(reader(stream, part.name), rate)
        if run is not None and run.workload is not None and run.profile is not None:
            with contextlib.suppress(AdvisorError):  # the memory of such a workload was never traced
                judgement = against_prediction(judgement, run.workload, run.profile)
        yield JudgedTrace(kind=part.kind, files=(part.name,), judgement=judgement, rate=rate, price_source=source)


def _runs(timelines: Sequence[Timeline]) -> list[list[Timeline]]:
    """Group the traces of one run, which are of different ranks; windows of other steps lie in other folders."""
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


def _stated(given: Given, timeline: Timeline | None = None) -> Case | None:
    """Return the run that a plan or a file of settings describes, on the GPUs of the trace; None without either."""
    if given.plan is None and given.config is None:
        return None
    if timeline is not None and given.plan is None:
        spec = find_gpu(timeline.gpu, timeline.gpu_bytes) if timeline.gpu else None
        given = replace(given, gpu=given.gpu or (spec.key if spec else None), gpus=given.gpus or timeline.world_size)
    run = RunTable(source="", format="", framework=None, columns={}, provenance={})
    return case_of(run, given, default_store())


def _rate(given: Given, gpus: int, named: str | None = None, gpu_bytes: float | None = None, *,
          case: Case | None = None) -> tuple[Rate, str | None]:  # fmt: skip
    """Return what the GPUs cost, and where the price is from: as stated, or as the run's, or the cheapest offer's."""
    spec = find_gpu(named, gpu_bytes) if named and given.gpu is None else None
    w, usd = (case.workload, case.usd_per_hour) if case is not None else (None, None)
    if case is not None and w is not None and usd is not None and (spec is None or spec.key == w.gpu):
        return Rate(gpus=w.gpus, usd_per_gpu_hour=usd / w.gpus, gpu=w.gpu), case.notes.get("price")
    gpu, gpus = given.gpu or (spec.key if spec else None), given.gpus or gpus
    if given.usd_per_gpu_hour is not None:
        return Rate(gpus=gpus, usd_per_gpu_hour=given.usd_per_gpu_hour, gpu=gpu), "as stated"
    offer = cheapest_offer(gpu, gpus) if gpu else None
    if offer is None or offer.usd_per_hour is None:
        return Rate(gpus=gpus, gpu=gpu), None
    return Rate(gpus=gpus, usd_per_gpu_hour=offer.usd_per_hour / gpus, gpu=gpu), offer.source
