"""Training loss compared with everything else: overfitting, memorised data, scores at chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.findings.case import Case, Finding, Verdict, finding, lacking, seen, texts
from advisor.findings.curves import Curve, curve, row_noise, tail
from advisor.findings.detectors.data_budget import epochs_of
from advisor.findings.durations import steps_covered
from advisor.findings.run_facts import best_checkpoint, has_level, is_language, nats_per_unit
from advisor.findings.savings import cost_of_steps
from advisor.findings.series import theil_sen
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of, chance_interval
from advisor.readers.generic import NAME as GENERIC
from advisor.readers.run_table import Status
from advisor.units import format_centre, format_number, format_percent, format_seconds, format_usd

_FEWEST_EVALS = 3
_RISE = 0.01  # of the best evaluation; less is not worth acting on
_SURE_RISE = 0.02  # of the best evaluation, of few that fall up to it and rise after it
_BAD_RISE = 0.1
_SLIGHT_RISE = 0.05  # a note
# if the training loss fell by so much since the best evaluation, data are learnt by heart, and this rise is a warning
_STILL_FALLS, _CREEPING = 0.1, 0.03
_MOST_PAIRS = 0.6
_FEW_EVALS = 12  # with fewer, noise cannot be told from the course
_RISES = 3  # evaluations after the best, all above it
_GAP_RATIO, _GAP_NATS = 1.3, 0.3  # fresh text is a few per cent above the training batches of the same step
_BAD_WASTE = 0.2  # of the run after its best evaluation
_SEVERAL = 6  # evaluations
_BARELY_LOWER = 0.01  # of the examples: a score within this of its best has lost nothing
_LATE = 0.05  # of the run after its best evaluation: so little was wasted
_MANY_EPOCHS, _ROWS, _FEW_ROWS = 10, 10, 5
_GAP_SCORE, _BAD_GAP_SCORE, _FALLEN_SCORE = 0.05, 0.2, 0.01  # of all examples
_OF_CHANCE, _GUESSED = 0.02, 1.15  # of the loss of a guess; times the accuracy of a guess
_BEGAN = 0.3  # of the loss of a guess: the first training loss, which may be the mean of an epoch
_MOST_CLASSES = 7.0  # nats, the loss of a guess among a thousand classes
_NEAR_ZERO = 0.05  # nats: the next token is known with 95 %
_FALLEN = 0.95  # of the first loss
_STARTED = 1.0  # nats: a loss that began lower belongs to a task that naturally ends near 0
# formats that may print scores that no reader takes, such as YOLO's P, R and mAP
_EVALUATED_UNREAD = (GENERIC, "yolo")
_HELD_OUT = ("eval_loss", "eval_accuracy", "eval_reward", "eval_bits_per_byte")
_EPOCHS = 2.0  # passes over the data from which the training loss says nothing about new data
_HALVED = 0.5  # of the first loss


@dataclass(frozen=True, kw_only=True)
class _Rise:
    """A validation loss that has been rising since its best evaluation."""

    name: str  # "" if the log names no set
    evals: Curve
    best: int
    low: float
    end: float

    @property
    def relative(self) -> float:
        return (self.end - self.low) / self.low


def detect_overfitting(case: Case) -> Verdict:
    """A validation loss that has been rising since its best while the training loss falls; for several sets, each."""
    losses, sets = curve(case.run, "loss"), _held_out(case)
    if not has_level(case, losses):
        return lacking("overfitting", "a loss whose height means something, and no policy loss")
    if case.run.status is Status.DIVERGED:
        return None  # a broken run is no overfitting
    if _is_guessed(case, losses):
        return _at_chance(case, losses)
    if max(map(len, sets.values()), default=0) < _FEWEST_EVALS:
        # too few to show a course, but enough for a wide gap
        few, evals = lacking("overfitting", f"{_FEWEST_EVALS} validation losses"), curve(case.run, "eval_loss")
        before = losses.value
        if len(evals) and losses.counted == evals.counted:
            before = before[losses.step <= evals.step[-1]]
        if not len(evals) or not len(before):  # without one, or of an untrained model
            return few
        train, held_out = float(np.median(tail(before))), float(evals.value[-1])
        if train <= 0 or held_out < train * _GAP_RATIO or held_out < train + _GAP_NATS:
            return few
        return finding(
            "generalisation_gap",
            severity="warning" if is_language(case) else "note",
            title=f"Validation loss {held_out:.4g} is far above the training loss {train:.4g}",
            evidence=seen(f"the gap is {held_out - train:.3g}", last=evals.step[-1]),
        )
    rises = [rise for name, evals in sets.items() if (rise := _rise(name, losses, evals)) is not None]
    return _overfitting(case, losses, rises, len(sets)) if rises else None


def _is_guessed(case: Case, losses: Curve) -> bool:
    """Return True if a guess among some number of classes predicts held-out data as well as the model ever did."""
    evals, scores = curve(case.run, "eval_loss"), curve(case.run, "eval_accuracy").value
    if len(evals) < _FEWEST_EVALS or is_language(case) or evals.value[0] <= 0:
        return False
    classes = round(math.exp(min(float(evals.value[0]), _MOST_CLASSES)))
    chance = math.log(max(classes, 1))
    known = len(scores) > 0 and float(np.median(scores)) > _GUESSED / max(classes, 1)
    near = all(abs(value - chance) <= _OF_CHANCE * chance for value in (evals.value[0], evals.value.min()))
    # a model that guesses at first also does so on the training data: any loss is near the logarithm of some number
    begun = bool(np.all(np.abs(losses.value[:1] - chance) <= _BEGAN * chance))
    return classes > 1 and near and begun and not known


def _at_chance(case: Case, losses: Curve) -> Finding | None:
    """Return the finding for a model that learned nothing that holds on held-out data."""
    evals, scored = curve(case.run, "eval_loss"), len(curve(case.run, "eval_accuracy")) > 0
    if len(losses) < _FEWEST_EVALS or float(np.median(tail(losses.value))) > _FALLEN * float(losses.value[0]):
        return None  # nothing is learned at all, which is another finding
    classes = round(math.exp(float(evals.value[0])))
    best = f"validation loss: lowest {evals.value.min():.4g}, last {evals.value[-1]:.4g}"
    return finding(
        "at_chance",
        severity="warning" if scored else "note",
        title=f"Held-out data are never known better than by a guess among {classes} classes",
        evidence=f"{best}; ln {classes} = {math.log(classes):.4g}",
        confidence="high" if scored else "low",
    )


def _held_out(case: Case) -> dict[str, Curve]:
    """Return the validation losses by the name of their set, "" if the log evaluates only one."""
    named = case.run.facts.get("eval_losses")
    sets = {}
    for name, evals in named.items() if isinstance(named, dict) else ():
        step, value = np.asarray(evals["step"], dtype=float), np.asarray(evals["loss"], dtype=float)
        good = np.isfinite(step) & np.isfinite(value)
        sets[str(name)] = Curve(step=step[good], value=value[good])
    return sets or {"": curve(case.run, "eval_loss")}


def _rise(name: str, losses: Curve, evals: Curve) -> _Rise | None:
    if len(evals) < _FEWEST_EVALS:
        return None
    best = int(np.argmin(evals.value))
    end = float(np.median(tail(evals.value, share=0.05, least=1 if len(evals) < _SEVERAL else 2)))
    low = float(evals.value[best])
    after = evals.value[best + 1 :]
    if evals.step[-1] - evals.step[best] <= _LATE * (evals.step[-1] - min(float(evals.step[0]), 0.0)):
        return None  # a rise of the last few is the noise of an evaluation, or does not matter yet
    alone = len(after) < (2 if len(evals) >= _SEVERAL else 1)  # a single worse evaluation after the best may be chance
    if low <= 0 or alone or end - low < _RISE * low:
        return None
    # most pairs of values rise: the trend of a few values, in spite of one outlier
    one, other = np.triu_indices(len(after), 1)
    steadily = len(after) >= _RISES and np.mean(after[other] > after[one]) >= _MOST_PAIRS and len(evals) < _FEW_EVALS
    # each value is lower than the one before it up to the best, and higher after it, by 2 % in all: with noise of 1 %
    # of the loss, this happens by chance in at most one of a hundred runs that level off
    down, up = np.diff(evals.value[: best + 1]), np.diff(evals.value[best:])
    turned = len(down) > 1 and len(up) > 1 and len(evals) < _FEW_EVALS and np.all(down < 0) and np.all(up > 0)
    turned = turned and evals.value[-1] - low >= _SURE_RISE * low
    trend = _drift(evals, best)
    above = end - low >= 3 * row_noise(evals.value) if trend is None else trend
    if not (steadily or turned or above):
        return None
    # the training loss ends no higher than at the best validation loss, or is not logged
    if losses.counted == evals.counted and len(trained := losses.since(float(evals.step[best])).value) >= 4:
        part = max(1, len(trained) // 4)
        if np.median(trained[-part:]) > np.median(trained[:part]) + row_noise(losses.value):
            return None
    return _Rise(name=name, evals=evals, best=best, low=low, end=end)


def _drift(evals: Curve, best: int) -> bool | None:
    """Return True if the many values after the best have a trend that leaves their noise behind; None if they are few.

    The best of many values is a lucky one: the distance of the last ones from it is no sign that they rise.
    """
    after, noise = evals.since(float(evals.step[best])), row_noise(evals.value)
    trend = theil_sen(after.step[1:], after.value[1:]) if len(evals) >= _FEW_EVALS else None
    if trend is None:
        return None
    rise = trend.slope * (after.step[-1] - after.step[1])
    return trend.low > 0 and rise >= max(noise, _RISE * float(evals.value[best]))


def _overfitting(case: Case, losses: Curve, rises: Sequence[_Rise], sets: int) -> Finding:
    """Return the finding about the set that has risen most."""
    worst = max(rises, key=lambda rise: rise.relative)
    # the last value is what the run ended with; that it rises is judged by the median of the last ones
    evals, low, end = worst.evals, worst.low, float(worst.evals.value[-1])
    step, last = float(evals.step[worst.best]), float(evals.step[-1])
    began = min(float(losses.step[0]), float(evals.step[0])) if len(losses) else float(evals.step[0])
    covered = steps_covered(case) if evals.counted else None
    waste = (last - step) / max(covered or 0.0, last - min(began, step), 1e-9)
    # a part of a loss, such as a detector's boxes, may rise while the rest falls; so may one of many sets
    a_part = nats_per_unit(case.run) is None
    slight = _SLIGHT_RISE if is_language(case) else _BAD_RISE  # for classifiers accuracy counts, and it may still rise
    stopped = any(event.kind == "early_stop" for event in case.run.events)  # in this case, its owner watches it
    # held-out accuracy was best well after this, or still is: the loss then rises only because of confidence
    scores, improves = curve(case.run, "eval_accuracy"), False
    if len(scores) >= _FEWEST_EVALS:
        top = int(np.argmax(scores.value))
        holds = scores.value[top] - float(np.median(tail(scores.value, share=0.05, least=1))) <= _BARELY_LOWER
        improves = bool(holds or (scores.step[top] > step and top >= 0.75 * (len(scores) - 1)))
    gap = ""
    if len(losses) >= 4 and losses.counted == evals.counted:
        then, now = float(np.interp(step, losses.step, losses.value)), float(np.median(tail(losses.value)))
        last_loss = float(losses.value[-1])  # as it is in the table; the judgement is by the median of the last ones
        gaps = f"{format_number(low - then)} → {format_number(end - last_loss)}"
        ends = f"training loss {format_number(then)} → {format_number(last_loss)}"
        gap = f"from step {step:g} to the end: {ends}, gap to validation {gaps}"
        if then - now >= _STILL_FALLS * then > 0 and not len(scores):
            slight = _CREEPING + 3 * row_noise(evals.value) / low  # the best of many is a lucky one
    mild = a_part or stopped or worst.relative < slight or improves
    lost = is_language(case) or end > float(evals.value[0])  # for classifiers accuracy counts, not confidence
    bad = not mild and lost and len(rises) > sets / 2 and worst.relative > _BAD_RISE and waste > _BAD_WASTE
    of_set = f" of {worst.name}" if sets > 1 else ""
    hours, usd = cost_of_steps(case, last - step) if evals.counted else (None, None)
    since = f": {format_centre(hours.scaled(3600), format_seconds)}" if hours is not None else ""
    since += f", {format_centre(usd, format_usd)}" if usd is not None else ""
    causes, counted = texts()["overfitting"]["causes"], "steps" if evals.counted else "run"
    others = ", ".join(f"{r.name} +{format_percent(r.relative)} since step {r.evals.step[r.best]:g}" for r in rises)
    return finding(
        "overfitting",
        severity="error" if bad else "note" if mild else "warning",
        title=f"{'Part of the' if a_part else 'Overfitting:'} validation loss{of_set} is best at step {step:g} "
        f"({low:.4g}), then rises to {end:.4g}",
        evidence=(
            seen(f"validation loss{of_set} {format_percent.change(end / low - 1)} since step {step:g}", step, last),
            gap,
            (f"{len(rises)} of {sets} sets rise: {others}" if sets > 1 else ""),
            seen(f"{format_percent(waste)} of the {counted} came after step {step:g}{since}", step, last),
        ),
        confidence="low" if a_part else "high" if len(evals) >= 5 else "medium",
        causes=("the other parts of the loss pay for it: the measure that counts decides" if a_part else "", *causes),
        actions=(
            "choose the checkpoint by the measure that counts (mAP, accuracy), not by this part"
            if a_part
            else f"use {best_checkpoint(case, step)}; next time stop early on the validation loss",
            *texts()["overfitting"]["actions"],
        ),
        saved=(None, None) if mild else (hours, usd),
    )


def detect_memorised(case: Case) -> Verdict:
    """A training loss that falls to almost nothing without a validation loss that follows it."""
    losses, evals, epochs = curve(case.run, "loss"), curve(case.run, "eval_loss"), curve(case.run, "epoch").value
    if len(losses) < (_FEW_ROWS if len(epochs) and epochs.max() >= _MANY_EPOCHS else _ROWS):
        return lacking("memorised", f"{_ROWS} rows with a training loss, or {_FEW_ROWS} and ten epochs")
    first, end = float(losses.value[0]), float(np.median(tail(losses.value)))
    if first < _STARTED or not 0 <= end < _NEAR_ZERO or end > (1 - _FALLEN) * first:
        return None
    if len(evals) and (evals.value[-1] < 3 * max(end, _NEAR_ZERO) or not is_language(case)):
        return None  # a solvable task: validation data are solved too; `overfitting` reports other tasks
    below = losses.step[losses.value < _NEAR_ZERO]
    # Nothing repeats within an epoch, so data solved there are too easy or leak (too_good). Without a sign that data
    # repeated, the loss is also too good rather than memorised.
    if (len(epochs) and epochs.max() <= 1) or not (len(evals) or len(epochs)):
        return None
    sure = is_language(case) or (len(epochs) > 0 and float(epochs.max()) >= _MANY_EPOCHS and not len(evals))
    known = f"below {_NEAR_ZERO:g} nats since step {below[0]:g}"
    return finding(
        "memorised",
        severity="warning" if sure else "note",
        title=f"Training data memorised: loss {format_number(first)} → {format_number(losses.value[-1])}"
        + ("" if len(evals) else ", and no validation loss"),
        evidence=(
            seen(
                f"{known}: the next token is known with {format_percent(math.exp(-_NEAR_ZERO))}",
                below[0],
                losses.step[-1],
            ),
            f"{epochs.max():.3g} epochs over the same data" if len(epochs) else "",
        ),
        confidence="high" if len(epochs) and epochs.max() > 2 else "medium",
        saved=cost_of_steps(case, float(losses.step[-1] - below[0])) if losses.counted else (None, None),
    )


def detect_accuracy_gap(case: Case) -> Verdict:
    """An accuracy on held-out data that is far below that on training data, or that has fallen from its best."""
    own, held_out = curve(case.run, "accuracy"), curve(case.run, "eval_accuracy")
    if len(held_out) < _FEWEST_EVALS or len(own) < _FEWEST_EVALS:
        return lacking("accuracy_gap", f"training accuracy, and accuracy of at least {_FEWEST_EVALS} evaluations")
    train, test = (float(np.median(tail(c.value, least=2))) for c in (own, held_out))
    best = int(np.argmax(held_out.value))
    gap, fall = train - test, float(held_out.value[best]) - test
    if gap < _GAP_SCORE or max(train, test) > 1:
        return None
    fell = fall > max(_FALLEN_SCORE, 3 * row_noise(held_out.value))
    at = f"; it was best, {format_percent(held_out.value[best])}, at {held_out.step[best]:g}" if fell else ""
    return finding(
        "accuracy_gap",
        severity="warning" if gap >= _BAD_GAP_SCORE and fell else "note",
        title=f"Accuracy {format_percent(train)} in training, {format_percent(test)} on held-out data{at}",
        evidence=seen(f"the gap over the last evaluations is {format_percent(gap)}", last=held_out.step[-1]),
        confidence="high" if len(held_out) >= 5 else "medium",
    )


def scores_of(case: Case) -> dict[str, tuple[float, float | None]]:
    """Return the last of each benchmark score that the log states: name → (fraction, step).

    They come from events of kind "score", whose numbers are name → value, and from facts of the same names.
    """
    scores = {}
    stated = {name: value for name, value in case.run.facts.items() if benchmark_of(name)}
    for numbers, step in [(stated, None), *((e.numbers, e.step) for e in case.run.events if e.kind == "score")]:
        for name, value in numbers.items():
            benchmark = benchmark_of(name)
            if benchmark and isinstance(value, int | float) and 0 <= value <= 100:
                scores[benchmark] = (value / 100 if value > 1 else float(value), step)
    return scores


def detect_scores_at_chance(case: Case) -> Verdict:
    """Benchmark scores that guessing reaches too, so that they say nothing about the model."""
    scores = scores_of(case)
    if not scores:
        return lacking("scores_at_chance", "benchmark scores")
    shown, evidence = [], []
    for name, (value, step) in scores.items():
        low, high = chance_interval(BENCHMARKS[name])
        if BENCHMARKS[name].chance > 0 and value <= high:
            shown.append(f"{name} {format_percent(value)} (chance {format_percent(BENCHMARKS[name].chance)})")
            evidence.append(seen(f"{name} {value:.3f}; guessing gives {low:.3f} to {high:.3f}", step, step))
    if not shown:
        return None
    # a model that has learned something still guesses at hard questions
    title = f"{len(shown)} of {len(scores)} scores no better than chance: {', '.join(shown)}"
    return finding("scores_at_chance", title=title, evidence=evidence)


def detect_no_validation(case: Case) -> Verdict:
    """Several passes over the data without an evaluation: nobody knows whether the model learned or memorised."""
    losses, epochs = curve(case.run, "loss"), epochs_of(case)
    if len(losses) < 5 or epochs is None:
        return lacking("no_validation", "a training loss and the number of epochs")
    if any(len(curve(case.run, name)) for name in _HELD_OUT) or not has_level(case, losses):
        return None
    # the finding `memorised` already says that nothing was held out
    if isinstance(detect_memorised(case), Finding):
        return None
    if case.run.format in _EVALUATED_UNREAD:
        return lacking("no_validation", "a format whose evaluations are known")
    done = curve(case.run, "epoch").value
    passes = float(done.max()) if len(done) else epochs
    first, end = float(losses.value[0]), float(np.median(tail(losses.value)))
    if passes < _EPOCHS or first <= 0 or end > _HALVED * first or any(e.kind == "score" for e in case.run.events):
        return None
    return finding(
        "no_validation",
        title=f"{passes:.3g} epochs without an evaluation: loss {format_number(first)} → "
        f"{format_number(losses.value[-1])} may be learnt or memorised",
        evidence=seen("neither a loss nor a score on held-out data", last=losses.step[-1]),
    )
