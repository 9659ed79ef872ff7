"""Data: how often they are repeated, and what the repetition costs."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Case, Verdict, finding, lacking
from advisor.findings.curves import curve
from advisor.findings.run_facts import from_scratch, number, planned_steps, step_tokens, steps_done, vocabulary
from advisor.findings.savings import cost_of_steps, stake_steps
from advisor.prediction import loss
from advisor.readers.run_table import Status
from advisor.units import format_percent

_LITTLE = 0.15  # of the compute; users who repeat a small data set five times know this


def training_tokens(case: Case) -> float | None:
    """Return the tokens of the whole run, planned or else done, or None if steps or tokens per step are unknown."""
    steps, per_step = planned_steps(case) or steps_done(case.run), step_tokens(case)
    if steps and per_step:
        return steps * per_step
    tokens = curve(case.run, "tokens").value
    return float(tokens.max()) if len(tokens) else None


def epochs_of(case: Case) -> float | None:
    """Return the passes over the data in the whole run: tokens over unique tokens, or else as printed or planned."""
    tokens, unique = training_tokens(case), number(case.run.facts, "dataset_tokens")
    if tokens and unique:
        return tokens / unique
    printed = curve(case.run, "epoch").value
    planned = number(case.run.facts, "planned_epochs")
    counts = [x for x in (planned, float(printed.max()) if len(printed) else None) if x]
    return max(counts) if counts else None


def _ended_before(case: Case, epochs: float) -> bool:
    """Whether a run was stopped before it saw its data so often: what it would have repeated cost nothing."""
    unique, done, per_step = number(case.run.facts, "dataset_tokens"), steps_done(case.run), step_tokens(case)
    if case.run.status is not Status.STOPPED or unique is None or done is None or per_step is None:
        return False
    return done * per_step <= epochs * unique


def detect_repeated_data(case: Case) -> Verdict:
    """Data that are repeated so often that a part of the training gains nothing."""
    epochs, vocab = epochs_of(case), vocabulary(case)
    if epochs is None or vocab is None:
        return lacking("repeated_data", "token counts of the data set and the run (or epochs), and the vocabulary size")
    scratch = from_scratch(case)
    if epochs > loss.FREE_EPOCHS and scratch is None:
        return lacking("repeated_data", "a first loss that shows whether weights were fresh")
    if epochs <= loss.FREE_EPOCHS or not scratch or _ended_before(case, loss.FREE_EPOCHS):
        return None
    worth = loss.effective_tokens(epochs, 1.0) / epochs
    tokens, unique = training_tokens(case), number(case.run.facts, "dataset_tokens")
    amounts = f": {tokens:,.4g} tokens over {unique:,.4g} unique ones" if tokens and unique else ""
    # no problem while the validation loss still falls
    evals, severity = curve(case.run, "eval_loss").value, "error" if epochs > loss.WASTEFUL_EPOCHS else "warning"
    falls = len(evals) >= 3 and int(np.argmin(evals)) >= 0.9 * (len(evals) - 1)
    return finding(
        "repeated_data",
        severity="note" if falls or 1 - worth < _LITTLE else severity,
        title=f"The data repeat {epochs:.3g} times; {format_percent(1 - worth)} of the compute adds nothing",
        evidence=f"{epochs:.4g} epochs{amounts}, worth {worth * epochs:.3g} epochs of fresh data",
        confidence="high" if epochs <= loss.MOST_PREDICTED_EPOCHS else "medium",
        actions=(
            f"train {loss.FREE_EPOCHS:g} epochs, or find {epochs / loss.FREE_EPOCHS:.2g}× the data",
            "watch the validation loss: beyond 40 epochs overfitting is likely" if epochs > loss.OVERFIT_EPOCHS else "",
        ),
        saved=cost_of_steps(case, (1 - worth) * (stake_steps(case) or 0)),
    )
