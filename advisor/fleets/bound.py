"""The least that a fleet can cost, by linear programming, with the worth of each GPU and what to buy.

Runs are divided freely over ways and slots of time here, which no schedule can do, so that the optimum is a bound. Only
the blocks of reservations are whole. HiGHS, inside scipy, solves it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from advisor.fleets.records import Bound, Fleet, FleetRun, Pool, PoolKind, Way

MOST_SLOTS = 60
_SECONDS = 10.0  # for the search of whole blocks; its own bound is used if that is not enough


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A linear program: minimise cost @ x with at_most @ x <= limit, equal @ x == total and bounds."""

    cost: np.ndarray
    at_most: coo_array
    limit: np.ndarray
    equal: coo_array
    total: np.ndarray
    high: np.ndarray
    pools: tuple[Pool, ...]  # reservations, in the order of their variables, which are the last ones
    capacity_rows: dict[tuple[str, int], int]


def slots_of(fleet: Fleet) -> np.ndarray:
    """Return the edges of the slots of time: all moments at which something changes, and a regular grid between."""
    ways = [(run, way) for run in fleet.runs for way in run.ways]
    longest = max((way.hours.high for _, way in ways), default=1.0)
    work = sum(min((way.hours.value for way in run.ways), default=0.0) for run in fleet.runs)
    ends = [run.deadline_hours for run in fleet.runs if run.deadline_hours < math.inf]
    ends += [pool.until_hours for pool in fleet.pools if pool.until_hours < math.inf]
    begins = [run.earliest_hours for run in fleet.runs]
    horizon = max([*ends, max(begins, default=0.0) + longest]) + max(longest, work)
    edges = {0.0, horizon, *begins, *ends, *(pool.from_hours for pool in fleet.pools)}
    near = max([*ends, longest, *begins])
    if (room := MOST_SLOTS - len(edges)) > 1:
        edges |= set(np.linspace(0.0, near, room).tolist())
    return np.array(sorted(edge for edge in edges if 0.0 <= edge <= horizon))


def least_cost(fleet: Fleet) -> Bound:
    """Return the bound on the cost of a fleet, with whole blocks and the worth of capacity."""
    edges = slots_of(fleet)
    model = _model(fleet, edges)
    blocks, least = dict.fromkeys((pool.name for pool in model.pools), 0), None
    if len(model.pools) == 1:
        # The cost is convex in the number of blocks, so that the best whole number is next to the best one.
        (name,) = blocks
        part = _solved(model, None)[2][0]
        whole = sorted({math.floor(part + 1e-6), math.ceil(part - 1e-6)})
        least, blocks = min(((_solved(model, {name: n})[0], {name: n}) for n in whole), key=lambda one: one[0])
    elif model.pools:
        integer = np.zeros(len(model.cost), dtype=int)
        integer[-len(model.pools) :] = 1
        rules = [LinearConstraint(model.at_most, -np.inf, model.limit)]
        rules += [LinearConstraint(model.equal, model.total, model.total)]
        found = milp(model.cost, integrality=integer, bounds=Bounds(np.zeros(len(model.cost)), model.high),
                     constraints=rules, options={"time_limit": _SECONDS, "mip_rel_gap": 1e-3})  # fmt: skip
        if found.x is not None:
            taken = np.round(found.x[-len(model.pools) :])
            blocks = {pool.name: int(count) for pool, count in zip(model.pools, taken, strict=True)}
        # If the time was not enough, the program with blocks in parts is the bound.
        least = float(found.mip_dual_bound) if found.status == 0 else _solved(model, None)[0]
    usd, marginals, _ = _solved(model, blocks)
    worth, scarce = _worth(model, marginals, edges)
    return Bound(usd=usd if least is None else least, blocks=blocks, gpu_worth_usd=worth,
                 scarce_usd_per_gpu_hour=scarce)  # fmt: skip


def _solved(model: _Model, blocks: Mapping[str, int] | None) -> tuple[float, np.ndarray, list[float]]:
    """Return the optimum with so many blocks (None: any, and parts of them), the dual values, and the blocks."""
    low, high = np.zeros(len(model.cost)), model.high.copy()
    if model.pools and blocks is not None:
        low[-len(model.pools) :] = high[-len(model.pools) :] = [blocks[pool.name] for pool in model.pools]
    # the stubs know no sparse arrays
    solved: Any = linprog(  # type: ignore[call-overload]
        model.cost, A_ub=model.at_most.tocsr(), b_ub=model.limit, A_eq=model.equal.tocsr(), b_eq=model.total,
        bounds=np.stack([low, high], axis=1), method="highs",
    )  # fmt: skip
    assert solved.status == 0, solved.message  # every run may stay undone at a high price, so that a solution exists
    return float(solved.fun), solved.ineqlin.marginals, solved.x[len(model.cost) - len(model.pools) :].tolist()


def saved_by(fleet: Fleet, runs: Sequence[FleetRun], hours: float, blocks: Mapping[str, int]) -> list[float]:
    """Return by how many dollars the bound with these blocks falls for each run that may end so much later.

    Copies of a run may end later with it.
    """

    def least(changed: Fleet) -> float:
        return _solved(_model(changed, slots_of(changed)), blocks)[0]

    def later(run: FleetRun) -> Fleet:
        ends = {True: hours, False: 0.0}
        moved = (replace(one, deadline_hours=one.deadline_hours + ends[one.group == run.group]) for one in fleet.runs)
        return replace(fleet, runs=tuple(moved))

    now = least(fleet) if runs else 0.0
    return [now - least(later(run)) for run in runs]


def with_room(fleet: Fleet, deviations: Mapping[str, float]) -> Fleet:
    """Return the fleet with the times for which its runs are planned in place of the expected times."""

    def longer(run: FleetRun) -> FleetRun:
        room = deviations.get(run.name, 0.0)
        ways = tuple(replace(way, hours=way.hours.scaled(math.exp(room * way.deviation))) for way in run.ways)
        return replace(run, ways=ways, group=f"{run.group} {room:g}") if room else run

    return replace(fleet, runs=tuple(map(longer, fleet.runs)))


def undone_usd(run: FleetRun, horizon: float) -> float:
    """Return the price in the program of a run that is never done: more than any way of doing it."""
    return 1000.0 + 10.0 * max((way.usd for way in run.ways), default=0.0) + 2.0 * run.loss_usd(horizon)


def usd_per_gpu_hour_in_use(pool: Pool) -> float:
    """Return what an hour of use of one GPU adds: of a reservation, the refund for idle hours that it forgoes."""
    if pool.kind is not PoolKind.RESERVATION:
        return 0.0  # it is in the price of the way
    return pool.refund_share * pool.upfront_usd / ((pool.gpus or 1) * pool.hours)


def _model(fleet: Fleet, edges: np.ndarray) -> _Model:
    """Return the linear program. Its variables: shares of runs by way and slot, runs left undone, blocks."""
    groups: dict[str, list[FleetRun]] = defaultdict(list)
    for run in fleet.runs:
        groups[run.group].append(run)
    lengths, slots = np.diff(edges), len(edges) - 1
    reserved = tuple(pool for pool in fleet.pools if pool.kind is PoolKind.RESERVATION)
    cost: list[float] = []
    high: list[float] = []
    most: list[tuple[int, int, float]] = []  # row, variable, factor
    equal: list[tuple[int, int, float]] = []
    limit: list[float] = []
    total: list[float] = []
    capacity = _Rows(limit)
    for pool in fleet.pools:
        if pool.gpus is None:
            continue
        for j in range(slots):
            if pool.from_hours <= edges[j] and edges[j + 1] <= pool.until_hours:
                capacity.add((pool.name, j), pool.capacity(pool.bought_blocks) * lengths[j])
    budgets = _Rows(limit)
    for team, usd in fleet.budgets_usd.items():
        budgets.add((team, 0), usd)
    for members in groups.values():
        run, copies = members[0], len(members)
        row = len(total)
        total.append(float(copies))
        parallel = _Rows(limit)
        kept = [way for way in run.ways if _keeps(run, way, fleet.pool(way.pool))]
        for way in kept or run.ways:
            pool = fleet.pool(way.pool)
            extra = usd_per_gpu_hour_in_use(pool) * way.gpus * way.hours.value
            for j in range(slots):
                opens, closes = max(pool.from_hours, run.earliest_hours), pool.until_hours
                if edges[j] < opens or edges[j + 1] > closes or (kept and edges[j] >= run.deadline_hours):
                    continue
                variable = len(cost)
                # A run takes one way, so that it ends after that way's whole time, and not before the slot begins. The
                # work of a run that must keep its deadline, if it can, lies before it.
                ends = max(float(edges[j]), opens + way.hours.value)
                cost.append(way.usd + extra + run.loss_usd(ends))
                high.append(float(copies))
                equal.append((row, variable, 1.0))
                if pool.gpus is not None:
                    most.append((capacity.at[pool.name, j], variable, way.gpus * way.hours.value))
                if ("", j) not in parallel.at:
                    parallel.add(("", j), copies * lengths[j])
                most.append((parallel.at["", j], variable, way.hours.value))
                for team in {run.team or "", ""} & set(fleet.budgets_usd):
                    most.append((budgets.at[team, 0], variable, way.usd + extra))
        equal.append((row, len(cost), 1.0))
        cost.append(undone_usd(run, float(edges[-1])))
        high.append(float(copies))
    for pool in reserved:
        variable = len(cost)
        cost.append(pool.upfront_usd * (1 - pool.refund_share))
        high.append(float(pool.most_blocks - pool.bought_blocks))
        for (name, j), index in capacity.at.items():
            if name == pool.name:
                most.append((index, variable, -float(pool.gpus or 0) * lengths[j]))
        if "" in fleet.budgets_usd:
            most.append((budgets.at["", 0], variable, pool.upfront_usd * (1 - pool.refund_share)))
    return _Model(cost=np.array(cost), at_most=_matrix(most, len(limit), len(cost)), limit=np.array(limit),
                  equal=_matrix(equal, len(total), len(cost)), total=np.array(total), high=np.array(high),
                  pools=reserved, capacity_rows=capacity.at)  # fmt: skip


def _keeps(run: FleetRun, way: Way, pool: Pool) -> bool:
    """Tell whether a run with a deadline that must be kept can keep it in this way."""
    begins = max(run.earliest_hours, pool.from_hours) + pool.queue_hours
    return run.must and begins + way.hours.value <= min(run.deadline_hours, pool.until_hours)


class _Rows:
    """Gives each rule of one kind its row in the list of limits."""

    def __init__(self, limits: list[float]):
        self._limits = limits
        self.at: dict[tuple[str, int], int] = {}

    def add(self, key: tuple[str, int], limit: float) -> None:
        self.at[key] = len(self._limits)
        self._limits.append(limit)


def _matrix(entries: Sequence[tuple[int, int, float]], rows: int, columns: int) -> coo_array:
    table = np.array(entries, dtype=float).reshape(-1, 3)
    return coo_array((table[:, 2], (table[:, 0].astype(int), table[:, 1].astype(int))), shape=(rows, columns))


def _worth(
    model: _Model, marginals: np.ndarray, edges: np.ndarray
) -> tuple[dict[str, float], dict[str, tuple[tuple[float, float], ...]]]:
    """Return what one more GPU of each pool saves in all, and per hour by slot, from the dual values."""
    worth: dict[str, float] = defaultdict(float)
    scarce: Mapping[str, list[tuple[float, float]]] = defaultdict(list)
    for (name, j), row in model.capacity_rows.items():
        usd = max(0.0, -float(marginals[row]))  # of one more GPU-hour in this slot
        worth[name] += usd * float(edges[j + 1] - edges[j])
        scarce[name].append((float(edges[j]), usd))
    return dict(worth), {name: tuple(rows) for name, rows in scarce.items()}
