"""Measures how many candidates per second the search evaluates, and how long the default question takes.

    python benchmarks/search_speed.py [--record]

A candidate is one GPU type, number of GPUs, offer (on demand or spot), depth, micro-batch, accumulation, checkpointing
and token budget, with its computed time, memory, cost, score and loss. Step time does not depend on the token budget,
and memory depends on neither budget nor offer, so candidates with the same configuration share them; the measured time
includes computing them. Every micro-batch is evaluated here, but the search itself evaluates only the one that the
batch rule leaves. The question is `advisor plan --gpu any --budget 20 --deadline 8h`, with and without the start of the
process. A what-if is one evaluation: the plan's run with one change, for every slider position of the page Plan.
`--record` keeps the raw seconds for docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from timing import in_words, record, repeat

from advisor.errors import AdvisorError
from advisor.options import Goal
from advisor.planning import explore
from advisor.planning.answer import answer, what_if
from advisor.planning.candidates import Device, make_candidates
from advisor.planning.evaluate import evaluate
from advisor.planning.goal import Limits
from advisor.planning.offers import NODE_COUNTS
from advisor.planning.search_space import devices_of
from advisor.prediction.profile import Profile
from advisor.records import Plan
from advisor.store.store import default_store
from advisor.workflows.plan import load_profiles

ROOT = Path(__file__).resolve().parent.parent
GOAL = Goal(gpu="any", counts=NODE_COUNTS, budget_usd=20.0, deadline_seconds=8 * 3600.0)
REPEATS = 5


def _candidates(devices: list[Device], limits: Limits) -> int:
    return evaluate(make_candidates(devices, every_micro_batch=True), limits, spot=False).candidates


def _what_ifs(plan: Plan, profiles: dict[str, Profile]) -> list[float]:
    """Return the seconds of each possible change of the plan's run."""
    seconds = []
    for name, (_, values) in explore.ranges(plan.chosen).items():
        for value in values:
            goal = explore.pinned(plan.goal, plan.chosen, explore.Changes(**{name: value}))
            begun = time.perf_counter()
            with contextlib.suppress(AdvisorError):  # too large for its memory, which is a valid answer
                what_if(goal, profiles[goal.gpu], now=datetime.now(UTC))
            seconds.append(time.perf_counter() - begun)
    return seconds


def main() -> None:
    """Print, and with --record keep, candidates per second and the seconds of the default question."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="keep the result in benchmarks/raw/speed/")
    options = parser.parse_args()
    profiles, _ = load_profiles(GOAL, default_store())
    devices, _ = devices_of(GOAL, profiles, None)
    limits = Limits(deadline_seconds=GOAL.deadline_seconds, budget_usd=GOAL.budget_usd)
    searching, count = repeat(lambda: _candidates(devices, limits), REPEATS)
    rate = count / statistics.median(searching)
    print(f"{count:,} candidates on {len(devices)} cards in {in_words(searching)}: {rate:,.0f} a second")
    question, plan = repeat(lambda: answer(GOAL, profiles, now=datetime.now(UTC)), REPEATS)
    print(f"the default question: {in_words(question)}, {plan.search.candidates:,} candidates, what is beaten skipped")
    moves = _what_ifs(plan, {profile.key: profile for profile in profiles})
    p95 = statistics.quantiles(moves, n=20)[-1]
    print(f"a what-if: {1e3 * statistics.median(moves):.1f} ms, 95th percentile {1e3 * p95:.1f} ms of {len(moves)}")
    command = [sys.executable, "-m", "advisor", "plan", "--gpu", "any", "--budget", "20", "--deadline", "8h", "--json"]
    run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": ROOT}
    process, _ = repeat(lambda: subprocess.run(command, **run), REPEATS)
    print(f"the same as a command, start-up included: {in_words(process)}")
    if options.record:
        seconds = {"search_seconds": searching, "question_seconds": question, "command_seconds": process}
        seconds["what_if_seconds"] = moves
        record("search_speed", {"candidates": count, "cards": len(devices), **seconds})


if __name__ == "__main__":
    main()
