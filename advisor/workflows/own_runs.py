"""Reads the runs that a person has timed (`plan --measured`), from a table whose columns are options of `predict`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from advisor.architecture import Model
from advisor.errors import AdvisorError
from advisor.options import Goal
from advisor.prediction.layout_own import OwnRuns, learn
from advisor.prediction.layouts import LayoutRun
from advisor.units import parse_number
from advisor.workflows.option_rows import MEASURED, OptionRow, option_rows, read_row
from advisor.workflows.predict import require_layout, with_stage
from advisor.workflows.predict_layout import choose_layout


def read_own_runs(goal: Goal, planned: LayoutRun) -> OwnRuns | None:
    """Returns the correction for `planned` from the goal's measured runs, or None if none has its GPU and software.

    Model, GPU, software, precision and context length of `planned` stand for empty cells. Raises AdvisorError (exit 2)
    for a row that cannot be predicted, states no time, or is faster than its GPUs can be.
    """
    path = Path(goal.measured or "")
    rows, runs, seconds = list(option_rows(path)), [], []
    if not rows:
        raise AdvisorError(f"{path} has no row", "write a line for each run that you timed", exit_code=2)
    for row in rows:
        try:
            run, took = _timed(row, goal, planned)
        except AdvisorError as error:
            raise AdvisorError(f"{path}, line {row.line}: {error.message}", error.hint, exit_code=2) from error
        if (run.gpu.key, run.software) == (planned.gpu.key, planned.software):
            runs.append(run)
            seconds.append(took)
    return learn(runs, seconds, planned.model) if runs else None


def _timed(row: OptionRow, goal: Goal, planned: LayoutRun) -> tuple[LayoutRun, float]:
    """Returns the run of a row, as `predict` reads it, and its seconds per step."""
    usual = {"model": goal.model, "gpu": planned.gpu.key, "software": planned.software, "seq_len": planned.seq_len}
    cells = {name: str(value) for name, value in usual.items()} | {"precision": planned.precision, **row.cells}
    options = with_stage(read_row(cells))
    layers = options.depth  # runs on few GPUs often have fewer layers, which `predict` does not take with a layout
    options = replace(options, depth=None)
    if options.micro_batch is None:
        raise AdvisorError("micro-batch is not given", "give the sequences that a GPU processes at once", exit_code=2)
    architecture, spec, gpus = require_layout(options)
    if layers is not None:
        architecture = replace(architecture, model=_with_layers(architecture.model, layers))
    run, _, _ = choose_layout(options, architecture, spec, gpus)
    stated = {name: parse_number(row.cells[name]) for name in MEASURED if name in row.cells}
    if not stated or min(stated.values()) <= 0:
        raise AdvisorError(f"no {' or '.join(MEASURED)}", "how long did a step take, in seconds?", exit_code=2)
    took = stated.get("step_seconds") or run.step_tokens / stated["tokens_per_second"]
    if (mfu := run.mfu / took) > 1:
        message = f"{took:g} s would be {mfu:.0%} of the peak of {gpus} x {spec.key}"
        raise AdvisorError(message, "step_seconds is the time of one optimizer step in seconds", exit_code=2)
    return run, took


def _with_layers(model: Model, layers: int) -> Model:
    """Returns the model with this number of layers, of the same kinds in the same proportion."""
    mixed = math.ceil(model.expert_layers * layers / model.layers)
    return replace(model, layers=layers, experts=model.experts and replace(model.experts, layers=mixed))
