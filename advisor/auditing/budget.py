"""Claims about tokens, steps, time, money and data."""

from __future__ import annotations

from advisor.auditing import signs
from advisor.auditing.card import Setup
from advisor.auditing.counts import counts
from advisor.auditing.verdict import Judgement, Question, between, compare, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Severity
from advisor.hardware.catalog import find_gpu
from advisor.hardware.offers import listed_bills, unpriced
from advisor.laws.repetition import FREE_EPOCHS, WASTEFUL_EPOCHS
from advisor.laws.text import bytes_per_token
from advisor.prediction.loss import effective_tokens
from advisor.units import (
    format_count,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
    format_usd_rate,
)

_PRICE_BAND = (0.5, 2.0)  # of the cheapest and dearest listed price: lists age, and contracts differ
SOFTWARE_SPREAD = 3.0  # either way of the expected interval: what good and poor training software differ by
RATIO_SOURCE = "Hoffmann et al. 2022; the optimum is flat: twice off costs under 0.01 nats"


def parameter_count(q: Question) -> Judgement:
    """The declared number of parameters against the exact count of the declared shape."""
    value, model = q.get("value"), counts(q.setup)
    if model is None:
        return unknown("the report does not give the depth and width that would fix the count")
    low, high = model.parameters
    if any(value.admits(r.parameters) for r in model.readings):
        return holds(f"{format_count(model.nearest(value.middle).parameters)}", model.nearest(value.middle).words)
    if low < value.low < high:
        return unknown("possible only with a vocabulary or head that the report does not state", model.words)
    return compare(
        value,
        low,
        high,
        show=format_count,
        arithmetic=model.words,
        consequence="memory, Chinchilla tokens, learning rate and time derived from this count are off with it",
    )


def tokens_per_step(q: Question) -> Judgement:
    """Micro-batch × accumulation × length × GPUs, or the stated tokens of a step."""
    s = q.setup
    if s.tokens_of_a_step is None:
        return unknown("batch or sequence length is not stated")
    words = f"{s.micro_batch} × {s.grad_accum} × {s.seq_len} × {s.gpus} GPU" if not s.step_tokens else "as declared"
    return compare(
        q.get("value"), s.tokens_of_a_step, show=format_tokens, arithmetic=f"{words} = {s.tokens_of_a_step:,}"
    )


def total_tokens(q: Question) -> Judgement:
    """Steps × tokens per step."""
    s, steps = q.setup, q.steps
    if steps is None or s.tokens_of_a_step is None:
        return unknown("steps or tokens per step are not stated")
    tokens = steps * s.tokens_of_a_step
    return compare(
        q.get("value"),
        tokens,
        show=format_tokens,
        arithmetic=f"{steps:,.0f} steps × {s.tokens_of_a_step:,} tokens = {format_tokens(tokens)}",
        consequence="data, time and cost are planned for the wrong number of tokens",
    )


def ratio_tokens(q: Question) -> Judgement:
    """Tokens by a ratio of tokens to parameters, of the exact count."""
    value, ratio, model = q.get("value"), q.get("ratio"), counts(q.setup)
    if model is None:
        return unknown("the report does not give the shape that would fix the parameters")
    low, high = ratio.low * model.parameters[0], ratio.high * model.parameters[1]
    return compare(
        value,
        low,
        high,
        show=format_tokens,
        arithmetic=f"{ratio.text} tokens per parameter × {between(model.parameters, format_count)}",
        consequence="the budget of tokens, and with it time and money, is off by this factor",
        threshold=RATIO_SOURCE,
    )


def ratio_steps(q: Question) -> Judgement:
    """Steps by a ratio of tokens to parameters."""
    s, ratio, model = q.setup, q.get("ratio"), counts(q.setup)
    if model is None or s.tokens_of_a_step is None:
        return unknown("shape or tokens per step are not stated")
    low, high = (end * n / s.tokens_of_a_step for end, n in zip((ratio.low, ratio.high), model.parameters, strict=True))
    words = f"{ratio.text} × {between(model.parameters, format_count)} ÷ {s.tokens_of_a_step:,} tokens a step"
    return compare(q.get("value"), low, high, show=format_count, arithmetic=words)


def ratio_multiple(q: Question) -> Judgement:
    """Judge "Trained on x times the optimum": steps × tokens ÷ (ratio × exact parameters)."""
    s, ratio, model = q.setup, q.get("ratio"), counts(q.setup)
    if model is None or s.tokens_of_a_step is None or s.steps is None:
        return unknown("shape, steps or tokens per step are not stated")
    tokens = s.steps * s.tokens_of_a_step
    low, high = tokens / (ratio.high * model.parameters[1]), tokens / (ratio.low * model.parameters[0])
    words = f"{format_tokens(tokens)} ÷ ({ratio.text} × {between(model.parameters, format_count)})"
    return compare(
        q.get("value"),
        low,
        high,
        show=format_number,
        arithmetic=f"{words} = {low:.1f} to {high:.1f} times",
        consequence="at this size most of the tokens buy little; a larger model would use them better",
        threshold=RATIO_SOURCE,
    )


def data_need(q: Question) -> Judgement:
    """Parts of a data set (shards) for a number of tokens that itself came from a parameter count."""
    value, tokens, ratio, part = q.get("value"), q.get("tokens"), q.get("ratio"), q.get("part_tokens")
    model = counts(q.setup)
    if part is not None:
        low, high = tokens.low / part.high, tokens.high / part.low
        return compare(value, low, high, show=format_number, arithmetic=f"{tokens.text} ÷ {part.text}")
    if model is None or ratio is None:
        return unknown("the tokens of one part are not stated")
    exact = ratio.middle * model.parameters[0], ratio.middle * model.parameters[1]
    each = tokens.middle / value.middle
    words = f"{tokens.text} ÷ {value.text} = {format_tokens(each)} a part; "
    words += f"{ratio.text} × parameters = {between(exact, format_tokens)}"
    if tokens.admits(*exact):
        return unknown("the tokens are right; how many a part holds is not stated", words)
    need = exact[0] / each, exact[1] / each
    return does_not_follow(
        f"it is reckoned from {tokens.text} tokens, which is wrong; by the same size of a part {need[1]:,.0f} suffice",
        words,
    )


def duration(q: Question) -> Judgement:
    """Time of so many steps (or tokens) at the measured or stated speed, of all steps or of the rest."""
    s, value = q.setup, q.get("value")
    seconds = q.get("step_time")
    each = (seconds.low, seconds.high) if seconds else s.seconds_of_a_step
    steps, words = _steps(q)
    if steps is None:
        return unknown("speed or number of steps is not stated")
    if each is None:
        return _at_expected_speed(q, steps)
    low, high = steps * each[0], steps * each[1]
    words = f"{words} × {between(each, format_seconds)} = {between((low, high), format_seconds)}"
    consequence = "the bill and the calendar are off by the same share"
    return compare(value, low, high, show=format_seconds, arithmetic=words, consequence=consequence)


def _at_expected_speed(q: Question, steps: float) -> Judgement:
    """A time of so many steps where no speed is stated: never far below what the card can be expected to take."""
    s, value = q.setup, q.get("value")
    prediction = signs.expected(s, q.believe)
    if prediction is None or prediction.tokens_per_second is None or s.tokens_of_a_step is None:
        return unknown("speed or number of steps is not stated")
    tokens, rate = steps * s.tokens_of_a_step, prediction.tokens_per_second
    low, high = tokens / rate.high, tokens / rate.low
    words = f"{format_tokens(tokens)} tokens at the {format_rate(rate.low)} to {format_rate(rate.high)} expected"
    words += f" of {s.gpu} = {between((low, high), format_seconds)}"
    if value.most * SOFTWARE_SPREAD < low:
        consequence = "the bill and the calendar are too short by this factor"
        return wrong(f"it takes {format_seconds(low)} or more", words, consequence=consequence)
    if value.admits(low, high):
        return holds("within what this card takes at this shape", words)
    return unknown("no speed is stated; other software may explain it", words)


def _steps(q: Question) -> tuple[float | None, str]:
    s = q.setup
    if q.get("tokens") is not None and s.tokens_of_a_step:
        steps = q.get("tokens").middle / s.tokens_of_a_step
        return steps, f"{q.get('tokens').text} tokens ÷ {s.tokens_of_a_step:,} = {steps:,.0f} steps"
    if q.get("ratio") is not None and s.tokens_of_a_step and (model := counts(s)):
        steps = q.get("ratio").middle * model.parameters[0] / s.tokens_of_a_step
        return steps, f"{q.get('ratio').text} × {format_count(model.parameters[0])} parameters = {steps:,.0f} steps"
    steps = q.steps
    if q.get("remaining") and steps is not None:
        if s.steps_done is None:
            return None, ""
        return steps - s.steps_done, f"({steps:,.0f} − {s.steps_done:,}) steps"
    return steps, f"{steps or 0:,.0f} steps"


def cost(q: Question) -> Judgement:
    """Hours × price."""
    s, hours = q.setup, q.get("time")
    price = q.get("price") or s.price
    if price is None or hours is None:
        return unknown("price or time is not stated")
    low, high = hours.low / 3600 * price.low, hours.high / 3600 * price.high
    words = f"{hours.text} × {price.text} = {between((low, high), format_usd)}"
    return compare(q.get("value"), low, high, show=format_usd, arithmetic=words)


def price(q: Question) -> Judgement:
    """A price per hour against the price lists: wrong only where it is far outside all of them."""
    s, value = q.setup, q.get("value")
    spec = find_gpu(s.gpu) if s.gpu else None
    if spec is None:
        return unknown("the card is not stated")
    listed = listed_bills(spec.key, s.gpus, s.machine)
    if not listed:
        return unknown(unpriced(spec.key, s.gpus).source)
    words = (
        f"{len(listed)} listed prices of {s.machine or spec.key}: {format_usd_rate(listed[0])} "
        f"to {format_usd_rate(listed[-1])}/h"
    )
    if value.most < _PRICE_BAND[0] * listed[0] or value.least > _PRICE_BAND[1] * listed[-1]:
        return wrong(words, words)
    return holds(words, words)


def epochs(q: Question) -> Judgement:
    """Passes over the data, and what the repeated tokens are still worth."""
    s, unique, steps = q.setup, unique_tokens(q.setup), q.steps
    if unique is None or not all(unique) or not s.tokens_of_a_step or not steps:
        return unknown("unique tokens, steps or tokens per step are not stated")
    tokens = steps * s.tokens_of_a_step
    passes = tokens / unique[1], tokens / unique[0]
    worth = effective_tokens(tokens, unique[1]) / tokens
    words = f"{format_tokens(tokens)} ÷ {between(unique, format_tokens)}"
    words += f"; repeated tokens are worth {format_percent(worth)} of new ones"
    if q.get("value") is not None:
        return compare(q.get("value"), *passes, show=format_number, arithmetic=words)
    if passes[0] <= FREE_EPOCHS:
        return holds(f"{passes[0]:.1f} passes: repetition costs next to nothing", words)
    return does_not_follow(
        f"the data are read {passes[0]:,.0f} to {passes[1]:,.0f} times",
        words,
        severity=Severity.WARNING if passes[0] > WASTEFUL_EPOCHS else Severity.NOTE,
        consequence=f"{format_percent(1 - worth)} of the compute buys nothing that new data would not buy better",
        threshold="up to 4 passes are as good as new data, beyond 16 mostly waste (Muennighoff et al. 2023)",
    )


def unique_tokens(s: Setup) -> tuple[float, float] | None:
    """Unique training tokens, least and most: as declared, else the data set's bytes over bytes per token."""
    if s.dataset_tokens is not None:
        return s.dataset_tokens.low, s.dataset_tokens.high
    each = s.bytes_per_token or (bytes_per_token(s.vocab_size) if s.vocab_size else None)
    if s.dataset is None or each is None:
        return None
    return s.dataset.low / each / 1.2, s.dataset.high / each * 1.2
