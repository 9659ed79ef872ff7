"""The least that a fleet can cost, by linear programming, with the worth of each GPU and what to buy.

Runs are divided freely over ways and slots of time here, which no schedule can do, so that the optimum is a bound. Only
the blocks of reservations are whole. HiGHS, inside scipy, solves it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from advisor.fleets.records import Bound, Fleet, FleetRun, Pool, PoolKind, Room, Way

MOST_SLOTS = 60
NO_ROOM = Room()
_SECONDS = 10.0  # for the search of whole blocks; its own bound is used if that is not enough


class Program:
    """A linear program: minimise cost @ x with at_most @ x <= limit, equal @ x == total and 0 <= x <= high.

    Its variables: runs left undone, shares of runs by way and slot, and last the blocks of reservations. Slots need not
    end where something changes: what lies in a part of a slot counts for that part, so that the optimum stays a bound.
    """

    def __init__(self, fleet: Fleet, room: Room = NO_ROOM, *, slots: int = MOST_SLOTS):
        self.edges = _edges(fleet, slots)
        self.slots = len(self.edges) - 1
        self.pools = {pool.name: pool for pool in fleet.pools}
        self.reserved = [pool for pool in fleet.pools if pool.kind is PoolKind.RESERVATION]
        self._cost: list[np.ndarray] = []
        self._high: list[np.ndarray] = []
        self._most: list[tuple[Any, np.ndarray, Any]] = []  # rows, variables, factors
        self._equal: list[tuple[Any, np.ndarray, Any]] = []
        self._variables = 0
        # Rows: first those of each limited pool, one for each slot; then budgets; then those of the runs.
        limited = [pool for pool in fleet.pools if pool.gpus is not None]
        self.capacity_row = {pool.name: at * self.slots for at, pool in enumerate(limited)}
        limits = [pool.capacity(pool.bought_blocks) * self._open(pool.from_hours, pool.until_hours) for pool in limited]
        self._budget_row = {team: len(limited) * self.slots + at for at, team in enumerate(fleet.budgets_usd)}
        limits.append(np.array(list(fleet.budgets_usd.values())))
        self._rows = len(limited) * self.slots + len(self._budget_row)
        groups: dict[str, list[FleetRun]] = defaultdict(list)
        for run in fleet.runs:
            groups[run.group].append(run)
        self.groups = [(runs, self._add_group(at, runs, room, limits)) for at, runs in enumerate(groups.values())]
        for pool in self.reserved:
            usd = pool.upfront_usd * (1 - pool.refund_share)
            block = self._add(usd, pool.most_blocks - pool.bought_blocks)
            hours = self._open(pool.from_hours, pool.until_hours) * (pool.gpus or 0)
            self._most.append((self.capacity_row[pool.name] + np.arange(self.slots), block, -hours))
            if "" in self._budget_row:
                self._most.append((self._budget_row[""], block, usd))
        self.limit = np.concatenate(limits)
        self.total = np.array([len(runs) for runs, _ in self.groups], dtype=float)
        self.cost, self.high = np.concatenate(self._cost), np.concatenate(self._high)
        self.at_most = _matrix(self._most, (len(self.limit), self._variables))
        self.equal = _matrix(self._equal, (len(self.total), self._variables))

    def _open(self, opens: float, closes: float) -> np.ndarray:
        """Return the hours of each slot that lie between two times."""
        return np.maximum(0.0, np.minimum(self.edges[1:], closes) - np.maximum(self.edges[:-1], opens))

    def _add(self, cost: float | np.ndarray, high: float) -> np.ndarray:
        """Add a variable for each cost, and return their indices."""
        self._cost.append(np.atleast_1d(cost))
        self._high.append(np.full(len(self._cost[-1]), float(high)))
        self._variables += len(self._cost[-1])
        return np.arange(self._variables - len(self._cost[-1]), self._variables)

    def _add_group(
        self, group: int, runs: Sequence[FleetRun], room: Room, limits: list[np.ndarray]
    ) -> list[tuple[Way, np.ndarray]]:
        """Add runs that are alike; returns their ways with their variables.

        A run takes one way, so that it ends after that way's whole time, and not before the slot begins. The work of a
        run that must keep its deadline, if it can, lies before it. At most all copies work at once.
        """
        run, copies, end = runs[0], len(runs), float(self.edges[-1])
        if run.deadline_hours == math.inf:
            room = NO_ROOM
        possible = []
        for way in run.ways:
            pool, hours = self.pools[way.pool], way.hours_at(room.common)
            opens = max(run.earliest_hours, pool.from_hours)
            begins = opens + pool.queue_hours - 1e-9
            keeps = run.must and begins + way.hours_at(room.own) <= run.deadline_hours
            keeps &= begins + hours <= pool.until_hours
            possible.append((way, pool, hours, opens, keeps))
        if punctual := [one for one in possible if one[-1]]:
            possible, end = punctual, min(end, run.deadline_hours)
        rows = self._rows
        limits.append(np.append(copies * self._open(run.earliest_hours, end), copies * (end - run.earliest_hours)))
        self._rows += self.slots + 1
        # A run that is never done costs more than any way of doing it.
        undone = 1000.0 + 10.0 * max((way.usd for way in run.ways), default=0.0)
        variables = [self._add(undone + 2.0 * run.loss_usd(float(self.edges[-1])), copies)]
        by_way = []
        for way, pool, hours, opens, _ in possible:
            usd = way.usd + usd_per_gpu_hour_in_use(pool) * way.gpus * way.hours.value
            if pool.gpus is None:  # when it works there changes nothing for others
                one = self._add(usd + run.loss_usd(opens + hours), copies)
            else:
                slots = np.flatnonzero(self._open(opens, min(end, pool.until_hours)) > 1e-9)
                cost = np.full(len(slots), usd)
                if run.usd_per_day or not punctual:
                    cost += [run.loss_usd(max(begins, opens + hours)) for begins in self.edges[slots].tolist()]
                one = self._add(cost, copies)
                self._most.append((self.capacity_row[pool.name] + slots, one, way.gpus * hours))
                self._most.append((rows + slots, one, hours))
            self._most.append((rows + self.slots, one, hours))
            self._most += [(self._budget_row[team], one, usd) for team in {run.team or "", ""} & set(self._budget_row)]
            variables.append(one)
            by_way.append((way, one))
        self._equal.append((group, np.concatenate(variables), 1.0))
        return by_way

    def solved(self, blocks: Mapping[str, int] | None) -> Any:
        """Return scipy's solution with so many blocks of each reservation (None: any, and parts of them)."""
        low, high = np.zeros(len(self.cost)), self.high.copy()
        if self.reserved and blocks is not None:
            low[-len(self.reserved) :] = high[-len(self.reserved) :] = [blocks[pool.name] for pool in self.reserved]
        # the stubs know no sparse arrays
        found: Any = linprog(  # type: ignore[call-overload]
            self.cost, A_ub=self.at_most, b_ub=self.limit, A_eq=self.equal, b_eq=self.total,
            bounds=np.stack([low, high], axis=1), method="highs",
        )  # fmt: skip
        assert found.status == 0, found.message  # every run may stay undone at a high price, so that a solution exists
        return found

    def best_blocks(self) -> tuple[dict[str, int], float | None]:
        """Return the best whole numbers of blocks, with a bound on the cost if it is not that of these blocks."""
        names = [pool.name for pool in self.reserved]
        if len(names) == 1:
            # The cost is convex in the number of blocks, so that the best whole number is next to the best one.
            part = float(self.solved(None).x[-1])
            whole = sorted({math.floor(part + 1e-6), math.ceil(part - 1e-6)})
            cost = {n: self.solved({names[0]: n}).fun for n in whole} if len(whole) > 1 else dict.fromkeys(whole, 0.0)
            return {names[0]: min(whole, key=cost.__getitem__)}, None
        if not names:
            return {}, None
        rules = [LinearConstraint(self.at_most, -np.inf, self.limit)]
        rules += [LinearConstraint(self.equal, self.total, self.total)]
        integer = (np.arange(len(self.cost)) >= len(self.cost) - len(names)).astype(int)
        found = milp(self.cost, integrality=integer, bounds=Bounds(np.zeros(len(self.cost)), self.high),
                     constraints=rules, options={"time_limit": _SECONDS, "mip_rel_gap": 1e-3})  # fmt: skip
        blocks = dict.fromkeys(names, 0)
        if found.x is not None:
            blocks = dict(zip(names, np.round(found.x[-len(names) :]).astype(int).tolist(), strict=True))
        # If the time was not enough, the program with blocks in parts is the bound.
        return blocks, float(found.mip_dual_bound if found.status == 0 else self.solved(None).fun)


def least_cost(fleet: Fleet, room: Room = NO_ROOM, *, slots: int = MOST_SLOTS) -> Bound:
    """Return the bound on the cost of a fleet, with whole blocks and the worth of capacity."""
    program = Program(fleet, room, slots=slots)
    blocks, least = program.best_blocks()
    found = program.solved(blocks)
    lengths, worth, scarce = np.diff(program.edges), {}, {}
    for name, row in program.capacity_row.items():
        pool = program.pools[name]
        usd = np.maximum(0.0, -found.ineqlin.marginals[row : row + program.slots])  # of one more GPU-hour in each slot
        usd *= (program.edges[:-1] >= pool.from_hours) & (program.edges[1:] <= pool.until_hours)
        worth[name] = float(usd @ lengths)
        scarce[name] = tuple(zip(program.edges[:-1].tolist(), usd.tolist(), strict=True))
    ways = {}
    for runs, variables in program.groups:
        shares = [(float(found.x[at].sum()), way) for way, at in variables]
        # Copies take the ways in turn, each as many as its share.
        ends = np.cumsum([share for share, _ in shares])
        for copy, run in enumerate(runs):
            if shares and ends[-1] > 0:
                at = min(int(np.searchsorted(ends, (copy + 0.5) / len(runs) * ends[-1])), len(shares) - 1)
                ways[run.name] = (shares[at][1].pool, shares[at][1].gpus)
    return Bound(usd=float(found.fun) if least is None else least, blocks=blocks, gpu_worth_usd=worth,
                 scarce_usd_per_gpu_hour=scarce, ways=ways)  # fmt: skip


def saved_by(fleet: Fleet, runs: Sequence[FleetRun], hours: float, blocks: Mapping[str, int]) -> list[float]:
    """Return by how many dollars the bound with these blocks falls for each run that may end so much later.

    Copies of a run may end later with it.
    """

    def later(group: str) -> Fleet:
        moved = [replace(one, deadline_hours=one.deadline_hours + hours * (one.group == group)) for one in fleet.runs]
        return replace(fleet, runs=tuple(moved))

    now = Program(fleet, slots=30).solved(blocks).fun if runs else 0.0
    return [now - Program(later(run.group), slots=30).solved(blocks).fun for run in runs]


def usd_per_gpu_hour_in_use(pool: Pool) -> float:
    """Return what an hour of use of one GPU adds: of a reservation, the refund for idle hours that it forgoes."""
    if pool.kind is not PoolKind.RESERVATION:
        return 0.0  # it is in the price of the way
    return pool.refund_share * pool.upfront_usd / ((pool.gpus or 1) * pool.hours)


def _edges(fleet: Fleet, most: int) -> np.ndarray:
    """Return the edges of the slots: moments at which pools change, and as many between them as there is room for."""
    longest = max((way.hours.high for run in fleet.runs for way in run.ways), default=1.0)
    work = sum(min((way.hours.value for way in run.ways), default=0.0) for run in fleet.runs)
    begins = [run.earliest_hours for run in fleet.runs]
    ends = [run.deadline_hours for run in fleet.runs if run.deadline_hours < math.inf]
    fixed = {0.0, *(pool.from_hours for pool in fleet.pools)}
    fixed |= {pool.until_hours for pool in fleet.pools if pool.until_hours < math.inf}
    near = max([longest, *begins, *ends, *fixed])
    moments = sorted({*begins, *ends} - fixed)
    if len(moments) > most // 2:  # as many of them as there is room for
        moments = np.quantile(moments, np.linspace(0.0, 1.0, most // 2)).tolist()
    grid = np.linspace(0.0, near, max(2, most - len(fixed) - len(moments))).tolist()
    return np.unique([*fixed, *moments, *grid, near + longest + max(longest, work)])


def _matrix(entries: Sequence[tuple[Any, np.ndarray, Any]], shape: tuple[int, int]) -> csr_array:
    """Return the sparse matrix of rows, columns and factors."""
    whole = [np.broadcast_arrays(*entry) for entry in entries]
    rows, columns, factors = (np.concatenate([np.empty(0), *part]) for part in zip(*whole, strict=True))
    return csr_array((factors, (rows.astype(int), columns.astype(int))), shape=shape)
