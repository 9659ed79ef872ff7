"""Shows variants compared with a base over several seeds. The only arithmetic turns logarithms into percentages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from advisor.history.paired import LEAST, Contrast
from advisor.report.quantities import LOSS, STEP_TIME
from advisor.report.table import Table
from advisor.units import format_bytes
from advisor.workflows.ab import Experiment, other_text
from trainer.schema import to_dict

_NAMES = {"loss": "loss", "step_seconds": "step time", "memory_bytes": "peak memory"}
_WORDS = {"loss": LOSS.words, "step_seconds": STEP_TIME.words, "memory_bytes": format_bytes}
NONE = "no difference beyond the noise"
SMALL = "certain, and too small to act on"
_ONE_SEED = "one seed shows no scatter: --seeds 3 or more"


def contrast_table(found: Experiment) -> Table:
    """Compares each arm with the base: both values, the difference with its interval, and a verdict."""
    rows = tuple(
        (c.arm, _NAMES[c.quantity], _WORDS[c.quantity](c.base), _WORDS[c.quantity](c.other), _change(c), verdict(c))
        for c in found.contrasts
    )
    return Table(columns=("arm", "", next(iter(found.arms)), "the arm", "difference, 95 %", "verdict"), rows=rows)


def _change(c: Contrast) -> str:
    if c.difference is None:
        return _written(c, math.log(c.other / c.base) if c.is_ratio else c.other - c.base)
    low, high = _written(c, c.difference.low), _written(c, c.difference.high)
    return f"{_written(c, c.difference.value)} ({low} to {high})"


def _written(c: Contrast, value: float) -> str:
    return f"{math.expm1(value):+.1%}".replace("%", " %") if c.is_ratio else f"{value:+.4f}"


def verdict(c: Contrast) -> str:
    """Returns a verdict on one difference in words. No arm wins unless the interval allows it."""
    if c.difference is None:
        return _ONE_SEED
    if c.clear:
        return "lower" if c.difference.value < 0 else "higher"
    if c.small:
        return SMALL
    if c.seeds is None or abs(c.difference.value) < LEAST[c.quantity]:  # too small to matter, however certain it is
        return NONE
    return f"{NONE}; one of this size takes about {c.seeds} seeds"


def heading(found: Experiment) -> str:
    """Says what was run."""
    first, *others = found.arms
    seeds = f"{len(found.seeds)} seeds ({found.seeds[0]} to {found.seeds[-1]})"
    return f"{' and '.join(others)} against {first}: {seeds}, interleaved"


def notes(found: Experiment) -> Iterator[str]:
    """Yields the notes that explain the table."""
    yield "loss: of the last evaluation, or else of the last 5 % of the steps; runs of one seed see the same tokens"
    base = next(iter(found.arms.values()))
    for name, config in found.arms.items():
        if missing := [seed for seed in found.seeds if seed not in found.measured[name]]:
            yield f"{name} did not finish with seed {', '.join(map(str, missing))}: left out of the pairs"
        if other_text(base, config):
            yield f"{name} learns other data, or another vocabulary: its loss cannot be compared with the base's"
    yield f"the runs: {found.folder}"


def document(found: Experiment) -> dict[str, Any]:
    """Returns the report for JSON."""
    return {
        "folder": str(found.folder),
        "arms": list(found.arms),
        "seeds": list(found.seeds),
        "measured": {
            arm: {str(seed): dict(values) for seed, values in runs.items()} for arm, runs in found.measured.items()
        },
        "contrasts": [{**to_dict(c), "clear": c.clear, "verdict": verdict(c)} for c in found.contrasts],
    }
