"""Plans fleets drawn from recorded jobs, and replays them: how often deadlines are met that the plan gave a chance.

python benchmarks/fleet_replay.py --traces FOLDER [--fleets 200] [--effort 0.02] [--rolling]

FOLDER has `philly.csv` (timestamp,duration,num_gpus,gpu_time,cluster: jobs of a shared cluster, as in the public
repository siasosp23/artifacts) and below `spot/` files as benchmarks/spot_policy.py reads them. Only jobs of at least
ten minutes count, before and after.

A fleet is 20 to 40 jobs of one owner in a row, with their real gaps, GPUs and hours. A trace has no estimates of its
users, so that a job is predicted by its owner's jobs that had ended before the fleet began: the median of the last 400
with as many GPUs, and the larger of their spread and that of all (which of these predicts best was decided on the
earlier halves alone). How such predictions err, their shape and what runs of one fleet have in common, is known from
the fleets before: those of the owner and, with as much weight, of all others ("own"), or of the others alone ("left
out"). A job that still runs when a fleet begins is known to last at least as long as it has. Fleets of the later half
of each owner are planned, simulated and replayed. Spot machines are those of a zone at a moment drawn in its later
half; known of them are its last three days, or, for zones left out, three days of another zone. "normal" takes the
simulation's errors as they are without a history.

With `--rolling` the fleet is planned again whenever a run has ended or is later than planned, as `advisor fleet run`
does, by what others alone know ("left out"): what runs stays, and its own speed is known from a tenth of its work on
(the trace has no steps: they are taken to be equally long). Chances are those of the first plan, and of the last one
before the run's end or deadline.
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

from advisor.fleets.records import Errors, Fleet, FleetRun, Placement, Pool, PoolKind, Way
from advisor.fleets.simulate import RESTART_HOURS, Chances, simulate
from advisor.fleets.spot import hours_by_age
from advisor.offer import EIGHT_OF_TEN
from advisor.records import Basis, Estimate
from advisor.workflows.fleet import solve
from advisor.workflows.fleet_run import going_on
from benchmarks.spot_policy import rates_of

LEAST_HOURS, LAST_JOBS, LEAST_ALIKE, LEAST_DEVIATION = 1 / 6, 400, 20, 0.2
KNOWN_HOURS = 72.0  # of a zone
PROGRESS = 0.1  # share of the work from which a run's own speed is known
PRICE, SPOT_SHARE = 2.5, 0.3
GPU = "v100-32gb-sxm"
LEVELS = np.linspace(0.005, 0.995, 100)


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Jobs of the trace and what was predicted of them. Hours count from the first job of all."""

    begins: np.ndarray
    hours: np.ndarray
    gpus: np.ndarray
    predicted: np.ndarray  # hours, median
    deviation: np.ndarray  # of the log

    def errors(self, now: float) -> np.ndarray:
        """Return the errors of the predictions as they are known at a time; of a job that runs, once it is long."""
        ended = self.begins + self.hours <= now
        hours = np.where(ended, self.hours, np.maximum(now - self.begins, LEAST_HOURS))
        errors = np.log(hours / self.predicted) / self.deviation
        return errors[ended | (errors > 0)]


@dataclass(frozen=True, kw_only=True)
class Zone:
    name: str
    step: float  # hours
    there: np.ndarray


def fleets_of(folder: Path, rng: np.random.Generator) -> dict[str, list[Jobs]]:
    """Return by owner the fleets that follow each other in its jobs, each predicted by what ended before it began."""
    rows = []
    with (folder / "philly.csv").open() as file:
        for row in csv.DictReader(file):
            if row["duration"] and float(row["duration"]) / 3600 >= LEAST_HOURS:
                rows.append((datetime.fromisoformat(row["timestamp"]).timestamp() / 3600,
                             float(row["duration"]) / 3600, int(row["num_gpus"]), row["cluster"]))  # fmt: skip
    rows.sort()
    found: dict[str, list[Jobs]] = {}
    for owner in sorted({row[3] for row in rows}):
        begins, hours, gpus = np.array([row[:3] for row in rows if row[3] == owner]).T
        first, logs, ours = 0, np.log(hours), []
        while first + (size := int(rng.integers(20, 41))) <= len(begins):
            ended = np.flatnonzero(begins[:first] + hours[:first] < begins[first])
            here = slice(first, first + size)
            if len(ended) >= 3 * LEAST_ALIKE:
                last, spread = ended[-LAST_JOBS:], float(logs[ended].std())
                alike = [last[gpus[last] == count] for count in gpus[here]]
                known = [logs[one if len(one) >= LEAST_ALIKE else last] for one in alike]
                ours.append(Jobs(
                    begins=begins[here] - rows[0][0], hours=hours[here], gpus=gpus[here].astype(int),
                    predicted=np.exp([np.median(one) for one in known]),
                    deviation=np.array([max(LEAST_DEVIATION, spread, one.std()) for one in known]),
                ))  # fmt: skip
            first += size
        if len(ours) >= 4:
            found[owner] = ours
    return found


def errors_of(fleets: Sequence[Sequence[Jobs]], now: float) -> Errors | None:
    """Return how predictions have erred in fleets of several owners, each of whom counts as much."""
    levels, shares = [], []
    for ours in fleets:
        parts = [found for fleet in ours if fleet.begins[-1] < now and len(found := fleet.errors(now))]
        if len(parts) < 2 or (count := sum(map(len, parts))) < LEAST_ALIKE:
            continue
        errors = np.concatenate(parts)
        levels.append(np.quantile(errors, LEVELS))
        # One-way analysis of variance of the errors' normal scores.
        scores = norm.ppf((errors.argsort().argsort() + 0.5) / count)
        by_fleet = np.split(scores, np.cumsum([len(part) for part in parts])[:-1])
        inside = sum(float(((one - one.mean()) ** 2).sum()) for one in by_fleet) / (count - len(parts))
        means = float(np.var([one.mean() for one in by_fleet], ddof=1))
        between = max(0.0, means - inside * len(parts) / count)
        shares.append(between / (between + inside))
    if not levels:
        return None
    quantiles = np.quantile(np.concatenate(levels), np.linspace(0, 1, 201))
    return Errors(common_share=float(np.mean(shares)), quantiles=tuple(quantiles))


def zones_of(folder: Path) -> list[Zone]:
    found = []
    for path in sorted((folder / "spot").glob("**/*.json")):
        trace = json.loads(path.read_text())
        found.append(Zone(name=f"{path.parent.name}/{path.stem}", step=trace["metadata"]["gap_seconds"] / 3600,
                          there=np.array(trace["data"]) > 0))  # fmt: skip
    return found


def known_of(zone: Zone, at: int) -> tuple[float, float]:
    """Return availability and hours up of a zone's last days."""
    rates = rates_of(zone.there[max(0, at - int(KNOWN_HOURS / zone.step)) : at], zone.step)
    away, up = hours_by_age(rates).sum(axis=1).tolist()
    return up / (up + away), up


class Recorded(Chances):
    """What happened: recorded hours, and recorded spot machines from a moment on."""

    def __init__(self, fleet: Fleet, jobs: Jobs, zone: Zone, at: int):
        super().__init__(fleet, 1, 0)
        self._factors = dict(zip([run.name for run in fleet.runs], jobs.hours / jobs.predicted, strict=True))
        self._zone, self._at = zone, at

    def factor(self, run: FleetRun, way: Way, gpu: str) -> np.ndarray:
        return np.array([self._factors[run.name]])

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


def fleet_of(jobs: Jobs, errors: Errors, spot: tuple[float, float], on_demand: bool,
             rng: np.random.Generator) -> Fleet:  # fmt: skip
    """Return the fleet of some jobs: half of their expected use is owned, the rest is rented."""
    arrivals = jobs.begins - jobs.begins[0]
    span = float(arrivals[-1] + np.median(jobs.predicted))
    owned = max(int(jobs.gpus.max()), math.ceil(0.5 * float(jobs.gpus @ jobs.predicted) / span))
    pools = [
        Pool(name="owned", kind=PoolKind.OWNED, gpu=GPU, gpus=owned, usd_per_gpu_hour=0.1),
        Pool(name="spot", kind=PoolKind.SPOT, gpu=GPU, gpus=None, usd_per_gpu_hour=SPOT_SHARE * PRICE,
             availability=spot[0], up_hours=spot[1]),
    ]  # fmt: skip
    if on_demand:
        pools.append(Pool(name="cloud", kind=PoolKind.ON_DEMAND, gpu=GPU, gpus=None, usd_per_gpu_hour=PRICE))
    runs = []
    rows = zip(arrivals.tolist(), jobs.gpus.tolist(), jobs.predicted.tolist(), jobs.deviation.tolist(), strict=True)
    for at, (earliest, gpus, hours, deviation) in enumerate(rows):
        ways = []
        for pool in pools:
            longer = (1 + RESTART_HOURS / pool.up_hours) / pool.availability if pool.kind is PoolKind.SPOT else 1.0
            factor = math.exp(EIGHT_OF_TEN * deviation)
            time = Estimate(value=hours * longer, low=hours * longer / factor, high=hours * longer * factor,
                            basis=Basis.MEASURED)  # fmt: skip
            ways.append(Way(pool=pool.name, gpus=gpus, hours=time, work_hours=hours, deviation=deviation,
                            usd=hours * gpus * (pool.usd_per_gpu_hour or 0.0)))  # fmt: skip
        # a deadline between the median and what nearly always suffices
        room = hours * math.exp(deviation * rng.uniform(0.0, 2.5)) + 1.0
        runs.append(FleetRun(name=f"run {at}", group=f"run {at}", earliest_hours=earliest, must=True,
                             deadline_hours=earliest + room, usd_per_late_day=1e5, ways=tuple(ways)))  # fmt: skip
    return Fleet(name="recorded", starts="2026-12-01T09:00", runs=tuple(runs), pools=tuple(pools), errors=errors)


@dataclass(frozen=True, kw_only=True)
class Running:
    place: Placement
    begins: float
    ends: float  # as recorded
    planned_end: float


def rolled(fleet: Fleet, recorded: Recorded, effort: float, seed: int) -> dict[str, tuple[float, float, bool]]:
    """Plan again at each event; return for each run the chances in its first and last plan, and whether it was met."""
    runs = {run.name: run for run in fleet.runs}
    pools = {pool.name: pool for pool in fleet.pools}
    waiting, running, ends = dict(runs), dict[str, Running](), dict[str, float]()
    first, last, now = dict[str, float](), dict[str, float](), 0.0
    while waiting or running:
        asked = [replace(run, earliest_hours=max(run.earliest_hours, now)) for run in waiting.values()]
        frozen = {}
        for name, one in running.items():
            way, done = way_at(runs[name], one.place), (now - one.begins) / (one.ends - one.begins)
            share = max(1 - (now - one.begins) / way.hours.value, 0.1)
            if is_known := done >= PROGRESS:
                share = float(recorded.factor(runs[name], way, GPU)[0]) * (1 - done)
            way = going_on(way, share, is_known)
            asked.append(replace(runs[name], earliest_hours=now, ways=(way,)))
            frozen[name] = replace(one.place, start_hours=now, end_hours=now + way.hours.value)
        plan = solve(replace(fleet, runs=tuple(asked)), effort=effort, frozen=frozen, seed=seed)
        for one in plan.outlooks:
            first.setdefault(one.run, one.probability)
            if now < runs[one.run].deadline_hours:
                last[one.run] = one.probability
        running = {name: replace(one, planned_end=frozen[name].end_hours) for name, one in running.items()}
        planned = [one for one in plan.schedule.placements if one.run in waiting]
        is_due = False
        while not is_due:
            # Start what is due and has room, in the order of the plan.
            for place in planned:
                pool = pools[place.pool]
                used = sum(other.place.gpus for other in running.values() if other.place.pool == place.pool)
                if place.run in waiting and place.start_hours <= now + 1e-9 and used + place.gpus <= pool.capacity(0):
                    run = replace(waiting.pop(place.run), earliest_hours=now)
                    alone = replace(plan.schedule, placements=(place,))
                    end = float(simulate(replace(fleet, runs=(run,)), alone, chances=recorded).ends[0, 0])
                    hours = way_at(run, place).hours.value
                    running[run.name] = Running(place=place, begins=now, ends=end, planned_end=now + hours)
            coming = [place.start_hours for place in planned if place.run in waiting and place.start_hours > now + 1e-9]
            late = [one.planned_end for one in running.values() if now < one.planned_end < one.ends]
            now = min([*coming, *late, *(one.ends for one in running.values())])
            over = {name for name, one in running.items() if one.ends <= now + 1e-9}
            ends |= {name: running.pop(name).ends for name in over}
            is_due = bool(over) or now in late
    return {name: (first[name], last[name], end <= runs[name].deadline_hours) for name, end in ends.items()}


def way_at(run: FleetRun, place: Placement) -> Way:
    return next(way for way in run.ways if (way.pool, way.gpus) == (place.pool, place.gpus))


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
    parser.add_argument("--rolling", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    fleets, zones = fleets_of(given.traces, rng), zones_of(given.traces)
    later = {owner: list(rng.permutation(np.arange(len(ours) // 2, len(ours)))) for owner, ours in fleets.items()}
    scored: list[Scored] = []
    common: dict[str, list[float]] = defaultdict(list)
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
            now, theirs = float(jobs.begins[0]), [ours for who, ours in fleets.items() if who != owner]
            others = errors_of(theirs, now) or Errors()
            mine = errors_of([fleets[owner]], now) or others
            common[owner].append(mine.common_share)
            levels = np.quantile([*mine.quantiles, *others.quantiles], np.linspace(0, 1, 201))
            both = Errors(common_share=(mine.common_share + others.common_share) / 2, quantiles=tuple(levels))
            other = rng.choice([one.name for one in zones if one.name != zone.name])  # a zone that nobody looked at
            unseen = next(one for one in zones if one.name == other)
            if given.rolling:
                draw = np.random.default_rng(count)
                fleet = fleet_of(jobs, others, known_of(unseen, len(unseen.there) // 2), on_demand, draw)
                replayed = rolled(fleet, Recorded(fleet, jobs, zone, at), given.effort, count)
                scored += [Scored(owner=owner, zone=zone.name, pool="", on_demand=on_demand, fleet=count, met=met,
                                  chances={"first plan": start, "last plan": end})
                           for start, end, met in replayed.values()]  # fmt: skip
                print(f"{count} fleets, {len(scored)} runs with a deadline", flush=True)
                for known in ("first plan", "last plan") if count % 5 == 0 or count == given.fleets else ():
                    print(f"\nchances of the {known}")
                    report(scored, known, "all", rng)
                    for name in sorted({one.owner for one in scored}):
                        report([one for one in scored if one.owner == name], known, name, rng)
                continue
            found: dict[str, dict[str, float]] = {}
            planned = None
            for known, errors, spot in (
                ("own", both, known_of(zone, at)),
                ("left out", others, known_of(unseen, len(unseen.there) // 2)),
                ("normal", Errors(), known_of(zone, at)),
            ):
                fleet = fleet_of(jobs, errors, spot, on_demand, np.random.default_rng(count))
                if planned is None:
                    planned = solve(fleet, effort=given.effort, seed=count).schedule
                drawn = simulate(fleet, planned, seed=count + 1)
                ends = {run.name: run.deadline_hours for run in fleet.runs}
                found[known] = {name: float(np.mean(end <= ends[name]))
                                for name, end in zip(drawn.runs, drawn.ends, strict=True)}  # fmt: skip
            happened = simulate(fleet, planned, chances=Recorded(fleet, jobs, zone, at))
            pools = {one.run: one.pool for one in planned.placements}
            for name, end in zip(happened.runs, happened.ends, strict=True):
                scored.append(Scored(
                    owner=owner, zone=zone.name, pool=pools[name], on_demand=on_demand, fleet=count,
                    met=bool(end[0] <= ends[name]), chances={known: one[name] for known, one in found.items()},
                ))  # fmt: skip
            if count % 50 == 0 or count == given.fleets:
                print(f"\n{count} fleets, {len(scored)} runs with a deadline; share of the errors in common, by owner: "
                      f"{', '.join(f'{owner} {np.mean(shares):.2f}' for owner, shares in common.items())}")  # fmt: skip
                tables(scored, rng)


def tables(scored: Sequence[Scored], rng: np.random.Generator) -> None:
    for known in ("own", "left out", "normal"):
        print(f"\nerrors and spot machines: {known}")
        report(scored, known, "all", rng)
        for pool in ("owned", "spot", "cloud"):
            report([one for one in scored if one.pool == pool], known, f"on {pool}", rng)
        report([one for one in scored if not one.on_demand and one.pool == "spot"], known, "spot alone", rng)
        for owner in sorted({one.owner for one in scored}):
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
