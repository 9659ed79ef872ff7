"""Numbers with their units in a piece of text, as people write them: "~1.36B parameters", "$2.30/hr", "14h 16m"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from advisor.auditing.quantity import Quantity, parse_quantity

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_ABOUT = r"~|≈|∼|about|around|roughly|approximately|approx\.?|nearly|almost|close to|some|an estimated|circa|c\."
_SIDE = r"<=?|>=?|≤|≥|up to|at least|at most|more than|less than|over|under|below|above|no more than|as little as"
_HEAD = re.compile(
    rf"(?<![\w.,/-])(?:(?P<side>{_SIDE})\s*)?(?:(?P<about>{_ABOUT})\s*)?(?P<dollar>(?:US)?\$\s?)?(?P<first>{_NUMBER})"
    rf"(?P<scale1>[kKMBT](?![A-Za-z]))?(?:\s?(?:-|to)\s?[~$]?\s?(?P<second>{_NUMBER})(?![-/]\d))?(?P<more>\+)?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(?:(\d+)\s?d(?:ays?)?,?\s?)?(\d+)\s?h(?:ours?|rs?)?,?\s?(\d{1,2})\s?m(?:in(?:utes?)?)?\b")
_STOPWATCH = re.compile(r"(\d{1,3}):([0-5]\d):([0-5]\d)(?:\.\d+)?(?![\d:])")
_SCALES = {"k": "k", "thousand": "k", "m": "M", "million": "M", "b": "billion", "billion": "billion", "bn": "billion"}
_SCALES |= {"t": "T", "trillion": "T", "g": "billion", "mn": "M"}
_SCALE = r"(?:\s?(?P<scale>[kKMBTG](?![A-Za-z])|[Tt]housand|[Mm]illion|[Bb]illion|[Tt]rillion|bn\b|mn\b))?"
_TOKENS = r"tok(?:en)?s?"
_SECOND = r"(?:\s?/\s?|\s+per\s+|\s+a\s+)(?:s|secs?|seconds?)\b"
_HOUR = r"(?:\s?/\s?|\s+per\s+|\s+an\s+)(?:h|hrs?|hours?)\b"
_DAY = r"(?:\s?/\s?|\s+per\s+|\s+a\s+)(?:d|days?)\b"
_REMEMBERED = 20_000  # texts: each rule reads the same sentences and cells
_ONE_RANGE = 10  # times from end to end: exact numbers further apart are a change
_GPU = r"(?:GPU|card|device|chip|accelerator|[A-Z]{1,3}\d{1,4}\w*)"

_LARGE = (
    *(("quadrillion", "PFLOP"), ("quintillion", "EFLOP"), ("sextillion", "ZFLOP"), ("septillion", "YFLOP")),
    *(("zetta-?", "ZFLOP"), ("yotta-?", "YFLOP")),
)

# pattern of what stands behind the number → unit of `quantity`; the first that matches counts
_UNITS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(r"\s?-?(?:" + pattern + ")", re.IGNORECASE), unit)
    for pattern, unit in (
        (r":\s?1(?![\d:])", "x"),
        (rf"{_TOKENS}{_SECOND}|tps\b|T/s\b", "tok/s"),
        (rf"{_TOKENS}{_HOUR}", "tok/h"),
        (rf"{_TOKENS}{_DAY}", "tok/d"),
        (rf"(?:[A-Z]{{1,3}}\d{{2,4}}\w{{0,4}}\s)?{_GPU}[- ]?(?:hours?|hrs?|h)\b", "GPU-h"),
        (rf"{_GPU}[- ]seconds?\b", "GPU-s"),
        (rf"{_GPU}[- ]days?\b", "GPU-d"),
        (r"TB/s\b", "TB/s"),
        (r"GB/s(?:ec)?\b", "GB/s"),
        (r"bytes?\b", "B"),
        (r"TiB\b|TB\b", "TB"),
        (r"GiB\b", "GiB"),
        (r"GB\b|gigabytes?\b|G\b(?= (?:of )?(?:V?RAM|memory))", "GB"),
        (r"MiB\b", "MiB"),
        (r"MB\b", "MB"),
        (r"KiB\b", "KiB"),
        (r"kB\b", "kB"),
        *((rf"{word}\s?FLOPs?\b(?!\s?(?:/|per))", unit) for word, unit in _LARGE),
        (r"(?:EF(?:LOPs?)?|exaflops?)(?:\s?/\s?s(?:ec)?)\b", "EFLOP/s"),
        (r"(?:EF(?:LOPs?)|exaflops?)\b", "EFLOP"),
        (r"(?:PF(?:LOPs?)?|PETA\b|petaflops?)(?!-?\s?(?:days?|hours?|seconds?))(?:\s?/\s?s(?:ec)?)?\b", "PFLOP/s"),
        (r"(?:model )?(?:TF(?:LOPs?)?|teraflops?)(?:\s?/\s?s(?:ec)?)?\b", "TFLOP/s"),
        (r"(?:GF(?:LOPs?)?|gigaflops?)(?:\s?/\s?s(?:ec)?)\b", "GFLOP/s"),
        (r"(?:GF(?:LOPs?)?|gigaflops?)\b", "GFLOP"),
        (r"FLOPs?\b", "FLOP"),
        (r"%|per ?cent\b", "%"),
        (r"milliseconds?\b|ms\b", "ms"),
        (r"(?:µs|us|microseconds?)\b", "us"),
        (r"(?:seconds?|secs?|s)\b(?!/(?!step|it))", "s"),
        (r"(?:minutes?|mins?)\b", "min"),
        (r"(?:hours?|hrs?|h)\b(?!/)", "h"),
        (r"(?:days?|d)\b", "days"),
        (r"weeks?\b", "weeks"),
        (r"months?\b", "months"),
        (r"years?\b", "years"),
        (r"(?:[x×](?!\s?~?\d|\s?(?:NVIDIA |AMD |RTX )?[A-Z]{1,4}\d|\s?\(|\s[A-Za-z_]+\s?[=:])|times\b|-?fold\b)", "x"),
        (r"kWh\b", "kWh"),
        (r"MWh\b", "MWh"),
        (r"Wh\b", "Wh"),
        (r"kW\b", "kW"),
        (r"MW\b", "MW"),
        (r"(?:W|watts?)\b", "W"),
    )
)
_PRICE = re.compile(
    r"\s?(?:/|per|a|an)\s?(?:\w{1,6}[- ])?(?P<gpu>(?:NVIDIA )?(?:GPU|card|chip|[A-Z]{1,3}\d{2,4}\w*)(?:[- ]"
    r"|\s?/\s?|\s?per\s?))?"
    r"(?:hour|hr|h)\b",
    re.IGNORECASE,
)
_ENERGY_PRICE = re.compile(r"\s?(?:/|per|a)\s?kWh\b", re.IGNORECASE)
_NOUN = re.compile(r"[ -]?([A-Za-z][A-Za-z&]*(?:[- /][A-Za-z]+)?)")


_A_CARD = re.compile(r"\b(?:RTX|GTX|Titan|Quadro|Tesla|GeForce|Radeon|RX|Arc) ?[A-Z]{0,2}$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number or range of a text with what stands around it."""

    quantity: Quantity
    start: int
    end: int
    noun: str  # the words behind it, lower case
    about: bool
    side: str  # "<" at most, ">" at least, "": neither
    scaled: bool  # K, M, B or T was written
    raw: str

    @property
    def value(self) -> float:
        """The number, of a range its middle."""
        return self.quantity.middle

    @property
    def dimension(self) -> str:
        """What it measures: seconds, bytes, count, …"""
        return self.quantity.dimension


def figures(text: str) -> list[Figure]:
    """All numbers of a text in order; years, versions and numbers inside names are left out."""
    return list(_figures(text))


@lru_cache(maxsize=_REMEMBERED)
def _figures(text: str) -> tuple[Figure, ...]:
    found: list[Figure] = []
    at = 0
    while match := _HEAD.search(text, at):
        if _two_numbers(text, match):
            match = _HEAD.search(text[: match.end("first")], at)  # of the first alone; the other comes next
            assert match is not None
        figure = _clock(text, match) or _figure(text, match)
        if figure is None:
            at = match.end("first")
            continue
        found.append(figure)
        at = max(figure.end, match.end("first"))
    return tuple(found)


def _two_numbers(text: str, match: re.Match[str]) -> bool:
    """Whether what looks like a range is a change: "from 1.42 to 0.89", or a difference: "1.42 - 0.89"."""
    if not match["second"] or match["scale1"]:
        return False
    low, high = (float(match[name].replace(",", "")) for name in ("first", "second"))
    backwards = low > high or (high > _ONE_RANGE * low and "," in match["first"] and "," in match["second"])
    told = re.search(r"\bfrom\s*$", text[: match.start()], re.IGNORECASE) is not None
    return (told or backwards) and re.search(r"\bto\b|\s-\s", match[0]) is not None


def _clock(text: str, match: re.Match[str]) -> Figure | None:
    if watch := _STOPWATCH.match(text, match.start("first")):
        seconds = int(watch[1]) * 3600 + int(watch[2]) * 60 + int(watch[3])
        return _made(text, match, parse_quantity(f"{seconds} s"), match.start(), watch.end()) if seconds else None
    clock = _CLOCK.match(text, match.start("first"))
    if clock is None:
        return None
    minutes = int(clock[1] or 0) * 1440 + int(clock[2]) * 60 + int(clock[3])
    quantity = parse_quantity(f"{'~' if match['about'] else ''}{minutes / 60:.2f} h")
    return _made(text, match, quantity, match.start(), clock.end())


def _figure(text: str, match: re.Match[str]) -> Figure | None:
    end = match.end()
    rest = re.match(_SCALE, text[end:], re.IGNORECASE)
    assert rest is not None  # every part of it is optional
    last = rest["scale"] if match["second"] else None
    scale = _SCALES.get((last or match["scale1"] or rest["scale"] or "").lower(), "")
    end += rest.end()
    if match["scale1"] and rest["scale"] and not match["second"]:
        return None
    unit, end = _unit(text, end, bool(match["dollar"]), scale)
    if unit is None or _is_name(text, match, end, unit, scale):
        return None
    canonical = f"{'~' if match['about'] else ''}{'$' if match['dollar'] else ''}{_span(match, rest)} {unit}"
    try:
        quantity = parse_quantity(canonical.strip())
    except ValueError:
        return None
    return _made(text, match, quantity, match.start(), end)


def _span(match: re.Match[str], rest: re.Match[str]) -> str:
    """One number or two, in the second's scale: "500k-1M" is 0.5-1 in millions."""
    first, second = match["first"].lower(), (match["second"] or "").lower()
    if not second:
        return first + ("+" if match["more"] else "")
    if match["scale1"] and rest["scale"] and match["scale1"].lower() != rest["scale"].lower():
        factors = {"k": 1e3, "M": 1e6, "billion": 1e9, "T": 1e12}
        own, other = (factors[_SCALES[s.lower()]] for s in (match["scale1"], rest["scale"]))
        first = f"{float(first.replace(',', '')) * own / other:g}"
        return f"{first}-{second}"
    return f"{first}-{second}" + ("+" if match["more"] else "")


def _unit(text: str, end: int, dollar: bool, scale: str) -> tuple[str | None, int]:
    """The unit behind a number in the words of `quantity`, and where it ends; None: it cannot be written so."""
    if dollar:
        if not scale and (energy := _ENERGY_PRICE.match(text, end)):
            return "/kWh", energy.end()
        price = _PRICE.match(text, end)
        if price and not scale:
            return "/h", price.end()
        return scale, end
    for pattern, unit in _UNITS:
        match = pattern.match(text, end)
        if match is None:
            continue
        if scale and unit in ("tok/s", "tok/h", "tok/d", "GPU-h", "GPU-s"):
            known = {"billion": "B"}.get(scale, scale)
            return (
                f"{known} {unit}" if known in ("k", "M") or (known == "B" and unit != "tok/s") else None
            ), match.end()
        if scale and unit not in ("x", "%"):
            continue
        return unit, match.end()
    return scale, end


def _is_name(text: str, match: re.Match[str], end: int, unit: str, scale: str) -> bool:
    """Whether the digits belong to a name, a date or a version: "2026-02-05", "v1.2", "arXiv:2309.09530"."""
    before, after = text[: match.start("first")], text[end:]
    if (
        (unit == "s" and re.match(r"s\b", text[match.end() :]) and _A_CARD.search(before))  # "4 RTX 3090s"
        or re.search(r"(?:arXiv:?\s*|https?:\S*|[#@])$", before, re.IGNORECASE)
        or re.match(r"[.:]\d|[A-Za-z_]\w*\d", after)
        or (not unit and re.match(r"[A-Za-z]{2,}\d*", after) is not None and not scale)
    ):
        return True
    if unit or scale or match["dollar"]:
        return False
    year = re.fullmatch(r"(?:19|20)\d\d", match["first"]) is not None
    dated = re.match(r"-\d\d\b|[,)]", after) or re.search(
        r"(?:[A-Z][a-z]{2,8}\.? ?(?:\d{1,2},?)? ?|\bin |\(|\bet al\.,? )$", before
    )
    return (year and bool(dated)) or re.match(r"(?:st|nd|rd|th)\b", after) is not None


def _made(text: str, match: re.Match[str], quantity: Quantity, start: int, end: int) -> Figure:
    noun = _NOUN.match(text, end)
    side = match["side"] or ""
    sign = (
        "<"
        if re.match(r"<|≤|up|at most|less|under|below|no more|as little", side, re.IGNORECASE)
        else ">"
        if side
        else ""
    )
    return Figure(
        quantity=quantity,
        start=start,
        end=end,
        noun=noun[1].lower() if noun else "",
        about=bool(match["about"]),
        side=sign or (">" if match["more"] else ""),
        scaled=bool(match["scale1"]) or re.search(r"[a-zA-Z]", text[match.end("first") : end]) is not None,
        raw=text[start:end],
    )
