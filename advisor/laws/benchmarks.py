"""The scores that guessing reaches on common benchmarks, with their statistical error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from advisor.laws.intervals import Z95

_SHORT_NAME = 5  # names with fewer letters must be whole words, so that "quartet" does not match "rte"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A test set with the score of random answers and the number of questions."""

    chance: float
    questions: int

    @property
    def standard_error(self) -> float:
        """Standard error of a guessed score: √(p·(1 − p)/n)."""
        return math.sqrt(self.chance * (1 - self.chance) / self.questions)


# From the publications: the chance is 1 over the number of answers, or 0 for free answers; the questions are those of
# the split that is scored.
BENCHMARKS = {
    "hellaswag": Benchmark(chance=0.25, questions=10_042),
    "mmlu": Benchmark(chance=0.25, questions=14_042),
    "arc_challenge": Benchmark(chance=0.25, questions=1_172),
    "arc_easy": Benchmark(chance=0.25, questions=2_376),
    "openbookqa": Benchmark(chance=0.25, questions=500),
    "race": Benchmark(chance=0.25, questions=1_045),
    "commonsense_qa": Benchmark(chance=0.2, questions=1_221),
    "piqa": Benchmark(chance=0.5, questions=1_838),
    "winogrande": Benchmark(chance=0.5, questions=1_267),
    "boolq": Benchmark(chance=0.5, questions=3_270),  # always "yes" scores 62 %
    "copa": Benchmark(chance=0.5, questions=100),
    "rte": Benchmark(chance=0.5, questions=277),
    "lambada": Benchmark(chance=0.0, questions=5_153),
    "gsm8k": Benchmark(chance=0.0, questions=1_319),
    "humaneval": Benchmark(chance=0.0, questions=164),
}


def benchmark_of(name: str) -> str | None:
    """Return the key of BENCHMARKS for the name of a score ("eval/hellaswag_acc_norm"), or None if there is none."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower())
    if plain.endswith("hella") or "hella_" in plain:
        return "hellaswag"
    words, run_on = plain.split("_"), plain.replace("_", "")
    hits = [
        key
        for key in BENCHMARKS
        if (key in words if len(key) < _SHORT_NAME else key in plain or key.replace("_", "") in run_on)
    ]
    return max(hits, key=len) if hits else None


def chance_interval(benchmark: Benchmark) -> tuple[float, float]:
    """Return the interval that contains 95 % of guessed scores: chance ± 1.96 standard errors."""
    half = Z95 * benchmark.standard_error
    return benchmark.chance - half, benchmark.chance + half
