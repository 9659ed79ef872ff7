"""Runs a fleet: starts each run once its planned time has come, follows all, and plans again at each event.

What is to be started is written down before it is started, with its run folder. A controller that was killed at any
moment goes on from that file, and from what the folders and engines say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from advisor.engines.engines import backend_of, describe, handle_of, parse_place
from advisor.engines.guards import GuardLimits, with_limits_of
from advisor.engines.process import try_lock, waiting_lock
from advisor.engines.remote import RemoteBackend
from advisor.engines.state import RunState as EngineState
from advisor.engines.state import RunStatus, goes_on, last_sighting, log_bytes
from advisor.errors import AdvisorError
from advisor.fleets.read import FleetFile, read_fleet
from advisor.fleets.records import Fleet, Placement, Pool, PoolKind, Way
from advisor.fleets.simulate import RESTART_HOURS, next_machine, rates_in
from advisor.fleets.spot import ON_DEMAND, SPOT, WAIT
from advisor.fleets.state import Budget, FleetState, Phase, RunState, fleet_folder, read_state, write_state
from advisor.store.disk import disk_errors
from advisor.store.run_folder import is_run_folder, read_launch
from advisor.store.store import Store
from advisor.trainers.known import trainer_of_run
from advisor.units import HOUR
from advisor.workflows import budget
from advisor.workflows.fleet import solve, usd_per_hour
from advisor.workflows.fleet_start import Plans, on_pool, startable
from advisor.workflows.launch import launch, resume, stop
from trainer.schema import Outcome

_STARTED = (Phase.STARTING, Phase.RUNNING)
_MOST_REFUSALS = 3  # of an engine, one after the other, until a run counts as failed
_PROGRESS = 0.1  # share of the steps from which a run's own speed forecasts its end
_LEAST_LEFT_HOURS = 1 / HOUR  # of a run that goes on
_OWN_DEVIATION = 0.1  # of the log of the hours left, of a run whose own speed is known. Judgement
_STOP_SECONDS = 30.0  # that a round waits for a run that moves; its stop is asked for again in the next one
_FROM_OUTSIDE = "received "  # begins the reason of a stop by a signal or by the notice that the machine is taken away


def run_fleet(
    path: Path,
    store: Store,
    *,
    every_seconds: float = 10.0,
    effort: float = 1.0,
    say: Callable[[str], None] = lambda text: None,
) -> FleetState:
    """Run the fleet of a file until nothing runs and nothing more can be started; returns what became of each run.

    Raises AdvisorError, with every problem at once, before anything starts.
    """
    file = read_fleet(path, datetime.now().replace(microsecond=0))
    folder = fleet_folder(store, file.name)
    startable(file, store, read_state(store, file.name))
    with disk_errors("make the fleet's folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    busy = AdvisorError(f"another command runs the fleet {file.name}", f"advisor fleet watch {file.name}")
    with waiting_lock(folder / ".lock", 5.0, busy):
        state = read_state(store, file.name)
        if state is not None:
            file = read_fleet(path, datetime.fromisoformat(state.starts))  # durations count from the first start
        controller = Controller(store, file, *startable(file, store, state), state, say)
        while controller.round(effort):
            time.sleep(every_seconds)
        return controller.state


class Controller:
    """The loop of one fleet. Its state on disk is never behind what it has done at an engine."""

    def __init__(
        self, store: Store, file: FleetFile, fleet: Fleet, plans: Mapping[str, Plans], before: FleetState | None,
        say: Callable[[str], None],
    ):  # fmt: skip
        self.store, self.fleet, self.plans, self.say, self.starts = store, fleet, plans, say, file.starts
        self.pools = {pool.name: pool for pool in fleet.pools}
        self.runs = {run.name: run for run in fleet.runs}
        created = datetime.now(UTC) if before is None else datetime.fromisoformat(before.created)
        known = {one.run: _looked_at_again(one) for one in before.runs} if before is not None else {}
        found = [
            replace(
                known.get(run.name) or RunState(
                    run=run.name, folder=str(store.run_folder(f"{self.fleet.name}-{run.name}", created).resolve())
                ),
                team=run.team,
                deadline_hours=run.deadline_hours if run.deadline_hours != float("inf") else None,
            )
            for run in fleet.runs
        ]  # fmt: skip
        budgets = tuple(Budget(team=team, usd=usd) for team, usd in self.fleet.budgets_usd.items())
        self.state = FleetState(
            name=self.fleet.name, file=str(file.path.resolve()), created=created.isoformat(timespec="seconds"),
            starts=self.fleet.starts, runs=tuple(found), budgets=budgets,
        )  # fmt: skip
        write_state(store, self.state)
        self.is_due = True  # to be planned again

    def now(self) -> float:
        """Return the hours since the fleet's start."""
        return self.hours(time.time())

    def hours(self, unix_seconds: float) -> float:
        return (datetime.fromtimestamp(unix_seconds, self.starts.tzinfo) - self.starts).total_seconds() / HOUR

    def put(self, one: RunState) -> RunState:
        """Replace the state of a run, on disk too if that matters to whoever goes on from it."""
        runs = tuple(one if other.run == one.run else other for other in self.state.runs)
        changed, self.state = runs != self.state.runs, replace(self.state, runs=runs)
        if changed:
            write_state(self.store, self.state)
        return one

    def round(self, effort: float) -> bool:
        """Look at what runs, plan again if something happened, and start what is due. Returns False at the end."""
        for one in self.state.runs:
            if one.phase in _STARTED:
                seen = self.put(self.looked(one))
                if seen.phase is Phase.RUNNING and (to := self.moves_to(seen)) is not None:
                    self.move(seen, to)
                if seen.phase not in _STARTED:
                    self.is_due = True
                    budget.settle(Path(one.folder), self.store)
                    self.say(f"{one.run}: {seen.phase}{f', {seen.reason}' if seen.reason else ''}")
        now = self.now()
        late = any(one.phase in _STARTED and (one.end_hours or now) <= now for one in self.state.runs)
        if self.is_due or late:
            self.is_due = False
            self.plan(effort)
        for one in sorted(self.state.runs, key=lambda one: (one.start_hours is None, one.start_hours)):
            if one.phase is Phase.STARTING and self.is_lost(one):
                self.launch(one)
            elif one.phase is Phase.WAITING and self.may_start(one):
                if (to := self.other_pool(one)) is not None:
                    self.put(replace(one, pool=to, moves_to=to))
                    self.is_due = True  # its chance and its dollars are others there
                else:
                    self.launch(self.put(self.intended(one)))
        return any(one.phase in _STARTED or self.will_start(one) for one in self.state.runs)

    # --- looking ---

    def looked(self, one: RunState) -> RunState:
        """Return a started run as its folder and its engine show it."""
        folder = Path(one.folder)
        if one.phase is Phase.STARTING and self.is_lost(one):
            return one
        status = describe(folder, self.store)
        if one.phase is Phase.STARTING and status.state is EngineState.UNJUDGED:
            return one  # its engine has to say whether it has the run
        over, trainer = not goes_on(status.state), trainer_of_run(folder)
        spent = trainer.spent(folder) if over else trainer.booked(folder)
        one = replace(one, phase=Phase.RUNNING, usd=spent.usd(self.price(one)))
        if not over:
            return one
        launched = read_launch(folder)
        asked = launched is not None and launched.stop_asked_at is not None
        reason, end = status.reason or status.words, trainer.log_end(folder)
        ended = self.now() if end is None else self.hours(end.unix_seconds)
        if status.outcome is Outcome.COMPLETED:
            return replace(one, phase=Phase.ENDED, end_hours=ended, reason=None)
        if one.moves_to not in (None, one.pool):
            return replace(one, phase=Phase.WAITING, start_hours=None, pool=one.moves_to,
                           reason=f"it goes on in {one.moves_to}: {self.why(one.moves_to)}")  # fmt: skip
        if status.outcome is Outcome.STOPPED and reason.startswith(_FROM_OUTSIDE) and not asked:
            return replace(one, phase=Phase.WAITING, start_hours=None, reason=f"interrupted: {reason}")
        return replace(one, phase=Phase.FAILED, end_hours=ended, reason=reason)

    def is_lost(self, one: RunState) -> bool:
        """Tell whether the launch that was intended did not happen, because the controller was killed before."""
        folder = Path(one.folder)
        launched = read_launch(folder) if is_run_folder(folder) else None
        if launched is None or launched.attempt < one.attempt:
            return True
        backend = backend_of(handle_of(folder), self.store)
        if isinstance(backend, RemoteBackend):
            backend.look(folder)
        elif launched.pid is not None:
            return False
        if goes_on(backend.describe(folder).state):
            return False
        # A run may have come and gone meanwhile: then its log says so.
        if (sighting := last_sighting(folder)) is not None:
            return log_bytes(folder) <= sighting.log_bytes
        end = trainer_of_run(folder).log_end(folder)
        return end is None or end.unix_seconds < datetime.fromisoformat(launched.launched_at).timestamp()

    def price(self, one: RunState) -> float:
        """Return the dollars per hour of a run's GPUs together."""
        pool = self.pools.get(one.pool or "")
        return usd_per_hour(pool, one.gpus) if pool is not None else 0.0

    # --- spot machines ---

    def moves_to(self, one: RunState) -> str | None:
        """Return the pool in which a run that was started has to go on, or None if it stays where it is."""
        if one.moves_to not in (None, one.pool):
            return one.moves_to
        has_spot = self.pools[one.pool or ""].kind is PoolKind.SPOT
        if has_spot and describe(Path(one.folder), self.store).state is not EngineState.QUEUED:
            return None
        return self.other_pool(one)

    def other_pool(self, one: RunState) -> str | None:
        """Return the pool in which a run goes on that waits for spot machines, or had left them; None: where it is."""
        here, left = self.pools[one.pool or ""], self.runs[one.run].deadline_hours - self.now()
        returns = here.kind is PoolKind.ON_DEMAND and one.moves_to is not None
        if left == math.inf or not (returns or here.kind is PoolKind.SPOT):
            return None
        # the cheapest pool of the other kind with room for as many of the same GPUs
        kind = PoolKind.SPOT if returns else PoolKind.ON_DEMAND
        ways = [way for way in self.ways_on(replace(one, moves_to=None)) if way.gpus == one.gpus]
        pools = [pool for way in ways if (pool := self.pools[way.pool]).kind is kind and pool.gpu == here.gpu]
        open_to = [pool for pool in pools if pool.engine and self.has_room(pool, one.gpus)]
        if (other := min(open_to, key=lambda pool: usd_per_hour(pool, one.gpus), default=None)) is None:
            return None
        spot, rented = (other, here) if returns else (here, other)
        share = usd_per_hour(spot, one.gpus) / max(usd_per_hour(rented, one.gpus), 1e-9)
        work, rates = self.work_left(one, cautious=True), rates_in(spot, *self.seen(spot))
        if not returns:
            # A machine that came now would be taken only if another start after its loss were still in time.
            return None if next_machine(share, work, left, rates) == SPOT else other.name
        choose = partial(next_machine, share, work, left - RESTART_HOURS, rates)
        # for how many hours the pool has surely had spot machines
        running = [Path(run.folder) for run in self.state.runs if run.phase is Phase.RUNNING and run.pool == spot.name]
        had = [trainer_of_run(folder).booked(folder).attempts for folder in running
               if describe(folder, self.store).state is not EngineState.QUEUED]  # fmt: skip
        at_once = [0.0] if spot.engine == "local" else []
        since = max([attempts[-1].seconds / HOUR for attempts in had if attempts] + at_once, default=None)
        if since is not None:
            return other.name if choose(running=ON_DEMAND, age_hours=since) == SPOT else None
        # Nobody knows: its queue has to be worth it as if there were no machines since the run went.
        away = self.now() - (one.start_hours or 0.0)
        waits = choose(running=ON_DEMAND, spot_there=False, age_hours=away) == WAIT
        return other.name if waits and choose() == SPOT else None

    def why(self, pool: str) -> str:
        """Say why a run goes on in another pool."""
        spot = self.pools[pool].kind is PoolKind.SPOT
        return "its deadline leaves time for spot machines" if spot else "its deadline leaves no time to wait"

    def seen(self, pool: Pool) -> tuple[int, float]:
        """Return how often machines of a spot pool were taken from this fleet's runs, and the hours of their use."""
        had = []
        for one in self.state.runs:
            if one.attempt and is_run_folder(folder := Path(one.folder)):
                attempts, usd = trainer_of_run(folder).booked(folder).attempts, usd_per_hour(pool, one.gpus)
                had.append([each.seconds for each in attempts if math.isclose(each.usd_per_hour or 0.0, usd)])
        return sum(max(0, len(one) - 1) for one in had), sum(map(sum, had)) / HOUR

    def move(self, one: RunState, to: str) -> None:
        """Stop a run, so that it goes on in another pool. The intent is written down before."""
        if one.moves_to != to:
            one = self.put(replace(one, moves_to=to))
            self.say(f"{one.run}: leaves {one.pool} for {to}: {self.why(to)}")
        try:
            stop(self.store, Path(one.folder), timeout_seconds=_STOP_SECONDS)
        except AdvisorError as error:  # it is asked again in the next round
            self.say(f"{one.run}: {error.message}")

    # --- planning ---

    def plan(self, effort: float) -> None:
        """Plan what is not over, with what runs where it is, and note the planned starts and the chances."""
        now, runs, frozen = self.now(), [], {}
        for one in self.state.runs:
            run = self.runs[one.run]
            if one.phase in (Phase.ENDED, Phase.FAILED):
                continue
            is_known = self.share_done(one) >= _PROGRESS
            share = self.work_left(one) / self.way(one).work_hours if one.attempt else 1.0
            if one.phase is Phase.WAITING:
                ways = tuple(going_on(way, share, is_known) for way in self.ways_on(one))
                runs.append(replace(run, earliest_hours=max(run.earliest_hours, now), ways=ways))
                continue
            way, usd = going_on(self.way(one), share, is_known), max(0.0, one.limit_usd - one.usd)
            runs.append(replace(run, earliest_hours=now, ways=(way,)))
            frozen[one.run] = Placement(run=one.run, pool=way.pool, gpus=way.gpus, start_hours=now,
                                        end_hours=now + way.hours.value, usd=usd)  # fmt: skip
        if not runs:
            return
        spent = {team: sum(one.usd for one in self.state.runs if team in ("", one.team))
                 for team in self.fleet.budgets_usd}  # fmt: skip
        budgets = {team: max(0.0, usd - spent[team]) for team, usd in self.fleet.budgets_usd.items()}
        found = solve(replace(self.fleet, runs=tuple(runs), budgets_usd=budgets), effort=effort, frozen=frozen)
        placed = {one.run: one for one in found.schedule.placements}
        outlooks = {one.run: one for one in found.outlooks}
        for one in self.state.runs:
            if (place := placed.get(one.run)) is not None:
                seen = outlooks[one.run]
                one = replace(one, end_hours=place.end_hours, low_hours=seen.end_hours.low,
                              high_hours=seen.end_hours.high, probability=seen.probability)  # fmt: skip
                if one.phase is Phase.WAITING:
                    one = replace(one, pool=place.pool, gpus=place.gpus, start_hours=place.start_hours,
                                  reason=one.reason if one.attempt else None)  # fmt: skip
            elif (why := found.schedule.left_out.get(one.run)) is not None:
                one = replace(one, start_hours=None, end_hours=None, probability=None, reason=why)
            self.put(one)

    def ways_on(self, one: RunState) -> tuple[Way, ...]:
        """Return the ways of a run that waits: all, or those in which it can go on from its folder."""

        def goes_on_in(way: Way) -> bool:
            if one.moves_to is not None:
                return way.pool == one.moves_to and way.gpus == one.gpus
            here, there = self.pools[one.pool or ""], self.pools[way.pool]
            # A machine reached by ssh has its own disk; partitions and clouds share the run folder or its bucket.
            engines = [(pool.engine or "").partition(":")[0] for pool in (here, there)]
            same = here.engine == there.engine or (engines[0] == engines[1] != "ssh")
            return same and (there.gpu, way.gpus) == (here.gpu, one.gpus)

        known = one.attempt or one.moves_to is not None
        return tuple(way for way in self.runs[one.run].ways if not known or goes_on_in(way))

    def work_left(self, one: RunState, *, cautious: bool = False) -> float:
        """Return the hours left without interruptions: by the run's own speed once it is known, or as planned.

        A `cautious` answer is at the upper end of the plan's interval.
        """
        way, folder, done = self.way(one), Path(one.folder), self.share_done(one)
        used = trainer_of_run(folder).booked(folder).seconds / HOUR if one.attempt and is_run_folder(folder) else 0.0
        if done >= _PROGRESS:
            return max(used * (1.0 - done) / done, _LEAST_LEFT_HOURS)
        if cautious:
            return max(way.work_hours * way.hours.high / way.hours.value, _LEAST_LEFT_HOURS)
        return max(way.work_hours - used, way.work_hours / 10, _LEAST_LEFT_HOURS)

    def share_done(self, one: RunState) -> float:
        """Return the share of a run's steps that are done."""
        folder = Path(one.folder)
        if one.attempt == 0 or not is_run_folder(folder):
            return 0.0
        step = describe(folder, self.store).step or 0
        return min(0.999, step / trainer_of_run(folder).planned_steps(folder))

    def way(self, one: RunState) -> Way:
        return next(way for way in self.runs[one.run].ways if (way.pool, way.gpus) == (one.pool, one.gpus))

    # --- starting ---

    def will_start(self, one: RunState) -> bool:
        """Tell whether a run waits for a start that is planned."""
        planned = one.phase is Phase.WAITING and one.start_hours is not None
        return planned and self.pools[one.pool or ""].engine is not None

    def may_start(self, one: RunState) -> bool:
        """Tell whether a waiting run's start has come, its GPUs are free and its expected dollars are there."""
        if not self.will_start(one) or one.start_hours is None:
            return False
        pool = self.pools[one.pool or ""]
        if one.start_hours - pool.queue_hours > self.now():
            return False
        if not self.has_room(pool, one.gpus):
            return False  # one before it is late
        if self.way(one).usd * (1.0 - self.share_done(one)) > self.left_usd(one) + 1e-9:
            self.is_due = True
            return False
        return True

    def has_room(self, pool: Pool, gpus: int) -> bool:
        used = sum(other.gpus for other in self.state.runs if other.phase in _STARTED and other.pool == pool.name)
        return used + gpus <= pool.capacity(pool.bought_blocks)

    def left_usd(self, one: RunState) -> float:
        return min(self.state.left_usd(team) for team in ("", one.team or ""))

    def intended(self, one: RunState) -> RunState:
        """Return the run as it is about to start. It may cost up to the end of its interval, if so much is left."""
        launched, attempt = read_launch(Path(one.folder)) if one.attempt else None, 1
        if launched is not None:  # as a resumed run counts: only attempts that began
            never = describe(Path(one.folder), self.store).state is EngineState.NEVER_STARTED
            attempt = launched.attempt + (not never)
        way, share = self.way(one), 1.0 - self.share_done(one)
        most = way.usd * share * way.hours.high / way.hours.value
        return replace(
            one, phase=Phase.STARTING, start_hours=self.now(), attempt=attempt,
            end_hours=self.now() + way.hours.value * share, limit_usd=one.usd + min(most, self.left_usd(one)),
            refusals=0, reason=None,
        )  # fmt: skip

    def launch(self, one: RunState) -> None:
        """Start an intended run, or go on with an interrupted one."""
        folder, pool = Path(one.folder), self.pools[one.pool or ""]
        plan, place = on_pool(self.plans[one.run][pool.gpu, one.gpus], pool), parse_place(pool.engine or "")
        try:
            limits = replace(with_limits_of(plan, GuardLimits()), from_plan=False)
            limited = {one.team, ""} & set(self.fleet.budgets_usd) or budget.budgets() is not None
            if limited and (price := self.price(one)):
                # So that all runs together keep the budget. Earlier attempts may have had another price.
                used = trainer_of_run(folder).spent(folder).seconds / HOUR if one.attempt > 1 else 0.0
                hours = used + (one.limit_usd - one.usd) / price
                limits = replace(limits, max_hours=min(hours, limits.max_hours or hours))
            if one.attempt > 1:
                resume(self.store, folder, limits=limits, place=place, offer=plan.offer)
            else:
                launch(self.store, plan, folder, limits=limits, again=True, place=place, team=one.team)
        except AdvisorError as error:
            # The end of another run may leave dollars of the shared ledger.
            waits = isinstance(error, budget.NotReservedError) and any(
                other.phase is Phase.RUNNING for other in self.state.runs
            )
            failed, reason = one.refusals + 1 >= _MOST_REFUSALS and not waits, " ".join(error.message.split())
            self.is_due |= failed
            self.put(replace(one, phase=Phase.FAILED if failed else Phase.STARTING, refusals=one.refusals + 1,
                             reason=reason))  # fmt: skip
            if reason != one.reason:
                self.say(f"{one.run}: not started: {reason}")
            return
        self.put(replace(one, phase=Phase.RUNNING))
        self.say(f"{one.run}: started on {pool.engine}, in {folder}")


def _looked_at_again(one: RunState) -> RunState:
    """Return a run as the controller begins with it: one that failed may have been resumed by hand meanwhile."""
    if one.phase is not Phase.FAILED:
        return one
    return replace(one, phase=Phase.WAITING if one.refusals else Phase.RUNNING)


def going_on(way: Way, share: float, is_known: bool) -> Way:
    """Return a way for what is left of a run, whose own speed may be known."""
    deviation = min(way.deviation, _OWN_DEVIATION) if is_known else way.deviation
    return replace(way, hours=way.hours.scaled(share), work_hours=way.work_hours * share, usd=way.usd * share,
                   deviation=deviation)  # fmt: skip


# --- watching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FleetLook:
    """A fleet now."""

    state: FleetState
    steps: Mapping[str, tuple[int, int]]  # by run that was started: the newest step, and all
    spent_usd: Mapping[str, float]  # by team; "" is everybody
    is_run: bool  # by a command that starts its runs and plans again

    @property
    def is_over(self) -> bool:
        return all(one.phase in (Phase.ENDED, Phase.FAILED) for one in self.state.runs)

    @property
    def has_failed(self) -> bool:
        return any(one.phase is Phase.FAILED for one in self.state.runs)


def look_at_fleet(store: Store, name: str) -> FleetLook:
    """Return what became of a fleet's runs so far; `name` may be its file. Raises AdvisorError if it never ran."""
    path = Path(name)
    state = read_state(store, read_fleet(path, datetime.now()).name if path.is_file() else name)
    if state is None:
        raise AdvisorError(f"no fleet {name} was started", "advisor fleet run FLEET.yaml", exit_code=2)
    steps = {}
    for one in state.runs:
        if one.attempt and is_run_folder(folder := Path(one.folder)):
            status: RunStatus = describe(folder, store)
            steps[one.run] = (status.step or 0, trainer_of_run(folder).planned_steps(folder))
    teams = ["", *sorted({one.team for one in state.runs if one.team})]
    spent = {team: sum(one.usd for one in state.runs if team in ("", one.team)) for team in teams}
    with (fleet_folder(store, state.name) / ".lock").open("a") as lock:
        is_run = not try_lock(lock)
    return FleetLook(state=state, steps=steps, spent_usd=spent, is_run=is_run)
