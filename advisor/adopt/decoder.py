"""Recognises a decoder's shape from the names and shapes of its weights, as the probe saw them. Pure.

Only a plain decoder is recognised: one stack of equal blocks, queries as wide as the stream, two or three feed-forward
matrices. The shape must have the weights that were seen. Models with experts, adapters, or sharded or packed weights do
not match, and stay unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.laws import flops
from trainer.schema import ModelShape

_FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward|\bfc\b|(gate|up|down)_proj|\bw[123]\b")
_ATTENTION = re.compile(r"attn|attention")
_SAME = 0.02  # relative, of the matrices in blocks
_TRAINED = 0.9  # share of the model; with less, as with adapters, a step differs; more weights do not fit this model
_HEADS = (128, 64, 96, 80, 48, 32, 16, 8)  # sizes of a head to try if unknown; they change no fitted value


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights with the same name, in which `#` stands for the number of the block."""

    name: str
    shape: tuple[int, ...]
    count: int = 1

    @property
    def elements(self) -> int:
        """The number of elements in one of these tensors."""
        return math.prod(self.shape)


def decoder_of(weights: Sequence[Weights], trained: int, length: int) -> ModelShape | None:
    """Returns the shape of a program's weights with a context of `length` tokens, or None if no known shape matches.

    `trained` is the number of parameters that its optimizer updates.
    """
    matrices = [each for each in weights if len(each.shape) == 2]
    blocks = [each for each in matrices if each.name.count("#") == 1]
    tables = [each for each in matrices if "#" not in each.name and each.shape[0] > each.shape[1]]
    if not blocks or not tables or any(each.name.count("#") > 1 for each in matrices):
        return None
    vocab, width = max(tables, key=lambda each: each.elements).shape
    depth = max(each.count for each in blocks)
    wide = [each for each in blocks if _FEED_FORWARD.search(each.name) and not _ATTENTION.search(each.name)]
    attention = [each for each in blocks if each not in wide]
    alike = all(each.count == depth and width in each.shape for each in blocks)
    whole = sum(each.elements * each.count for each in weights)
    if not alike or not wide or not attention or not _TRAINED <= trained / whole <= 1 / _TRAINED:
        return None
    inner = [each.elements / width for each in wide]
    gated = len(wide) == 3 or (len(wide) == 2 and max(inner) == 2 * min(inner))  # both in one matrix
    keys = (sum(each.elements for each in attention) / width - 2 * width) / 2  # without the query and output matrices
    head = next((n for n in _HEADS if width % n == 0 and keys % n == 0), None)
    if not gated and (len(wide) != 2 or inner[0] != inner[1]):
        return None
    if head is None or not head <= keys <= width or (width // head) % round(keys / head):
        return None
    shape = ModelShape(
        family="llama" if gated else "gpt2", depth=depth, vocab_size=vocab, seq_len=length, width=width,
        heads=width // head, kv_heads=round(keys / head), ffn_width=round(min(inner)),
    )  # fmt: skip
    if shape.problems():
        return None
    seen, counted = sum(each.elements * depth for each in blocks), flops.matmul_parameters(shape) - vocab * width
    return shape if abs(counted / seen - 1) <= _SAME else None
