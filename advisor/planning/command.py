"""Write a goal as a command line and as a call in Python, so that both give the same plan as the page."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from advisor.options import OPTIONS, CalibrationOptions, Goal, Kind, Option, options_of
from advisor.planning.offers import OWN, usual_counts
from advisor.prediction.software import OWN_NAME, table
from advisor.units import write_count, write_duration, write_network


def plan_command(goal: Goal, out: str | None = None) -> str:
    """Return `advisor plan …` for a goal, quoted for a POSIX shell, with numbers that are read back exactly."""
    words = ["advisor", "plan", *_words(_stated(goal))]
    return shlex.join([*words, "--out", out] if out else words)


def calibrate_command(options: CalibrationOptions) -> str:
    """Return `calibrate …` for options, quoted for a POSIX shell. Another machine has no data and no measurements."""
    given = ((option, getattr(options, option.field)) for option in options_of(CalibrationOptions).values())
    stated = [(one, value) for one, value in given if value != one.default and one.name not in ("data", "fresh")]
    return shlex.join(["calibrate", *_words(stated)])


def _words(stated: Iterable[tuple[Option, Any]]) -> Iterator[str]:
    for option, value in stated:
        if option.kind in (Kind.YES_NO, Kind.SWITCH):
            yield option.flag if value or option.kind is Kind.SWITCH else f"--no-{option.name}"
        else:
            for one in value if option.several else (value,):
                yield from (option.flag, _written(option, one))


def plan_call(goal: Goal) -> str:
    """Return `advisor.plan(…)` for a goal, as Python."""
    said: dict[str, Any] = {}
    for option, value in _stated(goal):
        switch = option.kind in (Kind.YES_NO, Kind.SWITCH)
        words = [_written(option, one) for one in value] if option.several else None
        said[option.name] = bool(value) if switch else words or _written(option, value)
    return call("plan", said)


def predict_command(options: Mapping[str, Any]) -> str:
    """Return `advisor predict …` for options of a prediction, quoted for a POSIX shell."""
    words = ["advisor", "predict"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if name == "compile":
            words.append("--compile" if value else "--no-compile")
        elif value is not False:
            words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    return shlex.join(words)


def call(function: str, options: Mapping[str, Any]) -> str:
    """Return a call of one of the API's functions as Python."""
    said = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"import advisor\n\nprint(advisor.{function}({said}))"


def _stated(goal: Goal) -> Iterator[tuple[Option, Any]]:
    """Yield the options that a goal states, with their values: its machines first, no defaults.

    An option whose value follows from other options of the goal is left out.
    """
    follow: set[str] = set()
    if goal.model or goal.parameters:
        follow |= {"depth", "width", "heads", "kv_heads", "ffn_width"}
    for names, settled in (
        (("params", "family"), goal.model),
        (("tokens",), goal.epochs),
        (("vocab_size",), goal.finetune),
        (("ratio_counts",), not goal.ratio),
        (("optimizer",), goal.rl or goal.optimizer == table()[goal.software or OWN_NAME].optimizer),
    ):
        follow |= set(names) if settled else set()
    counts = goal.counts or (goal.gpus,)
    alone = () if goal.usd_per_gpu_hour is None else (_number(goal.usd_per_gpu_hour),)
    written = {
        "gpu": None if goal.gpu == OWN else goal.gpu,
        "gpus": None if counts == usual_counts(goal.gpu, goal.own) else ",".join(map(str, counts)),
        "own": tuple(f"{machine.gpu}:{machine.gpus}" for machine in goal.own),
        "price": (*alone, *(f"{price.gpu}={_number(price.usd_per_gpu_hour)}" for price in goal.prices)),
    }
    if goal.deadline_seconds is not None and goal.deadline_at is not None:
        written["deadline"] = goal.deadline_at
    for option in sorted(OPTIONS.values(), key=lambda option: option.name not in ("gpu", "own", "gpus")):
        value = written[option.name] if option.name in written else getattr(goal, option.field)
        if option.name not in follow and value != option.default and value not in (None, ()):
            yield option, value


def _written(option: Option, value: Any) -> str:
    if option.kind in (Kind.SECONDS, Kind.DEADLINE) and not isinstance(value, str):
        return write_duration(value)
    if option.kind is Kind.NETWORK:
        return write_network(value)
    if option.kind is Kind.NUMBERS and not isinstance(value, str):
        return ",".join(map(str, value))
    if option.kind is Kind.COUNT and float(value).is_integer():
        return write_count(value)
    return value if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
