"""What evaluations say beside overfitting: none at all, none that differs from training, none better than the first."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, rate_curve, row_noise, tail
from advisor.findings.detectors.data_budget import epochs_of
from advisor.findings.detectors.generalisation import detect_memorised, detect_overfitting
from advisor.findings.loss_kind import has_level
from advisor.findings.spend import cost_of_steps
from advisor.readers.generic import NAME as GENERIC
from advisor.readers.yolo_console import FORMAT as YOLO

# formats that may print scores, as YOLO does P, R and mAP, which no reader takes
_EVALUATED_UNREAD = (GENERIC, YOLO.name)
_HELD_OUT = ("eval_loss", "eval_accuracy", "eval_reward", "eval_bits_per_byte")
_EPOCHS = 2.0  # passes over the data from which on training loss says nothing of new data
_FALLEN = 0.5  # of the first loss
_SAME_ROWS, _SAME_SHARE, _DIGITS = 4, 0.9, 4  # equal values, of the evaluations, significant digits at least
_FEWEST = 6  # evaluations, to speak of a best one
_WASTED = 0.5  # of the run after its best evaluation
_HIGH_RATE = 0.5  # of the peak, at the end
_WORSE, _WORSE_SCORE, _NOISES = 0.02, 0.01, 3.0  # of the first loss; of all examples; deviations of a row


def detect_no_validation(case: Case) -> Verdict:
    """Several passes over the data without one evaluation: whether the model learnt or memorised stays unknown."""
    losses, epochs = curve(case.run, "loss"), epochs_of(case)
    if len(losses) < 5 or epochs is None:
        return Insufficient(code="no_validation", missing="a training loss and the number of epochs")
    if any(len(curve(case.run, name)) for name in _HELD_OUT) or not has_level(case, losses):
        return None
    if isinstance(detect_memorised(case), Finding):
        return None  # that finding says that nothing was held out
    if case.run.format in _EVALUATED_UNREAD:
        return Insufficient(code="no_validation", missing="a format whose evaluations are known")
    done = curve(case.run, "epoch").value
    passes = float(done.max()) if len(done) else epochs
    first, end = float(losses.value[0]), float(np.median(tail(losses.value)))
    if passes < _EPOCHS or first <= 0 or end > _FALLEN * first or any(e.kind == "score" for e in case.run.events):
        return None
    return Finding(
        code="no_validation",
        severity=Severity.NOTE,
        title=f"{passes:.3g} epochs without an evaluation: loss {first:.4g} → {end:.4g} may be learnt or memorised",
        evidence=(Evidence(text="neither a loss nor a score on held-out data", last_step=float(losses.step[-1])),),
        confidence=Confidence.MEDIUM,
        causes=("evaluation is off, or printed elsewhere",),
        actions=("hold out 1 to 5 % of the data and evaluate once an epoch; keep the best checkpoint",),
        threshold=f"{_EPOCHS:g} epochs and a loss that fell below {_FALLEN:.0%} of its first",
    )


def detect_validation_is_training(case: Case) -> Verdict:
    """Validation losses that are the training's to the last digit: the same data, or the same number printed twice."""
    evals = curve(case.run, "eval_loss")
    own = [c for name in ("loss", "eval_train_loss") if len(c := curve(case.run, name))]
    if len(evals) < _SAME_ROWS or not own:
        return Insufficient(code="validation_is_training", missing=f"{_SAME_ROWS} validation losses beside training's")
    same = max(_equal(evals, losses) for losses in own)
    if same < max(_SAME_ROWS, _SAME_SHARE * len(evals)):
        return None
    return Finding(
        code="validation_is_training",
        severity=Severity.WARNING,
        title=f"The validation loss is the training loss to the last digit in {same} of {len(evals)} evaluations",
        evidence=(Evidence(text=f"both {evals.value[-1]:.6g} at the end", last_step=float(evals.step[-1])),),
        confidence=Confidence.HIGH,
        causes=("the evaluation reads the training data", "one value is printed under both names"),
        actions=("evaluate on data that the training never sees; compare the two data loaders' first samples",),
        threshold=f"{_SAME_ROWS} values of {_DIGITS} digits and more, {_SAME_SHARE:.0%} of the evaluations",
    )


def _equal(evals: Curve, losses: Curve) -> int:
    """How many evaluations have the very loss of training at their step, of as many digits as chance does not give."""
    place = np.clip(np.searchsorted(losses.step, evals.step), 0, len(losses) - 1)
    same = (losses.step[place] == evals.step) & (losses.value[place] == evals.value)
    long = [len(f"{abs(value):.12f}".replace(".", "").strip("0")) >= _DIGITS for value in evals.value]
    # a constant would be equal by nature
    return int((same & long).sum()) if len(np.unique(evals.value)) > len(evals) // 2 else 0


def detect_best_long_ago(case: Case) -> Verdict:
    """A best evaluation long before the end, none of the later ones better: the time after it bought nothing."""
    scores, sign = _measure(case)
    if len(scores) < _FEWEST:
        return Insufficient(code="best_long_ago", missing=f"{_FEWEST} evaluations")
    if not has_level(case, curve(case.run, "loss")) or isinstance(detect_overfitting(case), Finding):
        return None  # that finding says which checkpoint to keep
    best = int(np.argmax(sign * scores.value))
    step, last = float(scores.step[best]), float(scores.step[-1])
    waste = (last - step) / max(last - min(float(scores.step[0]), 0.0), 1e-9)
    if waste < _WASTED or len(scores) - best <= _FEWEST // 2:
        return None
    hours, usd = cost_of_steps(case, last - step) if scores.counted else (None, None)
    rates = rate_curve(case.run).value
    high = bool(len(rates) and rates[-1] > _HIGH_RATE * rates.max())
    return Finding(
        code="best_long_ago",
        severity=Severity.NOTE,
        title=f"The best evaluation, {scores.value[best]:.4g}, was at step {step:g} of {last:g}; none since is better",
        evidence=(Evidence(text=f"{scores.value[-1]:.4g} at the end; {waste:.0%} of the run came after the best",
                           first_step=step, last_step=last),),
        confidence=Confidence.MEDIUM,
        causes=("the model has learnt what it can from these data",
                *(("the learning rate is still high",) if high else ())),
        actions=(f"keep the checkpoint of step {step:g}", "stop early next time",
                 *(("or decay the learning rate sooner",) if high else ())),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"{_WASTED:.0%} of the run after the best of {_FEWEST} evaluations and more",
    )  # fmt: skip


def _measure(case: Case) -> tuple[Curve, float]:
    """The measure that counts: held-out accuracy, else held-out loss; with the sign that makes more of it better."""
    accuracy = curve(case.run, "eval_accuracy")
    return (accuracy, 1.0) if len(accuracy) >= _FEWEST else (curve(case.run, "eval_loss"), -1.0)


def detect_worse_than_start(case: Case) -> Verdict:
    """Evaluations that end worse than the first one: the training did harm to what is measured."""
    losses, scores = curve(case.run, "eval_loss"), curve(case.run, "eval_accuracy")
    measure, sign, name = (scores, 1.0, "accuracy") if len(scores) > 1 else (losses, -1.0, "loss")
    if len(measure) < 2:
        return Insufficient(code="worse_than_start", missing="two evaluations of held-out data")
    if isinstance(detect_overfitting(case), Finding) or not has_level(case, curve(case.run, "loss")):
        return None
    first, end = float(measure.value[0]), float(np.median(tail(measure.value, share=0.05, least=1)))
    least = _WORSE_SCORE if sign > 0 else _WORSE * abs(first)
    harm = sign * (first - end)
    if harm <= max(least, _NOISES * row_noise(measure.value)):
        return None
    return Finding(
        code="worse_than_start",
        severity=Severity.WARNING if len(measure) >= _FEWEST else Severity.NOTE,
        title=f"Held-out {name} is worse at the end than at the first evaluation: {first:.4g} → {end:.4g}",
        evidence=(Evidence(text=f"{len(measure)} evaluations", first_step=float(measure.step[0]),
                           last_step=float(measure.step[-1])),),
        confidence=Confidence.HIGH if len(measure) >= _FEWEST else Confidence.LOW,
        causes=("a learning rate too high for these weights", "training data of another kind than what is evaluated",
                "an evaluation in training mode (dropout, batch statistics)"),
        actions=("keep the weights of the start; lower the learning rate 3 to 10×, look at the data's format",),
        threshold=f"{_WORSE_SCORE:.0%} of the examples or {_WORSE:.0%} of the loss, {_NOISES:g} deviations of a row",
    )  # fmt: skip
