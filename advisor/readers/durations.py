"""A duration as a log writes it → seconds."""

from __future__ import annotations

import re

_CLOCK = re.compile(r"(?:(\d+) days?,? )?(\d+):(\d\d)(?::(\d\d))?(\.\d+)?\s*$")
_PARTS = re.compile(r"(\d+(?:\.\d+)?) ?([a-zA-Z小时分钟秒]+)")
_UNIT = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "小": 3600.0, "分": 60.0, "秒": 1.0}


def duration_seconds(text: str) -> float | None:
    """Seconds of `55:03`, `1:02:03`, `2 days, 3:04:05`, `3h 12m`, `90 s`; None where it is none of them."""
    if clock := _CLOCK.match(text.strip()):
        days, first, second, third, rest = clock.groups()
        parts = (first, second, third) if third is not None else ("0", first, second)
        hours, minutes, seconds = map(int, parts)
        return int(days or 0) * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds + float(rest or 0)
    parts_found = _PARTS.findall(text)
    if not parts_found or any(unit[0].lower() not in _UNIT for _, unit in parts_found):
        return None
    return sum(float(value) * _UNIT[unit[0].lower()] for value, unit in parts_found)
