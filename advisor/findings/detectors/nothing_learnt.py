"""Losses that stand still: no learning, preference training at chance, plateaus, and differences that are noise."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from advisor.findings.case import Case, Finding, Verdict, finding, lacking, seen, texts
from advisor.findings.curves import Curve, curve, head, row_noise, spread, tail
from advisor.findings.detectors.learning_rate import rate_is_zero
from advisor.findings.run_facts import (
    from_scratch,
    has_level,
    is_language,
    is_solved,
    nats_per_unit,
    number,
    planned_steps,
    sequence_length,
    step_tokens,
    steps_done,
    vocabulary,
)
from advisor.findings.savings import cost_of_steps
from advisor.units import format_percent

_FEWEST_ROWS = 30
_FEWEST_FLAT = 12  # rows; a log of epochs has only few
_SMALL_LOSS = 5.0  # nats per token: no fresh language model starts below this
_GUESS = 0.01  # of ln K: a loss this close to guessing among K classes
_CLASSES = (2, 3, 4, 5, 10, 20, 50, 100, 200, 1000)  # of the usual data sets
_SURE, _RISEN = 0.05, 0.05  # of the loss: noise that hides no useful fall; a rise that is another finding
_FLAT = 0.01  # of the loss: a smaller fall over a whole run is no learning
_FLAT_ZERO_RATE = 0.05  # with a learning rate of 0, the batches alone move the ends this far
_LN2 = math.log(2)
_AT_CHANCE = 0.02  # nats around ln 2, where preference losses start: both answers are equally likely
_PREFERENCE_END = 0.64  # a DPO loss above this at the end has moved the margin by less than 0.1
_ERRORS = 2.0  # standard errors of the difference of two medians
_ROUGH = 0.01  # of the loss: smaller noise misleads nobody
_OUTLIER = 5.0  # standard deviations: more is not scatter
# The frequencies of tokens alone give about 70 % of ln V (sources §7.1): 7.3 nats for 32,000 tokens, 7.6 for 50,257. A
# model counts as stuck above 7 nats, or with a smaller vocabulary above three quarters of ln V.
_STUCK_LOSS, _STUCK_SHARE = 7.0, 0.75
_STUCK_STEPS, _STUCK_ROWS = 1000, 4
_STUCK_FALL = 0.15  # nats while the steps double; a healthy model at this level falls by 0.5 or more
_HALF, _LATE = (0.35, 0.65), 0.85  # of the last step: the rows that are compared
_HIGHEST_GUESS, _AT_GUESS = 12.6, 0.3  # nats: no vocabulary has a higher ln V; near ln V nothing at all is learned
_MASKED = re.compile(r"bert|mlm|mask|electra")  # these may stay at this level for thousands of steps, and then leave it
_MISLEADS = 1.5  # standard deviations between the last row and the level around which it scatters
_FROZEN_EVALS, _FROZEN_ROWS = 3, 10  # identical values at the end; rounding alone repeats a few training losses
_FROZEN_SHARE = 0.3  # of the run, at its end
_DIGITS = 4  # significant ones that must repeat
_STUCK_ROWS_DEAD, _STUCK_WITHIN, _STUCK_BELOW = 10, 0.005, 0.5
_GUESS_ROWS, _NEAR_CHANCE = 4, 0.1  # rows; of the accuracy of a guess
_ALL_RIGHT, _MOST_OF_ONE_CLASS = 0.99, 0.9  # of the examples
_TREND_ROWS, _TREND_ERRORS = 20, 2.0  # of an accuracy of single batches; standard errors of its gain
_ZERO_LOSSES, _ZERO_LOSS_SHARE = 3, 0.3  # rows at the end; of all
_FOLLOWS = 0.1  # of its first value: a held-out loss that falls this far is learning
_SOLVED = 1e-3  # a held-out loss below it: nothing is left to learn
_HARDLY = 0.75  # of the first loss: the frequencies of tokens alone put a language model at about 0.7
_UNLEARNT = (7.0, 13.5)  # nats: the first losses of fresh models with a thousand to half a million tokens
_LONG_EPOCHS, _LONG_STEPS, _LONG_ROWS = 5, 2000, 20


def detect_no_learning(case: Case) -> Verdict:
    """A loss that is as high at the end as at the start."""
    losses = curve(case.run, "loss")
    if len(losses) < _FEWEST_FLAT:
        return lacking("no_learning", f"{_FEWEST_FLAT} rows with a training loss")
    if not has_level(case, losses):
        return lacking("no_learning", "a loss whose height means something, and no policy loss")
    first, end = float(np.median(head(losses.value))), float(np.median(tail(losses.value)))
    if first <= 0 or _is_preference(case, losses):
        return None
    zero = rate_is_zero(case.run)
    # the standard error of the difference of two medians; 1.2533 = √(π/2) is the error of a median over that of a mean
    scatter = 1.2533 * row_noise(losses.value)
    noise = _ERRORS * scatter * math.sqrt(1 / len(head(losses.value)) + 1 / len(tail(losses.value)))
    fall, flat = first - end, (_FLAT_ZERO_RATE if zero else _FLAT) * first
    hidden = not zero and noise < _SURE * first and fall <= noise  # more noise than this could hide a real fall
    if (fall > flat and not hidden) or -fall > max(_RISEN * first, noise):
        return None
    # the number of classes for which a guess gives this loss from start to end
    near = [k for k in _CLASSES if max(abs(x / math.log(k) - 1) for x in (first, end)) < _GUESS]
    guess = None if is_language(case) or not near else near[0]
    unlearnt = is_language(case) and _UNLEARNT[0] <= min(first, end) * (nats_per_unit(case.run) or 0.0) <= _UNLEARNT[1]
    fresh = zero or guess is not None or from_scratch(case) is True or unlearnt
    # a flat loss may come from weights that were trained before: a resumed run, a late part, a fine-tune
    late = losses.counted and losses.step[0] > max(100.0, 0.1 * float(losses.step[-1] - losses.step[0]))
    tuned = late or (is_language(case) and float(losses.value[0]) < _SMALL_LOSS)
    known = bool(number(case.run.facts, "resumed_from_step")) or tuned or not losses.counted
    title = f"No learning: loss {first:.4g} in the first rows, {end:.4g} in the last (medians)"
    if known and not fresh:
        title = f"The loss is flat, {first:.4g} to {end:.4g}: the log may begin late, or the weights knew the data"
    return finding(
        "no_learning",
        severity="error" if fresh else "note",  # losses of diffusion, GANs and late parts are naturally flat
        title=title + (f", as guessing among {guess} classes gives" if guess else ""),
        evidence=seen(f"the noise of a row is {row_noise(losses.value):.3g}", losses.step[0], losses.step[-1]),
        confidence="high" if zero or (fresh and len(losses) >= 100) else "medium",
        causes=("the learning rate is 0 in every row" if zero else "", *texts()["no_learning"]["causes"]),
        saved=cost_of_steps(case, steps_done(case.run) or len(losses)) if fresh else (None, None),
    )


def detect_stuck_at_frequencies(case: Case) -> Verdict:
    """A language model's loss that stays where the frequencies of the words alone put it, after a thousand steps.

    A few rows are enough if they span the steps, because only the fall of the loss while the steps doubled counts.
    """
    losses, unit, vocab = curve(case.run, "loss"), nats_per_unit(case.run), vocabulary(case)
    if not len(losses) or not losses.counted or unit is None:
        return lacking("stuck_at_frequencies", "a training loss per token beside its steps")
    last, place = float(losses.step[-1]), losses.step / max(1.0, float(losses.step[-1]))
    midway = (place >= _HALF[0]) & (place <= _HALF[1])
    late, half = losses.value[place >= _LATE] * unit, losses.value[midway] * unit
    if last < _STUCK_STEPS or len(losses) < _STUCK_ROWS or not len(half) or not has_level(case, losses):
        return None
    end, before = float(np.median(late)), float(np.median(half))
    level = _STUCK_LOSS if vocab is None else min(_STUCK_LOSS, _STUCK_SHARE * math.log(vocab))
    if not is_language(case) or end < level or before - end > _STUCK_FALL or end > _HIGHEST_GUESS:
        return None
    if vocab is not None and end > math.log(vocab) - _AT_GUESS:
        return None  # no better than the uniform guess, which is another finding
    declared = vocab is not None or sequence_length(case) is not None or step_tokens(case) is not None
    left = max(0.0, (planned_steps(case) or last) - last)
    course = f"loss {before:.4g} at about step {float(np.median(losses.step[midway])):,.0f}"
    fell = f"{before - end:.2g} nats while the steps doubled"
    return finding(
        "stuck_at_frequencies",
        severity="error" if declared and not _MASKED.search(_words(case)) else "warning",
        title=f"Loss {end:.4g} after {last:,.0f} steps no longer falls: the model knows only word frequencies",
        evidence=(
            seen(f"{course}, {end:.4g} at step {last:,.0f}: it fell by {fell}", losses.step[0], last),
            "a model that knows how often each token occurs and nothing else has a loss of about 7",
        ),
        confidence="high" if declared else "medium",
        saved=cost_of_steps(case, last + left),
        threshold=f"the loss is above {level:.2g} after {_STUCK_STEPS:,} steps, and fell by at most {_STUCK_FALL:g} "
        "nats in the second half of the run; a healthy model is below 7 at that time, or falls by half a nat",
    )


def _words(case: Case) -> str:
    """Return the names of the run's program, format, file and model."""
    family = case.run.facts.get("family") or ""
    return f"{case.run.framework or ''} {case.run.format} {Path(case.run.source).name} {family}".lower()


def _is_preference(case: Case, losses: Curve) -> bool:
    """Return True for signs of preference training (DPO and similar): a loss that starts at ln 2, or words."""
    words = _words(case)
    named = any(word in words for word in ("dpo", "orpo", "kto", "trl"))
    return named and abs(float(losses.value[0]) - _LN2) < _AT_CHANCE


def detect_preference_at_chance(case: Case) -> Verdict:
    """Preference training whose loss stays at ln 2: chosen and rejected answers are still equally likely."""
    losses = curve(case.run, "loss")
    if not len(losses):
        return lacking("preference_at_chance", "a training loss")
    if not _is_preference(case, losses):
        return None
    end = float(np.median(tail(losses.value, least=3)))
    if end < _PREFERENCE_END or len(losses) < 5:
        return None
    margin = -math.log(math.expm1(end)) if end < 5 else -end  # loss = ln(1 + e^−margin)
    margin_words = f"a margin of {margin:.3f} between chosen and rejected answers"
    return finding(
        "preference_at_chance",
        title=f"Almost no learning: preference loss {losses.value[0]:.4f} → {end:.4f}, chance is ln 2 = 0.6931",
        evidence=seen(f"loss {end:.4f} is {margin_words}", losses.step[0], losses.step[-1]),
        saved=cost_of_steps(case, steps_done(case.run) or len(losses)),
    )


def detect_noise_floor(case: Case) -> Verdict:
    """A last printed loss that is far from the level around which it scatters, so that quoting it would mislead."""
    losses = curve(case.run, "loss")
    if len(losses) < _FEWEST_ROWS:
        return lacking("loss_noise", f"{_FEWEST_ROWS} rows with a training loss")
    recent = tail(losses.value, share=0.05, least=20)
    noise, level, last = row_noise(losses.value[-200:]), float(np.median(recent)), float(losses.value[-1])
    half = len(recent) // 2
    if abs(rise := float(np.median(recent[half:]) - np.median(recent[:half]))) >= noise:
        level += rise  # it still falls, so its level at the end is not its median
    # far outside the noise it is a spike, or something else than the rows before
    scatters = level != 0 and noise >= _ROUGH * abs(level)
    if not scatters or not _MISLEADS * noise <= abs(last - level) <= _OUTLIER * noise or not has_level(case, losses):
        return None
    error = f"the standard error of this level is {1.2533 * noise / math.sqrt(len(recent)):.2g}"
    return finding(
        "loss_noise",
        title=f"The last loss, {last:.4g}, is not typical: the last {len(recent)} rows lie at {level:.4g}, "
        f"and single rows scatter by {noise:.2g}",
        evidence=seen(error, losses.step[-len(recent)], losses.step[-1]),
        actions=f"ignore differences under {2 * noise:.2g} between single rows",
    )


def detect_frozen(case: Case) -> Verdict:
    """A loss that repeats to the last digit: no weight moves, or no change of the weights reaches the loss."""
    evals, losses = curve(case.run, "eval_loss"), curve(case.run, "loss")
    if len(evals) < _FROZEN_EVALS and len(losses) < _FROZEN_ROWS:
        return lacking("loss_frozen", f"{_FROZEN_EVALS} validation losses or {_FROZEN_ROWS} rows")
    for name, values, fewest, accuracy in (
        ("validation", evals, _FROZEN_EVALS, "eval_accuracy"),
        ("training", losses, _FROZEN_ROWS, "accuracy"),
    ):
        if not len(values) or values.value[-1] == 0 or is_solved(case, values, accuracy):
            continue  # it stands still because nothing is left to learn
        other = np.flatnonzero(values.value != values.value[-1])
        same = len(values) - (int(other[-1]) + 1 if len(other) else 0)
        digits = len(f"{abs(values.value[-1]):.12f}".strip("0."))  # by chance, only few digits repeat
        if digits < _DIGITS or same < max(fewest, math.ceil(_FROZEN_SHARE * len(values))):
            continue
        since, last = float(values.step[-same]), float(values.step[-1])
        still = f"{values.value[-1]:.6g} to the last digit in the last {same} rows"
        return finding(
            "loss_frozen",
            title=f"The {name} loss is {still}: nothing is learnt",
            evidence=seen(f"the loss is identical in {same} of {len(values)} rows", since, last),
            saved=cost_of_steps(case, last - since) if values.counted else (None, None),
        )
    return None


def detect_stuck_accuracy(case: Case) -> Verdict:
    """An accuracy that stays where it began, however much the loss falls; or that is the accuracy of a guess."""
    if (guess := _guessed(case)) is not None:
        return guess
    found = [c for name in ("eval_accuracy", "accuracy") if len(c := curve(case.run, name)) >= _STUCK_ROWS_DEAD]
    if not found:
        return lacking("accuracy_stuck", f"an accuracy in {_STUCK_ROWS_DEAD} rows")
    scores, losses = found[0], curve(case.run, "loss").value
    low, high = float(scores.value.min()), float(scores.value.max())
    if high >= _STUCK_BELOW or (high - low > _STUCK_WITHIN and not (_no_trend(scores.value) and _no_trend(-losses))):
        return None
    still = f"stays at {format_percent(low)} to {format_percent(high)} over the whole log"
    if high - low > _STUCK_WITHIN:
        third = len(scores) // 3
        begun, ended = (float(np.median(part)) for part in (scores.value[:third], scores.value[-third:]))
        still = (
            f"does not rise: {format_percent(begun)} in the first third of the log, {format_percent(ended)} in the last"
        )
    fell = f", while the loss goes from {losses[0]:.4g} to {losses[-1]:.4g}" if len(losses) else ""
    return finding(
        "accuracy_stuck",
        title=f"Accuracy {still}{fell}: nothing useful is learnt",
        evidence=seen(f"{len(scores)} rows", scores.step[0], scores.step[-1]),
    )


def _guessed(case: Case) -> Finding | None:
    """Return the finding of an accuracy that is a guess's among some number of classes, as the loss is, in each row.

    Or of one that is the same in every row while the loss stands still: one class is always predicted.
    """
    for prefix in ("eval_", ""):
        scores, losses = curve(case.run, f"{prefix}accuracy"), curve(case.run, f"{prefix}loss").value
        if min(len(scores), len(losses)) < _GUESS_ROWS or not 0 < scores.value.max() < _ALL_RIGHT:
            continue
        classes = round(1 / float(np.median(scores.value)))
        by_chance = classes > 1 and np.abs(losses / math.log(max(classes, 2)) - 1).max() <= _GUESS
        near = by_chance and np.abs(scores.value * classes - 1).max() <= _NEAR_CHANCE
        alike = not np.ptp(scores.value) and len(scores) >= _STUCK_ROWS_DEAD and scores.value[0] < _MOST_OF_ONE_CLASS
        still = alike and np.ptp(losses) <= _SURE * losses.max()
        if near or still:
            guess = (
                f"that of a guess among {classes} classes, as is the loss" if near else "one class is always predicted"
            )
            level = format_percent(float(np.median(scores.value)))
            return finding(
                "accuracy_stuck",
                title=f"Accuracy stays at {level} over the whole log, {guess}: nothing is learnt",
                evidence=seen(f"{len(scores)} rows, loss {losses[0]:.4g} to {losses[-1]:.4g}", *scores.step[[0, -1]]),
            )
    return None


def _no_trend(values: np.ndarray) -> bool:
    """Return True if the last third is no higher than the first, within the scatter of single rows."""
    if len(values) < _TREND_ROWS:
        return False
    third = len(values) // 3
    error = spread(values - float(np.median(values))) * 1.2533 * math.sqrt(2 / third)
    return float(np.median(values[-third:]) - np.median(values[:third])) <= _TREND_ERRORS * error


def detect_loss_zero(case: Case) -> Verdict:
    """A training loss of exactly 0 until the end: no target counts, or the task is solved without learning."""
    losses, evals = curve(case.run, "loss"), curve(case.run, "eval_loss")
    if len(losses) < _ZERO_LOSSES or not has_level(case, losses):
        return lacking("loss_zero", f"{_ZERO_LOSSES} training losses, none of a policy")
    other = np.flatnonzero(losses.value != 0)
    zeros = len(losses) - (int(other[-1]) + 1 if len(other) else 0)
    if zeros < max(_ZERO_LOSSES, _ZERO_LOSS_SHARE * len(losses)) or is_solved(case, losses):
        return None  # right answers have no loss, to the printed digits
    since, last = float(losses.step[-zeros]), float(losses.step[-1])
    follows = len(evals) > 0 and float(evals.value[-1]) <= max(_FOLLOWS * float(evals.value[0]), _SOLVED)
    held_out = f", while the validation loss stays at {evals.value[-1]:.4g}" if len(evals) and not follows else ""
    always = zeros == len(losses)
    return finding(
        "loss_zero",
        severity="note" if follows else "error" if always else "warning",
        title=f"The training loss is 0 in the last {zeros} of {len(losses)} rows{held_out}: these steps teach nothing",
        evidence=seen(f"the loss is printed as 0 in {zeros} rows", since, last),
        confidence="high" if always or held_out else "medium",
        saved=cost_of_steps(case, last - since) if losses.counted and not follows else (None, None),
    )


def detect_hardly_learns(case: Case) -> Verdict:
    """A language model that after several epochs has not even learned how frequent each token is."""
    losses, unit = curve(case.run, "loss"), nats_per_unit(case.run)
    if len(losses) < _LONG_ROWS or unit is None or not has_level(case, losses):
        return lacking("hardly_learns", f"{_LONG_ROWS} rows with a loss per token")
    first, end = float(losses.value[0]) * unit, float(np.median(tail(losses.value))) * unit
    epochs = curve(case.run, "epoch").value
    counted = number(case.run.facts, "planned_epochs") if not len(epochs) else float(epochs.max() - epochs.min())
    steps = float(losses.step[-1] - losses.step[0]) if losses.counted else 0.0
    long = (counted or 0) >= _LONG_EPOCHS or steps >= max(_LONG_STEPS, 0.1 * (planned_steps(case) or 0))
    started = _UNLEARNT[0] <= first <= _UNLEARNT[1]
    if isinstance(detect_stuck_at_frequencies(case), Finding):
        return None  # the same knowledge with more confidence
    if not long or not started or not _HARDLY * first < end < 0.99 * first or from_scratch(case) is False:
        return None
    return finding(
        "hardly_learns",
        severity="warning" if is_language(case) else "note",
        title=f"Hardly anything is learnt: loss {first:.4g} at the start, still {end:.4g} at the end",
        evidence=seen(
            f"the loss at the end is {format_percent(end / first)} of the first loss; perplexity {math.exp(end):,.0f}",
            losses.step[0],
            losses.step[-1],
        ),
    )
