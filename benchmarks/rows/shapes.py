"""Find the decoder that the numbers of a row describe. If the row leaves sizes open, the parameter count decides."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from advisor.laws import flops
from advisor.prediction.shape_by_count import COUNT_TOLERANCE, closest_shape, value_tables, variants
from benchmarks.rows.words import Open, Refusal, number, whole_numbers
from trainer.schema import ModelShape

_FFN_MULTIPLE = 64  # real FFN widths are multiples of this
_FAR_COUNT = 0.25  # a larger difference of the parameter count means another model
_VOCABULARIES = ((32_000, 0.4), (50_304, 0.4), (128_256, 0.2))  # common sizes with their weights


@lru_cache(maxsize=65536)
def read_shape(
    params: str, layers: str, dim: str, heads: str, ffn_mult: str, vocab: str, seq_len: str, notes: str = ""
) -> ModelShape | Open | Refusal:
    """Return the dense decoder with these sizes. The parameter count decides family and key/value heads."""
    given = whole_numbers(layers=layers, dim=dim, heads=heads, seq_len=seq_len, vocab=vocab)
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
    count, mult = number(params), number(ffn_mult)
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
    """Return the shape with these sizes, of which FFN width and vocabulary may be missing."""
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
    """Return the key/value heads in notes ("GQA 8/4 heads", "kv_heads 4"), or None unless they divide the heads."""
    said = re.search(r"\bgqa\b[^;,]{0,12}?\d+ ?/ ?(\d+)|\bkv[_ -]?heads?\b\D{0,3}(\d+)|(\d+) kv[_ -]heads", notes, re.I)
    count = int(next(filter(None, said.groups()))) if said else 0
    return count if count and heads % count == 0 else None


@lru_cache(maxsize=65536)
def extra_parameters(shape: ModelShape, params: str, notes: str = "") -> int:
    """Return how many more parameters the printed count has than the shape.

    This is one table for an untied head, minus one table for a tied head, the value embeddings, or 0, whichever is
    closest to the printed count. It is 0 without a count.
    """
    count, own = number(params), flops.parameters(shape)
    if count is None or count <= 0:
        return 0
    table = shape.vocab_size * shape.width
    choices = [0, table if shape.family == "gpt2" else -table]
    if shape.family == "nanochat":
        choices.append(value_tables(shape.depth) * table)
    found = min(choices, key=lambda extra: round(abs(math.log((own + extra) / count)), 4))
    if not found and shape.family == "nanochat" and "value embedding" in notes.lower():  # not in the printed count
        return choices[-1]
    return found


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


def _closest(
    values: Mapping[str, int], ffn_width: int, count: float, stated_kv_heads: int | None
) -> ModelShape | Open | Refusal:
    """Return the variant whose parameter count is closest to the printed one, or the likeliest of equally close
    ones."""
    if count <= 0:
        return Refusal(f"params is {count:g}")
    shape, error = closest_shape(_shape("llama", values, ffn_width, values["heads"]), count)
    if error <= COUNT_TOLERANCE:
        return shape
    said = f"params says {count / 1e6:,.0f} M; a dense decoder of {values['layers']} layers and width {values['dim']}"
    closest = f"{flops.parameters(shape) / 1e6:,.0f} M"
    if error > _FAR_COUNT:
        return Refusal(f"{said} has at the closest {closest}")
    shape = replace(shape, kv_heads=stated_kv_heads or shape.kv_heads)
    return Open(((shape, 1.0),), f"{said} with {closest} taken")


def _shape_with_derived_vocabulary(
    values: Mapping[str, int], ffn_width: int, count: float | None, kv_heads: int | None
) -> ModelShape | Open:
    """Return the shape with the vocabulary that the parameter count implies, or shapes with common vocabularies."""
    family = "gpt2" if ffn_width == 4 * values["dim"] else "llama"
    heads = kv_heads or values["heads"]
    if count is not None and family == "gpt2":
        bare = flops.parameters(_shape("gpt2", {**values, "vocab": 1}, ffn_width, heads))
        vocab = round((count - bare) / values["dim"])
        if 1000 <= vocab <= 300_000:
            return _shape("gpt2", {**values, "vocab": vocab}, ffn_width, heads)
    if count is not None and count > 0 and family == "llama" and kv_heads is None:
        near = []
        for size, weight in _VOCABULARIES:  # for each vocabulary, the llama with the closest parameter count
            sizes = _shape("llama", {**values, "vocab": size}, ffn_width, values["heads"])
            llamas = [variant for variant in variants(sizes) if variant[0].family == "llama"]
            errors = [round(abs(math.log(parameters) - math.log(count)), 4) for *_, parameters in llamas]
            shape, groups, _ = llamas[errors.index(min(errors))]
            if min(errors) <= COUNT_TOLERANCE:
                near.append((replace(shape, kv_heads=groups), weight))
        if near:
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


def _shape_of_count(values: Mapping[str, int], count: float | None) -> ModelShape | Open | Refusal:
    """Return the shape whose FFN width solves the exact parameter count. There must be exactly one whole solution."""
    if count is None or "vocab" not in values:
        return Refusal("ffn_mult is not given; without it params and vocab are both needed")
    shapes: dict[int, ModelShape] = {}
    none, one = (variants(_shape("llama", values, ffn_width, values["heads"])) for ffn_width in (0, 1))
    for (zero, kv_heads, at_zero), (*_, at_one) in zip(none, one, strict=True):
        width = (count - at_zero) / (at_one - at_zero)
        if width > 0 and width == round(width) and width % _FFN_MULTIPLE == 0:
            shape = replace(zero, ffn_width=int(width), kv_heads=kv_heads)
            shapes.setdefault(flops.matmul_parameters(shape), shape)
    if len(shapes) != 1:
        return Refusal("ffn_mult is not given, and params leaves it open")
    return next(iter(shapes.values()))
