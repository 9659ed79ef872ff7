"""Logs of several runs; validation losses that rose at the end by chance."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.first_loss import detect_too_good
from advisor.findings.detectors.held_out import detect_overfitting
from advisor.findings.detectors.runs import (
    detect_failed_runs,
    detect_other_runs,
    detect_same_results,
    detect_several_runs,
)
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run
from advisor.readers.run_table import Phase, RunPart, Status
from tests.advisor.findings.build_learning import learning_case, learning_run

ROWS = 40
SEED = 6


def log_of(*losses: np.ndarray):
    """Runs one after the other, each a phase of a classifier's log; the last is the main one."""
    phases = tuple(
        Phase(name=f"run {n + 1}", first_row=ROWS * n, last_row=ROWS * (n + 1) - 1) for n in range(len(losses))
    )
    table = learning_run(
        ROWS * len(losses), loss=np.concatenate(losses), step=np.tile(np.arange(1.0, ROWS + 1), len(losses)),
        eval_loss=None, grad_norm=None, learning_rate=None, phases=phases, main_phase=len(losses) - 1,
    )  # fmt: skip
    table.facts.clear()
    return learning_case(table)


def learns(seed: int) -> np.ndarray:
    return 2.3 * np.exp(-np.arange(ROWS) / 15) + 0.02 * np.random.default_rng(seed).random(ROWS)


def test_a_sound_sweep():
    sweep = log_of(*(learns(n) for n in range(4)))
    found = detect_several_runs(sweep)
    assert (
        isinstance(found, Finding)
        and found.severity is Severity.NOTE
        and found.title.startswith("The log holds 4 runs")
    )
    assert detect_other_runs(sweep) is None and detect_same_results(sweep) is None


def test_one_run_is_one():
    single = log_of(learns(1))
    assert detect_several_runs(single) is None
    assert detect_other_runs(single) is None and detect_same_results(single) is None


def test_a_run_beside_the_longest_that_only_guesses():
    flat = math.log(10) + 0.003 * np.random.default_rng(SEED).standard_normal(ROWS)
    found = detect_other_runs(log_of(learns(1), flat, learns(2)))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.title.startswith("1 of the log's 2 other runs went wrong: “run 2”: No learning")


def test_settings_that_change_nothing():
    a, b = learns(1), learns(2)
    found = detect_same_results(log_of(a, b, a, b, learns(3)))
    assert isinstance(found, Finding) and found.title.startswith("4 of 5 runs")
    begins_alike = np.r_[a[:10], learns(4)[10:]]
    assert detect_same_results(log_of(a, begins_alike)) is None


def test_a_start_at_the_end_of_a_log_may_still_be_starting():
    trained = RunPart(name="1", status=Status.COMPLETED, status_reason="done", phase=0)
    failed = RunPart(name="2", status=Status.CRASHED, status_reason="a folder that exists")
    begun = RunPart(name="3", status=Status.NO_END, status_reason="its header alone")

    def of(*runs: RunPart):
        case = log_of(learns(1))
        return detect_failed_runs(dataclasses.replace(case, run=dataclasses.replace(case.run, runs=runs)))

    assert of(trained, failed, begun) is None
    assert of(trained, failed, begun, failed).title == "3 of 4 runs in this log ended before their first step"


def found(tmp_path, losses, scores):
    """Ten epochs of a classifier whose training loss falls to a tenth."""
    train = np.geomspace(0.5, 0.05, len(losses))
    path = tmp_path / "train.log"
    path.write_text("".join(
        f"Epoch {n}: train loss {t:.4f} val loss {v:.4f} val acc {a:.4f}\n"
        for n, (t, v, a) in enumerate(zip(train, losses, scores, strict=True), 1)
    ))  # fmt: skip
    return detect_overfitting(make_case(read_run(path)))


@pytest.mark.parametrize(
    "after, severity",
    [((0.09,), None), ((0.1, 0.2, 0.3, 0.4), Severity.ERROR)],  # once worse; worse and worse, above its first
)
def test_one_worse_evaluation_behind_the_best_is_chance(tmp_path, after, severity):
    losses = [0.25, 0.2, 0.15, 0.12, 0.1, 0.06, *after]
    scores = [0.8] * 5 + [0.9] + [0.85] * len(after)
    verdict = found(tmp_path, losses, scores)
    assert (verdict.severity if isinstance(verdict, Finding) else None) == severity


@pytest.mark.parametrize("last, severity", [(0.895, Severity.NOTE), (0.8, Severity.ERROR)])
def test_a_score_that_stays_makes_a_rising_loss_a_note(tmp_path, last, severity):
    losses = [0.25, 0.2, 0.12, 0.06, 0.1, 0.15, 0.2, 0.26, 0.3, 0.35]
    verdict = found(tmp_path, losses, [0.8, 0.85, 0.88, 0.9, *[last] * 6])
    assert isinstance(verdict, Finding) and verdict.severity is severity


def course(noise: float, rise: float, number: int) -> list[float]:
    """A validation loss that is best at two fifths of the run, then rises by this share, with noise."""
    place = np.linspace(0, 1, number)
    level = np.where(place < 0.4, 2 + 0.5 * (1 - place / 0.4) ** 2, 2 * (1 + rise * (place - 0.4) / 0.6))
    return list(level * (1 + noise * np.random.default_rng(0).standard_normal(number)))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([1.15, 1.06, 1.03, 1.02, 1.035, 1.05], "best at step 4 (1.02), then rises to 1.05"),
        ([1.15, 1.06, 1.03, 1.02, 1.025, 1.03], ""),  # by 1 %: chance
        ([1.15, 1.02, 1.06, 1.03, 1.035, 1.05], ""),  # up and down
        (course(0.01, 0.02, 40), "Overfitting"),  # by two standard deviations of an evaluation
        (course(0.01, 0.0, 40), ""),
        (course(0.03, 0.0, 100), ""),
    ],
)
def test_a_slow_rise_after_the_best_is_a_note(tmp_path, losses, said):
    train = np.geomspace(2.5, 1.0, len(losses))
    path = tmp_path / "sft.log"
    path.write_text("".join(
        f"step {n} | loss {t:.4f} | val loss {v:.4f}\n" for n, (t, v) in enumerate(zip(train, losses, strict=True), 1)
    ))  # fmt: skip
    verdict = detect_overfitting(make_case(read_run(path)))
    assert (said in verdict.title and verdict.severity is Severity.NOTE) if said else not isinstance(verdict, Finding)


@pytest.mark.parametrize("printed, too_good", [("1.00", True), ("1.4e0", False), ("17.31", False), ("0.5", False)])
def test_a_perplexity_that_no_text_has(tmp_path, printed, too_good):
    rows = [f"{{'loss': {1.6 / n:.4f}, 'learning_rate': 1e-05, 'epoch': {n / 5:.1f}}}" for n in range(1, 15)]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*rows, f"Perplexity: {printed}"]) + "\n")
    assert isinstance(detect_too_good(make_case(read_run(path))), Finding) == too_good
