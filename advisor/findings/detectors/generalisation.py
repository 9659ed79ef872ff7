"""Training loss against everything else: overfitting, memorised data, scores at chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, row_noise, tail
from advisor.findings.loss_kind import has_level, is_language
from advisor.findings.run_facts import nats_per_unit
from advisor.findings.spend import cost_of_steps
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of, chance_interval
from advisor.readers.run_table import Status

_FEWEST_EVALS = 3
_RISE = 0.01  # of the best evaluation: less is not worth acting on
_BAD_RISE = 0.1
_SLIGHT_RISE = 0.05  # a note
_MOST_PAIRS = 0.6
_FEW_EVALS = 12  # noise cannot be told from the course of fewer
_RISES = 3  # evaluations after the best, all above it
_GAP_RATIO, _GAP_NATS = 1.3, 0.3  # fresh text is a few per cent above the training batches of the same step
_BAD_WASTE = 0.2  # of the run after its best evaluation
_SEVERAL = 6  # evaluations
_KEPT = 0.01  # of the examples: a score that much below its best has lost nothing
_LATE = 0.05  # of the run after its best evaluation: so little was paid for nothing
_MANY_EPOCHS = 10
_GAP_SCORE, _BAD_GAP_SCORE, _FALLEN_SCORE = 0.05, 0.2, 0.01  # of all examples
_OF_CHANCE, _GUESSED = 0.02, 1.15  # of the loss of a guess; times the accuracy of one
_BEGAN = 0.3  # of the loss of a guess: the first training loss, which may be the mean of an epoch
_MOST_CLASSES = 7.0  # nats, of a thousand classes
_NEAR_ZERO = 0.05  # nats: the next token is known with 95 %
_FALLEN = 0.95  # of the first loss
_STARTED = 1.0  # nats: a loss that began lower is of a task that ends near 0 by nature


@dataclass(frozen=True, kw_only=True)
class _Rise:
    """A validation loss that has been rising since its best: of which set, at which evaluation, to what."""

    name: str  # "": the log names no set
    evals: Curve
    best: int
    low: float
    end: float

    @property
    def relative(self) -> float:
        return (self.end - self.low) / self.low


def detect_overfitting(case: Case) -> Verdict:
    """A validation loss that has been rising since its best while the training loss falls; of several sets each."""
    losses, sets = curve(case.run, "loss"), _held_out(case)
    if not has_level(case, losses):
        return Insufficient(code="overfitting", missing="a loss whose height means something, and no policy loss")
    if case.run.status is Status.DIVERGED:
        return None  # what broke is no overfitting
    if (classes := _guessed(case, curve(case.run, "eval_loss"))) is not None:
        return _at_chance(case, losses, classes)
    if max(map(len, sets.values()), default=0) < _FEWEST_EVALS:
        return _wide_gap(case, losses, curve(case.run, "eval_loss"))
    rises = [rise for name, evals in sets.items() if (rise := _rise(name, losses, evals)) is not None]
    return _overfitting(case, losses, rises, len(sets)) if rises else None


def _guessed(case: Case, evals: Curve) -> int | None:
    """Among how many classes a guess knows held-out data as well as the model ever did; None where it knew more."""
    if len(evals) < _FEWEST_EVALS or is_language(case) or evals.value[0] <= 0:
        return None
    classes = round(math.exp(min(float(evals.value[0]), _MOST_CLASSES)))
    chance = math.log(max(classes, 1))
    scores = curve(case.run, "eval_accuracy").value
    known = len(scores) > 0 and float(np.median(scores)) > _GUESSED / max(classes, 1)
    near = all(abs(value - chance) <= _OF_CHANCE * chance for value in (evals.value[0], evals.value.min()))
    # who guesses at first does so on the training data too: any loss is near the logarithm of some number
    first = curve(case.run, "loss").value[:1]
    near = near and bool(np.all(np.abs(first - chance) <= _BEGAN * chance))
    return classes if classes > 1 and near and not known else None


def _at_chance(case: Case, losses: Curve, classes: int) -> Finding | None:
    """The finding that what was learnt holds for the training data alone: noise has nothing else to teach."""
    evals, scored = curve(case.run, "eval_loss"), len(curve(case.run, "eval_accuracy")) > 0
    if len(losses) < _FEWEST_EVALS or float(np.median(tail(losses.value))) > _FALLEN * float(losses.value[0]):
        return None  # nothing is learnt at all, which is another finding
    best = f"validation loss {evals.value.min():.4g} at its best, {evals.value[-1]:.4g} at the end"
    return Finding(
        code="at_chance",
        severity=Severity.WARNING if scored else Severity.NOTE,
        title=f"Held-out data are never known better than by a guess among {classes} classes",
        evidence=(Evidence(text=f"{best}; ln {classes} = {math.log(classes):.4g}"),),
        confidence=Confidence.HIGH if scored else Confidence.LOW,
        causes=(
            "labels that have nothing to do with the inputs: shuffled, shifted, noise",
            "held-out data of another kind",
        ),
        actions=("look at some pairs of input and label of both sets before anything else is trained",),
        threshold=f"validation loss within {_OF_CHANCE:.0%} of a guess at first and at its best, accuracy as well",
    )


def _held_out(case: Case) -> dict[str, Curve]:
    """Validation losses by the name of their set, "" where the log evaluates one."""
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
        return None  # what the last few do is the noise of an evaluation, or no matter yet
    alone = len(after) < (2 if len(evals) >= _SEVERAL else 1)  # one worse evaluation behind the best may be chance
    if low <= 0 or alone or end - low < _RISE * low:
        return None
    steadily = len(after) >= _RISES and _rising(after) and len(evals) < _FEW_EVALS
    if not steadily and end - low < 3 * row_noise(evals.value):
        return None
    if not _train_falls(losses, evals, best):
        return None
    return _Rise(name=name, evals=evals, best=best, low=low, end=end)


def _rising(values: np.ndarray) -> bool:
    """Whether most pairs of values rise: the trend of a few, deaf to one outlier."""
    first, second = np.triu_indices(len(values), 1)
    return float(np.mean(values[second] > values[first])) >= _MOST_PAIRS


def _still_improves(case: Case, since: float) -> bool:
    """Whether held-out accuracy was best well after `since`, or is still there: the loss then rises by surety alone."""
    scores = curve(case.run, "eval_accuracy")
    if len(scores) < _FEWEST_EVALS:
        return False
    best = int(np.argmax(scores.value))
    kept = scores.value[best] - float(np.median(tail(scores.value, share=0.05, least=1))) <= _KEPT
    return bool(kept or (scores.step[best] > since and best >= 0.75 * (len(scores) - 1)))


def _overfitting(case: Case, losses: Curve, rises: Sequence[_Rise], sets: int) -> Finding:
    """The finding on the set that has risen most."""
    worst = max(rises, key=lambda rise: rise.relative)
    evals, low, end = worst.evals, worst.low, worst.end
    step, last = float(evals.step[worst.best]), float(evals.step[-1])
    began = min(float(losses.step[0]), float(evals.step[0])) if len(losses) else float(evals.step[0])
    waste = (last - step) / max(last - min(began, step), 1e-9)
    # a part of a loss, such as a detector's boxes, may rise while the rest pays for it; so may one set of many
    a_part = nats_per_unit(case.run) is None
    slight = _SLIGHT_RISE if is_language(case) else _BAD_RISE  # of classifiers accuracy counts, and may still rise
    stopped = any(event.kind == "early_stop" for event in case.run.events)  # then its owner watches it
    mild = a_part or stopped or worst.relative < slight or _still_improves(case, step)
    hours, usd = cost_of_steps(case, last - step) if evals.counted and not mild else (None, None)
    lost = is_language(case) or end > float(evals.value[0])  # of classifiers the accuracy counts, not its surety
    bad = not mild and lost and len(rises) > sets / 2 and worst.relative > _BAD_RISE and waste > _BAD_WASTE
    of_set = f" of {worst.name}" if sets > 1 else ""
    others = ", ".join(f"{r.name} +{r.relative:.0%} since step {r.evals.step[r.best]:g}" for r in rises)
    return Finding(
        code="overfitting",
        severity=Severity.ERROR if bad else Severity.NOTE if mild else Severity.WARNING,
        title=f"{'Part of the' if a_part else 'Overfitting:'} validation loss{of_set} is best at step {step:g} "
        f"({low:.4g}) and {end:.4g} at the end",
        evidence=(
            Evidence(
                text=f"validation loss{of_set} {low:.5g} → {end:.5g} (+{worst.relative:.0%})",
                first_step=step,
                last_step=last,
            ),
            *_gap(losses, evals, worst.best),
            *((Evidence(text=f"{len(rises)} of {sets} sets rise: {others}"),) if sets > 1 else ()),
            Evidence(text=f"{waste:.0%} of the run came after its best evaluation", first_step=step, last_step=last),
        ),
        confidence=Confidence.LOW if a_part else Confidence.HIGH if len(evals) >= 5 else Confidence.MEDIUM,
        causes=(
            *(("the other parts of the loss pay for it: the measure that counts decides",) if a_part else ()),
            "too many passes over too little data",
            "a model too large for the data, without dropout or weight decay",
            "validation data of another kind than the training data",
        ),
        actions=(
            "choose the checkpoint by the measure that counts (mAP, accuracy), not by this part"
            if a_part
            else f"keep the checkpoint of step {step:g}; stop there next time (early stopping on the validation loss)",
            "more data, fewer epochs, dropout of 0.1 to 0.2, or a smaller model",
        ),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"rise over {_RISE:.0%} of the best and 3 standard deviations, training loss falling meanwhile; "
        f"an error over {_BAD_RISE:.0%} with {_BAD_WASTE:.0%} of the run after the best, in most sets",
    )


def _wide_gap(case: Case, losses: Curve, evals: Curve) -> Verdict:
    """The gap alone, where the log has too few validation losses to see their course."""
    if not len(evals) or not len(losses):
        return Insufficient(code="overfitting", missing=f"{_FEWEST_EVALS} validation losses")
    before = losses.value[losses.step <= evals.step[-1]] if losses.counted == evals.counted else losses.value
    if not len(before):  # an evaluation of what was not trained yet
        return Insufficient(code="overfitting", missing=f"{_FEWEST_EVALS} validation losses")
    train, held_out = float(np.median(tail(before))), float(evals.value[-1])
    if train <= 0 or held_out < train * _GAP_RATIO or held_out < train + _GAP_NATS:
        return Insufficient(code="overfitting", missing=f"{_FEWEST_EVALS} validation losses")
    return Finding(
        code="generalisation_gap",
        severity=Severity.WARNING if is_language(case) else Severity.NOTE,
        title=f"Validation loss {held_out:.4g} is far above the training loss {train:.4g}",
        evidence=(Evidence(text=f"gap {held_out - train:.3g}", last_step=float(evals.step[-1])),),
        confidence=Confidence.MEDIUM,
        causes=("overfitting: too many passes over too little data", "validation data of another kind"),
        actions=("evaluate several times during the run and keep the best checkpoint",),
        threshold=f"validation loss over {_GAP_RATIO:g}× the training loss and {_GAP_NATS:g} above",
    )


def _train_falls(losses: Curve, evals: Curve, best: int) -> bool:
    """Whether the training loss is no higher at the end than where the validation loss was best (or not logged)."""
    if len(losses) < 4 or losses.counted != evals.counted:
        return True
    after = losses.value[losses.step >= evals.step[best]]
    if len(after) < 4:
        return True
    part = max(1, len(after) // 4)
    return float(np.median(after[-part:])) <= float(np.median(after[:part])) + row_noise(losses.value)


def _gap(losses: Curve, evals: Curve, best: int) -> tuple[Evidence, ...]:
    if len(losses) < 4 or losses.counted != evals.counted:
        return ()
    then = float(np.interp(evals.step[best], losses.step, losses.value))
    now = float(np.median(tail(losses.value)))
    gaps = f"{evals.value[best] - then:.3g} → {evals.value[-1] - now:.3g}"
    return (Evidence(text=f"training loss {then:.4g} → {now:.4g}, gap to validation {gaps}"),)


def detect_memorised(case: Case) -> Verdict:
    """A training loss that falls to almost nothing, with no validation loss that follows it."""
    losses, evals = curve(case.run, "loss"), curve(case.run, "eval_loss")
    if len(losses) < 10:
        return Insufficient(code="memorised", missing="ten rows with a training loss")
    first, end = float(losses.value[0]), float(np.median(tail(losses.value)))
    if first < _STARTED or not 0 <= end < _NEAR_ZERO or end > (1 - _FALLEN) * first:
        return None
    if len(evals) and (evals.value[-1] < 3 * max(end, _NEAR_ZERO) or not is_language(case)):
        return None  # a task that can be solved: validation data are solved too; of other tasks `overfitting` tells
    below = losses.step[losses.value < _NEAR_ZERO]
    epochs = curve(case.run, "epoch").value
    hours, usd = cost_of_steps(case, float(losses.step[-1] - below[0])) if losses.counted else (None, None)
    if not len(evals) and not len(epochs):
        return None  # nothing says that data came round again: too good rather than memorised
    if len(epochs) and epochs.max() <= 1:
        return None  # nothing repeats within an epoch: what is solved there is too easy or leaks (too_good)
    sure = is_language(case) or (len(epochs) > 0 and float(epochs.max()) >= _MANY_EPOCHS and not len(evals))
    return Finding(
        code="memorised",
        severity=Severity.WARNING if sure else Severity.NOTE,
        title=f"Training data memorised: loss {first:.4g} → {end:.2g}"
        + ("" if len(evals) else ", and no validation loss"),
        evidence=(
            Evidence(
                text=f"below {_NEAR_ZERO:g} nats since step {below[0]:g}: the next token is known with "
                f"{math.exp(-_NEAR_ZERO):.0%}",
                first_step=float(below[0]),
                last_step=float(losses.step[-1]),
            ),
            *((Evidence(text=f"{epochs.max():.3g} epochs over the same data"),) if len(epochs) else ()),
        ),
        confidence=Confidence.HIGH if len(epochs) and epochs.max() > 2 else Confidence.MEDIUM,
        causes=("many epochs over few examples", "duplicated examples", "answers that can be read off the inputs"),
        actions=("hold out 2 to 10 % of the data and evaluate on it", "1 to 3 epochs, or a lower learning rate"),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"from over {_STARTED:g} to under {_NEAR_ZERO:g} nats, validation loss absent or far above",
    )


def detect_accuracy_gap(case: Case) -> Verdict:
    """An accuracy on held-out data far below that on the training data, or one that has fallen from its best."""
    own, held_out = curve(case.run, "accuracy"), curve(case.run, "eval_accuracy")
    if len(held_out) < _FEWEST_EVALS or len(own) < _FEWEST_EVALS:
        return Insufficient(code="accuracy_gap", missing=f"accuracies of {_FEWEST_EVALS} evaluations beside training's")
    train, test = (float(np.median(tail(c.value, least=2))) for c in (own, held_out))
    best = int(np.argmax(held_out.value))
    gap, fall = train - test, float(held_out.value[best]) - test
    if gap < _GAP_SCORE or max(train, test) > 1:
        return None
    fell = fall > max(_FALLEN_SCORE, 3 * row_noise(held_out.value))
    at = f"; it was best, {held_out.value[best]:.1%}, at {held_out.step[best]:g}" if fell else ""
    return Finding(
        code="accuracy_gap",
        severity=Severity.WARNING if gap >= _BAD_GAP_SCORE and fell else Severity.NOTE,
        title=f"Accuracy {train:.1%} in training, {test:.1%} on held-out data{at}",
        evidence=(Evidence(text=f"gap {gap:.1%} over the last evaluations", last_step=float(held_out.step[-1])),),
        confidence=Confidence.HIGH if len(held_out) >= 5 else Confidence.MEDIUM,
        causes=("a model too large for the data, without augmentation or regularisation", "data of another kind"),
        actions=("keep the checkpoint of the best held-out accuracy", "augmentation, weight decay, or more data"),
        threshold=f"over {_GAP_SCORE:.0%}; a warning over {_BAD_GAP_SCORE:.0%} where held-out accuracy has fallen",
    )


def scores_of(case: Case) -> dict[str, tuple[float, float | None]]:
    """Benchmark scores the log states: name → (fraction, step), the last of each.

    From events of kind "score", whose numbers are name → value, and facts of the same names.
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
    """Benchmark scores that guessing reaches as well: they say nothing of the model."""
    scores = scores_of(case)
    if not scores:
        return Insufficient(code="scores_at_chance", missing="benchmark scores")
    at_chance = {
        name: (value, step)
        for name, (value, step) in scores.items()
        if BENCHMARKS[name].chance > 0 and value <= chance_interval(BENCHMARKS[name])[1]
    }
    if not at_chance:
        return None
    shown = ", ".join(
        f"{name} {value:.1%} (chance {BENCHMARKS[name].chance:.0%})" for name, (value, _) in at_chance.items()
    )
    return Finding(
        code="scores_at_chance",
        # a model that has learnt something still guesses at what is hard for it
        severity=Severity.NOTE,
        title=f"{len(at_chance)} of {len(scores)} scores at chance: {shown}",
        evidence=tuple(_score_evidence(name, value, step) for name, (value, step) in at_chance.items()),
        confidence=Confidence.HIGH,
        causes=("a model too small or too little trained for this benchmark", "a prompt or answer format it never saw"),
        actions=("report the loss (bits per byte) instead, which moves long before such scores do",),
        threshold="inside the 95 % interval of guessing: p ± 1.96 √(p(1 − p)/n), n questions of the benchmark",
    )


def _score_evidence(name: str, value: float, step: float | None) -> Evidence:
    low, high = chance_interval(BENCHMARKS[name])
    text = f"{name} {value:.3f}; guessing gives {low:.3f} to {high:.3f}"
    return Evidence(text=text, first_step=step, last_step=step)
