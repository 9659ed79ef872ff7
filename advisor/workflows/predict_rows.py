"""Predicts every row of a table of any length, and writes lines of JSON."""

from __future__ import annotations

import gc
import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, load_published_gpus
from advisor.prediction.batch import mixed, predict_batch
from advisor.prediction.layout_batch import LayoutPrediction, predict_layouts
from advisor.prediction.layout_rows import LAYOUT_COLUMNS, LayoutReading, LayoutRows
from advisor.prediction.row_words import Refusal
from advisor.prediction.rows import COLUMNS, Reading, RowError, RowReader, row_cells
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Prediction, Software, Workload
from advisor.store.store import default_store

ROWS_AT_ONCE, MOST_WORKERS = 10_000, 8
Chunk = tuple[int, list[list[str]]]  # number of its first row, the cells of each row
Answer = tuple[str, set[bool | None]]  # lines of JSON, and whether their rows fit
Written = Callable[[Prediction | LayoutPrediction, Sequence[str]], str]


def predict_rows(path: Path, written: Written) -> Iterator[Answer]:
    """Yields the answers to all rows in order, chunk by chunk; long tables are divided among one process per core.

    `written` makes the rest of a row's JSON object after its number. A row that cannot be predicted gets an `error`.
    """
    cells = row_cells(path)
    answer = RowAnswers(next(cells), written)
    chunks = iter(lambda: list(islice(cells, ROWS_AT_ONCE)), [])
    numbered = zip(count(1, ROWS_AT_ONCE), chunks, strict=False)
    first = next(numbered, (1, []))
    # Processors this process may use, if the system can fork processes.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    workers = min(cores, MOST_WORKERS) if len(first[1]) == ROWS_AT_ONCE else 1
    gc.disable()  # hundreds of thousands of small records have no cycles, so a search would find nothing
    try:
        yield from _dealt(answer, chain([first], numbered), workers)
    finally:
        gc.enable()


def unread_columns(path: Path, options: Collection[str]) -> list[str]:
    """Returns the columns of a table that have the name of an option but are not read."""
    columns = next(row_cells(path))
    read = {*COLUMNS, *LAYOUT_COLUMNS}
    return [name for name in columns if name.strip().replace("-", "_") in options and name not in read]


def _dealt(answer: RowAnswers, chunks: Iterator[Chunk], workers: int) -> Iterator[Answer]:
    """Yields answers in the order of the chunks; reads only as many chunks ahead as keep the workers busy."""
    if workers == 1:
        yield from map(answer, chunks)
        return
    import multiprocessing

    # workers are forked with everything loaded, which is safe because no threads run yet
    with multiprocessing.get_context("fork").Pool(workers, answer.become_the_workers) as pool:
        waiting: deque[Any] = deque()
        for chunk in chunks:
            waiting.append(pool.apply_async(_answer_in_worker, (chunk,)))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


class RowAnswers:
    """Turns rows of cells into lines of JSON. It remembers its answers, because published tables repeat rows."""

    def __init__(self, columns: list[str], written: Written):
        self._written = written
        self._reader = RowReader(load_published_gpus(), columns)
        self._layouts = LayoutRows(load_published_gpus(), columns)
        # by object identity, which avoids hashing a dozen fields: the reader returns one object for equal rows
        self._texts: dict[int, str] = {}

    def __call__(self, chunk: Chunk) -> Answer:
        """Returns the text of a chunk's rows, and the set of their verdicts on fitting."""
        start, cells = chunk
        rows = [self._read(row, number) for number, row in enumerate(cells, start)]
        fresh = {id(r): r for r in rows if not isinstance(r, RowError) and id(r) not in self._texts}
        verdicts: set[bool | None] = set()
        layouts = {place: r for place, r in fresh.items() if isinstance(r, LayoutReading)}
        others = {place: r for place, r in fresh.items() if isinstance(r, Reading)}
        for place, text, fits in chain(
            predict_readings(others, self._written), predict_layout_readings(layouts, self._written)
        ):
            self._texts[place] = text
            verdicts.add(fits)
        lines = (
            json.dumps({"row": number, "error": row.error}, ensure_ascii=False) + "\n"
            if isinstance(row, RowError)
            else f'{{"row": {number}, {self._texts[id(row)]}\n'
            for number, row in enumerate(rows, start)
        )
        return "".join(lines), verdicts

    def _read(self, cells: list[str], number: int) -> Reading | LayoutReading | RowError:
        layout = self._layouts.read(cells)
        if layout is None:
            return self._reader.read(cells, number)
        return RowError(row=number, error=f"not predicted: {layout.reason}") if isinstance(layout, Refusal) else layout

    def become_the_workers(self) -> None:
        """Run in each new worker process to set the object that answers there."""
        global _worker
        _worker = self
        gc.disable()


_worker: RowAnswers | None = None


def _answer_in_worker(chunk: Chunk) -> Answer:
    assert _worker is not None  # set when the worker starts
    return _worker(chunk)


def predict_readings(readings: Mapping[int, Reading], written: Written) -> Iterator[tuple[int, str, bool | None]]:
    """Yields for each row its number, its JSON object after `row`, and whether it fits, device by device."""
    workloads = [w for reading in readings.values() for w in reading.workloads]
    answers = iter(predict_workloads(workloads))
    for place, reading in readings.items():
        mine = list(islice(answers, len(reading.workloads)))
        answered = [(a, weight) for a, weight in zip(mine, reading.weights, strict=True) if not isinstance(a, str)]
        if not answered:
            yield place, json.dumps({"error": f"not predicted: {mine[0]}"}, ensure_ascii=False)[1:], None
            continue
        timed = [(a, weight) for a, weight in answered if a.step_seconds is not None] or answered
        dropped = (
            () if len(timed) == len(mine) else (f"{len(mine) - len(timed)} of {len(mine)} readings not predicted",)
        )
        prediction = timed[0][0] if len(timed) == 1 else mixed(*zip(*timed, strict=True), ran=True)
        yield place, written(prediction, (*reading.assumed, *dropped)), prediction.fits


def predict_layout_readings(
    readings: Mapping[int, LayoutReading], written: Written
) -> Iterator[tuple[int, str, bool | None]]:
    """Works like `predict_readings` for rows that state a layout."""
    predictions = predict_layouts([reading.run for reading in readings.values()])
    for (place, reading), prediction in zip(readings.items(), predictions, strict=True):
        yield place, written(prediction, reading.assumed), prediction.fits


def predict_workloads(workloads: Sequence[Workload]) -> list[Prediction | str]:
    """Returns for each workload, in order, its prediction or the reason why there is none."""
    unrented = {key: spec for key, spec in load_published_gpus().items() if key not in load_gpus()}
    groups: dict[tuple, list[int]] = {}
    for place, w in enumerate(workloads):
        groups.setdefault((w.gpu, w.shape.family, w.precision, w.compile, w.sharding, _speed(w.software)), []).append(
            place
        )
    answers: list[Prediction | str] = [""] * len(workloads)
    for (gpu, family, precision, compile_, sharding, _), places in groups.items():
        software = workloads[places[0]].software
        try:
            if gpu in unrented:
                profile = prior_profile(
                    unrented[gpu], precision=precision, compile=compile_, software=software, sharding=sharding
                )
            else:
                profile = load_profile(
                    gpu,
                    default_store(),
                    family=family,
                    precision=precision,
                    compile=compile_,
                    transfer=False,
                    software=software,
                    sharding=sharding,
                )
        except AdvisorError as error:
            for place in places:
                answers[place] = error.message
            continue
        predictions = predict_batch(profile, [workloads[place] for place in places], ran=True)
        for place, prediction in zip(places, predictions, strict=True):
            answers[place] = prediction
    return answers


def _speed(software: Software | None) -> tuple | None:
    """Returns the parts of a row's software that decide its predicted speed."""
    if software is None:
        return None
    switches = (software.fused_attention, software.fused_kernels, software.tf32, software.fp8, software.unstated)
    return (software.name, software.kind, *switches)
