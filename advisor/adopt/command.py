"""A training command with other values of its knobs, in its arguments and its environment.

A launcher of several training processes (torchrun, accelerate launch, deepspeed, composer) also has a knob. Its options
must precede the program, because the program would read any that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.store.adopted import Knob, Recipe, Setting
from advisor.store.disk import read_json, read_toml, read_yaml

_READERS = {".yaml": read_yaml, ".yml": read_yaml, ".json": read_json, ".toml": read_toml}  # of a configuration file
LAUNCHER = "launcher"  # how a launcher's knob is set
_TORCHRUN = ("--nproc-per-node", "--nproc_per_node")
_ACCELERATE = ("--num_processes", "--num-processes")
_HOSTS = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--world_size")
_PROGRAMS = {
    ("torchrun",): _TORCHRUN, ("torch.distributed.run",): _TORCHRUN, ("torch.distributed.launch",): _TORCHRUN,
    ("accelerate", "launch"): _ACCELERATE, ("accelerate.commands.launch",): _ACCELERATE,
    ("deepspeed",): ("--num_gpus",), ("composer",): ("--nproc", "-n"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A command to start: its arguments, and the variables that are added to the inherited environment."""

    arguments: tuple[str, ...]
    variables: dict[str, str]


def with_values(command: Sequence[str], recipe: Recipe, settings: Iterable[Setting]) -> Ready:
    """Returns the command with knobs set to these values. Raises AdvisorError for a knob that the recipe lacks."""
    arguments, variables = list(command), {}
    for setting in settings:
        knob, value = recipe.knob(setting.name), setting.value
        if knob is None:
            raise AdvisorError(
                f"{recipe.name} has no known knob for {setting.name}", f"name it: --knob {setting.name}=--OPTION"
            )
        text = str(int(value)) if float(value).is_integer() else repr(value)
        if knob.how == "env":
            variables[knob.key] = text
        else:
            arguments = set_argument(arguments, knob, text)
    return Ready(arguments=tuple(arguments), variables=variables)


def for_burst(command: Sequence[str], recipe: Recipe, settings: Iterable[Setting]) -> Ready:
    """Returns the command for a burst: with the recipe's own arguments, and without saving and evaluating."""
    ready = with_values(command, recipe, settings)
    arguments = [*ready.arguments, *recipe.burst_args]
    for knob in recipe.knobs:
        if knob.in_bursts is not None:
            arguments = set_argument(arguments, knob, knob.in_bursts)
    return Ready(arguments=tuple(arguments), variables=ready.variables)


def set_argument(arguments: Sequence[str], knob: Knob, text: str) -> list[str]:
    """Returns the arguments with one option set: replaced if present, otherwise appended."""
    if knob.how == LAUNCHER:
        launcher = launcher_of(arguments)
        assert launcher is not None  # the knob is a launcher's
        own = list(arguments[launcher.first : launcher.end])
        given = [option for option in launcher.options if value_of(own, option) is not None]
        own = set_argument(own, given[0], text) if given else [launcher.options[0].key, text, *own]
        return [*arguments[: launcher.first], *own, *arguments[launcher.end :]]
    out, places = list(arguments), list(_places(arguments, knob))
    apart, joined = [knob.key, text], [f"{knob.key}={text}"]
    for place, count in reversed(places):
        out[place : place + count] = apart if count == 2 else joined
    return out if places else [*out, *(apart if knob.how == "option" else joined)]


def _places(arguments: Sequence[str], knob: Knob) -> Iterator[tuple[int, int]]:
    """Yields where an option stands, and its number of words: 2 if its value is the next word."""
    for place, word in enumerate(arguments):
        if word == knob.key and knob.how == "option":
            yield place, 2
        elif word.startswith(f"{knob.key}="):
            yield place, 1


def value_of(arguments: Sequence[str], knob: Knob) -> str | None:
    """Returns the value of an option in the arguments, or None if it is not given."""
    if knob.how == LAUNCHER:
        launcher = launcher_of(arguments)
        own = arguments[launcher.first : launcher.end] if launcher is not None else ()
        values = (value_of(own, option) for option in launcher.options) if launcher is not None else ()
        return next((text for text in values if text is not None), None)
    found = None
    for place, count in _places(arguments, knob):
        if count == 1:
            found = arguments[place].removeprefix(f"{knob.key}=")
        elif place + 1 < len(arguments):
            found = arguments[place + 1]
    return found


def number_of(arguments: Sequence[str], recipe: Recipe, knob: Knob) -> float | None:
    """Returns the number that the command sets a knob to, in its arguments or configuration file, or None."""
    text: Any = value_of(arguments, knob)
    if text is None and knob.in_file is not None:
        # The value under these keys in the command's configuration file; None if there is no file or value.
        if recipe.config_option is not None:
            named = value_of(arguments, Knob(name="config", key=recipe.config_option))
        else:
            named = next((word for word in arguments[1:] if Path(word).suffix in _READERS), None)
        if named and Path(named).exists():
            text = _READERS.get(Path(named).suffix, read_yaml)(Path(named), "configuration")
            for name in knob.in_file.split("."):
                text = text.get(name) if isinstance(text, dict) else None
    try:
        return float(str(text).replace("_", "")) if text is not None else None
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The launcher in a command."""

    first: int  # the place of the first word after it
    end: int  # the place of the program's first word: a script, or the option before a module
    options: tuple[Knob, ...]  # its option for processes, under each of its names, the usual one first


def launcher_of(command: Sequence[str]) -> Launcher | None:
    """Returns the launcher of a command's processes, or None if the command has none."""
    words = [Path(word).name if "/" in word else word for word in command]
    for place in range(len(words)):
        if words[place].endswith(".py"):
            return None  # words after a program are the program's arguments
        for program, names in _PROGRAMS.items():
            if tuple(words[place : place + len(program)]) == program:
                first = place + len(program)
                starts = (i for i, word in enumerate(command) if word.endswith(".py") or word in ("-m", "--module"))
                end = next((i for i in starts if i >= first), len(command))
                return Launcher(first=first, end=end, options=tuple(Knob(name="gpus", key=name) for name in names))
    return None


def launcher_knob(command: Sequence[str]) -> Knob | None:
    """Returns the knob for the launcher's process count, or None if there is no launcher or more than one host."""
    if (launcher := launcher_of(command)) is None:
        return None
    own = command[launcher.first : launcher.end]
    if any(value_of(own, Knob(name="hosts", key=name)) not in (None, "1") for name in _HOSTS):
        return None
    given = [(option.key, text) for option in launcher.options if (text := value_of(own, option)) is not None]
    key, text = given[0] if given else (launcher.options[0].key, "")
    return Knob(name="gpus", key=key, how=LAUNCHER, value=float(text) if text.isdigit() else None)
