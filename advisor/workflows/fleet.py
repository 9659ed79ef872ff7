"""Plans a fleet: ways to do each run from the planner, what to buy, a schedule, and what drawn futures say of it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
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
from advisor.fleets.records import Fleet, FleetRun, Outlook, Placement, Pool, PoolKind, Purchase, Room, Schedule, Way
from advisor.fleets.schedule import schedule
from advisor.fleets.simulate import RESTART_HOURS, Chances, Futures, average, on_demand_price, outlooks, simulate
from advisor.hardware.offers import cheapest_offer
from advisor.offer import EIGHT_OF_TEN, Offer
from advisor.options import Goal
from advisor.planning.answer import same_work
from advisor.planning.evaluate import non_dominated
from advisor.planning.offers import SPOT_MEAN_SECONDS
from advisor.records import Estimate, Plan, Run
from advisor.store.plan_files import load_plan
from advisor.store.store import Store
from advisor.units import HOUR
from advisor.workflows.goal import goal_from, read_options
from advisor.workflows.plan import recommend
from advisor.workflows.plan_finetune import with_usual_examples

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
    total_usd: Estimate  # of all runs and blocks: the average of drawn futures, and 8 of 10
    spent_usd: dict[str, float]  # by team, on average
    later: tuple[LaterRun, ...]
    unlikely: tuple[Unlikely, ...]
    notes: tuple[str, ...]

    @property
    def keeps_deadlines(self) -> bool:
        return not self.unlikely and not self.schedule.left_out


def plan_fleet(
    path: Path, store: Store, *, effort: float = 1.0, progress: Callable[[str], None] = lambda text: None
) -> FleetPlan:
    """Plan the fleet of a file. Raises AdvisorError with every problem of the file at once."""
    file = read_fleet(path, datetime.now().replace(microsecond=0))
    progress(f"asking the planner for ways to do {len(file.entries)} kinds of runs")
    pools, notes = priced(file.pools)
    asked: dict[str, list[Run]] = {}

    def ways(entry: Entry, open_to: Sequence[Pool]) -> tuple[Way, ...]:
        key = json.dumps([entry.goal, str(entry.plan)], sort_keys=True, default=str)
        if key not in asked:
            asked[key] = on_each(plan_on(entry, pools, store))
        return ways_of(asked[key], open_to)

    runs, problems = runs_of(file, pools, ways)
    fleet = fleet_with(file, pools, runs, problems, "nothing was planned")
    progress("looking for what to buy and for a schedule")
    return solve(fleet, notes, effort=effort)


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
    best, runs = None, {run.name: run for run in fleet.runs}
    simulated = partial(simulate, fleet, chances=Chances(fleet, seed=seed))
    if any(blocks.values()):
        # Whole runs fill a block less well than the program's parts of them: one block fewer may cost less.
        mixes = [blocks, *(blocks | {name: count - 1} for name, count in blocks.items() if count)]
        best = min((search(mix, tries=tries // 3) for mix in mixes), key=lambda one: _drawn_key(one, simulated(one)))
        blocks = best.blocks
    best = search(blocks, tries=tries, before=best)
    tried, drawn, since = best, (futures := simulated(best)), 0
    # Runs whose deadline is too unlikely are to end sooner, as long as that helps.
    while since < _ROUNDS and (late := [one for one in _unlikely(fleet, drawn) if one.run not in tried.late]):
        pool_of = {one.run: one.pool for one in tried.placements}
        for one in late:
            key, hours = (one.run, pool_of[one.run]), one.deadline_hours - runs[one.run].deadline_hours
            sooner[key] = sooner.get(key, 0.0) + _TOO_LATE * max(0.02, hours)
        tried = search(blocks, tries=tries // 5, before=tried)
        drawn, since = simulated(tried), since + 1
        if (_missed(fleet, tried, drawn), _key(tried)) < (_missed(fleet, best, futures), _key(best)):
            best, futures, since = tried, drawn, 0
    spent: dict[str, float] = defaultdict(float)
    for name, usd in zip(futures.runs, futures.usd, strict=True):
        spent[runs[name].team or ""] += float(usd.mean())
    bought = best.usd - sum(placed.usd for placed in best.placements)
    return FleetPlan(
        fleet=fleet, schedule=best, outlooks=outlooks(fleet, futures), purchases=tuple(_purchases(fleet, best)),
        total_usd=average(futures.total_usd + bought, *futures.bases), spent_usd=dict(spent),
        later=tuple(_later(fleet, best)), unlikely=tuple(_unlikely(fleet, futures)), notes=tuple(notes),
    )  # fmt: skip


def _unlikely(fleet: Fleet, futures: Futures) -> list[Unlikely]:
    """Return the runs whose deadline is too unlikely."""
    deadlines = {run.name: run.deadline_hours for run in fleet.runs}
    return [
        Unlikely(run=name, probability=chance, deadline_hours=float(np.quantile(ends, fleet.probability)))
        for name, ends in zip(futures.runs, futures.ends, strict=True)
        if (chance := float(np.mean(ends <= deadlines[name]))) < fleet.probability
    ]


def _drawn_key(tried: Schedule, futures: Futures) -> tuple[int, float]:
    """As `_key`, with the mean dollars of drawn futures."""
    drawn = float(futures.total_usd.mean())
    return _key(tried)[0], tried.objective_usd + drawn - sum(one.usd for one in tried.placements)


def _key(tried: Schedule) -> tuple[int, float]:
    return len(tried.left_out) + len(tried.late), tried.objective_usd


def _missed(fleet: Fleet, tried: Schedule, futures: Futures) -> tuple[int, float]:
    """Return how many deadlines are too unlikely, and by how much together."""
    short = [fleet.probability - one.probability for one in _unlikely(fleet, futures)]
    return len(tried.left_out) + len(short), round(sum(short), 3)


def _purchases(fleet: Fleet, best: Schedule) -> Iterator[Purchase]:
    for name, count in best.blocks.items():
        if not count:
            continue
        pool = fleet.pool(name)
        hours = (pool.gpus or 0) * pool.hours
        used = sum(
            one.gpus * (one.end_hours - one.start_hours) for one in best.placements if one.pool == name
        ) / (hours * (count + pool.bought_blocks))  # fmt: skip
        other = on_demand_price(fleet, pool)
        even = None if other is None else pool.upfront_usd / (hours * other)
        yield Purchase(pool=name, blocks=count, usd=count * pool.upfront_usd, used_share=used, break_even_share=even)


def _later(fleet: Fleet, best: Schedule) -> Iterator[LaterRun]:
    """Yield the runs whose deadline costs most, with what another day would save."""
    usd_of = {one.run: one.usd for one in best.placements}
    extra = [
        (usd_of[run.name] - min(way.usd for way in run.ways), run.name, run)
        for run in {run.group: run for run in fleet.runs}.values()
        if run.name in usd_of and run.deadline_hours < math.inf
    ]
    dearest = sorted((one for one in extra if one[0] > 0), reverse=True, key=lambda one: one[:2])[:_ASKED_LATER]
    saved = saved_by(fleet, [run for _, _, run in dearest], 24.0, best.blocks)
    for (_, name, _), usd in zip(dearest, saved, strict=True):
        if usd > 0.005 * best.bound.usd:
            yield LaterRun(run=name, usd=usd)


# --- ways to do a run -------------------------------------------------------------------------------------------------


def runs_of(
    file: FleetFile, pools: Sequence[Pool], ways: Callable[[Entry, Sequence[Pool]], tuple[Way, ...]]
) -> tuple[list[FleetRun], list[str]]:
    """Return the runs of a file, with ways on the pools that they may use, and every entry's problem."""
    runs: list[FleetRun] = []
    problems = []
    for entry in file.entries:
        try:
            runs += _copies(
                entry,
                ways(entry, [pool for pool in pools if entry.run.interruptible or pool.kind is not PoolKind.SPOT]),
            )
        except AdvisorError as error:
            problems.append(f"line {entry.line}: runs.{entry.name}: {' '.join(error.message.split())}")
    return runs, problems


def fleet_with(
    file: FleetFile, pools: tuple[Pool, ...], runs: Sequence[FleetRun], problems: Sequence[str], outcome: str
) -> Fleet:
    """Return the fleet of a file. Raises AdvisorError with all problems, if there are any."""
    if problems:
        raise AdvisorError(f"{file.path}: {'; '.join(problems)}", outcome, exit_code=2)
    return Fleet(name=file.name, starts=file.starts.isoformat(timespec="seconds"), runs=tuple(runs), pools=pools,
                 budgets_usd=dict(file.budgets_usd), probability=file.probability)  # fmt: skip


def _copies(entry: Entry, ways: tuple[Way, ...]) -> list[FleetRun]:
    run = replace(entry.run, ways=ways)
    if run.must:  # a day too late costs far more than any way of being in time
        run = replace(run, usd_per_late_day=100.0 + 10.0 * max(way.usd for way in ways))
    names = [run.name] if entry.count == 1 else [f"{run.name} {at + 1}" for at in range(entry.count)]
    return [replace(run, name=name) for name in names]


def priced(pools: Sequence[Pool]) -> tuple[tuple[Pool, ...], list[str]]:
    """Return the pools with list prices where none is stated, and notes about those that have none."""
    priced, notes = [], []
    for pool in pools:
        if pool.usd_per_gpu_hour is None:
            if (offer := _listed(pool, 1)) is None:
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


def _listed(pool: Pool, gpus: int) -> Offer | None:
    providers = () if pool.provider is None else (pool.provider,)
    return cheapest_offer(pool.gpu, gpus, spot=pool.kind is PoolKind.SPOT, providers=providers)


def usd_per_hour(pool: Pool, gpus: int) -> float:
    """Return the price of so many GPUs of a pool: as the user states it for one, or as every plan has it."""
    if pool.list_price and (offer := _listed(pool, gpus)) is not None and offer.usd_per_hour is not None:
        return offer.usd_per_hour
    return gpus * (pool.usd_per_gpu_hour or 0.0)


def on_each(plan: Plan) -> list[Run]:
    """Return the best run of a plan on each number of each GPU."""
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
        goal = goal_from(read_options(options))
        if with_usual_examples(goal) != goal:  # a budget answers how many examples it buys, and is no amount
            raise AdvisorError("the amount of training is not given", "state it, e.g. examples: 50k", exit_code=2)
        plan = recommend(goal, store)
    if plan.run is not None:  # the same model, batch and tokens on every machine
        plan = recommend(anywhere(plan, keys, counts), store)
    return plan


def anywhere(plan: Plan, keys: str, counts: Sequence[int]) -> Goal:
    """Return the goal to do a plan's work on so many of any of these GPUs."""
    goal = same_work(plan, keys)
    return replace(goal, gpu=keys, gpus=counts[0], counts=tuple(counts), micro_batch=None, sharding=None, own=(),
                   activation_checkpointing=None, providers=(), spot="none", usd_per_gpu_hour=None)  # fmt: skip


def ways_of(runs: Sequence[Run], pools: Sequence[Pool]) -> tuple[Way, ...]:
    """Return at most twelve ways to do a run, without those that another way of the same pool beats in everything.

    Raises AdvisorError if there is none.
    """
    ways: list[Way] = []
    fitting = [run for run in runs if run.prediction.fits is not False]
    for pool in pools:
        here = [_way(run, pool) for run in fitting
                if run.offer.gpu == pool.gpu and run.offer.gpus <= (pool.gpus or math.inf)]  # fmt: skip
        rows = np.array([(way.hours.value, way.usd, way.gpus * way.hours.value) for way in here], dtype=float)
        ways += [here[at] for at in non_dominated(rows.reshape(-1, 3))]
    if not fitting:
        raise AdvisorError("no GPU of a pool holds it", "add a pool")
    if not ways:
        least = min(fitting, key=lambda run: run.offer.gpus).offer
        most = {pool.gpu: max(other.gpus or math.inf for other in pools if other.gpu == pool.gpu) for pool in pools}
        have = ", ".join(gpu if count == math.inf else f"{count} x {gpu}" for gpu, count in most.items())
        raise AdvisorError(f"it needs {least.gpus} x {least.gpu}, and there are {have}", "add a pool")
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
        hours = replace(hours, value=hours.value - less, low=max(0.0, hours.low - less), high=hours.high - less)
    deviation = math.log(max(hours.high, 1e-9) / max(hours.low, 1e-9)) / (2 * EIGHT_OF_TEN)
    work, usd = hours.value, hours.value * usd_per_hour(pool, run.offer.gpus)
    if pool.kind is PoolKind.SPOT:
        # Restarts take paid time, and so many of the other hours pass without a machine.
        longer = 1 + RESTART_HOURS / pool.up_hours
        usd, hours = usd * longer, hours.scaled(longer / pool.availability)
    return Way(pool=pool.name, gpus=run.offer.gpus, hours=hours, work_hours=work, usd=usd, deviation=deviation)
