r"""Declares a line format: which lines are records, what their numbers mean, and which lines state facts.

A record's pattern names what it finds. A group has the name of a column in `columns.yaml`, plus the printed unit after
two underscores if it is not the column's own: `(?P<seconds__ms>[\d.]+)ms`, `(?P<mfu__percent>[-\d.]+)%`. Several groups
of one column add up (`elapsed_seconds__h`, `elapsed_seconds__min`, `elapsed_seconds__s`). `unix_seconds__year`,
`__month`, `__day`, `__h`, `__min`, `__s` form a time stamp, read as UTC. A group `X__unit` beside a group `X` finds the
unit as text ("GiB", "K"). The names in `HIDDEN` are also allowed: values that records repeat but that are not columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from advisor.readers.names import BYTES, DECIMAL, PART, column_of
from advisor.readers.run_table import names_of

# Parts of patterns; a number may have thousands separators. They are possessive, so that a damaged log with thousands
# of digits in a row is not tried in every division.
NUMBER = rb"[-+]?(?:\d++(?:,\d{3})*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
LOSS = rb"(?:" + NUMBER + rb"|-nan\(ind\)|[-+]?(?:[nN]a[nN]|[iI]nf(?:inity)?))"

# MORE completes the record before it; SETS describes the records after it that do not describe themselves
TRAIN, EVAL, MORE, SETS = 0, 1, 2, 3

# values that records repeat: the first three become facts; a rate of one device becomes the total if the number of
# devices is known
HIDDEN = (*("planned_steps", "planned_epochs", "step_tokens", "device_tokens_per_second", "device_flops"),)

# what programs for RL post-training print of a step by names of their own; such a row says `by_name`
OF_ROLLOUTS = (
    *("seconds", "generation_seconds", "reward_seconds", "log_prob_seconds", "reference_seconds", "update_seconds"),
    *("critic_seconds", "sync_seconds", "waiting_seconds", "eval_seconds", "checkpoint_seconds", "prompt_tokens"),
    *("response_tokens", "response_longest", "response_cut", "reward", "reward_std", "entropy", "kl"),
    *("ratio_clipped", "grad_norm", "learning_rate"),
)

# unit of a group or in the log → (multiply by, divide by); dividing keeps 13651.72 ms exactly at 13.65172 s
UNITS: dict[str, tuple[float, float]] = {
    "s": (1, 1),
    "sec": (1, 1),
    "ms": (1, 1e3),
    "us": (1, 1e6),
    "µs": (1, 1e6),
    "ns": (1, 1e9),
    "min": (60, 1),
    "m": (60, 1),
    "h": (3600, 1),
    "d": (86400, 1),
    "percent": (1, 100),
    "%": (1, 100),
    **{unit: (BYTES[unit.lower()], 1) for unit in ("B", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")},
    **{unit.upper(): (BYTES[unit], 1) for unit in DECIMAL},
    "k": (1e3, 1),
    "K": (1e3, 1),
    "thousand": (1e3, 1),
    "million": (1e6, 1),
    "billion": (1e9, 1),
    "M_": (1e6, 1),  # as groups: counts in millions and billions, whose letters have other meanings elsewhere
    "B_": (1e9, 1),
    "tera": (1e12, 1),
}
COUNT_SUFFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}  # for parameters, tokens, rates
DATE_PARTS = ("year", "month", "day", "h", "min", "s")
INVERSE = "inverse"  # printed as iterations per second


@dataclass(frozen=True, kw_only=True)
class Found:
    """One number of a line: its target (a group name) and where its text stands."""

    target: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One kind of record. `Row` and `Pairs` declare one; a log that teaches its own format has other kinds."""

    kind: int = TRAIN
    needs: bytes = b""  # a line without this text is not such a record
    missing: Mapping[str, float] = field(default_factory=dict)  # column → converted value that means "not collected"
    comma: bytes = b""  # what a comma inside a number means: b"" separates thousands, b"." decimals, b" " numbers
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts that follow from the presence of such a record
    phase: str = ""  # phase of these records, if the format prints each phase differently
    step: str = ""  # for records without a step: "previous" or "next" takes that record's step; "bar": it is a bar's
    weight: float = 1.0  # as evidence for the format; below 1 if other formats may print the same

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the groups of its records; none for a rule learnt from a log, because its lines differ."""
        return ()

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Return where a line's numbers stand and where the record ends; None if the line is not such a record."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Row(Rule):
    """A record as one regular expression, matched from the beginning of the line, not necessarily to its end."""

    pattern: bytes

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        compiled = re.compile(self.pattern)
        for name in compiled.groupindex:
            check_target(name)
        return compiled

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.compiled.groupindex)

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        if self.needs not in line or (match := self.compiled.match(line)) is None:
            return None
        found = [
            Found(target=name, start=match.start(name), end=match.end(name))
            for name in match.re.groupindex
            if match.start(name) >= 0
        ]
        return found, match.end()


@dataclass(frozen=True, kw_only=True)
class Pairs(Rule):
    r"""A record of key and value pairs in any order.

    `start` is matched at the beginning of the line and may have its own groups. Each later match of `pair` gives a
    `key` and a `value` group. `keys` maps keys (`normal` of their text) to targets; other keys are not read. A line is
    a record if it has at least one of the `required` keys (any key, if empty) and none of the `forbidden` ones.
    With `by_name`, other keys are read by the table of names, if they mean a column of `OF_ROLLOUTS`.
    """

    start: bytes
    pair: bytes
    keys: Mapping[str, str]
    required: tuple[str, ...]  # targets; any one of them is enough
    forbidden: tuple[str, ...] = ()  # keys that only another kind of record has
    by_name: bool = False

    @cached_property
    def compiled(self) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
        for target in self.keys.values():
            check_target(target)
        return re.compile(self.start), re.compile(self.pair)

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.compiled[0].groupindex, *self.keys.values(), *(OF_ROLLOUTS if self.by_name else ()))

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        if self.needs not in line:
            return None
        start, pair = self.compiled
        if (head := start.match(line)) is None:
            return None
        found = {
            name: Found(target=name, start=head.start(name), end=head.end(name))
            for name in start.groupindex
            if head.start(name) >= 0
        }
        end, begun = head.end(), len(found)
        for match in pair.finditer(line, end):
            key = normal(match["key"])
            if key in self.forbidden:
                return None
            target = self.keys.get(key) or (_named_target(key) if self.by_name else None)
            if target is not None and target not in found:  # if a key is printed twice, the first belongs to the record
                found[target] = Found(target=target, start=match.start("value"), end=match.end("value"))
            end = match.end()
        enough = any(name in found for name in self.required) if self.required else len(found) > begun
        return (list(found.values()), end) if enough else None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts in lines that are not records. Groups are named after `columns.yaml`, with units as in records.

    The first occurrence of a fact counts, or the last if `last` is set; `constants` are facts that any match implies.
    """

    pattern: bytes  # searched in text of many lines; the pattern must set (?m) and anchors
    needs: bytes = b""
    last: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        compiled = re.compile(self.pattern)
        for name in compiled.groupindex:
            base = name.partition("__")[0]
            assert base in names_of("facts"), f"{name} is not a fact"
        assert set(self.constants) <= set(names_of("facts")), self.constants
        return compiled


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A line with a meaning only in this format: the event's kind and its numbers (by group name).

    The groups `name` and `value` form one number under the name in the line; a `percent` group after them makes it a
    share.
    """

    pattern: bytes
    kind: str
    needs: bytes = b""

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        return re.compile(self.pattern)


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A text that indicates a format even if no record was printed; `weight` 0…1 says how surely."""

    pattern: bytes
    weight: float
    path: bool = False  # also searched in the file's name and folders

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        return re.compile(self.pattern)


@dataclass(frozen=True, kw_only=True)
class LineFormat:
    """One declared log format of line records."""

    name: str
    framework: str | None
    rows: tuple[Rule, ...]
    facts: tuple[Facts, ...] = ()
    marks: tuple[Mark, ...] = ()
    signs: tuple[Sign, ...] = ()
    weight: float = 1.0  # weight of its records as evidence; below 1 if others may print the same
    constants: Mapping[str, Any] = field(default_factory=dict)  # facts that the format itself implies
    notes: Mapping[str, str] = field(default_factory=dict)  # column → what the reader has to know about it
    refuse: bytes = b""  # text of another format whose records look the same
    finish: Callable[[Any], Any] | None = None  # a last change to the assembled RunTable
    steps_by_bar: bool = False  # rows print no step; bars, epochs and the end imply it
    learnt: bool = False  # learnt from the log, whose banner is then searched for names of settings


def check_target(name: str) -> None:
    """Raise ValueError unless a group names a column with a known unit: a misspelt one would be read but never seen."""
    base, _, unit = name.partition("__")
    if base not in names_of("columns") and base not in HIDDEN:
        raise ValueError(f"{name} is not a column")
    if not (unit in UNITS or unit in ("", "unit", INVERSE) or (base == "unix_seconds" and unit in DATE_PARTS)):
        raise ValueError(f"{name} has no known unit")


@cache
def _named_target(key: str) -> str | None:
    """Return the column of `OF_ROLLOUTS` that a key means by the table of names."""
    named = column_of(key)
    known = named is not None and named.unit is None and named.rank < PART
    return named.column if named is not None and known and named.column in OF_ROLLOUTS else None


def normal(key: bytes) -> str:
    """Return a key as dictionaries hold it: lower case, with spaces, underscores and hyphens as one space."""
    return " ".join(key.decode("utf-8", "replace").lower().replace("_", " ").replace("-", " ").split()).strip("\"'")


def unit_factor(text: str, column: str) -> tuple[float, float]:
    """Return a printed unit's factor and divisor; a letter after a count means thousands, millions and so on."""
    if text in UNITS and not (text in COUNT_SUFFIXES and column in ("tokens", "tokens_per_second")):
        return UNITS[text]
    return COUNT_SUFFIXES.get(text.strip(), 1.0), 1.0


def provenance(rows: Sequence[Rule], notes: Mapping[str, str]) -> dict[str, str]:
    """Return in words how each column that the rows can give was printed, plus the format's own notes."""
    told: dict[str, str] = {}
    for row in rows:
        for name in row.targets:
            column, _, unit = name.partition("__")
            words = "as printed"
            if column == "unix_seconds":
                words = "time stamp, read as UTC"
            elif unit == INVERSE:
                words = "printed per second"
            elif unit:
                words = "printed with its unit" if unit == "unit" else f"printed in {unit}"
            if words != "as printed" or column not in told:
                told[column] = words
    return {column: f"{words}; {notes[column]}" if column in notes else words for column, words in told.items()}
