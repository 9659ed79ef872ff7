"""What detectors find in what was learnt, by which data, in which runs: each row has one thing wrong, or looks so."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from advisor.findings.case import Severity
from advisor.findings.curves import curve
from advisor.findings.registry import judge
from advisor.findings.run_facts import is_solved
from advisor.readers.run_table import ROW_NUMBERS, Status
from tests.advisor.findings import build
from tests.advisor.findings.build import event, found, silent, unjudged, verify
from tests.advisor.findings.build_learning import (
    LN_V,
    STEPS,
    changed,
    every,
    healthy_loss,
    learning_case,
    learning_run,
    noise,
    untold,
)

SEED = 9
LOSS = healthy_loss()
PLACE = np.arange(STEPS)
FALLING = np.linspace(1.1, 0.05, STEPS)
GAP = {"learning_rate": None, "grad_norm": None}


def approx(value, rel=0.02):
    return pytest.approx(value, rel=rel)


def overfitted(worst):
    """Validation every 100 steps: best (2.184) at step 600, then up to `worst` at 2,000."""
    values = np.full(STEPS, np.nan)
    values[99::100] = np.r_[np.linspace(3.76, 2.184, 6), np.linspace(2.184, worst, 15)[1:]]
    return values


def scored(*, rises_to=None, **ends):
    """Accuracies of training to 0.99 and of validation at its evaluations."""
    at, column = np.isfinite(overfitted(3.0)), np.full(STEPS, np.nan)
    column[at] = np.linspace(0.5, rises_to, 20) if rises_to else np.r_[np.linspace(0.5, 0.78, 6),
                                                                      np.linspace(0.78, 0.70, 14)]  # fmt: skip
    return {"accuracy": np.linspace(0.5, 0.99, STEPS), "eval_accuracy": column, **ends}


def long_run(every_steps, step_seconds=60.0, write=30.0):
    """2,000 steps of a minute: 33 hours; a checkpoint every so many steps, taking 30 s."""
    at = range(every_steps, STEPS + 1, every_steps)
    saves = tuple(event("checkpoint", "saved", float(s), seconds=write, bytes=1.5e9) for s in at)
    return changed(seconds=np.full(STEPS, step_seconds), also={"events": saves})


def scores(**fractions):
    return changed(also={"events": (event("score", "eval", 2000.0, **fractions),)})


DPO = {"framework": "TRL", "eval_loss": None}
RUNS_OF_REWARD = {"eval_loss": None, "loss": np.where(np.arange(40) % 10 == 0, 0.03, 0.0)}
COLLAPSED = (-56.0, -7.0, -6.1, -5.9, -5.85, -5.8, -5.83)
BATCHES = np.clip(0.1 + 0.08 * np.random.default_rng(SEED).standard_normal(40), 0, 0.4)
FLAT_40 = 2.7 + 0.4 * np.random.default_rng(SEED).standard_normal(40)
STANDING = 0.067 + 0.001 * np.random.default_rng(SEED).random(50)


def few(**columns):
    """A few epochs without anything but these columns."""
    values = {name: np.array(column) for name, column in columns.items()}
    return lambda: learning_case(build.run(steps=len(next(iter(values.values()))), **values))


def rewarded(level, steps=300):
    scatter = 0.1 * np.random.default_rng(SEED).standard_normal(steps)
    return few(loss=np.full(steps, np.nan), reward=level + scatter)


NOTHING = {
    "a flat loss": (changed(loss=LN_V + noise()), found("no_learning", "error", hours=approx(STEPS / 3600))),
    # O-LoRA's log: learning rate 0 in all 62 rows, 22.0 → 21.3
    "a small drift at a rate of 0": (
        changed(62, loss=np.linspace(22.0, 21.3, 62) + noise(62, 0.3), learning_rate=0.0),
        found("no_learning", says="0 in every row"),
    ),
    "a small drift": (changed(62, loss=np.linspace(22.0, 21.3, 62) + noise(62, 0.3)), silent("no_learning")),
    "a flat fine-tune": (changed(loss=2.1 + noise()), found("no_learning", "note", hours="none")),
    "a classifier that guesses": (
        untold(50, loss=math.log(10) + noise(50, 0.004), eval_loss=None),
        found("no_learning", "error", "as guessing among 10 classes gives"),
    ),
    # ln(1 + e^−0.024) = 0.6812, the median of the last rows
    "preferences at ln 2": (changed(16, loss=np.linspace(0.6922, 0.6804, 16), **DPO),
                            found("preference_at_chance", "warning", says="margin of 0.024")),
    "preferences that are learnt": (changed(50, loss=np.linspace(0.6922, 0.31, 50), framework="TRL"),
                                    silent("preference_at_chance")),
    "a classifier at ln 2": (changed(50, loss=np.full(50, 0.6931)), silent("preference_at_chance")),
    "a noisy last row": (changed(loss=np.r_[healthy_loss(noise=0.1)[:-1], 3.75]),
        found("loss_noise", "note", "3.75", "single rows scatter by 0.09")),
    "a noisy last row of a loss that still falls": (
        changed(300, loss=np.linspace(5, 2, 300) + np.tile([0.06, -0.06, 0.0], 100)), silent("loss_noise")),
    "a last row far outside the noise": (changed(loss=np.r_[healthy_loss(noise=0.1)[:-1], 9.0]), silent("loss_noise")),
    "a validation loss that repeats": (
        changed(4, loss=[10.1, 10.48, 10.48, 10.48], eval_loss=11.568633),
        found("loss_frozen", "error", "last 4 rows")),
    "rounded losses repeat by chance": (
        changed(loss=np.round(LOSS, 1), eval_loss=every(3.5, 3.4, 3.3, 3.3, 3.3)), silent("loss_frozen")),
    # used once, a batch has a policy loss of 0 by construction
    "policy losses of exactly 0": (changed(40, **RUNS_OF_REWARD, facts={"loss_unit": "policy gradient"}),
                                   found("dead_signal", "note", "90 %")),
    "policy losses of 0 without a reward": (
        changed(40, **RUNS_OF_REWARD, reward=np.where(np.arange(40) == 7, 0.25, 0.0)), found("dead_signal", "warning")),
    "a reward found at last": (
        changed(40, **RUNS_OF_REWARD, reward=np.where(np.arange(40) > 18, 0.5, 0.0)), silent("dead_signal")),
    "policy losses about 0": (
        changed(40, loss=noise(40, 0.01, SEED), reward=np.linspace(0.1, 0.6, 40), eval_loss=None),
        silent("dead_signal")),
    "an accuracy that stays as the loss falls": (changed(50, loss=np.linspace(11.2, 8.7, 50), accuracy=STANDING),
                                                 found("accuracy_stuck", starts="Accuracy stays at 6.7")),
    "an accuracy that cannot rise": (changed(50, loss=np.linspace(0.1, 0.05, 50), accuracy=0.918 + STANDING),
                                     silent("accuracy_stuck")),
    "an accuracy of batches without a trend": (few(accuracy=BATCHES, loss=FLAT_40),
                                               found("accuracy_stuck", "", "does not rise")),
    "an accuracy of batches as the loss falls": (few(accuracy=BATCHES, loss=np.linspace(3.5, 1.5, 40)),
                                                 silent("accuracy_stuck")),
    "an accuracy that rises": (few(accuracy=np.linspace(0.1, 0.3, 40), loss=FLAT_40), silent("accuracy_stuck")),
    "a reward that collapses": (changed(eval_reward=every(*COLLAPSED, -11.0, -37.0, -23.0, -17.0)),
                                found("reward_collapse", "", "-5.8 at step", says="checkpoint nearest step 1090")),
    "a noisy reward": (changed(eval_reward=every(*COLLAPSED, -5.9, -5.86, -5.84, -5.95)), silent("reward_collapse")),
    "rewards of single rollouts": (changed(reward=np.linspace(0, 1, STEPS) + noise(size=0.3, seed=SEED)),
                                   silent("reward_collapse")),
    "a reward that does not rise": (rewarded(0.35), found("reward_flat")),
    "a reward that rises": (rewarded(np.linspace(0.2, 0.5, 300)), silent("reward_flat")),
    "a reward that is lost again": (  # another finding
        rewarded(np.where(np.arange(300) < 200, np.linspace(0.2, 0.9, 300), 0.3)), silent("reward_flat")),
    "few rewards": (few(reward=np.full(60, 0.3)), unjudged("reward_flat")),
    "a language model that hardly learns": (
        changed(60, loss=np.linspace(11.2, 8.66, 60), epoch=np.arange(60), eval_loss=None),
        found("hardly_learns", "", "8.")),
    "a language model soon after its start": (
        changed(60, loss=np.linspace(11.2, 8.66, 60), epoch=np.linspace(0, 0.2, 60), eval_loss=None),
        silent("hardly_learns")),
    "a training loss of 0": (
        few(loss=[0.02, 0.001, 0, 0, 0, 0], eval_loss=[0.15] * 6), found("loss_zero", "warning", "0.15", "4 of 6")),
    "a training loss of 0 from the first row": (few(loss=[0.0] * 6), found("loss_zero", "error")),
    "a training loss of 0 and nothing left on held-out data": (
        few(loss=[0.5, 0.1, 0, 0, 0], eval_loss=[0.5, 0.1, 0.01, 0.001, 0.001]), found("loss_zero", "note")),
    "a loss that is 0 for a while": (few(loss=[0.5, 0.1, 0, 0, 0.1]), silent("loss_zero")),
    "a column that nothing is learnt by": (
        few(loss=[0.0] * 6, eval_loss=[1.445e-7, 1.444e-7, 1.443e-7] * 2), found("loss_zero", "note")),
    "a loss of 0 beside a reward": (few(loss=[0.0] * 6, reward=[0.1] * 6), unjudged("loss_zero")),
}  # fmt: skip

HELD_OUT = {
    # 1,400 s at $3.60 an hour
    "overfitting": (changed(loss=FALLING, eval_loss=overfitted(4.835)),
                    found("overfitting", "error", usd=approx(1.4), says="600")),
    "a run that broke": (changed(loss=FALLING, eval_loss=overfitted(4.835), also={"status": Status.DIVERGED}),
                         silent("overfitting")),
    "a small rise": (changed(loss=np.linspace(1.1, 0.9, STEPS), eval_loss=overfitted(2.3)),
        found("overfitting", "warning")),
    "both losses rising": (
        changed(loss=np.r_[np.linspace(3.5, 2.0, 600), np.linspace(2.0, 4.6, 1400)], eval_loss=overfitted(4.8)),
        silent("overfitting"),
    ),
    # MLX evaluates at its first iteration, before anything was learnt
    "an evaluation before the training": (
        changed(200, loss=np.linspace(2.5, 0.5, 200), eval_loss=np.r_[2.9, np.full(199, np.nan)]),
        unjudged("overfitting")),
    "one evaluation far above, at the end": (
        changed(200, loss=np.linspace(2.5, 0.5, 200), eval_loss=np.r_[np.full(199, np.nan), 2.9]),
        found("generalisation_gap")),
    # a summary of W&B: val 2.449, train 0.895
    "one validation loss far above": (changed(1, loss=[0.895], eval_loss=[2.449], **GAP), found("generalisation_gap")),
    "one validation loss near": (changed(1, loss=[3.2], eval_loss=[3.25], **GAP), unjudged("overfitting")),
    "a part of a loss that rises": (
        changed(loss=np.linspace(1.1, 0.7, STEPS), eval_loss=overfitted(4.8), facts={"loss_unit": "boxes"}),
        found("overfitting", "note", hours="none", says="measure that counts"),
    ),
    "no evaluations": (changed(eval_loss=None), unjudged("overfitting")),
    "few evaluations that rise steadily": (
        changed(loss=np.linspace(1.1, 0.26, STEPS),
            eval_loss=every(0.7, 0.58, 0.52, 0.495, 0.4853, 0.487, 0.489, 0.4905, 0.4917)),
        found("overfitting", "note", "(0.4853)", hours="none"),
    ),
    "one evaluation that is worse": (
        changed(loss=np.linspace(1.1, 0.26, STEPS), eval_loss=every(0.74, 0.715, 0.7206)), silent("overfitting")),
    "a classifier whose accuracy still rises": (
        changed(loss=np.linspace(2.3, 0.05, STEPS), eval_loss=overfitted(3.2),
            eval_accuracy=np.where(np.isfinite(overfitted(3.2)), np.interp(PLACE, (99, 1999), (0.4, 0.84)), np.nan)),
        found("overfitting", "note"),
    ),
    "a best evaluation at the end": (
        changed(loss=np.linspace(3.0, 0.9, STEPS), eval_loss=every(*np.linspace(3.0, 1.0, 198), 1.04, 1.05)),
        silent("overfitting"),
    ),
    "a best evaluation half-way": (
        changed(loss=np.linspace(3.0, 0.9, STEPS), eval_loss=every(*np.linspace(3.0, 1.0, 120), *np.linspace(1.0,
            1.5, 80))),
        found("overfitting", "error"),
    ),
    # 3.5·e^−x under 0.05 from x = 4.25 on, row 383
    "memorised data": (
        changed(900, loss=3.5039 * np.exp(-np.linspace(0, 10, 900)) + 0.0001, eval_loss=None, epoch=np.linspace(0,
            10, 900)),
        found("memorised", says="10 epochs"),
    ),
    "a solved task": (
        changed(900, loss=2.3 * np.exp(-np.linspace(0, 8, 900)),
            eval_loss=np.where(np.arange(900) % 50 == 49, 2.3 * np.exp(-np.linspace(0, 8, 900)) + 0.02, np.nan)),
        silent("memorised"),
    ),
    "within an epoch nothing is memorised": (
        changed(loss=10.8 * np.exp(-PLACE / 100) + 0.01, eval_loss=None, epoch=np.linspace(0, 0.9, STEPS)),
        silent("memorised")),
    "memorised in nine epochs": (
        changed(loss=10.8 * np.exp(-PLACE / 100) + 0.01, eval_loss=None, epoch=np.linspace(0, 9, STEPS)),
        found("memorised")),
    "scores that guessing reaches": (scores(hellaswag=0.2541),
                                     found("scores_at_chance", "note", "hellaswag", starts="1 of 1 scores no better")),
    "one score of two at chance": (scores(hellaswag=0.2541, piqa=0.61),
                                   found("scores_at_chance", starts="1 of 2 scores no better than chance: hellaswag")),
    "a real score": (scores(hella=0.3054), silent("scores_at_chance")),
    "no score": (changed(), unjudged("scores_at_chance")),
    "an accuracy gap that has grown": (changed(**scored()), found("accuracy_gap", "warning", "78 %")),
    "a mild accuracy gap": (changed(**scored(rises_to=0.91)), found("accuracy_gap", "note")),
    "no accuracy gap": (changed(**scored(rises_to=0.97)), silent("accuracy_gap")),
    "falling evaluations": (
        changed(epoch=np.linspace(0, 5, STEPS), eval_accuracy=every(*np.linspace(0.1, 0.5, 10))),
        silent("no_validation")),
    "four epochs without an evaluation": (
        changed(eval_loss=None, loss=healthy_loss(end=1.0), epoch=np.linspace(0, 4, STEPS)),
        found("no_validation", "note", starts="4 epochs without"),
    ),
    "one epoch without an evaluation": (
        changed(eval_loss=None, loss=healthy_loss(end=1.0), epoch=np.linspace(0, 1, STEPS)), silent("no_validation")),
}  # fmt: skip

ROWS = 500
AT = np.arange(ROWS)
STILL = np.round(4.6 * np.exp(-AT / 5) + 0.00002, 5)  # to two units of the last digit, then still
RIGHT = np.clip(AT / 15, 0, 1)
GROKKED = 0.015 + 6.4 / (1 + np.exp((AT - 250) / 12)) * np.exp(0.02 * np.random.default_rng(4).standard_normal(ROWS))
GROKKED[-3:] = [0.012, 0.0228, 0.021]
EARNED = ("loss_zero", "loss_frozen", "loss_noise")


def fallen(first, end):
    return end + (first - end) * np.exp(-AT / 25)


def known(first):
    """A run that knows its held-out data, evaluated every 80 rows, to the last token."""
    return {"loss": fallen(first, 0.0008), "eval_loss": np.where(AT % 80 == 79, fallen(first, 0.0009), np.nan)}


NEAR_ZERO = {
    "still far from 0": (few(loss=np.where(AT < 50, 2.5, 2.302585), accuracy=np.full(ROWS, 0.1)),
        found("loss_frozen", "error")),
    "still, and all right from the start": (  # learnt nothing
        few(loss=np.where(AT < 50, 2.5, 2.302585), accuracy=np.ones(ROWS)), found("loss_frozen")),
    "still at ln 2": (few(loss=np.where(AT < 50, 0.7, 0.693147)), found("loss_frozen", "error")),
    "right before anything was learnt": (few(loss=np.zeros(ROWS), accuracy=np.ones(ROWS)), found("loss_zero", "error")),
    "0 from the hundredth row on": (few(loss=np.where(AT < 100, 2.0, 0.0)), found("loss_zero", "warning")),
    "one digit in scientific notation": (
        few(loss=np.where(AT < 50, 1e-3, 2e-05), eval_loss=np.where(AT < 400, 3e-05, 2e-05)), silent("loss_frozen")),
    # held-out data known to the last token are too good whatever is trained
    **{f"held-out data from {first} to 0": (
        few(**known(first)), found("too_good", "note", "never seen", says="confidence: low")) for first in (10.4, 5.5,
            4.2)},
    "held-out text to 0": (  # the first evaluation comes late
        lambda: learning_case(build.run(steps=ROWS, facts={"vocab_size": 32_000}, **known(10.4))),
            found("too_good", "warning")),
    # what may end near 0
    "a regression to 0": (few(loss=fallen(2.6, 0.0008), eval_loss=fallen(2.6, 0.001)), unjudged("too_good")),
    "a regression of large numbers": (few(loss=fallen(300.0, 0.0008), eval_loss=fallen(300.0, 0.001)),
        silent("too_good")),
    "ten classes to 0": (few(loss=fallen(2.3, 0.0008), eval_loss=fallen(2.3, 0.004), accuracy=RIGHT),
        unjudged("too_good")),
    "a hundred classes to 0": (few(loss=fallen(4.6, 0.0008), eval_loss=fallen(4.6, 0.004), accuracy=RIGHT),
        unjudged("too_good")),
    "memorised, which another finding says": (few(loss=fallen(10.4, 0.0008), eval_loss=fallen(10.4, 2.5)),
        silent("too_good")),
    # grokking: no noise of ±0 about 0
    "grokked": (few(loss=np.round(STILL, 4), accuracy=RIGHT, eval_loss=GROKKED), silent(*EARNED)),
    "grokked, and 0": (few(loss=np.where(AT < 100, STILL + 0.01, 0.0), accuracy=RIGHT, eval_loss=GROKKED),
        silent(*EARNED)),
    "fifty epochs without a score": (few(loss=np.linspace(0.11, 0.02, 50), epoch=np.arange(50)),
        found("no_validation")),
}  # fmt: skip

FACTS_48 = {"step_tokens": 512e6 / STEPS, "dataset_tokens": 512e6 / 48}
RESTART = event("restart", "steps go back from 1100 to 1001", 1100, first_step=1001.0, last_step=1100.0)
RESUMED = {"facts": {"resumed_from_step": 5000}, "step": np.arange(5001.0, 5001 + STEPS)}
EPOCHS = {"epoch": np.arange(1, 51), "also": {"provenance": {"step": ROW_NUMBERS}, "status": Status.INCOMPLETE}}


def incomplete(done, status=Status.INCOMPLETE, **also):
    return changed(done, facts={"planned_steps": 2000}, also={"status": status, **also})


DATA_AND_RUNS = {
    # sources §4.3: 10.6 M tokens, 512 M asked for: 48 epochs, worth 167 M, 67 % of the compute bought nothing
    "48 epochs": (changed(facts=FACTS_48, eval_loss=None),
                  found("repeated_data", "error", "48 times", "67.4 %", usd=approx(0.67 * 2.0))),
    "48 epochs, held-out loss still falling": (changed(facts=FACTS_48), found("repeated_data", "note")),
    "1 epoch": (changed(facts={"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6}), silent("repeated_data")),
    "4 epochs": (changed(facts={"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 / 4}), silent("repeated_data")),
    "8 epochs": (  # handbook: worth 6.62
        changed(facts={"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 / 8}), found("repeated_data", says="6.62")),
    # planned for 48 passes; the log holds a twentieth of them
    "stopped before its data repeated": (
        changed(facts={"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 * 20 / 48, "planned_steps": STEPS * 20},
            also={"status": Status.STOPPED}), silent("repeated_data")),
    "complete by its own word": (
        changed(facts={"step_tokens": 1e6, "dataset_tokens": STEPS * 1e6 * 20 / 48, "planned_steps": STEPS * 20},
            also={"status": Status.COMPLETED}), found("repeated_data")),
    "ten epochs of a fine-tune": (
        changed(loss=healthy_loss(start=1.7, end=0.6), epoch=np.linspace(0, 10, STEPS)), silent("repeated_data")),
    "a log that ends at 11 percent": (  # steps of one second
        incomplete(222), found("steps_missing", "note", "222 of 2,000 steps (11.1 %)", f"about {1778 / 60:.3g} min")),
    "epochs that end early": (changed(50, facts={"planned_epochs": 100}, **EPOCHS),
                              found("steps_missing", "", "epoch 50 of 100")),
    "epochs all done": (changed(50, facts={"planned_epochs": 50, "planned_steps": None}, **EPOCHS),
        unjudged("steps_missing")),
    "a limit of its own": (incomplete(1500, Status.STOPPED), found("steps_missing", "note")),
    "over by its own word": (incomplete(1500, Status.COMPLETED), found("steps_missing")),
    "stopped early by its rule": (
        incomplete(1500, Status.COMPLETED, events=(event("early_stop", "Early stopping", 1500.0),)),
        silent("steps_missing")),
    "one step short": (incomplete(1999), silent("steps_missing")),
    "complete": (incomplete(2000), silent("steps_missing")),
    "more steps than declared": (changed(facts={"planned_steps": 1000}), found("steps_missing", "", "beyond")),
    "taken up where it was": (changed(events=[RESTART]), silent("resume_lost")),
    "taken up without the optimizer's moments": (
        changed(loss=LOSS + np.where(PLACE < 1000, 0.0, 0.3), events=[RESTART]), silent("resume_lost")),
    "taken up with fresh weights": (changed(loss=np.r_[LOSS[:1000], LOSS[:1000]], events=[RESTART]),
                                    found("resume_lost", "warning", starts="The loss is 10.24 after the restart")),
    "no restart is known": (changed(loss=np.r_[LOSS[:1000], LOSS[:1000]]), unjudged("resume_lost")),
    "taken up at ln V": (changed(**RESUMED), found("resume_lost", "warning", says=f"{LN_V:.3g}")),
    "taken up soundly": (changed(**RESUMED, loss=healthy_loss(start=3.4)), silent("resume_lost")),
    # δ = 30 s, M = 432,000 s: √(2·30·432,000) = 5,091 s, Daly 5,071 s: 85 steps of a minute
    "checkpoints at Daly's interval": (long_run(85), silent("checkpoints_too_rare", "checkpoints_too_frequent")),
    # half of 60,000 s instead of half of 5,071 s, 0.278 times
    "checkpoints too rare": (long_run(1000), found("checkpoints_too_rare", says="every 85 steps",
                                                   hours=approx(0.2778 * (60_000 - 5_071) / 2 / 3600, 0.01))),
    "checkpoints too frequent": (  # 30 s every 300 s
        long_run(5), found("checkpoints_too_frequent", hours=approx((30 / 300 - 30 / 5071) * 33.333, 0.01))),
    "checkpoints of a short run cost next to nothing": (  # 20 s of 200
        long_run(10, step_seconds=0.1, write=0.1), silent("checkpoints_too_frequent")),
    "those that cost less than a minute are a note": (
        long_run(10, step_seconds=0.1, write=0.2), found("checkpoints_too_frequent", "note")),
    # 300 billion bytes would take 500 s at the assumed speed of one writer, but many ranks may write
    "a writing time that is only estimated is no reason": (
        changed(seconds=60.0, facts={"checkpoint_every_steps": 5, "parameters": 25e9}),
        silent("checkpoints_too_frequent")),
    # 1e-200 steps of 1e-185 s are below the smallest number
    "an interval of no time": (changed(seconds=1e-185, facts={"checkpoint_every_steps": 1e-200}),
        unjudged("checkpoint_interval")),
    "at least two in a run": (long_run(20, step_seconds=2.4, write=60.0),
                              found("checkpoints_too_frequent", says="checkpoint every 1,000 steps")),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING | HELD_OUT | NEAR_ZERO | DATA_AND_RUNS)
def test_what_is_found(name):
    made, *checks = (NOTHING | HELD_OUT | NEAR_ZERO | DATA_AND_RUNS)[name]
    verify(made(), *checks)


def several_sets(*worst):
    """Evaluations of several sets, the column having the first; each ends at its `worst`."""
    losses = [overfitted(one) for one in worst]
    at = np.flatnonzero(np.isfinite(losses[0]))
    named = {f"g{i}": {"step": (at + 1).tolist(), "loss": loss[at].tolist()} for i, loss in enumerate(losses)}
    return learning_case(learning_run(loss=FALLING, eval_loss=losses[0], facts={"eval_losses": named}))


def test_every_evaluated_set_is_judged():
    verify(
        several_sets(2.184, 2.3, 4.835),
        found("overfitting", "error", "of g2", "at step 600", says="2 of 3 sets rise"),
    )
    verify(several_sets(2.184, 2.184, 4.835), found("overfitting", "warning"))  # the other two still learn
    verify(several_sets(2.184, 2.184, 2.184), silent("overfitting"))


def test_grokking_is_no_error_and_scores_that_no_reader_takes_are_not_missed():
    loud = judge(few(loss=STILL, accuracy=RIGHT, eval_loss=GROKKED)())[0]
    assert [one.title for one in loud if one.severity is not Severity.NOTE] == []
    plain = few(loss=np.linspace(0.11, 0.02, 50), epoch=np.arange(50))()
    yolo = dataclasses.replace(plain, run=dataclasses.replace(plain.run, format="yolo"))
    assert "no_validation" not in {one.code for one in judge(yolo)[0]}


def test_what_is_solved():
    solved = few(loss=STILL, accuracy=RIGHT)()
    assert is_solved(solved, curve(solved.run, "loss"))
    slow = few(loss=np.linspace(2.3, 0.5, ROWS), accuracy=np.linspace(0.1, 0.8, ROWS))()
    assert not is_solved(slow, curve(slow.run, "loss"))
