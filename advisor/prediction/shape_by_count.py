"""Find the dense decoder of stated sizes that has a printed number of parameters: family and key/value heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from advisor.laws import flops
from trainer.schema import ModelShape

COUNT_TOLERANCE = 0.06  # printed counts are rounded ("1.3e9"), and conventions differ
_LARGEST_GROUP = 512  # largest number of query heads per key/value head to try, enough for 1,536 heads


def closest_shape(sizes: ModelShape, count: float) -> tuple[ModelShape, float]:
    """Return the variant of `sizes` whose parameter count is closest to the printed one, and the log error.

    Of several equally close variants it is the likeliest.
    """
    found, error, kv_heads = sizes, math.inf, sizes.heads
    for variant, heads, parameters in variants(sizes):
        own = round(abs(math.log(parameters) - math.log(count)), 4)
        if own < error:
            error, found, kv_heads = own, variant, heads
        if not error:
            break
    return replace(found, kv_heads=kv_heads), error


def variants(sizes: ModelShape) -> Iterator[tuple[ModelShape, int, int]]:
    """Yield candidate shapes, each with its number of key/value heads and its parameter count, most likely first.

    Each shape appears with a tied and an untied head; nanochat's shapes also appear with value embeddings. The yielded
    shape has as many key/value heads as heads, but the count is for the yielded number of key/value heads.
    """
    heads, table = sizes.heads, sizes.vocab_size * sizes.width
    # each key/value head has one column of keys and one of values in each layer
    per_head = 2 * sizes.depth * sizes.width * (sizes.width // heads)
    for family in ("gpt2", "nanochat", "llama"):
        shape = replace(sizes, family=family, kv_heads=heads)
        count = flops.parameters(shape)
        yield shape, heads, count
        yield shape, heads, count + table if family == "gpt2" else count - table
        if family == "nanochat":
            yield shape, heads, count + value_tables(sizes.depth) * table
    rarer = (heads // group for group in range(2, min(heads // 3, _LARGEST_GROUP) + 1) if heads % group == 0)
    for kv_heads in itertools.chain((8, 4, 16, 2, 1, 32), rarer):  # for llama, the last family of the loop above
        if kv_heads < heads and heads % kv_heads == 0:
            fewer = count - (heads - kv_heads) * per_head
            yield shape, kv_heads, fewer
            yield shape, kv_heads, fewer - table


def value_tables(layers: int) -> int:
    """Return the number of tables of value embeddings: later versions of nanochat have one in every second layer."""
    return (layers + 1) // 2
