"""Runs that were taken up again: whether they went on where they had stopped."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import Curve, curve, row_noise
from advisor.findings.loss_kind import has_level
from advisor.findings.run_facts import nats_per_unit, number, restarts, vocabulary
from advisor.laws.initial_loss import FAULT_BELOW, uniform_loss

_FEWEST = 5  # rows before and after
_LOST = 0.5  # of all that was learnt by then
_NOISES = 6.0  # standard deviations of a row


def detect_resume_lost(case: Case) -> Verdict:
    """A run taken up again whose loss is not where it had been: the weights were not loaded, or others were."""
    losses = curve(case.run, "loss")
    if not len(losses) or not has_level(case, losses):
        return Insufficient(code="resume_lost", missing="a training loss, none of a policy")
    step, vocab, unit = number(case.run.facts, "resumed_from_step"), vocabulary(case), nats_per_unit(case.run)
    resumed = [event.numbers.get("first_step") for event in restarts(case.run)]
    resumed += [step + 1] if step else []
    found = [jump for at in resumed if (jump := _jump(losses, at))]
    if found:
        again, before, after = max(found, key=lambda jump: jump[2] - jump[1])
        return _finding(again, after, f"{after:.4g} after it, {before:.4g} before")
    if not step or vocab is None or unit is None:
        return (
            None if restarts(case.run) else Insufficient(code="resume_lost", missing="a restart, with losses about it")
        )
    since = losses.value[losses.step > step] if losses.counted else losses.value
    if not len(since) or losses.step[-len(since)] > step + 2 * _FEWEST:
        return None  # no row of what was done since
    first = float(since[0])
    if first * unit < uniform_loss(vocab) - FAULT_BELOW:
        return None
    return _finding(step, first, f"first loss {first:.4g}; knowing nothing gives ln {vocab:,}")


def _jump(losses: Curve, step: float | None) -> tuple[float, float, float] | None:
    """The step with the level before and after it, where most of what was learnt is gone; None where it is not."""
    if step is None or not losses.counted:
        return None
    left, right = losses.value[losses.step < step][-_FEWEST:], losses.value[losses.step >= step][:_FEWEST]
    if len(left) < _FEWEST or not len(right):
        return None
    before, after = float(np.median(left)), float(np.median(right))
    learnt = float(losses.value[0]) - before
    lost = after - before > max(_LOST * learnt, _NOISES * row_noise(losses.value), 0.0)
    return (step, before, after) if lost and learnt > 0 else None


def _finding(step: float, after: float, text: str) -> Finding:
    return Finding(
        code="resume_lost",
        severity=Severity.WARNING,
        title=f"Taken up again at step {step:g}, the loss is {after:.4g}: what had been learnt is not there",
        evidence=(Evidence(text=text, first_step=step),),
        confidence=Confidence.HIGH,
        causes=(
            "the checkpoint was not loaded, or only in part (strict=False, another prefix of the names)",
            "the checkpoint of another run, or weights that were saved before they were trained",
        ),
        actions=("evaluate the loaded checkpoint before the first step: its loss has to be the one it was saved with",),
        threshold=f"{_LOST:.0%} of what was learnt by then and {_NOISES:g} deviations of a row; or ln V after a resume",
    )
