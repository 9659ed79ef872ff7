"""Writes the command line of a goal, so that a terminal gives the same plan as the page."""

from __future__ import annotations

import shlex
from typing import Any

from advisor.options import OPTIONS, Goal, Kind, Option
from advisor.planning.offers import OWN, usual_counts
from advisor.prediction.software import OWN_NAME, table
from advisor.units import write_count, write_duration


def plan_command(goal: Goal, out: str | None = None) -> str:
    """Returns `advisor plan …` for a goal, quoted for a POSIX shell, with numbers that are read back exactly."""
    words = ["advisor", "plan"]
    for option in sorted(OPTIONS.values(), key=lambda option: option.name not in ("gpu", "own", "gpus")):
        value = _value(goal, option)
        if value == option.default or value in (None, ()):
            continue
        if option.kind in (Kind.YES_NO, Kind.SWITCH):
            words.append(option.flag if value or option.kind is Kind.SWITCH else f"--no-{option.name}")
        else:
            for one in value if option.several else (value,):
                words += (option.flag, _written(option, one))
    return shlex.join([*words, "--out", out] if out else words)


def _value(goal: Goal, option: Option) -> Any:
    """Returns the goal's value of an option, or None if other options of the goal determine the value."""
    name = option.name
    if name == "gpu":
        return None if goal.gpu == OWN else goal.gpu
    if name == "gpus":
        counts = goal.counts or (goal.gpus,)
        return None if counts == usual_counts(goal.gpu, goal.own) else ",".join(map(str, counts))
    if name == "own":
        return tuple(f"{machine.gpu}:{machine.gpus}" for machine in goal.own)
    if name == "price":
        alone = () if goal.usd_per_gpu_hour is None else (_number(goal.usd_per_gpu_hour),)
        return (*alone, *(f"{price.gpu}={_number(price.usd_per_gpu_hour)}" for price in goal.prices))
    if name in ("depth", "width", "heads", "kv_heads", "ffn_width") and (goal.model or goal.parameters):
        return None
    if (name == "params" and goal.model) or (name == "tokens" and goal.epochs) or (name == "family" and goal.model):
        return None
    if name == "ratio_counts" and not goal.ratio:
        return None
    if name == "optimizer" and goal.optimizer == table()[goal.software or OWN_NAME].optimizer:
        return None
    return getattr(goal, option.field)


def _written(option: Option, value: Any) -> str:
    if option.kind in (Kind.SECONDS, Kind.DEADLINE):
        return write_duration(value)
    if option.kind is Kind.COUNT and float(value).is_integer():
        return write_count(value)
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
