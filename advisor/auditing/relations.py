"""Solve and compare expressions over named quantities: of the claim, its configuration, its GPU, or each other."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from advisor.auditing import facts
from advisor.auditing.functions import result_of
from advisor.auditing.quantity import LEAST_SLACK, ClaimedQuantity
from advisor.auditing.verdict import (
    Judgement,
    Question,
    Ruling,
    UnstatedError,
    between,
    compare,
    does_not_follow,
    holds,
    show_as,
    unknown,
)
from advisor.findings.case import Confidence, Severity
from advisor.store.disk import read_yaml

_DISCOUNT = re.compile(r"\b(?:spot|preemptible|reserved|committed|discount\w*)\b", re.IGNORECASE)
_SURE = 1.1  # factor by which a relation may be off and a value is still confirmed, where it may be off by more
_ORDER = (Ruling.HOLDS, Ruling.CANNOT_BE_JUDGED, Ruling.WRONG)
_DEEPEST = 5  # longest chain of relations
_NOTHING = 1e-5  # a bound below this is zero
# A claim that names its own model, GPU or work takes no number from the run, because a number belongs to its subject.
_SUBJECTS = ("parameters", "gpu", "work", "layers", "flops_per_token")
_SIGNS: dict[type[ast.operator], tuple[Callable[[float, float], float], str, int]] = {
    ast.Add: (operator.add, "+", 0),
    ast.Sub: (operator.sub, "−", 0),
    ast.Mult: (operator.mul, "×", 1),
    ast.Div: (operator.truediv, "÷", 1),
}


@dataclass(frozen=True, kw_only=True)
class Term:
    """A quantity or the result of an expression: its ends, its spelling, and the fields of the claim that it uses."""

    low: float
    high: float
    text: str
    given: frozenset[str] = frozenset()
    within: float = 1.0  # factor by which the relation behind it may be off
    relations: int = 0  # number of relations that led to it
    level: int = 2  # 0: a sum, 1: a product, 2: a single term

    @property
    def middle(self) -> float:
        """The middle of the two ends."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, kw_only=True)
class RelationRow:
    """One relation that must hold between a claim's quantities; `kinds.yaml` explains each key."""

    of: Sequence[str] = ()  # of a limit: the quantities whose claims it limits
    last: bool = False  # of a limit: used only if nothing else decides
    left: str = "value"
    equals: str | None = None
    least: str | None = None
    most: str | None = None
    when: Mapping[str, Any] = field(default_factory=dict)
    unless: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    within: float = 1.0
    exact: bool = False  # operands count as printed, without the values that round to them
    printed: bool = False  # the value counts as printed too
    verdict: Ruling = Ruling.WRONG
    unit: str = ""  # of `left`, if it is not the value: a dimension, or the field that has it
    so: str = ""
    holds: str = ""
    shows: str = ""  # in place of the arithmetic
    more: Mapping[str, Any] = field(default_factory=dict)  # as in `Judgement`


_EXPRESSIONS = ("left", "equals", "least", "most")


def row_of(raw: Mapping[str, Any]) -> RelationRow:
    """Return one row of the table."""
    entry: dict[str, Any] = {name: value for name, value in raw.items() if value is not None}
    own = {name: value for name, value in entry.items() if name in RelationRow.__dataclass_fields__}
    own |= {name: str(own[name]) for name in _EXPRESSIONS if name in own}
    assert set(entry) <= {*own, *MORE}, entry  # a text with a comma needs quotes there
    return RelationRow(**{**own, "verdict": Ruling(entry.get("verdict", "wrong")), "more": more_of(entry)})


MORE = ("causes", "actions", "consequence", "source", "severity", "confidence", "verdict")


def more_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the causes, actions, source and severity of an entry, in the fields of a `Judgement`."""
    types = {"causes": tuple, "actions": tuple, "consequence": str, "severity": Severity, "confidence": Confidence}
    more: dict[str, Any] = {name: of(entry[name]) for name, of in types.items() if name in entry}
    return more | ({"threshold": entry["source"]} if "source" in entry else {})


@cache
def table() -> dict[str, Any]:
    """Return the raw contents of `kinds.yaml`, which defines the kinds of claims."""
    return read_yaml(Path(__file__).with_name("kinds.yaml"), "table of kinds")


@cache
def _relations() -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """Return each quantity with the expressions from which it follows, and how far off each may be."""
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for row in table()["relations"]:
        for name, senses in row.items():
            if name != "within":
                texts = tuple(senses) if isinstance(senses, list) else (str(senses),)
                found.setdefault(name, []).append((texts, row.get("within", 1.0)))
    return found


@cache
def _parsed(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def interval(quantity: ClaimedQuantity, *, exact: bool = False, most: float = 0.05) -> tuple[float, float]:
    """Return the numbers that round to the printed digits, at most this share away, or only the printed ones if
    `exact`; an open range has one end."""
    low, high = (end if math.isfinite(end) else quantity.middle for end in (quantity.low, quantity.high))
    give = 0.0 if exact or quantity.is_counted else min(quantity.slack, most * abs(low))
    return low - give, high + give


class Graph:
    """All quantities with which one claim can be compared. Names are solved when an expression asks for them."""

    def __init__(
        self,
        q: Question,
        fields: Mapping[str, str],
        target: str = "",
        row: RelationRow | None = None,
        rounded: float | None = None,
    ) -> None:
        self.q, self.fields, self.target = q, fields, target
        self.defaults = row.defaults if row else {}
        self.exact, self.printed = (row.exact or row.printed, row.printed) if row else (rounded is None, False)
        self.rounded = rounded or 0.05
        self.alone = any(q.get(name) is not None for name in _SUBJECTS)

    def term(self, name: str, barred: frozenset[str] = frozenset()) -> Any:
        """Return a quantity by its name: as the claim states it, or the answer that uses most of what it states."""
        if name in barred:
            raise UnstatedError(name)
        stated = self._stated(name)
        if stated is not None:
            return stated
        spec = self.fields.get(name, "").removesuffix("?")
        if spec in ("text", "flag") or ("|" in spec and not spec.startswith("[")):
            return None  # nothing implies words
        found = self.derived(name, barred)
        if not found:
            raise UnstatedError(name)
        return found[0]

    def derived(self, name: str, barred: frozenset[str] = frozenset()) -> list[Term]:
        """Return a quantity from the configuration or by relations, in every sense of one relation.

        Of several relations, it takes the one that uses most of the claim's statements, and then the one with fewest
        steps.
        """
        return next(iter(self.every(name, barred)), [])

    def every(self, name: str, barred: frozenset[str] = frozenset()) -> list[list[Term]]:
        """Return the best derivation of a quantity first, then all others from several statements of the claim."""
        candidates: list[list[Term]] = []
        if name not in barred:
            known = facts.known(self.q, name, alone=self.alone)
            candidates += [[Term(low=known[0], high=known[1], text=known[2])]] if known else []
        inner = barred | {name}
        for senses, within in _relations().get(name, ()) if len(inner) <= _DEEPEST else ():
            solved = []
            for source in senses:
                with suppress(UnstatedError, ArithmeticError):
                    one = self.evaluate(source, inner)
                    solved.append(replace(one, within=one.within * within, relations=one.relations + 1))
            candidates += [solved] if solved else []
        candidates.sort(key=lambda terms: (-len(terms[0].given), terms[0].relations))
        return candidates[:1] + [terms for terms in candidates[1:] if len(terms[0].given) > 1]

    def evaluate(self, source: str, barred: frozenset[str] = frozenset()) -> Any:
        """Return the result of an expression. Raises UnstatedError for a name that nobody states."""
        return self._walk(_parsed(source), barred)

    def _stated(self, name: str) -> Any:
        """Return what the claim itself says about a name, or None if it says nothing."""
        value = self.q.get("value" if name == self.target else name)
        if name == "gpus" and self.q.get("per_gpu"):
            return Term(low=1.0, high=1.0, text="1", given=frozenset(("per_gpu",)))
        time = self.q.get("time")
        if name in ("time", "gpu_hours") and name != self.target and time is not None:
            value = time if time.dimension == ("seconds" if name == "time" else name) else None
        if value is None and name in self.defaults:
            return self.evaluate(str(self.defaults[name]))
        return self._term(value, name)

    def _term(self, value: Any, name: str) -> Any:
        """Return a field of a claim as an operand; words and truth values stay as they are."""
        if isinstance(value, tuple):
            return tuple(self._term(one, name) for one in value)
        if isinstance(value, ClaimedQuantity):
            low, high = interval(value, exact=self.exact, most=self.rounded)
            if name == "value":
                low, high = (value.low, value.high) if self.printed else (value.least, value.most)
            return Term(low=low, high=high, text=value.text, given=frozenset((name,)))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Term(low=value, high=value, text=f"{value:,}", given=frozenset((name,)))
        return value

    def _walk(self, node: ast.expr, barred: frozenset[str]) -> Any:
        if isinstance(node, ast.BinOp):
            one, other = self._walk(node.left, barred), self._walk(node.right, barred)
            operation, sign, level = _SIGNS[type(node.op)]
            ends = [operation(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
            left = f"({one.text})" if one.level < level else one.text
            loose = other.level < level or (other.level <= level and sign != "×" and other.level < 2)
            text = f"{left} {sign} {f'({other.text})' if loose else other.text}"
            return Term(
                low=min(ends),
                high=max(ends),
                text=f"{left} in hours" if sign == "÷" and other.text == "3600" else text,  # times have units in words
                given=one.given | other.given,
                level=level,
                within=max(one.within, other.within),
                relations=one.relations + other.relations,
            )
        if isinstance(node, ast.Name):
            return self.term(node.id, barred)
        if isinstance(node, ast.Constant):
            number = node.value
            return Term(low=number, high=number, text=f"{number:g}") if isinstance(number, int | float) else number
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            than = replace(self.q.claim, about=str(self.q.get(node.value.id)), says={})
            return Graph(replace(self.q, claim=than), {}).term(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "stated":
                known = 0.0
                with suppress(UnstatedError):
                    known = float(self._walk(node.args[0], barred) is not None)
                return Term(low=known, high=known, text="")
            low, high, text = result_of(self.q, node.func.id, self._arguments(node, barred))
            return Term(low=low, high=high, text=text or f"{show_as('count')(low)}")
        raise ValueError(f"not an expression: {ast.dump(node)[:80]}")

    def _arguments(self, node: ast.Call, barred: frozenset[str]) -> Iterator[Any]:
        """Yield the arguments of a function: terms, words, and None for an optional field that is missing."""
        for one in node.args:
            spec = self.fields.get(one.id, "") if isinstance(one, ast.Name) else ""
            raw = self.q.get(one.id) if isinstance(one, ast.Name) else None
            missing = raw is None and spec.endswith("?")
            yield None if missing else raw if isinstance(raw, str) else self._walk(one, barred)


def judge_rows(q: Question, rows: Sequence[RelationRow], fields: Mapping[str, str]) -> Judgement:
    """Judge a claim by the rows of its form: the first failed row decides, or else the last row that holds."""
    held, missing = None, []
    for row in rows:
        fields_of = {name: q.get(name) for name in row.when}
        plain = {n: v.dimension if isinstance(v, ClaimedQuantity) else v or None for n, v in fields_of.items()}
        wanted = {n: one if isinstance(one, list) else [one] for n, one in row.when.items()}
        if (row.unless and q.get(row.unless) is not None) or any(plain[n] not in wanted[n] for n in wanted):
            continue
        try:
            judgement = _judge_row(row, Graph(q, fields, row=row))
        except UnstatedError as error:
            missing.append(str(error).replace("_", " "))
            continue
        if judgement.ruling is not Ruling.HOLDS:
            return judgement
        held = judgement
    return held or unknown(f"{missing[0] if missing else 'what it is held against'} is not stated or not known")


def _judge_row(row: RelationRow, graph: Graph) -> Judgement:
    """Judge a claim by one row."""
    q = graph.q
    value = q.get("value")
    left = graph.evaluate(row.left)
    if left is None:
        raise UnstatedError("value")
    own = row.left == "value" and isinstance(value, ClaimedQuantity)
    unit = value if own else q.get(row.unit)
    show = show_as(unit.dimension if isinstance(unit, ClaimedQuantity) else row.unit or "count", value)
    limit = row.equals or row.least or row.most or ""
    bound = graph.evaluate(limit)
    if row.equals:
        low, high = sorted((bound.low / row.within, bound.high * row.within))
        fits = left.low <= high and low <= left.high
    else:
        fits = left.high >= bound.low if row.least else left.low <= bound.high
    # a bound is named by its relevant end
    ends = (bound.low, bound.high) if row.equals else (bound.low,) if row.least else (bound.high,)
    shown, mine = between(ends, show), between((left.low, left.high), show)
    is_exact = row.equals or bound.low == bound.high
    sign = " = " if is_exact else ", at least " if row.least else ", at most "
    words = f"{bound.text}{sign}{shown}" if bound.level < 2 or row.equals else shown
    # what the claim prints is shown as printed
    stated = [one for many in q.claim.says.values() for one in (many if isinstance(many, tuple) else (many,))]
    if any(isinstance(one, ClaimedQuantity) and one.low == one.high and one.text == left.text for one in stated):
        mine = left.text
    if not own:
        reckoned = left.level < 2 and "{left_text}" not in row.so
        ours, is_constant = f"{left.text} = {mine}" if reckoned else mine, isinstance(_parsed(limit), ast.Constant)
        is_idle = not math.isfinite(ends[0]) or (
            is_constant and abs(ends[0]) < _NOTHING
        )  # no number is held against it
        words = ours if is_idle else f"{ours} against {words}"
        words = "" if is_constant and left.level == 2 and not row.unit else words  # yes or no: its text says which
    said = {name: getattr(one, "text", one) for name, one in q.claim.says.items()}
    said |= {"bound": shown, "bound_text": bound.text, "left": mine, "left_text": left.text}
    said["over"] = f"{left.low - bound.high:,.1f}"
    words = row.shows.format_map(said) or words
    if fits:
        plain = (shown if row.equals else mine) if words else "nothing that is stated speaks against it"
        return holds(row.holds.format_map(said) or plain, words)
    if row.equals and not row.so and own:
        return replace(compare(value, low, high, words, **row.more), ruling=row.verdict)
    side = "" if row.equals else " at least" if row.least else " at most"
    so = (row.so or f"{{bound}}{side}, not {{value}}").format_map(said)
    return replace(does_not_follow(so, words, **row.more), ruling=row.verdict)


def judge_quantity(q: Question, target: str, fields: Mapping[str, str]) -> Judgement:
    """Judge a stated number by what follows for it from the others, or else by limits that no training exceeds.

    The numbers in the calculation may be wrong instead. Then the claim does not follow, and the wrong number is named.
    """
    value: ClaimedQuantity = q.get("value")
    if target == "time" and value.dimension == "gpu_hours":
        target = "gpu_hours"
    if q.get("remaining"):
        if q.steps is None or q.setup.steps_done is None:
            return unknown("the steps of all, or those that are done, are not stated")
        left = facts.quantity_of(q.steps - q.setup.steps_done)
        q = replace(q, claim=replace(q.claim, says={**q.claim.says, "steps": left}))
    own_price = any(q.get(name) is not None for name in ("price", "usd_per_hour"))
    if target in ("usd", "usd_per_hour") and not own_price and _DISCOUNT.search(f"{q.claim.quote} {q.claim.text}"):
        return unknown("the price of such a machine is not stated")
    graph, rounded = Graph(q, fields, target), Graph(q, fields, target, rounded=LEAST_SLACK)
    ways = zip(*(one.every(target, frozenset({target})) for one in (graph, rounded)), strict=True)
    every = [[_against(value, *pair) for pair in zip(*senses, strict=True)] for senses in ways]
    # the numbers of one statement are one equation: each way to the value that uses only them must give it
    held = None
    for judgements in every:
        best = min(judgements, key=lambda one: _ORDER.index(one.ruling))
        if best.ruling is not Ruling.HOLDS:
            return judgements[0] if best.ruling is Ruling.WRONG else best
        held = held or best
    held = (_premise(graph) or held) if held and graph.alone else held
    for row in map(row_of, table()["limits"]):
        bounds = target in row.of and (graph.alone or row.left in (target, "value")) and not (row.last and held)
        try:
            judgement = _judge_row(row, graph) if bounds else None
        except (UnstatedError, ArithmeticError):
            continue
        if judgement is not None and judgement.ruling is not Ruling.HOLDS:
            return judgement
        held = held or judgement
    wanted = [senses[0] for senses, _ in _relations().get(target, ())][:2]
    missing = f"it would follow from {' or from '.join(wanted).replace('_', ' ')}, which the report does not state"
    return held or _premise(graph) or unknown(missing)


def _against(value: ClaimedQuantity, term: Term, rounded: Term) -> Judgement:
    """Compare a value with what follows for it: wrong beyond what the relation may be off, and unsure close to that.

    `rounded` is what follows from everything that rounds to the stated numbers.
    """
    follows = between((term.low, term.high), show_as(value.dimension, value))
    words, sure = f"{term.text} = {follows}", min(term.within, _SURE)
    if not value.admits(rounded.low / term.within, rounded.high * term.within):
        return compare(value, term.low, term.high, words)
    if value.admits(rounded.low / sure, rounded.high * sure):
        return holds(follows, words)
    return unknown(f"{follows} would follow; {value.text} is possible, with recomputation or long sequences", words)


def _premise(graph: Graph) -> Judgement | None:
    """Return a verdict if an operand of the claim contradicts the claim's other numbers, else None."""
    for name, stated in graph.q.claim.says.items():
        if name == "value" or not isinstance(stated, ClaimedQuantity):
            continue
        name = stated.dimension if name == "time" and stated.dimension == "gpu_hours" else name
        for term in graph.derived(name, frozenset({name, graph.target}))[:1]:
            judgement = _against(stated, term, term)
            if judgement.ruling is Ruling.WRONG and term.given:
                return does_not_follow(
                    f"it is reckoned from {stated.text}, which is wrong: {judgement.so}", judgement.arithmetic
                )
    return None
