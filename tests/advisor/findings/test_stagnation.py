"""Losses that stand still, and training losses against validation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors.held_out import (
    detect_accuracy_gap,
    detect_memorised,
    detect_overfitting,
    detect_scores_at_chance,
)
from advisor.findings.detectors.nothing_learnt import (
    detect_no_learning,
    detect_noise_floor,
    detect_preference_at_chance,
)
from advisor.readers.run_table import Status
from tests.advisor.findings.build import event
from tests.advisor.findings.build_learning import LN_V, STEPS, healthy_loss, learning_case, learning_run


def noise(steps: int = STEPS, size: float = 0.05) -> np.ndarray:
    return size * np.random.default_rng(2).standard_normal(steps)


def test_a_flat_loss_is_no_learning_and_costs_the_whole_run():
    found = detect_no_learning(learning_case(learning_run(loss=LN_V + noise())))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.saved_hours is not None and found.saved_hours.value == pytest.approx(STEPS / 3600, rel=0.02)


def test_a_small_drift_with_a_rate_of_zero_is_no_learning():
    # O-LoRA's log: learning rate 0 in all 62 rows, 22.0 → 21.3
    loss = np.linspace(22.0, 21.3, 62) + noise(62, 0.3)
    found = detect_no_learning(learning_case(learning_run(62, loss=loss, learning_rate=np.zeros(62))))
    assert isinstance(found, Finding) and "0 in every row" in found.causes[0]
    assert detect_no_learning(learning_case(learning_run(62, loss=loss))) is None


def test_preference_training_at_ln_2():
    table = learning_run(16, loss=np.linspace(0.6922, 0.6804, 16), framework="TRL", eval_loss=None)
    found = detect_preference_at_chance(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    # loss = ln(1 + e^−m): 0.6807 (median of the last rows) is a margin of 0.025
    end = float(np.median(np.linspace(0.6922, 0.6804, 16)[-3:]))
    assert math.log1p(math.exp(-float(found.evidence[0].text.split("margin of ")[1].split()[0]))) == pytest.approx(
        end, abs=5e-4
    )


def test_preference_training_that_learns_is_silent():
    table = learning_run(50, loss=np.linspace(0.6922, 0.31, 50), framework="TRL")
    assert detect_preference_at_chance(learning_case(table)) is None


def test_a_classifier_starting_at_ln_2_is_no_preference_run():
    assert detect_preference_at_chance(learning_case(learning_run(50, loss=np.full(50, 0.6931)))) is None


def test_a_noisy_last_row_is_not_the_result():
    loss = healthy_loss(noise=0.1)
    loss[-1] = 3.75
    found = detect_noise_floor(learning_case(learning_run(loss=loss)))
    assert isinstance(found, Finding) and "3.75" in found.title
    assert float(found.title.split("±")[1].split()[0]) == pytest.approx(0.1, rel=0.15)


def overfitted(worst: float) -> np.ndarray:
    """Validation every 100 steps: best (2.184) at step 600, then up to `worst` at 2,000."""
    values = np.full(STEPS, np.nan)
    values[99::100] = np.r_[np.linspace(3.76, 2.184, 6), np.linspace(2.184, worst, 15)[1:]]
    return values


def test_overfitting_names_the_best_step_and_what_came_after():
    table = learning_run(loss=np.linspace(1.1, 0.05, STEPS), eval_loss=overfitted(4.835))
    found = detect_overfitting(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.evidence[0].first_step == 600
    assert found.saved_usd is not None and found.saved_usd.value == pytest.approx(1.4, rel=0.02)  # 1,400 s at $3.60/h


def test_what_breaks_is_no_overfitting():
    table = learning_run(loss=np.linspace(1.1, 0.05, STEPS), eval_loss=overfitted(4.835))
    broken = dataclasses.replace(table, status=Status.DIVERGED)
    assert detect_overfitting(learning_case(broken)) is None


def test_a_small_rise_is_a_warning():
    table = learning_run(loss=np.linspace(1.1, 0.9, STEPS), eval_loss=overfitted(2.3))
    found = detect_overfitting(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING


def several_sets(*worst: float):
    """Evaluations of several sets, the column having the first; each ends at its `worst`."""
    step = np.arange(1, STEPS + 1)
    losses = [overfitted(one) for one in worst]
    kept = [np.isfinite(loss) for loss in losses]
    named = {
        f"g{i}": {"step": step[good].tolist(), "loss": loss[good].tolist()}
        for i, (loss, good) in enumerate(zip(losses, kept, strict=True))
    }
    return learning_run(loss=np.linspace(1.1, 0.05, STEPS), eval_loss=losses[0], facts={"eval_losses": named})


def test_every_evaluated_set_is_judged():
    found = detect_overfitting(learning_case(several_sets(2.184, 2.3, 4.835)))
    assert isinstance(found, Finding) and "of g2" in found.title and "at step 600" in found.title
    assert any("2 of 3 sets rise" in one.text for one in found.evidence) and found.severity is Severity.ERROR
    one_of_three = detect_overfitting(learning_case(several_sets(2.184, 2.184, 4.835)))
    assert one_of_three.severity is Severity.WARNING  # the other two still learn
    assert detect_overfitting(learning_case(several_sets(2.184, 2.184, 2.184))) is None


def test_both_losses_rising_is_not_overfitting():
    loss = np.r_[np.linspace(3.5, 2.0, 600), np.linspace(2.0, 4.6, 1400)]
    assert detect_overfitting(learning_case(learning_run(loss=loss, eval_loss=overfitted(4.8)))) is None


def test_an_evaluation_before_the_training_shows_no_gap():
    """MLX evaluates at its first iteration, before anything was learnt."""
    loss, evaluated = np.linspace(2.5, 0.5, 200), np.full(200, np.nan)
    evaluated[0] = 2.9
    first = learning_run(200, loss=loss, eval_loss=evaluated)
    found = detect_overfitting(learning_case(first))
    assert isinstance(found, Insufficient)
    last = learning_run(200, loss=loss, eval_loss=evaluated[::-1])
    assert isinstance(detect_overfitting(learning_case(last)), Finding)


def test_one_validation_loss_far_above_is_a_gap():
    # W&B summary: val 2.449, train 0.895
    table = learning_run(1, loss=[0.895], eval_loss=[2.449], learning_rate=None, grad_norm=None)
    found = detect_overfitting(learning_case(table))
    assert isinstance(found, Finding) and found.code == "generalisation_gap"
    near = learning_run(1, loss=[3.2], eval_loss=[3.25], learning_rate=None, grad_norm=None)
    assert isinstance(detect_overfitting(learning_case(near)), Insufficient)


def test_a_part_of_a_loss_that_rises_is_a_note_that_saves_nothing():
    table = learning_run(loss=np.linspace(1.1, 0.7, STEPS), eval_loss=overfitted(4.8), facts={"loss_unit": "boxes"})
    found = detect_overfitting(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and found.saved_hours is None
    assert "measure that counts" in found.actions[0]


def test_without_evaluations_overfitting_cannot_be_judged():
    assert isinstance(detect_overfitting(learning_case(learning_run(eval_loss=None))), Insufficient)


def test_memorised_data():
    epochs = np.linspace(0, 10, 900)
    loss = 3.5039 * np.exp(-epochs) + 0.0001
    found = detect_memorised(learning_case(learning_run(900, loss=loss, eval_loss=None, epoch=epochs)))
    assert isinstance(found, Finding) and "10 epochs" in found.evidence[1].text
    # 3.5·e^−x under 0.05 from x = 4.25 on, row 383
    assert found.evidence[0].first_step == pytest.approx(383, abs=2)


def test_a_solved_task_is_not_memorised():
    loss = np.r_[2.3 * np.exp(-np.linspace(0, 8, 900))]
    evals = np.where(np.arange(900) % 50 == 49, loss + 0.02, np.nan)
    assert detect_memorised(learning_case(learning_run(900, loss=loss, eval_loss=evals))) is None


def test_scores_that_guessing_reaches():
    table = dataclasses.replace(learning_run(), events=(event("score", "eval", 2000.0, hellaswag=0.2541, piqa=0.61),))
    found = detect_scores_at_chance(learning_case(table))
    assert isinstance(found, Finding) and "hellaswag" in found.title and "piqa" not in found.title
    assert found.title.startswith("1 of 2 scores at chance") and found.severity == "note"


def test_a_real_score_is_silent_and_none_is_insufficient():
    table = dataclasses.replace(learning_run(), events=(event("score", "eval", 2000.0, hella=0.3054),))
    assert detect_scores_at_chance(learning_case(table)) is None
    assert isinstance(detect_scores_at_chance(learning_case()), Insufficient)


def flat_after(share: float, size: float) -> np.ndarray:
    level = healthy_loss(noise=0.0)
    return np.maximum(level, level[int(share * STEPS)]) + noise(size=size)


def test_a_flat_fine_tune_is_no_error():
    late = detect_no_learning(learning_case(learning_run(loss=2.1 + noise())))
    assert isinstance(late, Finding) and late.severity is Severity.NOTE and late.saved_hours is None


def test_a_classifier_that_guesses_does_not_learn():
    table = learning_run(50, loss=math.log(10) + noise(50, 0.004), eval_loss=None)
    table.facts.clear()
    found = detect_no_learning(learning_case(table))
    assert isinstance(found, Finding) and found.severity is Severity.ERROR
    assert found.title.endswith("as guessing among 10 classes gives")


def test_a_last_row_far_outside_the_noise_is_no_noise():
    loss = healthy_loss(noise=0.1)
    loss[-1] = 9.0
    assert detect_noise_floor(learning_case(learning_run(loss=loss))) is None


def few_evaluations(*values: float) -> np.ndarray:
    evals = np.full(STEPS, np.nan)
    evals[np.linspace(STEPS // len(values) - 1, STEPS - 1, len(values)).astype(int)] = values
    return evals


def test_few_evaluations_that_rise_steadily_are_overfitting_a_single_one_is_not():
    falling = np.linspace(1.1, 0.26, STEPS)
    rises = few_evaluations(0.7, 0.58, 0.52, 0.495, 0.4853, 0.487, 0.489, 0.4905, 0.4917)
    found = detect_overfitting(learning_case(learning_run(loss=falling, eval_loss=rises)))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE and "0.4853" in found.title
    assert found.saved_hours is None
    last = few_evaluations(0.74, 0.715, 0.7206)
    assert detect_overfitting(learning_case(learning_run(loss=falling, eval_loss=last))) is None


def test_a_classifier_whose_accuracy_still_rises_is_not_overfitting_badly():
    falling, scores = np.linspace(2.3, 0.05, STEPS), np.full(STEPS, np.nan)
    evals = overfitted(3.2)
    scores[np.isfinite(evals)] = np.linspace(0.4, 0.84, int(np.isfinite(evals).sum()))
    found = detect_overfitting(learning_case(learning_run(loss=falling, eval_loss=evals, eval_accuracy=scores)))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE


def test_within_an_epoch_nothing_is_memorised():
    loss = 10.8 * np.exp(-np.arange(STEPS) / 100) + 0.01
    early = learning_run(loss=loss, eval_loss=None, epoch=np.linspace(0, 0.9, STEPS))
    assert detect_memorised(learning_case(early)) is None
    late = learning_run(loss=loss, eval_loss=None, epoch=np.linspace(0, 9, STEPS))
    assert isinstance(detect_memorised(learning_case(late)), Finding)


def test_an_accuracy_gap_is_a_note_and_a_warning_where_it_has_grown_at_the_cost_of_new_data():
    scores = {"accuracy": np.linspace(0.5, 0.99, STEPS)}
    at = np.isfinite(overfitted(3.0))
    held_out = np.full(STEPS, np.nan)
    held_out[at] = np.r_[np.linspace(0.5, 0.78, 6), np.linspace(0.78, 0.70, 14)]
    found = detect_accuracy_gap(learning_case(learning_run(**scores, eval_accuracy=held_out)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING and "78.0%" in found.title
    held_out[at] = np.linspace(0.5, 0.91, 20)
    mild = detect_accuracy_gap(learning_case(learning_run(**scores, eval_accuracy=held_out)))
    assert mild.severity is Severity.NOTE
    held_out[at] = np.linspace(0.5, 0.97, 20)
    assert detect_accuracy_gap(learning_case(learning_run(**scores, eval_accuracy=held_out))) is None


def test_a_healthy_run_is_silent():
    case = learning_case()
    for detector in (detect_no_learning, detect_preference_at_chance, detect_noise_floor):
        assert detector(case) is None
    assert detect_overfitting(case) is None
    assert detect_memorised(case) is None
