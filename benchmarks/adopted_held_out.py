"""Scores the fit of an adopted command beyond its fitted range, up to twice the micro-batch and sequence length.

    python benchmarks/adopted_held_out.py --out FILE.yaml [--seconds 240] [--visits 2] [--seed 0] -- COMMAND ...
    python benchmarks/adopted_held_out.py --score FILE.yaml ...

It adopts the command as `advisor adopt` does. Then it runs batches that the adoption did not try, in shuffled rounds,
and writes the adoption and every burst into one raw file, which `--score` reads. The command needs options for
micro-batch and sequence length. For comparison, `benchmarks/held_out.py` measures our own trainer on the same machine
in the same hour. The target is at most 1.25 times its error.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from advisor.adopt.fit import Batch, batch_of, time_of
from advisor.adopt.self_test import cut_apart
from advisor.adopt.session import Command, in_words, one_burst
from advisor.store.adopted import Adopted, AdoptedBurst, Setting
from advisor.store.disk import dump_yaml, read_yaml, write_atomic
from advisor.store.store import Store
from advisor.workflows.adopt import adopt_command
from trainer.schema import record_from_dict, to_dict

# Micro-batch and length in units of the command's own values; an adoption tries up to 4 and 1
HELD = ((3, 1), (6, 1), (8, 1), (8, 0.5), (1, 1.5), (1, 2), (2, 1.5), (2, 2), (0.5, 2), (4, 2))
_MOST_SECONDS = 120.0  # for one burst


def main() -> None:
    """Measure a command, or score earlier measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--score", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--visits", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    if options.score is None:
        measure(options.command, options.out, options.seconds, options.visits, random.Random(options.seed))
    for path in options.score or [options.out]:
        score(path)


def measure(command: list[str], out: Path, seconds: float, visits: int, rng: random.Random) -> None:
    """Adopt the command, then run what the adoption did not try. The file is complete after each burst."""
    with tempfile.TemporaryDirectory() as home:
        adopted = adopt_command(Store(Path(home)), command, budget_seconds=seconds, on_event=say)
    knobs = [adopted.recipe.knob(name) for name in ("micro_batch", "seq_len")]
    bases = {knob.name: knob.value for knob in knobs if knob is not None and knob.value is not None}
    if len(bases) < 2:
        raise SystemExit(f"{adopted.recipe.name} has no knob for {' and '.join({'micro_batch', 'seq_len'} - {*bases})}")
    again = Command(arguments=adopted.command, folder=Path(adopted.folder), environment=os.environ,
                    recipe=adopted.recipe)  # fmt: skip
    held: list[AdoptedBurst] = []
    for _ in range(visits):
        for rows, length in rng.sample(HELD, len(HELD)):
            micro, seq = (
                max(1, round(rows * float(bases["micro_batch"] or 1))),
                round(length * float(bases["seq_len"] or 1)),
            )
            settings = (Setting(name="micro_batch", value=micro), Setting(name="seq_len", value=seq))
            burst = one_burst(again, settings, _MOST_SECONDS)
            held.append(burst)
            print(f"{in_words(settings, adopted.recipe)}: {burst.outcome}, {burst.seconds:.1f} s", flush=True)
            raw = {"adopted": to_dict(adopted), "held_out": [to_dict(burst) for burst in held]}
            write_atomic(out, dump_yaml(raw))


def score(path: Path) -> None:
    """Print the errors of each held-out batch over all visits, and how many intervals contain the measurement."""
    raw: dict[str, Any] = read_yaml(path, "raw file")
    adopted = record_from_dict(Adopted, raw["adopted"])
    fitted = time_of(adopted)
    visits: dict[Batch, list[float]] = {}
    for burst in (record_from_dict(AdoptedBurst, each) for each in raw["held_out"]):
        burst = as_asked(adopted, burst)
        if burst.measured and burst.steady and (batch := batch_of(burst)) is not None:
            visits.setdefault(batch, []).append(statistics.median(burst.step_seconds))
    errors, inside = [], []
    for batch, seconds in visits.items():
        actual, said = math.exp(statistics.mean(map(math.log, seconds))), fitted.estimate(batch)
        errors.append(abs(said.value / actual - 1))
        inside.append(said.contains(actual))
        drift = max(seconds) / min(seconds) - 1
        print(f"  {batch.rows:g} rows of {batch.length:.0f} x {batch.calls:g}: {said.value:.3f} s "
              f"({said.low:.3f}-{said.high:.3f}), took {actual:.3f} s: {said.value / actual - 1:+.1%}; "
              f"visits {drift:.0%} apart")  # fmt: skip
    p90 = statistics.quantiles(errors, n=10, method="inclusive")[-1]
    print(f"{path.name}: {adopted.recipe.name}, {len(errors)} batches: median {statistics.median(errors):.1%}, "
          f"p90 {p90:.1%}, inside {sum(inside)} of {len(inside)}")  # fmt: skip


def as_asked(adopted: Adopted, burst: AdoptedBurst) -> AdoptedBurst:
    """Return a burst with its rows cut apart, if the command joins them end to end."""
    shape, asked = burst.shape, burst.value("micro_batch")
    packed = shape is not None and shape.rows == 1 and asked not in (None, 1)
    return cut_apart(adopted.recipe, burst) if packed else burst


def say(text: str, seconds: float) -> None:
    """Print how far an adoption has come."""
    print(f"{seconds:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
