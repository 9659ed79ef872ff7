"""Tables of published runs to workloads: one row in, one Workload or one refusal in words out.

What a row does not say is derived only where one answer is possible; what the model does not describe (tensor and
pipeline parallel, experts, adapters, 8-bit floats) is refused, never approximated.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.laws import flops
from advisor.predict.gpu_names import named_cards, one_card
from advisor.predict.row_words import (
    Refusal,
    architecture,
    read_checkpointing,
    read_compile,
    read_optimizer,
    read_precision,
    read_sharding,
    read_software,
    read_windows,
)
from advisor.records import Workload
from trainer.schema import ModelShape

REQUIRED_COLUMNS = ("gpu", "layers", "dim", "heads", "seq_len", "micro_batch", "precision")
COLUMNS = (  # that are read; any other is ignored
    *("gpu", "gpu_mem_gib", "mem_gib_per_gpu", "n_gpus", "params", "layers", "dim", "heads", "ffn_mult", "vocab"),
    *("seq_len", "micro_batch", "grad_accum", "global_batch_tokens", "precision", "compile", "flash_attn", "act_ckpt"),
    *("parallelism", "optimizer", "notes"),
)
_EMPTY = frozenset(("nan", "NaN", "null", "None", "N/A", "n/a"))
_COUNT_TOLERANCE, _TOKENS_TOLERANCE = 0.06, 0.02  # printed counts are rounded ("1.3e9"), and conventions differ
_FFN_MULTIPLE = 64  # widths that real models use

_LARGEST = 1e18  # no size, count or batch of a run is larger


@dataclass(frozen=True, kw_only=True)
class RowError:
    """A row that cannot be predicted and why, in words."""

    row: int  # 1 is the first row under the header
    error: str


def read_rows(path: Path, cards: Mapping[str, GpuSpec]) -> Iterator[Workload | RowError]:
    """Read a CSV of runs row by row; AdvisorError where the file itself cannot be used."""
    lines = row_cells(path)
    reader = RowReader(cards, next(lines))
    for number, cells in enumerate(lines, start=1):
        yield reader.read(cells, number)


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
        self._seen: dict[tuple[str, ...], Workload | Refusal] = {}
        self._cards = lru_cache(maxsize=4096)(lambda name, memory: named_cards(name, _number(memory), cards.values()))

    def read(self, cells: Sequence[str], number: int = 1) -> Workload | RowError:
        """Turn one row into a Workload, or say why not; cells missing at its end are empty."""
        key = self._pick([*cells, *self._padding])
        outcome = self._seen.get(key)
        if outcome is None:
            cells = tuple(map(str.strip, key))
            if not _EMPTY.isdisjoint(cells):
                cells = tuple("" if cell in _EMPTY else cell for cell in cells)
            outcome = self._seen[key] = self._workload(*cells)
        if isinstance(outcome, Workload):
            return outcome
        return RowError(row=number, error=f"not predicted: {outcome.reason}")

    def _workload(
        self, gpu: str, memory: str, used: str, gpus: str, params: str, layers: str, dim: str, heads: str,
        ffn_mult: str, vocab: str, seq_len: str, micro: str, accum: str, tokens: str, precision: str, compiled: str,
        flash: str, checkpointing: str, parallelism: str, optimizer: str, notes: str,
    ) -> Workload | Refusal:  # fmt: skip
        """The workload of one row's cells, in the order of COLUMNS."""
        card = one_card(gpu, self._cards(gpu, memory), _number(used))
        if isinstance(card, str):
            return Refusal(card)
        if isinstance(refused := architecture(notes), Refusal):
            return refused
        if isinstance(sharding := read_sharding(parallelism, optimizer), Refusal):
            return sharding
        if isinstance(kind := read_precision(precision, card.tf32_flops is not None), Refusal):
            return kind
        if isinstance(stepped_by := read_optimizer(optimizer), Refusal):
            return stepped_by
        if isinstance(recomputed := read_checkpointing(checkpointing), Refusal):
            return recomputed
        if isinstance(shape := read_shape(params, layers, dim, heads, ffn_mult, vocab, seq_len), Refusal):
            return shape
        if isinstance(windows := read_windows(flash, notes), Refusal):
            return windows
        counts = read_counts(gpus, micro, accum, tokens, shape.seq_len)
        if isinstance(counts, Refusal):
            return counts
        return Workload(
            shape=shape,
            micro_batch=counts.micro_batch,
            grad_accum=counts.grad_accum,
            gpu=card.key,
            gpus=counts.gpus,
            precision=kind,
            compile=read_compile(compiled),
            activation_checkpointing=recomputed,
            optimizer=stepped_by,
            sharding=sharding if counts.gpus > 1 else "none",
            software=replace(
                read_software(precision, flash, notes),
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


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many GPUs, and how the batch is cut."""

    gpus: int
    micro_batch: int
    grad_accum: int


@lru_cache(maxsize=65536)
def read_counts(gpus: str, micro: str, accum: str, tokens: str, seq_len: int) -> Counts | Refusal:
    """GPUs, micro-batch and accumulation; one of the two latter may follow from the tokens of the global batch."""
    n, b, a = _whole("n_gpus", gpus), _whole("micro_batch", micro), _whole("grad_accum", accum)
    if isinstance(n, Refusal):
        return n
    if isinstance(b, Refusal):
        return b
    if isinstance(a, Refusal):
        return a
    n, total = n or 1, _number(tokens)
    if total is None or total <= 0:
        return Counts(gpus=n, micro_batch=b, grad_accum=a or 1) if b else Refusal("micro_batch is not given")
    per_device = total / (n * seq_len)
    if b is None and a is None and round(per_device) != 1:
        return Refusal("neither micro_batch nor grad_accum is given")
    b = b or max(1, round(per_device / (a or 1)))
    a = a or max(1, round(per_device / b))
    if abs(b * a / per_device - 1) > _TOKENS_TOLERANCE:
        return Refusal(
            f"{n} GPUs x {b} x {a} sequences of {seq_len} are {n * b * a * seq_len:,} tokens, "
            f"but global_batch_tokens says {total:,.0f}"
        )
    return Counts(gpus=n, micro_batch=b, grad_accum=a)


@lru_cache(maxsize=65536)
def read_shape(
    params: str, layers: str, dim: str, heads: str, ffn_mult: str, vocab: str, seq_len: str
) -> ModelShape | Refusal:
    """The dense decoder of these numbers; the printed parameter count tells families and head groupings apart."""
    given = {"layers": layers, "dim": dim, "heads": heads, "seq_len": seq_len, "vocab": vocab}
    values: dict[str, int] = {}  # without "vocab" where that is not given
    for name, text in given.items():
        value = _whole(name, text)
        if isinstance(value, Refusal):
            return value
        if value is not None:
            values[name] = value
        elif name != "vocab":
            return Refusal(f"{name} is not given")
    if values["dim"] % values["heads"]:
        return Refusal(f"dim {dim} is not a multiple of heads {heads}")
    count, mult = _number(params), _number(ffn_mult)
    if mult is not None and mult <= 0:
        return Refusal(f"ffn_mult is {ffn_mult!r}")
    if mult is None:
        return _shape_of_count(values, count)
    ffn_width = round(mult * values["dim"])
    if "vocab" not in values:
        return _shape_with_derived_vocabulary(values, ffn_width, count)
    if count is not None:
        return _closest(values, ffn_width, count)
    if ffn_width != 4 * values["dim"]:
        return Refusal("params is not given, and without it the number of key/value heads is open")
    return _shape("gpt2", values, ffn_width, values["heads"])


@lru_cache(maxsize=65536)
def extra_parameters(shape: ModelShape, params: str) -> int:
    """How many more parameters the printed count has than the shape: one table (an untied head), or minus one (a tied
    one), or none, whichever is nearest. 0 without a count.
    """
    count, own = _number(params), flops.parameters(shape)
    if count is None or count <= 0:
        return 0
    table = shape.vocab_size * shape.width
    choices = (0, table if shape.family == "gpt2" else -table)
    return min(choices, key=lambda extra: round(abs(math.log((own + extra) / count)), 4))


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

    Each twice, with the head tied and untied. Counts are worked out from those of the shapes with all heads.
    """
    heads, table = values["heads"], values["vocab"] * values["dim"]
    # each key/value head has one column of keys and one of values in each layer
    per_head = 2 * values["layers"] * values["dim"] * (values["dim"] // heads)
    for family in ("gpt2", "nanochat", "llama"):
        shape = _shape(family, values, ffn_width, heads)
        count = flops.parameters(shape)
        yield shape, heads, count
        yield shape, heads, count + table if family == "gpt2" else count - table
    for kv_heads in (8, 4, 16, 2, 1, 32):  # of a llama, whose `count` is the last
        if kv_heads < heads and heads % kv_heads == 0:
            fewer = count - (heads - kv_heads) * per_head
            yield shape, kv_heads, fewer
            yield shape, kv_heads, fewer - table


def _closest(values: Mapping[str, int], ffn_width: int, count: float) -> ModelShape | Refusal:
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
    if error > _COUNT_TOLERANCE:
        return Refusal(
            f"no dense decoder of {values['layers']} layers and width {values['dim']} has {count / 1e6:,.0f} M "
            f"parameters (the closest has {flops.parameters(shape) / 1e6:,.0f} M)"
        )
    return shape


def _shape_with_derived_vocabulary(
    values: Mapping[str, int], ffn_width: int, count: float | None
) -> ModelShape | Refusal:
    """A GPT-2 whose printed parameter count leaves room for a plausible vocabulary."""
    if count is None or ffn_width != 4 * values["dim"]:
        return Refusal("vocab is not given")
    bare = flops.parameters(_shape("gpt2", {**values, "vocab": 1}, ffn_width, values["heads"]))
    vocab = round((count - bare) / values["dim"])
    if not 1000 <= vocab <= 300_000:
        return Refusal("vocab is not given")
    return _shape("gpt2", {**values, "vocab": vocab}, ffn_width, values["heads"])


def _shape_of_count(values: Mapping[str, int], count: float | None) -> ModelShape | Refusal:
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
