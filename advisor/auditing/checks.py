"""Checks that no row of `kinds.yaml` can express: exact counts, the identity of a run, the effects of a setting."""

from __future__ import annotations

from advisor.auditing.counts import counts
from advisor.auditing.relations import table
from advisor.auditing.verdict import Judgement, Question, compare, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Severity
from advisor.units import format_count, format_percent, format_seconds


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
