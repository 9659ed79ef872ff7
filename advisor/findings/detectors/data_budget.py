"""Tokens: how often the data repeat, how many the model should see, what cannot be reached, files that hold no data."""

from __future__ import annotations

import math

import numpy as np

from advisor.findings.case import Case, Confidence, Evidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.curves import curve, tail
from advisor.findings.run_facts import (
    from_scratch,
    nats_per_unit,
    number,
    parameters,
    planned_steps,
    step_tokens,
    steps_done,
    vocabulary,
)
from advisor.findings.savings import stake_steps
from advisor.findings.spend import cost_of_steps
from advisor.laws import flops
from advisor.laws.intervals import Z80
from advisor.laws.repetition import FREE_EPOCHS, OVERFIT_EPOCHS, WASTEFUL_EPOCHS
from advisor.laws.text import LAW_BYTES_PER_TOKEN
from advisor.prediction.loss import (
    CHINCHILLA,
    IRREDUCIBLE_ERROR,
    MOST_PREDICTED_EPOCHS,
    PARAMETER_RANGE,
    TOKEN_RANGE,
    TRANSFER_ERROR,
    effective_tokens,
)
from advisor.readers.run_table import Status
from trainer.damage import not_data

FLOOR_MARGIN = IRREDUCIBLE_ERROR * Z80 / CHINCHILLA.irreducible + TRANSFER_ERROR  # of the floor
_LITTLE = 0.15  # of the compute: whoever repeats a small data set five times knows that he does
_LAW_VOCAB = 16_000
_HALF = 0.5  # of the compute: the choice of a size has other reasons than one loss
_WASTE = 0.1  # of the compute: the optimum is flat (sources §4.2), less is not worth a word
_JSON_ERRORS = ('{"error', '{"message":"Not Found')  # a data set's first record may begin so, one in a log does not
_RATIOS = {"total": "all parameters", "matrices+head": "matrices + head", "matrices": "matrices only"}


def training_tokens(case: Case) -> float | None:
    """Tokens of the whole run: planned, else done; None where steps or tokens per step are unknown."""
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
        return Insufficient(
            code="repeated_data", missing="tokens of the data set and of the run (or epochs), vocabulary"
        )
    scratch = from_scratch(case)
    if epochs > FREE_EPOCHS and scratch is None:
        return Insufficient(code="repeated_data", missing="a first loss that shows whether weights were fresh")
    if epochs <= FREE_EPOCHS or not scratch:
        return None
    worth = effective_tokens(epochs, 1.0) / epochs
    hours, usd = cost_of_steps(case, (1 - worth) * (stake_steps(case) or 0))
    tokens, unique = training_tokens(case), number(case.run.facts, "dataset_tokens")
    amounts = f": {tokens:,.4g} tokens over {unique:,.4g} unique ones" if tokens and unique else ""
    return Finding(
        code="repeated_data",
        severity=_repetition_severity(case, epochs),
        title=f"The data repeat {epochs:.3g} times; {1 - worth:.0%} of the compute buys nothing",
        evidence=(Evidence(text=f"{epochs:.4g} epochs{amounts}, worth {worth * epochs:.3g} epochs of fresh data"),),
        confidence=Confidence.HIGH if epochs <= MOST_PREDICTED_EPOCHS else Confidence.MEDIUM,
        causes=("a token budget laid out for a larger data set",),
        actions=(
            f"train {FREE_EPOCHS:g} epochs, or find {epochs / FREE_EPOCHS:.2g}× the data",
            *(
                ("watch the validation loss: beyond 40 epochs overfitting is likely",)
                if epochs > OVERFIT_EPOCHS
                else ()
            ),
        ),
        saved_hours=hours,
        saved_usd=usd,
        threshold="sources §4.3 (Muennighoff et al. 2023): up to 4 epochs nearly free, over 16 mostly waste, "
        "D′ = U + U·R*·(1 − e^(−R/R*)), R* = 15.39",
    )


def _repetition_severity(case: Case, epochs: float) -> Severity:
    """How bad it is that data repeat: not at all while the validation loss still falls."""
    evals = curve(case.run, "eval_loss").value
    if len(evals) >= 3 and int(np.argmin(evals)) >= 0.9 * (len(evals) - 1):
        return Severity.NOTE
    if 1 - effective_tokens(epochs, 1.0) / epochs < _LITTLE:
        return Severity.NOTE
    return Severity.ERROR if epochs > WASTEFUL_EPOCHS else Severity.WARNING


def cheapest_tokens(size: float, tokens: float) -> tuple[float, float, float]:
    """Parameters and tokens that reach the same loss with least compute, and that compute over 6·N·D.

    By the Chinchilla law of Besiroglu et al. 2024 (sources §4.1), bisecting on compute; one epoch, N all parameters.
    """
    target, spent = CHINCHILLA.loss(size, tokens), 6 * size * tokens
    low, high = 0.0, 1.0  # the best allocation needs at most what was spent
    for _ in range(60):
        middle = (low + high) / 2
        best = CHINCHILLA.optimal_parameters(spent * middle) if middle else 0.0
        enough = best > 0 and CHINCHILLA.loss(best, spent * middle / (6 * best)) <= target
        low, high = (low, middle) if enough else (middle, high)
    best = CHINCHILLA.optimal_parameters(spent * high)
    return best, spent * high / (6 * best), high


def detect_token_budget(case: Case) -> Verdict:
    """Tokens against parameters: what over- or under-training costs, with the counted parameters named."""
    size, tokens, scratch = parameters(case), training_tokens(case), from_scratch(case)
    if size is None or tokens is None or scratch is None:
        missing = "parameters, tokens per step, steps and a first loss that shows a fresh start"
        return Insufficient(code="token_budget", missing=missing)
    if not scratch:
        return None
    in_range = PARAMETER_RANGE[0] <= size <= PARAMETER_RANGE[1] and TOKEN_RANGE[0] <= tokens <= TOKEN_RANGE[1]
    if not in_range:
        return Insufficient(
            code="token_budget", missing="a size the laws were fitted to (70 M to 16 B, over 1 B tokens)"
        )
    best_size, best_tokens, share = cheapest_tokens(size, tokens)
    if 1 - share < _WASTE:
        return None
    over = tokens / size > best_tokens / best_size
    hours, usd = cost_of_steps(case, (1 - share) * (stake_steps(case) or 0))
    word = "over-trained" if over else "under-trained"
    best = f"{best_size / 1e6:,.0f} M parameters on {best_tokens / 1e9:.3g} B tokens"
    return Finding(
        code="token_budget",
        severity=Severity.NOTE if over or share > _HALF else Severity.WARNING,
        title=f"The model is {word}: {best} reach the same loss with {share:.0%} of the compute",
        evidence=(
            Evidence(text=_ratios(case, tokens, size)),
            Evidence(text=f"least compute for this loss at {best_tokens / best_size:.1f} tokens per parameter (all)"),
        ),
        confidence=Confidence.LOW if share > 0.7 else Confidence.MEDIUM,
        causes=("a small model trained long is cheaper to serve: sound where it will answer often",)
        if over
        else ("a model too large for the budget",),
        actions=(f"for the same loss: {best}; the optimum is flat, anything within a factor of two will do",),
        saved_hours=hours,
        saved_usd=usd,
        threshold=f"sources §4.1 (Besiroglu et al. 2024), N all parameters; from {_WASTE:.0%} of the compute on",
    )


def _ratios(case: Case, tokens: float, size: float) -> str:
    """Tokens per parameter under each count: the same number means different budgets."""
    if case.workload is None:
        return f"{tokens / size:.3g} tokens per parameter (all, as declared)"
    counts = [
        f"{tokens / flops.scaling_parameters(case.workload.shape, name):.3g} per {words}"
        for name, words in _RATIOS.items()
    ]
    return f"{tokens:,.4g} tokens: " + ", ".join(counts)


def loss_floor(bytes_per_token: float | None) -> float:
    """Nats per token below which no model of the law's kind of data gets: E, moved to another tokenizer by bytes."""
    return CHINCHILLA.irreducible * (bytes_per_token or LAW_BYTES_PER_TOKEN) / LAW_BYTES_PER_TOKEN


def detect_loss_below_floor(case: Case) -> Verdict:
    """A language-model loss (reached, or promised in `notes["target_loss"]`) below the irreducible floor."""
    vocab, unit, scratch = vocabulary(case), nats_per_unit(case.run), from_scratch(case)
    evals, losses = curve(case.run, "eval_loss"), curve(case.run, "loss")
    promised = case.notes.get("target_loss")
    if vocab is None or unit is None or (scratch is None and promised is None) or vocab < _LAW_VOCAB:
        return Insufficient(code="loss_below_floor", missing=f"a vocabulary over {_LAW_VOCAB:,} and a fresh start")
    floor = loss_floor(number(case.run.facts, "bytes_per_token"))
    series = evals if len(evals) else losses
    reached = float(np.median(tail(series.value, share=0.05, least=1))) * unit if len(series) and scratch else math.inf
    claims = [(reached, "reached"), (float(promised) if promised else math.inf, "promised")]
    value, how = min(claims)
    if value >= floor * (1 - FLOOR_MARGIN):
        return None
    return Finding(
        code="loss_below_floor",
        severity=Severity.ERROR if how == "promised" else Severity.WARNING,
        title=f"A loss of {value:.4g} was {how}; natural text of such tokens has a floor near {floor:.3g}",
        evidence=(Evidence(text=f"{value:.4g} nats per token against {floor:.4g} ± {FLOOR_MARGIN * floor:.2g}"),),
        confidence=Confidence.MEDIUM,
        causes=("validation data that were trained on", "the data repeat and were memorised", "loss over masked, "
                "padded or templated tokens", "another unit (bits per byte, per character)", "a promise without a law")
        if how == "reached"
        else ("a promise that no scaling law supports",),
        actions=("evaluate on text that cannot have been trained on, and state bits per byte",),
        threshold="sources §4.1: E = 1.8172 ± 0.03 nats at about 4.4 bytes per token (Besiroglu et al. 2024)",
    )  # fmt: skip


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
        return None if judged else Insufficient(code="error_page", missing="the data file's beginning or size")
    title = f"The data file is {kind}" if kind else f"The whole data set ({tokens:,.0f} tokens) is less than one step"
    shown = (
        f"it begins {head[:80]!r}" if head else (events[0].text[:200] if events else f"{per_step:,.0f} tokens per step")
    )
    return Finding(
        code="error_page" if kind else "data_set_too_small",
        severity=Severity.ERROR if head or not events or case.run.status is not Status.COMPLETED else Severity.WARNING,
        title=title,
        evidence=(Evidence(text=shown), *((Evidence(text=f"{size:,.0f} bytes"),) if size is not None else ())),
        confidence=Confidence.HIGH if head or not kind else Confidence.MEDIUM,
        causes=("a download that answered with a page instead of the file (moved address, login, rate limit)",),
        actions=("`advisor data check FOLDER` finds every such file, and what fetches it again",),
        threshold="known beginnings of error pages and pointers; fewer tokens than one optimizer step",
    )
