"""Claims about device memory and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.auditing import signs
from advisor.auditing.card import Setup
from advisor.auditing.counts import counts, vocabulary
from advisor.auditing.verdict import (
    Judgement,
    Question,
    between,
    compare,
    does_not_follow,
    holds,
    show_bytes,
    unknown,
    wrong,
)
from advisor.prediction.profile import FIT_MARGIN
from advisor.units import format_bytes, format_count, format_percent

# Bytes a parameter that training keeps: weights, gradients and optimizer state (sources §2.1). The wide band reaches
# from bf16 throughout to Megatron's fp32 masters and gradients; the usual one leaves out what few programs do.
_STATE = {"usual": (10.0, 18.0), "wide": (4.0, 20.0)}  # 4: everything sharded over several GPUs
# Bytes per token, layer and width kept for the backward pass in 16 bits: compiled, eager, eager without fused attention
# in fp32 (sources §2.2).
_ACTIVATIONS = {"usual": (24.0, 56.0), "wide": (2.0, 240.0)}
_LOGITS = {"usual": (6.0, 12.0), "wide": (0.0, 16.0)}  # bytes per token and vocabulary row (sources §2.3)
_OVERHEAD = {"usual": (1e9, 3e9), "wide": (0.3e9, 5e9)}  # context, libraries, fragmentation (sources §2.4)
# A resumable checkpoint holds weights and optimizer state: 12 bytes a parameter with AdamW in fp32, 8 with Muon,
# 6 with everything in bf16 (sources §2.4). Fewer cannot be resumed from.
_RESUMABLE = (6.0, 18.0)
USUAL_RESUMABLE = (8.0, 12.0)
_CLEARLY = 1.02
_MODEL_ONLY = (2.0, 4.0)


def memory_part(q: Question) -> Judgement:
    """Weights, gradients or optimizer state = parameters × the bytes that the claim itself gives each."""
    value, each, model = q.get("value"), q.get("bytes_each"), counts(q.setup)
    if model is None:
        return unknown("the shape that fixes the parameters is not stated")
    low, high = model.parameters[0] * each.low, model.parameters[1] * each.high
    words = f"{between(model.parameters, format_count)} parameters × {each.text} bytes"
    implied = value.middle / each.middle
    note = (
        f"{value.text} at {each.text} bytes is {format_count(implied)} parameters"
        if not value.admits(low, high)
        else ""
    )
    return compare(value, low, high, show=show_bytes(value), arithmetic=words, consequence=note)


def activations(q: Question) -> Judgement:
    """Activations with logits, against what training software spans."""
    usual, wide = (envelope(q.setup, band, state=False) for band in ("usual", "wide"))
    return _within(q, usual, wide)


def memory_total(q: Question) -> Judgement:
    """All device memory of a configuration, against what training software spans."""
    usual, wide = (envelope(q.setup, band) for band in ("usual", "wide"))
    return _within(q, usual, wide)


def _within(q: Question, usual: Envelope | None, wide: Envelope | None) -> Judgement:
    value = q.get("value")
    if usual is None or wide is None:
        return unknown("shape, batch or length are not stated")
    span = between((usual.low, usual.high), show_bytes(value))
    if value.admits(usual.low, usual.high):
        return holds(f"plausible: training software needs {span}", usual.arithmetic)
    if value.admits(wide.low, wide.high):
        return unknown(f"outside the usual {span}, possible with other kernels or precision", usual.arithmetic)
    return compare(value, wide.low, wide.high, show=show_bytes(value), arithmetic=wide.arithmetic)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Bytes that a configuration can need."""

    low: float
    high: float
    arithmetic: str


def envelope(setup: Setup, band: str, *, state: bool = True) -> Envelope | None:
    """Least and most bytes on one GPU over what training software does; None without shape, batch and length."""
    model = counts(setup)
    if model is None or setup.micro_batch is None or setup.seq_len is None:
        return None
    shape, tokens = model.readings[0].shape, setup.micro_batch * setup.seq_len
    lanes, rows = tokens * shape.depth * shape.width, [tokens * v for v in vocabulary(setup)]
    ends = []
    for end in (0, 1):
        total = _ACTIVATIONS[band][end] * lanes + _LOGITS[band][end] * rows[end]
        ends.append(total + (_STATE[band][end] * model.parameters[end] + _OVERHEAD[band][end] if state else 0.0))
    words = f"{_ACTIVATIONS[band][0]:g}-{_ACTIVATIONS[band][1]:g} B × {tokens:,} tokens × {shape.depth} × {shape.width}"
    words += f" + {_LOGITS[band][0]:g}-{_LOGITS[band][1]:g} B × tokens × vocabulary"
    words += f" + {_STATE[band][0]:g}-{_STATE[band][1]:g} B × parameters + context" if state else ""
    return Envelope(low=ends[0], high=ends[1], arithmetic=words)


def fits(q: Question) -> Judgement:
    """A stated need against the card's memory."""
    value, spec = q.get("value"), signs.spec_of(q.setup)
    if spec is None:
        return unknown("the card is not stated")
    words = f"{value.text} of {format_bytes(spec.memory_bytes)}"
    own = envelope(q.setup, "usual")
    if value.low > spec.memory_bytes:
        return wrong(f"it does not fit {format_bytes(spec.memory_bytes)}", words)
    if own is None:
        share = format_percent(value.high / spec.memory_bytes)
        return unknown(f"{share} of the card by the stated need; the shape behind it is not stated", words)
    if own.low > FIT_MARGIN * spec.memory_bytes:
        return wrong(f"this shape needs {format_bytes(own.low)} at least", own.arithmetic)
    if max(value.high, own.high) <= FIT_MARGIN * spec.memory_bytes:
        return holds(f"even {format_bytes(max(value.high, own.high))} fit", words)
    return unknown(f"the shape may need {format_bytes(own.high)}", own.arithmetic)


def fits_card(q: Question) -> Judgement:
    """A card of so many bytes for what is said to need so many."""
    value, needs = q.get("value"), q.get("needs")
    words = f"{needs.text} needed, {value.text} on the card"
    if needs.least > value.most:
        return wrong(f"{needs.text} do not fit {value.text}", words)
    return holds("the need fits the card", words)


def matches(q: Question) -> Judgement:
    """An estimate that is said to agree with measurements: does each of them lie within a tenth of it?"""
    estimate, measured = q.get("estimate"), q.get("measured")
    off = [m for m in measured if not 0.9 * estimate.least <= m.middle <= 1.1 * estimate.most]
    words = f"{estimate.text} estimated; {', '.join(m.text for m in measured)} measured"
    if not off:
        return holds("the measurements lie within a tenth of the estimate", words)
    worst = max(off, key=lambda m: abs(m.middle / estimate.middle - 1))
    gap = f"{abs(worst.middle / estimate.middle - 1):.0%}".replace("%", " %")
    return does_not_follow(
        f"{worst.text} is {gap} {'above' if worst.middle > estimate.middle else 'below'} the estimate",
        words,
        consequence="what holds the difference is not in the breakdown, so it cannot be scaled to another model",
    )


def checkpoint_size(q: Question) -> Judgement:
    """Bytes of a checkpoint against parameters × bytes kept of each: to resume from, or the weights alone."""
    value, model, resumable = q.get("value"), counts(q.setup), q.get("resumable")
    if model is None:
        return unknown("the shape that fixes the parameters is not stated")
    each = value.middle / model.parameters[0]
    words = f"{value.text} ÷ {format_count(model.parameters[0])} parameters = {each:.1f} bytes each"
    low, high = _RESUMABLE if resumable else (_MODEL_ONLY[0], _RESUMABLE[1])
    if (
        resumable
        and value.most < low * model.parameters[0]
        and value.admits(2 * model.parameters[0], 4 * model.parameters[1])
    ):
        full = 12 * model.parameters[0]
        return wrong(
            f"that is the weights alone: to resume, AdamW needs {format_bytes(full)} (8-12 bytes a parameter)",
            words,
            consequence="a run resumed from it loses its optimizer state; disk space is planned 2 to 3 times too small",
            actions=("save optimizer state and data position with the weights, and plan the disk for it",),
            threshold="weights and both moments in fp32: 12 bytes a parameter",
        )
    if value.admits(low * model.parameters[0], high * model.parameters[1]):
        kept = "weights and optimizer state" if each > _RESUMABLE[0] else "the weights"
        return holds(f"the size of {kept}", words)
    return compare(
        value, low * model.parameters[0], high * model.parameters[1], show=show_bytes(value), arithmetic=words
    )


def checkpoint_total(q: Question) -> Judgement:
    """Disk for all checkpoints: their number × what one takes to be resumable."""
    value, number, model = q.get("value"), q.get("count").middle, counts(q.setup)
    if model is None:
        return unknown("the shape that fixes the parameters is not stated")
    low, high = (each * model.parameters[i] * number for i, each in enumerate(USUAL_RESUMABLE))
    words = f"{number:g} × 8-12 bytes × {format_count(model.parameters[0])} parameters"
    return compare(
        value, low, high, show=show_bytes(value), arithmetic=words, consequence="the disk fills up during the run"
    )


def unsaved_work(q: Question) -> Judgement:
    """What an interruption costs when nothing, or nothing recent, was saved."""
    s, saved = q.setup, q.get("saved_step")
    seconds = s.seconds_of_a_step
    if s.steps_done is None or seconds is None:
        return unknown("steps done or step time are not stated")
    lost = s.steps_done - (saved or 0)
    hours = lost * seconds[1] / 3600
    bill = f", ${hours * s.price.middle:,.2f}" if s.price else ""
    return holds(
        f"{lost:,} steps, {hours:.1f} h of work{bill} are lost if it stops now",
        f"({s.steps_done:,} − {saved or 0:,}) × {seconds[1]:.3g} s",
    )


def overhead(q: Question) -> Judgement:
    """Device memory that is put down to the CUDA context, the allocator or fragmentation without being measured."""
    value = q.get("value")
    words = "a context and its kernels take 0.3 to 1 GB, NCCL's buffers 1 to 2, the allocator's gaps seldom a fifth"
    if value.least <= 2 * _OVERHEAD["wide"][1]:
        return holds("plausible", words)
    return does_not_follow(
        f"{value.text} of overhead was not measured: activations, logits, unsharded gradients, a cache",
        words,
        actions=("print torch.cuda.memory_summary(): allocated against reserved says how much is fragmentation",),
    )


def exceeds(q: Question) -> Judgement:
    """A need that is said not to fit on a card, against the memory that the text gives it."""
    value, than = q.get("value"), q.get("than")
    words = f"{value.text} against {than.text}"
    if _CLEARLY * value.high < than.low:  # both in one sense of a gigabyte
        return wrong(f"by the text's own numbers it fits: {words}", words)
    return holds(words, words)
