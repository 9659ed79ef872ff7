"""An adopted command for tests of pages."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from advisor.store.adopted import Adopted, Knob, KnobVerdict, Recipe, save_adopted
from tests.engines.adopted_runs import SCRIPT, adopted_of, burst_of


def adopted(home: Path, name: str = "mine") -> Adopted:
    """A command of which a step takes 10 ms and 1 ms a row, measured at four batches."""
    knobs = (Knob(name="micro_batch", key="--bsz", value=4), Knob(name="steps", key="--iters"))
    verdicts = (
        KnobVerdict(name="micro_batch", verdict="works", words="--bsz changes the sequences of a micro-batch"),
        KnobVerdict(name="steps", verdict="dead", words="8 steps were asked for, it had done 50 when it was ended"),
    )
    sizes = ((4, {}), (8, {"micro_batch": 8}), (2, {"micro_batch": 2}), (16, {"micro_batch": 16}))
    bursts = (burst_of(rows, 1, 32, 0.01 + rows * 0.001, **values) for rows, values in sizes)
    bursts = (replace(burst, elements=1234, resident_peak_bytes=None) for burst in bursts)
    kept = adopted_of(Recipe(name=name, knobs=knobs), *bursts, command=(sys.executable, str(SCRIPT)),
                      folder=str(home), verdicts=verdicts)  # fmt: skip
    save_adopted(home, kept)
    return kept
