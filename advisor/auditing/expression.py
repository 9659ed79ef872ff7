"""Arithmetic written out: a result against every reading of the expression that is said to give it."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from advisor.auditing.quantity import Quantity, parse_quantity
from advisor.auditing.verdict import Judgement, Question, compare, holds, show_bytes, unknown, wrong
from advisor.units import format_percent, format_seconds, format_usd

_OPERAND = re.compile(r"\[([^\]]+)\]")
_SIGN, _SIGNS = re.compile(r"\[[^\]]+\]|[*/]"), {"*": "×", "/": "÷"}
_WIDE, _END = 1.05, 0.2  # a range is one from so much on; its ends may be off by so much
_EXACT, _ABOUT = 0.02, 0.06  # what rounding on the way may move a result: nobody is misled by less
# what a number without a unit may leave out: thousands and millions, minutes and hours, per cent, bits
_LEFT_OUT = (1e3, 1e6, 1e9, 1e12, 60.0, 3600.0, 86400.0, 24.0, 100.0, 8.0, 1024.0, 1024.0**2, 1024.0**3)
_WRITTEN = (1e4, 1e8)
_SHOW: dict[str, Callable[[float], str]] = {
    "seconds": format_seconds,
    "usd": format_usd,
    "fraction": format_percent,
    "gpu_hours": lambda hours: f"{_number(hours)} card-hours",
    "energy": lambda joules: f"{_number(joules / 3.6e6)} kWh",
}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Numbers between two ends, both included."""

    low: float
    high: float

    def combine(self, other: Interval, op: Callable[[float, float], float]) -> Interval:
        """All results of an operation on the two."""
        ends = [op(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(low=min(ends), high=max(ends))


_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def expression(q: Question) -> Judgement:
    """value = one of the readings: operands in brackets, + - * / and parentheses, each with its rounding.

    Wrong only where no reading gives it, be it in the units as written or in the bare numbers.
    """
    value, readings = q.get("value"), q.get("readings")
    senses = _in_units if q.get("in_units") else _results
    results = [(*found, reading) for reading in readings for found in senses(reading, value)]
    if not results:
        return unknown("the expression cannot be reckoned")
    words = "; or ".join(f"{_plain(r)} = {_shown(evaluate(r), value)}" for r in readings[:3] if evaluate(r))
    room = _ABOUT if value.text.startswith("~") else _EXACT
    if q.get("in_units") and (ends := _ends_apart(value, [r for text in readings if (r := _as_printed(text))])):
        return wrong(ends, words, consequence="the range promises what its own numbers do not give")
    for result, claimed, reading in results:
        low, high = sorted((result.low * (1 - room), result.high * (1 + room)))
        if claimed.admits(low, high):
            return holds(_shown(evaluate(reading) or result, value), words)
    nearest = min((result for result, _, _ in results), key=lambda r: _apart(r, value))
    return compare(value, nearest.low, nearest.high, show=_show(value), arithmetic=words)


def _ends_apart(value: Quantity, results: list[Interval]) -> str | None:
    """Of a range against ranges: what is wrong where no result has both its ends, though some overlap it."""
    spread = [r for r in results if r.high > _WIDE * r.low > 0]
    if not value.high > _WIDE * value.low > 0 or len(spread) < len(results):
        return None
    if any(abs(r.low / value.low - 1) < _END and abs(r.high / value.high - 1) < _END for r in spread):
        return None
    nearest = min(spread, key=lambda r: abs(r.low / value.low - 1) + abs(r.high / value.high - 1))
    return f"{_shown(nearest, value)}, not {value.text}"


def _as_printed(reading: str) -> Interval | None:
    """The result of the printed ends alone: where both ends are stated, each must come out."""
    operands = [parse_quantity(text) for text in _OPERAND.findall(reading)]
    if not all(math.isfinite(q.high - q.low) for q in operands):
        return None
    return _evaluate(reading, [Interval(low=q.low, high=q.high) for q in operands])


def _apart(result: Interval, value: Quantity) -> float:
    middle = (result.low + result.high) / 2
    return abs(math.log(middle / value.middle)) if middle > 0 and value.middle > 0 else math.inf


def _in_units(reading: str, value: Quantity) -> Iterator[tuple[Interval, Quantity]]:
    """The expression's result where every number has its unit."""
    result = evaluate(reading)
    if result is not None:
        yield result, value


def _results(reading: str, value: Quantity) -> Iterator[tuple[Interval, Quantity]]:
    """The expression's results beside the value, in each sense in which both can be meant."""
    operands = [parse_quantity(text) for text in _OPERAND.findall(reading)]
    in_units = _evaluate(reading, [_interval(q) for q in operands])
    if value.dimension == "seconds" and in_units is not None and _is_work_over_rate(reading, operands):
        yield in_units, value  # no number of hours
        return
    printed = _evaluate(reading, [_interval(_bare(q)) for q in operands])
    for result in (in_units, printed):
        if result is None:
            continue
        yield result, value
        yield result, _bare(value)
        if not _all_scaled([*operands, value]):
            for told in dict.fromkeys((value, _bare(value))):
                yield from ((Interval(low=result.low / f, high=result.high / f), told) for f in _LEFT_OUT)
                yield from ((Interval(low=result.low * f, high=result.high * f), told) for f in _LEFT_OUT)


def _is_work_over_rate(reading: str, operands: Sequence[Quantity]) -> bool:
    """As "486 TFLOPs / 80 TFLOPs": operations by operations a second are seconds, however both are written."""
    quotient = re.fullmatch(r"\[[^\]]+\] / \[[^\]]+\]", reading.strip()) is not None
    return quotient and [q.dimension for q in operands] in (["flops", "flops"], ["work", "flops"])


def _all_scaled(quantities: list[Quantity]) -> bool:
    """Whether thousands, millions or a unit stand beside every number but factors, or it is written out in full."""
    told = [q for q in quantities if q.dimension != "count" or re.search(r"[A-Za-z%$]|,\d{3}", q.text)]
    if len(told) > 1 and all(q in told or re.fullmatch(r"\d{1,3}", q.text) for q in quantities):
        return quantities[-1] in told  # 6 × 7B × 1T
    return all(re.search(r"[A-Za-z%$]|,\d{3}", q.text) or q.dimension != "count" for q in quantities) or all(
        q.dimension == "count" and not re.search(r"[A-Za-z]", q.text) for q in quantities
    )


def _bare(quantity: Quantity) -> Quantity:
    """The number as printed, thousands and millions counted, its unit not."""
    if quantity.dimension == "count":
        return quantity
    number = re.sub(r"\s*[A-Za-z%/][A-Za-z/ -]*$", "", quantity.text).replace("$", "")
    scale = re.search(r"(?:\$|\d\s)(k|M|billion|B|T)(?=\s|$)", quantity.text)
    return parse_quantity(f"{number} {scale[1]}".replace(" B", " billion") if scale else number)


def _interval(quantity: Quantity) -> Interval:
    """What the printed digits can stand for; of an open range its end."""
    low, high = (end if math.isfinite(end) else quantity.middle for end in (quantity.low, quantity.high))
    exact = quantity.dimension == "count" and re.fullmatch(r"[\d,]+", quantity.text)  # 24 sequences are 24
    give = 0.0 if exact else min(quantity.slack, 0.05 * abs(low))
    return Interval(low=low - give, high=high + give)


def _evaluate(reading: str, operands: list[Interval]) -> Interval | None:
    """The result over all values of the operands; None where it is no arithmetic or divides by zero."""
    count = iter(range(len(operands)))
    source = _OPERAND.sub(lambda _: f"v{next(count)}", reading)
    try:
        return _walk(ast.parse(source, mode="eval").body, operands)
    except (SyntaxError, ZeroDivisionError, OverflowError, ValueError):
        return None


def _walk(node: ast.expr, operands: list[Interval]) -> Interval:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _walk(node.left, operands), _walk(node.right, operands)
        return left.combine(right, _OPERATIONS[type(node.op)])
    if isinstance(node, ast.Name) and re.fullmatch(r"v\d+", node.id):
        return operands[int(node.id[1:])]
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Interval(low=float(node.value), high=float(node.value))
    raise ValueError(f"not arithmetic: {ast.dump(node)[:80]}")


def evaluate(reading: str) -> Interval | None:
    """The result of an expression in house units; None where it is no arithmetic."""
    return _evaluate(reading, [_interval(parse_quantity(text)) for text in _OPERAND.findall(reading)])


def _plain(reading: str) -> str:
    return _SIGN.sub(lambda m: _SIGNS.get(m[0], m[0][1:-1]), reading)  # a unit keeps its own: "TFLOP/s"


def _shown(result: Interval | None, value: Quantity) -> str:
    if result is None:
        return "unknown"
    return " to ".join(dict.fromkeys(_show(value)(end) for end in (result.low, result.high)))


def _show(value: Quantity) -> Callable[[float], str]:
    return show_bytes(value) if value.dimension == "bytes" else _SHOW.get(value.dimension, _number)


def _number(value: float) -> str:
    """Four digits, or all of a number that people write out: 16,384."""
    return f"{value:,.0f}" if _WRITTEN[0] <= abs(value) < _WRITTEN[1] else f"{value:,.4g}"


def gives(value: str, readings: Sequence[str]) -> bool:
    """Whether one of the expressions comes out as the quantity, roundings on the way allowed."""
    claimed = parse_quantity(value)
    results = [result for reading in readings if (result := evaluate(reading)) is not None]
    return any(claimed.admits((1 - _ABOUT) * r.low, (1 + _ABOUT) * r.high) for r in results if r.low > 0)
