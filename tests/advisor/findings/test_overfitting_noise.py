"""Validation losses that rose at the end by chance, or while the score that counts stayed."""

import numpy as np
import pytest

from advisor.findings.case import Finding, Severity
from advisor.findings.detectors.first_loss import detect_too_good
from advisor.findings.detectors.held_out import detect_overfitting
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run


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
        ([1.15, 1.06, 1.03, 1.02, 1.035, 1.05], "best at step 4 (1.02) and 1.05 at the end"),
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
