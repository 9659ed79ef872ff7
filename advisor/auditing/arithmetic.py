"""Claims that need no knowledge of training: sums, products, shares, changes, ranges, dates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from advisor.auditing.quantity import LEAST_SLACK, Quantity
from advisor.auditing.verdict import Judgement, Question, compare, holds, show_bytes, unknown, wrong
from advisor.findings.case import Severity
from advisor.units import format_percent, format_rate, format_seconds, format_usd

_SHOW: dict[str, Callable[[float], str]] = {
    "seconds": format_seconds,
    "fraction": format_percent,
    "usd": format_usd,
    "rate": format_rate,
}


def product(q: Question) -> Judgement:
    """value = the product of the factors as the report gives them."""
    value, factors = q.get("value"), q.get("factors")
    low, high = math.prod(f.low for f in factors), math.prod(f.high for f in factors)
    words = " × ".join(f.text for f in factors)
    return _plain(value, low, high, f"{words} = {_number(low, high, value)}")


def total(q: Question) -> Judgement:
    """value = the sum of the parts; of two ranges each end must agree."""
    value, parts = q.get("value"), q.get("parts")
    low, high = sum(p.low for p in parts), sum(p.high for p in parts)
    words = f"{' + '.join(p.text for p in parts)} = {_number(low, high, value)}"
    apart = max(abs(value.low - low), abs(value.high - high))
    if value.low < value.high and low < high and apart > max(value.slack, LEAST_SLACK * value.high):
        return wrong(f"{_show(value)(low)} to {_show(value)(high)}, not {value.text}", words)
    return _plain(value, low, high, words)


def difference(q: Question) -> Judgement:
    """value = whole − part, ranges taken end by end."""
    value, whole, part = q.get("value"), q.get("whole"), q.get("part")
    low, high = whole.low - part.high, whole.high - part.low
    return _plain(value, low, high, f"{whole.text} − {part.text} = {_number(low, high, value)}")


def quotient(q: Question) -> Judgement:
    """value = over ÷ by."""
    value, over, by = q.get("value"), q.get("over"), q.get("by")
    if by.low <= 0:
        return unknown("the divisor is not positive")
    low, high = over.low / by.high, over.high / by.low
    return _plain(value, low, high, f"{over.text} ÷ {by.text} = {_number(low, high, value)}")


def share(q: Question) -> Judgement:
    """value = part ÷ whole, in per cent."""
    value, part, whole = q.get("value"), q.get("part"), q.get("whole")
    if whole.low <= 0:
        return unknown("the whole is not positive")
    low, high = part.low / whole.high, part.high / whole.low
    return compare(
        value, low, high, show=format_percent, arithmetic=f"{part.text} ÷ {whole.text} = {_percent(low, high)}"
    )


def change(q: Question) -> Judgement:
    """Judge "x % less", "x % more" from one number to another; "slower" and "faster" are tried on time and on rate."""
    value, start, end, way = (q.get(name) for name in ("value", "from", "to", "way"))
    if min(start.low, end.low) <= 0:
        return unknown("a percentage of a number that is not positive means nothing")
    before, after = start.middle, end.middle
    if way in ("less", "more"):
        moved = (after / before - 1) * (1 if way == "more" else -1)
        words = f"{start.text} to {end.text} is {abs(moved):.1%} {way if moved >= 0 else _OPPOSITE[way]}".replace(
            "%", " %"
        )
        return compare(value, moved, show=format_percent, arithmetic=words, consequence=_PERCENT_CONSEQUENCE)
    return _speed_change(value, before, after, way, f"{start.text} against {end.text} a step")


_OPPOSITE = {"less": "more", "more": "less"}
_PERCENT_CONSEQUENCE = "plans scaled by this percentage inherit the error"


def _speed_change(value: Quantity, before: float, after: float, way: str, what: str) -> Judgement:
    """Per cent slower or faster, from seconds to seconds, in either of the senses people use."""
    time, rate = after / before - 1, 1 - before / after
    if way == "faster":
        time, rate = 1 - after / before, before / after - 1
    words = f"{what}: {abs(time):.0%} {'more' if time * (way == 'slower') > 0 else 'less'} time"
    words += f", a throughput {abs(rate):.0%} {'lower' if way == 'slower' else 'higher'}".replace("%", " %")
    words = re.sub(r"(\d)%", r"\1 %", words)
    if value.admits(time) or value.admits(rate):
        return holds(words, words)
    factor = max(after / before, before / after)
    so = f"{factor:.2f} times as {'slow' if way == 'slower' else 'fast'}: no reading of it gives {value.text}"
    return wrong(so, words, consequence="time and cost planned with this percentage are off by the same factor")


def mean(q: Question) -> Judgement:
    """value = the mean of a printed column between two steps."""
    value, column = q.get("value"), q.get("column")
    first, last = q.get("first_step") or -math.inf, q.get("last_step") or math.inf
    steps, numbers = q.card.column("step"), q.card.column(column)
    chosen = [n for s, n in zip(steps, numbers, strict=False) if n is not None and first <= (s or 0) <= last]
    if not chosen:
        return unknown(f"no {column} is given between these steps")
    result = sum(chosen) / len(chosen)
    return _plain(value, result, result, f"mean of {len(chosen)} printed values: {result:,.4g}")


def span(q: Question) -> Judgement:
    """A claimed range, minimum or maximum against the printed rows."""
    value, column, ends = q.get("value"), q.get("column"), q.get("ends") or "both"
    numbers = [n for n in q.card.column(column) if n is not None]
    if not numbers:
        return unknown(f"no {column} is given")
    low, high = min(numbers), max(numbers)
    words = f"printed rows of {column}: {low:,.6g} to {high:,.6g}"
    beyond = []
    if ends in ("both", "min") and value.least > low:
        beyond.append(f"{low:,.6g} at step {_step_of(q, column, low)}")
    if ends in ("both", "max") and value.most < high:
        beyond.append(f"{high:,.6g} at step {_step_of(q, column, high)}")
    if not beyond:
        return holds(f"all {len(numbers)} printed values lie inside", words)
    return wrong(f"the report's own table leaves the range: {' and '.join(beyond)}", words, severity=Severity.NOTE)


def _step_of(q: Question, column: str, number: float) -> str:
    steps, values = q.card.column("step"), q.card.column(column)
    return f"{steps[values.index(number)]:g}" if steps else "unknown"


def agreement(q: Question) -> Judgement:
    """Several statements of one quantity, in numbers or words, that must not contradict each other."""
    numbers, words = q.get("values"), q.get("words")
    if words:
        different = list(dict.fromkeys(w.strip().lower() for w in words))
        if len(different) == 1:
            return holds("said the same way each time", " = ".join(words))
        return wrong(f"the report contradicts itself: {' against '.join(different)}", " / ".join(words))
    if not numbers or len({n.dimension for n in numbers}) > 1:
        return unknown("nothing comparable is given")
    least, most = max(n.least for n in numbers), min(n.most for n in numbers)
    words = " / ".join(n.text for n in numbers)
    if least <= most:
        return holds("the statements agree within their rounding", words)
    return wrong(
        f"one quantity, given as {words}",
        words,
        consequence="at most one of them can be right, or they are of different kinds, which is not said",
    )


def dates(q: Question) -> Judgement:
    """Dates and ids with dates in them that speak of one day."""
    days = {text: date for text in q.get("dates") if (date := _date(text))}
    unread = [text for text in q.get("dates") if text not in days]
    if unread:
        return unknown(f"no date can be read in {', '.join(unread)}")
    words = ", ".join(f"{text}: {date}" for text, date in days.items())
    if len(set(days.values())) == 1:
        return holds("one date throughout", words)
    years = {date[:4] for date in days.values()}
    what = "the year is mistyped in one of them" if len(years) > 1 else "they are of different days"
    return wrong(f"the dates contradict each other: {what}", words, severity=Severity.NOTE)


def _date(text: str) -> str | None:
    match = re.search(r"(20\d\d)-?([01]\d)-?([0-3]\d)", text)
    return "-".join(match.groups()) if match else None


_MOST_MULTIPLES = 10_000


def multiples(q: Question) -> Judgement:
    """A list of steps at which something happens every so many steps, and at the end."""
    every, last = int(q.get("every").low), int(q.get("last").low)
    if every < 1 or last / every > _MOST_MULTIPLES:
        return unknown("the interval is no whole number of steps, or the list would have no end")
    expected = [*range(every, last, every), last]
    listed = [int(step.low) for step in q.get("listed")]
    missing, extra = (sorted(set(a) - set(b)) for a, b in ((expected, listed), (listed, expected)))
    words = f"every {every:,} up to {last:,}: {len(expected)} of them; {len(listed)} are listed"
    if not missing and not extra:
        return holds(f"{len(expected)} of them", words)
    parts = [
        f"{', '.join(map(str, steps))} {word}" for steps, word in ((missing, "missing"), (extra, "not due")) if steps
    ]
    return wrong("; ".join(parts), words, severity=Severity.NOTE, consequence="sizes summed over the list are off too")


def _plain(value: Quantity, low: float, high: float, arithmetic: str) -> Judgement:
    return compare(value, low, high, show=_show(value), arithmetic=arithmetic)


def _show(value: Quantity) -> Callable[[float], str]:
    return show_bytes(value) if value.dimension == "bytes" else _SHOW.get(value.dimension, "{:,.6g}".format)


def _number(low: float, high: float, value: Quantity) -> str:
    ends = [_show(value)(end) for end in (low, high)]
    return " to ".join(dict.fromkeys(ends))


def _percent(low: float, high: float) -> str:
    return " to ".join(f"{end:.2%}".replace("%", " %") for end in dict.fromkeys((low, high)))
