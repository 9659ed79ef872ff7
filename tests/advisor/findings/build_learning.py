"""A healthy learning curve for the tests of learning detectors: GPT-2's vocabulary, cosine, one second a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from advisor.findings.case import Case
from advisor.laws.annealing import learning_rate_shares
from advisor.readers.run_table import RunTable
from tests.advisor.findings.build import run

VOCAB = 50257
LN_V = math.log(VOCAB)
STEPS = 2000


def healthy_loss(steps: int = STEPS, noise: float = 0.02, start: float = LN_V, end: float = 3.3) -> np.ndarray:
    """From ln V down a power law: start at step 1, close to `end` at the last one."""
    step = np.arange(1, steps + 1, dtype=float)
    random = np.random.default_rng(3)
    return end + (start - end) * ((step + 20) / 21) ** -0.9 + noise * random.standard_normal(steps)


def healthy_rate(steps: int = STEPS, peak: float = 6e-4) -> np.ndarray:
    return peak * learning_rate_shares("cosine", steps, warmup_steps=steps // 20, final_share=0.1)


def healthy_norm(steps: int = STEPS) -> np.ndarray:
    random = np.random.default_rng(5)
    step = np.arange(steps, dtype=float)
    return (0.4 + 4 * np.exp(-step / 30)) * np.exp(0.08 * random.standard_normal(steps))


def learning_run(steps: int = STEPS, *, facts: dict[str, Any] | None = None, **columns: Any) -> RunTable:
    """The healthy run, with columns (None: left out) and facts changed."""
    every = np.arange(1, steps + 1) % max(1, steps // 20) == 0
    loss = columns.get("loss")
    loss = healthy_loss(steps) if loss is None else np.asarray(loss, dtype=float)
    values = {
        "loss": loss,
        "learning_rate": healthy_rate(steps),
        "grad_norm": healthy_norm(steps),
        "eval_loss": np.where(every, loss + 0.03, np.nan),
        **columns,
    }
    known = {"vocab_size": VOCAB, "grad_clip": 1.0, "step_tokens": 524288, "precision": "bf16", **(facts or {})}
    return run(steps=steps, facts=known, **values)


def learning_case(table: RunTable | None = None, **known: Any) -> Case:
    """The case of a run whose log says everything itself: no workload, no profile, $3.60 per hour."""
    return Case(run=table if table is not None else learning_run(), **{"usd_per_hour": 3.6, **known})


def changed(*steps: int, also: dict[str, Any] | None = None, **columns: Any) -> Callable[[], Case]:
    """A case when it is called: the healthy run with these columns and facts, and `also` of its other fields."""
    return lambda: learning_case(dataclasses.replace(learning_run(*steps, **columns), **(also or {})))


def untold(*steps: int, **columns: Any) -> Callable[[], Case]:
    """The same of a run whose log says nothing of its model."""
    return lambda: learning_case(dataclasses.replace(learning_run(*steps, **columns), facts={}))


def noise(steps: int = STEPS, size: float = 0.05, seed: int = 2) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(steps)


def every(*values: float) -> np.ndarray:
    """These evaluations, evenly over the run."""
    column = np.full(STEPS, np.nan)
    column[np.linspace(STEPS // len(values) - 1, STEPS - 1, len(values)).astype(int)] = values
    return column
