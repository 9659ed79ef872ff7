"""How many candidates a second the search weighs, and how long the default question takes.

    python benchmarks/search_speed.py

A candidate is one GPU type, number of GPUs, offer (on demand or spot), depth, micro-batch, accumulation, checkpointing
and token budget, of which time, memory, cost, score and loss were all computed. Step time and memory do not depend on
the token budget, nor memory on the offer: those candidates that share a configuration share them, and making them is
inside the time. Nothing is passed over here; the search itself skips configurations that another one beats at any
budget. The question is what `advisor plan --gpu any --budget 20 --deadline 8h` asks, without and with the start of the
process. The best of five counts, since other programs only ever slow it down.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.cli.plan import load_profiles
from advisor.plan.answer import answer
from advisor.plan.bills import Limits
from advisor.plan.field import make_field
from advisor.plan.market import COUNTS, devices_of
from advisor.plan.weigh import weigh
from advisor.records import Goal
from advisor.store import default_store

ROOT = Path(__file__).resolve().parent.parent
GOAL = Goal(gpu="any", counts=COUNTS, budget_usd=20.0, deadline_seconds=8 * 3600.0)
REPEATS = 5


def best_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of several runs, and what the last one gave."""
    least, found = float("inf"), None
    for _ in range(REPEATS):
        start = time.perf_counter()
        found = work()
        least = min(least, time.perf_counter() - start)
    return least, found


def main() -> None:
    profiles, _ = load_profiles(GOAL, default_store())
    devices, _ = devices_of(GOAL, profiles, None)
    limits = Limits(deadline_seconds=GOAL.deadline_seconds, budget_usd=GOAL.budget_usd)
    seconds, count = best_seconds(lambda: weigh(make_field(devices), limits, spot=False).candidates)
    print(f"{count:,} candidates on {len(devices)} cards in {seconds:.2f} s: {count / seconds:,.0f} a second")
    seconds, plan = best_seconds(lambda: answer(GOAL, profiles, now=datetime.now(UTC)))
    print(f"the default question: {seconds:.2f} s, {plan.search.candidates:,} candidates after skipping what is beaten")
    command = [sys.executable, "-m", "advisor", "plan", "--gpu", "any", "--budget", "20", "--deadline", "8h", "--json"]
    run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": ROOT}
    seconds, _ = best_seconds(lambda: subprocess.run(command, **run))
    print(f"the same as a command, start-up included: {seconds:.2f} s")


if __name__ == "__main__":
    main()
