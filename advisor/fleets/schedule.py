"""A schedule for a fleet: runs with the least slack first, each where it costs least, then improved by search."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from advisor.fleets.bound import NO_ROOM, usd_per_gpu_hour_in_use
from advisor.fleets.records import Bound, Fleet, FleetRun, Placement, Room, Schedule, Way
from advisor.fleets.timeline import Timeline

_TAKEN_OUT = 12  # runs that one round of the search places anew
_WARMTH = 0.1  # of the mean cost of a run: how much worse a change may be at first
_WEIGHTS = (0.0, 0.5, 1.0, 1.5)  # of the worth of scarce GPUs when a run chooses its place
_UNPLACED_USD = 1e9  # more than any way costs


class _Worth:
    """What one GPU of a pool is worth from the first moment to another, by the bound's dual values."""

    def __init__(self, rows: Sequence[tuple[float, float]]):
        self._edges = [begins for begins, _ in rows]
        self._usd = [usd for _, usd in rows]
        steps = (usd * (end - begin) for usd, begin, end in zip(self._usd, self._edges, self._edges[1:], strict=False))
        self._before = list(accumulate(steps, initial=0.0))

    def until(self, hours: float) -> float:
        at = bisect_right(self._edges, hours) - 1
        return self._before[at] + self._usd[at] * (hours - self._edges[at]) if at >= 0 else 0.0


class _Option(NamedTuple):
    """A way to do a run, planned with its room."""

    way: Way
    hours: float
    begins: float  # no earlier
    until: float  # the deadline, sooner by the room for its own errors and those of its pool
    usd: float
    timeline: Timeline
    worth: _Worth | None  # None: there are always enough GPUs


class _Place(NamedTuple):
    option: _Option
    start: float
    end: float
    usd: float  # expected dollars and value lost


def schedule(
    fleet: Fleet,
    bound: Bound,
    blocks: Mapping[str, int],
    *,
    room: Room,
    sooner: Mapping[tuple[str, str], float],
    tries: int,
    frozen: Mapping[str, Placement] | None = None,
    before: Schedule | None = None,
    seed: int = 0,
) -> Schedule:
    """Return a schedule with so many new blocks of each reservation.

    `sooner` says by run and pool how many hours before its deadline it is to end there. `frozen` runs are where they
    are. The search begins with the schedule `before`, if there is one, and makes so many `tries` with random choices,
    which depend on the seed alone.
    """
    search = _Search(fleet, bound, blocks, room, sooner, frozen or {})
    search.begin(before)
    search.improve(tries, random.Random(seed))
    return search.result()


class _Search:
    def __init__(
        self, fleet: Fleet, bound: Bound, blocks: Mapping[str, int], room: Room,
        sooner: Mapping[tuple[str, str], float], frozen: Mapping[str, Placement],
    ):  # fmt: skip
        self.fleet, self.bound, self.blocks, self.frozen = fleet, bound, blocks, frozen
        self.pools = {pool.name: pool for pool in fleet.pools}
        self.timelines = {
            pool.name: Timeline(
                pool.capacity(pool.bought_blocks + blocks.get(pool.name, 0)), pool.from_hours, pool.until_hours
            )
            for pool in fleet.pools
        }
        scarce = bound.scarce_usd_per_gpu_hour
        self.worth = {name: _Worth(scarce[name]) if any(usd for _, usd in scarce.get(name, ())) else None
                      for name in self.pools}  # fmt: skip
        self.runs = {run.name: run for run in fleet.runs}
        self.left = dict(fleet.budgets_usd)
        self.payers = {run.name: [team for team in {run.team, ""} if team in self.left] for run in fleet.runs}
        free = [run for run in fleet.runs if run.name not in frozen]
        self.options = {run.name: self._options(run, room, sooner) for run in free}
        self.places: dict[str, _Place | None] = dict.fromkeys(run.name for run in free)
        for one in frozen.values():
            self.timelines[one.pool].take(one.gpus, one.start_hours, one.end_hours)
            for team in self.payers[one.run]:
                self.left[team] -= one.usd
        # the order of placing: least slack first, then priority, then the most work
        shortest = {name: min((one.hours for one in options), default=0.0) for name, options in self.options.items()}
        self.urgency = {
            run.name: (run.deadline_hours - run.earliest_hours - shortest[run.name], -run.priority, -shortest[run.name])
            for run in free
        }

    def _options(self, run: FleetRun, room: Room, sooner: Mapping[tuple[str, str], float]) -> list[_Option]:
        """Return a run's ways with their room, by price."""
        if run.deadline_hours == math.inf:
            room = NO_ROOM
        options = [
            _Option(
                way=way, hours=way.hours_at(room.common), begins=run.earliest_hours + pool.queue_hours,
                until=run.deadline_hours - sooner.get((run.name, pool.name), 0.0)
                - (way.hours_at(room.own) - way.hours_at(room.common)),
                usd=way.usd + usd_per_gpu_hour_in_use(pool) * way.gpus * way.hours.value,
                timeline=self.timelines[pool.name], worth=self.worth[pool.name],
            )
            for way in run.ways if (pool := self.pools[way.pool])
        ]  # fmt: skip
        return sorted(options, key=lambda one: one.usd)

    def begin(self, before: Schedule | None) -> None:
        """Place all runs: as before, as the bound divides them, or by the weight of scarce GPUs that costs least."""
        names, best = list(self.places), (math.inf, dict(self.places))
        starts: list[tuple[Mapping[str, tuple[str, int]], list[str], float]] = [
            (self.bound.ways, sorted(names, key=self.urgency.__getitem__), 1.0),
            *(({}, sorted(names, key=self.urgency.__getitem__), weight) for weight in _WEIGHTS),
        ]
        if before is not None:
            order = {one.run: at for at, one in enumerate(before.placements)}
            placed = {one.run: (one.pool, one.gpus) for one in before.placements}
            starts = [(placed, sorted(names, key=lambda name: order.get(name, math.inf)), 1.0)]
        for ways, order_of, weight in starts:
            self._remove(names)
            for name in order_of:
                chosen = [one for one in self.options[name] if (one.way.pool, one.way.gpus) == ways.get(name)]
                self.place((name,), weight, chosen)
                place = self.places[name]
                if ways and (place is None or place.end > place.option.until):
                    self._remove((name,))
                    self.place((name,), weight)
            if (cost := self._objective(names)) < best[0]:
                best = cost, dict(self.places)
        self._put(names, best[1])

    def place(self, names: Iterable[str], weight: float, options: Sequence[_Option] = ()) -> None:
        """Put each run where it costs least, with the worth of scarce GPUs counted by this weight."""
        for name in names:
            run, best, best_key, payers = self.runs[name], None, math.inf, self.payers[name]
            late = run.usd_per_late_day
            for option in options or self.options[name]:
                usd = option.usd
                if usd >= best_key:
                    break  # no later one costs less
                if payers and any(usd > self.left[team] + 1e-9 for team in payers):
                    continue
                # An end so late that lateness makes it the dearer one is not looked for.
                until = option.until + (best_key - usd) * 24.0 / late if late else math.inf
                gpus, hours = option.way.gpus, option.hours
                start = option.timeline.earliest(gpus, hours, option.begins, until)
                if start is None:
                    continue
                end = start + hours
                if end > option.until:
                    usd += run.loss_usd(end + run.deadline_hours - option.until)
                elif run.usd_per_day:
                    usd += run.loss_usd(end)
                key = usd
                if weight and (worth := option.worth) is not None:
                    key += weight * gpus * (worth.until(end) - worth.until(start))
                if key < best_key:
                    best_key, best = key, _Place(option, start, end, usd)
            self.places[name] = best
            if best is not None:
                self._take(name, best, 1)

    def _take(self, name: str, place: _Place, sign: int) -> None:
        place.option.timeline.take(sign * place.option.way.gpus, place.start, place.end)
        for team in self.payers[name]:
            self.left[team] -= sign * place.option.usd

    def improve(self, tries: int, draw: random.Random) -> None:
        """Take some runs out and place them anew, again and again: simulated annealing, ending with the best seen."""
        names = [name for name in self.places if self.options[name]]
        now = self._objective(names)
        best, best_places = now, dict(self.places)
        paid = sum(place.option.usd for place in self.places.values() if place is not None)
        warmest = _WARMTH * paid / max(1, len(names))
        for at in range(tries if names else 0):
            first: str | None = None
            options: list[_Option] = []
            if draw.random() < 0.5:
                first = draw.choice(names)
                options, chosen = self._in_the_way(first, draw)
            else:
                chosen = draw.sample(names, min(len(names), draw.randint(1, _TAKEN_OUT)))
            before = {name: self.places[name] for name in chosen}
            cost = self._objective(chosen)
            self._remove(chosen)
            others = [name for name in chosen if name != first]
            if draw.random() < 0.5:
                draw.shuffle(others)
            else:
                others.sort(key=self.urgency.__getitem__)
            weight = draw.choice(_WEIGHTS)
            if first is not None:
                self.place((first,), weight, options)
            self.place(others, weight)
            worse = self._objective(chosen) - cost
            warmth = warmest * (1.0 - at / tries)
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
                self._take(name, place, 1)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            if (place := self.places[name]) is not None:
                self._take(name, place, -1)
                self.places[name] = None

    def _in_the_way(self, name: str, draw: random.Random) -> tuple[list[_Option], list[str]]:
        """Return another way to do a run, and with the run those that use that way's pool at the time."""
        option, run = draw.choice(self.options[name]), self.runs[name]
        here = [(other, place) for other, place in self.places.items()
                if place is not None and place.option.timeline is option.timeline and other != name]  # fmt: skip
        starts = [run.earliest_hours, *(place.end for _, place in here if place.end >= run.earliest_hours)]
        start = draw.choice(starts)
        end = start + option.hours
        return [option], [name, *(other for other, place in here if place.start < end and place.end > start)]

    def _objective(self, names: Iterable[str]) -> float:
        """Return the dollars and lost value of these runs; a run without a place costs more than any other way."""
        total = 0.0
        for name in names:
            place = self.places[name]
            total += place.usd if place is not None else _UNPLACED_USD
        return total

    def result(self) -> Schedule:
        placements = dict(self.frozen)
        for name, place in self.places.items():
            if place is not None:
                way = place.option.way
                placements[name] = Placement(run=name, pool=way.pool, gpus=way.gpus, start_hours=place.start,
                                             end_hours=place.end, usd=place.option.usd)  # fmt: skip
        bought = sum(
            count * self.pools[name].upfront_usd * (1 - self.pools[name].refund_share)
            for name, count in self.blocks.items()
        )
        late = [name for name, one in placements.items()
                if self.runs[name].must and one.end_hours > self.runs[name].deadline_hours + 1e-9]  # fmt: skip
        loss = sum(self.runs[name].loss_usd(one.end_hours) for name, one in placements.items() if name not in late)
        return Schedule(
            placements=tuple(sorted(placements.values(), key=lambda one: (one.start_hours, one.run))),
            left_out={name: self._why(self.runs[name]) for name, place in self.places.items() if place is None},
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
        for team in self.payers[run.name]:
            if cheapest > self.left[team]:
                return f"the budget of {team or 'all teams'} is used up"
        return "no pool has enough GPUs free for long enough"
