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
_Judged = tuple[str, str]  # a verdict and its reason in words
_SAME = 0.02  # relative: rows and calls are whole numbers, lengths may be padded by one
_SAME_BY_LOG = 0.05  # relative; counters in a log are rounded
_SEEN = {"micro_batch": "rows", "grad_accum": "calls", "seq_len": "length"}
_WORDS = {"rows": "the sequences of a micro-batch", "calls": "the micro-batches of a step",
          "length": "the tokens of a sequence"}  # fmt: skip


def verdicts(recipe: Recipe, base: AdoptedBurst, others: Sequence[AdoptedBurst]) -> tuple[KnobVerdict, ...]:
    """Returns a verdict on each knob that bursts can vary, from all bursts that set it."""
    found: list[tuple[str, _Judged]] = []
    for knob in filter(None, map(recipe.knob, _SEEN)):
        differ = [(b, value) for b in others if (value := b.value(knob.name)) is not None and value != knob.value]
        judge = _by_log if base.source == LOG else _by_shape
        judged = [judge(knob, value, recipe, base, burst) for burst, value in differ if knob.value is not None]
        known = [each for each in judged if each is not None] or [
            (UNTESTED, "no burst that differs in it came to steps")
        ]
        found.append((knob.name, max(known, key=lambda each: _GRAVITY.index(each[0]))))
    if any(burst.value("gpus") is not None for burst in others):
        found.append(("gpus", _processes(recipe, base, others)))
    for name, each in (("steps", 1.0), ("tokens", tokens_of(base))):  # what the knob counts in one step
        if recipe.knob(name) is not None and each:
            found.append((name, _steps(name, each, others)))
    return tuple(KnobVerdict(name=name, verdict=verdict, words=words) for name, (verdict, words) in found)


def end_to_end(recipe: Recipe, base: AdoptedBurst, others: Iterable[AdoptedBurst]) -> bool:
    """Tells whether the rows of a micro-batch are packed end to end into one row, as by TRL without padding.

    A burst that differs only in the micro-batch shows it: it still has one row, whose length changes in proportion.
    """
    value, before = _value(recipe, "micro_batch"), base.shape
    if value in (None, 1) or before is None or before.rows != 1 or before.length is None:
        return False
    alone = [b for b in others if b.value("micro_batch") not in (None, value) and len(b.values) == 1 and b.shape]
    asked = [(b.shape, before.length * (b.value("micro_batch") or 0.0) / (value or 1.0)) for b in alone]
    return bool(asked) and all(s and s.rows == 1 and abs((s.length or 0.0) / n - 1) <= _SAME for s, n in asked)


def cut_apart(recipe: Recipe, burst: AdoptedBurst) -> AdoptedBurst:
    """Returns a burst with the requested batch in place of rows that were packed end to end."""
    shape, rows = burst.shape, burst.value("micro_batch") or _value(recipe, "micro_batch")
    if shape is None or shape.length is None or shape.rows != 1 or not rows:
        return burst
    return replace(burst, shape=replace(shape, rows=rows, length=shape.length / rows, end_to_end=True))


def _by_shape(knob: Knob, value: float, recipe: Recipe, base: AdoptedBurst, burst: AdoptedBurst) -> _Judged | None:
    """Judges a knob by one burst that set it to `value`; returns None if nothing was seen.

    Another number of processes may change the contents of a step, so that such bursts say nothing.
    """
    if base.shape is None or burst.shape is None or burst.processes != base.processes:
        return None
    seen, expected = _SEEN[knob.name], value / (knob.value or 1.0)
    sizes = {what: (getattr(base.shape, what), getattr(burst.shape, what)) for what in _WORDS}
    changes = {what: after / before for what, (before, after) in sizes.items() if before and after}
    if (mine := changes.get(seen)) is None:
        return None
    if abs(mine / expected - 1) <= _SAME:
        return WORKS, f"{knob.key} changes {_WORDS[seen]}"
    if abs(mine - 1) > _SAME:
        before, after = sizes[seen]
        return CAPPED, f"{knob.key} {value:g} should give {before * expected:g} of {_WORDS[seen]}, {after:g} came"
    set_too = {_SEEN[name] for name in _SEEN if burst.value(name) not in (None, _value(recipe, name))}
    moved = [what for what, change in changes.items() if what not in {seen, *set_too} and abs(change - 1) > _SAME]
    if moved:
        return SWAPPED, f"{knob.key} changes {_WORDS[moved[0]]}, not {_WORDS[seen]}"
    return DEAD, f"{knob.key} is accepted and changes nothing: {knob.value:g} and {value:g} gave the same steps"


def _by_log(knob: Knob, value: float, recipe: Recipe, base: AdoptedBurst, burst: AdoptedBurst) -> _Judged | None:
    """Judges a knob by the log of one burst that set only this knob; None for other bursts, or if no step was seen."""
    if len(burst.values) > 1 or not burst.measured:
        return None
    setting, expected = f"{knob.key} {value:g}", value / (knob.value or 1.0)
    # The factor by which a step grew, and its unit.
    if base.step_tokens and burst.step_tokens:
        change, what = burst.step_tokens / base.step_tokens, "tokens"
    elif base.step_epochs and burst.step_epochs:
        change, what = burst.step_epochs / base.step_epochs, "data"
    else:
        medians = [statistics.median(each.step_seconds) for each in (base, burst) if each.step_seconds]
        pace = f"; with {setting} it takes {medians[1] / medians[0]:.2g} times as long" if len(medians) == 2 else ""
        return UNTESTED, f"its log does not say what a step holds{pace}"
    if abs(change / expected - 1) <= _SAME_BY_LOG:
        return WORKS, f"{setting} makes it {change:.3g} times the {what} of a step, by its log"
    if abs(change - 1) > _SAME_BY_LOG:
        return CAPPED, f"{setting} should make it {expected:.3g} times the {what} of a step, {change:.3g} came"
    if recipe.knob("grad_accum") is None:
        may_follow = "or the micro-batches of a step follow from it"
        return UNTESTED, f"a step has the same {what}: {knob.key} does nothing, {may_follow}"
    gave = f"{knob.value:g} and {value:g} gave steps of the same {what}"
    return DEAD, f"{knob.key} is accepted and changes nothing: {gave}"


def as_declared(recipe: Recipe, burst: AdoptedBurst, judged: Iterable[KnobVerdict]) -> AdoptedBurst:
    """Returns a burst seen only in its log with the batch of its knobs, or without one if a knob does not work.

    Values that the command itself sets are trusted, because there is no other source.
    """
    works = {verdict.name for verdict in judged if verdict.verdict == WORKS}
    rows, calls, length = (burst.value(name) or _value(recipe, name) for name in _SEEN)
    lies = any(setting.name in _SEEN and setting.name not in works for setting in burst.values)
    if burst.source != LOG or rows is None or lies:
        return burst
    calls, tokens = round(calls or 1.0), burst.step_tokens / burst.processes if burst.step_tokens else None
    length = length if length is not None or tokens is None else tokens / (rows * calls)
    return replace(burst, shape=BatchShape(rows=rows, calls=calls, length=length, tokens=tokens))


def _value(recipe: Recipe, name: str) -> float | None:
    knob = recipe.knob(name)
    return knob.value if knob is not None else None


def tokens_of(burst: AdoptedBurst) -> float | None:
    """Returns the observed tokens of one step of all processes, or None."""
    seen = burst.shape.tokens if burst.shape is not None else None
    return seen * burst.processes if seen is not None else burst.step_tokens


def rows_of_all(burst: AdoptedBurst) -> float:
    """Returns the rows of a step, of all its processes."""
    assert burst.shape is not None
    return burst.shape.rows * burst.shape.calls * burst.processes


def _processes(recipe: Recipe, base: AdoptedBurst, others: Iterable[AdoptedBurst]) -> _Judged:
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
    batch = ""  # the global batch with this number of processes
    if base.shape is not None and burst.shape is not None and len(burst.values) == 1:
        before, after = rows_of_all(base), rows_of_all(burst)
        stays = before == after
        batch = ", and the global batch stays" if stays else f", and {before:g} rows of a step become {after:g}"
    return WORKS, f"{knob.key} {value:g}: this many train together{batch}"


def _steps(name: str, each: float, others: Iterable[AdoptedBurst]) -> _Judged:
    """Judges whether a run ends by itself after the requested steps. `each`: how much the knob counts per step."""
    tried = [(round(value / each), b) for b in others if (value := b.value(name)) is not None]
    if not tried:
        return UNTESTED, "no burst was run to its own end"
    value, burst = tried[-1]
    if burst.outcome == "completed":
        if burst.steps == value:
            return WORKS, f"it ends on its own after {burst.steps} steps, as asked"
        return CAPPED, f"{value:g} steps were asked for, it ended after {burst.steps}"
    if burst.steps > value:
        return DEAD, f"{value:g} steps were asked for, it had done {burst.steps} when it was ended"
    return UNTESTED, burst.reason or "its run did not come to its end"
