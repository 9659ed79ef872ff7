"""Plans synthetic fleets, and replays them in drawn futures: cost against the bound and against simpler rules.

python benchmarks/fleet.py [--fleets 5] [--runs 60] [--effort 1] [--futures 200]

The fleets are drawn: owned GPUs, a reservation that can be bought, rented GPUs with a quota, spot machines; runs of
log-uniform length with deadlines of one to seven times their length. Their times are as uncertain as uncalibrated
predictions are (a factor of 1.4 in 8 of 10 cases).
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace

import numpy as np

from advisor.fleets.bound import least_cost
from advisor.fleets.records import Fleet, FleetRun, Pool, PoolKind, Way
from advisor.records import Basis, Estimate
from advisor.workflows.fleet import solve

# GPU-hours of an RTX 4090 that one hour of the GPU does, and dollars an hour on demand
SPEED = {"rtx-4090": (1.0, 0.5), "a100-80gb-sxm": (1.7, 1.2), "h100-80gb-sxm": (3.6, 2.6)}
FACTOR = 1.4  # of the 80 % interval of a run's time
MUST = 1e5  # dollars for a day of lateness


def drawn_fleet(runs: int, seed: int, kinds: int | None = None) -> Fleet:
    """Return a fleet of so many runs, of so many kinds (None: each its own)."""
    rng = np.random.default_rng(seed)
    size = max(1, runs // 15)
    pools = (
        Pool(name="owned", kind=PoolKind.OWNED, gpu="rtx-4090", gpus=4 * size, usd_per_gpu_hour=0.08),
        Pool(name="block", kind=PoolKind.RESERVATION, gpu="h100-80gb-sxm", gpus=8, from_hours=24.0, until_hours=168.0,
             upfront_usd=8 * 144 * 1.5, most_blocks=size),
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


def own_cheapest_usd(fleet: Fleet, deviations: float) -> float:
    """Return the cost if each run takes its own cheapest rented offer that meets its deadline, nothing shared."""
    rented = {pool.name for pool in fleet.pools if pool.kind in (PoolKind.ON_DEMAND,)}
    total = 0.0
    for run in fleet.runs:
        room = run.deadline_hours - run.earliest_hours
        ways = [way for way in run.ways if way.pool in rented]
        kept = [way for way in ways if way.hours_at(deviations) <= room]
        total += min(way.usd for way in kept) if kept else min(ways, key=lambda way: way.hours.value).usd
    return total


def first_come_usd(fleet: Fleet) -> float:
    """Return the cost if all runs take the fastest on-demand GPUs, first come first served."""
    total = 0.0
    for run in fleet.runs:
        total += min((way for way in run.ways if way.pool in ("h100", "a100")), key=lambda way: way.hours.value).usd
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fleets", type=int, default=5)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--kinds", type=int)
    parser.add_argument("--effort", type=float, default=1.0)
    parser.add_argument("--futures", type=int, default=200)
    given = parser.parse_args()
    print("fleet  seconds  gap  to own cheapest  to first come  late  blocks  regret mean / p90")
    gaps, cheaper, served = [], [], []
    for seed in range(given.fleets):
        fleet = drawn_fleet(given.runs, seed, given.kinds)
        began = time.perf_counter()
        plan = solve(fleet, effort=given.effort, seed=seed)
        took = time.perf_counter() - began
        schedule = plan.schedule
        # The bound of the same question: with the deadlines' room that the schedule was asked to keep.
        gaps.append(schedule.gap)
        cheaper.append(schedule.usd / own_cheapest_usd(fleet, 1.2816))
        served.append(schedule.usd / first_come_usd(fleet))
        regrets = regret(fleet, plan, given.futures, seed) if given.futures else [math.nan]
        print(f"{seed:5}  {took:7.1f}  {gaps[-1]:.3f}  {cheaper[-1]:.3f}  {served[-1]:.3f}  "
              f"{len(plan.unlikely) + len(schedule.left_out)} of {len(fleet.runs)}  {sum(schedule.blocks.values())}  "
              f"{np.mean(regrets):.3f} / {np.quantile(regrets, 0.9):.3f}", flush=True)  # fmt: skip
    print(f"median gap {np.median(gaps):.3f}, worst {max(gaps):.3f}; to own cheapest {np.median(cheaper):.3f}; "
          f"to first come {np.median(served):.3f}")  # fmt: skip


def regret(fleet: Fleet, plan, futures: int, seed: int) -> list[float]:
    """Return by how much the purchases cost more than the best ones in each future, by the relaxed program."""
    rng, found = np.random.default_rng(seed + 1000), []
    for _ in range(futures):
        shared = {gpu: rng.standard_normal() for gpu in SPEED}
        gpu_of = {pool.name: pool.gpu for pool in fleet.pools}
        runs = []
        for run in fleet.runs:
            own, ways = rng.standard_normal(), []
            for way in run.ways:
                factor = math.exp(way.deviation * (math.sqrt(0.75) * shared[gpu_of[way.pool]] + 0.5 * own))
                ways.append(replace(way, hours=way.hours.scaled(factor), usd=way.usd * factor))
            runs.append(replace(run, ways=tuple(ways)))
        future = replace(fleet, runs=tuple(runs))
        best = least_cost(future)
        fixed = tuple(
            replace(pool, bought_blocks=plan.schedule.blocks.get(pool.name, 0),
                    most_blocks=plan.schedule.blocks.get(pool.name, 0))
            if pool.kind is PoolKind.RESERVATION else pool for pool in fleet.pools
        )  # fmt: skip
        paid = sum(pool.upfront_usd * plan.schedule.blocks.get(pool.name, 0) for pool in fleet.pools)
        found.append((least_cost(replace(future, pools=fixed)).usd + paid) / best.usd - 1)
    return found


if __name__ == "__main__":
    main()
