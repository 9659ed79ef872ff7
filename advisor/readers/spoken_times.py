"""How long a run took by the durations that its lines speak of: of each epoch, of all so far, or of what is left.

Lines of one wording are one series. What only rises counts from the beginning; what falls to nothing is an estimate,
and half of all is left when half of its lines are printed; other durations are of one epoch each, and add up. Asked
only where no time stamp, no clock and no bar tells it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from advisor.readers.durations import duration_seconds
from advisor.readers.names import SECONDS

SPOKEN = "the times that it prints of its epochs"
FEWEST_ESTIMATES = 5
NOTHING_LEFT = 0.05  # of the first estimate: what is left at the last
MOSTLY = 0.9
LONGEST = 1000  # bytes of a line that speaks
GREW = 1.5  # times the first of a clock that counts on; epochs differ by less
_DIGITS = re.compile(rb"\s*\d+(?:[.,:]\d+)*")  # numbers of one wording may be padded
_EPOCH = re.compile(rb"(?i)epoch|\xe8\xbd\xae|\xc3\xa9poque|\xc3\xa9poca|\xd1\x8d\xd0\xbf\xd0\xbe\xd1\x85")
_NUMBERED = re.compile(rb"(?i)epoch\D{0,4}(\d+)")
_HEADING = re.compile(rb"(?i)\W{0,8}epoch\W{0,3}\d")
_ALONE = re.compile(
    rb"\s*(?i:time(?: taken| elapsed)?|duration)\W{1,3}\d[\d.:]*(?: ?[a-z]{1,7})?(?: [\d.]+ ?[a-z]{1,7})?\s*"
)
_OTHERS = re.compile(
    rb"(?i)\beta\b|remain|per[_ ](?:step|iter|batch|sample|image)|/(?:it|step|batch|iter)\b|\bav(?:g|erage)[_ ]time"
    rb"|estimat|infer|total[_ ]time|last epoch|val\w*[_ ]time|eval\w*[_ ]time|test[_ ]time"
)
_TOOK = re.compile(
    rb"(?i)(?:\btime (?:for|of) (?:\w{1,12} )?epoch\W{0,3}\d{1,6}\W{0,4}"
    rb"|\b(?:epoch[_ ])?time\b(?: (?:taken|elapsed|cost|used|spent))?[^\d\n]{0,8}|\btook\W{0,3}|\belapsed\W{0,3}"
    rb"|\"(?P<called>minutes|seconds|hours)\": |\bduration\W{0,3}"
    rb"|\b(?:finished|completed|done|trained) in\W{0,3}|\xe8\x80\x97\xe6\x97\xb6\W{0,6}"
    rb"|(?:\xe7\x94\xa8\xe6\x97\xb6|\xe6\x97\xb6\xe9\x97\xb4)\W{0,6}|\bcost\W{0,3}|[(\[|]\s{0,2})"
    rb"(?:(?P<h>\d{1,3}):(?P<m>\d\d):(?P<s>\d\d(?:\.\d+)?)|(?P<value>\d{1,9}(?:\.\d{1,20})?)\s?"
    rb"(?P<unit>ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|\xe7\xa7\x92|\xe5\x88\x86)?"
    rb"(?P<rest>(?:[ ,]{0,2}\d{1,2}(?:\.\d{1,20})?\s?(?:seconds?|secs?|s|minutes?|mins?|m)\b){0,2}))(?![\w:/%]|\.\d)"
)
_UNITS = {"\u79d2": 1.0, "\u5206": 60.0, "m": 60.0}
_NAMES = re.compile(rb"(?i)\btime\b|took|elapsed|duration|cost|\xe8\x80\x97|\xe7\x94\xa8\xe6\x97\xb6| in\W*$")


def spoken_seconds(text: bytes) -> float | None:
    """Seconds that a run's lines add up to; None where they speak of none."""
    series: dict[bytes, list[tuple[bytes, float]]] = {}
    lines = text.split(b"\n")
    alone = [line for line in lines if _ALONE.fullmatch(line)]
    of_epochs = abs(sum(_HEADING.match(line) is not None for line in lines) - len(alone)) <= max(1, 0.1 * len(alone))
    for line in lines:
        told = _EPOCH.search(line) is not None or (of_epochs and _ALONE.fullmatch(line) is not None)
        if len(line) > LONGEST or not told or _OTHERS.search(line) is not None:
            continue
        numbered = _NUMBERED.search(line)
        for match in _TOOK.finditer(line):
            if (seconds := _seconds(match)) is not None:
                wording = _DIGITS.sub(b"#", line[: match.start("value") if match["h"] is None else match.start("h")])
                series.setdefault(wording, []).append((numbered[1] if numbered else b"", seconds))
    found = [seconds for spoken in series.values() if (seconds := _of_series(spoken)) is not None]
    return max(found, default=None)


def _seconds(match: re.Match[bytes]) -> float | None:
    if match["h"] is not None:
        return 3600.0 * int(match["h"]) + 60.0 * int(match["m"]) + float(match["s"])
    unit = (match["unit"] or match["called"] or b"").decode().lower()
    if not unit and (
        b"." not in match["value"] or _NAMES.search(match[0][: match.start("value") - match.start()]) is None
    ):
        return None  # `(12)` is anything
    finer = duration_seconds(match["rest"].decode()) or 0.0  # 2m 30s
    return float(match["value"]) * (_UNITS.get(unit) or SECONDS.get(unit) or 1.0) + finer


def _of_series(spoken: Sequence[tuple[bytes, float]]) -> float | None:
    epochs, values = [epoch for epoch, _ in spoken], [seconds for _, seconds in spoken]
    moves = [b - a for a, b in pairwise(values)]
    falling = sum(move <= 0 for move in moves) >= MOSTLY * len(moves)
    if len(values) >= FEWEST_ESTIMATES and falling and values[-1] <= NOTHING_LEFT * values[0]:
        return 2 * values[len(values) // 2]
    if len(values) > 2 and all(move > 0 for move in moves) and values[-1] > GREW * values[0]:
        return values[-1]
    if epochs[0] and len(set(epochs)) < MOSTLY * len(epochs):
        # of steps: an epoch's own clock rises to its end and begins anew with the next
        ends = [seconds for (epoch, seconds), after in pairwise([*spoken, (None, 0.0)]) if after[0] != epoch]
        rises = all(
            move >= 0 for (epoch, _), (after, _), move in zip(spoken, spoken[1:], moves, strict=False) if epoch == after
        )
        return sum(ends) if rises and max(values) > GREW * min(values) else None
    return sum(values) or None
