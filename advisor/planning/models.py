"""Which model is meant by a name or by a number of parameters.

Reads profiles/models.yaml, where every model has its source (format in profiles/README.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from advisor.errors import AdvisorError, close_matches
from advisor.laws.flops import parameters
from advisor.store.folders import profiles_folder
from advisor.units import format_count, format_tokens
from trainer.schema import ModelShape, make_shape

DEEPEST_OF_COUNTS = 128  # blocks; the deepest published dense decoders have 126
CLOSE = 0.05  # of the count asked for: from here on the family's own proportions are kept
_SIZES = ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")
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
    """The model of this name, with or without its owner; raises AdvisorError (exit 2) with what comes near it."""
    models = {model.name: model for model in named_models()}
    key = re.sub(r"^meta-(?=llama)|-hf$", "", name.strip().lower().rpartition("/")[2])
    if key in models:
        return models[key]
    if (depth := re.fullmatch(r"nanochat-d([1-9]\d?)", key)) is not None:
        like = models["nanochat-d20"].shape
        shape = make_shape("nanochat", depth=int(depth[1]), vocab_size=like.vocab_size, seq_len=like.seq_len)
        return NamedModel(name=key, shape=shape, parameters=parameters(shape), source=models["nanochat-d20"].source)
    if (other := _document()["not_built"].get(key)) is not None:
        raise _not_built(name, other)
    if (experts := _document()["experts"].get(key) or _experts_by_name(key)) is not None:
        raise _mixture(name, experts)
    close = close_matches(key, models)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    hint += f"known: {', '.join(models)}, nanochat-dN; any other: --depth, --width, --heads, --kv-heads and --ffn-width"
    raise AdvisorError(f"--model {name}: unknown", hint, exit_code=2)


def _not_built(name: str, row: Mapping[str, Any]) -> AdvisorError:
    """What a model has that no family has, and the family's shape that is nearest to it."""
    sizes = {size: row[size] for size in _SIZES if size in row}
    theirs = format_count(row["parameters"])
    ours = format_count(parameters(make_shape(row["family"], **sizes)))
    options = " ".join(f"--{size.replace('_', '-')} {value}" for size, value in sizes.items())
    more = f"--head-dim {row['head_dim']} " if "head_dim" in row else ""
    more += "--tied" if "tied" in row else ""
    return AdvisorError(
        f"--model {name}: the trainer does not build it, {row['why']}",
        f"the nearest it builds has {ours} parameters, where {name} has {theirs}: --family {row['family']} {options}"
        f"{f'; `advisor predict` also takes {more}' if more else ''}",
        exit_code=2,
    )


def _experts_by_name(key: str) -> Mapping[str, float] | None:
    """Billions of parameters, all and active, that a name says (qwen3-next-80b-a3b); empty if it says experts only."""
    if (sizes := re.search(r"(\d+(?:\.\d+)?)b-a(\d+(?:\.\d+)?)b", key)) is not None:
        return {"total": float(sizes[1]), "active": float(sizes[2])}
    return {} if re.search(r"\d+x\d+(\.\d+)?b|moe|mixtral|deepseek-(v[2-9]|r\d)", key) else None


def _mixture(name: str, billions: Mapping[str, Any]) -> AdvisorError:
    """That mixtures of experts are not modelled, and what bounds them."""
    if billions:
        active, total = (f"{billions[which]:g}B" for which in ("active", "total"))
        hint = (
            f"a dense model of the {active} parameters that a token meets bounds the time from below: --family llama "
            f"--params {active}; one of all {total} bounds the memory from above: --family llama --params {total}"
        )
    else:
        hint = (
            "a dense model of the parameters that a token meets bounds the time from below, one of all parameters the "
            "memory from above: --family llama --params with each of the two numbers"
        )
    return AdvisorError(f"--model {name}: mixtures of experts are not modelled yet", hint, exit_code=2)


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
