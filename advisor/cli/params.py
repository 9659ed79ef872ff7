"""Click parameter types for units as people write them, lists of numbers, and paths; checked before work begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, read_gpus
from advisor.report import render
from advisor.store.disk import read_yaml


class GpuName(click.ParamType):
    """A parameter that names one GPU, or several with commas; a line says how a short name was read."""

    name = "gpu"

    def __init__(self, *, several: bool = False):
        self._several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for name in value.split(",") if self._several else [value]:
            if (reading := read_gpus(name).reading) is not None:
                render.remark(reading)
        return value


GPU, GPUS = GpuName(), GpuName(several=True)


def refused(hint: str, *flags: str, takes_value: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a hidden option that it does not support; the error says which command does."""

    def refuse(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value and str(value) != "1":  # --tensor-parallel 1 does not split anything
            raise AdvisorError(f"`{context.command_path}` has no {option.opts[0]}", hint, exit_code=2)

    return click.option(*flags, hidden=True, expose_value=False, callback=refuse, is_flag=not takes_value)


def refused_parallelism(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the hidden options of parallelism; the error says where layouts are planned and predicted."""
    hint = "the best layout: advisor plan --layout any --model llama-3-70b --gpu h100 --gpus 64; a given one: "
    for kind, short in (("tensor", "tp"), ("pipeline", "pp"), ("expert", "ep"), ("context", "cp")):
        flags = f"--{kind}-parallel", f"--{kind}-parallel-size", f"--{short}"
        refused(f"{hint}advisor predict --{short}", *flags)(command)
    return command


def warn_of_others(keys: Iterable[str]) -> None:
    """Say how reliable the prediction is for each GPU without CUDA."""
    for key in keys:
        spec = load_gpus().get(key)
        if spec is not None and not spec.is_cuda:
            render.remark(
                f"warning: {key} is no CUDA GPU, and the trainer was never run on one of its kind: "
                "the prediction assumes software as fast as on CUDA GPUs"
            )


class NamedPath(click.Path):
    """A path that is not empty, as a Path. An empty path, from an unset variable, would mean the current folder."""

    def __init__(self, **checks: Any):
        super().__init__(**checks, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class OwnFile(NamedPath):
    """A YAML file to write. An existing file is overwritten only if it has these fields, so is of the same kind."""

    def __init__(self, kind: str, *fields: str):
        super().__init__(dir_okay=False, writable=True)
        self.kind, self.fields = kind, set(fields)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        if path.is_file() and path.stat().st_size:
            try:
                found = self.fields & read_yaml(path, self.kind).keys()
            except AdvisorError:  # the file is not YAML, or not a mapping
                found = set()
            if found != self.fields:
                self.fail(f"{path} is there already and is no {self.kind}: name another file.", param, ctx)
        return path


# A path to read must exist and be of its kind; a path to write must not be of the other kind (else exit code 2).
EXISTING = NamedPath(exists=True)
FILE = NamedPath(exists=True, dir_okay=False)
FOLDER = NamedPath(exists=True, file_okay=False)
NEW_FILE = NamedPath(dir_okay=False, writable=True)
NEW_FOLDER = NamedPath(file_okay=False)
PLAN_FILE = OwnFile("plan", "goal", "run")
ADOPTED_PLAN_FILE = OwnFile("plan of an adopted command", "steps_are_set")
CARD_FILE = OwnFile("card", "claims")
