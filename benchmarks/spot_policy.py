"""Replays recorded spot availability: the policy against waiting greedily and against perfect foresight.

python benchmarks/spot_policy.py TRACES [--work 48] [--overhead-minutes 12] [--share 0.3] [--starts 8]

TRACES has folders of JSON files {"metadata": {"gap_seconds": …}, "data": [machines there, …]}, as the public repository
skypilot-org/spot-traces. Each folder is left out: the policy knows the rates by age of the zones in all the others, and
how often machines came and went in the zone's own last week. A second figure is for a policy that knows the zone's own
rates by age, from its whole recording: about the most that any could do. Costs are shares of the on-demand cost of the
work.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from advisor.fleets.spot import ON_DEMAND, PRIOR_TIMES, RECORDED, SPOT, WAIT, Policy, interval_of

STEP_HOURS = 0.2  # about
REFRESH_HOURS = 12.0  # after which the rates are estimated anew
WEEK = 168.0
CPU_ONLY = ("intel_64", "c3-88")

Zone = tuple[float, np.ndarray]  # hours of a step; whether machines were there
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


def with_policy(seen: np.ndarray, first: int, step: float, overhead: float, share: float, known: np.ndarray) -> Choose:
    """Follow the advisor's policy with the rates of other zones, made as high as they were here in the last week."""
    since = 0.0
    for now, before in zip(seen[1 : first + 1].tolist(), seen[:first].tolist(), strict=True):
        since = since + step if now == before else 0.0
    made: dict[str, object] = {"at": -math.inf, "age": since}

    def choose(at: int, left: int, work: int, up: bool, running: int) -> int:
        if at:
            made["age"] = made["age"] + step if up == seen[first + at - 1] else 0.0
        if at - made["at"] >= REFRESH_HOURS / step and (running == WAIT or made["at"] < 0):
            rates = rates_of(seen[max(0, first + at - int(WEEK / step)) : first + at + 1], step, known)
            try:
                made["policy"] = Policy(work_hours=work * step, hours_left=left * step, overhead_hours=overhead,
                                        spot_share=share, rates=rates, step_hours=step)  # fmt: skip
                made["at"] = at
            except ValueError:  # no slack is left for another policy
                return ON_DEMAND
        policy: Policy = made["policy"]  # type: ignore[assignment]
        return policy.action(
            hours_left=left * step, work_left=work, spot_there=up, running=running, age_hours=made["age"]
        )

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


def counted(seen: np.ndarray, step_hours: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how often machines came and went at each age, and in how many hours they could have."""
    changes = np.flatnonzero(np.diff(seen, prepend=~seen[:1]))
    age = (np.arange(len(seen)) - np.repeat(changes, np.diff(changes, append=len(seen)))) * step_hours
    at = seen[:-1].astype(int), interval_of(age[:-1])
    times, hours = np.zeros_like(RECORDED), np.zeros_like(RECORDED)
    np.add.at(times, at, seen[1:] != seen[:-1])
    np.add.at(hours, at, step_hours)
    return times, hours


def rates_of(seen: np.ndarray, step_hours: float, known: np.ndarray = RECORDED) -> np.ndarray:
    """Return the rates of other zones, scaled to a zone in which machines were seen, or not, at each step so far."""
    times, hours = counted(seen, step_hours)
    expected = (hours * known).sum(axis=1, keepdims=True)
    return known * (times.sum(axis=1, keepdims=True) + PRIOR_TIMES) / (expected + PRIOR_TIMES)


def zones_of(folder: Path) -> list[Zone]:
    found = []
    for path in sorted(folder.glob("*.json")):
        trace = json.loads(path.read_text())
        gap = trace["metadata"]["gap_seconds"] / 3600
        every = max(1, round(STEP_HOURS / gap))
        found.append((gap * every, np.array(trace["data"])[::every] > 0))
    return found


def pooled(zones: Iterable[Zone]) -> np.ndarray:
    """Return the rates of all these zones together; half an hour at the advisor's own for ages that nobody reached."""
    times, hours = np.sum([counted(there, step) for step, there in zones], axis=0)
    return (times + 0.5 * RECORDED) / (hours + 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--work", type=float, default=48.0)
    parser.add_argument("--overhead-minutes", type=float, default=12.0)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--starts", type=int, default=8)
    given = parser.parse_args()
    folders = {path.parent for path in given.traces.glob("**/*.json") if not path.stem.endswith(CPU_ONLY)}
    recorded = {f"{folder.parent.name}/{folder.name}": zones_of(folder) for folder in sorted(folders)}
    every = pooled(zone for zones in recorded.values() for zone in zones)
    print(f"all zones: machines come {np.round(every[0], 3)}, go {np.round(every[1], 3)} times an hour")
    print("deadline  greedy  policy, with its zone's own shape  foreseen  late  shares of greedy's gap closed")
    for name, zones in recorded.items():
        known = pooled(zone for other, theirs in recorded.items() if other != name for zone in theirs)
        for deadline in (1.25 * given.work, 1.5 * given.work, 2 * given.work):
            rows = []
            for step, there in zones:
                steps, start = int(deadline / step), math.ceil(given.overhead_minutes / 60 / step - 1e-9)
                if steps >= len(there):
                    continue
                work = math.ceil(given.work / step - 1e-9)
                for first in np.linspace(0, len(there) - steps - 1, given.starts).astype(int).tolist():
                    part = there[first : first + steps]
                    waited, _ = follow(part, step, work, start, given.share, greedy(start))
                    usd, late = [], []
                    for rates in (known, pooled([(step, there)])):
                        chosen = with_policy(there, first, step, given.overhead_minutes / 60, given.share, rates)
                        one = follow(part, step, work, start, given.share, chosen)
                        usd.append(one[0])
                        late.append(one[1])
                    rows.append((waited, *usd, foreseen(part, step, work, start, given.share), late[0]))
            mean = np.array(rows, dtype=float).mean(axis=0)
            closed = (mean[0] - mean[1:3]) / (mean[0] - mean[3])
            shares = "  ".join(f"{usd / given.work:.3f}" for usd in mean[:4])
            print(f"{name:24} {deadline:4.0f} h  {shares}  {int(mean[4] * len(rows))} of {len(rows)}  {closed[0]:.0%}"
                  f" {closed[1]:.0%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
