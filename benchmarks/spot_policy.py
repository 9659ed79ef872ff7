"""Replays recorded spot availability: the policy against waiting greedily and against perfect foresight.

python benchmarks/spot_policy.py TRACES [--work 48] [--overhead-minutes 12] [--share 0.3] [--starts 8]

TRACES is a folder of JSON files {"metadata": {"gap_seconds": …}, "data": [machines there, …]}, as in the public
repository skypilot-org/spot-traces (availability/1-node/aws-02-15-2023: 9 zones, one V100). The policy knows the zone's
last week. Costs are shares of the on-demand cost of the work.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from advisor.fleets.spot import ON_DEMAND, SPOT, WAIT, Policy, rates_of

STEP_HOURS = 0.2  # about
REFRESH_HOURS = 12.0  # after which the rates are estimated anew
WEEK = 168.0

Choose = Callable[[int, int, int, bool, int], int]  # step, steps left, work left, spot there, what runs → what to do


def follow(there: np.ndarray, step: float, work: int, start: int, share: float, choose: Choose) -> tuple[float, bool]:
    """Return the cost of a job in on-demand hours, and whether it was late."""
    running, cost = WAIT, 0.0
    for at, up in enumerate(there.tolist()):
        if work <= 0:
            break
        running = WAIT if running == SPOT and not up else running
        action = choose(at, len(there) - at, work, up, running)
        if action != WAIT:
            work += (start if action != running else 0) - 1
            cost += step * (share if action == SPOT else 1.0)
        running = action
    return cost, work > 0


def greedy(start: int) -> Choose:
    """Wait for spot machines until the slack is used up; from then on, on demand."""

    def choose(at: int, left: int, work: int, up: bool, running: int) -> int:
        if running == ON_DEMAND or (left <= work + 2 * start + 1 and running != SPOT):
            return ON_DEMAND
        return SPOT if up else WAIT

    return choose


def with_policy(seen: np.ndarray, first: int, step: float, overhead: float, share: float) -> Choose:
    """Follow the advisor's policy, whose rates come from the last week."""
    made: dict[str, object] = {"at": -math.inf}

    def choose(at: int, left: int, work: int, up: bool, running: int) -> int:
        if at - made["at"] >= REFRESH_HOURS / step and (running == WAIT or made["at"] < 0):
            rates = rates_of(seen[max(0, first + at - int(WEEK / step)) : first + at + 1].tolist(), step)
            try:
                made["policy"] = Policy(work_hours=work * step, hours_left=left * step, overhead_hours=overhead,
                                        spot_share=share, rates=rates, step_hours=step)  # fmt: skip
                made["at"] = at
            except ValueError:  # no slack is left for another policy
                return ON_DEMAND
        policy: Policy = made["policy"]  # type: ignore[assignment]
        return policy.action(hours_left=left * step, work_left=work, spot_there=up, running=running)

    return choose


def foreseen(there: np.ndarray, step: float, work: int, start: int, share: float) -> float:
    """Return the least cost of a job by somebody who knows the trace."""
    most = work + 40 * start + 2
    later = np.full((3, most + 1), np.inf)
    later[:, 0] = 0.0
    for up in there[::-1].tolist():
        now = np.full((3, most + 1), np.inf)
        for running in (WAIT, SPOT, ON_DEMAND):
            before = WAIT if running == SPOT and not up else running
            for action in (WAIT, SPOT, ON_DEMAND) if up else (WAIT, ON_DEMAND):
                left = np.arange(most + 1)
                left = left if action == WAIT else left + (start if action != before else 0) - 1
                value = np.where(left <= most, later[action, np.clip(left, 0, most)], np.inf)
                now[running] = np.minimum(now[running], value + step * {WAIT: 0.0, SPOT: share, ON_DEMAND: 1.0}[action])
        now[:, 0] = 0.0
        later = now
    return float(later[WAIT, work])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--work", type=float, default=48.0)
    parser.add_argument("--overhead-minutes", type=float, default=12.0)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--starts", type=int, default=8)
    given = parser.parse_args()
    print("deadline  greedy  policy  foreseen  late  share of greedy's gap closed")
    for deadline in (1.25 * given.work, 1.5 * given.work, 2 * given.work):
        rows = []
        for path in sorted(given.traces.glob("*.json")):
            trace = json.loads(path.read_text())
            gap = trace["metadata"]["gap_seconds"] / 3600
            every = max(1, round(STEP_HOURS / gap))
            step, there = gap * every, np.array(trace["data"])[::every] > 0
            steps, start = int(deadline / step), math.ceil(given.overhead_minutes / 60 / step - 1e-9)
            work = math.ceil(given.work / step - 1e-9)
            for first in np.linspace(0, len(there) - steps - 1, given.starts).astype(int).tolist():
                part = there[first : first + steps]
                waited = follow(part, step, work, start, given.share, greedy(start))
                chosen = with_policy(there, first, step, given.overhead_minutes / 60, given.share)
                followed = follow(part, step, work, start, given.share, chosen)
                rows.append((waited[0], followed[0], foreseen(part, step, work, start, given.share), followed[1]))
        mean = np.array(rows, dtype=float).mean(axis=0)
        closed = (mean[0] - mean[1]) / (mean[0] - mean[2])
        shares = "  ".join(f"{usd / given.work:.3f}" for usd in mean[:3])
        print(f"{deadline:6.0f} h  {shares}  {int(mean[3] * len(rows))} of {len(rows)}  {closed:.0%}", flush=True)


if __name__ == "__main__":
    main()
