"""Numbers as reports print them: value, unit, and how exactly they were meant."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# unit → (dimension, factor to the house's unit, factor when the writer meant powers of 1024)
_UNITS: dict[str, tuple[str, float, float]] = {
    **{u: ("seconds", f, f) for u, f in (("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))},
    **{u: ("seconds", f, f) for u, f in (("days", 86400.0), ("weeks", 604800.0), ("months", 30.44 * 86400.0))},
    **{u: ("seconds", f, f) for u, f in (("us", 1e-6), ("years", 365.25 * 86400.0))},
    **{u: ("gpu_hours", f, f) for u, f in (("GPU-h", 1.0), ("k GPU-h", 1e3), ("M GPU-h", 1e6))},
    **{u: ("gpu_hours", f / 3600, f / 3600) for u, f in (("GPU-s", 1.0), ("k GPU-s", 1e3), ("M GPU-s", 1e6))},
    **{u: ("work", f, f) for u, f in (("ZFLOP", 1e21), ("YFLOP", 1e24))},
    "GPU-d": ("gpu_hours", 24.0, 24.0),
    **{u: ("bytes", float(f), float(f)) for u, f in (("B", 1), ("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))},
    # tools print both senses under the same letters: nvidia-smi's and torch's MB and GB are powers of 1024
    **{u: ("bytes", f, float(g)) for u, f, g in (("kB", 1e3, 2**10), ("MB", 1e6, 2**20), ("GB", 1e9, 2**30))},
    "TB": ("bytes", 1e12, float(2**40)),
    "%": ("fraction", 0.01, 0.01),
    "x": ("times", 1.0, 1.0),
    **{u: ("rate", f, f) for u, f in (("tok/s", 1.0), ("k tok/s", 1e3), ("M tok/s", 1e6))},
    **{
        u: ("rate", f / 3600, f / 3600)
        for u, f in (("tok/h", 1.0), ("k tok/h", 1e3), ("M tok/h", 1e6), ("B tok/h", 1e9))
    },
    **{
        u: ("rate", f / 86400, f / 86400)
        for u, f in (("tok/d", 1.0), ("k tok/d", 1e3), ("M tok/d", 1e6), ("B tok/d", 1e9))
    },
    **{
        u: ("work", f, f) for u, f in (("FLOP", 1.0), ("GFLOP", 1e9), ("TFLOP", 1e12), ("PFLOP", 1e15), ("EFLOP", 1e18))
    },
    **{u: ("usd", f, f) for u, f in (("$", 1.0), ("$k", 1e3), ("$M", 1e6), ("$billion", 1e9))},
    "$/h": ("usd_per_hour", 1.0, 1.0),
    "$/kWh": ("usd_per_energy", 1 / 3.6e6, 1 / 3.6e6),
    **{u: ("energy", f, f) for u, f in (("Wh", 3.6e3), ("kWh", 3.6e6), ("MWh", 3.6e9))},
    **{u: ("flops", f, f) for u, f in (("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15), ("EFLOP/s", 1e18))},
    **{u: ("bandwidth", f, f) for u, f in (("GB/s", 1e9), ("TB/s", 1e12))},
    **{u: ("count", f, f) for u, f in (("", 1.0), ("k", 1e3), ("M", 1e6), ("billion", 1e9), ("T", 1e12))},
    **{u: ("watts", f, f) for u, f in (("W", 1.0), ("kW", 1e3), ("MW", 1e6))},
    "Hz": ("hertz", 1.0, 1.0),
    "bits": ("bits", 1.0, 1.0),
}
DIMENSIONS = tuple(dict.fromkeys(dimension for dimension, _, _ in _UNITS.values()))
_ROUND = 0.05  # a number that ends in zeros was rounded to about a twentieth of itself
LEAST_SLACK = 0.005  # reports round intermediate results; half a per cent accuses nobody

_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_SHAPE = re.compile(
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
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"{raw!r} is not a quantity: write it like ~17.4 M, 20-23 GB, 43.8 %, <2.7 or $20.44")
    unit = _unit(match)
    if unit not in _UNITS:
        raise ValueError(f"{raw!r}: unknown unit {unit!r}; known: {', '.join(u for u in _UNITS if u)}")
    dimension, factor, binary = _UNITS[unit]
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


def _unit(match: re.Match[str]) -> str:
    unit = (match["unit"] or "").strip()
    return "$" + unit if match["dollar"] else unit


def _last_place(number: str) -> float:
    """The weight of the last digit that was meant: 0.1 of "17.4", 100 of "430,600", 1 of "20", 10 of "470".

    Zeros at the end of a whole number say little, but nobody who writes 20 means 10 to 30: the second digit counts, or
    a twentieth of the number.
    """
    digits, _, exponent = number.lstrip("-").replace(",", "").partition("e")
    power = int(exponent or 0)
    if "." in digits:
        return 10.0 ** (power - len(digits.partition(".")[2]))
    digits = digits.lstrip("0")
    zeros = len(digits) - len(digits.rstrip("0"))
    if not zeros:
        return 10.0**power
    return min(10.0**zeros, max(10.0 ** max(0, len(digits) - 2), _ROUND * float(digits))) * 10.0**power
