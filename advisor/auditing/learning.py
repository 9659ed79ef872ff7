"""Claims about losses, perplexities, evaluations, learning rates and gradients."""

from __future__ import annotations

import math
from dataclasses import replace

from advisor.auditing import signs
from advisor.auditing.counts import VOCABULARIES, counts, vocabulary
from advisor.auditing.verdict import Judgement, Question, compare, does_not_follow, holds, unknown, wrong
from advisor.findings.case import Confidence, Severity
from advisor.findings.detectors.data_budget import FLOOR_MARGIN, loss_floor
from advisor.laws import flops
from advisor.laws.annealing import cosine
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of, chance_interval
from advisor.laws.hyperparameters import OFF_LAW, off_laws, peak_rates, times_off
from advisor.laws.initial_loss import FAULT_ABOVE, FAULT_BELOW, SOUND
from advisor.laws.phase import phase_problem
from advisor.laws.text import LAW_BYTES_PER_TOKEN, bytes_per_token
from advisor.prediction.loss import CHINCHILLA, TOKEN_RANGE
from advisor.units import format_count, format_number, format_percent, format_tokens

# Another corpus and tokenizer move the loss by 6 % (docs/how-it-predicts.md); an accusation takes two of these.
_LAW_ERROR = 0.12
NOISE_NATS = 0.1  # of one printed training loss (sources §7.2: ±0.05-0.1)
_MOST_UNIFORM = math.log(VOCABULARIES[1])
_BYTES_PER_TOKEN = (2.0, 6.5)  # of BPE tokenizers of 4,000 to 262,144 tokens on text


def perplexity(q: Question) -> Judgement:
    """perplexity = e^loss."""
    value, loss = q.get("value"), q.get("loss").middle
    if value.low <= 0:
        return wrong("a perplexity is above 0")
    log10, claimed = loss / math.log(10), math.log10(value.middle)
    # the printed loss has its own rounding, which the exponential multiplies
    room = q.get("loss").slack / math.log(10) + value.slack / value.middle / math.log(10) + 0.004
    words = f"e^{q.get('loss').text} = 10^{log10:.3f}"
    if abs(log10 - claimed) <= room:
        return holds(f"{10 ** (log10 % 1):.2f}e{math.floor(log10)}", words)
    so = f"{10 ** (log10 % 1):.1f}e{math.floor(log10)}, not {value.text}"
    gap = abs(log10 - claimed)
    return wrong(so + (f": {gap:.0f} orders of magnitude apart" if gap >= 1 else ""), words)


def initial_loss(q: Question) -> Judgement:
    """The first loss of an untrained model: ln V, the loss of guessing uniformly."""
    value, base = q.get("value"), signs.uniform_loss(q.setup)
    if base is None and value.least > _MOST_UNIFORM + FAULT_ABOVE:
        return wrong(
            f"{value.middle - _MOST_UNIFORM:,.1f} nats worse than a uniform guess over any vocabulary in use",
            f"ln {VOCABULARIES[1]:,} = {_MOST_UNIFORM:.2f}",
            severity=Severity.ERROR,
            causes=("weights of unit variance", "a sum over the sequence or the batch in place of a mean"),
            consequence="nothing measured on this run says anything about the model or the hardware",
        )
    if base is None:
        low, high = math.exp(min(value.low, 50)), math.exp(min(value.high, 50))
        return unknown(f"the vocabulary is not stated; it would be {low:,.0f} to {high:,.0f} tokens", "e^loss")
    words = f"ln {q.setup.vocab_size:,} = {base:.3f}"
    if value.low - SOUND <= base <= value.high + SOUND:
        return holds(f"the loss of a uniform guess is {base:.2f}", words)
    first = value.middle
    if -FAULT_BELOW <= first - base <= FAULT_ABOVE:
        return unknown(f"{abs(first - base):.2f} nats off: more than a sound start, less than any known fault", words)
    if first < base:
        return wrong(
            f"{base - first:.2f} nats below a uniform guess before any training",
            words,
            causes=("weights were loaded", "another vocabulary", "targets leak into the input"),
        )
    reading = signs.initial_loss_reading(first, q.setup)
    return wrong(
        f"{first - base:,.1f} nats worse than a uniform guess: {reading}",
        words,
        severity=Severity.ERROR,
        consequence="nothing measured on this run says anything about the model or the hardware",
        threshold=f"{FAULT_ABOVE:g} above ln V or {FAULT_BELOW:g} below, in nats, is a fault (sources §7.1)",
    )


def converging(q: Question) -> Judgement:
    """Judge "Converging": the loss falls, and is better than a uniform guess."""
    losses, base = signs.losses(q.card), signs.uniform_loss(q.setup)
    if len(losses) < 2:
        return unknown("no losses are given")
    fell = f"{losses[0]:.4g} to {losses[-1]:.4g} nats"
    if losses[-1] >= losses[0]:
        return wrong("the loss does not fall", fell, severity=Severity.ERROR)
    if base is None and losses[-1] > _MOST_UNIFORM:
        return wrong(
            f"after all steps the model is worse than a uniform guess over any vocabulary in use ({_MOST_UNIFORM:.2f})",
            fell,
            severity=Severity.ERROR,
            consequence="it has not begun to learn: what falls is the error of the initialisation",
        )
    if base is None:
        return unknown("the vocabulary, and so the loss of a uniform guess, is not stated", fell)
    words = f"{fell}; a uniform guess over {q.setup.vocab_size:,} tokens costs {base:.3f}"
    if losses[-1] > base:
        so = f"after all steps the model is {losses[-1] - base:.1f} nats a token worse than a uniform guess"
        return wrong(
            f"{so}; {signs.initial_loss_reading(losses[0], q.setup)}",
            words,
            severity=Severity.ERROR,
            consequence="it has not begun to learn: what falls is the error of the initialisation",
            actions=("start at ln V first: scale the initialisation, average the loss over tokens",),
            threshold="a loss above ln V is worse than knowing nothing",
        )
    if q.setup.data == "random":
        return does_not_follow(
            "the tokens are random: there is nothing to learn but that they are uniform",
            f"{fell}; ln V = {base:.3f}",
            consequence="it shows that steps run, not that the model learns",
        )
    return holds("the loss falls and is better than a uniform guess", words)


def _of_random(least: float, base: float) -> Judgement:
    """A loss on random tokens: nothing can be learnt of them, so the uniform guess is the floor."""
    words = f"ln V = {base:.3f}; random tokens carry nothing to learn"
    if least < base - SOUND:
        return wrong("below the loss of a uniform guess on random tokens", words, severity=Severity.ERROR)
    return holds("no lower than a uniform guess", words)


def expected_loss(q: Question) -> Judgement:
    """A promised loss after so many steps against the loss law, at the vocabulary's own bytes per token."""
    s, value, model = q.setup, q.get("value"), counts(q.setup)
    if s.data == "random" and (base := signs.uniform_loss(s)) is not None:
        return _of_random(value.most, base)
    if model is None or s.tokens_of_a_step is None or q.steps is None:
        return unknown("shape, steps or tokens of a step are not stated")
    tokens, most = q.steps * s.tokens_of_a_step, model.parameters[1]
    ends = [_at(v, tokens, n) for v, n in zip(vocabulary(s), model.parameters, strict=True)]
    low, high = min(*ends, _at(vocabulary(s)[0], tokens, most)), max(ends)
    words = f"{format_count(most)} parameters, {format_tokens(tokens)} tokens: "
    words += f"{low:.2f} to {high:.2f} nats a token by the loss law"
    floor = loss_floor(bytes_per_token(vocabulary(s)[0]))
    if value.most < floor * (1 - FLOOR_MARGIN):
        return wrong(
            f"below the entropy of text itself, about {floor:.2f} nats a token here",
            words,
            severity=Severity.ERROR,
            consequence="no training reaches it; a run planned for this target never ends",
            threshold=_SOURCE,
        )
    if tokens < TOKEN_RANGE[0]:
        return unknown(f"the loss laws were fitted on 1 B tokens and more, this is {format_tokens(tokens)}", words)
    if value.high < low * (1 - _LAW_ERROR):
        return wrong(
            f"{low:.2f} at best, not {value.text}",
            words,
            consequence="a run planned for this target never reaches it",
            threshold=_SOURCE,
        )
    if value.least > high * (1 + _LAW_ERROR):
        return wrong(f"{high:.2f} at worst if it trains as others do, not {value.text}", words, threshold=_SOURCE)
    if high * (1 - _LAW_ERROR) > value.most:
        return unknown("possible only with a vocabulary that the report does not state", words)
    return holds("within what the loss law expects", words)


_SOURCE = "L(N, D) of Hoffmann et al. 2022 with the constants of Besiroglu et al. 2024, ±12 %"


def _at(vocab_size: int, tokens: float, parameters: float) -> float:
    return CHINCHILLA.loss(parameters, tokens) * scale(vocab_size)


def scale(vocab_size: int) -> float:
    """Nats per token of this vocabulary for each nat per token of the law's: bytes per token against 4.4."""
    return bytes_per_token(vocab_size) / LAW_BYTES_PER_TOKEN


def printed_loss(q: Question) -> Judgement:
    """An expected loss at a step against the example rows that the report itself shows."""
    value, step = q.get("value"), q.get("step").low
    rows = {s: loss for s, loss in zip(q.card.column("step"), q.card.column("loss"), strict=False) if loss is not None}
    if step not in rows:
        return unknown(f"the report shows no row of step {step:g}")
    return compare(value, rows[step], show=format_number, arithmetic=f"its own row of step {step:g} has {rows[step]:g}")


def bits_per_byte(q: Question) -> Judgement:
    """A loss in nats with its bits per byte: the bytes a token they imply must be a tokenizer's."""
    value, loss = q.get("value").middle, q.get("loss").middle
    each = loss / (math.log(2) * value)
    words = f"{loss:g} ÷ (ln 2 × {value:g}) = {each:.2f} bytes a token"
    if _BYTES_PER_TOKEN[0] <= each <= _BYTES_PER_TOKEN[1]:
        return holds(f"they go together at {each:.2f} bytes a token", words)
    return wrong(f"they would need {each:.2f} bytes a token, which no such tokenizer has", words)


def evaluation(q: Question) -> Judgement:
    """A test score against chance, with the standard error of that many questions."""
    task, value = q.get("task"), q.get("value").middle
    benchmark = benchmark_of(task)
    if benchmark is None:
        return unknown(f"the chance level of {task} is not known here")
    test = BENCHMARKS[benchmark]
    if q.get("items"):
        test = replace(test, questions=round(q.get("items").middle))
    words = f"chance {format_percent(test.chance)} ± {format_percent(test.standard_error)}"
    if test.chance > 0:
        words += f": {(value - test.chance) / test.standard_error:+.1f} standard errors"
    low, high = chance_interval(test)
    if value > high:
        return holds("above chance", words)
    so = "below chance" if value < low else "not told apart from chance"
    return does_not_follow(
        f"{so}: it measures nothing that the model has learnt",
        words,
        severity=Severity.NOTE,
        threshold="the 95 % interval of guessing, 1.96 standard errors",
    )


def better(q: Question) -> Judgement:
    """Judge "Run A beats run B" by losses: beyond the noise of a printed loss, at the same phase of the schedule."""
    mine, other = q.get("value"), q.get("other")
    words = f"{mine.text} against {other.text} nats, each ±{NOISE_NATS:g}"
    phases = [phase and phase.middle for phase in (q.get("phase"), q.get("other_phase"))]
    if problem := phase_problem(phases):
        return does_not_follow(
            problem, words, threshold="equal steps compare only at the same phase of the schedule (Tissue et al. 2024)"
        )
    if mine.high + NOISE_NATS < other.low:
        return holds(f"{other.low - mine.high:.2f} nats better, beyond the noise", words)
    if mine.low > other.high:
        return wrong("its loss is higher", words)
    return does_not_follow(
        "the ranges overlap within the noise of single steps",
        words,
        actions=("compare validation losses, both after their learning rate has decayed",),
    )


def learning_rate_at(q: Question) -> Judgement:
    """A printed learning rate against the declared schedule: linear warm-up, then cosine to the end."""
    s, step = q.setup, q.get("step").low
    if s.learning_rate is None or s.schedule is None and (s.warmup_steps or 0) < step:
        return unknown("learning rate or schedule are not stated")
    low = s.min_learning_rate or 0.0
    if s.warmup_steps and step <= s.warmup_steps:
        # warm-up starts at zero or at the least rate, and counts from step 0 or 1: all are common
        begin = [a + (s.learning_rate - a) * (step - c) / s.warmup_steps for a in (0.0, low) for c in (0, 1)]
        ends, words = (min(begin), max(begin)), f"warm-up, step {step:g} of {s.warmup_steps}"
    elif s.schedule == "cosine" and s.steps:
        done = (step - (s.warmup_steps or 0)) / (s.steps - (s.warmup_steps or 0))
        rate = low + (s.learning_rate - low) * float(cosine(min(1.0, done)))
        ends, words = (rate, rate), f"cosine at {done:.2%}".replace("%", " %")
    else:
        ends, words = (s.learning_rate, s.learning_rate), "constant"
    return compare(q.get("value"), *ends, show=_show_rate, arithmetic=f"{words}: {_show_rate(ends[-1])}")


def _show_rate(rate: float) -> str:
    return f"{rate:.3g}"


def learning_rate(q: Question) -> Judgement:
    """A peak learning rate against published laws: they disagree severalfold, so only what is far off is judged."""
    s, model = q.setup, counts(q.setup)
    if model is None or s.tokens_of_a_step is None or s.steps is None or s.seq_len is None:
        return unknown("shape, steps or tokens of a step are not stated")
    tokens = s.steps * s.tokens_of_a_step
    shape = model.readings[0].shape
    rates, blocks = peak_rates(shape, tokens), flops.block_matrix_parameters(shape)
    words = ", ".join(f"{name} {rate:.2g}" for name, rate in rates.items())
    words += f" for {format_count(blocks)} parameters in blocks and {format_tokens(tokens)} tokens"
    value = q.get("value").middle
    if not off_laws(value, rates):
        return holds(f"within {OFF_LAW:g} times of the published laws", words)
    times = times_off(value, rates)
    side, factor = ("above", times) if times > 1 else ("below", 1 / times)
    so = f"{factor:,.0f} times {side} the nearest published law"
    return does_not_follow(
        so,
        words,
        confidence=Confidence.MEDIUM,
        consequence="the same loss is reached in far fewer steps at a larger rate"
        if side == "below"
        else "the loss may diverge",
        actions=("try 3 and 10 times the rate for a few hundred steps",),
        threshold=f"laws differ 2-5 times among each other; {OFF_LAW:g} times outside their band is judged",
    )


def clip_share(q: Question) -> Judgement:
    """How much is clipped, against the printed norms and the threshold."""
    clip, norms = q.setup.grad_clip, [n for n in q.card.column("grad_norm") if n is not None]
    if clip is None or not norms:
        return unknown("threshold or norms are not given")
    steps = sum(n > clip for n in norms) / len(norms)
    cut = sum(max(0.0, 1 - clip / n) for n in norms if n > 0) / len(norms)
    words = f"{len(norms)} printed norms: {format_percent(steps)} above {clip:g}, mean cut {format_percent(cut)}"
    value = q.get("value")
    if value.admits(steps):
        return holds("the share of clipped steps", words)
    return unknown("it does not say of what: share of steps, or mean cut; " + words, words)
