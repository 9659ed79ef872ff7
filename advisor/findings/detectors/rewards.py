"""Rewards of a policy: all alike, no higher than at the start, or gained and lost again; a policy without choice."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Case, Verdict, finding, lacking, seen
from advisor.findings.curves import Curve, curve, head, row_noise, spread, tail, trailing_median
from advisor.findings.run_facts import best_checkpoint
from advisor.findings.savings import cost_of_steps
from advisor.units import format_percent

_ZERO_ROWS, _ZERO_SHARE = 8, 0.5
_ALIKE_ROWS = 20  # with the same reward to the last digit
_ALIKE_SHARE = 0.8  # of the later rows without any spread of the rewards; single groups are often solved or hopeless
_NO_CHOICE, _HAD_CHOICE = 0.01, 0.1  # nats: the likeliest answer has 99.8 %; a policy that still chose at first
_SOLVED = 0.95  # of the highest reward
_FLAT_REWARDS, _FLAT_GAIN = 100, 0.25  # rows; standard deviations of a row
_COLLAPSE_EVALS, _COLLAPSE_ROWS = 5, 50
_COLLAPSE_NOISES = 5.0  # standard deviations of a row


def detect_dead_signal(case: Case) -> Verdict:
    """Rewards that are 0 or all alike in most rows, or a policy loss of 0, so that these steps teach nothing."""
    losses, rewards, spreads = (curve(case.run, name) for name in ("loss", "reward", "reward_std"))
    policy = "policy" in str(case.run.facts.get("loss_unit") or "") or len(rewards) > 0
    if not policy or max(len(losses), len(rewards)) < _ZERO_ROWS:
        return lacking("dead_signal", f"rewards or policy losses of {_ZERO_ROWS} steps")
    # a policy loss is always 0 if each batch is used once, so only rewards count
    known = len(rewards) >= _ZERO_ROWS
    values = rewards if known else losses
    if (share := _zero_share(values)) >= _ZERO_SHARE:
        words = f"{'reward' if known else 'policy loss'} is exactly 0 in {format_percent(share)} of the later rows"
    elif known and len(values) >= _ALIKE_ROWS and not np.ptp(values.value):
        words = f"reward is {values.value[0]:.4g} in every row"
    elif known and len(values) >= _ALIKE_ROWS and _is_stuck(values):
        words = f"reward is {values.value[-1]:.4g} in all later rows"
    elif len(spreads) >= _ZERO_ROWS and (share := _zero_share(spreads)) >= _ALIKE_SHARE and not _is_solved(rewards):
        words = f"rewards of a step are all alike in {format_percent(share)} of the later rows"
    else:
        return None
    return finding(
        "dead_signal",
        severity="warning" if known else "note",
        title=f"The {words}: these steps teach nothing",
        evidence=seen(
            f"rewards of {len(values)} rows, from {values.value.min():.4g} to {values.value.max():.4g}",
            *values.step[[0, -1]],
        ),
    )


def _zero_share(values: Curve) -> float:
    return float((values.value[len(values) // 2 :] == 0).mean())


def _is_stuck(rewards: Curve) -> bool:
    """Return True if the later rewards are all the same, and lower than some before them."""
    later = rewards.value[len(rewards) // 2 :]
    return not np.ptp(later) and float(later[0]) < float(rewards.value.max())


def _is_solved(rewards: Curve) -> bool:
    """Return True if the rewards rose to their highest level: then no answer is worse than another."""
    if not len(rewards):
        return False
    first, end = float(np.median(head(rewards.value))), float(np.median(tail(rewards.value)))
    return end > first and end >= _SOLVED * float(rewards.value.max())


def detect_policy_collapsed(case: Case) -> Verdict:
    """A policy without any entropy left, so that it always does the same, although it has not solved its task."""
    entropy, rewards = curve(case.run, "entropy"), curve(case.run, "reward")
    if len(entropy) < _ALIKE_ROWS or len(rewards) < _ALIKE_ROWS:
        return lacking("policy_collapsed", f"entropy and reward of a policy in {_ALIKE_ROWS} rows")
    # the first five rows: a policy may collapse within a tenth of a run
    first, end = float(np.median(head(entropy.value, 0.0))), float(np.median(tail(entropy.value)))
    if first < _HAD_CHOICE or not 0 <= end <= _NO_CHOICE or _is_solved(rewards):
        return None
    since = float(entropy.step[np.flatnonzero(entropy.value > _NO_CHOICE)[-1]])
    return finding(
        "policy_collapsed",
        title=f"The policy's entropy falls from {first:.3g} to {end:.2g}: it always does the same",
        evidence=seen(f"the entropy stays under {_NO_CHOICE:g} nats after step {since:g}", since, entropy.step[-1]),
        saved=cost_of_steps(case, float(entropy.step[-1]) - since) if entropy.counted else (None, None),
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
            f"rewards of single rows scatter by {scatter:.3g}, highest {rewards.value.max():.4g}",
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
        title=f"The reward collapses: from {top:.4g} at step {step:g} to {end:.4g} at the end",
        evidence=seen(f"the lowest reward since step {step:g} is {level[best:].min():.4g}", step, rewards.step[-1]),
        confidence="high" if rewards is held_out else "medium",
        actions=(f"use {best_checkpoint(case, step)}", "lower the learning rate, or clip and penalise KL more"),
    )
