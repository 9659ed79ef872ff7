"""Plans drawn fleets, and compares their cost with a bound, with simpler rules, and with hindsight.

python benchmarks/fleet.py [--fleets 5] [--runs 60] [--kinds 10] [--effort 1] [--futures 200] [--block-usd 1.5]

The fleets: owned GPUs, a reservation that can be bought, rented GPUs (H100 with a quota), spot machines; runs of
log-uniform length with deadlines of 1.5 to 8 times their shortest time. Times are as uncertain as uncalibrated
predictions (a factor of 1.4 in 8 of 10 cases), and each deadline is to be met in 9 of 10 futures.

The rivals plan nothing in common. "Own cheapest": each run takes the cheapest GPUs on demand on which its time at the
same quantile keeps its deadline. "First come": each run takes the fastest GPUs on demand. Both get more than they could
have (any number of H100, whatever the quota) and less than the plan may use (no owned GPUs, no spot machines, no
block). "Greedy": the runs in the order in which they are listed, each on the cheapest GPUs of all pools, owned and spot
too, that are free in time; it buys no block.

Columns: `cost` are planned dollars; `in futures` compares the medians of 500 drawn futures, in which spot runs fall
back on demand. `late` counts runs that meet their deadline in less than 9 of 10 futures, or have no place. `regret` is
by how much the plan's blocks cost more than the best number of blocks in each of the drawn futures, both by the linear
program; `--block-usd` is a block's price for a GPU-hour, where 1.5 rarely pays in these fleets and 0.8 often does.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace

import numpy as np

from advisor.fleets.bound import Program
from advisor.fleets.purchases import futures
from advisor.fleets.records import Bound, Fleet, FleetRun, Placement, Pool, PoolKind, Schedule, Way
from advisor.fleets.simulate import simulate
from advisor.fleets.timeline import Timeline
from advisor.records import Basis, Estimate
from advisor.workflows.fleet import solve

# GPU-hours of an RTX 4090 that one hour of the GPU does, and dollars an hour on demand
SPEED = {"rtx-4090": (1.0, 0.5), "a100-80gb-sxm": (1.7, 1.2), "h100-80gb-sxm": (3.6, 2.6)}
FACTOR = 1.4  # of the 80 % interval of a run's time
Z90 = 1.2816  # of the normal distribution
MUST = 1e5  # dollars for a day of lateness


def drawn_fleet(runs: int, seed: int, kinds: int | None = None, block_usd: float = 1.5) -> Fleet:
    """Return a fleet of so many runs, of so many kinds (None: each its own)."""
    rng = np.random.default_rng(seed)
    size = max(1, runs // 15)
    pools = (
        Pool(name="owned", kind=PoolKind.OWNED, gpu="rtx-4090", gpus=4 * size, usd_per_gpu_hour=0.08),
        Pool(name="block", kind=PoolKind.RESERVATION, gpu="h100-80gb-sxm", gpus=8, from_hours=24.0, until_hours=168.0,
             upfront_usd=8 * 144 * block_usd, most_blocks=size),
        Pool(name="h100", kind=PoolKind.ON_DEMAND, gpu="h100-80gb-sxm", gpus=8 * size, usd_per_gpu_hour=2.6),
        Pool(name="a100", kind=PoolKind.ON_DEMAND, gpu="a100-80gb-sxm", gpus=None, usd_per_gpu_hour=1.2),
        Pool(name="4090", kind=PoolKind.ON_DEMAND, gpu="rtx-4090", gpus=None, usd_per_gpu_hour=0.5),
        Pool(name="spot", kind=PoolKind.SPOT, gpu="a100-80gb-sxm", gpus=8 * size, usd_per_gpu_hour=0.6,
             availability=0.7, up_hours=4.0),
    )  # fmt: skip
    found = []
    of_kinds = kinds or runs
    shares = [runs // of_kinds + (kind < runs % of_kinds) for kind in range(of_kinds)]
    for kind, copies in enumerate(shares):
        work = float(np.exp(rng.uniform(math.log(8), math.log(400))))  # hours of one RTX 4090
        memory_needs = rng.random() < 0.25  # does not fit an RTX 4090
        deviation = math.log(FACTOR) / 1.2816
        ways = []
        for pool in pools:
            if memory_needs and pool.gpu == "rtx-4090":
                continue
            for gpus in (1, 2, 4, 8):
                hours = work / SPEED[pool.gpu][0] / gpus**0.92
                usd = hours * gpus * (pool.usd_per_gpu_hour or 0.0)
                longer = (
                    (1 + hours / pool.up_hours * 0.2 / hours) / pool.availability if pool.kind is PoolKind.SPOT else 1
                )
                planned = Estimate(value=hours * longer, low=hours * longer / FACTOR, high=hours * longer * FACTOR,
                                   basis=Basis.PRIOR)  # fmt: skip
                ways.append(
                    Way(pool=pool.name, gpus=gpus, hours=planned, work_hours=hours, usd=usd, deviation=deviation)
                )
        earliest = float(rng.choice([0.0, 0.0, rng.uniform(0, 48)]))
        fastest = min(way.hours.value for way in ways)
        slack = rng.uniform(1.5, 8) * max(fastest, 6.0)
        found += [
            FleetRun(name=f"run {kind}.{copy}", group=f"run {kind}", earliest_hours=earliest,
                     deadline_hours=earliest + slack, usd_per_late_day=MUST, must=True, ways=tuple(ways))
            for copy in range(copies)
        ]  # fmt: skip
    return Fleet(name=f"drawn {seed}", starts="2026-12-01T09:00", runs=tuple(found), pools=pools)


def own_cheapest(fleet: Fleet, deviations: float) -> dict[str, Way]:
    """Return by run the cheapest GPUs on demand that meet its deadline, nothing shared."""
    rented, found = {pool.name for pool in fleet.pools if pool.kind is PoolKind.ON_DEMAND}, {}
    for run in fleet.runs:
        room = run.deadline_hours - run.earliest_hours
        ways = [way for way in run.ways if way.pool in rented]
        kept = [way for way in ways if way.hours_at(deviations) <= room]
        found[run.name] = min(kept, key=lambda way: way.usd) if kept else min(ways, key=lambda way: way.hours.value)
    return found


def own_cheapest_usd(fleet: Fleet, deviations: float) -> float:
    return sum(way.usd for way in own_cheapest(fleet, deviations).values())


def in_futures_usd(fleet: Fleet, chosen: dict[str, Way], bound: Bound) -> float:
    """Return the median cost of such a choice in drawn futures, in which rented GPUs have no quota."""
    pools = tuple(replace(pool, gpus=None) if pool.kind is PoolKind.ON_DEMAND else pool for pool in fleet.pools)
    places = tuple(Placement(run=name, pool=way.pool, gpus=way.gpus, start_hours=0.0, end_hours=0.0, usd=way.usd)
                   for name, way in chosen.items())  # fmt: skip
    planned = Schedule(placements=places, left_out={}, blocks={}, usd=0.0, loss_usd=0.0, late=(), bound=bound)
    return float(np.median(simulate(replace(fleet, pools=pools), planned).total_usd))


def first_come_usd(fleet: Fleet) -> float:
    """Return the cost if all runs take the fastest on-demand GPUs, first come first served."""
    rented = ("h100", "a100", "4090")
    return sum(
        min((way for way in run.ways if way.pool in rented), key=lambda way: way.hours.value).usd for run in fleet.runs
    )


def greedy_usd(fleet: Fleet, deviations: float) -> float:
    """Return the cost if the runs, as they are listed, take the cheapest GPUs that are free in time."""
    lines = {pool.name: Timeline(pool.capacity(pool.bought_blocks), pool.from_hours, pool.until_hours)
             for pool in fleet.pools}  # fmt: skip
    total = 0.0
    for run in fleet.runs:
        for way in sorted(run.ways, key=lambda way: way.usd):
            hours = way.hours_at(deviations)
            start = lines[way.pool].earliest(way.gpus, hours, run.earliest_hours, run.deadline_hours)
            if start is not None:
                lines[way.pool].take(way.gpus, start, start + hours)
                total += way.usd
                break
        else:
            total += own_cheapest(replace(fleet, runs=(run,)), deviations)[run.name].usd
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fleets", type=int, default=5)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--kinds", type=int)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--futures", type=int, default=200)
    parser.add_argument("--block-usd", type=float, default=1.5)
    given = parser.parse_args()
    print("fleet  CPU s  gap  cost to own cheapest (in futures)  to first come  to greedy  late  blocks  regret")
    rows = []
    for seed in range(given.fleets):
        fleet = drawn_fleet(given.runs, seed, given.kinds, given.block_usd)
        began = time.process_time()
        plan = solve(fleet, effort=given.effort, seed=seed)
        took, made = time.process_time() - began, plan.schedule
        gap = math.nan if made.gap is None else made.gap
        cheapest = own_cheapest(fleet, Z90)
        own = made.usd / sum(way.usd for way in cheapest.values())
        drawn = plan.total_usd.value / in_futures_usd(fleet, cheapest, made.bound)
        served, greedy = made.usd / first_come_usd(fleet), made.usd / greedy_usd(fleet, Z90)
        regrets = regret(fleet, made.blocks, given.futures, seed) if given.futures else [math.nan]
        rows.append((took, gap, own, drawn, served, greedy, float(np.mean(regrets)), float(np.quantile(regrets, 0.9))))
        print(f"{seed:5}  {took:5.1f}  {gap:.3f}  {own:.3f} ({drawn:.3f})  {served:.3f}  {greedy:.3f}  "
              f"{len(plan.unlikely) + len(made.left_out)} of {len(fleet.runs)}  {sum(made.blocks.values())}  "
              f"{rows[-1][6]:.3f}/{rows[-1][7]:.3f}", flush=True)  # fmt: skip
    middle, worst = np.nanmedian(rows, axis=0), np.nanmax(rows, axis=0)
    for name, found in (("median", middle), ("worst", worst)):
        print(
            f"{name}: {found[0]:.1f} s, gap {found[1]:.3f}; to own cheapest {found[2]:.3f} ({found[3]:.3f}), "
            f"to first come {found[4]:.3f}, to greedy {found[5]:.3f}; regret {found[6]:.3f}/{found[7]:.3f}"
        )


def regret(fleet: Fleet, blocks: dict[str, int], count: int, seed: int) -> list[float]:
    """Return by how much the purchases cost more than the best ones in each future, by the relaxed program."""
    found = []
    for future in futures(fleet, count, seed + 1000):
        program = Program(future, slots=24)
        best, _ = program.best_blocks()
        found.append(program.solved(blocks).fun / program.solved(best).fun - 1)
    return found


if __name__ == "__main__":
    main()
