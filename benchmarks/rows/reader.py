"""Convert rows of tables about runs to workloads, or explain why a row cannot be predicted.

Missing values are derived if there is only one possibility. If there are several, each becomes a workload with a
weight, and the assumption is reported. A row about something that the model does not describe is refused.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.software_support import usual_precision
from advisor.records import Software, Workload
from benchmarks.rows.gpu_names import named_cards, possible_cards
from benchmarks.rows.shapes import extra_parameters, read_shape
from benchmarks.rows.words import (
    Open,
    Refusal,
    adapters_in,
    architecture,
    number,
    pattern,
    read_adapters,
    read_checkpointing,
    read_compile,
    read_fused_attention,
    read_moment_bytes,
    read_named,
    read_optimizer,
    read_precision,
    read_sharding,
    read_software,
    read_windows,
    says,
    stated,
    whole_numbers,
)
from trainer.schema import ModelShape

REQUIRED_COLUMNS = ("gpu", "layers", "dim", "heads", "seq_len", "micro_batch", "precision")
COLUMNS = (  # all other columns are ignored
    *("gpu", "gpu_mem_gib", "mem_gib_per_gpu", "n_gpus", "params", "layers", "dim", "heads", "ffn_mult", "vocab"),
    *("seq_len", "micro_batch", "grad_accum", "global_batch_tokens", "precision", "compile", "flash_attn", "act_ckpt"),
    *("parallelism", "optimizer", "notes", "software", "source", "method", "lora_rank", "lora_modules", "quantized"),
    *("kv_heads", "weights_dtype", "fused_loss"),
)
_EMPTY = frozenset(("nan", "NaN", "null", "None", "N/A", "n/a", "NA", "?", "-", "–", "—")) | {
    said for words in ("unknown", "not stated", "unstated") for said in (words, words.capitalize(), words.upper())
}
_TOKENS_TOLERANCE = 0.02  # relative rounding of a printed global batch
_MOST_WORKLOADS = 48  # largest number of possible workloads for one row
# Runs that state less than half of what decides speed are slower than others.
_DECIDE_SPEED, _MOSTLY_OPEN = ("precision", "compile", "fused_attention", "checkpointing"), 3
# Common tokens of a micro-batch with their weights, for rows that state no micro-batch.
_MICRO_TOKENS = ((4_096, 0.3), (16_384, 0.4), (65_536, 0.3))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The meaning of a row: its possible workloads with their weights, and the assumptions in words."""

    workloads: tuple[Workload, ...]
    weights: tuple[float, ...]  # add up to one
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RowError:
    """A row that cannot be predicted, with the reason."""

    row: int  # 1 is the first row under the header
    error: str


def row_cells(path: Path, required: Sequence[str] = REQUIRED_COLUMNS) -> Iterator[list[str]]:
    """Yield the column names of a CSV file, then the cells of each row. Raises AdvisorError if it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            columns = next(lines, [])
            if missing := [name for name in required if name not in columns]:
                hint = f"the first line must name the columns, at least {', '.join(required)}"
                raise AdvisorError(f"{path} has no column {', '.join(missing)}", hint, exit_code=2)
            yield columns
            yield from filter(None, lines)
    except (UnicodeDecodeError, csv.Error) as error:
        hint = "save it as UTF-8 text with commas"
        raise AdvisorError(f"{path} is not a CSV file: {error}", hint, exit_code=2) from error
    except OSError as error:
        hint = "give the path of a CSV file"
        raise AdvisorError(f"cannot read {path}: {error.strerror}", hint) from error


class RowReader:
    """Reads rows and caches the results, because published tables repeat GPUs, shapes and whole rows."""

    def __init__(self, cards: Mapping[str, GpuSpec], columns: Sequence[str]):
        """Prepare for rows with these columns."""
        # Each row is padded with at least one empty cell, from which missing columns are read.
        self._padding = [""] * (len(columns) + 1)
        self._pick = itemgetter(*(columns.index(name) if name in columns else -1 for name in COLUMNS))
        self._seen: dict[tuple[str, ...], Reading | Refusal] = {}
        self._cards = lru_cache(maxsize=4096)(lambda name, memory: named_cards(name, number(memory), cards.values()))

    def read(self, cells: Sequence[str], row: int = 1) -> Reading | RowError:
        """Return the meaning of one row. Cells missing at its end count as empty."""
        key = self._pick([*cells, *self._padding])
        reading = self._seen.get(key)
        if reading is None:
            cells = tuple(map(str.strip, key))
            if not _EMPTY.isdisjoint(cells):
                cells = tuple("" if cell in _EMPTY else cell for cell in cells)
            reading = self._seen[key] = self._reading(*cells)
        if isinstance(reading, Reading):
            return reading
        return RowError(row=row, error=f"not predicted: {reading.reason}")

    def _reading(
        self, gpu: str, memory: str, used: str, gpus: str, params: str, layers: str, dim: str, heads: str,
        ffn_mult: str, vocab: str, seq_len: str, micro: str, accum: str, tokens: str, precision: str, compiled: str,
        flash: str, checkpointing: str, parallelism: str, optimizer: str, notes: str, software: str, source: str,
        method: str, rank: str, modules: str, quantized: str, kv_heads: str, weights: str, loss: str,
    ) -> Reading | Refusal:  # fmt: skip
        """Return the meaning of the cells of one row, in the order of COLUMNS."""
        named = read_named(software) or read_named(f"{source}; {parallelism}")
        notes = f"{notes}; kv_heads {kv_heads}" if kv_heads else notes
        adapters = read_adapters(method, rank, modules, quantized, f"{parallelism} {precision} {adapters_in(notes)}")
        if adapters is not None:  # the words about adapters are already read
            parallelism, precision = (pattern("adapter words").sub(" ", text) for text in (parallelism, precision))
        counts = read_counts(gpus, micro, accum, tokens, seq_len, parallelism)
        shape = read_shape(params, layers, dim, heads, ffn_mult, vocab, seq_len, notes)
        card = possible_cards(gpu, self._cards(gpu, memory), number(used), number(gpus))
        specs = [card] if isinstance(card, GpuSpec) else [s for s, _ in card.choices] if isinstance(card, Open) else []
        emulated = bool(specs) and all(spec.bf16_flops is None and spec.fp16_flops is not None for spec in specs)
        parts = {
            "notes": architecture(notes),
            "card": card,
            "precision": read_precision(precision, emulated),
            "compile": read_compile(compiled, named),
            "fused_attention": read_fused_attention(flash, named),
            "checkpointing": read_checkpointing(checkpointing, named, adapters is not None),
            "optimizer": read_optimizer(optimizer),
            "sharding": _sharding_of(parallelism, optimizer, counts),
            "shape": _with_family_said(shape, params),
            "windows": read_windows(flash, notes),
            "counts": counts,
            "adapters": adapters,
        }
        for part in parts.values():
            if isinstance(part, Refusal):
                return part
        assumed = tuple(part.words for part in parts.values() if isinstance(part, Open))
        left_open = sum(isinstance(parts[name], Open) for name in _DECIDE_SPEED)
        words = f"{notes}; {software}; {source}; {loss}"
        told = read_software(f"{precision}; {weights} weights" if weights else precision, words, parallelism, named)
        if adapters is not None:
            told = replace(told, state="16bit", state_chance=1.0)
        told = replace(
            told,
            unstated=left_open >= _MOSTLY_OPEN,
            moment_bytes=read_moment_bytes(optimizer),
            steps_in_backward=says("steps in backward", f"{optimizer} {notes} {parallelism}"),
        )
        if not any(isinstance(part, Open) and len(part.choices) > 1 for part in parts.values()):
            only = {name: part.choices[0][0] if isinstance(part, Open) else part for name, part in parts.items()}
            return Reading(workloads=(_workload(only, told, params),), weights=(1.0,), assumed=assumed)
        choices = [part.choices if isinstance(part, Open) else ((part, 1.0),) for part in parts.values()]
        if math.prod(map(len, choices)) > _MOST_WORKLOADS:
            return Refusal(f"too much is left open: {'; '.join(assumed)}")
        cases = [(dict(zip(parts, map(itemgetter(0), case), strict=True)), case) for case in product(*choices)]
        return Reading(
            workloads=tuple(_workload(case, told, params) for case, _ in cases),
            weights=tuple(math.prod(weight for _, weight in case) for _, case in cases),
            assumed=assumed,
        )


def _with_family_said(shape: ModelShape | Open | Refusal, params: str) -> ModelShape | Open | Refusal:
    """Return the shape; if only an FFN of four widths shows that it is a GPT-2, this assumption is added."""
    if isinstance(shape, Refusal) or number(params) is not None:
        return shape
    told = shape if isinstance(shape, Open) else Open(((shape, 1.0),), "")
    if any(choice.family != "gpt2" for choice, _ in told.choices):
        return shape
    said = "params is not stated: a GPT-2 taken, as ffn_mult is 4"
    return Open(told.choices, "; ".join(filter(None, [told.words, said])))


def _sharding_of(parallelism: str, optimizer: str, counts: Counts | Open | Refusal) -> str | Open | Refusal:
    """Return what data parallelism splits: nothing on one GPU. On several GPUs an empty cell means plain DDP."""
    sharding = read_sharding(parallelism, optimizer)
    if isinstance(sharding, Refusal) or isinstance(counts, Refusal):
        return sharding
    if (counts.choices[0][0] if isinstance(counts, Open) else counts).gpus == 1:
        return "none"
    if isinstance(sharding, Open) or stated(parallelism):
        return sharding
    return Open(((sharding, 1.0),), "parallelism is not stated: data parallel taken")


def _workload(parts: Mapping[str, Any], software: Software, params: str) -> Workload:
    """Return the workload for one choice for each part of a row."""
    shape, counts, windows, how = parts["shape"], parts["counts"], parts["windows"], parts["precision"]
    return Workload(
        shape=shape,
        micro_batch=counts.micro_batch,
        grad_accum=counts.grad_accum,
        gpu=parts["card"].key,
        gpus=counts.gpus,
        precision=how.kind if how.kind != "16bit" else usual_precision(parts["card"]),
        compile=parts["compile"],
        activation_checkpointing=parts["checkpointing"],
        optimizer=parts["optimizer"],
        sharding=parts["sharding"],
        software=replace(
            software,
            fused_attention=parts["fused_attention"],
            tf32=how.tf32,
            fp8=how.fp8,
            adapters=parts["adapters"],
            attended_tokens=windows.attended(shape) if windows else None,
            extra_parameters=extra_parameters(shape, params, parts["notes"]),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The number of GPUs, the micro-batch and the gradient accumulation."""

    gpus: int
    micro_batch: int
    grad_accum: int


@lru_cache(maxsize=65536)
def read_counts(
    gpus: str, micro: str, accum: str, tokens: str, seq_len: str, parallelism: str = ""
) -> Counts | Open | Refusal:
    """Return GPUs, micro-batch and accumulation. The tokens of the global batch can replace either of the last two."""
    values = whole_numbers(n_gpus=gpus, micro_batch=micro, grad_accum=accum, seq_len=seq_len)
    if isinstance(values, Refusal):
        return values
    n, b, a, length = values.values()
    if length is None:
        return Refusal("seq_len is not given")
    if n is None:
        return _counts_of_one(micro, accum, tokens, seq_len, parallelism)
    total = number(tokens)
    if total is None or total <= 0:
        if b is not None:
            return Counts(gpus=n, micro_batch=b, grad_accum=a or 1)
        return _open_counts(n, a, length, None)
    per_device = total / (n * length)
    if b is None and a is None and round(per_device) != 1:
        return _open_counts(n, None, length, per_device)
    b = b or max(1, round(per_device / (a or 1)))
    a = a or max(1, round(per_device / b))
    if abs(b * a / per_device - 1) > _TOKENS_TOLERANCE:
        return Refusal(
            f"{n} GPUs x {b} x {a} sequences of {length} are {n * b * a * length:,} tokens, "
            f"but global_batch_tokens says {total:,.0f}"
        )
    return Counts(gpus=n, micro_batch=b, grad_accum=a)


def _counts_of_one(micro: str, accum: str, tokens: str, seq_len: str, parallelism: str) -> Counts | Open | Refusal:
    """Return the counts of a row without a number of GPUs: one GPU, unless the parallelism needs several."""
    if stated(parallelism) and not re.search(r"\bsingle\b|\bnone\b", parallelism.lower()):
        return Refusal(f"n_gpus is not given, and the parallelism is {parallelism!r}: say how many")
    counts = read_counts("1", micro, accum, tokens, seq_len)
    if isinstance(counts, Refusal) or "single" in parallelism.lower():
        return counts
    said = "n_gpus is not stated: one taken"
    if isinstance(counts, Open):
        return Open(counts.choices, f"{said}; {counts.words}")
    return Open(((counts, 1.0),), said)


def _open_counts(gpus: int, accum: int | None, seq_len: int, per_device: float | None) -> Open | Refusal:
    """Return micro-batches of common sizes, but no larger than the sequences of one GPU in a step."""
    if per_device is not None and per_device < 1:
        return Refusal("global_batch_tokens are fewer than a sequence for each GPU")
    most = math.inf if per_device is None else per_device
    choices: dict[Counts, float] = {}
    for micro_tokens, weight in _MICRO_TOKENS:
        micro = round(max(1, min(micro_tokens / seq_len, most)))
        repeats = accum or (1 if per_device is None else max(1, round(per_device / micro)))
        counts = Counts(gpus=gpus, micro_batch=micro, grad_accum=repeats)
        choices[counts] = choices.get(counts, 0.0) + weight
    sizes = " or ".join(str(counts.micro_batch) for counts in choices)
    return Open(tuple(choices.items()), f"micro_batch is not stated: {sizes} sequences taken")
