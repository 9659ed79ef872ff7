"""Click parameter types: the units people write, lists of numbers, and paths, judged before any work begins."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.prediction.software import require_software
from advisor.records import Estimate, Workload
from advisor.report import render
from advisor.store.disk import read_yaml
from advisor.units import (
    moment_read,
    parse_bytes,
    parse_deadline,
    parse_percent,
    parse_seconds,
    parse_tokens,
    parse_usd,
)
from advisor.workflows.machines import FILES_OF_MACHINES

MOST_NUMBERS = 1000
MOST_OF_ANYTHING = 10_000_000


class Unit(click.ParamType):
    """A parameter read by one of the parsers of units.py; what it refuses is a usage error with examples.

    `reading` says how a text was read where that is not plain.
    """

    def __init__(self, name: str, parse: Callable[[str], Any], reading: Callable[[str, Any], str | None] | None = None):
        self.name = name
        self._parse = parse
        self._reading = reading

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, already in its unit
        try:
            read = self._parse(value)
        except AdvisorError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)
        if self._reading is not None and (reading := self._reading(value, read)) is not None:
            render.remark(reading)
        return read


def parse_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from "4", "2,4,8" or "2-8" (both ends included), ascending and each once.

    Raises AdvisorError (exit 2) for anything else.
    """
    numbers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 1 <= first <= last or last - first >= MOST_NUMBERS:
            allowed = f"{part!r} is neither a whole number above zero nor a range of at most {MOST_NUMBERS:,} of them"
            raise AdvisorError(allowed, "write it like 4, 2-8 or 2,4,8", exit_code=2)
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


class GpuWords(click.ParamType):
    """A parameter that names GPUs, found by `names`; where they were read as others, a line says so."""

    name = "gpu"

    def __init__(self, names: Callable[[str], list[str]]):
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for name in filter(str.strip, self._names(value)):
            if (reading := read_gpus(name).reading) is not None:
                render.remark(reading)
        return value


GPU = GpuWords(lambda text: [text])
GPUS = GpuWords(lambda text: text.split(","))
OWN_GPUS = GpuWords(lambda text: [] if Path(text).suffix.lower() in FILES_OF_MACHINES else [text])
PRICE = GpuWords(lambda text: [text.rpartition("=")[0]])
SECONDS = Unit("duration", parse_seconds)
DEADLINE = Unit("deadline", lambda text: parse_deadline(text, datetime.now()), moment_read)
USD = Unit("dollars", parse_usd)
TOKENS = Unit("tokens", parse_tokens)
SHARE = Unit("percentage", parse_percent)
BYTES = Unit("bytes", parse_bytes)
SOFTWARE = Unit("name", lambda text: require_software(text).name)
NUMBERS = Unit("numbers", parse_numbers)


class Precision(click.Choice):
    """A precision that the trainer has; of fp8 it is said where it is estimated."""

    def __init__(self) -> None:
        super().__init__(("auto", "bf16", "fp16", "fp32"))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).lower() == "fp8":
            hint = "`advisor predict --precision fp8` estimates what other software takes"
            raise AdvisorError("--precision fp8: the trainer here has no fp8 yet", hint, exit_code=2)
        return super().convert(value, param, ctx)


_NOT_MODELLED = "parallelism that is asked for and not modelled"  # where a command's context keeps it


def parallelism(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of parallelism that is not modelled yet, which say what is predicted instead."""
    for kind, short in (("tensor", "tp"), ("pipeline", "pp"), ("expert", "ep"), ("context", "cp")):
        names = f"--{kind}-parallel", f"--{kind}-parallel-size", f"--{short}"
        click.option(*names, type=SIZE, hidden=True, expose_value=False, callback=_keep_parallelism)(command)
    return command


def _keep_parallelism(context: click.Context, option: click.Parameter, value: int | None) -> None:
    if value is not None and value > 1:
        asked = context.meta.setdefault(_NOT_MODELLED, [])
        asked.append(f"{option.opts[0]} {value}")


def whole_models_only(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of training a part of a model, which say where that is predicted."""

    def refuse(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value:
            hint = "for adapters: advisor predict --gpu rtx-4090 --model llama-3-8b --lora-rank 16 --qlora"
            raise AdvisorError(f"{option.opts[0]}: whole models are planned, not yet a part of one", hint, exit_code=2)

    click.option("--lora-rank", type=SIZE, hidden=True, expose_value=False, callback=refuse)(command)
    click.option("--qlora", is_flag=True, hidden=True, expose_value=False, callback=refuse)(command)
    return command


def sharded_instead(sharding: str | None, most_gpus: int) -> str | None:
    """The sharding to predict where parallelism was asked for that is not modelled; else the one given.

    Says so on stderr. Raises AdvisorError (exit 2) with one GPU.
    """
    asked = click.get_current_context().meta.get(_NOT_MODELLED)
    if not asked:
        return sharding
    if most_gpus == 1:
        raise AdvisorError(f"{asked[0]} needs several GPUs", "say how many: --gpus 8", exit_code=2)
    render.remark(
        f"{' and '.join(asked)}: tensor, pipeline, expert and context parallelism are not modelled yet; what follows "
        "shards the model's state over all GPUs instead (FSDP, --sharding full)"
    )
    return "full"


def say_where_sharding_ends(workload: Workload, mfu: Estimate | None) -> None:
    """Say on stderr what sharding alone comes to, where other parallelism was asked for."""
    if click.get_current_context().meta.get(_NOT_MODELLED):
        from advisor.report.prediction import sharding_alone

        render.remark(sharding_alone(workload, mfu))


class Number(click.FloatRange):
    """A finite number within a range: NaN lies in every range that click knows, and infinity in most."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Whole(click.IntRange):
    """A whole number from some least one on, within what computers count with: more digits are a slip of the hand."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = super().convert(value, param, ctx)
        if number > MOST_OF_ANYTHING:
            self.fail(f"{value} is more than any machine trains.", param, ctx)
        return number


class NamedPath(click.Path):
    """A path that is not empty, as a Path: an empty one, from a variable that was never set, is the folder here."""

    def __init__(self, **checks: Any):
        super().__init__(**checks, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class OwnFile(NamedPath):
    """A YAML file to write; one that is there is replaced only if it is of the same kind, with these fields."""

    def __init__(self, kind: str, *fields: str):
        super().__init__(dir_okay=False, writable=True)
        self.kind, self.fields = kind, set(fields)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if path.is_file() and path.stat().st_size:
            try:
                found = self.fields & read_yaml(path, self.kind).keys()
            except AdvisorError:  # it is no YAML, or no mapping
                found = set()
            if found != self.fields:
                self.fail(f"{path} is there already and is no {self.kind}: name another file.", param, ctx)
        return path


PRECISION = Precision()
SIZE = Whole(1)
LENGTH = Whole(16)  # of a context
VOCABULARY = Whole(2)
# what is read must be there and of its kind; what is written must not be of the other kind (all else is exit code 2)
EXISTING = NamedPath(exists=True)
FILE = NamedPath(exists=True, dir_okay=False)
FOLDER = NamedPath(exists=True, file_okay=False)
NEW_FILE = NamedPath(dir_okay=False, writable=True)
NEW_FOLDER = NamedPath(file_okay=False)
PLAN_FILE = OwnFile("plan", "goal", "run")
ADOPTED_PLAN_FILE = OwnFile("plan of an adopted command", "steps_are_set")
CARD_FILE = OwnFile("card", "claims")
