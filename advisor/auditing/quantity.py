"""Numbers as reports print them: value, unit and precision."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

DIMENSIONS = (
    "seconds",
    "gpu_hours",
    "work",
    "bytes",
    "fraction",
    "times",
    "rate",
    "usd",
    "usd_per_hour",
    "usd_per_energy",
    "energy",
    "flops",
    "bandwidth",
    "count",
    "watts",
    "hertz",
    "bits",
)
_ROUND = 0.05  # a number that ends in zeros was rounded to about a twentieth of itself
LEAST_SLACK = 0.005  # reports round intermediate results; half a per cent accuses nobody

_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?"
SHAPE = re.compile(
    rf"(?P<approximately>~\s*)?(?P<side>[<>]\s*)?(?P<dollar>\$\s*)?(?P<first>-?{_NUMBER})"
    rf"(?:\s*-\s*\$?(?P<second>{_NUMBER}))?(?P<more>\+)?\s*(?P<unit>[A-Za-z%][A-Za-z/ -]*|/h|/kWh)?"
)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A printed number or range in the house's unit (seconds, bytes, fraction of 1, tokens per second, dollars)."""

    low: float
    high: float
    dimension: str
    slack: float  # half a unit of the last printed digit; a whole one where the writer said "about"
    text: str
    binary: float = 1.0  # how much larger the number is if its unit was meant in powers of 1024

    @property
    def middle(self) -> float:
        """The middle of the range; of an open one its only end."""
        return (self.low + self.high) / 2 if math.isfinite(self.high - self.low) else self._end()

    @property
    def is_counted(self) -> bool:
        """Whether it is a whole number without a unit: 24 sequences are 24."""
        return self.dimension == "count" and self.text.replace(",", "").isdigit()

    @property
    def least(self) -> float:
        """The smallest value that the text can mean."""
        return self.low - self._give(self.low)

    @property
    def most(self) -> float:
        """The largest value that the text can mean, units in powers of 1024 included."""
        return (self.high + self._give(self.high)) * self.binary

    def admits(self, low: float, high: float | None = None) -> bool:
        """Whether the truth, a number or an interval, is among what the text can mean."""
        return self.least <= (low if high is None else high) and low <= self.most

    def _give(self, end: float) -> float:
        return max(self.slack, LEAST_SLACK * abs(end)) if math.isfinite(end) else 0.0

    def _end(self) -> float:
        return self.low if math.isfinite(self.low) else self.high


def parse_quantity(raw: str | float | int) -> Quantity:
    """Read "~17.4 M", "20-23 GB", "43.8 %", "<2.7", "60-80+", "$20.44" or a bare number; ValueError otherwise.

    The unit words: ms s min h d days weeks months, B KiB MiB GiB kB MB GB TB, %, x, tok/s, $, $/h, TFLOP/s, GB/s,
    $/kWh, k M billion T, W kW MW, Wh kWh MWh, Hz, bits. "1,217" is a number with a thousands separator.
    """
    text = str(raw).strip().replace("–", "-").replace("×", "x")
    match = SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{raw!r} is not a quantity: write it like ~17.4 M, 20-23 GB, 43.8 %, <2.7 or $20.44")
    unit = _unit(match)
    if unit not in _units():
        raise ValueError(f"{raw!r}: unknown unit {unit!r}; known: {', '.join(u for u in _units() if u)}")
    dimension, factor, binary = _units()[unit]
    first, second = match["first"], match["second"] or match["first"]
    low, high = (float(n.replace(",", "")) * factor for n in (first, second))
    if low > high:
        raise ValueError(f"{raw!r}: the range runs backwards")
    if not math.isfinite(high * binary):
        raise ValueError(f"{raw!r} is too large a number")
    step = min(_last_place(n) for n in (first, second)) * factor
    side = (match["side"] or "").strip()
    return Quantity(
        low=-math.inf if side == "<" else low,
        high=math.inf if side == ">" or match["more"] else high,
        dimension=dimension,
        slack=step if match["approximately"] else step / 2,
        text=text,
        binary=binary / factor,
    )


@cache
def _units() -> dict[str, tuple[str, float, float]]:
    """Each unit with its dimension, its factor to the house's unit, and the factor if powers of 1024 were meant."""
    rows = yaml.safe_load(Path(__file__).with_name("units.yaml").read_text(encoding="utf-8"))
    found: dict[str, tuple[str, float, float]] = {}
    for dimension, units in rows.items():
        for unit, factor in units.items():
            factors = factor if isinstance(factor, list) else [factor, factor]
            found[unit] = (dimension, float(factors[0]), float(factors[1]))
    return found


def _unit(match: re.Match[str]) -> str:
    unit = (match["unit"] or "").strip()
    return "$" + unit if match["dollar"] else unit


def _last_place(number: str) -> float:
    """The weight of the last digit that was meant: 0.1 of "17.4", 100 of "430,600", 1 of "20", 10 of "470".

    Zeros at the end of a whole number say little, but nobody who writes 20 means 10 to 30: the second digit counts, or
    a twentieth of the number.
    """
    digits, _, exponent = number.lower().lstrip("-").replace(",", "").partition("e")
    power = int(exponent or 0)
    if "." in digits:
        return 10.0 ** (power - len(digits.partition(".")[2]))
    digits = digits.lstrip("0")
    zeros = len(digits) - len(digits.rstrip("0"))
    if not zeros:
        return 10.0**power
    return min(10.0**zeros, max(10.0 ** max(0, len(digits) - 2), _ROUND * float(digits))) * 10.0**power
