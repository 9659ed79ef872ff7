"""Find the sizes of a model by name, by config.json or by number of parameters.

profiles/models.yaml lists the models with their sources (its format is in profiles/README.md). The trainer here builds
dense models; other software trains any decoder, mixtures of experts included.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from advisor.architecture import Experts, Model
from advisor.errors import AdvisorError
from advisor.laws.flops import parameters
from advisor.prediction.whole_models import shape_of, with_heads_of
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder
from advisor.units import format_count, format_tokens
from trainer.schema import ModelShape, make_shape

DEEPEST_OF_COUNTS = 128  # blocks; the deepest published dense decoders have 126
CLOSE = 0.05  # share; a model in the family's own proportions is taken if it is this close to the requested size
_SIZES = ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")
_ENDINGS = re.compile(r"(?:-(?:hf|\d{4}|v\d+(?:\.\d+)?))+$")  # endings of dated editions
_SIZE = re.compile(r"-[\d.]+[bm](?=-|$).*")  # of a model, as names end
FARTHEST = 0.5  # log ratio; if every shape is farther from the requested size, the request is refused
_SEQ_LEN = 4096  # tokens per sequence if nothing says how long the training sequences were
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
FINE_TUNE = "to fine-tune it: advisor plan --finetune qlora --model {} --gpu any --examples 50k"
_GATED = {"gpt2": False, "nanochat": False, "llama": True}  # whether a family's feed-forward layers have a gate


@dataclass(frozen=True, kw_only=True)
class Details:
    """The facts of a model's config.json other than its sizes. None means unknown."""

    longest: int | None = None  # sequence that it reads, in tokens
    rope_base: float | None = None
    qk_norm: bool | None = None  # each head's queries and keys are normalised
    qkv_bias: bool | None = None
    open: str = ""  # what Megatron-LM's options in profiles/exports.yaml do not make of it

    def past_longest(self, name: str, seq_len: int) -> str | None:
        """Return a sentence about a sequence that is longer than any that the model reads."""
        if self.longest is None or seq_len <= self.longest:
            return None
        return f"{seq_len:,} tokens are more than the {self.longest:,} of {name}'s longest sequence"


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """A published model, or the nearest shape that the trainer builds if `differs` says how they differ."""

    name: str
    shape: ModelShape
    parameters: int  # as published
    source: str
    head_dim: int | None = None  # None: width over heads
    tied: bool = False  # the output head is the embedding table
    differs: str = ""  # how the model differs from the trainer's families
    exact: Model | None = None  # its sizes, if they do not follow from the shape
    details: Details = Details()
    latent: tuple[int, ...] | None = None  # MLA: ranks of queries and keys, then sizes of rotary, plain and value heads

    @property
    def model(self) -> Model:
        """The exact sizes."""
        if self.exact is not None:
            return self.exact
        shape = self.shape
        return Model(
            **{size: getattr(shape, size) for size in ("width", "heads", "kv_heads", "ffn_width", "vocab_size")},
            layers=shape.depth,
            head_dim=self.head_dim or shape.head_dim,
            gated=_GATED[shape.family],
            # A gpt2 whose publisher counts a second table has a head of its own.
            tied=self.tied or (shape.family == "gpt2" and self.extra_parameters < shape.vocab_size * shape.width / 2),
            name=self.name,
            family="" if self.differs else shape.family,
            published=self.parameters,
        )

    @property
    def expert_width(self) -> int | None:
        """Feed-forward width of one expert; None: no mixture of experts."""
        return self.exact.experts.width if self.exact is not None and self.exact.experts is not None else None

    @property
    def experts(self) -> int:
        """Number of experts in all layers together."""
        experts = self.exact.experts if self.exact is not None else None
        return experts.count * experts.layers if experts is not None else 0

    @property
    def expert_parameters(self) -> int:
        """Weights of experts that a token does not use; the shape has the others."""
        tied = self.shape.vocab_size * self.shape.width if self.tied else 0
        return max(0, self.parameters - parameters(self.shape) + tied) if self.expert_width is not None else 0

    @property
    def extra_parameters(self) -> int:
        """Weights of the model that its shape lacks, such as an untied head; negative if the shape has more."""
        if self.expert_width is not None:
            return -self.shape.vocab_size * self.shape.width if self.tied else 0
        return self.parameters - parameters(with_heads_of(self.shape, self.head_dim)) if self.differs else 0

    @property
    def adapter_targets(self) -> str:
        """The matrices that usually have adapters: those in every expert would be too many."""
        return "attention" if self.expert_width is not None else "all"

    def at(self, seq_len: int) -> NamedModel:
        """Return the model as it is predicted at a context length: heads of another size are in its shape."""
        shape = with_heads_of(replace(self.shape, seq_len=seq_len), self.head_dim)
        return replace(self, shape=shape, head_dim=None, exact=self.model)

    @property
    def stand_in(self) -> str | None:
        """A sentence about the shape that stands for the model; None if it is the model itself."""
        if not self.differs:
            return None
        alike = f"{self.name} is estimated as a {self.shape.family} with layers of the same sizes"
        return f"{alike}, which leaves out that {self.differs}"


@cache
def named_models() -> tuple[NamedModel, ...]:
    """Return every model that can be planned by its name."""
    return tuple(
        NamedModel(
            name=name,
            parameters=row["parameters"],
            source=row["source"],
            details=_details(name),
            shape=ModelShape(**{key: value for key, value in row.items() if key not in ("parameters", "source")}),
        )
        for name, row in _document()["models"].items()
    )


def models_of(count: float) -> list[NamedModel]:
    """Return the models of the first table that have exactly this number of parameters and one shape."""
    found = [model for model in named_models() if model.parameters == count]
    return found if len({replace(model.shape, seq_len=1) for model in found}) == 1 else []


def known_names() -> list[str]:
    """Return the names that `require_model` knows, including models that the trainer nearly builds."""
    return [*_document()["models"], *_document()["not_built"]]


def smaller_models(model: NamedModel) -> list[NamedModel]:
    """Return the smaller models of the same family, as their names say, the largest first."""
    family = _SIZE.sub("", model.name)
    same = [require_model(name, nearly=True) for name in known_names() if _SIZE.sub("", name) == family]
    return sorted((one for one in same if one.parameters < model.parameters), key=lambda one: -one.parameters)


def _details(name: str) -> Details:
    row = _document()["details"].get(name)
    return Details() if row is None else Details(**({"qk_norm": False, "qkv_bias": False} | row))


def details_of_config(raw: Mapping[str, Any]) -> Details:
    """Return the facts of a config.json of the transformers library other than the sizes."""
    kind, known = raw.get("model_type"), ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt2")
    return Details(
        longest=raw.get("max_position_embeddings") or raw.get("n_positions"),
        rope_base=raw.get("rope_theta"),
        qk_norm=kind.startswith("qwen3") if kind in known else None,
        qkv_bias=kind == "qwen2" or raw.get("attention_bias") is True if kind in known else None,
    )


def require_model(name: str, *, nearly: bool = False) -> NamedModel:
    """Return the model of this name; the owner, and endings such as -Instruct, may be missing.

    `nearly` also accepts models that the trainer does not build, in the nearest shape that it builds. Raises
    AdvisorError (exit 2) with similar names.
    """
    models = {model.name: model for model in named_models()}
    others = _document()["not_built"]
    key, _ = named_row(name, _document()["models"] | others) or (_bare(name), None)
    if key in models:
        return models[key]
    if nearly and (row := others.get(key)) is not None:
        return NamedModel(
            name=key,
            shape=make_shape(row["family"], **{size: row[size] for size in _SIZES if size in row}),
            parameters=row["parameters"],
            source=row["source"],
            head_dim=row.get("head_dim"),
            tied=bool(row.get("tied")),
            differs=row["why"],
            details=_details(key),
        )
    if (depth := re.fullmatch(r"nanochat-d([1-9]\d?)", key)) is not None:
        like = models["nanochat-d20"].shape
        shape = make_shape("nanochat", depth=int(depth[1]), vocab_size=like.vocab_size, seq_len=like.seq_len)
        return NamedModel(name=key, shape=shape, parameters=parameters(shape), source=models["nanochat-d20"].source)
    if (other := others.get(key)) is not None:
        # The trainer does not build this model: name the nearest shape that it builds.
        sizes = {size: other[size] for size in _SIZES if size in other}
        theirs = format_count(other["parameters"])
        ours = format_count(parameters(make_shape(other["family"], **sizes)))
        options = " ".join(f"--{size.replace('_', '-')} {value}" for size, value in sizes.items())
        more = f"--head-dim {other['head_dim']} " if "head_dim" in other else ""
        more += "--tied" if "tied" in other else ""
        raise AdvisorError(
            f"--model {name}: the trainer cannot build it, {other['why']}",
            f"{FINE_TUNE.format(name)}; the nearest model that it builds has {ours} parameters ({name} has {theirs}): "
            f"--family {other['family']} {options}"
            f"{f'; `advisor predict` also takes {more}' if more else ''}",
            exit_code=2,
        )
    if named_row(name, mixture_rows()) is not None:
        layouts = f"advisor plan --layout any --model {name} --gpu h100 --gpus 64 --tokens 100B"
        raise AdvisorError(
            f"--model {name}: this trainer does not build mixtures of experts",
            f"{FINE_TUNE.format(name)}; to train it from scratch with other software: {layouts}",
            exit_code=2,
        )
    names = [*models, *others] if nearly else list(models)
    close = near_models(key, [*models, *others, *mixture_rows()])  # of what it cannot build, it says so next
    hint = f"did you mean {' or '.join(close)}? " if close else f"known: {', '.join(names)}, nanochat-dN. "
    hint += "Any other model: its config.json, or --depth, --width, --heads, --kv-heads and --ffn-width"
    raise AdvisorError(f"--model {name}: unknown", hint, exit_code=2)


def near_models(name: str, known: Iterable[str]) -> list[str]:
    """Return known models that a name may mean: of the same family by its first letters, or nearly the same name."""
    name = name.lower().rpartition("/")[2]
    alike = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return [
        other for other in alike if other[:3] == name[:3] or difflib.SequenceMatcher(None, name, other).ratio() > 0.8
    ]


def mixture_rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of the mixtures of experts."""
    rows: Mapping[str, Mapping[str, Any]] = _document()["experts"]
    return rows


def named_row(name: str, rows: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]] | None:
    """Return the row of a name, or None if no row has it. The owner and endings such as -Instruct are ignored."""
    hub = {row["source"].rpartition("/")[2].lower(): key for key, row in reversed(list(rows.items()))}
    asked = name.strip().lower().rpartition("/")[2]
    key = _bare(name)
    tuned = re.sub(r"-(?:instruct|base|it|pt|chat|math|coder)(?=-|$)", "", key)
    for one in (asked, key, tuned, _ENDINGS.sub("", tuned), hub.get(asked, "")):
        if one in rows:
            return one, rows[one]
    return None


# Models with the sizes of another, by how their names begin: https://huggingface.co/deepseek-ai/DeepSeek-R1
_DISTILLED = {"deepseek-r1-distill-qwen": "qwen2.5", "deepseek-r1-distill-llama": "llama-3.1"}


def _bare(name: str) -> str:
    key = re.sub(r"^meta-(?=llama)|-hf$", "", name.strip().lower().rpartition("/")[2])
    for distilled, base in _DISTILLED.items():
        key = re.sub(rf"^{distilled}-", f"{base}-", key)
    return key


def nearest_shape(family: str, count: int, *, vocab_size: int, seq_len: int) -> ModelShape:
    """Return the shape in a family with the number of parameters nearest to `count`, embeddings included.

    Shapes in the family's own proportions are preferred; if none is close, the width may change by one head. Raises
    AdvisorError (exit 2) if the vocabulary alone has too many parameters, or if `count` is too large.
    """
    sizes = {"vocab_size": vocab_size, "seq_len": seq_len}
    own = [make_shape(family, depth=depth, **sizes) for depth in range(1, DEEPEST_OF_COUNTS + 1)]

    def off(shape: ModelShape) -> float:
        return abs(math.log(parameters(shape) / count))

    best = min(own, key=off)
    if off(best) > CLOSE:
        others = (
            make_shape(family, depth=shape.depth, width=heads * shape.head_dim, heads=heads, **sizes)
            for shape in own
            for heads in (shape.heads - 1, shape.heads + 1)
            if heads
        )
        best = min((*own, *others), key=off)
    if off(best) > FARTHEST:
        side = "smallest" if parameters(best) > count else "largest"
        raise AdvisorError(
            f"--params {format_tokens(count)}: the {side} {family} with a vocabulary of {vocab_size} "
            f"has {format_tokens(parameters(best))}",
            "give --vocab-size, or the shape itself: --depth, --width and --heads",
            exit_code=2,
        )
    return best


@cache
def _document() -> dict:
    return read_yaml(profiles_folder() / "models.yaml", "table of models")


def require_architecture(name: str) -> NamedModel:
    """Return the model of this name, also a mixture; raises AdvisorError (exit 2) with similar names if unknown."""
    row = named_row(name, mixture_rows())
    return require_model(name, nearly=True) if row is None else _mixture(*row)


def architecture_of_config(text: str, name: str) -> NamedModel | None:
    """Return the mixture of experts in a config.json of the transformers library, or None for any other model.

    Raises AdvisorError (exit 2) if a size is missing.
    """
    raw = json.loads(text)
    raw = raw.get("text_config", raw) if isinstance(raw, dict) else {}
    count = next((raw[key] for key in _EXPERTS if isinstance(raw.get(key), int) and raw[key] > 1), None)
    if count is None:
        return None
    try:
        layers, width = raw["num_hidden_layers"], raw["hidden_size"]
        expert_width = raw.get("moe_intermediate_size") or raw["intermediate_size"]
        shared = raw.get("n_shared_experts") or 0
        if wide := raw.get("shared_expert_intermediate_size"):
            shared = round(wide / expert_width)
        apart = max(raw.get("decoder_sparse_step") or 1, raw.get("interleave_moe_layer_step") or 1)
        row: dict[str, Any] = {
            "source": name,
            "details": details_of_config(raw),
            "seq_len": min(raw.get("max_position_embeddings") or _SEQ_LEN, _SEQ_LEN),
            "depth": layers,
            "width": width,
            "heads": raw["num_attention_heads"],
            "kv_heads": raw.get("num_key_value_heads"),
            "head_dim": raw.get("head_dim"),
            "ffn_width": raw.get("intermediate_size_mlp") or raw.get("intermediate_size") or 0,
            "vocab_size": raw["vocab_size"],
            "tied": raw.get("tie_word_embeddings") is True,
            "experts": count,
            "per_token": raw["num_experts_per_tok"],
            "expert_width": expert_width,
            "shared": shared,
            "groups": [raw.get("n_group") or 1, raw.get("topk_group") or 1],
            "expert_layers": (layers - (raw.get("first_k_dense_replace") or 0)) // apart,
        }
        if raw.get("kv_lora_rank"):
            sizes = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
            row["mla"] = [raw.get("q_lora_rank") or 0, *(raw[size] for size in sizes)]
    except KeyError as missing:
        message = f"{name} describes a mixture of experts without {missing.args[0]}"
        raise AdvisorError(message, "add it", exit_code=2) from None
    return _mixture(name, row)


def _mixture(name: str, row: Mapping[str, Any]) -> NamedModel:
    """Return the mixture of experts that a row of profiles/models.yaml describes.

    Its shape is the dense llama with the matrices that one token uses, at its training length.
    """
    width, heads, latent = row["width"], row["heads"], row.get("mla")
    attention, head_dim = None, row.get("head_dim") or width // heads
    if latent is not None:  # multi-head latent attention
        query_rank, key_rank, rotary, plain, value = latent
        head_dim = plain + rotary
        queries = query_rank * (width + heads * head_dim) if query_rank else width * heads * head_dim
        keys = width * (key_rank + rotary) + key_rank * heads * (plain + value)
        attention = queries + keys + heads * value * width
    model = Model(
        layers=row["depth"],
        width=width,
        heads=heads,
        kv_heads=row.get("kv_heads") or heads,
        head_dim=head_dim,
        ffn_width=row.get("ffn_width", 0),
        gated=True,
        vocab_size=row["vocab_size"],
        tied=bool(row.get("tied")),
        experts=Experts(
            count=row["experts"],
            per_token=row["per_token"],
            width=row["expert_width"],
            shared=row.get("shared", 0),
            layers=row.get("expert_layers", row["depth"]),
            groups=tuple(row.get("groups", (1, 1))),
        ),
        attention_parameters=attention,
        name=name,
        published=row.get("parameters"),
    )
    return NamedModel(
        name=name,
        shape=shape_of(model, row["seq_len"]),
        exact=model,
        parameters=row.get("parameters", model.parameters),
        source=row["source"],
        tied=model.tied,
        differs=f"each token uses {row['per_token']} of its {row['experts']} experts",
        details=row.get("details") or _details(name),
        latent=tuple(latent) if latent else None,
    )
