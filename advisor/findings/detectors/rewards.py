"""Rewards of a policy: exactly 0, no higher than at the start, or gained and lost again."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Case, Verdict, finding, lacking, seen
from advisor.findings.curves import curve, row_noise, spread, tail, trailing_median
from advisor.findings.savings import cost_of_steps

_ZERO_ROWS, _ZERO_SHARE = 8, 0.5
_FLAT_REWARDS, _FLAT_GAIN = 100, 0.25  # rows; standard deviations of a row
_COLLAPSE_EVALS, _COLLAPSE_ROWS = 5, 50
_COLLAPSE_NOISES = 5.0  # standard deviations of a row


def detect_dead_signal(case: Case) -> Verdict:
    """A policy loss or reward that is exactly 0 in most rows, so that these steps teach nothing."""
    losses, rewards = curve(case.run, "loss"), curve(case.run, "reward")
    policy = "policy" in str(case.run.facts.get("loss_unit") or "") or len(rewards) > 0
    if not policy or max(len(losses), len(rewards)) < _ZERO_ROWS:
        return lacking("dead_signal", f"rewards or policy losses of {_ZERO_ROWS} steps")
    # a policy loss is always 0 if each batch is used once, so only rewards count
    known = len(rewards) >= _ZERO_ROWS
    name, values = ("reward", rewards) if known else ("policy loss", losses)
    share = float((values.value[len(values) // 2 :] == 0).mean())
    if share < _ZERO_SHARE:
        return None
    return finding(
        "dead_signal",
        severity="warning" if known else "note",
        title=f"The {name} is exactly 0 in {share:.0%} of the later rows: these steps teach nothing",
        evidence=seen(f"{int((values.value == 0).sum())} of {len(values)} rows", values.step[0], values.step[-1]),
    )


def detect_reward_flat(case: Case) -> Verdict:
    """A reward that is no higher at the end than at the start: the policy does not learn."""
    rewards = curve(case.run, "reward")
    if len(rewards) < _FLAT_REWARDS:
        return lacking("reward_flat", f"{_FLAT_REWARDS} rows with a reward")
    third, scatter = len(rewards) // 3, spread(rewards.value - float(np.median(rewards.value)))
    first, end = float(np.median(rewards.value[:third])), float(np.median(rewards.value[-third:]))
    best = float(np.max(trailing_median(rewards.value, third)[third - 1 :]))
    solved = first >= 0.95 * float(rewards.value.max())
    if end - first > _FLAT_GAIN * scatter or best - end > scatter or solved or not scatter:
        return None
    return finding(
        "reward_flat",
        title=f"The reward does not rise: {first:.4g} in the first third of the run, {end:.4g} in the last",
        evidence=seen(
            f"single rows scatter by {scatter:.3g}, highest {rewards.value.max():.4g}",
            rewards.step[0],
            rewards.step[-1],
        ),
        saved=cost_of_steps(case, float(rewards.step[-1] - rewards.step[0])) if rewards.counted else (None, None),
    )


def detect_reward_collapse(case: Case) -> Verdict:
    """A reward that was gained and lost again: the last weights are not the best."""
    held_out, own = curve(case.run, "eval_reward"), curve(case.run, "reward")
    rewards = held_out if len(held_out) >= _COLLAPSE_EVALS else own
    if len(held_out) < _COLLAPSE_EVALS and len(own) < _COLLAPSE_ROWS:
        missing = f"rewards of {_COLLAPSE_EVALS} evaluations or {_COLLAPSE_ROWS} rows"
        return lacking("reward_collapse", missing)
    # single evaluations are averages; single rollouts get a running median
    level = rewards.value if rewards is held_out else trailing_median(rewards.value, max(3, len(rewards) // 20))
    best = int(np.argmax(level))
    end, top = float(np.median(tail(level, least=2))), float(level[best])
    # below the level a quarter of the way up: most of the gain is lost
    lost = end < float(np.quantile(level[: best + 1], 0.25)) and best >= 3
    if best >= len(level) - 2 or not lost or top - end < max(_COLLAPSE_NOISES * row_noise(rewards.value), 1e-9):
        return None
    step = float(rewards.step[best])
    return finding(
        "reward_collapse",
        title=f"The reward collapses: {top:.4g} at step {step:g}, {end:.4g} at the end",
        evidence=seen(f"lowest afterwards {level[best:].min():.4g}", step, rewards.step[-1]),
        confidence="high" if rewards is held_out else "medium",
        actions=(f"keep the checkpoint of step {step:g}", "lower the learning rate, or clip and penalise KL more"),
    )
