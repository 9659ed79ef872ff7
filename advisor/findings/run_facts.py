"""Facts of a case besides its curves: vocabulary, step tokens, steps and price, each from its best source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from advisor.findings.case import Case
from advisor.findings.curves import Curve, curve, main_rows, sum_of_parts, tail
from advisor.laws import flops
from advisor.readers.run_table import WITHOUT_NAME, Event, RunTable
from advisor.readers.status import FAILURES

_LATE_START = 10.0  # printed rows that may be missing before the first one
COMPLETE_SHARE = 0.995  # of the planned steps counts as done: counts may be off by one, and last rows not printed


def number(facts: Mapping[str, Any], name: str) -> float | None:
    """Return a declared fact as a finite number, or None; logs also print "auto", "none" and lists."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        return None
    return float(value)


def positive(facts: Mapping[str, Any], name: str) -> float | None:
    """Return a declared fact as a number above zero, or None if it is not one."""
    value = number(facts, name)
    return value if value and value > 0 else None


# Formats with nothing but numbers. If such a log mentions no checkpoints or errors, this means nothing.
_NUMBERS_ONLY = frozenset(
    (
        *("csv", "jsonl", "two_columns", "mlflow", "tfevents", "wandb"),
        *("hf_trainer_state", "torchtitan", "llmc_mainlog", "gpu_csv", "keras"),
    )
)


def has_words(run: RunTable) -> bool:
    """Return True if the log would contain what its program printed besides numbers."""
    return run.format not in _NUMBERS_ONLY


def vocabulary(case: Case) -> int | None:
    """Return the size of the vocabulary: as the log declares, or else from the workload's shape."""
    declared = number(case.run.facts, "vocab_size")
    if declared and declared >= 2:
        return int(declared)
    return case.workload.shape.vocab_size if case.workload else None


def sequence_length(case: Case) -> int | None:
    declared = number(case.run.facts, "seq_len")
    return int(declared) if declared else (case.workload.shape.seq_len if case.workload else None)


def step_tokens(case: Case) -> float | None:
    """Return the tokens of one optimizer step: declared, or from the workload, or from what the log has."""
    declared = number(case.run.facts, "step_tokens")
    if declared or case.workload is None:
        return declared or logged_step_tokens(case.run, case.run.facts, number(case.run.facts, "seq_len"))
    return float(case.workload.step_tokens)


def step_samples(facts: Mapping[str, Any]) -> float | None:
    """Return the samples of one optimizer step, from the stated batch; None if none is stated."""
    micro = positive(facts, "micro_batch")
    accumulated, devices = (positive(facts, name) or 1.0 for name in ("grad_accum", "world_size"))
    return positive(facts, "step_samples") or (micro * accumulated * devices if micro else None)


def logged_step_tokens(run: RunTable, facts: Mapping[str, Any], length: float | None) -> float | None:
    """Return the tokens of one step from the declared batch of sequences of this length, else the tokens column."""
    samples, micro = number(facts, "step_samples"), number(facts, "micro_batch")
    if samples and length:
        return samples * length
    if micro and length:
        pass_tokens = micro * length * (number(facts, "world_size") or 1)
        if accumulated := number(facts, "grad_accum"):
            return pass_tokens * accumulated
        # gradient-accumulation steps that the log does not state, from its rate and its step times
        seconds = np.where(np.isfinite(seconds := run.column("seconds")), seconds, sum_of_parts(run))
        passes = run.column("tokens_per_second") * seconds / pass_tokens
        if np.isfinite(passes).any():
            return pass_tokens * max(1, round(float(np.nanmedian(passes))))
    rows = main_rows(run)
    tokens, step = run.column("tokens")[rows], run.column("step")[rows]
    keep = np.isfinite(tokens) & np.isfinite(step) & run.counts_steps  # a row may be of several steps
    gained, passed = np.diff(tokens[keep]), np.diff(step[keep])
    ratio = gained[passed > 0] / passed[passed > 0]
    return float(np.median(ratio)) if len(ratio) and np.median(ratio) > 0 else None


def parameters(case: Case) -> float | None:
    """Return the number of all parameters: exact from the workload's shape, or else as declared."""
    if case.workload:
        return float(flops.parameters(case.workload.shape))
    return number(case.run.facts, "parameters")


def nats_per_unit(run: RunTable, fact: str = "loss_unit") -> float | None:
    """Return the nats in one unit of the printed loss: 1, ln 2 for bits, None for anything but a mean per token."""
    unit = str(run.facts.get(fact) or run.facts.get("loss_unit") or "nats").lower()
    return {"nats": 1.0, "bits": math.log(2)}.get(unit)


def from_scratch(case: Case) -> bool | None:
    """Return True if the run starts from random weights, because its first loss is near ln V; None if unknown."""
    if number(case.run.facts, "resumed_from_step"):
        return False
    vocab, unit, losses = vocabulary(case), nats_per_unit(case.run), curve(case.run, "loss")
    if vocab is None or unit is None or not len(losses):
        return None
    share = losses.value[0] * unit / math.log(vocab)
    return True if share > 0.6 else (False if share < 0.45 else None)


def planned_steps(case: Case) -> float | None:
    """Return the planned number of steps, declared by the log or else by the plan; None if its rows count no steps."""
    if not case.run.counts_steps:
        return None
    declared = number(case.run.facts, "planned_steps")
    if declared and declared > 0:
        return declared
    return float(case.plan.config.steps) if case.plan else None


def steps_done(run: RunTable) -> float | None:
    """Return the optimizer steps done, by the largest printed step of the main phase; None if rows have no steps."""
    if not run.counts_steps:
        return None
    rows = main_rows(run)
    steps = run.column("step")[rows]
    trained = np.isfinite(run.column("loss")[rows]) | np.isfinite(run.column("loss_is_nan")[rows])
    printed = np.isfinite(steps)
    if not printed.any():
        return None
    last = float(steps[printed].max())
    # a progress bar may have counted on from the last row to the failure
    last = max([last, *(e.step for e in run.events if e.kind in FAILURES and e.step and len(run.phases) == 1)])
    # counted from 0, step 9 is the tenth; an evaluation of the untrained model at step 0 does not count
    return last + 1 if (steps[printed & trained] == 0).any() and not run.steps_by_bar else last


def print_gap(run: RunTable) -> float:
    """Return the steps between printed rows, or 0 for fewer than two. The last steps of a run may not be printed."""
    steps = run.column("step")[main_rows(run)]
    gaps = np.diff(steps[np.isfinite(steps)])
    return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0.0


def begins_late(run: RunTable) -> bool:
    """Return True if the first printed step is far from where a run begins: the log holds only a part of its run."""
    steps = run.column("step")[main_rows(run)] if run.counts_steps else np.empty(0)
    steps = steps[np.isfinite(steps)]
    return len(steps) > 1 and bool(steps.min() > _LATE_START * max(1.0, print_gap(run)))


def restarts(run: RunTable) -> list[Event]:
    """Return the restarts after which the run did something. Several at one step with nothing between count as one."""
    found: list[Event] = []
    for event in (event for event in run.events if event.kind == "restart"):
        first, last = (event.numbers.get(name) for name in ("first_step", "last_step"))
        if not found or first is None or not first == last == found[-1].numbers.get("first_step"):
            found.append(event)
    return found


def last_checkpoint(case: Case, before: float = math.inf) -> float | None:
    """Return the step of the newest checkpoint before a step: as logged, or else by the declared interval.

    Returns None if the log mentions no checkpoints.
    """
    saved = [at for e in case.run.events if e.kind == "checkpoint" and (at := e.numbers.get("step", e.step))]
    every, done = number(case.run.facts, "checkpoint_every_steps"), steps_done(case.run)
    if not saved and every and every > 0 and done:
        most = min(done, before - 1)
        saved = [most // every * every]
    return max((at for at in saved if 0 < at < before), default=None)


def best_checkpoint(case: Case, step: float) -> str:
    """Return the checkpoint of a best step in words: by its step only if the log says that it was written."""
    written = [e.numbers.get("step", e.step) for e in case.run.events if e.kind == "checkpoint"]
    written += list(case.run.column("step")[np.isfinite(case.run.column("checkpoint_seconds"))])
    if step in written:
        return f"the checkpoint of step {step:g}"
    return f"the checkpoint nearest step {step:g} if there is one"


def price(case: Case) -> float | None:
    """Return the dollars per hour of all devices: given, or as the log declares, or the plan's."""
    if case.usd_per_hour is not None:
        return case.usd_per_hour
    declared = number(case.run.facts, "usd_per_hour")
    return declared if declared is not None else (case.plan.offer.usd_per_hour if case.plan else None)


_LARGE = 3e8  # parameters: few models that are not language models are so large
_ALL_RIGHT = 0.99  # of the examples: at this accuracy a loss may and should stand still
_NOTHING_LEFT = 1e-3  # of the first loss: nothing is left to learn
_NEGATIVE = 0.01  # of the rows: single values below zero may be rounding
# trainers and tools that only train language models
_LANGUAGE = re.compile(
    r"gpt|llama|megatron|llm|nanochat|torchtitan|litgpt|axolotl|unsloth|\btrl\b|oumi|olmo|mosaic|verl|sft|dpo|"
    r"causal|qwen|mistral|gemma|lora"
)


def has_level(case: Case, losses: Curve) -> bool:
    """Return True if the height of the loss has a meaning. It has none for policy losses, for one of several losses
    trained together (those of a GAN pull against each other), and for losses below zero."""
    unit = str(case.run.facts.get("loss_unit") or "")
    if "policy" in unit or "one of several" in unit or unit == WITHOUT_NAME:
        return False
    if len(curve(case.run, "reward")) or len(curve(case.run, "eval_reward")):
        return False
    return not len(losses) or float(np.mean(losses.value < 0)) <= _NEGATIVE


def is_solved(case: Case, losses: Curve, accuracy: str = "accuracy") -> bool:
    """Return True if nothing is left to learn from these data: accuracy near 1, or almost none of the first loss
    left."""
    scores = curve(case.run, accuracy).value
    learnt = len(scores) > 0 and scores[0] < _ALL_RIGHT and scores.max() <= 1  # right from the start, it learnt nothing
    if learnt and float(np.median(tail(scores))) >= _ALL_RIGHT:
        return True
    fallen = len(losses) > 0 and losses.value[0] > 0 and losses.value[-1] > 0
    return bool(fallen and losses.value[-1] <= _NOTHING_LEFT * losses.value[0])


def is_language(case: Case) -> bool:
    """Return True for the loss of a language model: a vocabulary or context is declared, or the names say so."""
    if vocabulary(case) is not None or number(case.run.facts, "seq_len") or len(curve(case.run, "tokens")):
        return True
    if (number(case.run.facts, "parameters") or 0) >= _LARGE:
        return True
    words = f"{case.run.framework or ''} {case.run.format} {Path(case.run.source).name}".lower()
    return _LANGUAGE.search(words) is not None
