"""Declares commands: their options, most of them from the tables of `advisor/options.py`, --json and their answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from advisor.documents import print_json
from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, read_gpus
from advisor.hardware.software_support import untried
from advisor.options import OPTIONS, SHARED, Kind, Option, Section, options_of
from advisor.report import render
from advisor.store.disk import read_yaml
from advisor.units import moment_of, moment_read

if TYPE_CHECKING:
    from advisor.api import Answer

Command = Callable[..., Any]
Changes = str | Mapping[str, Any]  # another help text, or other fields of an option


class GpuName(click.ParamType):
    """A parameter that names one GPU, or several with commas. A printed line shows how a short name was read."""

    name = "gpu"

    def __init__(self, *, several: bool = False):
        self._several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for name in value.split(",") if self._several else [value]:
            if (reading := read_gpus(name).reading) is not None:
                render.remark(reading)
        return value


GPU, GPUS = GpuName(), GpuName(several=True)


def refused(hint: str, *flags: str, takes_value: bool = True) -> Callable[[Command], Command]:
    """Give a command a hidden option that it does not support; the error says which command does."""

    def refuse(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value and str(value) != "1":  # --tensor-parallel 1 does not split anything
            raise AdvisorError(f"`{context.command_path}` has no {option.opts[0]}", hint, exit_code=2)

    return click.option(*flags, hidden=True, expose_value=False, callback=refuse, is_flag=not takes_value)


def refused_parallelism(command: Command) -> Command:
    """Give a command the hidden options of parallelism; the error says where layouts are planned and predicted."""
    hint = "the best layout: advisor plan --layout any --model llama-3-70b --gpu h100 --gpus 64; a given one: "
    for kind, short in (("tensor", "tp"), ("pipeline", "pp"), ("expert", "ep"), ("context", "cp")):
        flags = f"--{kind}-parallel", f"--{kind}-parallel-size", f"--{short}"
        refused(f"{hint}advisor predict --{short}", *flags)(command)
    return command


def warn_of_others(keys: Iterable[str]) -> None:
    """Say how reliable the prediction is for each GPU without CUDA."""
    for key in keys:
        if (spec := load_gpus().get(key)) and not spec.is_cuda:
            render.remark(f"warning: {untried(spec)}")


class NamedPath(click.Path):
    """A path that is not empty, as a Path. An empty path, from an unset variable, would mean the current folder."""

    def __init__(self, **checks: Any):
        super().__init__(**checks, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value) == "":
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


class OwnFile(NamedPath):
    """A YAML file to write. An existing file is overwritten only if it has these fields."""

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
                self.fail(f"{path} already exists and is no {self.kind}: name another file.", param, ctx)
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

_CLICK_TYPES = {Kind.FOLDER: FOLDER, Kind.FILE: FILE, Kind.NEW_FILE: NEW_FILE, Kind.NEW_FOLDER: NEW_FOLDER,
                Kind.EXISTING: EXISTING, Kind.TEXT: click.STRING}  # fmt: skip
DEADLINE_AT = "advisor.deadline_at"  # key in a command's context: the moment that was typed as its deadline
_JSON = "advisor.json"  # key in a command's context that says whether --json was given


class Typed(click.ParamType):
    """The text of an option of the tables, read as `workflows/goal.read_option` reads it, within its range."""

    def __init__(self, option: Option):
        self.name, self._option = str(option.kind), option

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        choices = self._option.choices
        return f"[{'|'.join(choices)}]" if choices else self._option.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from advisor.planning.goal import check_range
        from advisor.workflows.goal import read_option

        try:
            read = value if not isinstance(value, str) else read_option(self._option, value)
            if self._option.kind is Kind.DEADLINE and (moment := moment_read(value, read)) is not None:
                render.remark(moment)
                if ctx is not None:
                    ctx.meta[DEADLINE_AT] = moment_of(value, read)
            if isinstance(read, int | float):
                check_range(self._option, read)
            return read
        except AdvisorError as error:
            if error.message.startswith("--"):
                raise
            self.fail(f"{error.message}; {error.hint}", param, ctx)


def options(*names: str, **changes: Changes) -> Callable[[Command], Command]:
    """Give a command these options of the tables; `changes` has other help texts or fields for some of them."""
    given = []
    for name in names:
        change = changes.get(name, {})
        fields = {"help": change} if isinstance(change, str) else change
        given.append(dataclasses.replace(OPTIONS.get(name) or SHARED[name], **fields))
    return _with(given)


def option(name: str, kind: Kind, help: str, **settings: Any) -> Callable[[Command], Command]:
    """Give a command an option that no other command has."""
    return _with([Option(name=name, kind=kind, help=help, **settings)])


def options_in(record: type) -> Callable[[Command], Command]:
    """Give a command the options that are fields of a record."""
    return _with(list(options_of(record).values()))


def _with(given: Sequence[Option]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(given):
            flag = f"{option.flag}/--no-{option.name}" if option.kind is Kind.YES_NO else option.flag
            settings = _settings(option) | {"cls": SectionedOption, "section": option.section or ""}
            click.option(flag, *option.also, option.name, **settings)(command)
        return command

    return decorate


def _settings(option: Option) -> dict[str, Any]:
    """Return the settings of the click option that an option of the tables becomes."""
    shown = {"help": option.help}
    if option.kind in (Kind.SWITCH, Kind.YES_NO):
        return shown | {"is_flag": True, "default": option.default}
    if option.several:
        return shown | {"multiple": True, "metavar": option.metavar}
    if (kind := _CLICK_TYPES.get(option.kind)) is not None:
        return shown | {"type": kind, "metavar": option.metavar, "default": option.default}
    stated = option.default is not None
    return shown | {"type": Typed(option), "default": option.default, "show_default": stated}


class SectionedOption(click.Option):
    """An option with a section in its command's help."""

    def __init__(self, *names: Any, section: str = "", **settings: Any):
        super().__init__(*names, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help lists its options by section. Options without a section come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_section: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                by_section.setdefault(getattr(param, "section", ""), []).append(record)
        for section in sorted(by_section, key=lambda name: [*Section, ""].index(name)):
            with formatter.section(section or "Options"):
                formatter.write_dl(by_section[section])


def verb(
    name: str | None = None, cls: type[click.Command] = click.Command, group: click.Group | None = None, **settings: Any
) -> Callable[[Command], click.Command]:
    """Make a function a command with its own options and --json. `json_asked` tells whether --json was given."""

    def make(command: Command) -> click.Command:
        made = click.command(name, cls=cls, **settings)(command)
        made.params.append(
            click.Option(["--json"], is_flag=True, expose_value=False, callback=_store, help="Print one JSON document.")
        )
        if group is not None:
            group.add_command(made)
        return made

    return make


def _store(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.meta[_JSON] = value


def json_asked() -> bool:
    """Tell whether the current command was given --json."""
    return bool(click.get_current_context().meta.get(_JSON))


def answer(name: str, document: Callable[[], Any], shown: Callable[[], str | Iterable[RenderableType]]) -> None:
    """Print an answer: with --json a JSON document of this name, otherwise text for a person, or for another program.

    The latter is one string, which is neither wrapped nor coloured.
    """
    if json_asked():
        print_json(name, document())
    elif isinstance(text := shown(), str):
        click.echo(text)
    else:
        render.show(*text)


def print_answer(found: Answer[Any], shown: Callable[[], Iterable[RenderableType]], **more: Any) -> None:
    """Print the result of a function of the API; `more` are further fields of its JSON document."""
    answer(found.name, lambda: {**found.document, **more}, shown)
