"""Maps the names of settings in configurations of many frameworks to the facts of `columns.yaml`."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from advisor.errors import AdvisorError
from advisor.readers.cells import number_with_unit
from advisor.readers.chunks import as_number, parse_json, read_text
from advisor.readers.names import MAX_NAME
from advisor.readers.yaml_rows import rows_of_file
from advisor.store.disk import yaml_problem
from trainer.schema import ConfigError, RunConfig, config_from_dict

_PRECISIONS = (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16", "float16", "half")), ("fp8", ("fp8", "float8")),
               ("fp32", ("fp32", "float32", "32", "no", "full")))  # fmt: skip
_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12, "million": 1e6, "billion": 1e9, "thousand": 1e3, "trillion": 1e12}
_MOST_SETTINGS = 20_000
_DEEPEST = 8
# in a model's own config (transformers), these are limits of the model or of generation, not values used in training
_MODEL_LIMITS = ("seq_length", "n_positions", "n_ctx", "max_length", "model_max_length", "max_seq_len")
TOKENS_IN_A_STEP = 16_384  # a "total batch size" this large is in tokens: no step has so many sequences


def facts_of_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of any known framework's configuration, nested or flat. Unknown settings are skipped.

    If two names of one fact differ, the surer name wins, then the less nested one. If equals differ, none is used.
    """
    found: dict[str, list[tuple[int, int, Any]]] = {}
    flat = dict(_flatten(raw))
    of_model = any(path[-1] in ("architectures", "transformers_version") for path in flat)
    for path, value in flat.items():
        named = name_of(path)
        if named is None or (of_model and path[-1] in _MODEL_LIMITS):
            continue
        fact, kind, rank = named
        read = value_of(kind, value)
        if read is not None:
            found.setdefault(fact, []).append((rank, len(path), read))
    facts = {}
    for fact, values in found.items():
        values.sort(key=lambda one: one[:2])
        best = [value for rank, depth, value in values if (rank, depth) == values[0][:2]]
        if all(value == best[0] for value in best):
            facts[fact] = best[0]
    return _settled(facts, {path[-1]: value for path, value in flat.items()})


@cache
def _facts_by_name() -> dict[str, tuple[str, str, int]]:
    return {
        name: (row["fact"], row["kind"], rank)
        for row in rows_of_file("names")["settings"]
        for rank, name in enumerate(row["names"])
    }


def name_of(path: tuple[str, ...]) -> tuple[str, str, int] | None:
    """Return the fact, its kind and a rank for how surely the last words of a setting's path name it."""
    *outer, last = (plain_name(part) for part in path)
    if outer and (found := _facts_by_name().get(f"{outer[-1]}_{last}")):
        return found
    blocks = re.compile(rf"(?:{rows_of_file('names')['other_blocks']})(?:_.*)?")
    return None if any(blocks.fullmatch(part) for part in outer) else _facts_by_name().get(last)


def plain_name(name: str) -> str:
    """Return a name in the table's form: "Embedding dim" → "embedding_dim"."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:MAX_NAME]).lower()).strip("_")


def value_of(kind: str, value: Any) -> Any:
    """Return a setting's value as its fact needs it; None if it is not set or is of another kind."""
    if value is None or isinstance(value, list | tuple | dict):
        return None
    if kind == "flag":
        return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())
    if isinstance(value, bool):
        return None
    if kind in ("word", "text"):
        text = str(value).strip()[:80]
        if kind == "word":
            return text.lower() if text[:1].isalpha() else None
        return text if text and as_number(text) is None else None
    if kind == "precision":
        lower = str(value).lower()  # "bf16-mixed", "torch.float16", "amp_bf16"
        return next((name for name, words in _PRECISIONS if any(word in lower for word in words)), None)
    number = _number(value)
    if number is None or (kind in ("count", "positive") and number <= 0) or number < 0:
        return None
    if kind in ("count", "count0"):
        return int(number) if number == int(number) else None
    return number


def _number(value: Any) -> float | None:
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None  # an integer may be larger than any float
    found = number_with_unit(str(value)[:64])
    if found is None or not math.isfinite(found[0]):
        return None
    return round(found[0] * _SUFFIXES.get(found[1].lower(), 1), 9)


def _flatten(raw: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all settings with their paths. W&B's {desc, value} and dotted names count as nesting."""
    if len(path) >= _DEEPEST:
        return
    for number, (key, value) in enumerate(raw.items()):
        if number > _MOST_SETTINGS:
            return
        here = (*path, *(str(key).split(".") if "." in str(key) else (str(key),)))
        if isinstance(value, Mapping):
            if set(value) <= {"desc", "value"} and "value" in value:
                inner = value["value"]
                yield from _flatten(inner, here) if isinstance(inner, Mapping) else ((here, inner),)
            else:
                yield from _flatten(value, here)
        else:
            yield here, value


def _settled(facts: dict[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Add what only several settings state: precision flags, warm-up as a share, disabled intervals."""
    if "precision" not in facts:
        for flag, name in (("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8")):
            if flat.get(flag) is True:
                facts["precision"] = name
    if flat.get("bf16") is False and flat.get("fp16") is False and "torch_dtype" not in flat:
        facts.setdefault("precision", "fp32")
    if "step_tokens" in facts and "tokens_per_step" not in flat and facts["step_tokens"] < TOKENS_IN_A_STEP:
        facts.setdefault("step_samples", facts.pop("step_tokens"))
    ratio = _number(flat.get("warmup_ratio")) if flat.get("warmup_ratio") is not None else None
    if ratio and ratio < 1 and not facts.get("warmup_steps") and facts.get("planned_steps"):
        facts["warmup_steps"] = math.ceil(ratio * facts["planned_steps"])  # transformers rounds up
    if flat.get("save_strategy", "steps") != "steps":
        facts.pop("checkpoint_every_steps", None)
    if (flat.get("eval_strategy") or flat.get("evaluation_strategy") or "steps") != "steps":
        facts.pop("eval_every_steps", None)
    if "schedule" not in facts and isinstance(flat.get("decay_lr"), bool):  # nanoGPT has only these two
        facts["schedule"] = "cosine" if flat["decay_lr"] else "constant"
    return facts


# A run's configuration from a file: YAML, JSON, TOML, or nanoGPT's `name = value` lines. Nothing is executed.

MOST_BYTES = 4 * 2**20  # a larger configuration is data
MOST_YAML_BYTES = 2**20  # YAML is read a hundred times more slowly than JSON
# A few lines of nested YAML aliases can stand for gigabytes; what 24 aliases stand for is at most 3**8 times larger.
_MOST_ALIASES = 24
_ALIAS = re.compile(r"(?:^|[\s\[{,:])\*\w", re.MULTILINE)
_ASSIGNED = re.compile(r"^(\w+) *= *[\"']?([\w.+-]+)[\"']? *(?:#.*)?$", re.MULTILINE)  # Python, as in nanoGPT
_GIVE = "give the file that holds the run's settings"
_MEND = "mend that line, or leave the file out"
_MOST_BRACKETS = 20_000  # YAML's parsing time grows with the square of their nesting depth
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times faster


def read_config(path: Path) -> dict[str, Any]:
    """Return the facts (see `columns.yaml`) in a configuration file. Raises AdvisorError if it cannot be read as one.

    Known are this program's run.yaml, W&B's config.yaml, Hugging Face's config.json and training arguments, and
    settings of common frameworks by their names.
    """
    raw = read_settings(path)
    facts = facts_of_run(raw)
    return facts if facts is not None else facts_of_settings(raw)


def read_settings(path: Path) -> dict[str, Any]:
    """Return a configuration file of any format as nested dicts. Raises AdvisorError if it is not one."""
    text, suffix = read_text(path, MOST_BYTES), path.suffix.lower()
    if suffix == ".py":
        raw: Any = dict(_ASSIGNED.findall(text))  # only constants are assigned
    elif suffix == ".json" or (text.lstrip()[:1] == "{" and suffix != ".toml"):
        raw = parse_json(text, str(path))
    elif suffix != ".toml" and (len(text) > MOST_YAML_BYTES or text.count("[") + text.count("{") > _MOST_BRACKETS):
        raise AdvisorError(f"{path} is larger than a configuration in YAML is", _GIVE)
    elif suffix != ".toml" and len(_ALIAS.findall(text)) > _MOST_ALIASES:
        raise AdvisorError(f"{path} has more YAML aliases than a configuration needs", _GIVE)
    else:
        try:
            raw = tomllib.loads(text) if suffix == ".toml" else yaml.load(text, Loader=_LOADER)
        except yaml.YAMLError as error:
            raise AdvisorError(f"{path} is not valid YAML: {yaml_problem(error)}", _MEND) from None
        except (ValueError, RecursionError) as error:  # tomllib's error is a ValueError
            what = "TOML" if suffix == ".toml" else "YAML"
            raise AdvisorError(f"{path} is not valid {what}: {str(error)[:120]}", _MEND) from None
    if not isinstance(raw, Mapping):
        raise AdvisorError(f"{path} is no configuration: it holds no names with values", _GIVE)
    return dict(raw)


def facts_of_run(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return facts of this program's own run configuration; None if it is not one."""
    if not (isinstance(raw.get("model"), Mapping) and "steps" in raw and "micro_batch" in raw):
        return None
    try:
        return facts_of_config(config_from_dict(dict(raw)))
    except ConfigError:
        return None


def facts_of_config(config: RunConfig, world_size: int | None = None) -> dict[str, Any]:
    """Return facts of a run configuration, and the tokens per step if the number of devices is known."""
    shape, optimizer = config.model, config.optimizer
    sizes = ("family", "depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")
    own = ("micro_batch", "grad_accum", "activation_checkpointing", "compile")
    facts: dict[str, Any] = {
        **{name: getattr(shape, name) for name in sizes},
        **{name: getattr(config, name) for name in own},
        "planned_steps": config.steps,
        "learning_rate": optimizer.learning_rate,
        "min_learning_rate": optimizer.learning_rate * config.schedule.final_fraction,
        "warmup_steps": config.schedule.warmup_steps,
        "schedule": config.schedule.name,
        "weight_decay": optimizer.weight_decay,
        "optimizer": optimizer.name,
        "grad_clip": optimizer.grad_clip,
        "checkpoint_every_steps": config.checkpoint.every_steps,
        "checkpoint_every_seconds": config.checkpoint.every_seconds,
        "eval_every_steps": config.eval.every_steps,
        "precision": None if config.precision == "auto" else config.precision,
    }
    if world_size is not None:
        facts |= {"world_size": world_size, "step_tokens": config.tokens_per_step(world_size)}
    return {name: value for name, value in facts.items() if value is not None}
