"""The same run on another data set: its number of steps, and its time and cost here and on other GPUs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.findings.case import Case
from advisor.findings.forecast import Elsewhere, Place, elsewhere, overhead
from advisor.findings.run_facts import number, planned_steps, price, step_tokens, vocabulary
from advisor.findings.savings import mean_step_seconds
from advisor.laws.text import bytes_per_token
from advisor.prediction.intervals import known, product
from advisor.records import Basis, Estimate
from advisor.units import HOUR

_OTHER_TEXT = 0.2  # of the bytes in a token, for other languages and code (laws/text)


@dataclass(frozen=True, kw_only=True)
class NextData:
    """The other data: the size of the text, or the number of tokens if they were counted."""

    name: str  # as it was given
    text_bytes: float | None = None
    tokens: float | None = None


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """The same model, batch and pace on other data; None if the log does not say enough."""

    name: str
    tokens: Estimate | None  # of one pass over the data
    epochs: float  # as many as this run sees of its own data, or else one
    epochs_known: bool  # whether the number of epochs is this run's own
    times_this: Estimate | None  # number of steps divided by that of this run
    steps: Estimate | None
    hours: Estimate | None  # here
    usd: Estimate | None
    elsewhere: tuple[Elsewhere, ...]
    note: str  # what is missing, in words


def next_run(case: Case, data: NextData, places: Sequence[Place]) -> NextRun:
    """Return what the same run takes on other data. Steps are whole numbers; the rest takes the tokens' interval."""
    tokens, batch = _tokens(case, data), step_tokens(case)
    epochs = _epochs(case)
    steps = tokens.scaled((epochs or 1.0) / batch) if tokens is not None and batch else None
    pace = mean_step_seconds(case, steps.value if steps else 0.0)
    hours = None if steps is None or pace is None else product(product(pace.scaled(1 / HOUR), overhead(case)), steps)
    usd, planned = price(case), planned_steps(case)
    facts = {**case.run.facts, "planned_steps": math.ceil(steps.value)} if steps is not None else case.run.facts
    there = dataclasses.replace(case, run=dataclasses.replace(case.run, facts=facts))
    wanted = (("the vocabulary, for the tokens in its bytes", tokens), ("the tokens of a step", batch))
    lacking = [words for words, value in (*wanted, ("the time of a step", pace)) if value is None]
    return NextRun(
        name=data.name,
        tokens=tokens,
        epochs=epochs or 1.0,
        epochs_known=epochs is not None,
        times_this=steps.scaled(1 / planned) if steps is not None and planned else None,
        steps=steps,
        hours=hours,
        usd=hours.scaled(usd) if hours is not None and usd is not None else None,
        elsewhere=tuple(elsewhere(there, place) for place in places) if steps is not None else (),
        note=f"the log does not say {' and '.join(lacking)}: --config tells it" if lacking else "",
    )


def _tokens(case: Case, data: NextData) -> Estimate | None:
    """Return the tokens of the data: counted, or from the bytes per token of this run, or from its vocabulary size."""
    if data.tokens is not None or data.text_bytes is None:
        return None if data.tokens is None else known(data.tokens)
    own, vocab = number(case.run.facts, "bytes_per_token"), vocabulary(case)
    if own:
        return known(data.text_bytes / own)
    if vocab is None:
        return None
    tokens = data.text_bytes / bytes_per_token(vocab)
    low, high = tokens / (1 + _OTHER_TEXT), tokens * (1 + _OTHER_TEXT)
    return Estimate(value=tokens, low=low, high=high, basis=Basis.PRIOR)


def _epochs(case: Case) -> float | None:
    """Return how often this run sees its own data according to its plan, or None if their size is unknown."""
    facts, batch, planned = case.run.facts, step_tokens(case), planned_steps(case)
    if epochs := number(facts, "planned_epochs"):
        return epochs
    tokens, size, per_token = (number(facts, n) for n in ("dataset_tokens", "dataset_bytes", "bytes_per_token"))
    tokens = tokens or (size / per_token if size and per_token else None)
    return planned * batch / tokens if tokens and batch and planned else None
