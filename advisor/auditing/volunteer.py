"""What a card's facts say together though no claim says it: utilisation, passes over the data, bills, floors.

Each statement is one that a claim could have made, judged by that claim's own check; what a claim of the card makes is
not said twice. What another way of training explains (a fine-tune, recomputation) is said and accuses nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from advisor.auditing import budget, learning, memory, signs, speed, speed_reasoning
from advisor.auditing.card import Card, Claim
from advisor.auditing.counts import counts
from advisor.auditing.quantity import parse_quantity
from advisor.auditing.verdict import Believe, Judgement, Question, Ruling, between, holds, unknown, wrong
from advisor.findings.case import Severity
from advisor.laws.initial_loss import SOUND
from advisor.laws.mfu import IMPOSSIBLE_MFU
from advisor.units import format_bytes, format_count, format_number, format_percent, format_tokens, format_usd

_BAD = (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)


def volunteered(card: Card, believe: Believe) -> Iterator[tuple[Claim, Judgement]]:
    """Statements of the run's own facts, with what they are worth; those that cannot be made are left out."""
    claimed = {claim.kind for claim in card.claims if claim.about == "run"}
    for kind, text, says, check in _STATEMENTS:
        said = says(card)
        if kind in claimed or None in said.values():
            continue
        claim = Claim(id=f"facts-{kind}", kind=kind, text=text, says=said)
        judgement = check(Question(card=card, claim=claim, believe=believe))
        if judgement.ruling is not Ruling.CANNOT_BE_JUDGED:
            yield claim, judgement
    yield from _phases(card, believe)
    yield from _passes_of_a_step(card, believe)


def _phases(card: Card, believe: Believe) -> Iterator[tuple[Claim, Judgement]]:
    """Phases of a step below their physical floor."""
    told = {claim.get("phase") for claim in card.claims if claim.kind == "phase_time"}
    for phase, seconds in card.timing.items():
        says = {"phase": phase, "value": seconds}
        claim = Claim(id=f"facts-{phase}", kind="phase_time", text=f"{phase}: {seconds.text}", says=says)
        judgement = speed.phase_time(Question(card=card, claim=claim, believe=believe))
        if phase not in told and judgement.ruling is Ruling.WRONG:
            yield claim, judgement


def _passes_of_a_step(card: Card, believe: Believe) -> Iterator[tuple[Claim, Judgement]]:
    """A backward pass that is faster than the forward one: adapters make it as fast, nothing makes it faster."""
    forward, backward = card.timing.get("forward"), card.timing.get("backward")
    concluded = {claim.get("that") for claim in card.claims if claim.kind == "conclusion"}
    if not forward or not backward or backward.most >= forward.least or "healthy_phases" in concluded:
        return
    says = {"that": "healthy_phases"}
    claim = Claim(id="facts-passes", kind="conclusion", text="forward and backward pass", says=says)
    yield claim, speed_reasoning.healthy_phases(Question(card=card, claim=claim, believe=believe))


def _nothing(card: Card) -> dict[str, object]:
    return {}


def _not_accused(judgement: Judgement, why: str) -> Judgement:
    """The same statement where something else than a fault explains it as well."""
    return replace(judgement, ruling=Ruling.HOLDS, so=f"{judgement.so}; {why}")


def _utilisation(q: Question) -> Judgement:
    """MFU of the measured speed."""
    use = signs.utilisation(q.setup)
    if use is None:
        return unknown("shape, card or throughput are not stated")
    if use.low > IMPOSSIBLE_MFU:
        return speed.beyond_peak(f"{format_percent(use.low)}: ", use.arithmetic)
    return holds(f"MFU {between((use.low, use.high), format_percent)}", use.arithmetic)


def _tokens_per_parameter(q: Question) -> Judgement:
    """Tokens of the whole run for each parameter."""
    s, model = q.setup, counts(q.setup)
    if model is None or s.tokens_of_a_step is None or s.steps is None:
        return unknown("shape, steps or tokens of a step are not stated")
    tokens = s.steps * s.tokens_of_a_step
    each = between((tokens / model.parameters[1], tokens / model.parameters[0]), format_number)
    words = (
        f"{s.steps:,} × {s.tokens_of_a_step:,} = {format_tokens(tokens)} ÷ {between(model.parameters, format_count)}"
    )
    return holds(f"{each} tokens for each parameter; about 20 make the most of compute (Hoffmann et al. 2022)", words)


def _passes(q: Question) -> Judgement:
    """Passes over the data; of random tokens there are none."""
    return unknown("the tokens are random") if q.setup.data == "random" else budget.epochs(q)


def _first_loss(q: Question) -> Judgement:
    """The first loss against ln V: below it a fine-tune starts too."""
    judgement, base = learning.initial_loss(q), signs.uniform_loss(q.setup)
    if judgement.ruling in _BAD and base is not None and q.get("value").most < base:
        return _not_accused(judgement, "a fine-tune starts so, an untrained model does not")
    return judgement


def _rate(q: Question) -> Judgement:
    """The learning rate against the laws of pretraining with AdamW: fine-tunes take far less."""
    if q.setup.optimizer != "adamw":
        return unknown("the laws are AdamW's")
    judgement, base, first = learning.learning_rate(q), signs.uniform_loss(q.setup), q.setup.initial_loss
    untrained = base is not None and first is not None and first.most >= base - SOUND
    if judgement.ruling in _BAD and " below " in judgement.so and not untrained:
        return _not_accused(judgement, "usual of a fine-tune")
    return judgement


def _bill(q: Question) -> Judgement:
    """Hours of all steps at the measured speed, and what they cost where a price is stated."""
    s, seconds = q.setup, q.setup.seconds_of_a_step
    if seconds is None or s.steps is None:
        return unknown("steps or the time of a step are not stated")
    hours = s.steps * seconds[0] / 3600, s.steps * seconds[1] / 3600
    taken = between(hours, "{:,.1f} h".format)
    words = f"{s.steps:,} steps × {between(seconds, '{:.3g} s'.format)} = {taken}"
    if s.price is None:
        return holds(f"{taken} for all steps", words)
    bill = between((hours[0] * s.price.low, hours[1] * s.price.high), format_usd)
    return holds(f"{taken} and {bill} for all steps", f"{words} × {s.price.text}")


def _checkpoint(q: Question) -> Judgement:
    """Disk for one checkpoint that a run can be resumed from."""
    model = counts(q.setup)
    if model is None:
        return unknown("the shape is not stated")
    low, high = memory.USUAL_RESUMABLE
    sizes = low * model.parameters[0], high * model.parameters[1]
    words = f"{low:g}-{high:g} bytes × {between(model.parameters, format_count)}"
    return holds(f"{between(sizes, format_bytes)} each, weights and optimizer", words)


def _memory(q: Question) -> Judgement:
    """Whether the run fits its card, by the interval of `advisor predict`.

    That interval is of training without recomputation, whole on each card: beyond it a run is accused only where it is
    on one card, has not run yet, and not even recomputing everything would help.
    """
    s, predicted = q.setup, signs.expected(q.setup, q.believe)
    held, size = (predicted.peak_reserved_bytes, predicted.device_memory_bytes) if predicted else (None, None)
    least = memory.envelope(s, "wide")
    if predicted is None or held is None or size is None or least is None:
        return unknown("card, shape or batch are not stated")
    words = f"predicted {between((held.low, held.high), format_bytes)} of {format_bytes(size)}"
    if predicted.fits is not False:
        return holds(words, words)
    has_run = any((s.steps_done, s.step_time, s.throughput, s.memory_used))
    if least.low > size and s.gpus == 1 and not has_run:
        so = f"it does not fit: {format_bytes(least.low)} are needed at the very least, of {format_bytes(size)}"
        return wrong(so, least.arithmetic, severity=Severity.ERROR)
    return holds(f"{words}: more than that, unless activations are recomputed or the state is split over cards", words)


def _stated_loss(card: Card) -> dict[str, object]:
    return {"value": card.run.initial_loss}


def _stated_rate(card: Card) -> dict[str, object]:
    return {"value": parse_quantity(card.run.learning_rate) if card.run.learning_rate else None}


# kind, what it is about, the fields that a claim of that kind would have, its check
_STATEMENTS: tuple[tuple[str, str, Callable[[Card], dict[str, object]], Callable[[Question], Judgement]], ...] = (
    ("mfu", "how much of the card is used", _nothing, _utilisation),
    ("tokens_per_parameter", "tokens for the model's size", _nothing, _tokens_per_parameter),
    ("epochs", "passes over the data", _nothing, _passes),
    ("initial_loss", "the first loss", _stated_loss, _first_loss),
    ("learning_rate", "the learning rate", _stated_rate, _rate),
    ("cost", "the bill", _nothing, _bill),
    ("memory_total", "device memory", _nothing, _memory),
    ("checkpoint_size", "a checkpoint", _nothing, _checkpoint),
)
