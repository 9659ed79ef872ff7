"""What a fleet starts from: which of its runs can be started where, and by which plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from advisor.engines.engines import parse_place
from advisor.engines.guards import GuardLimits
from advisor.errors import AdvisorError
from advisor.fleets.read import Entry, FleetFile
from advisor.fleets.records import Fleet, Pool, PoolKind, Way
from advisor.fleets.state import FleetState, Phase
from advisor.records import Plan
from advisor.store.plan_files import load_plan
from advisor.store.store import Store, file_name
from advisor.workflows.fleet import anywhere, fleet_with, on_each, plan_on, priced, runs_of, usd_per_hour, ways_of
from advisor.workflows.launch import beforehand, refuse_other_software
from advisor.workflows.plan import recommend

Plans = dict[tuple[str, int], Plan]  # of one run, by GPU and number of GPUs
_PLAN = "advisor plan --out FILE writes one"


def startable(file: FleetFile, store: Store, state: FleetState | None) -> tuple[Fleet, dict[str, Plans]]:
    """Return the fleet, with its ways on pools that have an engine, and the plans of each run.

    Raises AdvisorError with every entry that cannot be started. A fleet that has begun is not checked again by engines.
    """
    pools, _ = priced([replace(pool, most_blocks=pool.bought_blocks) for pool in file.pools])
    pools = tuple(pool for pool in pools if pool.capacity(pool.bought_blocks) >= 1)
    plans: dict[str, Plans] = {}

    def ways(entry: Entry, open_to: Sequence[Pool]) -> tuple[Way, ...]:
        with_engine = [pool for pool in open_to if pool.engine] or open_to
        plans[entry.name] = _plans(entry, with_engine, store)
        made = ways_of([plan.chosen for plan in plans[entry.name].values()], with_engine)
        by_engine = {pool.engine: (pool, way) for pool in with_engine for way in made if way.pool == pool.name}
        for engine, (pool, way) in by_engine.items() if state is None else ():
            if engine:
                plan = on_pool(plans[entry.name][pool.gpu, way.gpus], pool)
                beforehand(store, plan, parse_place(engine), GuardLimits())
        return made

    runs, problems = runs_of(file, pools, ways)
    if not any(pool.engine for pool in pools):
        problems.append("no pool has an engine, such as engine: local or engine: slurm:gpu, so that nothing can start")
    ways_of_run = {run.name: {(way.pool, way.gpus) for way in run.ways} for run in runs}
    for one in state.runs if state is not None and not problems else ():
        if one.attempt and one.run not in ways_of_run:
            problems.append(f"{one.run} was started, and the file has no such run any more")
        elif one.attempt and one.phase is not Phase.ENDED and (one.pool, one.gpus) not in ways_of_run[one.run]:
            problems.append(f"{one.run} was started on {one.gpus} GPUs of {one.pool}, which it no longer fits")
    names = [file_name(run.name) for run in runs]
    problems += [f"two runs would have the folder {name}" for name in sorted(set(names)) if names.count(name) > 1]
    return fleet_with(file, pools, runs, problems, "nothing was started"), {run.name: plans[run.group] for run in runs}


def _plans(entry: Entry, pools: Sequence[Pool], store: Store) -> Plans:
    """Return the plan of an entry, or for a goal one for each number of each GPU of the pools that holds it."""
    if entry.plan is not None:
        plan = load_plan(entry.plan)
        if plan.run is None:
            raise AdvisorError(f"{entry.plan.name} is no plan of our trainer", _PLAN)
        refuse_other_software(plan)
        return {(plan.offer.gpu, plan.offer.gpus): plan}
    best = plan_on(entry, pools, store)
    if best.run is None:
        raise AdvisorError("its goal is for other software than our trainer, which nothing here starts", _PLAN)
    made = {}
    for run in on_each(best):
        gpu, gpus = run.offer.gpu, run.offer.gpus
        has_room = any(gpu == pool.gpu and gpus <= pool.capacity(pool.bought_blocks) for pool in pools)
        if has_room and run.prediction.fits is not False:
            made[gpu, gpus] = recommend(anywhere(best, gpu, [gpus]), store)
    if not made:
        raise AdvisorError("no GPU of a pool with an engine holds it", "add a pool")
    return made


def on_pool(plan: Plan, pool: Pool) -> Plan:
    """Return a plan with a pool's price, on spot machines if the pool has them."""
    offer = replace(plan.offer, spot=pool.kind is PoolKind.SPOT, usd_per_hour=usd_per_hour(pool, plan.offer.gpus))
    return replace(plan, chosen=replace(plan.chosen, offer=offer))
