"""The first loss against the uniform guess, ln V: sums for means, other vocabularies, bad scales, random data."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, tail
from advisor.findings.detectors.learning_rate import rate_is_zero
from advisor.findings.loss_kind import has_level, is_language
from advisor.findings.run_facts import nats_per_unit, number, sequence_length, steps_done, vocabulary
from advisor.findings.spend import cost_of_steps
from advisor.laws.initial_loss import (
    FAULT_ABOVE,
    FAULT_BELOW,
    SOUND,
    is_unscaled,
    logit_deviation,
    summed_over,
    uniform_loss,
)

_SEEN = "sources §7.1: a fresh model's first loss is ln V (zero-initialised head) to ln V + σ²/2"
_LATEST_HIGH = 200  # a loss above ln V + 1 this early is still about how the run started
_LARGEST_VOCABULARY = 262_144  # Gemma 3
_FAR_BEYOND = 2.0  # times its ln V: no second head or auxiliary loss explains it
_FEW_STEPS = 50  # before so many steps nobody expects a model to beat the uniform guess
_LONG_ENOUGH = 200  # by then the frequencies of tokens alone put a language model nats below ln V
_WORSE = 0.1  # nats above ln V; the first rows of a healthy run lie within 0.3
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
    """The first printed loss against ln V, with the likeliest reasons where it is too high or too low."""
    losses, vocab, unit = curve(case.run, "loss"), vocabulary(case), nats_per_unit(case.run)
    if vocab is None and unit is not None and len(losses) and (found := _above_all(case, losses, unit)):
        return found
    if vocab is None or unit is None or not len(losses):
        missing = "the vocabulary's size" if vocab is None else "a training loss in nats or bits per token"
        return Insufficient(code="initial_loss", missing=missing)
    step, loss, expected = float(losses.step[0]), float(losses.value[0]) * unit, uniform_loss(vocab)
    if loss > expected + FAULT_ABOVE and step <= _LATEST_HIGH:
        return _too_high(case, step, loss, vocab)
    if loss >= expected - FAULT_BELOW:
        return None
    if step > 1 or not losses.counted:
        missing = f"the loss before step 2 (the first one printed is of step {step:g})"
        return Insufficient(code="initial_loss", missing=missing)
    return _too_low(case, step, loss, vocab)


def _above_all(case: Case, losses: Curve, unit: float) -> Finding | None:
    """A first loss that no vocabulary gives, where the run's own is not known: a sum, or another unit."""
    first, step = float(losses.value[0]) * unit, float(losses.step[0])
    most = uniform_loss(_LARGEST_VOCABULARY)
    if not is_language(case) or not has_level(case, losses) or first <= most + FAULT_ABOVE or step > _LATEST_HIGH:
        return None
    return Finding(
        code="initial_loss_high",
        severity=Severity.WARNING if first > _FAR_BEYOND * most else Severity.NOTE,
        title=_beyond_all(first),
        evidence=(Evidence(text=f"loss {first:.5g} at step {step:g}", first_step=step, last_step=step),),
        confidence=Confidence.MEDIUM,
        causes=(
            "the loss is a sum: over tokens, micro-batches or GPUs",
            "it holds other terms (several heads, auxiliary losses), or weights of far too large a scale",
        ),
        actions=("divide it by what it is summed over; the vocabulary's size (--config) tells by how much it is off",),
        threshold=f"{_SEEN}; the largest vocabularies have about {_LARGEST_VOCABULARY:,} tokens",
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
    causes = sums + _scale_causes(case, loss, vocab)
    actions = ["print the loss of one batch before any update; it has to be ln V"]
    if sums:
        actions.insert(0, "average the loss over tokens (and divide by the accumulation steps) before `backward()`")
    else:
        actions.insert(0, "initialise embeddings and head with a standard deviation of 0.02, or the head with zeros")
    return Finding(
        code="initial_loss_high",
        severity=Severity.ERROR if sums or excess > 3 else Severity.WARNING,
        title=_beyond_all(loss)
        if loss > uniform_loss(_LARGEST_VOCABULARY) + FAULT_ABOVE
        else f"First loss {loss:.4g} is {excess:.3g} above the uniform guess, ln {vocab:,} = {uniform:.3f}",
        evidence=(
            Evidence(text=f"loss {loss:.5g} at step {step:g}", first_step=step, last_step=step),
            Evidence(text=f"the uniform guess among {vocab:,} tokens is ln V = {uniform:.3f}"),
        ),
        confidence=Confidence.HIGH,
        causes=causes,
        actions=tuple(actions),
        threshold=f"{_SEEN}; more than {FAULT_ABOVE:g} above is a fault",
    )


def _too_low(case: Case, step: float, loss: float, vocab: int) -> Finding:
    """A first loss under ln V: not a fresh model on this vocabulary."""
    causes = ["the weights were loaded (fine-tuning, or a resumed run)", *_other_vocabulary(loss, vocab)]
    resumed = number(case.run.facts, "resumed_from_step")
    causes.append("answers leak into the inputs (labels not shifted, padding counted, one sample repeated)")
    return Finding(
        code="initial_loss_low",
        severity=Severity.NOTE,
        title=f"First loss {loss:.4g} is below ln {vocab:,} = {uniform_loss(vocab):.3f}: these are not fresh weights",
        evidence=(Evidence(text=f"loss {loss:.5g} at step {step:g}", first_step=step, last_step=step),),
        confidence=Confidence.LOW if resumed else Confidence.MEDIUM,
        causes=tuple(causes),
        actions=("if the run was meant to start from random weights, compare its vocabulary and labels with the loss",),
        threshold=f"{_SEEN}; more than {FAULT_BELOW:g} below at the first step is not a fresh start",
    )


def _sums(case: Case, loss: float, vocab: int) -> tuple[str, ...]:
    """Causes in words: which sum instead of a mean gives this loss."""
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
    if not words and ratio >= 1.9 and abs(ratio / round(ratio) - 1) < 0.02 and _power_of_two(round(ratio)):
        words.append(f"the loss is {ratio:.3f} × ln V: a sum over {round(ratio)} of something instead of a mean")
    return tuple(words)


def _scale_causes(case: Case, loss: float, vocab: int) -> tuple[str, ...]:
    """What the scale of the logits must be for such a first loss, and what gives such a scale."""
    deviation = logit_deviation(loss, vocab)
    words = [f"logits with a standard deviation of about {deviation:.3g} at the start instead of 1 or less"]
    width = case.workload.shape.width if case.workload else number(case.run.facts, "width")
    if width and width > 0 and is_unscaled(loss, width, vocab):
        words.append(
            f"embeddings drawn from N(0, 1) and tied to the head: logits of √{width:g} = {math.sqrt(width):.3g}"
        )
    return (*words, *_other_vocabulary(loss, vocab), "learning rate applied before the first loss is printed")


def _other_vocabulary(loss: float, vocab: int) -> list[str]:
    """The vocabulary that this loss is the uniform guess of: e^L0, down to e^(L0 − 0.5) with random logits."""
    if not 3 < loss < 13:
        return []
    near = [f"{size:,} ({name})" for size, name in _VOCABULARIES.items() if size != vocab and _near(loss, size)]
    named = f", such as {' or '.join(near)}" if near else ""
    return [f"another vocabulary: e^{loss:.4g} = {math.exp(loss):,.0f} tokens{named}"]


def _near(loss: float, vocab: int) -> bool:
    return -0.05 <= loss - uniform_loss(vocab) <= SOUND


def _power_of_two(value: int) -> bool:
    return value > 1 and value & (value - 1) == 0


def detect_worse_than_uniform(case: Case) -> Verdict:
    """A loss that ends above ln V: the model is worse than knowing nothing, however much the loss has fallen."""
    losses, vocab, unit = curve(case.run, "loss"), vocabulary(case), nats_per_unit(case.run)
    if vocab is None or unit is None or not len(losses):
        return Insufficient(code="worse_than_uniform", missing="the vocabulary's size and a loss per token")
    done = steps_done(case.run) or len(losses)
    if done < _FEW_STEPS:
        return None
    end, expected = float(np.median(tail(losses.value))) * unit, uniform_loss(vocab)
    if end <= expected + _WORSE:
        return None
    first, last = float(losses.value[0]) * unit, float(losses.step[-1])
    sums = _sums(case, first, vocab) if first > expected + FAULT_ABOVE else ()
    hours, usd = cost_of_steps(case, done)
    fallen = f"fell from {first:.4g} to {end:.4g}" if end < first else f"is {end:.4g}"
    return Finding(
        code="worse_than_uniform",
        severity=Severity.WARNING if sums else Severity.ERROR,
        title=f"Loss {fallen}, yet guessing all {vocab:,} tokens alike gives {expected:.3f}: nothing usable was learnt",
        evidence=(
            Evidence(text=f"loss {end:.5g} over the last rows", first_step=float(losses.step[0]), last_step=last),
            Evidence(text=f"perplexity 10^{end / math.log(10):.2f} against {vocab:,} for the uniform guess"),
        ),
        confidence=Confidence.MEDIUM if sums else Confidence.HIGH,
        causes=(*sums, *_scale_causes(case, first, vocab)[:2], "inputs and labels that do not belong together"),
        actions=("stop the run; make one batch's loss start at ln V and fall to near 0 on that batch alone",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"sources §7.1: loss above ln V + {_WORSE:g} after {_FEW_STEPS} steps is worse than uniform",
    )


def detect_random_tokens(case: Case) -> Verdict:
    """A loss that settles at ln V: the data hold nothing to learn, or no gradient arrives."""
    losses, vocab, unit = curve(case.run, "loss"), vocabulary(case), nats_per_unit(case.run)
    if vocab is None or unit is None or not len(losses):
        return Insufficient(code="random_tokens", missing="the vocabulary's size and a loss per token")
    done = steps_done(case.run) or len(losses)
    end, expected = float(np.median(tail(losses.value))) * unit, uniform_loss(vocab)
    if done < _LONG_ENOUGH or abs(end - expected) > _AT_UNIFORM or rate_is_zero(case.run):
        return None
    hours, usd = cost_of_steps(case, done)
    return Finding(
        code="random_tokens",
        severity=Severity.WARNING,
        title=f"Loss rests at {end:.3f} = ln {vocab:,} after {done:,.0f} steps: as if the tokens were random",
        evidence=(
            Evidence(text=f"median of the last rows {end:.4f}, ln V {expected:.4f}", last_step=float(losses.step[-1])),
        ),
        confidence=Confidence.HIGH if done >= 2 * _LONG_ENOUGH else Confidence.MEDIUM,
        causes=(
            "synthetic or shuffled tokens as training data: no model can get below ln V on them",
            "no gradient reaches the weights (detached graph, frozen parameters, a learning rate that rounds to 0)",
        ),
        actions=("train on real text; for a speed test only, read nothing into this loss",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"sources §7.1: random tokens have the floor ln V; within {_AT_UNIFORM:g} at step {_LONG_ENOUGH}",
    )
