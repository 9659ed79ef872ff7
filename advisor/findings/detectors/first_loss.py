"""The first loss compared with a uniform guess, ln V: sums for means, other vocabularies, bad scales, random data."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Finding, Verdict, finding, lacking, seen
from advisor.findings.curves import Curve, curve, tail, trailing_median
from advisor.findings.detectors.learning_rate import rate_is_zero
from advisor.findings.run_facts import (
    has_level,
    is_language,
    nats_per_unit,
    number,
    planned_steps,
    sequence_length,
    steps_done,
    vocabulary,
)
from advisor.findings.savings import cost_of_steps
from advisor.laws.initial_loss import (
    FAULT_ABOVE,
    FAULT_BELOW,
    SOUND,
    is_unscaled,
    logit_deviation,
    summed_over,
    uniform_loss,
)
from advisor.units import format_percent

_SEEN = "sources §7.1: a fresh model's first loss is ln V (zero-initialised head) to ln V + σ²/2"
_LATEST_HIGH = 200  # up to this step, a loss above ln V + 1 says how the run started
_LARGEST_VOCABULARY = 262_144  # Gemma 3
_FAR_BEYOND = 2.0  # times ln V; no second head or auxiliary loss explains this
_FEW_STEPS = 50  # before this step, nobody expects a model to beat the uniform guess
_LONG_ENOUGH = 200  # by this step, the frequencies of tokens alone put a language model nats below ln V
_WORSE = 0.1  # nats above ln V; the first rows of a healthy run are within 0.3
_AT_UNIFORM = 0.05  # nats; the noise of a batch of 4,000 tokens with σ ≈ 3 nats
# rows of common embedding tables; e^L0 is compared with these by name
_VOCABULARIES = {
    256: "bytes",
    32_000: "LLaMA 1 and 2",
    32_768: "nanochat since 2026",
    50_257: "GPT-2",
    65_536: "nanochat of 2025",
    100_277: "cl100k",
    128_256: "LLaMA 3",
    151_936: "Qwen 2",
    256_000: "Gemma",
}


def detect_initial_loss(case: Case) -> Verdict:
    """A first loss far above or below ln V, with the likeliest reasons."""
    losses, vocab, unit = curve(case.run, "loss"), vocabulary(case), nats_per_unit(case.run)
    if vocab is None and unit is not None and len(losses) and is_language(case) and has_level(case, losses):
        # no vocabulary gives such a loss, so that it is a sum or has another unit
        first, most = float(losses.value[0]) * unit, uniform_loss(_LARGEST_VOCABULARY)
        if first > most + FAULT_ABOVE and losses.step[0] <= _LATEST_HIGH:
            return finding(
                "initial_loss_high",
                severity="warning" if first > _FAR_BEYOND * most else "note",
                title=_beyond_all(first),
                evidence=seen(f"loss {first:.5g} at step {losses.step[0]:g}", *losses.step[[0, 0]]),
                threshold=f"{_SEEN}; the largest vocabularies have about {_LARGEST_VOCABULARY:,} tokens",
            )
    if vocab is None or unit is None or not len(losses):
        missing = "the vocabulary's size" if vocab is None else "a training loss in nats or bits per token"
        return lacking("initial_loss", missing)
    step, loss, expected = float(losses.step[0]), float(losses.value[0]) * unit, uniform_loss(vocab)
    if loss > expected + FAULT_ABOVE and step <= _LATEST_HIGH:
        return _too_high(case, step, loss, vocab)
    if loss >= expected - FAULT_BELOW:
        return None
    if step > 1 or not losses.counted:
        return lacking("initial_loss", f"the loss before step 2 (the first one printed is of step {step:g})")
    return finding(
        "initial_loss_low",
        title=f"First loss {loss:.4g} is below ln {vocab:,} = {expected:.3f}: these are not fresh weights",
        evidence=seen(f"loss {loss:.5g} at step {step:g}", step, step),
        confidence="low" if number(case.run.facts, "resumed_from_step") else "medium",
        causes=(
            "the weights were loaded (fine-tuning, or a resumed run)",
            *_other_vocabulary(loss, vocab),
            "answers leak into the inputs (labels not shifted, padding counted, one sample repeated)",
        ),
    )


def _beyond_all(loss: float) -> str:
    return (
        f"First loss {loss:.4g} is above ln V of any vocabulary (ln {_LARGEST_VOCABULARY:,} = "
        f"{uniform_loss(_LARGEST_VOCABULARY):.2f}): the reduction of the loss or the initialisation is wrong"
    )


def _too_high(case: Case, step: float, loss: float, vocab: int) -> Finding:
    uniform = uniform_loss(vocab)
    excess = loss - uniform
    sums = _sums(case, loss, vocab)
    averaged = "average the loss over tokens (and divide by the accumulation steps) before `backward()`"
    smaller = "initialise embeddings and head with a standard deviation of 0.02, or the head with zeros"
    return finding(
        "initial_loss_high",
        severity="error" if sums or excess > 3 else "warning",
        title=_beyond_all(loss)
        if loss > uniform_loss(_LARGEST_VOCABULARY) + FAULT_ABOVE
        else f"First loss {loss:.4g} is {excess:.3g} above the uniform guess, ln {vocab:,} = {uniform:.3f}",
        evidence=(
            seen(f"loss {loss:.5g} at step {step:g}", step, step),
            f"the uniform guess over a vocabulary of {vocab:,} tokens is ln V = {uniform:.3f}",
        ),
        confidence="high",
        causes=sums + _scale_causes(case, loss, vocab),
        actions=(averaged if sums else smaller, "print the loss of one batch before any update; it has to be ln V"),
        threshold=f"{_SEEN}; more than {FAULT_ABOVE:g} above is a fault",
    )


def _sums(case: Case, loss: float, vocab: int) -> tuple[str, ...]:
    """Return the causes in words: which sum instead of a mean gives this loss."""
    facts, work = case.run.facts, case.workload
    sizes = {
        "sequence length": sequence_length(case),
        "micro-batch": number(facts, "micro_batch") or (work.micro_batch if work else None),
        "accumulation steps": number(facts, "grad_accum") or (work.grad_accum if work else None),
        "devices": number(facts, "world_size") or (work.gpus if work else None),
    }
    expected = uniform_loss(vocab)
    words = [
        f"the loss is summed over {divisor.name} ({divisor.count:,.6g}) instead of averaged: "
        f"{loss:,.5g} / {divisor.count:,.6g} = {loss / divisor.count:.3f} against ln {vocab:,} = {expected:.3f}"
        for divisor in summed_over(loss, vocab, sizes)[:3]
    ]
    if abs(loss * math.log(2) - expected) <= SOUND:
        words.append(f"the loss is printed in bits: {loss:.4g} × ln 2 = {loss * math.log(2):.3f} nats")
    ratio = loss / expected
    if not words and ratio >= 1.9 and abs(ratio / round(ratio) - 1) < 0.02 and round(ratio).bit_count() == 1:
        words.append(f"the loss is {ratio:.3f} × ln V: a sum over {round(ratio)} of something instead of a mean")
    return tuple(words)


def _scale_causes(case: Case, loss: float, vocab: int) -> tuple[str, ...]:
    """Return the scale of the logits that gives such a first loss, and its likely causes."""
    deviation = logit_deviation(loss, vocab)
    words = [f"logits with a standard deviation of about {deviation:.3g} at the start instead of 1 or less"]
    width = case.workload.shape.width if case.workload else number(case.run.facts, "width")
    if width and width > 0 and is_unscaled(loss, width, vocab):
        words.append(
            f"embeddings drawn from N(0, 1) and tied to the head: logits of √{width:g} = {math.sqrt(width):.3g}"
        )
    return (*words, *_other_vocabulary(loss, vocab), "learning rate applied before the first loss is printed")


def _other_vocabulary(loss: float, vocab: int) -> list[str]:
    """Return the vocabulary whose uniform guess has this loss: e^L0, or down to e^(L0 − 0.5) with random logits."""
    if not 3 < loss < 13:
        return []
    guessed = {size: name for size, name in _VOCABULARIES.items() if -0.05 <= loss - uniform_loss(size) <= SOUND}
    near = [f"{size:,} ({name})" for size, name in guessed.items() if size != vocab]
    named = f", such as {' or '.join(near)}" if near else ""
    return [f"another vocabulary: e^{loss:.4g} = {math.exp(loss):,.0f} tokens{named}"]


def detect_end_against_uniform(case: Case) -> Verdict:
    """A loss that ends at or above ln V: the model knows nothing, however much the loss has fallen."""
    losses, vocab, unit = curve(case.run, "loss"), vocabulary(case), nats_per_unit(case.run)
    if vocab is None or unit is None or not len(losses):
        return lacking("worse_than_uniform", "the vocabulary's size and a loss per token")
    done, last = steps_done(case.run) or len(losses), float(losses.step[-1])
    end, expected = float(np.median(tail(losses.value))) * unit, uniform_loss(vocab)
    if done >= _LONG_ENOUGH and abs(end - expected) <= _AT_UNIFORM and not rate_is_zero(case.run):
        return finding(
            "random_tokens",
            title=f"Loss rests at {end:.3f} = ln {vocab:,} after {done:,.0f} steps: as if the tokens were random",
            evidence=seen(f"median of the last rows {end:.4f}, ln V {expected:.4f}", last=last),
            confidence="high" if done >= 2 * _LONG_ENOUGH else "medium",
            saved=cost_of_steps(case, done),
        )
    if done < _FEW_STEPS or end <= expected + _WORSE:
        return None
    first = float(losses.value[0]) * unit
    sums = _sums(case, first, vocab) if first > expected + FAULT_ABOVE else ()
    fallen = f"fell from {first:.4g} to {end:.4g} (median of the last rows)" if end < first else f"is {end:.4g}"
    return finding(
        "worse_than_uniform",
        severity="warning" if sums else "error",
        title=f"Loss {fallen}, yet a uniform guess over a vocabulary of {vocab:,} tokens gives {expected:.3f}: "
        "nothing usable was learnt",
        evidence=(
            seen(f"loss {end:.5g} over the last rows", losses.step[0], last),
            f"perplexity 10^{end / math.log(10):.2f} against {vocab:,} for the uniform guess",
        ),
        confidence="medium" if sums else "high",
        causes=(*sums, *_scale_causes(case, first, vocab)[:2], "inputs and labels that do not belong together"),
        saved=cost_of_steps(case, done),
    )


_SOLVED = 0.02  # nats per token: the next token is known with 98 %, which is impossible for text
_NOTHING = 0.01  # nats at any time in the run: perplexity 1.01
_MANY_CLASSES = 3.0  # nats: a guess among 20 or more classes; regressions that start here also end near 0: a note
_FEWEST_ROWS = 5
_FRESH, _KNOWN = 7.0, 0.1  # nats: the loss of an untrained model; the loss of held-out text known with 90 %
_LARGEST = 13.5  # nats: a guess among half a million tokens; a higher first loss has another unit
_FEWEST_EVALS = 3
_PERPLEXITIES = ("perplexity", "ppl")


def detect_too_good(case: Case) -> Verdict:
    """A language model's training loss that is near 0 within the first epoch, or lower than any text allows."""
    # the log itself prints a perplexity that is impossible for text
    for event in case.run.events:
        for name, value in event.numbers.items():
            if name.lower() in _PERPLEXITIES and 1 <= value < math.exp(_SOLVED):
                return finding(
                    "too_good",
                    text="too_good_perplexity",
                    title=f"Too good to be true: perplexity {value:.4g}",
                    evidence=f"line {event.line}: {event.text}",
                )
    losses, unit = curve(case.run, "loss"), nats_per_unit(case.run)
    language = is_language(case)
    # the first loss is that of a guess among a vocabulary, and no accuracy shows that classes are guessed
    scored = any(len(curve(case.run, name)) for name in ("accuracy", "eval_accuracy"))
    may_be = language or (len(losses) > 0 and losses.value[0] >= _MANY_CLASSES and not scored)
    if len(losses) < _FEWEST_ROWS or unit is None or not may_be:
        return lacking("too_good", f"{_FEWEST_ROWS} losses of a language model, per token")
    if (found := _held_out(case, losses, unit, language)) is not None:
        return found
    if not language and len(curve(case.run, "eval_loss")):
        return None  # by its held-out loss, the model has something left to learn
    end = float(np.median(tail(losses.value, least=3))) * unit
    low = np.flatnonzero(trailing_median(losses.value, _FEWEST_ROWS) * unit < _SOLVED)
    if not has_level(case, losses) or not len(low) or not 0 <= end < _SOLVED:
        return None
    # passes over the data: as printed, or else by the share of the planned steps
    epochs, epoch = curve(case.run, "epoch"), None
    planned, steps = number(case.run.facts, "planned_epochs"), planned_steps(case)
    if len(epochs) == len(losses):
        epoch = float(epochs.value[low[0]])
    elif planned and steps and losses.counted:
        epoch = float(losses.step[low[0]]) / steps * planned
    first_epoch = epoch is not None and epoch < 1
    least = _NOTHING if language else _NOTHING / 10
    if (not first_epoch and epoch is not None) or ((not first_epoch or not language) and end >= least):
        return None  # after several epochs the data are memorised, which is another finding
    step = float(losses.step[low[0]])
    when = f" {epoch:.2g} epochs into the data" if epoch is not None else ""
    known = f"the next token is known with {format_percent(math.exp(-end))}"
    return finding(
        "too_good",
        severity="warning" if language else "note",
        title=f"Too good to be true: loss below {_SOLVED:g} since step {step:g}{when}, {end:.2g} at the end",
        evidence=seen(f"perplexity {math.exp(end):.3f}: {known}", step, losses.step[-1]),
        confidence="high" if first_epoch else "medium",
    )


def _held_out(case: Case, losses: Curve, own_unit: float, language: bool) -> Finding | None:
    """Return the finding for a fresh model that predicts even held-out text almost perfectly."""
    evals = curve(case.run, "eval_loss")
    unit = nats_per_unit(case.run, "eval_loss_unit") or own_unit
    if len(evals) < _FEWEST_EVALS or not has_level(case, losses):
        return None
    # the first evaluation may come late
    began = max(float(evals.value[0]) * unit, float(losses.value[0]) * own_unit if len(losses) else 0.0)
    end = float(np.median(tail(evals.value, least=2))) * unit
    least, most = (_FRESH, _KNOWN) if language else (_MANY_CLASSES, _SOLVED)
    if not (least <= began and 0 <= end < most) or (not language and began > _LARGEST):
        return None
    low = evals.step[evals.value * unit < most]
    known = f"the next token is known with {format_percent(math.exp(-end))}"
    return finding(
        "too_good",
        text="too_good_held_out",
        severity="warning" if language else "note",  # a regression may begin and end at such losses too
        title=f"Too good to be true: validation loss {evals.value[0]:.4g} → {end:.2g} on "
        f"{'text' if language else 'data'} never seen",
        evidence=seen(f"perplexity {math.exp(end):.3f} since step {low[0]:g}: {known}", low[0], evals.step[-1]),
        confidence="medium" if language else "low",
        actions=("" if language else "if it predicts tokens, ")
        + "let the model write text: one that knows the next token with such certainty must write well",
        threshold=f"held-out loss from over {least:g} to under {most:g} nats; text has over 1.8 (Chinchilla's fit)",
    )
