"""Converts frozen records to plain dicts and lists, and back. Reports every problem at once. Standard library only."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from enum import Enum
from typing import Any

Record = typing.TypeVar("Record")


class ConfigError(ValueError):
    """Says that a run configuration cannot be used. `problems` names everything that is wrong with it."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("; ".join(problems))


def to_dict(record: Any) -> Any:
    """Turn a configuration dataclass into plain dicts and lists for YAML or JSON."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_dict(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, tuple | list):
        return [to_dict(item) for item in record]
    return record.value if isinstance(record, Enum) else record


def record_from_dict(cls: type[Record], raw: Any, *, pass_over_unknown: bool = False) -> Record:
    """Build a frozen record from the plain dicts of `to_dict`. Raises ConfigError that names every bad field.

    An unknown field is bad, unless it may be ignored because another version may have written the file.
    """
    problems: list[str] = []
    record = build(cls, raw, "", problems, pass_over_unknown)
    if problems or record is None:
        raise ConfigError(problems)
    return record


def build(cls: type, raw: Any, where: str, problems: list[str], tolerant: bool = False) -> Any:
    """Build a dataclass from a dict. Problems are added to `problems`. Returns None if it cannot be built."""
    if not isinstance(raw, dict):
        problems.append(f"{where or 'config'}: expected a mapping, found {type(raw).__name__}")
        return None
    hints = _hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    prefix = f"{where}." if where else ""
    for key in raw:
        if key not in known and not tolerant:
            problems.append(f"{prefix}{key}: unknown setting{close(str(key), tuple(known))}")
    values, before = {}, len(problems)
    for name, spec in known.items():
        if name in raw:
            values[name] = _convert(hints[name], raw[name], prefix + name, problems, tolerant)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            problems.append(f"{prefix}{name}: missing")
    return cls(**values) if len(problems) == before else None


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(hint: Any, value: Any, where: str, problems: list[str], tolerant: bool) -> Any:
    """Check one value against its annotation. Whole floats become ints, ints become floats; nothing else changes."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None:
            return None
        hint = next(a for a in args if a is not type(None))
        return _convert(hint, value, where, problems, tolerant)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            problems.append(f"{where}: expected a list, found {value!r}")
            return ()
        return tuple(_convert(args[0], item, f"{where}[{i}]", problems, tolerant) for i, item in enumerate(value))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, where, problems, tolerant)
    if isinstance(hint, type) and issubclass(hint, Enum):
        allowed = tuple(str(member.value) for member in hint)
        if value in allowed:
            return hint(value)
        problems.append(f"{where}: {value!r} is not one of {', '.join(allowed)}{close(str(value), allowed)}")
        return value
    if isinstance(value, bool) != (hint is bool):
        problems.append(f"{where}: expected {hint.__name__}, found {value!r}")
    elif hint is float and isinstance(value, int | str):
        try:
            return float(value)  # YAML reads 3e-4 as text
        except (ValueError, OverflowError):
            problems.append(f"{where}: expected a number, found {value!r}")
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    elif not isinstance(value, hint):
        problems.append(f"{where}: expected {hint.__name__}, found {value!r}")
    return value


def close(name: str, names: tuple[str, ...]) -> str:
    match = difflib.get_close_matches(str(name), names, n=1)
    return f" (did you mean {match[0]}?)" if match else ""
