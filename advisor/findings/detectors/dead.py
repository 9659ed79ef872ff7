"""Training that moves nothing: frozen losses, signals of exactly 0, accuracies that stay, rewards that collapse."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, row_noise, tail, trailing_median
from advisor.findings.loss_kind import has_level, is_language
from advisor.findings.run_facts import from_scratch, nats_per_unit, number, planned_steps
from advisor.findings.spend import cost_of_steps

_FROZEN_EVALS, _FROZEN_ROWS = 3, 10  # the last ones identical: rounding alone repeats a few training losses
_FROZEN_SHARE = 0.3  # of the run, at its end
_DIGITS = 4  # significant ones that must repeat
_ZERO_ROWS, _ZERO_SHARE = 8, 0.5
_STUCK_ROWS, _STUCK_WITHIN, _STUCK_BELOW = 10, 0.005, 0.5
_COLLAPSE_EVALS, _COLLAPSE_ROWS = 5, 50
_COLLAPSE_NOISES = 5.0  # standard deviations of a row
_HARDLY = 0.75  # of the first loss: the frequencies of tokens alone put a language model at about 0.7
_UNLEARNT = (7.0, 13.5)  # nats: what fresh models of a thousand to half a million tokens begin with
_LONG_EPOCHS, _LONG_STEPS, _LONG_ROWS = 5, 2000, 20


def detect_frozen(case: Case) -> Verdict:
    """A loss that repeats to the last digit: no weight moves, or nothing of what moves reaches the loss."""
    evals, losses = curve(case.run, "eval_loss"), curve(case.run, "loss")
    if len(evals) < _FROZEN_EVALS and len(losses) < _FROZEN_ROWS:
        return Insufficient(code="loss_frozen", missing=f"{_FROZEN_EVALS} validation losses or {_FROZEN_ROWS} rows")
    for name, values, fewest in (("validation", evals, _FROZEN_EVALS), ("training", losses, _FROZEN_ROWS)):
        same = _same_at_end(values)
        if same >= max(fewest, math.ceil(_FROZEN_SHARE * len(values))):
            return _frozen(case, name, values, same)
    return None


def _same_at_end(values: Curve) -> int:
    """How many of the last values are the same, of as many digits as chance does not repeat."""
    if not len(values) or values.value[-1] == 0 or len(f"{abs(values.value[-1]):.12g}".strip("0.")) < _DIGITS:
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


def detect_dead_signal(case: Case) -> Verdict:
    """A policy loss or reward that is exactly 0 in most rows: such steps teach nothing."""
    losses, rewards = curve(case.run, "loss"), curve(case.run, "reward")
    policy = "policy" in str(case.run.facts.get("loss_unit") or "") or len(rewards) > 0
    if not policy or max(len(losses), len(rewards)) < _ZERO_ROWS:
        return Insufficient(code="dead_signal", missing=f"rewards or policy losses of {_ZERO_ROWS} steps")
    # a policy loss is 0 by construction where each batch is used once: only rewards tell
    known = len(rewards) >= _ZERO_ROWS
    name, values = ("reward", rewards) if known else ("policy loss", losses)
    share = float((values.value[len(values) // 2 :] == 0).mean())
    if share < _ZERO_SHARE:
        return None
    return Finding(
        code="dead_signal",
        severity=Severity.WARNING if known else Severity.NOTE,
        title=f"The {name} is exactly 0 in {share:.0%} of the later rows: these steps teach nothing",
        evidence=(Evidence(text=f"{int((values.value == 0).sum())} of {len(values)} rows",
                           first_step=float(values.step[0]), last_step=float(values.step[-1])),),
        confidence=Confidence.HIGH,
        causes=("all answers to a prompt get the same reward (0), so that no advantage is left",
                "the reward's parser finds no answer", "batches or groups too small"),
        actions=("read some answers beside their rewards; easier prompts, more answers to each, larger batches",),
        threshold=f"{_ZERO_SHARE:.0%} of at least {_ZERO_ROWS} rows",
    )  # fmt: skip


def detect_stuck_accuracy(case: Case) -> Verdict:
    """An accuracy that stays where it began, however the loss falls."""
    found = [c for name in ("eval_accuracy", "accuracy") if len(c := curve(case.run, name)) >= _STUCK_ROWS]
    if not found:
        return Insufficient(code="accuracy_stuck", missing=f"an accuracy in {_STUCK_ROWS} rows")
    scores = found[0]
    low, high = float(scores.value.min()), float(scores.value.max())
    if high - low > _STUCK_WITHIN or high >= _STUCK_BELOW:
        return None
    losses = curve(case.run, "loss").value
    fell = f", while the loss goes from {losses[0]:.4g} to {losses[-1]:.4g}" if len(losses) else ""
    return Finding(
        code="accuracy_stuck",
        severity=Severity.WARNING,
        title=f"Accuracy stays at {low:.2%} to {high:.2%} over the whole log{fell}: nothing useful is learnt",
        evidence=(Evidence(text=f"{len(scores)} rows", first_step=float(scores.step[0]),
                           last_step=float(scores.step[-1])),),
        confidence=Confidence.HIGH,
        causes=("one frequent class or token is always predicted", "a learning rate far too small or too high",
                "inputs and labels that do not belong together"),
        actions=("overfit one batch: its accuracy has to reach 100 %; if not, look at labels, masks and outputs",),
        threshold=f"{_STUCK_ROWS} rows within {_STUCK_WITHIN:g} of each other, below {_STUCK_BELOW:g}",
    )  # fmt: skip


def detect_reward_collapse(case: Case) -> Verdict:
    """A reward that was gained and lost again: the last weights are not the best."""
    held_out, own = curve(case.run, "eval_reward"), curve(case.run, "reward")
    rewards = held_out if len(held_out) >= _COLLAPSE_EVALS else own
    if len(held_out) < _COLLAPSE_EVALS and len(own) < _COLLAPSE_ROWS:
        missing = f"rewards of {_COLLAPSE_EVALS} evaluations or {_COLLAPSE_ROWS} rows"
        return Insufficient(code="reward_collapse", missing=missing)
    # single evaluations are averages; of single rollouts a running median
    level = rewards.value if rewards is held_out else trailing_median(rewards.value, max(3, len(rewards) // 20))
    best = int(np.argmax(level))
    end, top = float(np.median(tail(level, least=2))), float(level[best])
    # below where a quarter of the way up had been: most of what was gained is lost
    lost = end < float(np.quantile(level[: best + 1], 0.25)) and best >= 3
    if best >= len(level) - 2 or not lost or top - end < max(_COLLAPSE_NOISES * row_noise(rewards.value), 1e-9):
        return None
    step = float(rewards.step[best])
    return Finding(
        code="reward_collapse",
        severity=Severity.WARNING,
        title=f"The reward collapses: {top:.4g} at step {step:g}, {end:.4g} at the end",
        evidence=(Evidence(text=f"lowest afterwards {level[best:].min():.4g}", first_step=step,
                           last_step=float(rewards.step[-1])),),
        confidence=Confidence.HIGH if rewards is held_out else Confidence.MEDIUM,
        causes=("updates too large for the policy (learning rate, clip range, KL weight)",
                "a value function or baseline that has diverged"),
        actions=(f"keep the checkpoint of step {step:g}", "lower the learning rate, or clip and penalise KL more"),
        threshold=f"below the lowest quarter of what led to the best, by {_COLLAPSE_NOISES:g} deviations of a row",
    )  # fmt: skip


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
