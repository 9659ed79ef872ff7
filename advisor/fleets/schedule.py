"""A schedule for a fleet: runs with the least slack first, each where it costs least, then improved by search."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.fleets.bound import usd_per_gpu_hour_in_use
from advisor.fleets.records import Bound, Fleet, FleetRun, Placement, Schedule, Way
from advisor.fleets.timeline import Timeline

_TAKEN_OUT = 8  # runs that one round of the search places anew
_WARMTH = 0.2  # of the mean cost of a run: how much worse a change may be at first
_WEIGHTS = (0.0, 0.5, 1.0, 1.5)  # of the worth of scarce GPUs when a run chooses its place


@dataclass(frozen=True, kw_only=True)
class _Place:
    way: Way
    start: float
    end: float
    usd: float  # expected dollars and value lost
    paid_usd: float  # of these, dollars


def schedule(
    fleet: Fleet,
    bound: Bound,
    blocks: Mapping[str, int],
    *,
    deviations: Mapping[str, float],
    tries: int,
    frozen: Mapping[str, Placement] | None = None,
    seed: int = 0,
) -> Schedule:
    """Return a schedule with so many new blocks of each reservation.

    `deviations` says by run how many standard deviations above its median time it is planned. `frozen` runs are where
    they are. The search makes so many `tries` with random choices, which depend on the seed alone.
    """
    search = _Search(fleet, bound, blocks, deviations, frozen or {})
    search.begin()
    search.improve(tries, random.Random(seed))
    return search.result()


class _Search:
    def __init__(
        self, fleet: Fleet, bound: Bound, blocks: Mapping[str, int], deviations: Mapping[str, float],
        frozen: Mapping[str, Placement],
    ):  # fmt: skip
        self.fleet, self.bound, self.blocks, self.deviations = fleet, bound, blocks, deviations
        self.pools = {pool.name: pool for pool in fleet.pools}
        self.extra = {pool.name: usd_per_gpu_hour_in_use(pool) for pool in fleet.pools}
        self.timelines = {
            pool.name: Timeline(
                pool.capacity(pool.bought_blocks + blocks.get(pool.name, 0)), pool.from_hours, pool.until_hours
            )
            for pool in fleet.pools
        }
        self.scarcity = {
            pool.name: _cumulated(bound.scarce_usd_per_gpu_hour.get(pool.name, ())) for pool in fleet.pools
        }
        self.spent: dict[str, float] = defaultdict(float)
        self.runs = {run.name: run for run in fleet.runs}
        self.ways = {run.group: sorted(run.ways, key=lambda way: way.usd) for run in fleet.runs}
        self.frozen = frozen
        self.places: dict[str, _Place | None] = {}
        self.free = [run for run in fleet.runs if run.name not in frozen]
        for placement in frozen.values():
            self.timelines[placement.pool].take(placement.gpus, placement.start_hours, placement.end_hours)
            for team in (self.runs[placement.run].team, ""):
                if team is not None:
                    self.spent[team] += placement.usd

    def urgency(self, run: FleetRun) -> tuple[float, float, float]:
        """Return the order of placing: least slack first, then priority, then the most work."""
        shortest = min((way.hours_at(self.deviations.get(run.name, 0.0)) for way in run.ways), default=0.0)
        slack = run.deadline_hours - run.earliest_hours - shortest
        return (slack, -run.priority, -shortest)

    def begin(self) -> None:
        """Place all runs, by the weight of scarce GPUs with which that costs least."""
        names, best = [run.name for run in self.free], (math.inf, dict.fromkeys(self.runs))
        order = sorted(self.free, key=self.urgency)
        self.places = dict.fromkeys(names)
        for weight in _WEIGHTS:
            self._remove(names)
            self.place(order, weight)
            if (cost := self._objective(names)) < best[0]:
                best = cost, dict(self.places)
        self._put(names, best[1])

    def place(self, runs: Iterable[FleetRun], weight: float, ways: Sequence[Way] | None = None) -> None:
        """Put each run where it costs least, with the worth of scarce GPUs counted by this weight."""
        for run in runs:
            best, best_key = None, math.inf
            for way in self.ways[run.group] if ways is None else ways:
                if way.usd >= best_key:
                    break  # no later one costs less
                found = self._try(run, way, weight)
                if found is not None and found[0] < best_key:
                    best_key, best = found
            self.places[run.name] = best
            if best is not None:
                self._take(run, best, 1)

    def _try(self, run: FleetRun, way: Way, weight: float) -> tuple[float, _Place] | None:
        hours = way.hours_at(self.deviations.get(run.name, 0.0))
        paid = way.usd + self.extra[way.pool] * way.gpus * way.hours.value
        for team in (run.team, ""):
            if team in self.fleet.budgets_usd and self.spent[team] + paid > self.fleet.budgets_usd[team] + 1e-9:
                return None
        pool = self.pools[way.pool]
        start = self.timelines[way.pool].earliest(way.gpus, hours, run.earliest_hours + pool.queue_hours)
        if start is None:
            return None
        place = _Place(way=way, start=start, end=start + hours, usd=paid + run.loss_usd(start + hours), paid_usd=paid)
        worth = weight * way.gpus * self._scarcity(pool.name, start, place.end) if weight else 0.0
        return place.usd + worth, place

    def _scarcity(self, pool: str, start: float, end: float) -> float:
        """Return the worth of one GPU of a pool from start to end, by the bound's dual values."""
        edges, worth = self.scarcity[pool]
        return float(np.interp(end, edges, worth) - np.interp(start, edges, worth)) if len(edges) else 0.0

    def _take(self, run: FleetRun, place: _Place, sign: int) -> None:
        self.timelines[place.way.pool].take(sign * place.way.gpus, place.start, place.end)
        for team in (run.team, ""):
            if team is not None:
                self.spent[team] += sign * place.paid_usd

    def improve(self, tries: int, draw: random.Random) -> None:
        """Take some runs out and place them anew, again and again: simulated annealing, ending with the best seen."""
        names = [run.name for run in self.free]
        now = self._objective(names)
        best, best_places = now, dict(self.places)
        for passed in np.linspace(0.0, 1.0, tries if names else 0, endpoint=False).tolist():
            first, way = None, None
            if draw.random() < 0.5:
                first, way, chosen = self._in_the_way(draw.choice(names), draw)
            else:
                chosen = draw.sample(names, min(len(names), draw.randint(1, _TAKEN_OUT)))
            before = {name: self.places[name] for name in chosen}
            cost = self._objective(chosen)
            self._remove(chosen)
            others = [self.runs[name] for name in chosen if name != first]
            if draw.random() < 0.5:
                draw.shuffle(others)
            else:
                others.sort(key=self.urgency)
            weight = draw.choice(_WEIGHTS)
            if first is not None and way is not None:
                self.place([self.runs[first]], weight, (way,))
            self.place(others, weight)
            worse = self._objective(chosen) - cost
            warmth = _WARMTH * best / len(names) * (1.0 - passed)
            if worse > 1e-9 and (warmth <= 0.0 or draw.random() >= math.exp(-worse / warmth)):
                self._put(chosen, before)
                continue
            now += worse
            if now < best - 1e-9:
                best, best_places = now, dict(self.places)
        self._put(names, best_places)

    def _put(self, names: Sequence[str], places: Mapping[str, _Place | None]) -> None:
        """Move these runs to these places."""
        self._remove(names)
        for name in names:
            self.places[name] = place = places[name]
            if place is not None:
                self._take(self.runs[name], place, 1)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            if (place := self.places[name]) is not None:
                self._take(self.runs[name], place, -1)

    def _in_the_way(self, name: str, draw: random.Random) -> tuple[str, Way | None, list[str]]:
        """Return a run, another way to do it, and with it the runs that use that way's pool at the time."""
        run = self.runs[name]
        if not run.ways:
            return name, None, [name]
        way = draw.choice(run.ways)
        here = [(other, place) for other, place in self.places.items()
                if place is not None and place.way.pool == way.pool and other != name]  # fmt: skip
        starts = [run.earliest_hours, *(place.end for _, place in here)]
        start = draw.choice([start for start in starts if start >= run.earliest_hours])
        end = start + way.hours_at(self.deviations.get(name, 0.0))
        return name, way, [name, *(other for other, place in here if place.start < end and place.end > start)]

    def _objective(self, names: Iterable[str]) -> float:
        """Return the dollars and lost value of these runs; a run without a place costs more than any other way."""
        total = 0.0
        for name in names:
            place = self.places[name]
            total += place.usd if place is not None else 1e9
        return total

    def result(self) -> Schedule:
        placements = dict(self.frozen)
        left_out = {}
        for name, place in self.places.items():
            if place is None:
                left_out[name] = self._why(self.runs[name])
                continue
            placements[name] = Placement(run=name, pool=place.way.pool, gpus=place.way.gpus, start_hours=place.start,
                                         end_hours=place.end, usd=place.paid_usd)  # fmt: skip
        bought = sum(
            count * self.pools[name].upfront_usd * (1 - self.pools[name].refund_share)
            for name, count in self.blocks.items()
        )
        late = [name for name, one in placements.items()
                if self.runs[name].must and one.end_hours > self.runs[name].deadline_hours + 1e-9]  # fmt: skip
        loss = sum(self.runs[name].loss_usd(one.end_hours) for name, one in placements.items() if name not in late)
        return Schedule(
            placements=tuple(sorted(placements.values(), key=lambda one: (one.start_hours, one.run))),
            left_out=left_out,
            blocks=dict(self.blocks),
            usd=sum(one.usd for one in placements.values()) + bought,
            loss_usd=loss,
            late=tuple(late),
            bound=self.bound,
        )

    def _why(self, run: FleetRun) -> str:
        """Say why a run is in no pool."""
        if not run.ways:
            return "no pool has GPUs that hold it"
        cheapest = min(way.usd for way in run.ways)
        for team in (run.team, ""):
            if team in self.fleet.budgets_usd and self.spent[team] + cheapest > self.fleet.budgets_usd[team]:
                return f"the budget of {team or 'all teams'} is used up"
        return "no pool has enough GPUs free for long enough"


def _cumulated(rows: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the times at which a pool's worth changes and the worth of one GPU from the first time to each."""
    if not rows:
        return np.empty(0), np.empty(0)
    edges = np.array([begins for begins, _ in rows])
    worth = np.array([usd for _, usd in rows])
    return edges, np.concatenate([[0.0], np.cumsum(np.diff(edges) * worth[:-1])])
