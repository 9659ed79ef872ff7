"""The configuration of a run from a file: YAML, JSON, TOML, or nanoGPT's `name = value` lines; nothing is executed."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from advisor.errors import AdvisorError
from advisor.readers.bounded import parse_json, read_text
from advisor.readers.config_names import facts_of_settings
from advisor.store.disk import yaml_problem
from trainer.schema import ConfigError, RunConfig, config_from_dict

MOST_BYTES = 4 * 2**20  # of a configuration; what is larger is data
MOST_YAML_BYTES = 2**20  # YAML is read a hundred times slower than JSON
# A few lines of nested YAML aliases can stand for gigabytes; what 24 of them stand for is at most 3**8 times larger.
_MOST_ALIASES = 24
_ALIAS = re.compile(r"(?:^|[\s\[{,:])\*\w", re.MULTILINE)
_GIVE = "give the file that holds the run's settings"
_MEND = "mend that line, or leave the file out"
_MOST_BRACKETS = 20_000  # YAML's time goes with the square of how deep they are nested
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's where it is installed: ten times faster


def read_config(path: Path) -> dict[str, Any]:
    """Facts (see `run_table.FACTS`) that a configuration file states; AdvisorError where it cannot be read as one.

    Known are this program's run.yaml, W&B's config.yaml, Hugging Face's config.json and training arguments, and the
    settings of the usual frameworks by their names.
    """
    raw = read_settings(path)
    facts = facts_of_run(raw)
    return facts if facts is not None else facts_of_settings(raw)


def read_settings(path: Path) -> dict[str, Any]:
    """A configuration file as nested dicts, whatever it is written in; AdvisorError where it is none."""
    text = read_text(path, MOST_BYTES)
    suffix = path.suffix.lower()
    if suffix == ".py":
        raw: Any = _python_settings(text, path)
    elif suffix == ".toml":
        raw = _toml(text, path)
    elif suffix == ".json" or text.lstrip()[:1] == "{":
        raw = parse_json(text, str(path))
    else:
        raw = _yaml(text, path)
    if not isinstance(raw, Mapping):
        raise AdvisorError(f"{path} is no configuration: it holds no names with values", _GIVE)
    return dict(raw)


def facts_of_run(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """Facts of this program's own run configuration; None where it is not one."""
    if not (isinstance(raw.get("model"), Mapping) and "steps" in raw and "micro_batch" in raw):
        return None
    try:
        return facts_of_config(config_from_dict(dict(raw)))
    except ConfigError:
        return None


def facts_of_config(config: RunConfig, world_size: int | None = None) -> dict[str, Any]:
    """Facts of a run configuration; tokens of a step where the number of devices is known."""
    shape, optimizer = config.model, config.optimizer
    facts: dict[str, Any] = {
        "family": shape.family,
        "depth": shape.depth,
        "width": shape.width,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_width": shape.ffn_width,
        "vocab_size": shape.vocab_size,
        "seq_len": shape.seq_len,
        "micro_batch": config.micro_batch,
        "grad_accum": config.grad_accum,
        "activation_checkpointing": config.activation_checkpointing,
        "planned_steps": config.steps,
        "learning_rate": optimizer.learning_rate,
        "min_learning_rate": optimizer.learning_rate * config.schedule.final_fraction,
        "warmup_steps": config.schedule.warmup_steps,
        "schedule": config.schedule.name,
        "weight_decay": optimizer.weight_decay,
        "optimizer": optimizer.name,
        "compile": config.compile,
        "grad_clip": optimizer.grad_clip,
        "checkpoint_every_steps": config.checkpoint.every_steps,
        "checkpoint_every_seconds": config.checkpoint.every_seconds,
        "eval_every_steps": config.eval.every_steps,
        "precision": None if config.precision == "auto" else config.precision,
    }
    if world_size is not None:
        facts |= {"world_size": world_size, "step_tokens": config.tokens_per_step(world_size)}
    return {name: value for name, value in facts.items() if value is not None}


def _yaml(text: str, path: Path) -> Any:
    if len(text) > MOST_YAML_BYTES or text.count("[") + text.count("{") > _MOST_BRACKETS:
        raise AdvisorError(f"{path} is larger than a configuration in YAML is", _GIVE)
    if len(_ALIAS.findall(text)) > _MOST_ALIASES:
        raise AdvisorError(f"{path} has more YAML aliases than a configuration needs", _GIVE)
    try:
        return yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise AdvisorError(f"{path} is not valid YAML: {yaml_problem(error)}", _MEND) from None


def _toml(text: str, path: Path) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise AdvisorError(f"{path} is not valid TOML: {str(error)[:120]}", _MEND) from None


def _python_settings(text: str, path: Path) -> dict[str, Any]:
    """Assignments of constants at the top level, as nanoGPT's configs have them; products of numbers are worked out."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AdvisorError(f"{path} is not valid Python: {str(error)[:120]}", _MEND) from None
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = _constant(node.value)
            if value is not None:
                found[node.targets[0].id] = value
    return found


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | bool):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = _constant(node.left), _constant(node.right)
        if all(isinstance(side, int | float) and abs(side) < 1e15 for side in (left, right)):
            return left * right
    return None
