"""Shows variants compared with a base over several seeds. The only arithmetic turns logarithms into percentages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from advisor.history.paired import LEAST, Contrast
from advisor.report.quantities import LOSS, STEP_TIME
from advisor.report.table import Table, in_markdown
from advisor.units import format_bytes, format_seconds
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
    base = found.arms[0].name
    return Table(columns=("arm", "", base, "the arm", "difference, 95 %", "verdict"), rows=rows)


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


def check_table(found: Experiment) -> Table:
    """Lists the properties of a working trainer, and whether each arm has them."""
    rows = tuple((c.arm, c.what, "pass" if c.passed else "FAIL", c.evidence) for c in found.checks)
    return Table(columns=("arm", "what", "", "seen"), rows=rows)


def heading(found: Experiment) -> str:
    """Says what was run."""
    seeds = f"{len(found.seeds)} seeds ({found.seeds[0]} to {found.seeds[-1]})"
    others = " and ".join(arm.name for arm in found.arms[1:])
    return f"{others} against {found.arms[0].name}: {seeds}, interleaved, {format_seconds(found.seconds)} of training"


def notes(found: Experiment) -> Iterator[str]:
    """Yields the notes that explain the tables."""
    yield f"loss: of {found.loss_of}; runs of one seed begin with the same weights and see the same tokens"
    for arm in found.arms:
        if missing := [seed for seed in found.seeds if seed not in found.measured[arm.name]]:
            yield f"{arm.name} did not finish with seed {', '.join(map(str, missing))}: left out of the pairs"
        if other_text(found.arms[0], arm):
            yield f"{arm.name} learns other data, or another vocabulary: its loss cannot be compared with the base's"
    yield f"the runs: {found.folder}"


def markdown(found: Experiment) -> str:
    """Returns the report in Markdown."""
    parts = (f"# {heading(found)}", in_markdown(contrast_table(found)), "## Checklist", in_markdown(check_table(found)))
    return "\n\n".join([*parts, *(f"- {note}" for note in notes(found))]) + "\n"


def document(found: Experiment) -> dict[str, Any]:
    """Returns the report for JSON."""
    return {
        "folder": str(found.folder),
        "arms": [arm.name for arm in found.arms],
        "seeds": list(found.seeds),
        "loss_of": found.loss_of,
        "seconds": found.seconds,
        "measured": {
            arm: {str(seed): dict(values) for seed, values in runs.items()} for arm, runs in found.measured.items()
        },
        "contrasts": [{**to_dict(c), "clear": c.clear, "verdict": verdict(c)} for c in found.contrasts],
        "checks": [to_dict(check) for check in found.checks],
    }
