"""Tokens: how often the data repeat, how many the model should see, what cannot be reached, files that hold no data."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Verdict, finding, lacking
from advisor.findings.curves import curve, tail
from advisor.findings.run_facts import (
    from_scratch,
    nats_per_unit,
    number,
    planned_steps,
    step_tokens,
    steps_done,
    vocabulary,
)
from advisor.findings.savings import cost_of_steps, stake_steps
from advisor.laws.intervals import Z80
from advisor.laws.repetition import FREE_EPOCHS, OVERFIT_EPOCHS, WASTEFUL_EPOCHS
from advisor.laws.text import LAW_BYTES_PER_TOKEN
from advisor.prediction.loss import (
    CHINCHILLA,
    IRREDUCIBLE_ERROR,
    MOST_PREDICTED_EPOCHS,
    TRANSFER_ERROR,
    effective_tokens,
)
from advisor.readers.run_table import Status
from trainer.damage import not_data

FLOOR_MARGIN = IRREDUCIBLE_ERROR * Z80 / CHINCHILLA.irreducible + TRANSFER_ERROR  # of the floor
_LITTLE = 0.15  # of the compute: whoever repeats a small data set five times knows that he does
_LAW_VOCAB = 16_000
_JSON_ERRORS = ('{"error', '{"message":"Not Found')  # a data set's first record may begin so, one in a log does not


def training_tokens(case: Case) -> float | None:
    """Tokens of the whole run: planned, else done; None if steps or tokens per step are unknown."""
    steps, per_step = planned_steps(case) or steps_done(case.run), step_tokens(case)
    if steps and per_step:
        return steps * per_step
    tokens = curve(case.run, "tokens").value
    return float(tokens.max()) if len(tokens) else None


def epochs_of(case: Case) -> float | None:
    """Passes over the data of the whole run: tokens over unique tokens, else as printed or planned."""
    tokens, unique = training_tokens(case), number(case.run.facts, "dataset_tokens")
    if tokens and unique:
        return tokens / unique
    printed = curve(case.run, "epoch").value
    planned = number(case.run.facts, "planned_epochs")
    counts = [x for x in (planned, float(printed.max()) if len(printed) else None) if x]
    return max(counts) if counts else None


def detect_repeated_data(case: Case) -> Verdict:
    """How often the data repeat, and what share of the training still buys something."""
    epochs, vocab = epochs_of(case), vocabulary(case)
    if epochs is None or vocab is None:
        return lacking("repeated_data", "tokens of the data set and of the run (or epochs), vocabulary")
    scratch = from_scratch(case)
    if epochs > FREE_EPOCHS and scratch is None:
        return lacking("repeated_data", "a first loss that shows whether weights were fresh")
    if epochs <= FREE_EPOCHS or not scratch:
        return None
    worth = effective_tokens(epochs, 1.0) / epochs
    tokens, unique = training_tokens(case), number(case.run.facts, "dataset_tokens")
    amounts = f": {tokens:,.4g} tokens over {unique:,.4g} unique ones" if tokens and unique else ""
    # not bad at all while the validation loss still falls
    evals, severity = curve(case.run, "eval_loss").value, "error" if epochs > WASTEFUL_EPOCHS else "warning"
    falls = len(evals) >= 3 and int(np.argmin(evals)) >= 0.9 * (len(evals) - 1)
    return finding(
        "repeated_data",
        severity="note" if falls or 1 - worth < _LITTLE else severity,
        title=f"The data repeat {epochs:.3g} times; {1 - worth:.0%} of the compute buys nothing",
        evidence=f"{epochs:.4g} epochs{amounts}, worth {worth * epochs:.3g} epochs of fresh data",
        confidence="high" if epochs <= MOST_PREDICTED_EPOCHS else "medium",
        actions=(
            f"train {FREE_EPOCHS:g} epochs, or find {epochs / FREE_EPOCHS:.2g}× the data",
            ("watch the validation loss: beyond 40 epochs overfitting is likely" if epochs > OVERFIT_EPOCHS else ""),
        ),
        saved=cost_of_steps(case, (1 - worth) * (stake_steps(case) or 0)),
    )


def loss_floor(bytes_per_token: float | None) -> float:
    """Nats per token below which no model of the law's kind of data gets: E, moved to another tokenizer by bytes."""
    return CHINCHILLA.irreducible * (bytes_per_token or LAW_BYTES_PER_TOKEN) / LAW_BYTES_PER_TOKEN


def detect_loss_below_floor(case: Case) -> Verdict:
    """A language-model loss (reached, or promised in `notes["target_loss"]`) below the irreducible floor."""
    vocab, unit, scratch = vocabulary(case), nats_per_unit(case.run), from_scratch(case)
    evals, losses = curve(case.run, "eval_loss"), curve(case.run, "loss")
    promised = case.notes.get("target_loss")
    if vocab is None or unit is None or (scratch is None and promised is None) or vocab < _LAW_VOCAB:
        return lacking("loss_below_floor", f"a vocabulary over {_LAW_VOCAB:,} and a fresh start")
    floor = loss_floor(number(case.run.facts, "bytes_per_token"))
    series = evals if len(evals) else losses
    reached = float(np.median(tail(series.value, share=0.05, least=1))) * unit if len(series) and scratch else math.inf
    claims = [(reached, "reached"), (float(promised) if promised else math.inf, "promised")]
    value, how = min(claims)
    if value >= floor * (1 - FLOOR_MARGIN):
        return None
    return finding(
        "loss_below_floor",
        severity="error" if how == "promised" else "warning",
        title=f"A loss of {value:.4g} was {how}; natural text of such tokens has a floor near {floor:.3g}",
        evidence=f"{value:.4g} nats per token against {floor:.4g} ± {FLOOR_MARGIN * floor:.2g}",
        causes=(
            "validation data that were trained on",
            "the data repeat and were memorised",
            "loss over masked, padded or templated tokens",
            "another unit (bits per byte, per character)",
            "a promise without a law",
        )
        if how == "reached"
        else ("a promise that no scaling law supports",),
    )


def error_page(text: str) -> str | None:
    """What a "data" file that begins with `text` really is, in words, or None: a page, an error, a pointer."""
    found = not_data(text.encode())
    if found is None and text.startswith(_JSON_ERRORS):
        return "a JSON error message"
    return found[0] if found is not None else None


def detect_error_page(case: Case) -> Verdict:
    """A data file that is an error page, told by the log's own words, its beginning, or a size no corpus has.

    `notes["data_head"]` is the beginning of the data file, where whoever built the case could read it.
    """
    head, size = case.notes.get("data_head"), number(case.run.facts, "dataset_bytes")
    tokens, per_step = number(case.run.facts, "dataset_tokens"), step_tokens(case)
    events = [e for e in case.run.events if e.kind == "error_page"]
    kind = error_page(head) if head else None
    if kind is None and events:
        kind = f"an error page or pointer (line {events[0].line or '?'}: {events[0].text[:120]!r})"
    tiny = tokens is not None and per_step is not None and tokens < per_step
    if kind is None and not tiny:
        judged = head or size is not None or tokens is not None
        return None if judged else lacking("error_page", "the data file's beginning or size")
    title = f"The data file is {kind}" if kind else f"The whole data set ({tokens:,.0f} tokens) is less than one step"
    shown = (
        f"it begins {head[:80]!r}" if head else (events[0].text[:200] if events else f"{per_step:,.0f} tokens per step")
    )
    return finding(
        "error_page" if kind else "data_set_too_small",
        text="error_page",
        severity="error" if head or not events or case.run.status is not Status.COMPLETED else "warning",
        title=title,
        evidence=(shown, (f"{size:,.0f} bytes" if size is not None else "")),
        confidence="high" if head or not kind else "medium",
    )
