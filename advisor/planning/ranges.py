"""What every number of a goal may be: beyond it nobody rents or trains, and computing with it would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.errors import AdvisorError
from advisor.records import Goal
from advisor.units import format_seconds

MOST_DEPTH = 512  # nanochat's has 7e12 parameters, more than any machine here holds
_DECADE = 3650 * 86400.0
# Ends included.
RANGES: dict[str, tuple[float, float]] = {
    "--gpus": (1, 100_000),
    "--seq-len": (1, 10_000_000),
    "--vocab-size": (1, 10_000_000),
    "--deadline": (1e-3, _DECADE),
    "--tokens": (1, 1e16),
    "--depth": (1, MOST_DEPTH),
    "--params": (1, 1e14),
    "--width": (1, 1_000_000),
    "--heads": (1, 100_000),
    "--kv-heads": (1, 100_000),
    "--ffn-width": (1, 10_000_000),
    "--data-tokens": (1, 1e16),
    "--epochs": (1e-3, 1e6),
    "--ratio": (1e-6, 1e6),
    "--micro-batch": (1, 1_000_000),
    "--global-batch": (1, 1e12),
    "--power-cap": (1.0, 100_000),
    "--interruptions": (60.0, _DECADE),  # a run that is stopped more often never gets past its start-up
    "--checkpoint-every": (1.0, _DECADE),
    "--budget": (1e-6, 1e10),
    "--inference-tokens": (1, 1e18),
    "--price": (0, 1e6),
    "--kwh-price": (0, 10_000),
    "--value-of-time": (0, 1e9),
    "--grid-carbon": (0, 100_000),
}
_FIELDS = {  # of a goal, that are not called as their option is
    "--deadline": "deadline_seconds", "--params": "parameters", "--global-batch": "global_batch_tokens",
    "--power-cap": "power_cap_watts", "--interruptions": "interruption_seconds",
    "--checkpoint-every": "checkpoint_seconds", "--budget": "budget_usd", "--price": "usd_per_gpu_hour",
    "--kwh-price": "usd_per_kwh", "--value-of-time": "usd_per_waiting_hour", "--grid-carbon": "grid_grams_per_kwh",
}  # fmt: skip
_SECONDS = ("--deadline", "--interruptions", "--checkpoint-every")


def check_ranges(goal: Goal) -> None:
    """Refuse a number outside of its range (AdvisorError, exit code 2)."""
    for option, value in _numbers(goal):
        least, most = RANGES[option]
        if value is None or least <= value <= most:
            continue
        if least == 0 and value < 0:
            said, hint = "must not be negative", f"give {option} 0 for what costs nothing, or leave it out"
        elif not value > 0:
            said, hint = "must be more than 0", f"give more than 0, or leave {option} out"
        else:
            said = f"must be at {'least' if value < least else 'most'} {_words(option, min(max(value, least), most))}"
            hint = f"give {_words(option, least)} to {_words(option, most)}, or leave {option} out"
        raise AdvisorError(f"{option} {_words(option, value)}: {said}", hint, exit_code=2)


def _words(option: str, value: float) -> str:
    return format_seconds(value) if option in _SECONDS else f"{value:g}" if value > 1e6 else f"{value:,.12g}"


def _numbers(goal: Goal) -> Iterator[tuple[str, float | None]]:
    """Every number that a goal may state, by its option."""
    yield from (("--gpus", count) for count in (goal.gpus, *goal.counts, *(machine.gpus for machine in goal.own)))
    for option in RANGES:
        yield option, getattr(goal, _FIELDS.get(option, option.strip("-").replace("-", "_")))
    yield from (("--price", price.usd_per_gpu_hour) for price in goal.prices)
