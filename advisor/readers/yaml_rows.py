"""Reads the tables of patterns and names that ship beside the readers, each a YAML file of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Written = str | list[str]  # a pattern, as several strings if one line is too short


@cache
def rows_of_file(name: str) -> Any:
    """Return the content of `name`.yaml as it is written there."""
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def filled(written: Written, parts: Mapping[str, Written]) -> str:
    """Return a pattern as one string, with each part in the place that names it: <<LOSS>>."""
    joined = written if isinstance(written, str) else "".join(written)
    return re.sub(r"<<(\w+)>>", lambda found: filled(parts[found[1]], parts), joined)


@cache
def text_regex(name: str) -> re.Pattern[str]:
    """Return a pattern of `patterns.yaml` that searches text."""
    return re.compile(_pattern(name))


@cache
def regex(name: str) -> re.Pattern[bytes]:
    """Return a pattern of `patterns.yaml` that searches the bytes of a log."""
    return re.compile(_pattern(name).encode())


def _pattern(name: str) -> str:
    rows = rows_of_file("patterns")
    return filled(rows[name]["pattern"], rows["parts"])
