"""Reads tables whose columns are named as the options of `predict`: runs to predict, and runs that a person timed."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from advisor.errors import AdvisorError, close_matches, explain
from advisor.options import Goal, Kind, PredictOptions, options_of
from advisor.prediction.layout_own import OwnRuns, learn
from advisor.prediction.layouts import LayoutRun
from advisor.store.store import Store
from advisor.units import parse_number
from advisor.workflows.goal import read_record
from advisor.workflows.predict import Predicted, predict, require_layout, with_stage
from advisor.workflows.predict_layout import choose_layout
from trainer.schema import ConfigError

MEASURED = ("step_seconds", "tokens_per_second")  # of a run that was timed: one optimizer step, or all GPUs together
_NOTES = ("", "name", "note", "notes", "source", "step")  # columns that nothing reads
T = TypeVar("T")  # what a row is read as
_SWITCHES = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
_FORMER = MappingProxyType({  # what states now what a column of former tables stated
    "layers": "depth", "dim": "width", "vocab": "vocab-size", "ffn_mult": "ffn-width", "n_gpus": "gpus",
    "gpu_mem_gib": "gpu", "virtual_pp": "vpp", "tied_embeddings": "tied", "gated_mlp": "family",
    "act_ckpt": "activation-checkpointing", "recompute": "activation-checkpointing",
    "parallelism": "sharding, tp, pp, cp and ep", "zero_stage_or_fsdp": "zero", "sequence_parallel": "tp",
    **dict.fromkeys(("global_batch_tokens", "global_batch_sequences"), "micro-batch and grad-accum"),
    **dict.fromkeys(("flash_attn", "weights_dtype", "fused_loss"), "software"),
    **dict.fromkeys(("method", "quantized"), "lora-rank and qlora"), "lora_modules": "lora-targets",
    **dict.fromkeys(("experts", "experts_per_token", "expert_ffn_width", "shared_experts", "dense_layers", "attention",
                     "params_total", "params_active"), "model"),
    "group_size": "group", "prompt_len_mean": "prompt-len", "response_len_mean": "response-len",
    "response_len_max": "response-max", "framework": "software", "mode": "placement",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OptionRow:
    """One row of a table, as it was typed."""

    line: int  # in the file
    cells: Mapping[str, str]  # text by the name of its option, or of MEASURED; empty cells are left out


def option_rows(path: Path) -> Iterator[OptionRow]:
    """Yields the rows of a CSV file. Raises AdvisorError (exit 2) if it is none, or with all columns that are wrong."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            columns = _columns(path, next(lines, []))
            for cells in filter(None, lines):
                if len(cells) > len(columns):
                    message = f"{path}, line {lines.line_num}: {len(cells)} cells under {len(columns)} columns"
                    raise AdvisorError(message, 'put a cell with a comma in quotes: "4,8"', exit_code=2)
                stated = zip(columns, map(str.strip, cells), strict=False)
                yield OptionRow(line=lines.line_num, cells={name: cell for name, cell in stated if name and cell})
    except (UnicodeDecodeError, csv.Error) as error:
        hint = "save it as UTF-8 text with commas"
        raise AdvisorError(f"{path} is not a CSV file: {error}", hint, exit_code=2) from error


def timed_rows(path: Path, read: Callable[[OptionRow], T]) -> list[T]:
    """Returns what `read` makes of each row of a person's measurements; its errors name the row.

    Raises AdvisorError (exit 2) if there is no row.
    """
    made = []
    for row in option_rows(path):
        try:
            made.append(read(row))
        except AdvisorError as error:
            raise AdvisorError(f"{path}, line {row.line}: {error.message}", error.hint, exit_code=2) from error
    if not made:
        raise AdvisorError(f"{path} has no row", "write a line for each run or step that you timed", exit_code=2)
    return made


def _columns(path: Path, header: list[str]) -> list[str | None]:
    """Returns the option of each column, or None if nothing reads it."""
    known = (*options_of(PredictOptions), *MEASURED)
    also = {flag: option.name for option in options_of(PredictOptions).values() for flag in option.also}
    columns: list[str | None] = []
    problems = [] if header else ["there is no column"]
    for typed in map(str.strip, header):
        name = typed.lower().replace("-", "_")
        former = _FORMER.get(name) or also.get(f"--{name.replace('_', '-')}")
        columns.append(name if name in known else None)
        if name in known and columns.count(name) > 1:
            problems.append(f"{typed} occurs twice")
        elif former is not None:
            problems.append(f"{typed} is now {former}")
        elif name not in known and name not in _NOTES and not name.startswith("#"):
            close = close_matches(name, known)
            problems.append(f"{typed} is no option" + (f" (did you mean {' or '.join(close)}?)" if close else ""))
    if problems:
        hint = "columns are named as the options of `advisor predict --help`; # before a name leaves it out"
        raise AdvisorError(f"{path}: {'; '.join(problems)}", hint, exit_code=2)
    return columns


def read_row(cells: Mapping[str, str]) -> PredictOptions:
    """Returns the options that a row states. Raises AdvisorError (exit 2) if a cell is invalid for its option."""
    known = options_of(PredictOptions)
    switches = {name for name, option in known.items() if option.kind in (Kind.SWITCH, Kind.YES_NO)}
    stated = {name: _SWITCHES.get(cell.lower(), cell) if name in switches else cell for name, cell in cells.items()}
    return read_record(PredictOptions, {name: cell for name, cell in stated.items() if name in known})


def predict_rows(path: Path, store: Store) -> Iterator[Predicted | AdvisorError]:
    """Yields the prediction of each row of a table, or the error of a row that the command would refuse.

    Equal rows are predicted once.
    """
    answers: dict[tuple[tuple[str, str], ...], Predicted | AdvisorError] = {}
    for row in list(option_rows(path)):  # so that a broken file is refused before the first answer
        key = tuple(sorted(row.cells.items()))
        if key not in answers:
            try:
                answers[key] = predict(read_row(row.cells), store)
            except (AdvisorError, ConfigError) as error:
                answers[key] = AdvisorError(*explain(error)[:2])
        yield answers[key]


def read_own_runs(goal: Goal, planned: LayoutRun) -> OwnRuns | None:
    """Returns the correction for `planned` from the goal's measured runs, or None if none has its GPU and software.

    Model, GPU, software, precision and context length of `planned` stand for empty cells. Raises AdvisorError (exit 2)
    for a row that cannot be predicted, states no time, or is faster than its GPUs can be.
    """
    timed = timed_rows(Path(goal.measured or ""), lambda row: _timed(row, goal, planned))
    same = [one for one in timed if (one[0].gpu.key, one[0].software) == (planned.gpu.key, planned.software)]
    return learn([run for run, _ in same], [took for _, took in same], planned.model) if same else None


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
    if layers is not None:  # of the same kinds in the same proportion
        model = architecture.model
        mixed = math.ceil(model.expert_layers * layers / model.layers)
        experts = model.experts and replace(model.experts, layers=mixed)
        architecture = replace(architecture, exact=replace(model, layers=layers, experts=experts))
    run, _, _ = choose_layout(options, architecture, spec, gpus)
    stated = {name: parse_number(row.cells[name]) for name in MEASURED if name in row.cells}
    if not stated or min(stated.values()) <= 0:
        raise AdvisorError(f"no {' or '.join(MEASURED)}", "how long did a step take, in seconds?", exit_code=2)
    took = stated.get("step_seconds") or run.step_tokens / stated["tokens_per_second"]
    if (mfu := run.mfu / took) > 1:
        message = f"{took:g} s would be {mfu:.0%} of the peak of {gpus} x {spec.key}"
        raise AdvisorError(message, "step_seconds is the time of one optimizer step in seconds", exit_code=2)
    return run, took
