"""Losses of language models that are too low for text: leaks, masks, units."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, tail, trailing_median
from advisor.findings.loss_kind import has_level, is_language
from advisor.findings.run_facts import nats_per_unit, number, planned_steps

_SOLVED = 0.02  # nats per token: the next token is known with 98 %, which no text allows
_NOTHING = 0.01  # the same wherever in the run: perplexity 1.01
_MANY_CLASSES = 3.0  # nats: among 20 classes and more; regressions that start here end near 0 as well: a note
_FEWEST_ROWS = 5
_FRESH, _KNOWN = 7.0, 0.1  # nats: of weights that know nothing; of held-out text known with 90 %
_LARGEST = 13.5  # nats: a guess among half a million tokens; what begins higher is of another unit
_FEWEST_EVALS = 3
_PERPLEXITIES = ("perplexity", "ppl")
_LEAKS = (
    "answers leak into the inputs: labels not shifted, a causal mask missing, nothing masked",
    "the loss is taken over padding or template tokens, or over none",
    "very few or identical examples; a loss divided by more than its tokens",
)
_LOOK = (
    "evaluate on held-out data and read what the model writes",
    "print one batch: which positions count in the loss, and are their labels in the input?",
)


def detect_too_good(case: Case) -> Verdict:
    """A language model's training loss near 0 before its data have come round once, or so low that nothing is left."""
    if (said := _perplexity_said(case)) is not None:
        return said
    losses, unit = curve(case.run, "loss"), nats_per_unit(case.run)
    language = is_language(case)
    if len(losses) < _FEWEST_ROWS or unit is None or not (language or _may_be_language(case, losses)):
        return Insufficient(code="too_good", missing=f"{_FEWEST_ROWS} losses of a language model, per token")
    if (found := _held_out(case, losses, unit, language)) is not None:
        return found
    if not language and len(curve(case.run, "eval_loss")):
        return None  # its held-out loss is that of a model which has something left to learn
    end = float(np.median(tail(losses.value, least=3))) * unit
    low = np.flatnonzero(trailing_median(losses.value, _FEWEST_ROWS) * unit < _SOLVED)
    if not has_level(case, losses) or not len(low) or not 0 <= end < _SOLVED:
        return None
    epoch = _epoch_at(case, losses, int(low[0]))
    first_epoch = epoch is not None and epoch < 1
    least = _NOTHING if language else _NOTHING / 10
    if (not first_epoch and epoch is not None) or ((not first_epoch or not language) and end >= least):
        return None  # after several epochs it is memorised, which is another finding
    step = float(losses.step[low[0]])
    when = f" {epoch:.2g} epochs into its data" if epoch is not None else ""
    return Finding(
        code="too_good",
        severity=Severity.WARNING if language else Severity.NOTE,
        title=f"Too good to be true: loss below {_SOLVED:g} since step {step:g}{when}, {end:.2g} at the end",
        evidence=(
            Evidence(
                text=f"perplexity {math.exp(end):.3f}: the next token is known with {math.exp(-end):.1%}",
                first_step=step,
                last_step=float(losses.step[-1]),
            ),
        ),
        confidence=Confidence.HIGH if first_epoch else Confidence.MEDIUM,
        causes=_LEAKS,
        actions=_LOOK,
        threshold=f"under {_SOLVED:g} nats per token within the first epoch, or under {_NOTHING:g} where epochs are "
        "not known; text has over 1.8 (laws: irreducible loss of Chinchilla's fit)",
    )


def _perplexity_said(case: Case) -> Finding | None:
    """The finding where the log itself prints a perplexity that no text has."""
    named = ((e, value) for e in case.run.events for name, value in e.numbers.items() if name.lower() in _PERPLEXITIES)
    found = next(((event, value) for event, value in named if 1 <= value < math.exp(_SOLVED)), None)
    if found is None:
        return None
    event, value = found
    return Finding(
        code="too_good",
        severity=Severity.WARNING,
        title=f"Too good to be true: perplexity {value:.4g}",
        evidence=(Evidence(text=f"line {event.line}: {event.text}"),),
        confidence=Confidence.HIGH,
        causes=_LEAKS,
        actions=_LOOK,
        threshold=f"under {math.exp(_SOLVED):.3f}; text has over 6 (laws: irreducible loss of Chinchilla's fit)",
    )


def _may_be_language(case: Case, losses: Curve) -> bool:
    """Whether the first loss is that of a guess among a vocabulary, and no accuracy says that classes are guessed."""
    scored = any(len(curve(case.run, name)) for name in ("accuracy", "eval_accuracy"))
    return len(losses) > 0 and losses.value[0] >= _MANY_CLASSES and not scored


def _held_out(case: Case, losses: Curve, own_unit: float, language: bool) -> Finding | None:
    """The finding where even held-out text is known almost entirely by a model that began with nothing."""
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
    return Finding(
        code="too_good",
        severity=Severity.WARNING if language else Severity.NOTE,  # a regression may begin and end there as well
        title=f"Too good to be true: validation loss {evals.value[0]:.4g} → {end:.2g} on "
        f"{'text' if language else 'data'} never seen",
        evidence=(
            Evidence(
                text=f"perplexity {math.exp(end):.3f} since step {low[0]:g}: the next token is known with "
                f"{math.exp(-end):.1%}",
                first_step=float(low[0]),
                last_step=float(evals.step[-1]),
            ),
        ),
        confidence=Confidence.MEDIUM if language else Confidence.LOW,
        causes=(
            "the answer is in the input: labels not shifted, attention that sees later tokens",
            "another objective than the next token (masked or denoised tokens, most of which are given)",
            "validation data that repeat the training data, or synthetic data with a rule",
        ),
        actions=(
            ("" if language else "if it predicts tokens, ")
            + "let the model write text: one that knows the next token with such certainty must write well",
        ),
        threshold=f"held-out loss from over {least:g} to under {most:g} nats; text has over 1.8 (Chinchilla's fit)",
    )


def _epoch_at(case: Case, losses: Curve, row: int) -> float | None:
    """Passes over the data at a row: printed, else by the share of the planned steps; None where not known."""
    epochs = curve(case.run, "epoch")
    if len(epochs) == len(losses):
        return float(epochs.value[row])
    planned, steps = number(case.run.facts, "planned_epochs"), planned_steps(case)
    if planned and steps and losses.counted:
        return float(losses.step[row]) / steps * planned
    return None
