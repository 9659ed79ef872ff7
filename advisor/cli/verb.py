"""Declares verbs: their options from the tables of `advisor/options.py`, --json, and their answer in both forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from advisor.cli.params import EXISTING, FILE, FOLDER, NEW_FILE, NEW_FOLDER
from advisor.documents import print_json
from advisor.errors import AdvisorError
from advisor.options import OPTIONS, SHARED, Kind, Option, Section, options_of
from advisor.report import render
from advisor.units import moment_of, moment_read

if TYPE_CHECKING:
    from advisor.api import Answer

Command = Callable[..., Any]
Changes = str | Mapping[str, Any]  # another help text, or other fields of an option

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
        return f"[{'|'.join(choices)}]" if choices else None

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
    found = []
    for name in names:
        change = changes.get(name, {})
        found.append(
            dataclasses.replace(
                OPTIONS.get(name) or SHARED[name], **({"help": change} if isinstance(change, str) else change)
            )
        )
    return _with(found)


def option(name: str, kind: Kind, help: str, **settings: Any) -> Callable[[Command], Command]:
    """Give a command an option that no other command has."""
    return _with([Option(name=name, kind=kind, help=help, **settings)])


def options_in(record: type) -> Callable[[Command], Command]:
    """Give a command the options that are fields of a record."""
    return _with(list(options_of(record).values()))


def _with(found: Sequence[Option]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(found):
            flag = f"{option.flag}/--no-{option.name}" if option.kind is Kind.YES_NO else option.flag
            section = option.section or ""
            click.option(flag, *option.also, option.name, cls=SectionedOption, section=section, **_settings(option))(
                command
            )
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
    """A command whose help lists its options by section, those without a section first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_section: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                by_section.setdefault(getattr(param, "section", ""), []).append(record)
        for section in sorted(by_section, key=lambda name: [*Section, ""].index(name)):
            with formatter.section(section or "Options"):
                formatter.write_dl(by_section[section])


def verb(
    name: str | None = None, cls: type[click.Command] = click.Command, **settings: Any
) -> Callable[[Command], click.Command]:
    """Make a function a command that takes --json beside its own options; `json_asked` says whether it was given."""

    def make(command: Command) -> click.Command:
        made = click.command(name, cls=cls, **settings)(command)
        made.params.append(
            click.Option(["--json"], is_flag=True, expose_value=False, callback=_keep, help="Print one JSON document.")
        )
        return made

    return make


def _keep(context: click.Context, option: click.Parameter, value: bool) -> None:
    context.meta[_JSON] = value


def json_asked() -> bool:
    """Tell whether the current command was given --json."""
    return bool(click.get_current_context().meta.get(_JSON))


def answer(name: str, document: Callable[[], Any], shown: Callable[[], Iterable[RenderableType]]) -> None:
    """Print an answer: with --json a JSON document of this name, otherwise text for a person."""
    if json_asked():
        print_json(name, document())
    else:
        render.show(*shown())


def told(found: Answer[Any], shown: Callable[[], Iterable[RenderableType]], **more: Any) -> None:
    """Print the result of a function of the API; `more` are further fields of its JSON document."""
    answer(found.name, lambda: {**found.document, **more}, shown)
