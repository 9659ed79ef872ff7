"""An adopted command for tests of pages."""

from __future__ import annotations

import sys
from pathlib import Path

from advisor.store.adopted import Adopted, AdoptedBurst, BatchShape, Knob, KnobVerdict, Recipe, Setting, save_adopted

SCRIPT = Path(__file__).parents[1] / "advisor" / "adopt" / "never_seen.py"


def burst(rows: float, calls: int, seconds: float, **values: float) -> AdoptedBurst:
    return AdoptedBurst(
        values=tuple(Setting(name=name, value=value) for name, value in values.items()),
        outcome="stopped",
        seconds=5.0,
        startup_seconds=2.0,
        step_seconds=(seconds,) * 8,
        shape=BatchShape(rows=rows, calls=calls, length=32, tokens=rows * calls * 32),
        elements=1234,
        steps=9,
    )


def adopted(home: Path, name: str = "mine") -> Adopted:
    """A command of which a step takes 10 ms and 1 ms a row, measured at four batches."""
    knobs = (Knob(name="micro_batch", key="--bsz", value=4), Knob(name="steps", key="--iters"))
    verdicts = (
        KnobVerdict(name="micro_batch", verdict="works", words="--bsz changes the sequences of a micro-batch"),
        KnobVerdict(name="steps", verdict="dead", words="8 steps were asked for, it had done 50 when it was ended"),
    )
    sizes = ((4, {}), (8, {"micro_batch": 8}), (2, {"micro_batch": 2}), (16, {"micro_batch": 16}))
    kept = Adopted(
        name=name, created="2026-11-23T00:00:00+00:00", command=(sys.executable, str(SCRIPT)), folder=str(home),
        recipe=Recipe(name=name, knobs=knobs), device_key="cpu", torch="2.13.0", gpus=1, verdicts=verdicts,
        bursts=tuple(burst(rows, 1, 0.01 + rows * 0.001, **values) for rows, values in sizes), seconds=20.0,
    )  # fmt: skip
    save_adopted(home, kept)
    return kept
