"""The numbers in a published row's cells."""

from __future__ import annotations

from advisor.prediction.row_words import Refusal

LARGEST = 1e18  # no size, count or batch of a run is larger


def number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


def _whole(name: str, text: str) -> int | None | Refusal:
    """A positive whole number ("32" or "32.0"), None if empty."""
    if not text:
        return None
    if text.isdecimal() and 0 < (whole := int(text)) <= LARGEST:  # by far the most of them
        return whole
    value = number(text)
    if value is None or value < 1 or value != int(value):
        return Refusal(f"{name} is {text!r}, not a positive whole number")
    return int(value)


def whole_numbers(**texts: str) -> dict[str, int | None] | Refusal:
    """The numbers of several cells by their names, None where a cell is empty."""
    values: dict[str, int | None] = {}
    for name, text in texts.items():
        value = _whole(name, text)
        if isinstance(value, Refusal):
            return value
        values[name] = value
    return values
