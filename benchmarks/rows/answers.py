"""Predict every row of a table of published runs: lines of JSON with what was assumed, or why there is no number."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.prediction.batch import predict_batch
from advisor.prediction.layout_batch import predict_layouts
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Estimate, Prediction, Software, Workload
from advisor.report.prediction import ESTIMATES, unjoined
from advisor.store.store import default_store
from benchmarks.rows.gpu_names import load_published_gpus
from benchmarks.rows.layouts import LayoutReading, LayoutRows
from benchmarks.rows.mixtures import mixed
from benchmarks.rows.reader import Reading, RowError, RowReader, row_cells
from benchmarks.rows.words import Refusal


def answer_rows(path: Path) -> Iterator[str]:
    """Yield a line of JSON for every row, in order. A row that cannot be predicted gets an `error`."""
    cells = row_cells(path)
    columns = next(cells)
    reader, layouts = RowReader(load_published_gpus(), columns), LayoutRows(load_published_gpus(), columns)
    read: list[Reading | LayoutReading | RowError] = []
    for number, row in enumerate(cells, 1):
        layout = layouts.read(row)
        if isinstance(layout, Refusal):
            read.append(RowError(row=number, error=f"not predicted: {layout.reason}"))
        else:
            read.append(layout or reader.read(row, number))
    # by object identity, which avoids hashing a dozen fields: the readers return one object for equal rows
    simple = {id(one): one for one in read if isinstance(one, Reading)}
    cut = {id(one): one for one in read if isinstance(one, LayoutReading)}
    texts = dict(chain(predict_readings(simple), predict_layout_readings(cut)))
    for number, one in enumerate(read, 1):
        if isinstance(one, RowError):
            yield json.dumps({"row": number, "error": one.error}, ensure_ascii=False)
        else:
            yield f'{{"row": {number}, {texts[id(one)]}'


def predict_readings(readings: Mapping[int, Reading]) -> Iterator[tuple[int, str]]:
    """Yield for each reading its key and its JSON object after `row`, device by device."""
    workloads = [w for reading in readings.values() for w in reading.workloads]
    answers = iter(predict_workloads(workloads))
    for place, reading in readings.items():
        mine = list(islice(answers, len(reading.workloads)))
        answered = [(a, weight) for a, weight in zip(mine, reading.weights, strict=True) if not isinstance(a, str)]
        if not answered:
            yield place, json.dumps({"error": f"not predicted: {mine[0]}"}, ensure_ascii=False)[1:]
            continue
        timed = [(a, weight) for a, weight in answered if a.step_seconds is not None] or answered
        dropped = (
            () if len(timed) == len(mine) else (f"{len(mine) - len(timed)} of {len(mine)} readings not predicted",)
        )
        prediction = timed[0][0] if len(timed) == 1 else mixed(*zip(*timed, strict=True))
        yield place, _rest_of_line(prediction, (*reading.assumed, *dropped))


def predict_layout_readings(readings: Mapping[int, LayoutReading]) -> Iterator[tuple[int, str]]:
    """Work like `predict_readings` for rows that state a layout."""
    predictions = predict_layouts([reading.run for reading in readings.values()])
    for (place, reading), prediction in zip(readings.items(), predictions, strict=True):
        yield place, _rest_of_line(prediction, reading.assumed)


def predict_workloads(workloads: Sequence[Workload]) -> list[Prediction | str]:
    """Return for each workload, in order, its prediction or the reason why there is none."""
    unrented = {key: spec for key, spec in load_published_gpus().items() if key not in load_gpus()}
    groups: dict[tuple, list[int]] = {}
    for place, w in enumerate(workloads):
        groups.setdefault((w.gpu, w.shape.family, w.precision, w.compile, _speed(w.software)), []).append(place)
    answers: list[Prediction | str] = [""] * len(workloads)
    for (gpu, family, precision, compile_, _), places in groups.items():
        software = workloads[places[0]].software
        try:
            if gpu in unrented:
                profile = prior_profile(unrented[gpu], precision=precision, compile=compile_, software=software)
            else:
                profile = load_profile(
                    gpu,
                    default_store(),
                    family=family,
                    precision=precision,
                    compile=compile_,
                    transfer=False,
                    software=software,
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
    """Return the parts of a row's software that decide its predicted speed."""
    if software is None:
        return None
    switches = (software.fused_attention, software.fused_kernels, software.tf32, software.fp8, software.unstated)
    return (software.name, software.kind, *switches)


def _rest_of_line(prediction: Prediction, assumed: Sequence[str] = ()) -> str:
    """Return a prediction as JSON text without its opening brace. If no time is predicted, `error` says why.

    `assumed` lists the options that a row left open.
    """
    estimates = ", ".join([_estimate_text(name, getattr(prediction, name)) for name in ESTIMATES])
    fits = "null" if prediction.fits is None else "true" if prediction.fits else "false"
    error = ""
    if prediction.step_seconds is None:
        error = f', "error": {json.dumps("time not predicted: " + unjoined(prediction.workload))}'
    chance = "null" if prediction.fit_probability is None else f"{prediction.fit_probability:.4g}"
    said = f', "assumed": {json.dumps(assumed, ensure_ascii=False)}' if assumed else ""
    return (
        f'"parameters": {prediction.parameters}, "flops_per_token": {prediction.flops_per_token!r}, '
        f'{estimates}, "fits": {fits}, "fit_probability": {chance}{error}{said}}}'
    )


def _estimate_text(name: str, e: Estimate | None) -> str:
    if e is None:
        return f'"{name}": null'
    return f'"{name}": {{"value": {e.value:.10g}, "low": {e.low:.10g}, "high": {e.high:.10g}, "basis": "{e.basis}"}}'
