"""One kind of line that a log says beside its numbers: the literal texts it needs, and the pattern that judges it."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATH = r"[\"'`<]?(?P<path__%d>[^\s\"'`>]*[\w.\-/\\])"
DURATION = (
    r"\s{0,4}(?P<duration__%d>(?:\d+ days?,? )?\d+:\d\d(?::\d\d)?(?:\.\d+)?(?![\d:])"
    r"|(?:\d+(?:\.\d+)? ?(?:days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s|小时|分钟|分|秒)(?![A-Za-z])"
    r"(?:,? ?and |,? ?))+)"
)


@dataclass(frozen=True, kw_only=True)
class LineRule:
    """One kind of line: any of `needles` occurs in it and `pattern` is found in it."""

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]


def rule(kind: str, needles: str, pattern: str) -> LineRule:
    """A rule of needles separated by `|`; <PATH> and <DURATION> in the pattern stand for those above."""
    for name, part in (("<PATH>", PATH), ("<DURATION>", DURATION)):
        for number in range(pattern.count(name)):  # a group's name can be given only once
            pattern = pattern.replace(name, part % number, 1)
    return LineRule(kind=kind, needles=tuple(needles.split("|")), pattern=re.compile(pattern))
