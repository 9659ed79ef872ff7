"""Reads tables whose columns are named as the options of `predict`, and predicts their rows as the command does."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from advisor.errors import AdvisorError, close_matches, explain
from advisor.options import Kind, PredictOptions, options_of
from advisor.store.store import Store
from advisor.workflows.goal import read_record
from advisor.workflows.predict import Predicted, predict
from trainer.schema import ConfigError

MEASURED = ("step_seconds", "tokens_per_second")  # of a run that was timed: one optimizer step, or all GPUs together
_NOTES = ("", "name", "note", "notes", "source")  # columns that nothing reads
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
