"""Tests whether a knob does what its name says: compares the batches of two bursts that differ in it. Pure.

If only the log of a program was seen, it compares a step's tokens or its share of the data.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from advisor.store.adopted import LOG, AdoptedBurst, BatchShape, Knob, KnobVerdict, Recipe

WORKS, DEAD, CAPPED, SWAPPED, UNTESTED = "works", "dead", "capped", "swapped", "untested"
_GRAVITY = (UNTESTED, WORKS, CAPPED, SWAPPED, DEAD)  # from mild to severe; a knob gets its most severe verdict
Told = tuple[str, str]  # a verdict and its reason in words
_SAME = 0.02  # relative: rows and calls are whole numbers, lengths may be padded by one
_SAME_BY_LOG = 0.05  # relative; counters in a log are rounded
_SEEN = {"micro_batch": "rows", "grad_accum": "calls", "seq_len": "length"}
_WORDS = {
    "rows": "the sequences of a micro-batch",
    "calls": "the micro-batches of a step",
    "length": "the tokens of a sequence",
}


def verdicts(recipe: Recipe, base: AdoptedBurst, others: Sequence[AdoptedBurst]) -> tuple[KnobVerdict, ...]:
    """Returns a verdict on each knob that bursts can vary, from all bursts that set it."""
    found = [(name, _verdict(name, recipe, base, others)) for name in _SEEN if recipe.knob(name) is not None]
    if any(burst.value("gpus") is not None for burst in others):
        found.append(("gpus", _processes(recipe, base, others)))
    if recipe.knob("steps") is not None:
        found.append(("steps", _steps("steps", 1.0, others)))
    if recipe.knob("tokens") is not None and (each := tokens_of(base)):
        found.append(("tokens", _steps("tokens", each, others)))
    return tuple(KnobVerdict(name=name, verdict=verdict, words=words) for name, (verdict, words) in found)


def end_to_end(recipe: Recipe, base: AdoptedBurst, others: Iterable[AdoptedBurst]) -> bool:
    """Tells whether the rows of a micro-batch are packed end to end into one row, as by TRL without padding.

    A burst that differs only in the micro-batch shows it: it still has one row, whose length changes in proportion.
    """
    knob, before = recipe.knob("micro_batch"), base.shape
    if knob is None or knob.value in (None, 1) or before is None or before.rows != 1 or before.length is None:
        return False
    alone = [b for b in others if b.value("micro_batch") not in (None, knob.value) and len(b.values) == 1 and b.shape]
    asked = [(b.shape, before.length * (b.value("micro_batch") or 0.0) / (knob.value or 1.0)) for b in alone]
    return bool(asked) and all(s and s.rows == 1 and abs((s.length or 0.0) / n - 1) <= _SAME for s, n in asked)


def cut_apart(recipe: Recipe, burst: AdoptedBurst) -> AdoptedBurst:
    """Returns a burst whose rows were packed end to end with the batch that was asked for."""
    knob, shape = recipe.knob("micro_batch"), burst.shape
    rows = burst.value("micro_batch") or (knob.value if knob is not None else None)
    if shape is None or shape.length is None or shape.rows != 1 or not rows:
        return burst
    return replace(burst, shape=replace(shape, rows=rows, length=shape.length / rows, end_to_end=True))


def _verdict(name: str, recipe: Recipe, base: AdoptedBurst, others: Iterable[AdoptedBurst]) -> Told:
    knob = recipe.knob(name)
    assert knob is not None  # only knobs of the recipe are judged
    of_one = _one_by_log if base.source == LOG else _one
    judged = []
    for burst in others:
        value = burst.value(name)
        if value is None or knob.value is None or value == knob.value:
            continue
        if (one := of_one(knob, value, value / knob.value, recipe, base, burst)) is not None:
            judged.append(one)
    judged = judged or [(UNTESTED, "no burst that differs in it came to steps")]
    return max(judged, key=lambda one: _GRAVITY.index(one[0]))


def _one(
    knob: Knob, value: float, expected: float, recipe: Recipe, base: AdoptedBurst, burst: AdoptedBurst
) -> Told | None:
    """Judges a knob by one burst that set it to `value`, `expected` times its own; returns a verdict and its words.

    Returns None if nothing was seen.
    """
    if base.shape is None or burst.shape is None:
        return None
    if burst.processes != base.processes:  # that may change the contents of a step
        return None
    seen = _SEEN[knob.name]
    before, after = base.shape, burst.shape
    length = after.length / before.length if before.length and after.length else None
    changes = {"rows": after.rows / before.rows, "calls": after.calls / before.calls, "length": length}
    mine = changes[seen]
    if mine is None:
        return None
    if abs(mine / expected - 1) <= _SAME:
        return WORKS, f"{knob.key} changes {_WORDS[seen]}"
    if abs(mine - 1) > _SAME:
        was, came = getattr(before, seen), getattr(after, seen)
        return CAPPED, f"{knob.key} {value:g} should give {was * expected:g} of {_WORDS[seen]}, {came:g} came"
    set_too = {_SEEN[n] for n in _SEEN if n != knob.name and burst.value(n) not in (None, _value(recipe, n))}
    moved = [
        what for what, change in changes.items() if what not in {seen, *set_too} and change and abs(change - 1) > _SAME
    ]
    if moved:
        return SWAPPED, f"{knob.key} changes {_WORDS[moved[0]]}, not {_WORDS[seen]}"
    return DEAD, f"{knob.key} is accepted and changes nothing: {knob.value:g} and {value:g} gave the same steps"


def _one_by_log(
    knob: Knob, value: float, expected: float, recipe: Recipe, base: AdoptedBurst, burst: AdoptedBurst
) -> Told | None:
    """Judges a knob by the log of one burst that set only this knob; None for other bursts, or if no step was seen."""
    if len(burst.values) > 1 or not burst.measured:
        return None
    # The factor by which a step grew, and its unit.
    if base.step_tokens and burst.step_tokens:
        change, what = burst.step_tokens / base.step_tokens, "tokens"
    elif base.step_epochs and burst.step_epochs:
        change, what = burst.step_epochs / base.step_epochs, "data"
    else:
        change, what = None, ""
    if change is None:
        pace = ""
        if base.step_seconds:
            factor = statistics.median(burst.step_seconds) / statistics.median(base.step_seconds)
            pace = f"; with {knob.key} {value:g} it takes {factor:.2g} times as long"
        return UNTESTED, f"its log does not say what a step holds{pace}"
    if abs(change / expected - 1) <= _SAME_BY_LOG:
        return WORKS, f"{knob.key} {value:g} makes it {change:.3g} times the {what} of a step, by its log"
    if abs(change - 1) > _SAME_BY_LOG:
        asked = f"{knob.key} {value:g} should make it {expected:.3g} times the {what} of a step"
        return CAPPED, f"{asked}, {change:.3g} came"
    if recipe.knob("grad_accum") is None:
        may_follow = "or the micro-batches of a step follow from it"
        return UNTESTED, f"a step has the same {what}: {knob.key} does nothing, {may_follow}"
    gave = f"{knob.value:g} and {value:g} gave steps of the same {what}"
    return DEAD, f"{knob.key} is accepted and changes nothing: {gave}"


def as_declared(recipe: Recipe, burst: AdoptedBurst, told: Iterable[KnobVerdict]) -> AdoptedBurst:
    """Returns a burst seen only in its log with the batch of its knobs, or without one if a knob does not work.

    Values that the command itself sets are trusted, because there is no other source.
    """
    works = {verdict.name for verdict in told if verdict.verdict == WORKS}
    if burst.source != LOG or any(s.name in _SEEN and s.name not in works for s in burst.values):
        return burst

    def asked(name: str) -> float | None:
        return burst.value(name) or _value(recipe, name)

    rows, calls, length = asked("micro_batch"), asked("grad_accum") or 1.0, asked("seq_len")
    if rows is None:
        return burst
    tokens = burst.step_tokens / burst.processes if burst.step_tokens else None
    length = length if length is not None or tokens is None else tokens / (rows * calls)
    return replace(burst, shape=BatchShape(rows=rows, calls=round(calls), length=length, tokens=tokens))


def _value(recipe: Recipe, name: str) -> float | None:
    knob = recipe.knob(name)
    return knob.value if knob is not None else None


def tokens_of(burst: AdoptedBurst) -> float | None:
    """Returns the observed tokens of one step of all processes, or None."""
    seen = burst.shape.tokens if burst.shape is not None else None
    return seen * burst.processes if seen is not None else burst.step_tokens


def _processes(recipe: Recipe, base: AdoptedBurst, others: Iterable[AdoptedBurst]) -> Told:
    """Judges whether as many processes train together as were asked for."""
    knob = recipe.knob("gpus")
    assert knob is not None
    tried = [(value, burst) for burst in others if (value := burst.value("gpus")) not in (None, knob.value)]
    seen = [(value, burst) for value, burst in tried if burst.steps > 0]
    if not seen:
        why = f": {tried[-1][1].reason}" if tried and tried[-1][1].reason else ""
        return UNTESTED, f"with another number it did not train{why}"
    for value, burst in seen:
        if burst.processes == base.processes:
            return DEAD, f"{knob.key} {value:g} is accepted, and {base.processes} trained together as before"
        if burst.processes != value:
            return CAPPED, f"{knob.key} {value:g} was asked for, {burst.processes} trained together"
    value, burst = seen[0]
    beside = ""  # the global batch with this number of processes
    if base.shape is not None and burst.shape is not None and len(burst.values) == 1:
        before, after = rows_of_all(base), rows_of_all(burst)
        stays = before == after
        beside = ", and the global batch stays" if stays else f", and {before:g} rows of a step become {after:g}"
    return WORKS, f"{knob.key} {value:g}: so many train together{beside}"


def rows_of_all(burst: AdoptedBurst) -> float:
    """Returns the rows of a step, of all its processes."""
    assert burst.shape is not None
    return burst.shape.rows * burst.shape.calls * burst.processes


def _steps(name: str, each: float, others: Iterable[AdoptedBurst]) -> Told:
    """Judges whether a run ends by itself after the requested steps. `each`: how much the knob counts per step."""
    tried = [(round(value / each), b) for b in others if (value := b.value(name)) is not None]
    if not tried:
        return UNTESTED, "no burst was left to end by itself"
    value, burst = tried[-1]
    if burst.outcome == "completed":
        if burst.steps == value:
            return WORKS, f"it ends by itself after {burst.steps} steps, as asked"
        return CAPPED, f"{value:g} steps were asked for, it ended after {burst.steps}"
    if burst.steps > value:
        return DEAD, f"{value:g} steps were asked for, it had done {burst.steps} when it was ended"
    return UNTESTED, burst.reason or "its run did not come to its end"
