"""Training that moves nothing: losses that are frozen or exactly 0, accuracies that stay, models that hardly learn."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, spread, tail
from advisor.findings.detectors.stagnation import detect_stuck_at_frequencies
from advisor.findings.loss_kind import has_level, is_language, is_solved
from advisor.findings.run_facts import from_scratch, nats_per_unit, number, planned_steps
from advisor.findings.spend import cost_of_steps

_FROZEN_EVALS, _FROZEN_ROWS = 3, 10  # the last ones identical: rounding alone repeats a few training losses
_FROZEN_SHARE = 0.3  # of the run, at its end
_DIGITS = 4  # significant ones that must repeat
_STUCK_ROWS, _STUCK_WITHIN, _STUCK_BELOW = 10, 0.005, 0.5
_TREND_ROWS, _TREND_ERRORS = 20, 2.0  # of an accuracy of single batches; standard errors of what it gained
_ZERO_LOSSES, _ZERO_LOSS_SHARE = 3, 0.3  # rows at the end; of all
_BEYOND_THE_FIRST = 10.0  # times the first loss
_LEAP, _FEWEST_LEAPS, _OFTEN_LEAPS = 3.0, 3, 0.1  # powers of ten; rows; of all rows: an error
_FOLLOWS = 0.1  # of its first value: a held-out loss that falls so far is learning
_SOLVED = 1e-3  # a held-out loss below it: nothing is left to learn
_HARDLY = 0.75  # of the first loss: the frequencies of tokens alone put a language model at about 0.7
_UNLEARNT = (7.0, 13.5)  # nats: what fresh models of a thousand to half a million tokens begin with
_LONG_EPOCHS, _LONG_STEPS, _LONG_ROWS = 5, 2000, 20


def detect_frozen(case: Case) -> Verdict:
    """A loss that repeats to the last digit: no weight moves, or nothing of what moves reaches the loss."""
    evals, losses = curve(case.run, "eval_loss"), curve(case.run, "loss")
    if len(evals) < _FROZEN_EVALS and len(losses) < _FROZEN_ROWS:
        return Insufficient(code="loss_frozen", missing=f"{_FROZEN_EVALS} validation losses or {_FROZEN_ROWS} rows")
    for name, values, fewest, accuracy in (
        ("validation", evals, _FROZEN_EVALS, "eval_accuracy"),
        ("training", losses, _FROZEN_ROWS, "accuracy"),
    ):
        same = _same_at_end(values)
        if is_solved(case, values, accuracy):
            continue  # it stands still where nothing is left to learn
        if same >= max(fewest, math.ceil(_FROZEN_SHARE * len(values))):
            return _frozen(case, name, values, same)
    return None


def detect_leaps(case: Case) -> Verdict:
    """A loss that leaps up by powers of ten again and again: whatever it ends at, it has not fallen."""
    losses = curve(case.run, "loss")
    if len(losses) < _FROZEN_ROWS or not has_level(case, losses) or np.any(losses.value <= 0):
        return Insufficient(code="loss_leaps", missing=f"{_FROZEN_ROWS} rows with a training loss above 0")
    # Batches that are known by heart have losses near 0, from which any other batch is a leap: it ends where training
    # began. A leap goes beyond.
    beyond = losses.value[1:] > _BEYOND_THE_FIRST * losses.value[0]
    ups = np.flatnonzero((np.diff(np.log10(losses.value)) >= _LEAP) & beyond) + 1
    if len(ups) < _FEWEST_LEAPS or ups[-1] < len(losses) / 2:
        return None
    often = len(ups) >= _OFTEN_LEAPS * len(losses)
    low, high = float(losses.value.min()), float(losses.value.max())
    return Finding(
        code="loss_leaps",
        severity=Severity.ERROR if often else Severity.WARNING,
        title=f"The loss leaps between {low:.3g} and {high:.3g}, {len(ups)} times: where it ends is chance",
        evidence=tuple(
            Evidence(text=f"{losses.value[at - 1]:.4g} → {losses.value[at]:.4g}", first_step=float(losses.step[at]))
            for at in ups[:10].tolist()
        ),
        confidence=Confidence.HIGH if often else Confidence.MEDIUM,
        causes=(
            "inputs or targets that are not scaled, single examples of enormous values",
            "a learning rate far too high, gradients that are not clipped, a division by almost nothing",
        ),
        actions=("print the batch of such a step: its inputs, targets and gradient norm", "scale the data; clip at 1"),
        threshold=f"{_FEWEST_LEAPS} rows that are {10**_LEAP:g} times the row before and "
        f"{_BEYOND_THE_FIRST:g} times the first, also in the later half",
    )


def _same_at_end(values: Curve) -> int:
    """How many of the last values are the same, of as many digits as chance does not repeat."""
    if not len(values) or values.value[-1] == 0 or len(f"{abs(values.value[-1]):.12f}".strip("0.")) < _DIGITS:
        return 0
    other = np.flatnonzero(values.value != values.value[-1])
    return len(values) - (int(other[-1]) + 1 if len(other) else 0)


def _frozen(case: Case, name: str, values: Curve, same: int) -> Finding:
    since, last = float(values.step[-same]), float(values.step[-1])
    hours, usd = cost_of_steps(case, last - since) if values.counted else (None, None)
    return Finding(
        code="loss_frozen",
        severity=Severity.ERROR,
        title=f"The {name} loss is {values.value[-1]:.6g} to the last digit in the last {same} rows: nothing is learnt",
        evidence=(Evidence(text=f"identical in {same} of {len(values)} rows", first_step=since, last_step=last),),
        confidence=Confidence.HIGH,
        causes=(
            "the output is saturated or one class is always predicted (a learning rate too high, dead units)",
            "no gradient reaches the weights (frozen parameters, detached loss, a learning rate of 0)",
        ),
        actions=("lower the learning rate, check the output layer and the labels, and start anew",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"{_FROZEN_EVALS} validation losses or {_FROZEN_ROWS} rows, {_FROZEN_SHARE:.0%} of the run, same",
    )


def detect_stuck_accuracy(case: Case) -> Verdict:
    """An accuracy that stays where it began, however the loss falls."""
    found = [c for name in ("eval_accuracy", "accuracy") if len(c := curve(case.run, name)) >= _STUCK_ROWS]
    if not found:
        return Insufficient(code="accuracy_stuck", missing=f"an accuracy in {_STUCK_ROWS} rows")
    scores, losses = found[0], curve(case.run, "loss").value
    low, high = float(scores.value.min()), float(scores.value.max())
    if high >= _STUCK_BELOW or (high - low > _STUCK_WITHIN and not (_no_trend(scores.value) and _no_trend(-losses))):
        return None
    still = f"stays at {low:.2%} to {high:.2%} over the whole log"
    if high - low > _STUCK_WITHIN:
        third = len(scores) // 3
        begun, ended = (float(np.median(part)) for part in (scores.value[:third], scores.value[-third:]))
        still = f"does not rise: {begun:.1%} in the first third of the log, {ended:.1%} in the last"
    fell = f", while the loss goes from {losses[0]:.4g} to {losses[-1]:.4g}" if len(losses) else ""
    return Finding(
        code="accuracy_stuck",
        severity=Severity.WARNING,
        title=f"Accuracy {still}{fell}: nothing useful is learnt",
        evidence=(Evidence(text=f"{len(scores)} rows", first_step=float(scores.step[0]),
                           last_step=float(scores.step[-1])),),
        confidence=Confidence.HIGH,
        causes=("one frequent class or token is always predicted", "a learning rate far too small or too high",
                "inputs and labels that do not belong together"),
        actions=("overfit one batch: its accuracy has to reach 100 %; if not, look at labels, masks and outputs",),
        threshold=f"{_STUCK_ROWS} rows within {_STUCK_WITHIN:g} of each other, below {_STUCK_BELOW:g}; or "
        f"{_TREND_ROWS} rows whose thirds differ by under {_TREND_ERRORS:g} standard errors, the loss not falling",
    )  # fmt: skip


def _no_trend(values: np.ndarray) -> bool:
    """Whether the last third is no higher than the first, within what single rows scatter."""
    if len(values) < _TREND_ROWS:
        return False
    third = len(values) // 3
    error = spread(values - float(np.median(values))) * 1.2533 * math.sqrt(2 / third)
    return float(np.median(values[-third:]) - np.median(values[:third])) <= _TREND_ERRORS * error


def detect_loss_zero(case: Case) -> Verdict:
    """A training loss of exactly 0 to the end: no target counts, or the task is solved without being learnt."""
    losses, evals = curve(case.run, "loss"), curve(case.run, "eval_loss")
    if len(losses) < _ZERO_LOSSES or not has_level(case, losses):
        return Insufficient(code="loss_zero", missing=f"{_ZERO_LOSSES} training losses, none of a policy")
    other = np.flatnonzero(losses.value != 0)
    zeros = len(losses) - (int(other[-1]) + 1 if len(other) else 0)
    if zeros < max(_ZERO_LOSSES, _ZERO_LOSS_SHARE * len(losses)) or is_solved(case, losses):
        return None  # what is answered rightly costs nothing, to the digits printed
    since, last = float(losses.step[-zeros]), float(losses.step[-1])
    follows = len(evals) > 0 and float(evals.value[-1]) <= max(_FOLLOWS * float(evals.value[0]), _SOLVED)
    held_out = f", while the validation loss stays at {evals.value[-1]:.4g}" if len(evals) and not follows else ""
    always = zeros == len(losses)
    hours, usd = cost_of_steps(case, last - since) if losses.counted and not follows else (None, None)
    return Finding(
        code="loss_zero",
        severity=Severity.NOTE if follows else Severity.ERROR if always else Severity.WARNING,
        title=f"The training loss is 0 in the last {zeros} of {len(losses)} rows{held_out}: these steps teach nothing",
        evidence=(Evidence(text=f"0 as printed in {zeros} rows", first_step=since, last_step=last),),
        confidence=Confidence.HIGH if always or held_out else Confidence.MEDIUM,
        causes=(
            "no position counts in the loss: all labels masked (-100), sequences cut before the answer",
            "losses that are not a number, which the trainer prints as 0 (logging_nan_inf_filter)",
            "a trivial solution: negatives missing, the target among the inputs, a margin that is always met",
        ),
        actions=("print one batch: how many labels count, and is the loss of it 0 or not a number?",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"exactly 0 in {_ZERO_LOSSES} rows at the end and {_ZERO_LOSS_SHARE:.0%} of all",
    )


def detect_hardly_learns(case: Case) -> Verdict:
    """A language model that after epochs has not even learnt how frequent each token is."""
    losses, unit = curve(case.run, "loss"), nats_per_unit(case.run)
    if len(losses) < _LONG_ROWS or unit is None or not has_level(case, losses):
        return Insufficient(code="hardly_learns", missing=f"{_LONG_ROWS} rows with a loss per token")
    first, end = float(losses.value[0]) * unit, float(np.median(tail(losses.value))) * unit
    epochs = curve(case.run, "epoch").value
    counted = number(case.run.facts, "planned_epochs") if not len(epochs) else float(epochs.max() - epochs.min())
    steps = float(losses.step[-1] - losses.step[0]) if losses.counted else 0.0
    long = (counted or 0) >= _LONG_EPOCHS or steps >= max(_LONG_STEPS, 0.1 * (planned_steps(case) or 0))
    started = _UNLEARNT[0] <= first <= _UNLEARNT[1]
    if isinstance(detect_stuck_at_frequencies(case), Finding):
        return None  # the same, known more surely
    if not long or not started or not _HARDLY * first < end < 0.99 * first or from_scratch(case) is False:
        return None
    return Finding(
        code="hardly_learns",
        severity=Severity.WARNING if is_language(case) else Severity.NOTE,
        title=f"Hardly anything is learnt: loss {first:.4g} at the start, still {end:.4g} at the end",
        evidence=(Evidence(text=f"perplexity {math.exp(end):,.0f}; {end / first:.0%} of the first loss",
                           first_step=float(losses.step[0]), last_step=float(losses.step[-1])),),
        confidence=Confidence.MEDIUM,
        causes=("a learning rate far too small, or a warm-up that never ends",
                "inputs, masks or labels that do not belong together"),
        actions=("overfit one batch: its loss has to fall to near 0 within some hundred steps",),
        threshold=f"over {_HARDLY:.0%} of a first loss of {_UNLEARNT[0]:g} to {_UNLEARNT[1]:g} nats after "
        f"{_LONG_EPOCHS} epochs or {_LONG_STEPS:,} steps; frequencies of tokens alone give about 70 % (sources §7.1)",
    )  # fmt: skip
