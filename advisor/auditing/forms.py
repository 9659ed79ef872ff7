"""Claims whose form alone decides: shares of a loss or of an accuracy, scaling with size, cards and data."""

from __future__ import annotations

import math

from advisor.auditing.fields import cards_named
from advisor.auditing.verdict import Judgement, Question, compare, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Confidence, Severity
from advisor.units import format_count, format_flops, format_number, format_percent, format_seconds, format_tokens

_FEWEST_SYMBOLS = 12  # of any language model's vocabulary: letters are more than twice as many
_HARDLY_USED, _HARDLY_FILLED = 0.05, 0.15  # shares of a card's peak and memory that nobody would praise
_ROUNDED = 1.2  # times apart: numbers that roundings and methods do not set apart
_NEARLY = 0.95  # of a share: chance explains little of it
_EFFICIENT = 1.1  # a second run on more cards may be tuned a little better than the first
_FEW_PAIRS, _RELATED = 4, 0.5  # pairs of a trend; rank correlation below which nobody would draw one
_HARM = {"perplexity": 1.2, "loss": 1.05}  # times as high: beyond it no reader calls a harm none
_FAR_SHORT = 5.0  # times fewer tokens than the rule that the text goes by


def share_of_quality(q: Question) -> Judgement:
    """A quotient of two losses, or of two accuracies, that is called a share of what was to be reached."""
    value = q.get("value")
    if q.get("of") == "loss":
        return does_not_follow(
            "the quotient of two losses is no share of quality: a loss has no zero that a model starts from",
            f"{value.text} is one loss over the other; set their difference against what separates the models",
            threshold="perplexities, or differences of losses on the same data and tokens",
        )
    stated = [q.get(name) for name in ("reached", "target", "chance")]
    if any(one is None for one in stated) or stated[1].middle == stated[2].middle:
        return unknown(
            "what was reached, what was to be reached, and what chance gives: one is missing, or two are one"
        )
    reached, target, chance = (one.middle for one in stated)
    share = (reached - chance) / (target - chance)
    guessed = format_percent(chance)
    words = f"({format_percent(reached)} − {guessed}) ÷ ({format_percent(target)} − {guessed})"
    if value.admits(_NEARLY * share, share / _NEARLY):
        return holds(f"{format_percent(share)} of the way", f"{words} = {format_percent(share)}")
    return does_not_follow(
        f"{guessed} is what guessing gives: {format_percent(max(share, 0.0))} of the way, not {value.text}",
        f"{words} = {format_percent(share)}",
        threshold="accuracy above chance",
    )


def one_cause(q: Question) -> Judgement:
    """A difference between models that is laid to one cause, where no run varied that alone."""
    return does_not_follow(
        "no run differs in that alone: other differences, noise and training short of its end explain it as well",
        "no ablation, repetition or control is reported",
        confidence=Confidence.MEDIUM,
        actions=("train once more with only that changed, and once with another seed",),
    )


def compute_of_size(q: Question) -> Judgement:
    """Compute of a model so many times larger at the same tokens per parameter: the square."""
    value, size = q.get("value"), q.get("size").middle
    words = f"6 × ({size:g} N) × ({size:g} D) = {size * size:g} × 6 N D"
    return compare(
        value,
        size * size,
        show=lambda factor: f"{factor:g} times",
        arithmetic=words,
        consequence="time and money are planned too small by this factor",
    )


def uniform_loss(q: Question) -> Judgement:
    """The loss of a uniform guess among a vocabulary: its natural logarithm."""
    size = q.get("vocabulary").middle
    if size <= 1:
        return unknown(f"a vocabulary of {size:g} leaves nothing to guess")
    truth = math.log(size)
    return compare(
        q.get("value"), truth - 0.06, truth + 0.06, show=format_number, arithmetic=f"ln {size:,.0f} = {truth:.2f}"
    )


def linear_speedup(q: Question) -> Judgement:
    """Time of one run on more cards: no shorter than in proportion to their number."""
    value, cards, time, base = q.get("value"), q.get("gpus").middle, q.get("than"), q.get("than_gpus").middle
    if min(base, value.middle) <= 0:
        return unknown("a time, or a number of cards, that is not above zero")
    if cards <= base:
        return holds("no more cards than before", "")
    best = time.least * base / cards
    words = f"{time.text} × {base:g} ÷ {cards:g} = {format_seconds(time.middle * base / cards)}"
    if value.most * _EFFICIENT < best:
        return wrong(
            f"not below {format_seconds(best)}: {cards / base:g} times the cards are as many times as fast at best",
            words,
            consequence="the schedule is too short",
        )
    return holds(f"{format_percent(best / value.middle)} of linear", words)


def larger_in_less(q: Question) -> Judgement:
    """Card-hours of a larger model of one family below those of a smaller one, where no tokens are stated."""
    value, than = q.get("value"), q.get("than")
    sizes = [format_count(q.get(name).middle) for name in ("parameters", "than_parameters")]
    words = f"{sizes[0]} parameters in {value.text}, {sizes[1]} in {than.text}"
    if q.get("parameters").middle <= q.get("than_parameters").middle or _ROUNDED * value.middle >= than.middle:
        return holds(words, words)
    return does_not_follow(
        f"by the text's own numbers the smaller model took more: {words}",
        words,
        actions=("state the tokens and the card of both",),
    )


def card_hours_of_more(q: Question) -> Judgement:
    """Card-hours on several cards against those on one: data parallelism divides the time, not the card-hours."""
    value, than, number = q.get("value"), q.get("than"), q.get("gpus").middle
    words = f"{value.text} on {number:g} cards, {than.text} on one"
    if value.middle * _ROUNDED >= than.middle:
        return holds(words, words)
    return wrong(
        f"{number:g} cards take {format_number(than.middle)} card-hours at least, not {value.text}",
        words,
        consequence="hours by the clock were taken for card-hours: the bill comes out too small by the number of cards",
    )


def stacked_gains(q: Question) -> Judgement:
    """Expected gains of several changes, added up: each was guessed from the same start, and they overlap."""
    return does_not_follow(
        f"{q.get('parts')} expected gains are added up in points; what one of them saves the others cannot save again",
        threshold="each gain measured on top of those before it",
        actions=("apply them one at a time and measure each against the step before",),
    )


def untrained_loss(q: Question) -> Judgement:
    """The first loss of an untrained language model whose vocabulary is not stated: ln V of any vocabulary in use."""
    value = q.get("value")
    least = math.log(_FEWEST_SYMBOLS)
    words = f"e^{value.text.lstrip('~')} = {math.exp(min(value.middle, 50.0)):.3g} symbols, guessed uniformly"
    if value.most >= least:
        return holds("as high as guessing over some vocabulary", words)
    return wrong(
        f"an untrained model cannot be below {least:.1f}, the loss of guessing among {_FEWEST_SYMBOLS} symbols",
        words,
        severity=Severity.ERROR,
        causes=("the loss is divided by a constant", "the targets leak into the input", "weights were loaded"),
        consequence="no later loss of this run can be read as one of a language model",
    )


def praised(q: Question) -> Judgement:
    """A speed or a use of memory that is called excellent, against what the card can do and hold."""
    value, card = q.get("value"), cards_named(q.get("gpu"))[0]
    if q.get("what") == "memory":
        share = value.most if value.dimension == "fraction" else value.most / (card.memory_gb * 1e9)
        words = f"{value.text} of {card.memory_gb:g} GB" if value.dimension != "fraction" else value.text
        if share >= _HARDLY_FILLED:
            return holds(f"{format_percent(share)} of the card's memory", words)
        return does_not_follow(
            f"{format_percent(share)} of the card's memory: an empty card is no merit, it is paid for whole",
            words,
            actions=("raise the micro-batch until the step time per token stops falling",),
        )
    peak = card.bf16_flops or card.fp16_flops
    if not peak or q.get("parameters") is None:
        return unknown("no peak, or no size of the model, is known")
    share = 6 * q.get("parameters").most * value.most / peak
    words = f"6 × {q.get('parameters').text} × {value.text} ÷ {format_flops(peak)}, as if one card did it all"
    if share >= _HARDLY_USED:
        return holds(f"{format_percent(share)} of one card's dense peak", words)
    return does_not_follow(
        f"{format_percent(share)} of the dense peak of a single card: launches, data or one slow kernel set this speed",
        words,
        actions=("profile one step before anything else is tuned",),
    )


def no_loss(q: Question) -> Judgement:
    """A result that is no number: the training diverged, or was never evaluated."""
    return wrong(
        f"a loss of {q.get('words')} is no result: the training diverged, or the evaluation overflowed",
        severity=Severity.ERROR,
        actions=("evaluate the last checkpoint in fp32, and look where the loss stopped being a number",),
    )


def trend(q: Question) -> Judgement:
    """One column of a table that is said to grow with another: Spearman's rank correlation of their pairs."""
    ours, over = ([quantity.middle for quantity in q.get(name)] for name in ("of", "over"))
    if len(ours) != len(over) or len(ours) < _FEW_PAIRS or min(len(set(ours)), len(set(over))) < 2:
        return unknown(f"{len(ours)} pairs show no trend")
    related = _correlation(_ranks(ours), _ranks(over))
    pairs = sorted(zip(over, ours, strict=True))
    words = ", ".join(f"{format_number(value)} at {format_number(at)}" for at, value in pairs)
    if related >= _RELATED:
        return holds(f"rank correlation {related:.2f}", words)
    return does_not_follow(
        f"the report's own rows do not: rank correlation {related:.2f} in {len(ours)} rows",
        words,
        threshold="runs that differ in that one quantity alone",
    )


def _ranks(values: list[float]) -> list[float]:
    """The place of each in order, equal ones the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def _correlation(one: list[float], other: list[float]) -> float:
    """Pearson's coefficient; neither list is constant."""
    mine, its = sum(one) / len(one), sum(other) / len(other)
    together = sum((a - mine) * (b - its) for a, b in zip(one, other, strict=True))
    return together / math.sqrt(sum((a - mine) ** 2 for a in one) * sum((b - its) ** 2 for b in other))


def negligible(q: Question) -> Judgement:
    """A harm that is called hardly any, by the perplexity or the loss before and after it."""
    value, than, of = q.get("value"), q.get("than"), q.get("of")
    if min(value.low, than.low) <= 0:
        return unknown("a perplexity or a loss that is not above zero")
    more = value.middle / than.middle
    words = f"{of} {than.text} → {value.text}: {format_percent(more - 1)} more"
    if value.least <= _HARM[of] * than.most:
        return holds(words, words)
    return does_not_follow(f"the {of} is {format_percent(more - 1)} higher, which is no small harm", words)


def tokens_support(q: Question) -> Judgement:
    """Tokens that are said to be enough for a model, by tokens per parameter: the text's own rule, else 20."""
    n, d, rule = q.get("value"), q.get("tokens"), q.get("ratio")
    least = rule.least if rule else 20.0
    if min(n.least, least) <= 0:
        return unknown("a model, or a rule, of no size")
    ratio = d.most / n.least
    words = f"{format_tokens(d.middle)} ÷ {format_count(n.middle)} parameters = {format_number(d.middle / n.middle)}"
    if ratio * _FAR_SHORT < least:
        return wrong(
            f"{format_number(d.middle / n.middle)} a parameter where {rule.text if rule else 'about 20'} are wanted: "
            f"enough for {format_count(d.middle / least)} parameters",
            words,
            consequence="a model of that size memorises the data",
        )
    return holds(f"{format_number(d.middle / n.middle)} tokens a parameter", words)
