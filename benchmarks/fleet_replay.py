"""Plans fleets drawn from recorded jobs, and replays them: how often deadlines are met that the plan gave a chance.

python benchmarks/fleet_replay.py --traces FOLDER [--fleets 200] [--effort 0.02]

FOLDER has `philly.csv` (timestamp,duration,num_gpus,gpu_time,cluster: jobs of a shared cluster, as in the public
repository siasosp23/artifacts) and below `spot/` files as benchmarks/spot_policy.py reads them. Only jobs of at least
ten minutes count, before and after.

A fleet is 20 to 40 jobs of one owner in a row, with their real gaps, GPUs and hours. A trace has no estimates of its
users, so that a job is predicted by its owner's jobs that had ended before the fleet began: the median of the last 400
with as many GPUs, and their spread. How such predictions err (the shape, and what runs of one fleet have in common) is
fitted to the earlier half of the fleets, and the later half is planned, simulated and replayed: with the owner's own
errors, and with those of all other owners. Spot machines are those of a zone at a moment drawn in its later half; what
is known of them is their last three days, or, for zones left out, the three days of any other zone.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
from scipy.stats import norm

from advisor.fleets.records import Errors, Fleet, FleetRun, Pool, PoolKind, Way
from advisor.fleets.simulate import RESTART_HOURS, Chances, simulate
from advisor.fleets.spot import rates_of
from advisor.offer import EIGHT_OF_TEN
from advisor.records import Basis, Estimate
from advisor.workflows.fleet import solve

LEAST_HOURS, LAST_JOBS, LEAST_ALIKE, LEAST_DEVIATION = 1 / 6, 400, 20, 0.2
KNOWN_HOURS = 72.0  # of a zone
PRICE, SPOT_SHARE = 2.5, 0.3
GPU = "v100-32gb-sxm"
LEVELS = np.linspace(0.005, 0.995, 100)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of the trace and what was predicted of it. Hours count from the first job."""

    begins: float
    hours: float
    gpus: int
    predicted_hours: float = 0.0  # median
    deviation: float = 0.0  # of its log

    @property
    def error(self) -> float:
        return math.log(self.hours / self.predicted_hours) / self.deviation


@dataclass(frozen=True, kw_only=True)
class Zone:
    name: str
    step: float  # hours
    there: np.ndarray


def fleets_of(folder: Path, rng: np.random.Generator) -> dict[str, list[tuple[Job, ...]]]:
    """Return by owner the fleets that follow each other in its jobs, each predicted by what ended before it began."""
    rows = []
    with (folder / "philly.csv").open() as file:
        for row in csv.DictReader(file):
            if row["duration"] and float(row["duration"]) / 3600 >= LEAST_HOURS:
                rows.append((datetime.fromisoformat(row["timestamp"]).timestamp() / 3600,
                             float(row["duration"]) / 3600, int(row["num_gpus"]), row["cluster"]))  # fmt: skip
    rows.sort()
    jobs: dict[str, list[Job]] = defaultdict(list)
    for begins, hours, gpus, owner in rows:
        jobs[owner].append(Job(begins=begins - rows[0][0], hours=hours, gpus=gpus))
    found: dict[str, list[tuple[Job, ...]]] = defaultdict(list)
    for owner, all_jobs in sorted(jobs.items()):
        first = 0
        while first + (size := int(rng.integers(20, 41))) <= len(all_jobs):
            now = all_jobs[first].begins
            ended = [job for job in all_jobs[:first] if job.begins + job.hours < now][-LAST_JOBS:]
            if len(ended) >= 3 * LEAST_ALIKE:
                found[owner].append(tuple(_predicted(job, ended) for job in all_jobs[first : first + size]))
            first += size
    return {owner: fleets for owner, fleets in found.items() if len(fleets) >= 4}


def _predicted(job: Job, ended: Sequence[Job]) -> Job:
    alike = [one for one in ended if one.gpus == job.gpus]
    logs = np.log([one.hours for one in (alike if len(alike) >= LEAST_ALIKE else ended)])
    return replace(job, predicted_hours=math.exp(float(np.median(logs))),
                   deviation=max(LEAST_DEVIATION, float(logs.std())))  # fmt: skip


def errors_of(fleets: Sequence[Sequence[Sequence[Job]]]) -> Errors:
    """Return how predictions erred in fleets of several owners, each of whom counts as much."""
    levels, shares = [], []
    for ours in fleets:
        errors = np.array([job.error for fleet in ours for job in fleet])
        levels.append(np.quantile(errors, LEVELS))
        # One-way analysis of variance of the errors' normal scores.
        ranks = norm.ppf((errors.argsort().argsort() + 0.5) / len(errors))
        edges = np.cumsum([len(fleet) for fleet in ours])[:-1]
        parts = np.split(ranks, edges)
        inside = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / (len(errors) - len(parts))
        size = len(errors) / len(parts)
        between = max(0.0, float(np.var([part.mean() for part in parts], ddof=1)) - inside / size)
        shares.append(between / (between + inside))
    # The distribution of all together: each level's share of owners' errors.
    every = np.sort(np.concatenate(levels))
    return Errors(common_share=float(np.mean(shares)), quantiles=tuple(np.quantile(every, np.linspace(0, 1, 201))))


def zones_of(folder: Path) -> list[Zone]:
    found = []
    for path in sorted((folder / "spot").glob("**/*.json")):
        trace = json.loads(path.read_text())
        found.append(Zone(name=f"{path.parent.name}/{path.stem}", step=trace["metadata"]["gap_seconds"] / 3600,
                          there=np.array(trace["data"]) > 0))  # fmt: skip
    return found


def known_of(zone: Zone, at: int) -> tuple[float, float]:
    """Return availability and hours up of a zone's last days."""
    rates = rates_of(zone.there[max(0, at - int(KNOWN_HOURS / zone.step)) : at].tolist(), zone.step)
    return rates.comes / (rates.comes + rates.goes), 1 / rates.goes


class Recorded(Chances):
    """What happened: recorded hours, and recorded spot machines from a moment on."""

    def __init__(self, fleet: Fleet, jobs: dict[str, Job], zone: Zone, at: int):
        super().__init__(fleet, 1, 0)
        self._jobs, self._zone, self._at = jobs, zone, at

    def factor(self, run: FleetRun, way: Way, gpu: str) -> np.ndarray:
        return np.array([self._jobs[run.name].hours / self._jobs[run.name].predicted_hours])

    def machines(self, pool: Pool, step_hours: float, begins: np.ndarray) -> Iterator[np.ndarray]:
        hours = float(begins[0])
        while True:  # the recording begins again at its end
            at = (self._at + int(hours / self._zone.step)) % len(self._zone.there)
            yield self._zone.there[[at]]
            hours += step_hours

    def lost(self, pool: Pool, worked: np.ndarray, begins: np.ndarray) -> np.ndarray:
        left, passed, running, step = float(worked[0]), 0.0, True, self._zone.step
        for up in self.machines(pool, step, begins):
            if left <= 0:
                return np.array([passed - float(worked[0])])
            if up[0]:
                left += (0.0 if running else RESTART_HOURS) - step
            running = bool(up[0]) or passed == 0.0
            passed += step
        raise AssertionError


def fleet_of(jobs: Sequence[Job], errors: Errors, spot: tuple[float, float], on_demand: bool,
             rng: np.random.Generator) -> Fleet:  # fmt: skip
    """Return the fleet of some jobs: half of their expected use is owned, the rest is rented."""
    begin = jobs[0].begins
    span = jobs[-1].begins - begin + float(np.median([job.predicted_hours for job in jobs]))
    work = sum(job.gpus * job.predicted_hours for job in jobs)
    owned = max(max(job.gpus for job in jobs), math.ceil(0.5 * work / span))
    pools = [
        Pool(name="owned", kind=PoolKind.OWNED, gpu=GPU, gpus=owned, usd_per_gpu_hour=0.1),
        Pool(name="spot", kind=PoolKind.SPOT, gpu=GPU, gpus=None, usd_per_gpu_hour=SPOT_SHARE * PRICE,
             availability=spot[0], up_hours=spot[1]),
    ]  # fmt: skip
    if on_demand:
        pools.append(Pool(name="cloud", kind=PoolKind.ON_DEMAND, gpu=GPU, gpus=None, usd_per_gpu_hour=PRICE))
    runs = []
    for at, job in enumerate(jobs):
        ways = []
        for pool in pools:
            hours = job.predicted_hours
            longer = (1 + RESTART_HOURS / pool.up_hours) / pool.availability if pool.kind is PoolKind.SPOT else 1.0
            factor = math.exp(EIGHT_OF_TEN * job.deviation)
            time = Estimate(value=hours * longer, low=hours * longer / factor, high=hours * longer * factor,
                            basis=Basis.MEASURED)  # fmt: skip
            usd = hours * job.gpus * (pool.usd_per_gpu_hour or 0.0)
            ways.append(Way(pool=pool.name, gpus=job.gpus, hours=time, work_hours=hours, usd=usd,
                            deviation=job.deviation))  # fmt: skip
        # a deadline between the median and what nearly always suffices
        room = job.predicted_hours * math.exp(job.deviation * rng.uniform(0.0, 2.5)) + 1.0
        earliest = job.begins - begin
        runs.append(FleetRun(name=f"run {at}", group=f"run {at}", earliest_hours=earliest, must=True,
                             deadline_hours=earliest + room, usd_per_late_day=1e5, ways=tuple(ways)))  # fmt: skip
    return Fleet(name="recorded", starts="2026-12-01T09:00", runs=tuple(runs), pools=tuple(pools), errors=errors)


@dataclass(frozen=True, kw_only=True)
class Scored:
    owner: str
    zone: str
    pool: str
    on_demand: bool
    chances: dict[str, float]  # by what was known
    met: bool
    fleet: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--effort", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    fleets, zones = fleets_of(given.traces, rng), zones_of(given.traces)
    earlier = {owner: ours[: len(ours) // 2] for owner, ours in fleets.items()}
    own = {owner: errors_of([ours]) for owner, ours in earlier.items() if len(ours) >= 4}
    others = {owner: errors_of([theirs for who, theirs in earlier.items() if who != owner and len(theirs) >= 4])
              for owner in fleets}  # fmt: skip
    print("owner: fleets, share of the errors in common (its own; of all others)")
    for owner, ours in fleets.items():
        print(f"{owner}: {len(ours)}, {own[owner].common_share if owner in own else math.nan:.2f}, "
              f"{others[owner].common_share:.2f}")  # fmt: skip
    later = {owner: list(rng.permutation(np.arange(len(ours) // 2, len(ours)))) for owner, ours in fleets.items()}
    scored: list[Scored] = []
    count = 0
    while count < given.fleets and any(later.values()):
        for owner, left in later.items():  # each owner in turn
            if not left or count == given.fleets:
                continue
            jobs = fleets[owner][left.pop()]
            count += 1
            zone, on_demand = zones[int(rng.integers(len(zones)))], count % 3 > 0
            half = len(zone.there) // 2
            at = int(rng.integers(half, len(zone.there) - 1))
            other = rng.choice([one.name for one in zones if one.name != zone.name])  # a zone that nobody looked at
            unseen = next(one for one in zones if one.name == other)
            found: dict[str, dict[str, float]] = {}
            planned = None
            for known, errors, spot in (
                ("own", own.get(owner, others[owner]), known_of(zone, at)),
                ("left out", others[owner], known_of(unseen, len(unseen.there) // 2)),
                ("normal", Errors(), known_of(zone, at)),
            ):
                fleet = fleet_of(jobs, errors, spot, on_demand, np.random.default_rng(count))
                if planned is None:
                    planned = solve(fleet, effort=given.effort, seed=count).schedule
                drawn = simulate(fleet, planned, seed=count + 1)
                ends = {run.name: run.deadline_hours for run in fleet.runs}
                found[known] = {name: float(np.mean(end <= ends[name]))
                                for name, end in zip(drawn.runs, drawn.ends, strict=True)}  # fmt: skip
            names = {f"run {n}": job for n, job in enumerate(jobs)}
            happened = simulate(fleet, planned, chances=Recorded(fleet, names, zone, at))
            pools = {one.run: one.pool for one in planned.placements}
            for name, end in zip(happened.runs, happened.ends, strict=True):
                scored.append(Scored(
                    owner=owner, zone=zone.name, pool=pools[name], on_demand=on_demand, fleet=count,
                    met=bool(end[0] <= ends[name]), chances={known: one[name] for known, one in found.items()},
                ))  # fmt: skip
    print(f"{count} fleets, {len(scored)} runs with a deadline")
    for known in ("own", "left out", "normal"):
        print(f"\nerrors and spot machines: {known}")
        report(scored, known, "all", rng)
        for pool in ("owned", "spot", "cloud"):
            report([one for one in scored if one.pool == pool], known, f"on {pool}", rng)
        report([one for one in scored if not one.on_demand and one.pool == "spot"], known, "spot alone", rng)
        for owner in fleets:
            report([one for one in scored if one.owner == owner], known, owner, rng)


def report(scored: Sequence[Scored], known: str, name: str, rng: np.random.Generator) -> None:
    """Print the mean chance and the share of deadlines met, with 8 of 10 resampled sets of fleets, and by chance."""
    if not scored:
        return
    chances, met = np.array([one.chances[known] for one in scored]), np.array([one.met for one in scored])
    numbers = np.array([one.fleet for one in scored])
    off = np.array([(chances - met)[numbers == one].sum() for one in np.unique(numbers)])
    sizes = np.array([(numbers == one).sum() for one in np.unique(numbers)])
    picks = rng.integers(len(off), size=(1000, len(off)))
    low, high = np.quantile(off[picks].sum(1) / sizes[picks].sum(1), (0.1, 0.9))
    rows = []
    for least, most in ((0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.97), (0.97, 1.01)):
        here = (chances >= least) & (chances < most)
        if here.sum() >= 20:
            rows.append(f"{chances[here].mean():.2f}:{met[here].mean():.2f} ({here.sum()})")
    print(f"{name:10} {len(met):5} runs: chance {chances.mean():.3f}, met {met.mean():.3f}, off "
          f"{chances.mean() - met.mean():+.3f} [{low:+.3f}, {high:+.3f}]  {'  '.join(rows)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
