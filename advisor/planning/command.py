"""The command line that states a goal: what the page shows, so that a terminal gives the same plan."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from advisor.planning.offers import OWN, usual_counts
from advisor.prediction.software import OWN_NAME, table
from advisor.records import Goal
from advisor.units import write_count, write_duration


def plan_command(goal: Goal, out: str | None = None) -> str:
    """`advisor plan …` for a goal, quoted for a POSIX shell; numbers are written so that they read back the same."""
    words = ["advisor", "plan", *_options(goal)]
    return shlex.join([*words, "--out", out] if out else words)


def _options(goal: Goal) -> Iterator[str]:
    if goal.gpu != OWN:
        yield from ("--gpu", goal.gpu)
    for machine in goal.own:
        yield from ("--own", f"{machine.gpu}:{machine.gpus}")
    counts = goal.counts or (goal.gpus,)
    if counts != usual_counts(goal.gpu, goal.own):
        yield from ("--gpus", ",".join(map(str, counts)))
    for option, value in _values(goal).items():
        if value is not None:
            yield from (option, value)
    for price in goal.prices:
        yield from ("--price", f"{price.gpu}={_number(price.usd_per_gpu_hour)}")
    for provider in goal.providers:
        yield from ("--provider", provider)
    if goal.synthetic:
        yield "--synthetic"
    if goal.sure:
        yield "--sure"
    if goal.compile is not None:
        yield "--compile" if goal.compile else "--no-compile"


def _values(goal: Goal) -> dict[str, str | None]:
    """Options that take a value; None where the command's default says the same."""
    return {
        "--budget": _number(goal.budget_usd),
        "--deadline": _duration(goal.deadline_seconds),
        "--tokens": _count(goal.tokens) if goal.epochs is None else None,
        "--epochs": _number(goal.epochs),
        "--data-tokens": _count(goal.data_tokens),
        "--download-rate": _number(goal.download_bytes_per_second),
        "--inference-tokens": _count(goal.inference_tokens),
        **_shape(goal),
        "--data": goal.data,
        "--ratio": _number(goal.ratio),
        "--ratio-counts": goal.ratio_counts if goal.ratio else None,
        "--family": _unless(goal.family, "nanochat"),
        "--seq-len": _number(goal.seq_len),
        "--vocab-size": _number(goal.vocab_size),
        "--price": _number(goal.usd_per_gpu_hour),
        "--spot": _unless(goal.spot, "none"),
        "--objective": _unless(goal.objective, "loss"),
        "--kwh-price": _number(goal.usd_per_kwh),
        "--grid-carbon": _number(goal.grid_grams_per_kwh),
        "--power-cap": _number(goal.power_cap_watts),
        "--interruptions": _duration(goal.interruption_seconds),
        "--value-of-time": _number(goal.usd_per_waiting_hour),
        "--checkpoint-every": _duration(goal.checkpoint_seconds),
        "--micro-batch": _number(goal.micro_batch),
        "--global-batch": _count(goal.global_batch_tokens),
        "--precision": _unless(goal.precision, "auto"),
        "--activation-checkpointing": goal.activation_checkpointing,
        "--sharding": goal.sharding,
        "--software": goal.software,
        "--optimizer": _unless(goal.optimizer, table()[goal.software or OWN_NAME].optimizer),
    }


def _shape(goal: Goal) -> dict[str, str | None]:
    """The model by its name or its number of parameters, else by its sizes."""
    if goal.model is not None:
        return {"--model": goal.model}
    if goal.parameters is not None:
        return {"--params": _count(goal.parameters)}
    return {
        "--depth": _number(goal.depth),
        "--width": _number(goal.width),
        "--heads": _number(goal.heads),
        "--kv-heads": _number(goal.kv_heads),
        "--ffn-width": _number(goal.ffn_width),
    }


def _unless(value: str, default: str) -> str | None:
    return None if value == default else value


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else write_duration(seconds)


def _count(count: float | None) -> str | None:
    return None if count is None else write_count(count) if float(count).is_integer() else repr(float(count))
