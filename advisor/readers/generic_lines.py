"""Home-made loops: `step=100 loss=2.31 lr=1e-4`, `Epoch [1/10], Step [100/600], Loss: 0.31`, `Train(0), loss: 2.4`.

Names are those of `names.py`. A line is a record when it has a loss and something that counts progress. A loss on a
line that speaks of validation is a validation loss. A time is read beside a step only: else it is not one of a step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from advisor.readers.line_format import EVAL, LOSS, TRAIN, UNITS, Found, LineFormat, Sign
from advisor.readers.names import BYTES, Named, column_of

_WORD = rb"[A-Za-z_][\w/.%-]{0,40}"
_PAIR = re.compile(
    rb"(?P<key>" + _WORD + rb"(?: " + _WORD + rb"){0,2})[\"']?(?: ?[=:#(\[] ?| )[\"'(\[]{0,2}(?P<value>" + LOSS + rb")"
    rb"(?: ?/ ?(?P<total>\d+))?(?: ?(?P<unit>ms|us|sec|s|min|h|%|[KMGT]i?B)\b|(?P<percent>%))?"
)
_VALIDATION = re.compile(rb"(?i)(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z])")
_PROGRESS = ("step", "epoch", "tokens")
_SIZES = {unit.lower(): unit for unit in UNITS if unit.lower() in BYTES and len(unit) > 1}
_LONGEST = 4096  # of a line: a dumped configuration is no record
_COUNTERS = {"batch": "step", "itr": "step", "train": "epoch"}  # `Train(0)` of loops that count epochs by it


@dataclass(frozen=True, kw_only=True)
class NamedPairs:
    """A record of named numbers in any order; `kind` says whether training or validation records are looked for."""

    kind: int
    needs: bytes = b"oss"  # Loss, loss
    missing: Mapping[str, float] = field(default_factory=dict)
    comma: bytes = b""
    facts: Mapping[str, Any] = field(default_factory=dict)
    phase: str = ""
    step: str = ""
    weight: float = 1.0

    @property
    def targets(self) -> tuple[str, ...]:
        return ()

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Where the numbers of one line stand and where the record ends; None when it is not such a record."""
        if self.needs not in line or len(line) > _LONGEST:
            return None
        found: dict[str, Found] = {}
        end = 0
        for match in _PAIR.finditer(line):
            if (target := _target(match, line)) is not None:
                column = target.partition("__")[0]
                found.setdefault(column, Found(target=target, start=match.start("value"), end=match.end("value")))
                _with_total(found, column, match)
            end = match.end()
        wanted = "loss" if self.kind == TRAIN else "eval_loss"
        if wanted not in found or (self.kind == EVAL and "loss" in found):
            return None
        if not any(name in found for name in _PROGRESS):
            return None
        if "step" not in found:
            found.pop("seconds", None)
        return list(found.values()), end


def _target(match: re.Match[bytes], line: bytes) -> str | None:
    """The column and unit of one pair, as a target; None when its name says nothing."""
    named = _named(match["key"])
    if named is None:
        return None
    column = named.column
    if column == "loss" and _VALIDATION.search(line[: match.end("key")]):
        column = "eval_loss"
    unit = (match["unit"] or match["percent"] or b"").decode() or named.unit or ""
    if named.kind == "bytes":
        unit = _SIZES.get(unit.lower(), "")
        return f"{column}__{unit}" if unit else None
    if named.kind in ("seconds", "time"):
        return f"{column}__{unit}" if unit in UNITS else column
    if named.kind == "steps_per_second":
        return f"{column}__inverse"
    if named.kind == "share":
        return f"{column}__percent" if unit == "%" else column
    if named.kind == "rate":
        return "device_tokens_per_second" if named.per_device else column
    return column if named.kind in ("count", "loss", "plain") else None


def _named(key: bytes) -> Named | None:
    """What a key or, failing that, its last words name: `INFO step` is a step."""
    words = key.decode("ascii").split(" ")
    for start in range(len(words)):
        name = " ".join(words[start:])
        named = column_of(name)
        if named is None and name.lower() in _COUNTERS:
            named = Named(column=_COUNTERS[name.lower()], kind="count", unit=None, rank=200)
        if named is not None:
            return named
    return None


def _with_total(found: dict[str, Found], column: str, match: re.Match[bytes]) -> None:
    planned = {"step": "planned_steps", "epoch": "planned_epochs"}.get(column)
    if planned is not None and match["total"] is not None:
        found.setdefault(planned, Found(target=planned, start=match.start("total"), end=match.end("total")))


FORMAT = LineFormat(
    name="generic",
    framework=None,
    rows=(NamedPairs(kind=TRAIN), NamedPairs(kind=EVAL)),
    # the error messages of a run in a file of their own: no record, but they say how it ended
    signs=(Sign(pattern=rb"Traceback \(most recent call last\)|DUE TO TIME LIMIT|CUDA out of memory", weight=0.15),),
    weight=0.3,
)
