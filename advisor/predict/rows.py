"""Tables of published runs to workloads: one row in, every workload it may mean or one refusal in words out.

What a row does not say is derived where one answer is possible and left open where a few are: each becomes a workload
with its weight, and is named. What the model does not describe (tensor and pipeline parallel, experts, adapters) is
refused, never approximated.
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
from advisor.laws import flops
from advisor.predict.gpu_names import named_cards, possible_cards
from advisor.predict.row_words import (
    Open,
    Refusal,
    architecture,
    read_checkpointing,
    read_compile,
    read_fused_attention,
    read_kind,
    read_optimizer,
    read_precision,
    read_sharding,
    read_software,
    read_windows,
    stated,
)
from advisor.records import Software, Workload
from trainer.schema import ModelShape

REQUIRED_COLUMNS = ("gpu", "layers", "dim", "heads", "seq_len", "micro_batch", "precision")
COLUMNS = (  # that are read; any other is ignored
    *("gpu", "gpu_mem_gib", "mem_gib_per_gpu", "n_gpus", "params", "layers", "dim", "heads", "ffn_mult", "vocab"),
    *("seq_len", "micro_batch", "grad_accum", "global_batch_tokens", "precision", "compile", "flash_attn", "act_ckpt"),
    *("parallelism", "optimizer", "notes", "software", "source"),
)
_EMPTY = frozenset(("nan", "NaN", "null", "None", "N/A", "n/a", "NA", "?", "-", "–", "—")) | {
    said for words in ("unknown", "not stated", "unstated") for said in (words, words.capitalize(), words.upper())
}
_COUNT_TOLERANCE, _TOKENS_TOLERANCE = 0.06, 0.02  # printed counts are rounded ("1.3e9"), and conventions differ
_FFN_MULTIPLE = 64  # widths that real models use

_LARGEST = 1e18  # no size, count or batch of a run is larger
_FAR_COUNT = 0.25  # a printed count further off than this is of another model
_MOST_WORKLOADS = 48  # that one row may mean
# Who states less than half of what decides speed had reasons, or a broken set-up.
_DECIDE_SPEED, _MOSTLY_OPEN = ("precision", "compile", "fused_attention", "checkpointing"), 3
# What is taken where a row leaves it open, each with its weight: common vocabularies and micro-batches of decoders.
_VOCABULARIES = ((32_000, 0.4), (50_304, 0.4), (128_256, 0.2))
_MICRO_TOKENS = ((4_096, 0.3), (16_384, 0.4), (65_536, 0.3))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a row says: one workload, or each that it may mean with its weight, and what was assumed, in words."""

    workloads: tuple[Workload, ...]
    weights: tuple[float, ...]  # add up to one
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RowError:
    """A row that cannot be predicted and why, in words."""

    row: int  # 1 is the first row under the header
    error: str


def row_cells(path: Path) -> Iterator[list[str]]:
    """The names of a CSV's columns, then the cells of each row that is not blank; AdvisorError as above."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            columns = next(lines, [])
            if missing := [name for name in REQUIRED_COLUMNS if name not in columns]:
                hint = f"the first line must name the columns, at least {', '.join(REQUIRED_COLUMNS)}"
                raise AdvisorError(f"{path} has no column {', '.join(missing)}", hint)
            yield columns
            yield from filter(None, lines)
    except (UnicodeDecodeError, csv.Error) as error:
        hint = "save it as UTF-8 text with commas"
        raise AdvisorError(f"{path} is not a CSV file: {error}", hint) from error
    except OSError as error:
        hint = "give the path of a CSV file"
        raise AdvisorError(f"cannot read {path}: {error.strerror}", hint) from error


class RowReader:
    """Reads rows and remembers what it worked out: published tables repeat their cards, shapes and whole rows."""

    def __init__(self, cards: Mapping[str, GpuSpec], columns: Sequence[str]):
        """`columns` names the cells of every row to come."""
        # one cell is always added, and more where a row is short: what is not there is read from an empty one
        self._padding = [""] * (len(columns) + 1)
        self._pick = itemgetter(*(columns.index(name) if name in columns else -1 for name in COLUMNS))
        self._seen: dict[tuple[str, ...], Reading | Refusal] = {}
        self._cards = lru_cache(maxsize=4096)(lambda name, memory: named_cards(name, _number(memory), cards.values()))

    def read(self, cells: Sequence[str], number: int = 1) -> Reading | RowError:
        """Turn one row into what it may mean, or say why not; cells missing at its end are empty."""
        key = self._pick([*cells, *self._padding])
        reading = self._seen.get(key)
        if reading is None:
            cells = tuple(map(str.strip, key))
            if not _EMPTY.isdisjoint(cells):
                cells = tuple("" if cell in _EMPTY else cell for cell in cells)
            reading = self._seen[key] = self._reading(*cells)
        if isinstance(reading, Reading):
            return reading
        return RowError(row=number, error=f"not predicted: {reading.reason}")

    def _reading(
        self, gpu: str, memory: str, used: str, gpus: str, params: str, layers: str, dim: str, heads: str,
        ffn_mult: str, vocab: str, seq_len: str, micro: str, accum: str, tokens: str, precision: str, compiled: str,
        flash: str, checkpointing: str, parallelism: str, optimizer: str, notes: str, software: str, source: str,
    ) -> Reading | Refusal:  # fmt: skip
        """The workloads of one row's cells, in the order of COLUMNS."""
        kind = read_kind(software or source)
        counts = read_counts(gpus, micro, accum, tokens, seq_len, parallelism)
        shape = read_shape(params, layers, dim, heads, ffn_mult, vocab, seq_len, notes)
        parts = {
            "notes": architecture(notes),
            "card": possible_cards(gpu, self._cards(gpu, memory), _number(used)),
            "precision": read_precision(precision),
            "compile": read_compile(compiled, kind),
            "fused_attention": read_fused_attention(flash, kind),
            "checkpointing": read_checkpointing(checkpointing),
            "optimizer": read_optimizer(optimizer),
            "sharding": _sharding_of(parallelism, optimizer, counts),
            "shape": _with_family_said(shape, params),
            "windows": read_windows(flash, notes),
            "counts": counts,
        }
        for part in parts.values():
            if isinstance(part, Refusal):
                return part
        assumed = tuple(part.words for part in parts.values() if isinstance(part, Open))
        left_open = sum(isinstance(parts[name], Open) for name in _DECIDE_SPEED)
        told = replace(read_software(precision, notes, kind), unstated=left_open >= _MOSTLY_OPEN)
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
    """The shape, and where nothing but an FFN of four widths made it a GPT-2, that it was taken for one."""
    if isinstance(shape, Refusal) or _number(params) is not None:
        return shape
    told = shape if isinstance(shape, Open) else Open(((shape, 1.0),), "")
    if any(choice.family != "gpt2" for choice, _ in told.choices):
        return shape
    said = "params is not stated: a GPT-2 taken, as ffn_mult is 4"
    return Open(told.choices, "; ".join(filter(None, [told.words, said])))


def _sharding_of(parallelism: str, optimizer: str, counts: Counts | Open | Refusal) -> str | Open | Refusal:
    """What data parallelism splits: nothing on one GPU, and on several that nobody speaks of as assumed."""
    sharding = read_sharding(parallelism, optimizer)
    if isinstance(sharding, Refusal) or isinstance(counts, Refusal):
        return sharding
    if (counts.choices[0][0] if isinstance(counts, Open) else counts).gpus == 1:
        return "none"
    if isinstance(sharding, Open) or stated(parallelism):
        return sharding
    return Open(((sharding, 1.0),), "parallelism is not stated: data parallel taken")


def _workload(parts: Mapping[str, Any], software: Software, params: str) -> Workload:
    """The workload of one choice for each part of a row."""
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
            attended_tokens=windows.attended(shape) if windows else None,
            extra_parameters=extra_parameters(shape, params),
        ),
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST else None


def _whole(name: str, text: str) -> int | None | Refusal:
    """A positive whole number ("32" or "32.0"), None if empty."""
    if not text:
        return None
    if text.isdecimal() and 0 < (whole := int(text)) <= _LARGEST:  # by far the most of them
        return whole
    value = _number(text)
    if value is None or value < 1 or value != int(value):
        return Refusal(f"{name} is {text!r}, not a positive whole number")
    return int(value)


def _whole_numbers(**texts: str) -> dict[str, int | None] | Refusal:
    """The numbers of several cells by their names, None where a cell is empty."""
    values: dict[str, int | None] = {}
    for name, text in texts.items():
        value = _whole(name, text)
        if isinstance(value, Refusal):
            return value
        values[name] = value
    return values


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many GPUs, and how the batch is cut."""

    gpus: int
    micro_batch: int
    grad_accum: int


@lru_cache(maxsize=65536)
def read_counts(
    gpus: str, micro: str, accum: str, tokens: str, seq_len: str, parallelism: str = ""
) -> Counts | Open | Refusal:
    """GPUs, micro-batch and accumulation; one of the two latter may follow from the tokens of the global batch."""
    values = _whole_numbers(n_gpus=gpus, micro_batch=micro, grad_accum=accum, seq_len=seq_len)
    if isinstance(values, Refusal):
        return values
    n, b, a, length = values.values()
    if length is None:
        return Refusal("seq_len is not given")
    if n is None:
        return _counts_of_one(micro, accum, tokens, seq_len, parallelism)
    total = _number(tokens)
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
    """As `read_counts` where nobody says how many GPUs: one, if nothing speaks of several."""
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
    """Micro-batches of common sizes, where a row states none: no larger than the sequences that a device has a step."""
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


@lru_cache(maxsize=65536)
def read_shape(
    params: str, layers: str, dim: str, heads: str, ffn_mult: str, vocab: str, seq_len: str, notes: str = ""
) -> ModelShape | Open | Refusal:
    """The dense decoder of these numbers; the printed parameter count tells families and head groupings apart."""
    given = _whole_numbers(layers=layers, dim=dim, heads=heads, seq_len=seq_len, vocab=vocab)
    if isinstance(given, Refusal):
        return given
    for name in ("layers", "dim", "seq_len"):
        if given[name] is None:
            return Refusal(f"{name} is not given")
    values = {name: value for name, value in given.items() if value is not None}
    assumed = []
    if "heads" not in values or values["dim"] % values["heads"]:
        said = f"dim {dim} is not a multiple of heads {heads}" if "heads" in values else "heads are not stated"
        if "heads" in values and params:
            return Refusal(said)
        values["heads"] = next((values["dim"] // size for size in (64, 128) if values["dim"] % size == 0), 1)
        assumed.append(f"{said}: {values['heads']} taken")
    count, mult = _number(params), _number(ffn_mult)
    if mult is not None and mult <= 0:
        return Refusal(f"ffn_mult is {ffn_mult!r}")
    shape = _shape_with(values, mult, count, _stated_kv_heads(notes, values["heads"]))
    if not assumed or isinstance(shape, Refusal):
        return shape
    told = shape if isinstance(shape, Open) else Open(((shape, 1.0),), "")
    return Open(told.choices, "; ".join(filter(None, [*assumed, told.words])))


def _shape_with(
    values: Mapping[str, int], mult: float | None, count: float | None, kv_heads: int | None
) -> ModelShape | Open | Refusal:
    """The shape, of sizes that may lack the FFN's and the vocabulary's."""
    if mult is None:
        return _shape_of_count(values, count)
    ffn_width = round(mult * values["dim"])
    if "vocab" not in values:
        return _shape_with_derived_vocabulary(values, ffn_width, count, kv_heads)
    if count is not None:
        return _closest(values, ffn_width, count, kv_heads)
    family = "gpt2" if ffn_width == 4 * values["dim"] else "llama"
    if family == "gpt2":
        return _shape("gpt2", values, ffn_width, kv_heads or values["heads"])
    if kv_heads is not None:
        return _shape(family, values, ffn_width, kv_heads)
    heads = values["heads"]
    grouped = heads // 4 if heads % 4 == 0 else 1
    choices = tuple((_shape(family, values, ffn_width, kv), 0.5) for kv in (heads, grouped))
    return Open(choices, f"key/value heads are not stated: {heads} or {grouped} taken")


def _stated_kv_heads(notes: str, heads: int) -> int | None:
    """Key/value heads that the notes state ("GQA 8/4 heads", "kv_heads 4"), where they divide the heads."""
    said = re.search(r"\bgqa\b[^;,]{0,12}?\d+ ?/ ?(\d+)|\bkv[_ -]?heads?\b\D{0,3}(\d+)|(\d+) kv[_ -]heads", notes, re.I)
    count = int(next(filter(None, said.groups()))) if said else 0
    return count if count and heads % count == 0 else None


@lru_cache(maxsize=65536)
def extra_parameters(shape: ModelShape, params: str) -> int:
    """How many more parameters the printed count has than the shape: one table (an untied head), minus one (a tied
    one), value embeddings or none, whichever is nearest. 0 without a count.
    """
    count, own = _number(params), flops.parameters(shape)
    if count is None or count <= 0:
        return 0
    table = shape.vocab_size * shape.width
    choices = [0, table if shape.family == "gpt2" else -table]
    if shape.family == "nanochat":
        choices.append(_value_tables(shape.depth) * table)
    return min(choices, key=lambda extra: round(abs(math.log((own + extra) / count)), 4))


def _value_tables(layers: int) -> int:
    """Embedding tables of values that later versions of nanochat have in every second layer: they cost no products."""
    return (layers + 1) // 2


def _shape(family: str, values: Mapping[str, int], ffn_width: int, kv_heads: int) -> ModelShape:
    return ModelShape(
        family=family,
        depth=values["layers"],
        width=values["dim"],
        heads=values["heads"],
        kv_heads=kv_heads,
        ffn_width=ffn_width,
        vocab_size=values["vocab"],
        seq_len=values["seq_len"],
    )


def _variants(values: Mapping[str, int], ffn_width: int) -> Iterator[tuple[ModelShape, int, int]]:
    """Shapes with all heads, key/value heads in their place, and the parameter counts that gives; likeliest first.

    Each twice, with the head tied and untied; nanochat's with value embeddings too. Counts are worked out from those of
    the shapes with all heads.
    """
    heads, table = values["heads"], values["vocab"] * values["dim"]
    # each key/value head has one column of keys and one of values in each layer
    per_head = 2 * values["layers"] * values["dim"] * (values["dim"] // heads)
    for family in ("gpt2", "nanochat", "llama"):
        shape = _shape(family, values, ffn_width, heads)
        count = flops.parameters(shape)
        yield shape, heads, count
        yield shape, heads, count + table if family == "gpt2" else count - table
        if family == "nanochat":
            yield shape, heads, count + _value_tables(values["layers"]) * table
    for kv_heads in (8, 4, 16, 2, 1, 32, *range(heads // 2, 2, -1)):  # of a llama, whose `count` is the last
        if kv_heads < heads and heads % kv_heads == 0:
            fewer = count - (heads - kv_heads) * per_head
            yield shape, kv_heads, fewer
            yield shape, kv_heads, fewer - table


def _closest(
    values: Mapping[str, int], ffn_width: int, count: float, stated_kv_heads: int | None
) -> ModelShape | Open | Refusal:
    """The variant whose parameter count is nearest to the printed one, ties in the order of likelihood."""
    if count <= 0:
        return Refusal(f"params is {count:g}")
    shape: ModelShape | None = None
    error, kv_heads = math.inf, 0
    for variant, heads, parameters in _variants(values, ffn_width):
        own = round(abs(math.log(parameters) - math.log(count)), 4)
        if own < error:
            error, shape, kv_heads = own, variant, heads
        if not error:
            break
    assert shape is not None  # there is always the one with all heads
    if kv_heads != shape.kv_heads:
        shape = replace(shape, kv_heads=kv_heads)
    if error <= _COUNT_TOLERANCE:
        return shape
    said = (
        f"no dense decoder of {values['layers']} layers and width {values['dim']} has {count / 1e6:,.0f} M "
        f"parameters (the closest has {flops.parameters(shape) / 1e6:,.0f} M)"
    )
    if error > _FAR_COUNT:
        return Refusal(said)
    shape = replace(shape, kv_heads=stated_kv_heads or shape.kv_heads)
    return Open(((shape, 1.0),), f"{said}, which is taken")


def _shape_with_derived_vocabulary(
    values: Mapping[str, int], ffn_width: int, count: float | None, kv_heads: int | None
) -> ModelShape | Open:
    """A GPT-2 whose printed parameter count leaves room for a plausible vocabulary, else one of common sizes."""
    family = "gpt2" if ffn_width == 4 * values["dim"] else "llama"
    heads = kv_heads or values["heads"]
    if count is not None and family == "gpt2":
        bare = flops.parameters(_shape("gpt2", {**values, "vocab": 1}, ffn_width, heads))
        vocab = round((count - bare) / values["dim"])
        if 1000 <= vocab <= 300_000:
            return _shape("gpt2", {**values, "vocab": vocab}, ffn_width, heads)
    if count is not None and count > 0 and family == "llama" and kv_heads is None:
        found = [
            (*_nearest_llama({**values, "vocab": size}, ffn_width, count), weight) for size, weight in _VOCABULARIES
        ]
        if near := [(shape, weight) for shape, error, weight in found if error <= _COUNT_TOLERANCE]:
            whole = sum(weight for _, weight in near)
            sizes = " or ".join(f"{shape.vocab_size:,} with {shape.kv_heads} key/value heads" for shape, _ in near)
            said = f"vocab is not stated: {sizes} taken, as params allows"
            return Open(tuple((shape, weight / whole) for shape, weight in near), said)
    choices = tuple(
        (_shape(family, {**values, "vocab": size}, ffn_width, heads), weight) for size, weight in _VOCABULARIES
    )
    taken = [f"vocab is not stated: {' or '.join(f'{size:,}' for size, _ in _VOCABULARIES)} taken"]
    if family == "llama" and kv_heads is None:
        taken.append(f"key/value heads are not stated: {heads} taken")
    return Open(choices, "; ".join(taken))


def _nearest_llama(values: Mapping[str, int], ffn_width: int, count: float) -> tuple[ModelShape, float]:
    """The llama whose key/value heads bring it nearest to the printed count, and how far that is (log)."""
    llamas = [variant for variant in _variants(values, ffn_width) if variant[0].family == "llama"]
    errors = [round(abs(math.log(parameters) - math.log(count)), 4) for *_, parameters in llamas]
    shape, kv_heads, _ = llamas[errors.index(min(errors))]
    return replace(shape, kv_heads=kv_heads), min(errors)


def _shape_of_count(values: Mapping[str, int], count: float | None) -> ModelShape | Open | Refusal:
    """Solve the exact parameter count for the FFN width; an answer counts if it is the only whole one."""
    if count is None or "vocab" not in values:
        return Refusal("ffn_mult is not given, and neither is all of params and vocab to derive it")
    shapes: dict[int, ModelShape] = {}
    for (zero, kv_heads, at_zero), (*_, at_one) in zip(_variants(values, 0), _variants(values, 1), strict=True):
        width = (count - at_zero) / (at_one - at_zero)
        if width > 0 and width == round(width) and width % _FFN_MULTIPLE == 0:
            shape = replace(zero, ffn_width=int(width), kv_heads=kv_heads)
            shapes.setdefault(flops.matmul_parameters(shape), shape)
    if len(shapes) != 1:
        return Refusal("ffn_mult is not given, and params leaves it open")
    return next(iter(shapes.values()))
