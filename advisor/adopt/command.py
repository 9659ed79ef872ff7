"""A training command with other values of its knobs: in its arguments, its environment, its configuration file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.adopt.launcher import LAUNCHER, processes_of, with_processes
from advisor.errors import AdvisorError
from advisor.store.adopted import Knob, Recipe, Setting
from advisor.store.disk import dump_yaml, read_json, read_toml, read_yaml, write_atomic

_CONFIGS = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A command to start: its arguments, and what its environment holds beside what is inherited."""

    arguments: tuple[str, ...]
    variables: dict[str, str]


def with_values(command: Sequence[str], recipe: Recipe, settings: Iterable[Setting], scratch: Path) -> Ready:
    """The command with knobs set to these values.

    A knob of a configuration file is set in a copy of it under `scratch`. Raises AdvisorError for a knob that the
    recipe does not have, or a configuration file that is not there.
    """
    arguments, variables, of_file = list(command), {}, []
    for setting in settings:
        knob = recipe.knob(setting.name)
        if knob is None:
            raise AdvisorError(
                f"{recipe.name} has no known knob for {setting.name}", f"name it: --knob {setting.name}=--OPTION"
            )
        if knob.how == "env":
            variables[knob.key] = written(setting.value)
        elif knob.how == "file":
            of_file.append((knob.key, setting.value))
        else:
            arguments = set_argument(arguments, knob, written(setting.value))
    if of_file:
        path = config_of(arguments, recipe)
        if path is None:
            hint = "name the file in the command, or options: --knob NAME=--OPTION"
            raise AdvisorError(f"{recipe.name} is set by a configuration file, and the command names none", hint)
        if path.suffix == ".toml":
            raise AdvisorError(
                f"{path} is TOML, of which no changed copy can be written", "name options: --knob NAME=--OPTION"
            )
        raw = _read(path)
        for key, value in of_file:
            *folders, last = key.split(".")
            part = raw
            for name in folders:
                part = part.setdefault(name, {})
            part[last] = int(value) if float(value).is_integer() else value
        copy = scratch / path.name
        write_atomic(copy, json.dumps(raw, indent=1) if path.suffix == ".json" else dump_yaml(raw))
        arguments = [str(copy) if word == str(path) else word.replace(f"={path}", f"={copy}") for word in arguments]
    return Ready(arguments=tuple(arguments), variables=variables)


def for_burst(command: Sequence[str], recipe: Recipe, settings: Iterable[Setting], scratch: Path) -> Ready:
    """The command as a burst runs it: with the recipe's own arguments, and without saving and evaluating."""
    ready = with_values(command, recipe, settings, scratch)
    arguments = [*ready.arguments, *recipe.burst_args]
    for knob in recipe.knobs:
        if knob.in_bursts is not None and knob.how != "file":
            arguments = set_argument(arguments, knob, knob.in_bursts)
    return replace(
        ready, arguments=tuple(arguments), variables={v.name: v.value for v in recipe.burst_env} | ready.variables
    )


def written(value: float) -> str:
    """A value as an argument: whole numbers without a point."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def set_argument(arguments: Sequence[str], knob: Knob, text: str) -> list[str]:
    """The arguments with one option set: replaced where it stands, at the end where it does not."""
    if knob.how == LAUNCHER:
        return with_processes(arguments, text)
    if knob.inside is not None:
        given = value_of(arguments, knob) or "{}"
        try:
            raw = json.loads(given)
        except ValueError as error:
            raise AdvisorError(
                f"{given!r} is not the JSON object that this option takes", "mend it in the command: '{\"name\": 1}'"
            ) from error
        text = json.dumps({**raw, knob.inside: json.loads(text)})
    mark = _mark(knob)
    out, found, skip = [], False, False
    for place, word in enumerate(arguments):
        if skip:
            skip = False
            continue
        if word == knob.key and knob.how == "option" and not knob.flag:
            out += [word, text]
            skip, found = place + 1 < len(arguments), True
        elif word.startswith(mark) and not knob.flag:
            out.append(f"{mark}{text}")
            found = True
        else:
            out.append(word)
    if found or (knob.flag and knob.key in arguments):
        return out
    if knob.flag:
        return [*out, knob.key]
    return [*out, knob.key, text] if knob.how == "option" else [*out, f"{mark}{text}"]


def value_of(arguments: Sequence[str], knob: Knob) -> str | None:
    """What an option is set to in the arguments; None: it is not given there."""
    if knob.how == LAUNCHER:
        return processes_of(arguments)
    mark, found = _mark(knob), None
    for place, word in enumerate(arguments):
        if word == knob.key and knob.how == "option" and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif word.startswith(mark):
            found = word.removeprefix(mark)
    return found


def number_of(arguments: Sequence[str], recipe: Recipe, knob: Knob) -> float | None:
    """The number that the command itself sets a knob to, in its arguments or its configuration file; None: none."""
    text = value_of(arguments, knob) if knob.how != "file" else None
    if text is not None and knob.inside is not None:
        text = json.loads(text).get(knob.inside)
    keys = knob.key if knob.how == "file" else knob.in_file
    if text is None and keys is not None:
        # What the command's configuration file has under these keys; None: no file, or nothing.
        path = config_of(arguments, recipe)
        raw: Any = _read(path) if path is not None and path.exists() else {}
        for name in keys.split("."):
            raw = raw.get(name) if isinstance(raw, dict) else None
        text = raw
    try:
        return float(str(text).replace("_", "")) if text is not None else None
    except ValueError:
        return None


def config_of(arguments: Sequence[str], recipe: Recipe) -> Path | None:
    """The configuration file of a command; None: it names none."""
    if recipe.config_option is not None:
        named = value_of(arguments, Knob(name="config", key=recipe.config_option))
        return Path(named) if named else None
    return next((Path(word) for word in arguments[1:] if Path(word).suffix in _CONFIGS), None)


def _mark(knob: Knob) -> str:
    return f"{knob.key}="


def _read(path: Path) -> dict[str, Any]:
    readers = {".json": read_json, ".toml": read_toml}
    return readers.get(path.suffix, read_yaml)(path, "configuration")
