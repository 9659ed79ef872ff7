"""Which model is meant by a name or by a number of parameters.

Reads profiles/models.yaml, where every model has its source (format in profiles/README.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import yaml

from advisor.errors import AdvisorError, close_matches
from advisor.laws.flops import parameters
from advisor.store.folders import profiles_folder
from advisor.units import format_tokens
from trainer.schema import ModelShape, make_shape

DEEPEST_OF_COUNTS = 128  # blocks; the deepest published dense decoders have 126
CLOSE = 0.05  # of the count asked for: from here on the family's own proportions are kept
FARTHEST = 0.5  # beyond it no shape of the family is what was meant


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A published model that the trainer builds exactly."""

    name: str
    shape: ModelShape
    parameters: int  # as published
    source: str


def named_models() -> tuple[NamedModel, ...]:
    """Every model that can be planned by its name."""
    return tuple(
        NamedModel(
            name=name,
            parameters=row["parameters"],
            source=row["source"],
            shape=ModelShape(**{key: value for key, value in row.items() if key not in ("parameters", "source")}),
        )
        for name, row in _document()["models"].items()
    )


def require_model(name: str) -> NamedModel:
    """The model of this name; raises AdvisorError (exit 2) with what comes near it."""
    models = {model.name: model for model in named_models()}
    key = name.strip().lower()
    if key in models:
        return models[key]
    if (other := _document()["not_built"].get(key)) is not None:
        count = f"{other['parameters'] / 1e6:.0f}M"
        raise AdvisorError(
            f"--model {name}: the trainer does not build it, {other['why']}",
            f"plan one of its size: --family {other['family']} --params {count}",
            exit_code=2,
        )
    close = close_matches(key, models)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    hint += f"known: {', '.join(models)}; any other: --depth, --width, --heads, --kv-heads and --ffn-width"
    raise AdvisorError(f"--model {name}: unknown", hint, exit_code=2)


def nearest_shape(family: str, count: int, *, vocab_size: int, seq_len: int) -> ModelShape:
    """The shape of a family whose parameters, embeddings included, come nearest to a count.

    In the family's own proportions where one of those is close, else one head narrower or wider. Raises AdvisorError
    (exit 2) where the vocabulary alone is too much, or the count is beyond what is built.
    """
    own = [
        make_shape(family, depth=depth, vocab_size=vocab_size, seq_len=seq_len)
        for depth in range(1, DEEPEST_OF_COUNTS + 1)
    ]

    def off(shape: ModelShape) -> float:
        return abs(math.log(parameters(shape) / count))

    best = min(own, key=off)
    if off(best) > CLOSE:
        best = min((*own, *(other for shape in own for other in _beside(shape))), key=off)
    if off(best) > FARTHEST:
        side = "smallest" if parameters(best) > count else "largest"
        raise AdvisorError(
            f"--params {format_tokens(count)}: the {side} {family} with a vocabulary of {vocab_size} "
            f"has {format_tokens(parameters(best))}",
            "give --vocab-size, or the shape itself: --depth, --width and --heads",
            exit_code=2,
        )
    return best


def _beside(shape: ModelShape) -> list[ModelShape]:
    """The same depth with one head less, and one more."""
    return [
        make_shape(
            shape.family,
            depth=shape.depth,
            width=heads * shape.head_dim,
            heads=heads,
            vocab_size=shape.vocab_size,
            seq_len=shape.seq_len,
        )
        for heads in (shape.heads - 1, shape.heads + 1)
        if heads
    ]


@cache
def _document() -> dict:
    with (profiles_folder() / "models.yaml").open(encoding="utf-8") as file:
        return yaml.safe_load(file)
