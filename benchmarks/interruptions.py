"""Compares the expected loss to interruptions with a simulation of renewals: `python benchmarks/interruptions.py`.

A run saves a checkpoint after each interval of work. An interruption, at a constant rate, sends it back to the last
checkpoint; then it restarts, and the restart may be interrupted too.
"""

from __future__ import annotations

import numpy as np

from advisor.prediction.wallclock import checkpoint_interval_seconds, lost_share

HOUR = 3600.0


def simulated(mean: float, every: float, stall: float, again: float, segments: int = 200_000, seed: int = 0) -> float:
    """Return the seconds per second of work and checkpoints that a simulated run of so many intervals takes.

    `mean` seconds lie between interruptions, `every` between checkpoints; a checkpoint pauses the run for `stall`, and
    a restart takes `again`.
    """
    draw = np.random.default_rng(seed)
    whole, total, left = every + stall, 0.0, segments
    first = True  # no restart before the first interval of each success
    while left:
        # all intervals that are still open try once more: those that were interrupted begin with a restart
        length = whole if first else whole + again
        until = draw.exponential(mean, size=left)
        done = until >= length
        total += float(np.where(done, length, until).sum())
        left, first = int((~done).sum()), False
    return total / (segments * whole)


def main() -> None:
    """Print the largest difference over machines, rates, checkpoints and restarts."""
    worst = 0.0
    print(f"{'machines':>9}{'mean h':>8}{'restart s':>11}{'expected':>10}{'simulated':>11}")
    for machines in (1, 8, 32, 128):
        for hours in (1, 14, 120):
            for again in (300.0, 900.0):
                mean, stall = hours * HOUR / machines, 10.0
                if again / mean > 5:  # such a run never ends
                    continue
                every = float(checkpoint_interval_seconds(stall, mean))
                expected = 1 + float(lost_share(np.array(every), np.array(stall), np.array(again), np.array(mean)))
                took = simulated(mean, every, stall, again)
                worst = max(worst, abs(took / expected - 1))
                print(f"{machines:>9}{hours:>8}{again:>11.0f}{expected:>10.3f}{took:>11.3f}")
    print(f"largest difference: {worst:.2%}")


if __name__ == "__main__":
    main()
