"""Checks that no row of `kinds.yaml` can express: written arithmetic, statements that must not contradict each other,
exact counts, the identity of a run, the effects of a setting."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from advisor.auditing.counts import counts
from advisor.auditing.quantity import ABOUT, EXACT, LEAST_SLACK, SHAPE, ClaimedQuantity, parse_quantity
from advisor.auditing.relations import Graph, Term, interval, table
from advisor.auditing.verdict import (
    Judgement,
    Question,
    between,
    compare,
    does_not_follow,
    holds,
    show_as,
    unknown,
    wrong,
)
from advisor.findings.case import Severity
from advisor.units import HOUR, format_count, format_percent, format_seconds

OPERAND = re.compile(r"\[([^\]]+)\]")
_ENDS = 3.0  # readings further apart than this factor are not the ends of one range
_WIDE, _END = 1.05, 0.2  # a range is at least this wide; its ends may be off by this share
# what a number without a unit may leave out: thousands and millions, minutes and hours, per cent, bits
_OF_BITS = (8.0, 1024.0, 1024.0**2, 1024.0**3)
_LEFT_OUT = (1e3, 1e6, 1e9, 1e12, 60.0, 3600.0, 86400.0, 24.0, 100.0, *_OF_BITS)
_MOST_MULTIPLES = 10_000


class _Operands(Graph):
    """The names in an expression that is written out in a text. They stand for its operands alone."""

    def __init__(self, operands: Sequence[Term]) -> None:
        self.operands = operands

    def term(self, name: str, barred: frozenset[str] = frozenset()) -> Term:
        """Return the operand of a name: v0, v1, …"""
        return self.operands[int(name[1:])]


def reckon(reading: str, operands: Sequence[Term]) -> Term | None:
    """Return the result over everything that the operands can mean, or None if there is no arithmetic or result."""
    count = iter(range(len(operands)))
    source = OPERAND.sub(lambda _: f"v{next(count)}", reading)
    if set(source) - set("v0123456789.+-*/() "):
        return None
    try:
        found = _Operands(operands).evaluate(source)
    except (SyntaxError, ArithmeticError, ValueError, KeyError):
        return None
    return found if isinstance(found, Term) else None


def expression(q: Question, spelt: Sequence[str] = (), *, strict: bool = False) -> Judgement:
    """Judge a result: one of the readings must give it. `spelt` readings keep their units and their printed numbers.

    A result is wrong only if no reading gives it, neither in the written units nor in the bare numbers. With `strict`,
    each end of a range must be reached.
    """
    value, readings = q.get("value"), list(spelt)
    if q.claim.form == "change" and value.high < 0:  # "-8.1 % better": the sign says which way, as the words do
        value = replace(value, low=-value.high, high=-value.low, text=value.text.replace("-", "", 1))
    for reading in () if spelt else q.get("readings"):
        with suppress(ValueError):  # its operands are quantities
            readings += [reading] if _terms(reading) else []
    in_units = bool(spelt) or q.get("in_units")
    solved = [
        (reading, result) for reading in readings if (result := reckon(reading, _terms(reading, exact=bool(spelt))))
    ]
    results = [(result, value) for _, result in solved] if in_units else []
    results = results or [pair for reading in readings for pair in _senses(reading, value)]
    if not results:
        return unknown("the expression cannot be computed: each printed number must be in brackets, as [24] * [2,048]")
    words = "; or ".join(f"{result.text} = {_shown(result, value)}" for _, result in solved[:3])
    spread = [result for _, result in solved if result.high > _WIDE * result.low > 0]
    if in_units and value.high > _WIDE * value.low > 0 and len(spread) == len(solved):
        room = max(value.slack / value.high, LEAST_SLACK) if strict else math.inf if spelt else _END
        if not any(abs(r.low / value.low - 1) < room and abs(r.high / value.high - 1) < room for r in spread):
            consequence = "the range promises what its own numbers do not give"
            return wrong(f"{_shown(spread[0], value)}, not {value.text}", words, consequence=consequence)
    room = 0.0 if spelt else ABOUT if value.text.startswith("~") else EXACT
    if spelt and value.dimension == "fraction":  # measured numbers, each rounded by its author
        for reading, exact in solved:
            rounded = reckon(reading, _terms(reading, exact=True, rounded=True))
            if rounded is not None and value.admits(*sorted((rounded.low, rounded.high))):
                return holds(_shown(exact, value), words)
    cell = (q.claim.quote or q.claim.text).lstrip().startswith("|")
    for result, claimed in results:
        if cell and not spelt and claimed.low <= result.middle < claimed.high + 2 * claimed.slack:
            return holds(_shown(result, claimed), f"{words} (cut off in the table)")
        if claimed.admits(*sorted((result.low * (1 - room), result.high * (1 + room)))):
            bare = claimed.dimension != value.dimension  # the numbers alone agree
            return holds(_shown(result, claimed), result.text if bare else words)
    # readings of the low and of the high ends of ranges: any value between them can be meant
    by_reading = [list(_senses(reading, value)) for reading in readings] if len(readings) > 1 else []
    for across in zip(*by_reading, strict=False):
        low, high = min(one.low for one, _ in across), max(one.high for one, _ in across)
        if 0 < low <= high < _ENDS * low and across[0][1].admits(low, high):
            return holds(between((low, high), show_as(value.dimension, value)), words)
    # counts and dollars have no other unit, so the true value is stated for the numbers as they are written
    plain = [result for _, result in solved] if value.dimension in ("count", "usd") else []
    signed = [result for result in plain or (one for one, _ in results) if min(result.middle, value.middle) > 0]
    nearest = min(signed, key=lambda result: abs(math.log(result.middle / value.middle)), default=results[0][0])
    return compare(value, nearest.low, nearest.high, words)


def _terms(reading: str, *, bare: bool = False, exact: bool = False, rounded: bool = False) -> list[Term]:
    """Return the operands of an expression. With `rounded`, whole numbers without a unit were rounded too."""
    terms = []
    quantities = [parse_quantity(text) for text in OPERAND.findall(reading)]
    # hours are counted in seconds, so a rent multiplied with them is one per second
    timed = not bare and any(quantity.dimension == "seconds" for quantity in quantities)
    for quantity, text in zip(quantities, OPERAND.findall(reading), strict=True):
        low, high = interval(_bare(quantity) if bare else quantity, exact=exact)
        if timed and quantity.dimension == "usd_per_hour":
            low, high = low / HOUR, high / HOUR
        if rounded:
            give = min(quantity.slack, 0.05 * abs(quantity.low))
            low, high = min(low, quantity.low - give), max(high, quantity.high + give)
        terms.append(Term(low=low, high=high, text=text))
    return terms


def _senses(reading: str, value: ClaimedQuantity) -> Iterator[tuple[Term, ClaimedQuantity]]:
    """Yield the result of an expression and the value, in each sense in which both can be meant."""
    operands = [parse_quantity(text) for text in OPERAND.findall(reading)]
    result = reckon(reading, _terms(reading))
    # operations divided by operations per second are seconds, however both are written, and no number of hours
    seconds = value.dimension == "seconds" and [q.dimension for q in operands] in (["flops"] * 2, ["work", "flops"])
    if seconds and "/" in OPERAND.sub("", reading):
        yield from [(result, value)] if result else []
        return
    # every number but small factors has a unit, a scale (thousand, million) or all its digits: 6 × 7B × 1T
    quantities = [*operands, value]
    written = [q for q in quantities if q.dimension != "count" or _is_scaled(q.text) or "," in q.text]
    if len(written) > 1 and all(q in written or (q.text.isdigit() and len(q.text) < 4) for q in quantities):
        all_scaled = value in written
    else:
        bare = not any(q.dimension != "count" or _is_scaled(q.text) for q in quantities)
        all_scaled = bare or len(written) == len(quantities)
    for found in filter(None, (result, reckon(reading, _terms(reading, bare=True)))):
        senses = dict.fromkeys((value, _bare(value)))
        yield from ((found, sense) for sense in senses)
        if not all_scaled:
            left_out = [f for f in _LEFT_OUT if f not in _OF_BITS or value.dimension != "usd"]
            for factor in (*left_out, *(1 / f for f in left_out)):
                scaled = Term(low=found.low * factor, high=found.high * factor, text=found.text)
                yield from ((scaled, sense) for sense in senses)


def _is_scaled(text: str) -> bool:
    return any(sign.isalpha() or sign in "%$" for sign in text)


def _bare(quantity: ClaimedQuantity) -> ClaimedQuantity:
    """Return the number with its thousands or millions, but without its unit."""
    if quantity.dimension == "count":
        return quantity
    match = SHAPE.fullmatch(quantity.text)
    unit = (match["unit"] or "").strip() if match else ""
    scale = unit.split(" ")[0].replace("B", "billion") if unit.split(" ")[0] in ("k", "M", "billion", "B", "T") else ""
    return parse_quantity(f"{quantity.text.removesuffix(unit).replace('$', '').strip()} {scale}".strip())


def _shown(result: Term, value: ClaimedQuantity) -> str:
    return between((result.low, result.high), show_as(value.dimension, value))


def value_range(q: Question) -> Judgement:
    """Judge a claimed range, minimum or maximum by the printed rows."""
    value, column, ends = q.get("value"), q.get("column"), q.get("ends") or "both"
    steps = q.card.column("step") or [None] * len(q.card.column(column))
    pairs = [(number, step) for step, number in zip(steps, q.card.column(column), strict=False) if number is not None]
    if not pairs:
        return unknown(f"no {column} is given")
    (low, first), (high, last) = min(pairs), max(pairs)
    words = f"printed rows of {column}: {low:,.6g} to {high:,.6g}"
    beyond = [f"{low:,.6g} at step {first or 0:g}"] if ends != "max" and value.least > low else []
    beyond += [f"{high:,.6g} at step {last or 0:g}"] if ends != "min" and value.most < high else []
    if not beyond:
        return holds(f"all {len(pairs)} printed values lie inside", words)
    return wrong(f"the report's own table leaves the range: {' and '.join(beyond)}", words, severity=Severity.NOTE)


def agreement(q: Question) -> Judgement:
    """Check that several statements of one quantity, in numbers or in words, do not contradict each other."""
    numbers, words = q.get("values"), q.get("words")
    if words:
        different = list(dict.fromkeys(word.strip().lower() for word in words))
        if len(different) == 1:
            return holds("stated the same way each time", " = ".join(words))
        with suppress(ValueError):  # they are numbers: one may be rounded, or have a sign that the other omits
            read = [parse_quantity(word.strip().removeprefix("+")) for word in words]
            same = len({number.dimension for number in read}) == 1
            if same and max(number.least for number in read) <= min(number.most for number in read):
                return holds("the statements agree within their rounding", " / ".join(words))
        return wrong(f"the report contradicts itself: {' against '.join(different)}", " / ".join(words))
    if not numbers or len({number.dimension for number in numbers}) > 1:
        return unknown("nothing comparable is given")
    texts = " / ".join(number.text for number in numbers)
    if max(number.least for number in numbers) <= min(number.most for number in numbers):
        return holds("the statements agree within their rounding", texts)
    consequence = "at most one of them can be right, or they are of different kinds, which the text does not state"
    return wrong(f"one quantity, given as {texts}", texts, consequence=consequence)


def dates(q: Question) -> Judgement:
    """Check that dates, and ids that contain dates, name one day."""
    found = {text: re.search(r"(20\d\d)-?([01]\d)-?([0-3]\d)", text) for text in q.get("dates")}
    unread = [text for text, match in found.items() if match is None]
    if unread:
        return unknown(f"no date can be read in {', '.join(unread)}")
    days = {text: "-".join(match.groups()) for text, match in found.items() if match}
    words = ", ".join(f"{text}: {day}" for text, day in days.items())
    if len(set(days.values())) == 1:
        return holds("one date throughout", words)
    years = {day[:4] for day in days.values()}
    why = "the year is mistyped in one of them" if len(years) > 1 else "they are of different days"
    return wrong(f"the dates contradict each other: {why}", words, severity=Severity.NOTE)


def multiples(q: Question) -> Judgement:
    """Check a list of steps that should hold every multiple of an interval, and the last step."""
    every, last = int(q.get("every").low), int(q.get("last").low)
    if every < 1 or last / every > _MOST_MULTIPLES:
        return unknown("the interval is not a whole number of steps, or the list would have no end")
    expected, listed = [*range(every, last, every), last], [int(step.low) for step in q.get("listed")]
    words = f"every {every:,} up to {last:,}: {len(expected)} of them; {len(listed)} are listed"
    both: list[tuple[Any, str]] = [(set(expected) - set(listed), "missing"), (set(listed) - set(expected), "not due")]
    parts = [f"{', '.join(map(str, sorted(steps)))} {word}" for steps, word in both if steps]
    if not parts:
        return holds(f"{len(expected)} of them", words)
    return wrong("; ".join(parts), words, severity=Severity.NOTE, consequence="sizes summed over the list are off too")


def parameters(q: Question) -> Judgement:
    """Judge the declared number of parameters by the exact count of the declared shape."""
    value, model = q.get("value"), counts(q.setup)
    if model is None:
        return unknown("the report does not give the depth and width that would fix the count")
    low, high = model.parameters
    if any(value.admits(r.parameters) for r in model.readings):
        nearest = min(model.readings, key=lambda reading: abs(reading.parameters - value.middle))
        return holds(format_count(nearest.parameters), nearest.words)
    if low < value.low < high:
        return unknown("possible only with a vocabulary or head that the report does not state", model.words)
    consequence = "memory, Chinchilla tokens, learning rate and time derived from this count are off with it"
    return compare(value, low, high, model.words, consequence=consequence)


def run_identity(q: Question) -> Judgement:
    """Judge the label of a run: its speed belongs to that configuration, or to another of the report."""
    steps, elapsed, mine = q.get("steps"), q.get("elapsed"), q.setup.seconds_of_a_step
    each = elapsed.middle / steps.middle
    words = f"{elapsed.text} ÷ {steps.text} steps = {format_seconds(each)} a step"
    if mine is None:
        return unknown("the labelled configuration's step time is not stated", words)
    if 0.9 * mine[0] <= each <= 1.1 * mine[1]:
        return holds("its speed is that of the configuration it is labelled with", words)
    others = [(o, o.seconds_of_a_step) for o in (q.card.run, *q.card.others) if o.name != q.setup.name]
    fits = [o for o, seconds in others if seconds and 0.97 * seconds[0] <= each <= 1.03 * seconds[1]]
    so = f"{format_seconds(each)} a step, not {format_seconds(mine[0])}"
    if not fits:
        return does_not_follow(f"{so}: another configuration, or a machine {each / mine[1]:.1f} times slower", words)
    planned = f", of which it had done {format_percent(steps.middle / fits[0].steps)}" if fits[0].steps else ""
    consequence = "conclusions about completion, loss and speed are drawn from the wrong run"
    so = f"{so}: this is the run {fits[0].name}{planned}"
    return wrong(so, words, severity=Severity.ERROR, consequence=consequence)


def technique(q: Question) -> Judgement:
    """Judge the effect that a setting is said to have, or not to have (effect "none")."""
    name, effect, size = q.get("name"), q.get("effect"), q.get("size")
    setting = table()["techniques"].get(name)
    if setting is None:
        return unknown(f"what {name} acts on is not known here")
    source, why = setting["source"], setting["not_on"]
    acts = setting["acts_on"] in ("transformer", "host", q.setup.precision)
    if effect == "none":
        return wrong("it does something here", source) if acts else holds(why, source)
    if not acts or effect not in setting["helps"]:
        return does_not_follow(f"no effect on {effect.replace('_', ' ')} here: {why}", source)
    if size is not None:
        return unknown(f"the effect is possible; whether it is {size.text} would have to be measured", source)
    return holds("it acts on that", source)
