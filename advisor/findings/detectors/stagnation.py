"""Losses that stand still: no learning, preference training at chance, plateaus, and differences that are noise."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, head, rate_curve, row_noise, tail
from advisor.findings.detectors.learning_rate import rate_is_zero
from advisor.findings.loss_kind import has_level, is_language, is_solved
from advisor.findings.run_facts import (
    from_scratch,
    nats_per_unit,
    number,
    planned_steps,
    sequence_length,
    step_tokens,
    steps_done,
    vocabulary,
)
from advisor.findings.savings import stake_steps
from advisor.findings.spend import cost_of_steps
from advisor.readers.run_table import Status

_FEWEST_ROWS = 30
_FEWEST_FLAT = 12  # rows: epochs count few
_SMALL_LOSS = 5.0  # nats per token: no fresh language model starts below it
_GUESS = 0.01  # of ln K: a loss this near to guessing among K classes
_CLASSES = (2, 3, 4, 5, 10, 20, 50, 100, 200, 1000)  # of the usual data sets
_SURE, _RISEN = 0.05, 0.05  # of the loss: noise that hides no fall worth having; a rise that is another finding
_FLAT = 0.01  # of the loss: a fall of less over a whole run is no learning
_FLAT_ZERO_RATE = 0.05  # with a learning rate of 0 the batches alone move the ends this far
_LN2 = math.log(2)
_AT_CHANCE = 0.02  # nats about ln 2 in which preference losses start: both answers equally likely
_PREFERENCE_END = 0.64  # a DPO loss still above this has moved the margin by less than 0.1
_PLATEAU = 0.002  # of the loss, over a third of the run
_TELLING = 0.01  # of the loss: a gain of this has to show over the noise
_ERRORS = 2.0  # standard errors of the difference of two medians
_ROUGH = 0.01  # of the loss: noise below this misleads nobody
_OUTLIER = 5.0  # standard deviations: more is no scatter
# The frequencies of tokens alone give about 70 % of ln V (sources §7.1): 7.3 nats of 32,000 tokens, 7.6 of 50,257. A
# model is called stuck above 7, of a smaller vocabulary above three quarters of ln V.
_STUCK_LOSS, _STUCK_SHARE = 7.0, 0.75
_STUCK_STEPS, _STUCK_ROWS = 1000, 4
_STUCK_FALL = 0.15  # nats while the steps double; a healthy model at this level falls by 0.5 and more
_HALF, _LATE = (0.35, 0.65), 0.85  # of the last step: which rows are compared
_HIGHEST_GUESS, _AT_GUESS = 12.6, 0.3  # nats: no vocabulary has a higher ln V; near it nothing at all is learnt
_MASKED = re.compile(r"bert|mlm|mask|electra")  # which may rest at this level for thousands of steps, and leave it
_MISLEADS = 1.5  # standard deviations between the last row and the level it scatters about


def detect_no_learning(case: Case) -> Verdict:
    """A loss as high at the end as at the start."""
    losses = curve(case.run, "loss")
    if len(losses) < _FEWEST_FLAT:
        return Insufficient(code="no_learning", missing=f"{_FEWEST_FLAT} rows with a training loss")
    if not has_level(case, losses):
        return Insufficient(code="no_learning", missing="a loss whose height means something, and no policy loss")
    first, end = float(np.median(head(losses.value))), float(np.median(tail(losses.value)))
    if first <= 0 or _is_preference(case, losses):
        return None
    zero = rate_is_zero(case.run)
    noise = _ERRORS * _error_of_difference(losses.value, head(losses.value), tail(losses.value))
    fall, flat = first - end, (_FLAT_ZERO_RATE if zero else _FLAT) * first
    hidden = not zero and noise < _SURE * first and fall <= noise  # more noise than that could hide a real fall
    if (fall > flat and not hidden) or -fall > max(_RISEN * first, noise):
        return None
    guess = None if is_language(case) else _guessing(first, end)
    fresh = zero or guess is not None or from_scratch(case) is True
    hours, usd = cost_of_steps(case, steps_done(case.run) or len(losses)) if fresh else (None, None)
    known = _may_know_its_data(case, losses)
    return Finding(
        code="no_learning",
        severity=Severity.ERROR if fresh else Severity.NOTE,  # diffusion, GANs and late parts are flat by nature
        title=(f"No learning: loss {first:.4g} at the start, {end:.4g} at the end" if fresh or not known
               else f"The loss is flat, {first:.4g} to {end:.4g}: the log may begin late, or the weights knew the data")
        + (f", as guessing among {guess} classes gives" if guess else ""),
        evidence=(
            Evidence(
                text=f"median of the first rows {first:.5g}, of the last {end:.5g}, noise of a row "
                f"{row_noise(losses.value):.3g}",
                first_step=float(losses.step[0]),
                last_step=float(losses.step[-1]),
            ),
        ),
        confidence=Confidence.HIGH if zero or (fresh and len(losses) >= 100) else Confidence.MEDIUM,
        causes=(
            *(("the learning rate is 0 in every row",) if zero else ()),
            "no gradient reaches the weights (frozen parameters, detached loss, adapters not trainable)",
            "a learning rate far too small, or already decayed to 0",
            "weights already trained on this data, or data without anything to learn",
        ),
        actions=("overfit one batch: its loss has to fall to near 0 within some hundred steps",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"fall below {_FLAT:.0%} of the loss and its noise ({_FLAT_ZERO_RATE:.0%} where the rate is 0); "
        "an error where the rate is 0, the weights were fresh or the loss is ln K of K classes",
    )  # fmt: skip


def detect_stuck_at_frequencies(case: Case) -> Verdict:
    """A language model's loss that stays where the frequencies of the words alone put it, after a thousand steps.

    A few rows are enough where they span the steps: what counts is how far the loss fell while the steps doubled.
    """
    losses, unit, vocab = curve(case.run, "loss"), nats_per_unit(case.run), vocabulary(case)
    if not len(losses) or not losses.counted or unit is None:
        return Insufficient(code="stuck_at_frequencies", missing="a training loss per token beside its steps")
    last, place = float(losses.step[-1]), losses.step / max(1.0, float(losses.step[-1]))
    late, half = losses.value[place >= _LATE] * unit, losses.value[(place >= _HALF[0]) & (place <= _HALF[1])] * unit
    if last < _STUCK_STEPS or len(losses) < _STUCK_ROWS or not len(half) or not has_level(case, losses):
        return None
    end, before = float(np.median(late)), float(np.median(half))
    level = _STUCK_LOSS if vocab is None else min(_STUCK_LOSS, _STUCK_SHARE * math.log(vocab))
    if not is_language(case) or end < level or before - end > _STUCK_FALL or end > _HIGHEST_GUESS:
        return None
    if vocab is not None and end > math.log(vocab) - _AT_GUESS:
        return None  # no better than the uniform guess: another finding
    declared = vocab is not None or sequence_length(case) is not None or step_tokens(case) is not None
    left = max(0.0, (planned_steps(case) or last) - last)
    hours, usd = cost_of_steps(case, last + left)
    return Finding(
        code="stuck_at_frequencies",
        severity=Severity.ERROR if declared and not _MASKED.search(_words(case)) else Severity.WARNING,
        title=f"Loss {end:.4g} after {last:,.0f} steps no longer falls: stuck at the level of word frequencies, "
        "stop and look",
        evidence=(
            Evidence(
                text=f"loss {before:.4g} at about step {_middle(losses):,.0f}, {end:.4g} at step {last:,.0f}: it fell "
                f"by {before - end:.2g} nats while the steps doubled",
                first_step=float(losses.step[0]),
                last_step=last,
            ),
            Evidence(text="a model that knows how often each token occurs and nothing else has a loss of about 7"),
        ),
        confidence=Confidence.HIGH if declared else Confidence.MEDIUM,
        causes=(
            "attention or position information does not reach the output (a wrong mask, inputs and labels not aligned)",
            "a learning rate too high or too low for this model, or gradients clipped to nothing",
            "no gradient reaches the blocks: only the embeddings and the head learn",
        ),
        actions=(
            "stop the run and overfit one batch: its loss has to fall to near 0 within some hundred steps",
            "print decoded inputs beside their labels, and the gradient norm of each block",
        ),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"loss above {level:.2g} after {_STUCK_STEPS:,} steps, and a fall of at most {_STUCK_FALL:g} nats "
        "from half of the steps to the last; a healthy model is below 7 by then or falls by half a nat",
    )


def _middle(losses: Curve) -> float:
    middle = losses.step[(losses.step >= _HALF[0] * losses.step[-1]) & (losses.step <= _HALF[1] * losses.step[-1])]
    return float(np.median(middle))


def _guessing(first: float, end: float) -> int | None:
    """Among how many classes a guess gives this loss from start to end; None where no usual number does."""
    near = [k for k in _CLASSES if max(abs(x / math.log(k) - 1) for x in (first, end)) < _GUESS]
    return near[0] if near else None


def _may_know_its_data(case: Case, losses: Curve) -> bool:
    """Whether a flat loss may be that of weights trained before: a run taken up again, a late part, a fine-tune."""
    late = losses.counted and losses.step[0] > max(100.0, 0.1 * float(losses.step[-1] - losses.step[0]))
    tuned = is_language(case) and float(losses.value[0]) < _SMALL_LOSS
    return bool(number(case.run.facts, "resumed_from_step")) or late or tuned or not losses.counted


def _words(case: Case) -> str:
    """How the run's program, format, file and model are called."""
    family = case.run.facts.get("family") or ""
    return f"{case.run.framework or ''} {case.run.format} {Path(case.run.source).name} {family}".lower()


def _is_preference(case: Case, losses: Curve) -> bool:
    """Whether this looks like preference training (DPO and kin): the loss starts at ln 2, or the log says so."""
    words = _words(case)
    named = any(word in words for word in ("dpo", "orpo", "kto", "trl"))
    return named and abs(float(losses.value[0]) - _LN2) < _AT_CHANCE


def detect_preference_at_chance(case: Case) -> Verdict:
    """Preference training whose loss stays at ln 2: chosen and rejected answers are still equally likely."""
    losses = curve(case.run, "loss")
    if not len(losses):
        return Insufficient(code="preference_at_chance", missing="a training loss")
    if not _is_preference(case, losses):
        return None
    end = float(np.median(tail(losses.value, least=3)))
    if end < _PREFERENCE_END or len(losses) < 5:
        return None
    margin = -math.log(math.expm1(end)) if end < 5 else -end  # loss = ln(1 + e^−margin)
    hours, usd = cost_of_steps(case, steps_done(case.run) or len(losses))
    return Finding(
        code="preference_at_chance",
        severity=Severity.WARNING,
        title=f"Almost no learning: preference loss {losses.value[0]:.4f} → {end:.4f}, chance is ln 2 = 0.6931",
        evidence=(
            Evidence(
                text=f"loss {end:.4f} is a margin of {margin:.3f} between chosen and rejected answers",
                first_step=float(losses.step[0]),
                last_step=float(losses.step[-1]),
            ),
        ),
        confidence=Confidence.HIGH,
        causes=(
            "a learning rate too small for the few steps (DPO of adapters: 5e-6 to 5e-5)",
            "too few steps or pairs",
            "pairs that hardly differ, or labels swapped",
        ),
        actions=("raise the learning rate 3 to 10× and watch rewards/accuracies leave 0.5",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"start within {_AT_CHANCE:g} of ln 2 and end above {_PREFERENCE_END:g}: loss = ln(1 + e^−margin)",
    )


def detect_plateau(case: Case) -> Verdict:
    """A loss that no longer falls over the last third of the run, while steps are still paid for."""
    losses = curve(case.run, "loss")
    if len(losses) < 2 * _FEWEST_ROWS:
        return Insufficient(code="plateau", missing=f"{2 * _FEWEST_ROWS} rows with a training loss")
    if not has_level(case, losses):
        return Insufficient(code="plateau", missing="a loss whose height means something, and no policy loss")
    if _is_preference(case, losses) or rate_is_zero(case.run) or is_solved(case, losses):
        return None
    start = _plateau_start(losses)
    if start is None:
        return None
    step, level = float(losses.step[start]), float(np.median(losses.value[start:]))
    last = float(losses.step[-1])
    high = _rate_share(case, at_peak=True)
    # a decay takes as many steps: only who stops saves them, and a loss that broke was not stopped for standing still
    saves = not high and case.run.status is not Status.DIVERGED
    hours, usd = cost_of_steps(case, (stake_steps(case) or last) - step) if saves else (None, None)
    return Finding(
        code="plateau",
        severity=Severity.WARNING if high and last - step > 0.5 * (last - losses.step[0]) else Severity.NOTE,
        title=f"Loss has stood at {level:.4g} since about step {step:g}: {(last - step):,.0f} steps without gain",
        evidence=(Evidence(text=f"median {level:.5g}, row noise {row_noise(losses.value):.3g}", first_step=step,
                           last_step=last),),
        confidence=Confidence.MEDIUM,
        causes=_plateau_causes(case),
        actions=(*(("decay the learning rate: that is where a plateau at a high rate gives way",) if high else ()),
                 "stop earlier, or change data or model size"),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"fall over the last third under {_PLATEAU:.1%} and under {_ERRORS:g} standard errors of the medians",
    )  # fmt: skip


def _plateau_causes(case: Case) -> tuple[str, ...]:
    at_peak, ended = _rate_share(case, at_peak=True), _rate_share(case, at_peak=False)
    first = ("the learning rate is still high: noise of the updates holds the loss up",) if at_peak else ()
    last = ("the learning rate has decayed to almost 0: nothing moves any more",) if ended else ()
    return (*last, *first, "the model has learnt what it can from this data", "the data repeat or have run out")


def _rate_share(case: Case, *, at_peak: bool) -> bool:
    """Whether the learning rate is still over half of its peak at the end, or else has decayed to almost nothing."""
    rates = rate_curve(case.run).value
    if not len(rates) or rates.max() <= 0:
        return False
    return bool(rates[-1] > 0.5 * rates.max() if at_peak else rates[-1] < 0.02 * rates.max())


def _plateau_start(losses: Curve) -> int | None:
    """Row since which the loss has not fallen, or None: a third of the run at least."""
    values, n = losses.value, len(losses)
    noise = row_noise(values)
    end = tail(values, share=0.15)
    level = float(np.median(end))
    if _ERRORS * 1.2533 * noise * math.sqrt(2 / len(end)) > _TELLING * abs(level):
        return None  # so noisy that a gain worth having could not be seen
    starts = [n * k // 12 for k in range(2, 9)]  # a plateau begins between 1/6 and 2/3 of the run
    for start in starts:
        block = values[start : start + len(end)]
        gain = float(np.median(block)) - level
        error = _ERRORS * 1.2533 * noise * math.sqrt(2 / len(end))
        if gain <= max(_PLATEAU * abs(level), 1e-9) and gain <= max(error, 1e-9) and level > 0:
            return start
    return None


def _error_of_difference(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> float:
    """Standard error of the difference of two medians; 1.2533 = √(π/2) is a median's over a mean's."""
    return 1.2533 * row_noise(values) * math.sqrt(1 / len(first) + 1 / len(last))


def detect_noise_floor(case: Case) -> Verdict:
    """A last printed loss that is off the level it scatters about: quoting it would mislead."""
    losses = curve(case.run, "loss")
    if len(losses) < _FEWEST_ROWS:
        return Insufficient(code="loss_noise", missing=f"{_FEWEST_ROWS} rows with a training loss")
    recent = tail(losses.value, share=0.05, least=20)
    noise, level, last = row_noise(losses.value[-200:]), float(np.median(recent)), float(losses.value[-1])
    off = abs(last - level)
    if (
        level == 0
        or noise < _ROUGH * abs(level)
        or not _MISLEADS * noise <= off <= _OUTLIER * noise
        or not has_level(case, losses)
    ):
        return None  # far outside it is no noise: a spike, or another thing than the rows before
    return Finding(
        code="loss_noise",
        severity=Severity.NOTE,
        title=f"The last loss, {last:.4g}, is noise: single rows scatter ±{noise:.2g} about {level:.4g}",
        evidence=(
            Evidence(
                text=f"median of the last {len(recent)} rows {level:.5g}, standard error "
                f"{1.2533 * noise / math.sqrt(len(recent)):.2g}",
                first_step=float(losses.step[-len(recent)]),
                last_step=float(losses.step[-1]),
            ),
        ),
        confidence=Confidence.HIGH,
        causes=("each row is one batch (or an average of few): its loss depends on which documents it holds",),
        actions=(
            f"quote {level:.4g}, or the validation loss; differences under {2 * noise:.2g} between single rows "
            "mean nothing",
        ),
        threshold=f"last row {_MISLEADS:g} standard deviations off, these over {_ROUGH:.0%} (sources §7.2)",
    )
