"""Formats and parses money, time, bytes, tokens and rates. No other module does this.

Elsewhere, numbers are plain floats in the unit of their field's name. A number without an interval is shown with at
most three significant figures. The ends of an interval show only the digits that its width supports, and the centre
shows one digit more. None and non-finite numbers are "unknown".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from advisor.errors import AdvisorError
from advisor.records import Estimate

UNKNOWN = "unknown"
SIGNIFICANT_FIGURES = 3
_LARGEST = 1e290  # larger numbers only occur in damaged logs, and rounding them would overflow

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MINUTE, HOUR, DAY, WEEK = 60, 3600, 86400, 7 * 86400


@dataclass(frozen=True, kw_only=True)
class Formatter:
    """Formats numbers of one kind: `format_seconds(5400)` is "90 min".

    `steps` lists (smallest magnitude, divisor, suffix) in ascending order. Call the formatter with one number, or use
    `format_estimate` for a number with its interval, which are then shown in one unit.
    """

    steps: tuple[tuple[float, float, str], ...]
    prefix: str = ""
    exact_below: float = 0.0  # smaller whole numbers are written in full, with thousands separators
    zeros: bool = False  # keep zeros at the end, so that the numbers of a column have the same digits
    cents: bool = False  # for money: one decimal becomes two, and zero becomes 0.00
    coarsest: int = 300  # decimal place to which the ends of an interval are rounded at most
    finest: int = -300  # last decimal place, as a power of ten, except for numbers that would vanish

    def __call__(self, value: float | None) -> str:
        if value is None or not abs(value) < _LARGEST:
            return UNKNOWN
        if abs(value) < self.exact_below and float(value).is_integer():
            return f"{'-' if value < 0 else ''}{self.prefix}{abs(int(value)):,}{self.steps[0][2]}"
        factor, suffix = self._unit(value)
        return self._written(value / factor, None)[0] + suffix

    def interval(self, value: float, low: float, high: float) -> str:
        """Format a value with its interval in one unit: "21.3 h (19-24 h)", "$24.30 ($21-28)"."""
        if not abs(value) < _LARGEST:
            return UNKNOWN
        if not (abs(low) < _LARGEST and abs(high) < _LARGEST):
            return f"{self(value)} (interval {UNKNOWN})"
        if low == high == value:
            return self(value)
        factor, suffix = self._unit(value if value else max(abs(low), abs(high)))
        centre, bottom, top = value / factor, low / factor, high / factor
        place, shown = _place_of_ends(top - bottom), self._written(centre, _place_of_centre(centre, top - bottom))[1]
        # The ends get one more digit if the rounded centre would otherwise lie outside of them.
        if not self._written(bottom, place)[1] <= shown <= self._written(top, place)[1]:
            place -= 1
        if self._written(bottom, finer := min(place, self.coarsest))[1] <= shown <= self._written(top, finer)[1]:
            place = finer
        (least, shown_least), (most, shown_most) = (self._written(end, place, zeros=True) for end in (bottom, top))
        if shown == shown_least == shown_most:
            return self.centre(value, low, high)  # the interval is narrower than the last digit
        until = f"-{most.removeprefix(self.prefix)}" if low >= 0 else f" to {most}"
        return f"{self.centre(value, low, high)} ({least}{until}{suffix})"

    def centre(self, value: float, low: float, high: float) -> str:
        """Format the value without its interval, but with the digits that the interval supports."""
        if low == high == value or not all(abs(x) < _LARGEST for x in (value, low, high)):
            return self(value)
        factor, suffix = self._unit(value if value else max(abs(low), abs(high)))
        return self._written(value / factor, _place_of_centre(value / factor, (high - low) / factor))[0] + suffix

    def printed(self, value: float, low: float | None = None, high: float | None = None) -> float:
        """Round a number as it is printed, alone or as the centre of an interval."""
        if low is None or high is None or low == high == value or not max(abs(low), abs(high)) < _LARGEST:
            if abs(value) < self.exact_below and float(value).is_integer():
                return value
            factor = self._unit(value)[0]
            return factor * self._written(value / factor, None)[1]
        factor = self._unit(value if value else max(abs(low), abs(high)))[0]
        return factor * self._written(value / factor, _place_of_centre(value / factor, (high - low) / factor))[1]

    def unit(self, value: float) -> tuple[float, str]:
        """Return the divisor and the suffix for a number of this size: (60, "min") for 5400 seconds."""
        factor, suffix = self._unit(value)
        return factor, suffix.strip()

    def change(self, value: float) -> str:
        """Format a difference with its sign and two significant digits, or three before the decimal point."""
        if not abs(value) < _LARGEST:
            return UNKNOWN
        factor, suffix = self._unit(value)
        size = abs(value) / factor
        text, _ = self._written(size, min(math.floor(math.log10(size)) - 1, 0) if size else None, zeros=False)
        return f"{'-' if value < 0 else '+'}{text}{suffix}"

    def _unit(self, value: float) -> tuple[float, str]:
        magnitude = abs(value)
        if magnitude == 0:
            return 1.0, next((suffix for _, factor, suffix in self.steps if factor == 1), self.steps[0][2])
        chosen = self.steps[0]
        for step in self.steps:
            # Rounding comes first, so that 999,950 tokens are "1 M" and not "1000 k".
            if step[0] == 0 or _rounded(magnitude / step[0]) >= 1:
                chosen = step
        return chosen[1], chosen[2]

    def _written(self, number: float, place: int | None, *, zeros: bool | None = None) -> tuple[str, float]:
        """Return a number as text with sign and prefix, and its rounded value.

        It is rounded to `place`, a power of ten, or to three figures. The place is no finer than `finest`, unless the
        number would become zero. `zeros` keeps zeros at the end; None: as this formatter does.
        """
        magnitude, value, text = abs(number), 0.0, "0"
        if magnitude:
            first = math.floor(math.log10(_rounded(magnitude)))
            figures = first - (SIGNIFICANT_FIGURES - 1)
            # No coarser than the number's first digit, so that 2 stays 2 in an interval up to 200; no finer than three
            # figures.
            used = figures if place is None else max(figures, min(place, first))
            used = max(used, self.finest) if first >= self.finest else used
            value = round(magnitude, -used)
            text = f"{value:,.{max(0, -used)}f}"
        if "." in text and not (self.zeros if zeros is None else zeros):
            text = text.rstrip("0").rstrip(".")
        if self.cents:
            text = "0.00" if text == "0" else text + "0" if re.search(r"\.\d$", text) else text
        return f"{'-' if number < 0 else ''}{self.prefix}{text}", math.copysign(value, number)


def _rounded(magnitude: float) -> float:
    if magnitude == 0:
        return 0.0
    return round(magnitude, SIGNIFICANT_FIGURES - 1 - math.floor(math.log10(magnitude)))


def _place_of_centre(value: float, width: float) -> int:
    """Return the last decimal place, as a power of ten, of a value in an interval of this width.

    It has one digit more than the interval supports, and two at least: a gap is computed from what is printed.
    """
    supported = math.floor(math.log10(width / 2)) - 1 if width > 0 else -300
    return min(supported, math.floor(math.log10(abs(value))) - 1) if value else supported


def _place_of_ends(width: float) -> int:
    """Return the decimal place of an interval's ends, which rounding moves by an eighth of its width at most."""
    return math.floor(math.log10(width / 4)) if width > 0 else -300


_SI = ((0.0, 1.0, ""), (1e3, 1e3, " k"), (1e6, 1e6, " M"), (1e9, 1e9, " B"), (1e12, 1e12, " T"))

_USD = ((0.0, 1.0, ""), (1e6, 1e6, " M"))
format_usd = Formatter(steps=_USD, prefix="$", cents=True, finest=-2)  # amounts: whole cents
format_usd_rate = Formatter(steps=_USD, prefix="$", cents=True)  # prices per hour or per unit: three figures
format_seconds = Formatter(
    steps=(
        (0.0, 1e-6, " µs"),
        (1e-3, 1e-3, " ms"),
        (1.0, 1.0, " s"),
        (2 * MINUTE, MINUTE, " min"),
        (2 * HOUR, HOUR, " h"),
        (2 * DAY, DAY, " days"),
    )
)
format_tokens = Formatter(steps=_SI, exact_below=1e3)
format_count = Formatter(steps=(_SI[0], *_SI[2:]), exact_below=1e6)
format_bytes = Formatter(
    steps=((0.0, 1.0, " B"), (KIB, KIB, " KiB"), (MIB, MIB, " MiB"), (GIB, GIB, " GiB"), (TIB, TIB, " TiB")),
    exact_below=KIB,
    coarsest=0,  # so that no end is rounded beyond the memory of a GPU that it fits
)
format_rate = Formatter(steps=tuple((start, factor, f"{suffix} tok/s") for start, factor, suffix in _SI))
format_sample_rate = Formatter(steps=tuple((start, factor, f"{suffix} samples/s") for start, factor, suffix in _SI))
format_flops = Formatter(
    steps=((0.0, 1.0, " FLOP/s"), (1e9, 1e9, " GFLOP/s"), (1e12, 1e12, " TFLOP/s"), (1e15, 1e15, " PFLOP/s"))
)
format_bandwidth = Formatter(steps=((0.0, 1e9, " GB/s"), (1e12, 1e12, " TB/s")))
format_percent = Formatter(steps=((0.0, 0.01, " %"),))
format_energy = Formatter(steps=((0.0, 1e-3, " Wh"), (1.0, 1.0, " kWh"), (1e3, 1e3, " MWh")))  # takes kWh
format_mass = Formatter(steps=((0.0, 1e-3, " g"), (1.0, 1.0, " kg"), (1e3, 1e3, " t")))  # takes kg
format_watts = Formatter(steps=((0.0, 1.0, " W"), (1e4, 1e3, " kW")))
format_number = Formatter(steps=((0.0, 1.0, ""),))  # a bare number, such as a ratio
format_loss = Formatter(steps=((0.0, 1.0, ""),), zeros=True)


MAY_NOT_FIT = "may not fit"  # how the warning about a run for too little memory begins


def format_share(share: float) -> str:
    """Format a share in whole per cent, or in tenths below one per cent."""
    return format_percent(round(share, 2 if abs(share) >= 0.01 else 3))


def format_fit(chance: float) -> str:
    """Format a chance to fit, rounded down: from 90 % on, and at no smaller one, a plan has no warning."""
    return format_percent(math.floor(100 * min(max(chance, 0.01), 0.99) + 1e-9) / 100)


def format_fit_chance(chance: float | None) -> str:
    """Say with which chance a run fits that may not."""
    return f"{MAY_NOT_FIT} ({format_fit(chance or 0.0)} chance that it fits)"


def format_estimate(estimate: Estimate | None, formatter: Formatter) -> str:
    """Format an estimate with its 80 % interval, rounded to the digits that the interval supports."""
    if estimate is None:
        return UNKNOWN
    return formatter.interval(estimate.value, estimate.low, estimate.high)


def format_centre(estimate: Estimate | None, formatter: Formatter) -> str:
    """Format the value of an estimate without its interval, with the same digits as in `format_estimate`."""
    return UNKNOWN if estimate is None else formatter.centre(estimate.value, estimate.low, estimate.high)


def format_error(predicted: Estimate | float | None, actual: Estimate | float | None, formatter: Formatter) -> str:
    """Format the relative error of a prediction, from both numbers as printed; a dash if one is unknown."""
    shown = []
    for number in (predicted, actual):
        value, *ends = (number.value, number.low, number.high) if isinstance(number, Estimate) else (number,)
        if value is None or not abs(value) < _LARGEST:
            return "-"
        shown.append(formatter.printed(value, *ends))
    promised, came = shown
    if promised == 0 and came != 0:
        return "-"
    return format_percent.change(came / promised - 1 if promised else 0.0)


# A comma must precede groups of three digits: "1,200" is a number, but "1,5" may be a decimal comma and is refused.
_NUMBER = r"((?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
_SECONDS_OF = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), MINUTE),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), HOUR),
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), WEEK),
    "ms": 1e-3,
}
_COUNTS_OF = {
    **{"": 1, "k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "t": 1e12, "trillion": 1e12},
    **dict.fromkeys(("b", "g", "bn", "billion"), 1e9),
}
_BYTES_OF = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB},
}
_MOST_NUMBERS = 1000  # per option
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MOST_YEARS = 10  # until a deadline
_DURATION_EXAMPLES = "write it like 90s, 45min, 8h, 1.5d, 2w, 1h30m, 2:30 (minutes:seconds) or 8:00:00"
_PERCENT_EXAMPLES = "write it like 10% or 2.5%"
_USD_EXAMPLES = "write it like $20, 20, 1,200 or 0.35"
_TOKENS_EXAMPLES = "write it like 3.7B, 500k, 120M or 131072"
_BYTES_EXAMPLES = "write it like 24GiB (1024³), 80GB (1000³), 512MiB or 1048576"


def parse_seconds(text: str, examples: str = _DURATION_EXAMPLES) -> float:
    """Parse a duration. A number without a unit is in seconds, "2:30" is minutes:seconds."""
    clean = text.strip().lower()
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):([0-5]\d(?:\.\d+)?)", clean)
    if clock:
        hours, minutes, seconds = clock.groups()
        return int(hours or 0) * HOUR + int(minutes) * MINUTE + float(seconds)
    if re.fullmatch(rf"(?:{_NUMBER}\s*[a-z]+\s*){{2,}}", clean):  # 1h30m
        parts = re.findall(rf"{_NUMBER}\s*([a-z]+)", clean)
        if all(unit in _SECONDS_OF for _, unit in parts):
            return sum(_plain(number) * _SECONDS_OF[unit] for number, unit in parts)
    return _parse_with_unit(text, _SECONDS_OF, "a duration", examples)


def parse_deadline(text: str, now: datetime) -> float:
    """Parse a deadline, given as a duration or as a moment, and return the seconds until then.

    `now` is this machine's clock, without a time zone. A moment is ISO 8601 with an optional time zone, or a weekday,
    today or tomorrow with a time of day (by default midnight). Raises AdvisorError (exit 2) for the past, for a number
    without a unit and for everything else.
    """
    moment = _moment(text.strip().lower(), now)
    if re.fullmatch(_NUMBER, text.strip()):  # refused, because nearly everybody means hours, not seconds
        number = text.strip()
        raise AdvisorError(f"{text!r} has no unit", f"{number}h, {number}min or {number}s?", exit_code=2)
    if moment is None:
        return parse_seconds(text, f"{_DURATION_EXAMPLES}; a moment like 'Monday 9:00' or 2026-12-01T09:00")
    ahead = moment.year - now.year  # distant years would overflow the clock
    left = (moment.astimezone() - now.astimezone()).total_seconds() if 0 <= ahead <= _MOST_YEARS else float(ahead)
    if left <= 0:
        said = f"{moment:%Y-%m-%d %H:%M}, which is past"
        raise AdvisorError(f"{text!r} is {said}", "give a moment in the future, or a duration such as 8h", exit_code=2)
    if ahead > _MOST_YEARS:
        raise AdvisorError(
            f"{text!r} is {ahead} years away", f"at most {_MOST_YEARS} years, or leave it out", exit_code=2
        )
    return float(max(1, round(left)))


def moment_read(text: str, seconds: float) -> str | None:
    """Describe the moment that a deadline was read as. Returns None if it was given as a duration."""
    moment = moment_of(text, seconds)
    return moment and f"{text} read as {format_moment(moment)}, {format_seconds(seconds)} from now"


def moment_of(text: str, seconds: float) -> str | None:
    """Return in ISO 8601 the moment that a deadline was read as. Returns None if it was given as a duration."""
    if re.match(r"\s*(?:[a-zA-Z]|\d{4}-)", text) is None:
        return None
    return (datetime.now().astimezone() + timedelta(seconds=seconds + 0.5)).isoformat(timespec="seconds")


def format_moment(moment: str) -> str:
    """Format a moment in ISO 8601 by this machine's clock: "Monday, 2026-11-30 09:00"."""
    return f"{datetime.fromisoformat(moment).astimezone():%A, %Y-%m-%d %H:%M}"


def _moment(clean: str, now: datetime) -> datetime | None:
    """Parse a moment, without a time zone unless the text has one. Returns None if the text is not a moment.

    A weekday means the next day of that name, which is today if the time of day is still to come.
    """
    named = re.fullmatch(r"([a-z]+)(?:,?\s+(?:at\s+)?([01]?\d|2[0-3])(?::([0-5]\d))?)?", clean)
    if named:
        at = now.replace(hour=int(named[2] or 0), minute=int(named[3] or 0), second=0, microsecond=0)
        if named[1] in ("today", "tomorrow"):
            return at + timedelta(days=named[1] == "tomorrow")
        days = [number for number, name in enumerate(_WEEKDAYS) if named[1] in (name, name[:3])]
        if days:
            at += timedelta(days=(days[0] - now.weekday()) % 7)
            return at if at > now else at + timedelta(days=7)
    if not re.match(r"\d{4}-\d\d-\d\d(?:$|[t ])", clean):
        return None
    try:
        return datetime.fromisoformat(clean.upper())
    except ValueError:
        return None


def write_count(count: float) -> str:
    """Write a whole number as briefly as possible so that `parse_tokens` reads it back exactly: 10B, 1.5M, 524288."""
    for suffix, factor in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= factor and parse_tokens(short := f"{count / factor:.3g}{suffix}") == count:
            return short
    return str(round(count))


def write_duration(seconds: float) -> str:
    """Write seconds so that `parse_seconds` reads them back exactly: 8h, 2d, 9h26min27s, 0.5s."""
    if not float(seconds).is_integer():
        return f"{seconds!r}s"
    parts, left = [], int(seconds)
    units = (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", 1))
    for unit, length in units if seconds >= 2 * DAY else units[1:]:
        number, left = divmod(left, length)
        parts += [f"{number}{unit}"] if number else []
    return "".join(parts) or "0s"


def parse_usd(text: str) -> float:
    """Parse an amount of dollars."""
    clean = re.sub(r"^(\$|usd)\s*|\s*(\$|usd|dollars?)$", "", text.strip().lower())
    factors = {"": 1, "k": 1e3, "m": 1e6, "million": 1e6}
    return _parse_with_unit(text, factors, "an amount of dollars", _USD_EXAMPLES, clean)


def parse_percent(text: str) -> float:
    """Parse a percentage with its sign; 10% is 0.1."""
    number = text.strip().removesuffix("%").strip()
    if number == text.strip():
        raise AdvisorError(f"{text!r} is not a percentage", _PERCENT_EXAMPLES, exit_code=2)
    return _parse_with_unit(text, {"": 0.01}, "a percentage", _PERCENT_EXAMPLES, number)


def parse_tokens(text: str) -> int:
    """Parse a whole number of tokens or parameters, with k, M, B or T."""
    clean = re.sub(r"\s*(tok(ens?)?|param(eter)?s?)$", "", text.strip().lower())
    tokens = _parse_with_unit(text, _COUNTS_OF, "a number", _TOKENS_EXAMPLES, clean)
    if abs(tokens - round(tokens)) > 1e-6 * max(1.0, tokens):
        raise AdvisorError(f"{text!r} is not a whole number", _TOKENS_EXAMPLES, exit_code=2)
    return round(tokens)


def parse_bytes(text: str) -> int:
    """Parse a size in bytes. GiB is 1024³ and GB 1000³; a plain G is refused."""
    return round(_parse_with_unit(text, _BYTES_OF, "a size in bytes", _BYTES_EXAMPLES))


def parse_network(text: str) -> float:
    """Parse a machine's network bandwidth ("200G", "8x400G" or "25GB/s") into bytes per second in one direction.

    A lower-case b, or none, means bits, in which networks are sold.
    """
    pattern = rf"(?:(\d{{1,3}})\s*[x×]\s*)?{_NUMBER}\s*[gG](b|B|bit)?(?:/s|ps|e)?"
    match = re.fullmatch(pattern, text.strip())
    value = 0.0 if match is None else int(match[1] or 1) * _plain(match[2]) * 1e9 / (1 if match[3] == "B" else 8)
    if not 0 < value < 1e15:
        hint = "write it like 100G, 8x400G or 25GB/s"
        raise AdvisorError(f"{text!r} is not the network of a machine", hint, exit_code=2)
    return value


def write_network(bytes_per_second: float) -> str:
    """Write a network's rate so that `parse_network` reads it: "3200G"."""
    return f"{8 * bytes_per_second / 1e9:.10g}G"


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse whole numbers such as "4", "2,4,8" or "2-8" (includes both ends), sorted and without repetitions."""
    numbers: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 1 <= first <= last or last - first >= _MOST_NUMBERS:
            allowed = f"{part!r} is neither a whole number above zero nor a range of at most {_MOST_NUMBERS:,} of them"
            raise AdvisorError(allowed, "write it like 4, 2-8 or 2,4,8", exit_code=2)
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def parse_whole(text: str) -> int:
    """Parse a whole number."""
    if re.fullmatch(r"[+-]?\d{1,30}", text.strip()) is None:
        raise AdvisorError(f"{text!r} is not a whole number", "write it like 12", exit_code=2)
    return int(text)


def parse_number(text: str) -> float:
    """Parse a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise AdvisorError(f"{text!r} is not a number", "write it like 0.5", exit_code=2)
    return number


def _parse_with_unit(
    text: str, factors: Mapping[str, float], what: str, examples: str, clean: str | None = None
) -> float:
    """Parse a number with one of these units. Raises AdvisorError (exit 2) for anything else, as all parsers do."""
    clean = text.strip().lower() if clean is None else clean
    match = re.fullmatch(rf"{_NUMBER}\s*([a-z]*)", clean)
    if re.fullmatch(rf"-\s*{_NUMBER}\s*[a-z]*", clean):
        raise AdvisorError(f"{text!r} is below zero", examples, exit_code=2)
    if not match or match[2] not in factors:
        raise AdvisorError(f"{text!r} is not {what}", examples, exit_code=2)
    value = _plain(match[1]) * factors[match[2]]
    if not math.isfinite(value):
        raise AdvisorError(f"{text!r} is too large to be {what}", examples, exit_code=2)
    return value


def _plain(number: str) -> float:
    return float(number.replace(",", "").replace("_", ""))
