"""Claims that compare or generalise: unequal work, ranges and their members, repeated data, losses of other tokens."""

from __future__ import annotations

import math
import re

from advisor.auditing.counts import VOCABULARIES
from advisor.auditing.fields import cards_named
from advisor.auditing.verdict import Judgement, Question, compare, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Confidence, Severity
from advisor.laws.repetition import WASTEFUL_EPOCHS
from advisor.prediction.loss import effective_tokens
from advisor.units import format_count, format_number, format_seconds, format_tokens

_NVLINK = re.compile(r"nvlink\d\S* (\d+(?:\.\d+)?)")  # of the catalog: both directions, bridges too
_DIRECTIONS = (0.5, 1.0)

_ALL_RIGHT = 0.9995  # of a test set's answers
_EQUAL = 1.1  # work that differs by less is the same for a comparison
_CLEAR = 1.05  # by how much the order must be the other way round to say so
_TUNED = 2.0  # times as fast a card: larger batches and sharded states explain less
_BLOCKS = (6.0, 22.0)  # times L·d²: shared keys and a lean FFN; a gated FFN of five times the width
_BEYOND = 1.3  # what a generation's software adds to its peak
_MUENNIGHOFF = "Muennighoff et al. 2023: repeated tokens lose their worth by e in 15 passes"


def unequal_work(q: Question) -> Judgement:
    """Judge "slower" and "faster" from seconds of a step: by the token, where the steps are not of equal tokens."""
    seconds, tokens, other, others = (q.get(n).middle for n in ("seconds", "tokens", "than_seconds", "than_tokens"))
    if min(seconds, tokens, other, others) <= 0:
        return unknown("a time or a number of tokens is not positive")
    each, its = seconds / tokens, other / others
    words = (
        f"{format_seconds(each)} against {format_seconds(its)} a token; steps of {tokens:,.0f} and {others:,.0f} tokens"
    )
    slower = q.get("way") == "slower"
    if max(tokens / others, others / tokens) < _EQUAL:
        return holds("the steps are of equal tokens", words)
    if (each * _CLEAR < its) if slower else (each > _CLEAR * its):
        return does_not_follow(
            f"by the token it is {'faster' if slower else 'slower'}: the steps hold {tokens / others:.2f} times"
            f" the tokens",
            words,
            consequence="time and cost for so many tokens are ranked the wrong way round",
            threshold="compare tokens per second, or steps of equal tokens",
        )
    return holds(f"so it is by the token: {each / its:.2f} times the time", words)


def scaling(q: Question) -> Judgement:
    """A rate on more cards against one on fewer: by the card hardly faster, or it is not of like for like."""
    value, gpus, than, others = (q.get(name) for name in ("value", "gpus", "than", "than_gpus"))
    if min(value.low, than.low, gpus.low, others.low) <= 0:
        return unknown("a rate or a number of cards that is not above zero")
    more = value.least / gpus.middle / (than.most / others.middle)
    words = f"{format_number(value.middle / gpus.middle)} against {format_number(than.middle / others.middle)} a card"
    if more > _TUNED:
        return does_not_follow(
            f"each of {gpus.text} cards does {more:.1f} times what one of {others.text} does: other work or settings",
            words,
            consequence="what is planned for more cards by these rows comes out too fast",
            threshold="the same model, batch a card and method in both rows",
        )
    return holds(f"{more:.2f} times as fast a card", words)


def cheaper(q: Question) -> Judgement:
    """A card that is called the cheaper one by the hour, by the prices that the text itself states."""
    value, than = q.get("value"), q.get("than")
    words = f"{value.text} against {than.text}"
    if value.least >= than.most:
        return wrong(f"by the report's own prices it is the dearer one: {words}", words)
    return holds(words, words)


def range_of(q: Question) -> Judgement:
    """A range that is said of named members: each of them must lie in it."""
    value, members = q.get("value"), q.get("members")
    outside = [m for m in members if m.most < 0.9 * value.least or m.least > 1.1 * value.most]
    words = f"{value.text}: {', '.join(m.text for m in members)}"
    if not outside:
        return holds(f"all {len(members)} lie in it", words)
    return wrong(f"{', '.join(m.text for m in outside)} lie outside {value.text}, by the report's own numbers", words)


def repetition_worth(q: Question) -> Judgement:
    """What so many passes over data are worth in new tokens, by the law of repeated data."""
    tokens, epochs = q.get("tokens").middle, q.get("epochs").middle
    worth = float(effective_tokens(tokens * epochs, tokens))
    words = f"{epochs:g} passes over {format_tokens(tokens)} are worth {format_tokens(worth)} of new tokens"
    judgement = compare(q.get("value"), 0.85 * worth, 1.15 * worth, show=format_tokens, arithmetic=words)
    return judgement if judgement.ruling == "holds" else wrong(f"{format_tokens(worth)}", words, threshold=_MUENNIGHOFF)


def repetition_limit(q: Question) -> Judgement:
    """A number of passes beyond which repeating is said to give nothing."""
    epochs = q.get("epochs")
    words = f"the worth of repeated tokens falls smoothly; after {WASTEFUL_EPOCHS} passes most of it is gone"
    if epochs.most < 0.7 * WASTEFUL_EPOCHS:
        return does_not_follow(f"{epochs.text} passes are no such limit: {words}", words, threshold=_MUENNIGHOFF)
    return holds(words, words)


def perfect_score(q: Question) -> Judgement:
    """A score of all answers right on a public test set, which has wrong labels of its own."""
    value = q.get("value")
    if value.low < _ALL_RIGHT:
        return holds("below 100 %", f"{q.get('benchmark')}: {value.text}")
    return does_not_follow(
        f"nobody answers all of {q.get('benchmark')} rightly: the test set is in the training data, or is none",
        f"{q.get('benchmark')}: {value.text}",
    )


def optimizer_work(q: Question) -> Judgement:
    """FLOPs that an optimizer is said to add: a few for each parameter, once for all tokens of a step."""
    value = q.get("value")
    words = "some 20 FLOPs a parameter and step, against 6 for each of its thousands of tokens"
    if value.least > 1.1 or (value.dimension == "fraction" and value.least > 0.1):
        return wrong("next to none: its state takes memory, not arithmetic", words)
    return holds(words, words)


def swiglu_cost(q: Question) -> Judgement:
    """FLOPs that SwiGLU adds to an FFN: three matrices at 8/3 of the width are as many as two at 4."""
    value, expansion = q.get("value"), q.get("expansion")
    ratios = [expansion.middle] if expansion else [8 / 3, 4.0]
    truths = [3 * ratio / (2 * 4.0) - 1 for ratio in ratios]
    words = "; ".join(
        f"3 × {ratio:.3g} against 2 × 4 widths: {truth:+.0%}" for ratio, truth in zip(ratios, truths, strict=True)
    )
    words = words.replace("%", " %")
    if any(value.least - 0.02 <= truth <= value.most + 0.02 for truth in truths):
        return holds(words, words)
    return wrong(words, words, consequence="the FLOPs of the model are counted wrongly")


def compared_losses(q: Question) -> Judgement:
    """Losses per token ranked across vocabularies: only bits per byte compare."""
    sizes = [v.middle for v in q.get("vocabularies")]
    words = ", ".join(format_count(size) for size in sizes)
    if max(sizes) <= 1.05 * min(sizes):
        return holds("one size of vocabulary", words)
    return does_not_follow(
        f"losses per token of vocabularies of {words} do not compare: the tokens are of different length",
        words,
        actions=("compare bits per byte",),
        confidence=Confidence.MEDIUM,
    )


def loss_prediction(q: Question) -> Judgement:
    """A loss that is promised at the optimum, of a run that is below it long before."""
    value, reached = q.get("value"), q.get("reached")
    words = f"{reached.text} reached, {value.text} predicted for many more tokens"
    if reached.most < 0.98 * value.least:
        return does_not_follow("the run is below its prediction already: the law does not describe these data", words)
    return holds("the run is above its prediction", words)


def optimizer_state(q: Question) -> Judgement:
    """Bytes a parameter that a formula gives to the optimizer: two moments, 4 bytes each, 2 at least."""
    value = q.get("value")
    words = "AdamW keeps two moments: 8 bytes a parameter in fp32, 4 in bf16"
    if value.most < 4:
        return wrong(
            f"{words}; {value.middle:g} would be neither",
            words,
            consequence="memory is planned too small by the largest part of the state",
        )
    return holds(words, words)


def state_total(q: Question) -> Judgement:
    """A total of so many times the model's size against the parts that are listed for it."""
    value, parts = q.get("value"), q.get("parts")
    low, high = sum(p.low for p in parts), sum(p.high for p in parts)
    words = f"{' + '.join(p.text for p in parts)} = {format_number(low)} times the model's size"
    if value.admits(0.9 * low, 1.1 * high):
        return holds(words, words)
    return does_not_follow(f"the parts add up to {format_number(low)} times, not {value.text}", words)


_NO_ROOM = 1.01  # times the weights: less holds no adapters, no activations


def weights_memory(q: Question) -> Judgement:
    """Memory for running a model: the weights alone are a floor."""
    value, n, each = q.get("value"), q.get("parameters"), q.get("bytes_each").middle
    low = n.low * each
    words = f"{n.text} parameters × {each:g} bytes = {low / 1e9:,.3g} GB"
    if value.most < 0.85 * low:
        return wrong(f"the weights alone take {low / 1e9:,.3g} GB", words)
    return holds("the weights fit in it", words)


def adapter_memory(q: Question) -> Judgement:
    """Memory for training adapters: weights of so many bytes each, and adapters, moments, activations beside them."""
    value, n, each = q.get("value"), q.get("parameters"), q.get("bytes_each").middle
    low = n.low * each
    words = f"{n.text} parameters × {each:g} bytes = {low / 1e9:,.3g} GB"
    if value.middle <= _NO_ROOM * low:
        return wrong(f"the weights alone take {low / 1e9:,.3g} GB; nothing is left for what is trained", words)
    return holds("there is room beside the weights", words)


def optimal_tokens(q: Question) -> Judgement:
    """Tokens that are called compute-optimal after Chinchilla: about 20 a parameter."""
    value, n = q.get("value"), q.get("parameters")
    low, high = value.least / n.most, value.most / n.least
    words = f"{value.text} tokens ÷ {n.text} parameters = {value.middle / n.middle:.3g}"
    if high < 20 / 1.35 or low > 20 * 1.35:
        return wrong(f"{words} tokens a parameter, where the rule says about 20", words, severity=Severity.WARNING)
    return holds(words, words)


def training_work(q: Question) -> Judgement:
    """FLOPs of a training: 6·N·D, a little more with attention."""
    value, n, d = q.get("value"), q.get("parameters"), q.get("tokens")
    low, high = 6 * n.least * d.least, 8.5 * n.most * d.most
    words = f"6 × {n.text} × {d.text} = {6 * n.middle * d.middle:.3g} FLOP"
    if value.admits(0.9 * low, 1.1 * high):
        return holds(words, words)
    factor = value.middle / (6 * n.middle * d.middle)
    far = math.log10(factor) if factor > 0 else 0.0
    return wrong(f"{words}, not {value.text}" + (f": 10^{far:.0f} apart" if abs(far) >= 1 else ""), words)


def shape_size(q: Question) -> Judgement:
    """Parameters of blocks of a depth and a width: 12·L·d² with a usual FFN, and the tables of any vocabulary."""
    value, layers, width = q.get("value"), q.get("layers").middle, q.get("width").middle
    blocks = layers * width**2
    low, high = _BLOCKS[0] * blocks, _BLOCKS[1] * blocks + 2 * VOCABULARIES[1] * width
    words = f"12 × {layers:g} × {width:g}² = {format_count(12 * blocks)} in blocks; "
    words += f"{format_count(high)} at most with tables"
    if value.admits(low, high):
        return holds(words, words)
    return wrong(f"{format_count(low)} to {format_count(high)}, not {value.text}", words)


def cards_speed(q: Question) -> Judgement:
    """How many times faster one card is said to be than another: no more than its peaks and its bandwidth are."""
    value, mine, others = q.get("value"), cards_named(q.get("gpu")), cards_named(q.get("than"))
    pairs = [(a, b) for a in mine for b in others]
    ratios = [a.memory_bytes_per_second / b.memory_bytes_per_second for a, b in pairs]
    for a, b in pairs:
        rates, base = (a.bf16_flops, a.fp16_flops, a.fp8_flops), b.bf16_flops or b.fp16_flops
        ratios += [rate / base for rate in rates if rate and base]
    most = max(ratios)
    words = f"{q.get('gpu')} against {q.get('than')}: {most:.1f} times at most in peak (FP8 counted) or bandwidth"
    if value.low > _BEYOND * most:
        return wrong(words, words, consequence="time and cost planned from this comparison are too small")
    return holds(words, words)


def equal_memory(q: Question) -> Judgement:
    """The largest model, batch or length that two cards of one memory are said to hold: it is the same."""
    value, than, memory = q.get("value"), q.get("than"), q.get("memory")
    words = f"{memory.text} of {q.get('gpu')} and of {q.get('than_gpu')}"
    for name in ("gpu", "than_gpu"):
        sizes = [card.memory_gb * 1e9 for card in cards_named(q.get(name))]
        if not any(memory.admits(0.93 * size, 1.08 * size) for size in sizes):
            return unknown(f"no {q.get(name)} has {memory.text}")
    if value.admits(0.9 * than.least, 1.1 * than.most):
        return holds("the same", words)
    return does_not_follow(
        f"what fits into {memory.text} of one fits into {memory.text} of the other: {than.text} or {value.text}",
        words,
        consequence="a dearer card is rented for memory that it does not have",
    )


def card_figure(q: Question) -> Judgement:
    """Bandwidth, power or link of a named card, of any of its editions; of links one direction may be meant."""
    value, cards = q.get("value"), cards_named(q.get("gpu"))
    figures = {
        "bandwidth": [c.memory_bytes_per_second for c in cards],
        "power": [c.tdp_watts for c in cards if c.tdp_watts],
        "link": [k * float(r) * 1e9 for c in cards for r in _NVLINK.findall(c.interconnect) for k in _DIRECTIONS],
    }[q.get("fact")]
    if not figures:
        return unknown(f"the datasheet of {q.get('gpu')} gives none")
    scale = 1.0 if q.get("fact") == "power" else 1e9
    words = f"catalog: {', '.join(f'{f / scale:,.0f}' for f in sorted(set(figures)))} {'GB/s' if scale > 1 else 'W'}"
    if value.admits(0.92 * min(figures), 1.08 * max(figures)):
        return holds(words, words)
    return wrong(words, words)
