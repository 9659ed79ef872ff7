"""Numbers as reports print them: value, unit and precision, alone in a field of a card or inside a text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from advisor.store.disk import read_yaml
from advisor.units import parse_seconds

DIMENSIONS = (
    *("seconds", "gpu_hours", "work", "bytes", "fraction", "times", "rate", "usd", "usd_per_hour", "usd_per_energy"),
    *("energy", "flops", "bandwidth", "count", "watts", "hertz", "bits"),
)
_ROUND = 0.05  # a number that ends in zeros was rounded to about a twentieth of its value
LEAST_SLACK = 0.01  # reports round intermediate results; one per cent is no error
EXACT, ABOUT = 0.02, 0.06  # how far rounding may move a result, and a result that is said to be "about" so

_MANY = 1e6
_TIME_OF_DAY = re.compile(r"(?<![\d:])\d{1,2}:\d\d(?![\d:])")  # or minutes and seconds: no number with a unit
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
SHAPE = re.compile(
    rf"(?P<approximately>~\s*)?(?P<side>[<>]\s*)?(?P<dollar>\$\s*)?(?P<first>-?{_NUMBER})"
    rf"(?:\s*-\s*\$?(?P<second>{_NUMBER}))?(?P<more>\+)?\s*(?P<unit>[A-Za-z%][A-Za-z/ -]*|/h|/kWh)?"
)


@dataclass(frozen=True, kw_only=True)
class ClaimedQuantity:
    """A printed number or range in the project's unit (seconds, bytes, fraction of 1, tokens per second, dollars)."""

    low: float
    high: float
    dimension: str
    slack: float  # half a unit of the last printed digit, or a whole one if the writer said "about"
    text: str
    binary: float = 1.0  # how much larger the number is if its unit means powers of 1024

    @property
    def middle(self) -> float:
        """The middle of the range, or the only end of an open range."""
        if math.isfinite(self.high - self.low):
            return (self.low + self.high) / 2
        return self.low if math.isfinite(self.low) else self.high

    @property
    def is_counted(self) -> bool:
        """True for a whole number without a physical unit, such as a count: '24 sequences' is read as 24."""
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
        """Return True if the truth, a number or an interval, is among what the text can mean."""
        return self.least <= (low if high is None else high) and low <= self.most

    def _give(self, end: float) -> float:
        share = EXACT if self.text.startswith("~") else LEAST_SLACK
        return max(self.slack, share * abs(end)) if math.isfinite(end) else 0.0


# what a number without its unit means if a table's head or the field has the unit
_MEANT = {("count", "rate"): " tok/s", ("count", "times"): " x", ("count", "gpu_hours"): " GPU-h", ("count", "usd"): ""}
_MEANT |= {("count", "usd_per_hour"): "/h", ("usd", "usd_per_hour"): "/h", ("count", "bits"): " bits"}


def parse_quantity(raw: str | float | int, dimensions: Sequence[str] = ()) -> ClaimedQuantity:
    """Return a quantity as people write it ("~17.4 M", "20-23 GB", "7B", "102 hours"); ValueError for other text.

    If two readings are possible, the one in one of `dimensions` is taken. `units.yaml` has the units.
    """
    text = str(raw)
    found = figures(text)
    if _TIME_OF_DAY.search(text):
        raise ValueError(f"{raw!r} is a time of day, or a duration without a unit: write it like 1 h 30 min")
    spelt = found[0].quantity if len(found) == 1 and not any(map(str.isdigit, text[found[0].end :])) else None
    try:
        plain = _parsed(text)
    except ValueError:
        if spelt is None:
            raise
        plain = spelt
    glued = text[-1:] == "B" and text[-2:-1].isdigit()  # "7B" is seven billion, "7 B" are bytes
    for quantity in (spelt, plain) if glued else (plain, spelt):
        if quantity is not None and (not dimensions or quantity.dimension in dimensions):
            return quantity
    for dimension in dimensions:
        if (plain.dimension, dimension) == ("count", "fraction") and 0 <= plain.low <= plain.high <= 100:
            times = 100 if plain.high <= 1 else 1  # an MFU of 0.42, or 42 in a column of percentages
            return _parsed(f"{times * plain.low:.6g}-{times * plain.high:.6g} %")
        if (plain.dimension, dimension) in _MEANT:
            sign = "$" if plain.dimension == "count" and dimension.startswith("usd") else ""
            return _parsed(f"{sign}{plain.text}{_MEANT[plain.dimension, dimension]}")
    return plain


def _parsed(raw: str) -> ClaimedQuantity:
    """Return a number with a unit as `units.yaml` writes it: "60-80+", "<2.7", "$20.44", "1,217 ms"."""
    text = raw.strip().replace("–", "-").replace("×", "x")
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
    # A number of tokens or parameters with one digit that is not zero is rounded: 50 M may mean 52 M, but 80 GB are 80.
    ends = [number.replace(",", "") for number in (first, second)]
    rounded = dimension == "count" and low >= _MANY and all(n.isdigit() and n[1:] and not int(n[1:]) for n in ends)
    return ClaimedQuantity(
        low=-math.inf if side == "<" else low,
        high=math.inf if side == ">" or match["more"] else high,
        dimension=dimension,
        slack=step if match["approximately"] or rounded else step / 2,
        text=text,
        binary=binary / factor,
    )


@cache
def _table() -> dict[str, Any]:
    """Return the file of units, as written."""
    return read_yaml(Path(__file__).with_name("units.yaml"), "table of units")


@cache
def _units() -> dict[str, tuple[str, float, float]]:
    """Return each unit with its dimension, its factor to the project's unit, and its factor in powers of 1024."""
    found: dict[str, tuple[str, float, float]] = {}
    for dimension in DIMENSIONS:
        for unit, factor in _table()[dimension].items():
            factors = factor if isinstance(factor, list) else [factor, factor]
            found[unit] = (dimension, float(factors[0]), float(factors[1]))
    return found


def _unit(match: re.Match[str]) -> str:
    unit = (match["unit"] or "").strip()
    return "$" + unit if match["dollar"] else unit


def _last_place(number: str) -> float:
    """Return the weight of the last digit that was meant: 0.1 of "17.4", 100 of "430,600", 1 of "20", 10 of "470".

    Zeros at the end of a whole number say little. But nobody who writes 20 means 10 to 30, so the second digit counts,
    or a twentieth of the number.
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


_ABOUT = r"~|≈|∼|about|around|roughly|approximately|approx\.?|nearly|almost|close to|some|an estimated|circa|c\."
_SIDE = r"<=?|>=?|≤|≥|up to|at least|at most|more than|less than|over|under|below|above|no more than|as little as"
_HEAD = re.compile(
    rf"(?<![\w.,/-])(?:(?P<side>{_SIDE})\s*)?(?:(?P<about>{_ABOUT})\s*)?(?P<dollar>(?:US)?\$\s?)?(?P<first>{_NUMBER})"
    rf"(?P<scale1>[kKMBT](?![A-Za-z]))?(?:\s?(?:-|to)\s?[~$]?\s?(?P<second>{_NUMBER})(?![-/]\d))?(?P<more>\+)?"
    r"(?:\s?(?P<scale>[kKMBTG](?![A-Za-z])|thousand|million|billion|trillion|bn\b|mn\b))?",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?:\d+\s?d(?:ays?)?,?\s?)?\d+\s?h(?:ours?|rs?)?,?\s?\d{1,2}\s?m(?:in(?:utes?)?)?\b"
    r"|\d{1,3}:[0-5]\d:[0-5]\d(?:\.\d+)?(?![\d:])"
)
_SCALES = {"k": "k", "thousand": "k", "m": "M", "million": "M", "mn": "M", "b": "billion", "billion": "billion"}
_SCALES |= {"bn": "billion", "g": "billion", "t": "T", "trillion": "T", "": ""}
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "billion": 1e9, "T": 1e12}
_PRICE = re.compile(
    r"\s?(?:/|per|an?)\s?(?:(?:\w{1,6}[- ])?(?:(?:NVIDIA )?(?:GPU|card|device|chip|accelerator|[A-Z]{1,3}\d{1,4}\w*)"
    r"(?:[- ]|\s?/\s?|\s?per\s?))?(?P<hour>hour|hr|h)\b|(?P<energy>kWh)\b)",
    re.IGNORECASE,
)
_IN_A_NAME = re.compile(r"[.:]\d|[A-Za-z_]\w*\d")
_REMEMBERED = 20_000  # texts


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number or range in a text, with its place."""

    quantity: ClaimedQuantity
    start: int
    end: int


@lru_cache(maxsize=_REMEMBERED)
def figures(text: str) -> tuple[Figure, ...]:
    """Return all numbers of a text in order, without years, versions and numbers inside names."""
    found: list[Figure] = []
    at = 0
    while match := _HEAD.search(text, at):
        low, high = (float((match[name] or match["first"]).replace(",", "")) for name in ("first", "second"))
        if low > high and not match["scale1"]:  # a difference or a change; the other number comes next
            match = _HEAD.search(text[: match.end("first")], at) or match
        figure = _figure(text, match)
        found += [figure] if figure else []
        at = max(figure.end if figure else 0, match.end("first"))
    return tuple(found)


def _figure(text: str, match: re.Match[str]) -> Figure | None:
    """Return the quantity that begins at a match, written as in a card, or None if it is none."""
    signs = ("~" if match["about"] else "") + ("$" if match["dollar"] else "")
    clock = _CLOCK.match(text, match.start("first"))
    if clock:
        seconds = parse_seconds(clock[0].replace(",", ""))
        written, end = f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds:g} s", clock.end()
    else:
        own, other = (_SCALES[(match[name] or "").lower()] for name in ("scale1", "scale"))
        first, second = match["first"].lower(), (match["second"] or "").lower()
        if own and other and not second:
            return None
        if own and other and own != other:  # 500k-1M is 0.5-1 in millions
            first = f"{float(first.replace(',', '')) * _FACTORS[own] / _FACTORS[other]:g}"
        scale = (other if second else "") or own or other
        unit, end = _spelt_unit(text, match.end(), bool(match["dollar"]), scale)
        if unit is None or _is_name(text, match, end, unit or scale):
            return None
        written = f"{first}{'-' if second else ''}{second}{'+' if match['more'] else ''} {unit}".strip()
    try:
        quantity = _parsed(signs + written)
    except ValueError:
        return None
    return Figure(quantity=quantity, start=match.start(), end=end)


@cache
def _spellings() -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Return the units in the order of trying, and the pattern of whatever follows a number in one of them."""
    rows = [(unit, pattern) for row in _table()["spellings"] for unit, pattern in row.items()]
    choices = "|".join(f"(?P<u{at}>{pattern})" for at, (_, pattern) in enumerate(rows))
    return tuple(unit for unit, _ in rows), re.compile(rf"\s?-?(?:{choices})", re.IGNORECASE)


def _spelt_unit(text: str, end: int, dollar: bool, scale: str) -> tuple[str | None, int]:
    """Return the unit behind a number as a card writes it, and where it ends; None if a card cannot write it."""
    if dollar:
        price = None if scale else _PRICE.match(text, end)
        return ("/kWh" if price["energy"] else "/h", price.end()) if price else (scale, end)
    names, pattern = _spellings()
    match = pattern.match(text, end)
    unit = next((names[int(name[1:])] for name, part in match.groupdict().items() if part), "") if match else ""
    scaled = f"{'B' if scale == 'billion' else scale} {unit}"
    if match and scale and unit[:3] in ("tok", "GPU"):
        return scaled if scaled in _units() else None, match.end()
    return (unit, match.end()) if match and (not scale or unit in ("x", "%")) else (scale, end)


def _is_name(text: str, match: re.Match[str], end: int, unit: str) -> bool:
    """Return True if the digits belong to a name, link or version: "v1.2", "arXiv:2309.09530", "Llama 2 chat"."""
    before, after = text[: match.start("first")], text[end:]
    word = before.rstrip().lower().rpartition(" ")[2]
    linked = word in ("arxiv", "arxiv:") or (word.startswith("http") and before[-1] != " ")
    if before.endswith(("#", "@")) or linked or _IN_A_NAME.match(after):
        return True
    year = len(match["first"]) == 4 and match["first"][:2] in ("19", "20") and after[:1] in (",", ")", "-")
    return not unit and not match["dollar"] and (year or (after[:2].isalpha() and len(after) > 1))
