"""Fills the files of `templates/`, scripts and documents for other engines, with a job's own values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from advisor.store.disk import dump_yaml

_FOLDER = Path(__file__).with_name("templates")


def script(file: str, /, **words: object) -> str:
    """Return a script, or section SECTION of a file (`FILE#SECTION`), with each `@word@` replaced."""
    text = _read(file)
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    return text


def document(file: str, /, **fields: Any) -> str:
    """Return a YAML document, named like a script, with each `=field` filled in; a field that is None is left out."""
    return dump_yaml(filled(yaml.safe_load(_read(file)), fields, lambda value: value is None))


def filled(part: Any, fields: Mapping[str, Any], left_out: Callable[[Any], bool]) -> Any:
    """Return a part of a document with each `=field` filled in, without the values that `left_out` rejects.

    A mapping becomes None if its `if` names a field that has no value.
    """
    if isinstance(part, str) and part.startswith("="):
        return fields[part[1:]]
    if isinstance(part, list):
        return [filled(one, fields, left_out) for one in part]
    if not isinstance(part, Mapping):
        return part
    if not filled(part.get("if", True), fields, left_out):
        return None
    found = {key: filled(raw, fields, left_out) for key, raw in part.items() if key != "if"}
    return {key: value for key, value in found.items() if not left_out(value)}


@cache
def _read(file: str) -> str:
    path, _, section = file.partition("#")
    first, *parts = re.split(r"^#: (\w+)\n", (_FOLDER / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))[section].strip("\n") + "\n" if section else first
