"""Numbers with their units in a piece of text, as people write them: "~1.36B parameters", "$2.30/hr", "14h 16m"."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.auditing.quantity import Quantity, parse_quantity

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_ABOUT = r"~|≈|∼|about|around|roughly|approximately|approx\.?|nearly|almost|close to|some|an estimated|circa|c\."
_SIDE = r"<=?|>=?|≤|≥|up to|at least|at most|more than|less than|over|under|below|above|no more than|as little as"
_HEAD = re.compile(
    rf"(?<![\w.,/-])(?:(?P<side>{_SIDE})\s*)?(?:(?P<about>{_ABOUT})\s*)?(?P<dollar>(?:US)?\$\s?)?(?P<first>{_NUMBER})"
    rf"(?P<scale1>[kKMBT](?![A-Za-z]))?(?:\s?(?:-|to)\s?[~$]?\s?(?P<second>{_NUMBER})(?![-/]\d))?(?P<more>\+)?"
    r"(?:\s?(?P<scale>[kKMBTG](?![A-Za-z])|thousand|million|billion|trillion|bn\b|mn\b))?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(?:(\d+)\s?d(?:ays?)?,?\s?)?(\d+)\s?h(?:ours?|rs?)?,?\s?(\d{1,2})\s?m(?:in(?:utes?)?)?\b")
_STOPWATCH = re.compile(r"(\d{1,3}):([0-5]\d):([0-5]\d)(?:\.\d+)?(?![\d:])")
_SCALES = {"k": "k", "thousand": "k", "m": "M", "million": "M", "mn": "M", "b": "billion", "billion": "billion"}
_SCALES |= {"bn": "billion", "g": "billion", "t": "T", "trillion": "T"}
_FACTORS = {"k": 1e3, "M": 1e6, "billion": 1e9, "T": 1e12}
_ONE_RANGE = 10  # times from end to end: exact numbers further apart are a change
_REMEMBERED = 20_000  # texts
_CHIP = r"[A-Z]{1,3}\d{1,4}\w*"
_GPU = rf"(?:GPU|card|device|chip|accelerator|{_CHIP})"
_PER = r"(?:\s?/\s?|\s+(?:per|an?)\s+)"
_A_SECOND, _AN_HOUR, _A_DAY = (rf"{_PER}(?:{unit})\b" for unit in ("s|secs?|seconds?", "h|hrs?|hours?", "d|days?"))
_RATE = r"(?:\s?/\s?s(?:ec)?)"

# a unit of `quantity`, and what stands behind a number that is in it; the first that matches counts
_UNITS: tuple[tuple[str, str], ...] = (
    ("x", r":\s?1(?![\d:])"),
    ("tok/s", rf"tok(?:en)?s?{_A_SECOND}|tps\b|T/s\b"),
    ("tok/h", rf"tok(?:en)?s?{_AN_HOUR}"),
    ("tok/d", rf"tok(?:en)?s?{_A_DAY}"),
    ("GPU-h", rf"(?:{_CHIP}\s)?{_GPU}[- ]?(?:hours?|hrs?|h)\b"),
    ("GPU-s", rf"{_GPU}[- ]seconds?\b"),
    ("GPU-d", rf"{_GPU}[- ]days?\b"),
    ("TB/s", r"TB/s\b"),
    ("GB/s", r"GB/s(?:ec)?\b"),
    ("B", r"bytes?\b"),
    *((unit, rf"{unit}\b") for unit in ("GiB", "MiB", "KiB", "MB", "kB", "kWh", "MWh", "Wh", "kW", "MW")),
    ("TB", r"Ti?B\b"),
    ("GB", r"GB\b|gigabytes?\b|G\b(?= (?:of )?(?:V?RAM|memory))"),
    *(
        (unit, rf"{word}\s?FLOPs?\b(?!\s?(?:/|per))")
        for word, unit in (("quadrillion", "PFLOP"), ("quintillion", "EFLOP"), ("sextillion", "ZFLOP"),
                           ("septillion", "YFLOP"), ("zetta-?", "ZFLOP"), ("yotta-?", "YFLOP"))
    ),
    ("EFLOP/s", rf"(?:EF(?:LOPs?)?|exaflops?){_RATE}\b"),
    ("EFLOP", r"(?:EFLOPs?|exaflops?)\b"),
    ("PFLOP/s", rf"(?:PF(?:LOPs?)?|PETA\b|petaflops?)(?!-?\s?(?:days?|hours?|seconds?)){_RATE}?\b"),
    ("TFLOP/s", rf"(?:model )?(?:TF(?:LOPs?)?|teraflops?){_RATE}?\b"),
    ("GFLOP/s", rf"(?:GF(?:LOPs?)?|gigaflops?){_RATE}\b"),
    ("GFLOP", r"(?:GF(?:LOPs?)?|gigaflops?)\b"),
    ("FLOP", r"FLOPs?\b"),
    ("%", r"%|per ?cent\b"),
    ("ms", r"milliseconds?\b|ms\b"),
    ("us", r"(?:µs|us|microseconds?)\b"),
    ("s", r"(?:seconds?|secs?|s)\b(?!/(?!step|it))"),
    ("min", r"(?:minutes?|mins?)\b"),
    ("h", r"(?:hours?|hrs?|h)\b(?!/)"),
    ("days", r"(?:days?|d)\b"),
    *((unit, rf"{unit}?\b") for unit in ("weeks", "months", "years")),
    ("x", r"(?:[x×](?!\s?~?\d|\s?(?:NVIDIA |AMD |RTX )?[A-Z]{1,4}\d|\s?\(|\s[A-Za-z_]+\s?[=:])|times\b|-?fold\b)"),
    ("W", r"(?:W|watts?)\b"),
)  # fmt: skip
_UNIT = re.compile(
    r"\s?-?(?:" + "|".join(f"(?P<u{at}>{pattern})" for at, (_, pattern) in enumerate(_UNITS)) + ")", re.IGNORECASE
)
_PRICE = re.compile(
    rf"\s?(?:/|per|an?)\s?(?:(?:\w{{1,6}}[- ])?(?:(?:NVIDIA )?{_GPU}(?:[- ]|\s?/\s?|\s?per\s?))?(?P<hour>hour|hr|h)\b"
    r"|(?P<energy>kWh)\b)",
    re.IGNORECASE,
)
_NOUN = re.compile(r"[ -]?([A-Za-z][A-Za-z&]*(?:[- /][A-Za-z]+)?)")
_DATED = re.compile(r"(?:[A-Z][a-z]{2,8}\.? ?(?:\d{1,2},?)? ?|\bin |\(|\bet al\.,? )$")
_A_CARD = re.compile(r"\b(?:RTX|GTX|Titan|Quadro|Tesla|GeForce|Radeon|RX|Arc) ?[A-Z]{0,2}$", re.IGNORECASE)
_IN_A_NAME = re.compile(r"[.:]\d|[A-Za-z_]\w*\d")
_AT_MOST = ("<", "≤", "up", "at most", "less", "under", "below", "no more", "as little")


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


@lru_cache(maxsize=_REMEMBERED)
def figures(text: str) -> tuple[Figure, ...]:
    """All numbers of a text in order; years, versions and numbers inside names are left out."""
    found: list[Figure] = []
    at = 0
    while match := _HEAD.search(text, at):
        if _two_numbers(text, match):
            match = _HEAD.search(text[: match.end("first")], at)  # of the first alone; the other comes next
            assert match is not None
        figure = _clock(text, match) or _figure(text, match)
        if figure is not None:
            found.append(figure)
        at = max(figure.end if figure else 0, match.end("first"))
    return tuple(found)


def _two_numbers(text: str, match: re.Match[str]) -> bool:
    """Whether what looks like a range is a change: "from 1.42 to 0.89", or a difference: "1.42 - 0.89"."""
    if not match["second"] or match["scale1"]:
        return False
    low, high = (float(match[name].replace(",", "")) for name in ("first", "second"))
    backwards = low > high or (high > _ONE_RANGE * low and "," in match["first"] and "," in match["second"])
    led = text[: match.start()].rstrip().lower().endswith("from")
    return (led or backwards) and (" - " in match[0] or "to" in match[0])


def _clock(text: str, match: re.Match[str]) -> Figure | None:
    if watch := _STOPWATCH.match(text, match.start("first")):
        seconds = int(watch[1]) * 3600 + int(watch[2]) * 60 + int(watch[3])
        return _made(text, match, parse_quantity(f"{seconds} s"), watch.end()) if seconds else None
    clock = _CLOCK.match(text, match.start("first"))
    if clock is None:
        return None
    minutes = int(clock[1] or 0) * 1440 + int(clock[2]) * 60 + int(clock[3])
    about = "~" if match["about"] else ""
    return _made(text, match, parse_quantity(f"{about}{minutes / 60:.2f} h"), clock.end())


def _figure(text: str, match: re.Match[str]) -> Figure | None:
    if match["scale1"] and match["scale"] and not match["second"]:
        return None
    last = match["scale"] if match["second"] else None
    scale = _SCALES.get((last or match["scale1"] or match["scale"] or "").lower(), "")
    unit, end = _unit(text, match.end(), bool(match["dollar"]), scale)
    if unit is None or _is_name(text, match, end, unit, scale):
        return None
    signs = ("~" if match["about"] else "") + ("$" if match["dollar"] else "")
    try:
        quantity = parse_quantity(f"{signs}{_span(match)} {unit}".strip())
    except ValueError:
        return None
    return _made(text, match, quantity, end)


def _span(match: re.Match[str]) -> str:
    """One number or two, in the second's scale: "500k-1M" is 0.5-1 in millions."""
    first, second = match["first"].lower(), (match["second"] or "").lower()
    more = "+" if match["more"] else ""
    if not second:
        return first + more
    own, other = (_SCALES.get((match[name] or "").lower(), "") for name in ("scale1", "scale"))
    if own and other and own != other:
        return f"{float(first.replace(',', '')) * _FACTORS[own] / _FACTORS[other]:g}-{second}"
    return f"{first}-{second}{more}"


def _unit(text: str, end: int, dollar: bool, scale: str) -> tuple[str | None, int]:
    """The unit behind a number in the words of `quantity`, and where it ends; None: it cannot be written so."""
    if dollar:
        price = None if scale else _PRICE.match(text, end)
        return ("/kWh" if price["energy"] else "/h", price.end()) if price else (scale, end)
    match = _UNIT.match(text, end)
    unit = next((_UNITS[int(name[1:])][0] for name, part in match.groupdict().items() if part), "") if match else ""
    if match and scale and unit[:3] in ("tok", "GPU"):
        known = {"billion": "B"}.get(scale, scale)
        allowed = known in ("k", "M") or (known == "B" and unit != "tok/s")
        return f"{known} {unit}" if allowed else None, match.end()
    if match and (not scale or unit in ("x", "%")):
        return unit, match.end()
    return scale, end


def _is_name(text: str, match: re.Match[str], end: int, unit: str, scale: str) -> bool:
    """Whether the digits belong to a name, a date or a version: "2026-02-05", "v1.2", "arXiv:2309.09530"."""
    before, after = text[: match.start("first")], text[end:]
    plural = unit == "s" and text[match.end() : match.end() + 1] == "s" and _A_CARD.search(before)  # "4 RTX 3090s"
    word = before.rstrip().lower().rpartition(" ")[2]
    named = (
        before.endswith(("#", "@")) or word in ("arxiv", "arxiv:") or (word.startswith("http") and before[-1] != " ")
    )
    if plural or named or _IN_A_NAME.match(after):
        return True
    if unit or scale or match["dollar"]:
        return False
    year = len(match["first"]) == 4 and match["first"][:2] in ("19", "20")
    dated = after[:1] in (",", ")") or (after[:1] == "-" and after[1:3].isdigit()) or bool(_DATED.search(before))
    return (after[:2].isalpha() and len(after) > 1) or (year and dated)


def _made(text: str, match: re.Match[str], quantity: Quantity, end: int) -> Figure:
    noun, side = _NOUN.match(text, end), match["side"] or ""
    sign = "<" if side.lower().startswith(_AT_MOST) else ">" if side or match["more"] else ""
    figure = Figure(
        quantity=quantity,
        start=match.start(),
        end=end,
        noun=noun[1].lower() if noun else "",
        about=bool(match["about"]),
        side=sign,
        scaled=bool(match["scale1"]),
        raw=text[match.start() : end],
    )
    lettered = any(letter.isalpha() for letter in text[match.end("first") : end])
    return replace(figure, scaled=figure.scaled or lettered)
