"""Plans a fleet: ways to do each run from the planner, what to buy, a schedule, and what drawn futures say of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import NormalDist

import numpy as np

from advisor.errors import AdvisorError
from advisor.fleets.bound import least_cost, saved_by
from advisor.fleets.purchases import to_buy
from advisor.fleets.read import Entry, FleetFile, read_fleet
from advisor.fleets.records import (
    Fleet,
    FleetRun,
    Outlook,
    Placement,
    Pool,
    PoolKind,
    Purchase,
    Room,
    Schedule,
    Way,
)
from advisor.fleets.schedule import schedule
from advisor.fleets.simulate import RESTART_HOURS, Futures, interval, outlooks, simulate
from advisor.hardware.offers import cheapest_offer
from advisor.offer import EIGHT_OF_TEN
from advisor.options import Goal
from advisor.planning.answer import same_work
from advisor.planning.offers import SPOT_MEAN_SECONDS
from advisor.records import Estimate, Plan, Run
from advisor.store.plan_files import load_plan
from advisor.store.store import Store
from advisor.units import HOUR
from advisor.workflows.goal import goal_from, read_options
from advisor.workflows.plan import recommend

MOST_WAYS = 12
_MOST_GPUS_OF_A_RUN = 8  # where a pool has no limit
_ROUNDS = 4  # without success, of giving more room to runs whose deadline is too unlikely
_TOO_LATE = 2.0  # times the hours by which a run is too late are taken off its deadline
_ASKED_LATER = 3  # runs for which the worth of another day is computed
_LEAST_TRIES, _MOST_TRIES = 1000, 12000  # of the search for a schedule: five times the number of runs squared


@dataclass(frozen=True, kw_only=True)
class LaterRun:
    """What a run saves if its deadline is a day later."""

    run: str
    usd: float


@dataclass(frozen=True, kw_only=True)
class Unlikely:
    """A run whose deadline is too unlikely, and the deadline that would be met as often as asked."""

    run: str
    probability: float
    deadline_hours: float


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A plan of many runs."""

    fleet: Fleet
    schedule: Schedule
    outlooks: tuple[Outlook, ...]
    purchases: tuple[Purchase, ...]
    total_usd: Estimate  # of all runs and blocks, in drawn futures
    spent_usd: dict[str, float]  # by team, expected
    later: tuple[LaterRun, ...]
    unlikely: tuple[Unlikely, ...]
    notes: tuple[str, ...]

    @property
    def keeps_deadlines(self) -> bool:
        return not self.unlikely and not self.schedule.left_out


def plan_fleet(
    path: Path,
    store: Store,
    *,
    effort: float = 1.0,
    seed: int = 0,
    now: datetime | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> FleetPlan:
    """Plan the fleet of a file. Raises AdvisorError with every problem of the file at once."""
    file = read_fleet(path, now or datetime.now().replace(microsecond=0))
    progress(f"asking the planner for ways to do {len(file.entries)} kinds of runs")
    fleet, notes = fleet_of(file, store)
    progress("looking for what to buy and for a schedule")
    return solve(fleet, notes, effort=effort, seed=seed)


def solve(
    fleet: Fleet,
    notes: Sequence[str] = (),
    *,
    effort: float = 1.0,
    seed: int = 0,
    frozen: Mapping[str, Placement] | None = None,
) -> FleetPlan:
    """Find what to buy and when each run starts, and tighten the plan until drawn futures keep the deadlines.

    `effort` multiplies the tries of each search for a schedule. The answer depends on nothing but the arguments.
    """
    tries = max(1, round(effort * min(_MOST_TRIES, max(_LEAST_TRIES, 5 * len(fleet.runs) ** 2))))
    quantile = max(0.0, NormalDist().inv_cdf(min(fleet.probability, 0.999)))
    room = Room(common=math.sqrt(fleet.errors.common_share) * quantile, own=quantile)
    bound = least_cost(fleet, room)
    blocks, sooner = to_buy(fleet, bound, seed), dict[tuple[str, str], float]()
    search = partial(schedule, fleet, bound, room=room, sooner=sooner, frozen=frozen, seed=seed)
    best = None
    if any(blocks.values()):
        # Whole runs fill a block less well than the program's parts of them: one block fewer may cost less.
        mixes = [blocks, *(blocks | {name: count - 1} for name, count in blocks.items() if count)]
        best = min((search(mix, tries=tries // 3) for mix in mixes), key=lambda one: _drawn_key(fleet, one, seed))
        blocks = best.blocks
    best = search(blocks, tries=tries, before=best)
    tried, drawn, since = best, (futures := simulate(fleet, best, seed=seed)), 0
    # Runs whose deadline is too unlikely are to end sooner, as long as that helps.
    while since < _ROUNDS and (late := _too_late(fleet, tried, drawn)):
        sooner.update({key: sooner.get(key, 0.0) + hours for key, hours in late.items()})
        tried = search(blocks, tries=tries // 5, before=tried)
        drawn, since = simulate(fleet, tried, seed=seed), since + 1
        if (_missed(fleet, tried, drawn), _key(tried)) < (_missed(fleet, best, futures), _key(best)):
            best, futures, since = tried, drawn, 0
    return _described(fleet, best, futures, notes)


def _too_late(fleet: Fleet, planned: Schedule, futures: Futures) -> dict[tuple[str, str], float]:
    """Return by how many hours runs whose deadline is too unlikely end too late in their pool."""
    deadlines = {run.name: run.deadline_hours for run in fleet.runs}
    found = {}
    for one, ends in zip(planned.placements, futures.ends, strict=True):
        deadline = deadlines[one.run]
        if one.run not in planned.late and float(np.mean(ends <= deadline)) < fleet.probability:
            found[one.run, one.pool] = _TOO_LATE * max(0.02, float(np.quantile(ends, fleet.probability)) - deadline)
    return found


def _drawn_key(fleet: Fleet, tried: Schedule, seed: int) -> tuple[int, float]:
    """As `_key`, with the mean dollars of drawn futures."""
    drawn = float(simulate(fleet, tried, seed=seed).total_usd.mean())
    return _key(tried)[0], tried.objective_usd + drawn - sum(one.usd for one in tried.placements)


def _key(tried: Schedule) -> tuple[int, float]:
    return len(tried.left_out) + len(tried.late), tried.objective_usd


def _missed(fleet: Fleet, tried: Schedule, futures: Futures) -> tuple[int, float]:
    """Return how many deadlines are too unlikely, and by how much together."""
    short = [
        fleet.probability - one.probability
        for one in outlooks(fleet, futures)
        if one.probability is not None and one.probability < fleet.probability
    ]
    return len(tried.left_out) + len(short), round(sum(short), 3)


def _described(fleet: Fleet, best: Schedule, futures: Futures, notes: Sequence[str]) -> FleetPlan:
    runs = {run.name: run for run in fleet.runs}
    spent: dict[str, float] = {}
    for placement in best.placements:
        team = runs[placement.run].team or ""
        spent[team] = spent.get(team, 0.0) + placement.usd
    bought = best.usd - sum(placement.usd for placement in best.placements)
    unlikely = [
        Unlikely(run=name, probability=chance, deadline_hours=float(np.quantile(ends, fleet.probability)))
        for name, ends in zip(futures.runs, futures.ends, strict=True)
        if runs[name].deadline_hours < math.inf
        and (chance := float(np.mean(ends <= runs[name].deadline_hours))) < fleet.probability
    ]
    return FleetPlan(
        fleet=fleet, schedule=best, outlooks=outlooks(fleet, futures), purchases=tuple(_purchases(fleet, best)),
        total_usd=interval(futures.total_usd + bought, *futures.bases), spent_usd=spent,
        later=tuple(_later(fleet, best)),
        unlikely=tuple(unlikely), notes=tuple(notes),
    )  # fmt: skip


def _purchases(fleet: Fleet, best: Schedule) -> Iterator[Purchase]:
    for name, count in best.blocks.items():
        if not count:
            continue
        pool = fleet.pool(name)
        hours = (pool.gpus or 0) * pool.hours
        used = sum(
            one.gpus * (one.end_hours - one.start_hours) for one in best.placements if one.pool == name
        ) / (hours * (count + pool.bought_blocks))  # fmt: skip
        others = [
            other.usd_per_gpu_hour
            for other in fleet.pools
            if other.gpu == pool.gpu and other.kind is PoolKind.ON_DEMAND and other.usd_per_gpu_hour
        ]
        even = pool.upfront_usd / (hours * min(others)) if others else None
        yield Purchase(pool=name, blocks=count, usd=count * pool.upfront_usd, used_share=used, break_even_share=even)


def _later(fleet: Fleet, best: Schedule) -> Iterator[LaterRun]:
    """Yield the runs whose deadline costs most, with what another day would save."""
    extra = []
    for run in {run.group: run for run in fleet.runs}.values():
        placed = [one for one in best.placements if one.run == run.name]
        if placed and run.deadline_hours < math.inf:
            extra.append((placed[0].usd - min(way.usd for way in run.ways), run.name, run))
    dearest = sorted((one for one in extra if one[0] > 0), reverse=True, key=lambda one: one[:2])[:_ASKED_LATER]
    saved = saved_by(fleet, [run for _, _, run in dearest], 24.0, best.blocks)
    for (_, name, _), usd in zip(dearest, saved, strict=True):
        if usd > 0.005 * best.bound.usd:
            yield LaterRun(run=name, usd=usd)


# --- ways to do a run -------------------------------------------------------------------------------------------------


def fleet_of(file: FleetFile, store: Store) -> tuple[Fleet, list[str]]:
    """Return the fleet of a file with ways for each run, and notes. Raises AdvisorError with every entry's problem."""
    pools, notes = priced(file.pools)
    runs: list[FleetRun] = []
    problems: list[str] = []
    asked: dict[str, list[Run]] = {}
    for entry in file.entries:
        key = json.dumps([entry.goal, str(entry.plan)], sort_keys=True, default=str)
        try:
            if key not in asked:
                asked[key] = runs_on(entry, pools, store)
        except AdvisorError as error:
            problems.append(f"line {entry.line}: runs.{entry.name}: {error.message}")
            continue
        open_to = [pool for pool in pools if entry.interruptible or pool.kind is not PoolKind.SPOT]
        ways = ways_of(asked[key], open_to)
        if not ways:
            problems.append(f"line {entry.line}: runs.{entry.name} fits no pool: {_why_no_way(asked[key], open_to)}")
            continue
        runs += copies(entry, ways)
    if problems:
        raise AdvisorError(f"{file.path}: {'; '.join(problems)}", "nothing was planned", exit_code=2)
    fleet = Fleet(name=file.name, starts=file.starts.isoformat(timespec="minutes"), runs=tuple(runs), pools=pools,
                  budgets_usd=dict(file.budgets_usd), probability=file.probability)  # fmt: skip
    return fleet, notes


def copies(entry: Entry, ways: tuple[Way, ...]) -> list[FleetRun]:
    late = entry.usd_per_late_day
    if late is None:  # it has to be met: a day costs far more than any way of keeping it
        late = 100.0 + 10.0 * max(way.usd for way in ways)
    names = [entry.name] if entry.count == 1 else [f"{entry.name} {at + 1}" for at in range(entry.count)]
    return [
        FleetRun(
            name=name, group=entry.name, earliest_hours=entry.earliest_hours, deadline_hours=entry.deadline_hours,
            usd_per_day=entry.usd_per_day, usd_per_late_day=late, must=entry.usd_per_late_day is None,
            priority=entry.priority, team=entry.team, interruptible=entry.interruptible, ways=ways,
        )
        for name in names
    ]  # fmt: skip


def priced(pools: Sequence[Pool]) -> tuple[tuple[Pool, ...], list[str]]:
    """Return the pools with list prices where none is stated, and notes about those that have none."""
    priced, notes = [], []
    for pool in pools:
        if pool.usd_per_gpu_hour is None:
            providers = () if pool.provider is None else (pool.provider,)
            offer = cheapest_offer(pool.gpu, 1, spot=pool.kind is PoolKind.SPOT, providers=providers)
            if offer is None:
                notes.append(f"{pool.name}: no price of {pool.gpu} is known: state usd_per_gpu_hour; it is left out")
                continue
            pool = replace(pool, usd_per_gpu_hour=offer.usd_per_gpu_hour, list_price=True)
            notes.append(f"{pool.name}: at the list's cheapest price for each number of GPUs; one is {offer.source}")
        if pool.kind is PoolKind.SPOT and pool.up_hours == math.inf:
            pool = replace(pool, up_hours=SPOT_MEAN_SECONDS[1] / HOUR)
            notes.append(f"{pool.name}: up_time is not stated and taken as {pool.up_hours:g} h, as in every plan")
        priced.append(pool)
    if not priced:
        raise AdvisorError("no pool can be used: " + "; ".join(notes), "state usd_per_gpu_hour", exit_code=2)
    return tuple(priced), notes


def runs_on(entry: Entry, pools: Sequence[Pool], store: Store) -> list[Run]:
    """Return the planner's best run for the work of an entry on each number of each pool's GPUs."""
    plan = plan_on(entry, pools, store)
    return [plan.chosen, *(plan.search.machines if plan.search else ())]


def plan_on(entry: Entry, pools: Sequence[Pool], store: Store) -> Plan:
    """Return the plan for an entry on the GPUs of these pools, with the same work on each number of them."""
    keys = ",".join(sorted({pool.gpu for pool in pools}))
    most = max(pool.capacity(pool.most_blocks) for pool in pools)
    most = int(most) if most < math.inf else max(_MOST_GPUS_OF_A_RUN, *(pool.gpus or 0 for pool in pools))
    counts = sorted({2**n for n in range(0, most.bit_length())} | {p.gpus for p in pools if p.gpus and p.gpus <= 8})
    if entry.plan is not None:
        plan = load_plan(entry.plan)
    else:
        options = {"gpu": keys, "gpus": counts} | dict(entry.goal or {})
        plan = recommend(goal_from(read_options(options)), store)
    if plan.run is not None:  # the same model, batch and tokens on every machine
        plan = recommend(anywhere(plan, keys, counts), store)
    return plan


def anywhere(plan: Plan, keys: str, counts: Sequence[int]) -> Goal:
    """Return the goal to do a plan's work on so many of any of these GPUs."""
    goal = same_work(plan, keys)
    return replace(goal, gpu=keys, gpus=counts[0], counts=tuple(counts), micro_batch=None, sharding=None, own=(),
                   activation_checkpointing=None, providers=(), spot="none", usd_per_gpu_hour=None)  # fmt: skip


def ways_of(runs: Sequence[Run], pools: Sequence[Pool]) -> tuple[Way, ...]:
    """Return at most twelve ways to do a run, without those that another way of the same pool beats in everything."""
    ways: list[Way] = []
    for pool in pools:
        here = [
            _way(run, pool)
            for run in runs
            if run.offer.gpu == pool.gpu
            and run.offer.gpus <= (pool.gpus or math.inf)
            and run.prediction.fits is not False
        ]
        rows = [(way.hours.value, way.usd, way.gpus * way.hours.value) for way in here]
        ways += [
            way
            for way, row in zip(here, rows, strict=True)
            if not any(all(b <= a for a, b in zip(row, other, strict=True)) and other != row for other in rows)
        ]
    if len(ways) <= MOST_WAYS:
        return tuple(ways)
    # From every pool the cheapest, then the fastest, then the others by price.
    ways.sort(key=lambda way: way.usd)
    first = {way.pool: way for way in reversed(ways)}
    fastest = {way.pool: way for way in sorted(ways, key=lambda way: -way.hours.value)}
    order = dict.fromkeys([*first.values(), *fastest.values(), *ways])
    return tuple(order)[:MOST_WAYS]


def _way(run: Run, pool: Pool) -> Way:
    clock, hours = run.bill.wall_clock, run.total_seconds.scaled(1 / HOUR)
    if pool.kind in (PoolKind.OWNED, PoolKind.RESERVATION) and clock.provisioning_seconds is not None:
        # The machine is there: nothing has to be ordered.
        less = clock.provisioning_seconds.value / HOUR
        hours = Estimate(value=hours.value - less, low=max(0.0, hours.low - less), high=hours.high - less,
                         basis=hours.basis)  # fmt: skip
    deviation = math.log(max(hours.high, 1e-9) / max(hours.low, 1e-9)) / (2 * EIGHT_OF_TEN)
    work, usd = hours.value, hours.value * usd_per_hour(pool, run.offer.gpus)
    if pool.kind is PoolKind.SPOT:
        restarts = work / pool.up_hours * RESTART_HOURS if pool.up_hours < math.inf else 0.0
        usd *= 1 + restarts / max(work, 1e-9)
        hours = hours.scaled((1 + restarts / max(work, 1e-9)) / pool.availability)
    return Way(pool=pool.name, gpus=run.offer.gpus, hours=hours, work_hours=work, usd=usd, deviation=deviation)


def usd_per_hour(pool: Pool, gpus: int) -> float:
    """Return the price of so many GPUs of a pool: as the user states it for one, or as every plan has it."""
    if pool.list_price:
        providers = () if pool.provider is None else (pool.provider,)
        offer = cheapest_offer(pool.gpu, gpus, spot=pool.kind is PoolKind.SPOT, providers=providers)
        if offer is not None and offer.usd_per_hour is not None:
            return offer.usd_per_hour
    return gpus * (pool.usd_per_gpu_hour or 0.0)


def _why_no_way(runs: Sequence[Run], pools: Sequence[Pool]) -> str:
    """Say what a run would need."""
    most = {pool.gpu: max(p.gpus or math.inf for p in pools if p.gpu == pool.gpu) for pool in pools}
    fitting = [run for run in runs if run.prediction.fits is not False]
    if not fitting:
        return "no GPU of a pool holds it"
    least = min(fitting, key=lambda run: run.offer.gpus)
    have = ", ".join(f"{count:g} x {gpu}" for gpu, count in most.items())
    return f"it needs {least.offer.gpus} x {least.offer.gpu}, and there are {have}"
