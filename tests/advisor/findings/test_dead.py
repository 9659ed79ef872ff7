"""Training that moves nothing, and losses too good to be true: each beside a run in which all is well."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from advisor.findings.case import Case, Finding, Insufficient, Severity
from advisor.findings.detectors.first_loss import detect_too_good
from advisor.findings.detectors.nothing_learnt import (
    detect_frozen,
    detect_hardly_learns,
    detect_loss_zero,
    detect_stuck_accuracy,
)
from advisor.findings.detectors.rewards import detect_dead_signal, detect_reward_collapse, detect_reward_flat
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run
from tests.advisor.findings import build
from tests.advisor.findings.build_learning import STEPS, healthy_loss, learning_case, learning_run

SEED = 9


def every(values) -> np.ndarray:
    """These evaluations, evenly over the run."""
    column = np.full(STEPS, np.nan)
    column[np.linspace(STEPS // len(values) - 1, STEPS - 1, len(values)).astype(int)] = values
    return column


@pytest.mark.parametrize(
    "detector",
    [detect_frozen, detect_dead_signal, detect_stuck_accuracy, detect_reward_collapse, detect_hardly_learns,
     detect_too_good],
)  # fmt: skip
def test_a_healthy_run_is_silent(detector):
    healthy = learning_run(
        accuracy=np.linspace(0.05, 0.45, STEPS),
        epoch=np.linspace(0, 1, STEPS),
        eval_accuracy=np.linspace(0.05, 0.4, STEPS),
    )
    assert not isinstance(detector(learning_case(healthy)), Finding)


def test_a_validation_loss_that_repeats_to_the_last_digit():
    found = detect_frozen(learning_case(learning_run(4, loss=[10.1, 10.48, 10.48, 10.48], eval_loss=11.568633)))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR and "last 4 rows" in found.title


def test_rounded_losses_repeat_by_chance():
    rounded = learning_run(loss=np.round(healthy_loss(), 1), eval_loss=every([3.5, 3.4, 3.3, 3.3, 3.3]))
    assert detect_frozen(learning_case(rounded)) is None


def test_policy_losses_of_exactly_0():
    loss = np.where(np.arange(40) % 10 == 0, 0.03, 0.0)
    table = learning_run(40, loss=loss, eval_loss=None, facts={"loss_unit": "policy gradient"})
    found = detect_dead_signal(learning_case(table))
    assert isinstance(found, Finding) and "90%" in found.title
    assert found.severity is Severity.NOTE  # used once, a batch has a policy loss of 0 by construction
    unrewarded = learning_run(40, loss=loss, reward=np.where(np.arange(40) == 7, 0.25, 0.0), eval_loss=None)
    assert detect_dead_signal(learning_case(unrewarded)).severity is Severity.WARNING
    late = learning_run(40, loss=loss, reward=np.where(np.arange(40) > 18, 0.5, 0.0), eval_loss=None)
    assert detect_dead_signal(learning_case(late)) is None  # found at last
    alive = learning_run(
        40,
        loss=0.01 * np.random.default_rng(SEED).standard_normal(40),
        reward=np.linspace(0.1, 0.6, 40),
        eval_loss=None,
    )
    assert detect_dead_signal(learning_case(alive)) is None


def test_an_accuracy_that_stays_while_the_loss_falls():
    table = learning_run(
        50, loss=np.linspace(11.2, 8.7, 50), accuracy=0.067 + 0.001 * np.random.default_rng(SEED).random(50)
    )
    found = detect_stuck_accuracy(learning_case(table))
    assert isinstance(found, Finding) and found.title.startswith("Accuracy stays at 6.7")
    solved = learning_run(
        50, loss=np.linspace(0.1, 0.05, 50), accuracy=0.985 + 0.001 * np.random.default_rng(SEED).random(50)
    )
    assert detect_stuck_accuracy(learning_case(solved)) is None


def test_a_reward_that_collapses():
    rewards = [-56.0, -7.0, -6.1, -5.9, -5.85, -5.8, -5.83, -11.0, -37.0, -23.0, -17.0]
    found = detect_reward_collapse(learning_case(learning_run(eval_reward=every(rewards))))
    assert isinstance(found, Finding) and "-5.8 at step" in found.title and "keep the checkpoint" in found.actions[0]
    noisy = learning_run(eval_reward=every([*rewards[:7], -5.9, -5.86, -5.84, -5.95]))
    assert detect_reward_collapse(learning_case(noisy)) is None
    rollouts = np.linspace(0, 1, STEPS) + 0.3 * np.random.default_rng(SEED).standard_normal(STEPS)
    assert detect_reward_collapse(learning_case(learning_run(reward=rollouts))) is None


def test_a_language_model_that_hardly_learns():
    slow = learning_run(60, loss=np.linspace(11.2, 8.66, 60), epoch=np.arange(60), eval_loss=None)
    found = detect_hardly_learns(learning_case(slow))
    assert isinstance(found, Finding) and "8." in found.title
    soon = learning_run(60, loss=np.linspace(11.2, 8.66, 60), epoch=np.linspace(0, 0.2, 60), eval_loss=None)
    assert detect_hardly_learns(learning_case(soon)) is None  # too early to say


def solved(steps: int, epochs: float | None) -> Case:
    loss = 0.5 * np.exp(-np.arange(steps) / 15)
    epoch = np.linspace(0, epochs, steps) if epochs else None
    return learning_case(learning_run(steps, loss=loss, epoch=epoch, eval_loss=None, facts={"vocab_size": 32000}))


def test_solved_within_the_first_epoch_is_too_good_to_be_true():
    found = detect_too_good(solved(375, 3.0))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.title.startswith("Too good to be true") and any("leak" in cause for cause in found.causes)
    assert isinstance(detect_too_good(solved(375, None)), Finding)  # nothing is left of it


def test_solved_after_many_epochs_is_memorised_and_a_regression_may_end_near_0():
    assert detect_too_good(solved(375, 30.0)) is None
    case = solved(375, 3.0)
    plain = dataclasses.replace(case.run, facts={}, format="keras", framework=None)
    assert isinstance(detect_too_good(dataclasses.replace(case, run=plain)), Insufficient)


def test_a_training_loss_of_zero_is_no_success():
    found = detect_loss_zero(epochs(loss=[0.02, 0.001, 0, 0, 0, 0], eval_loss=[0.15] * 6))
    assert found.severity is Severity.WARNING and "0.15" in found.title and "4 of 6" in found.title
    assert detect_loss_zero(epochs(loss=[0.0] * 6)).severity is Severity.ERROR
    assert detect_loss_zero(epochs(loss=[0.5, 0.1, 0, 0, 0], eval_loss=[0.5, 0.1, 0.01, 0.001, 0.001])).severity is (
        Severity.NOTE
    )
    assert detect_loss_zero(epochs(loss=[0.5, 0.1, 0, 0, 0.1])) is None
    unused = detect_loss_zero(epochs(loss=[0.0] * 6, eval_loss=[1.445e-7, 1.444e-7, 1.443e-7] * 2))
    assert unused.severity is Severity.NOTE  # the column is not what is learnt by: nothing is left to learn
    assert isinstance(detect_loss_zero(epochs(loss=[0.0] * 6, reward=[0.1] * 6)), Insufficient)


def epochs(**columns) -> Case:
    steps = len(columns["loss"])
    return learning_case(build.run(steps=steps, **{name: np.array(column) for name, column in columns.items()}))


def test_a_reward_that_does_not_rise_is_told_from_one_that_does():
    scatter = 0.1 * np.random.default_rng(SEED).standard_normal(300)

    def of(level) -> object:
        return detect_reward_flat(learning_case(build.run(steps=300, loss=None, reward=level + scatter)))

    assert of(0.35).code == "reward_flat"
    assert of(np.linspace(0.2, 0.5, 300)) is None
    assert of(np.where(np.arange(300) < 200, np.linspace(0.2, 0.9, 300), 0.3)) is None  # lost again: another finding
    assert isinstance(detect_reward_flat(learning_case(build.run(steps=60, reward=0.3))), Insufficient)


def test_an_accuracy_of_single_batches_without_a_trend_is_stuck_where_the_loss_does_not_fall():
    scores = np.clip(0.1 + 0.08 * np.random.default_rng(SEED).standard_normal(40), 0, 0.4)
    flat = 2.7 + 0.4 * np.random.default_rng(SEED).standard_normal(40)
    found = detect_stuck_accuracy(learning_case(build.run(steps=40, accuracy=scores, loss=flat)))
    assert found.code == "accuracy_stuck" and "does not rise" in found.title
    falling = build.run(steps=40, accuracy=scores, loss=np.linspace(3.5, 1.5, 40))
    assert detect_stuck_accuracy(learning_case(falling)) is None
    rising = build.run(steps=40, accuracy=np.linspace(0.1, 0.3, 40), loss=flat)
    assert detect_stuck_accuracy(learning_case(rising)) is None


def test_held_out_text_that_is_known_almost_entirely_is_too_good():
    evals = every([10.8, 0.02, 0.012, 0.011])
    found = detect_too_good(learning_case(learning_run(eval_loss=evals)))
    assert found.severity is Severity.WARNING and "validation loss 10.8" in found.title
    assert not isinstance(detect_too_good(learning_case(learning_run(eval_loss=every([10.8, 1.2, 1.0, 0.9])))), Finding)


@pytest.mark.parametrize("printed, found", [("1.00", True), ("1.4e0", False), ("17.31", False), ("0.5", False)])
def test_a_perplexity_that_no_text_has(tmp_path, printed, found):
    rows = [f"{{'loss': {1.6 / n:.4f}, 'learning_rate': 1e-05, 'epoch': {n / 5:.1f}}}" for n in range(1, 15)]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*rows, f"Perplexity: {printed}"]) + "\n")
    assert isinstance(detect_too_good(make_case(read_run(path))), Finding) == found
