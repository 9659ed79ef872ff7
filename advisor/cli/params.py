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
from advisor.units import parse_bytes, parse_deadline, parse_percent, parse_seconds, parse_tokens, parse_usd

MOST_NUMBERS = 1000
MOST_OF_ANYTHING = 10_000_000


class Unit(click.ParamType):
    """A parameter read by one of the parsers of units.py; what it refuses is a usage error with examples."""

    def __init__(self, name: str, parse: Callable[[str], Any]):
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, already in its unit
        try:
            return self._parse(value)
        except AdvisorError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from "4", "2,4,8" or "2-8" (both ends included), ascending and each once.

    Raises AdvisorError (exit 2) for anything else.
    """
    numbers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 1 <= first <= last or last - first >= MOST_NUMBERS:
            raise AdvisorError(f"{text!r} is not a list of whole numbers", "write it like 4, 2-8 or 2,4,8", exit_code=2)
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


SECONDS = Unit("duration", parse_seconds)
DEADLINE = Unit("deadline", lambda text: parse_deadline(text, datetime.now()))
USD = Unit("dollars", parse_usd)
TOKENS = Unit("tokens", parse_tokens)
SHARE = Unit("percentage", parse_percent)
BYTES = Unit("bytes", parse_bytes)
NUMBERS = Unit("numbers", parse_numbers)


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


SIZE = Whole(1)
LENGTH = Whole(16)  # of a context
VOCABULARY = Whole(2)
# what is read must be there and of its kind; what is written must not be of the other kind (all else is exit code 2)
EXISTING = NamedPath(exists=True)
FILE = NamedPath(exists=True, dir_okay=False)
FOLDER = NamedPath(exists=True, file_okay=False)
NEW_FILE = NamedPath(dir_okay=False, writable=True)
NEW_FOLDER = NamedPath(file_okay=False)
