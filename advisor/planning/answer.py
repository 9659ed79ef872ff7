"""From a goal to a plan: the run that the search chose, what lost to it, and what else could be done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from advisor.errors import AdvisorError
from advisor.offer import OWN_MACHINE
from advisor.planning import explain, infeasible, warn
from advisor.planning.alternatives import balanced, front, machines, near_misses, options, surer
from advisor.planning.choose import Selection, search
from advisor.planning.considered import by_depth, by_micro_batch
from advisor.planning.costs import Costs
from advisor.planning.evaluate import evaluate
from advisor.planning.goal import waiting_price
from advisor.planning.offers import on_machine
from advisor.planning.run import config_of, make_run
from advisor.planning.scaling import scaling
from advisor.planning.search_space import SearchSpace
from advisor.planning.sensitivity import sensitivity
from advisor.prediction.profile import Profile
from advisor.records import Goal, Plan, Run, SearchReport
from trainer.schema import to_dict
from trainer.token_folder import TokenMeta


def answer(
    goal: Goal,
    profiles: Sequence[Profile],
    *,
    now: datetime,
    data_meta: TokenMeta | None = None,
    left_out: Sequence[str] = (),
) -> Plan:
    """The plan for a goal on the devices it may use, with a report of the search.

    `profiles` has one entry per kind of device; `data_meta` is the token folder's metadata; `left_out` says in words
    which devices could not be looked at. Raises AdvisorError: exit code 2 for a goal that cannot be meant, 3 when
    nothing fits it, naming the binding constraint and what would make it feasible.
    """
    space, chosen = _search(goal, profiles, data_meta, now)
    plan = weigh(space, chosen, now)
    evaluated = evaluate(space.candidates, space.limits.patient, spot=space.spot)  # time is a column of its own there
    points, pays = scaling(space, plan.chosen, chosen)
    shown, size = front(space, evaluated, plan.chosen)
    report = SearchReport(
        candidates=evaluated.candidates,
        devices=tuple(dict.fromkeys(device.profile.key for device in space.candidates.devices)),
        options=options(space, plan.chosen),
        front=shown,
        front_size=size,
        near_misses=near_misses(space, evaluated, plan.chosen),
        sensitivity=tuple(item.text for item in sensitivity(space, plan.chosen, chosen)),
        scaling=points,
        pays_up_to_gpus=pays,
        left_out=(*left_out, *space.left_out),
        machines=machines(space, plan.chosen),
        sure=surer(space, plan.chosen),
    )
    return replace(plan, search=report)


def bare_plan(goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None) -> Plan:
    """The plan for a goal on one device without the report of its search; raises as `answer` does."""
    space, chosen = _search(goal, [profile], data_meta, now)
    return weigh(space, chosen, now)


def what_if(
    goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None, scaled: bool = False
) -> Plan:
    """The run of a goal that leaves nothing open (`explore.pinned`): one evaluation, with nothing weighed beside it.

    `scaled`: with the same run on other numbers of GPUs. Raises as `answer` does.
    """
    space, chosen = _search(goal, [profile], data_meta, now)
    run = make_run(space.candidates, chosen)
    plan = _plan(space, chosen, run, [run], None, now)
    if not scaled:
        return plan
    points, pays = scaling(space, run, chosen)
    report = SearchReport(
        candidates=1, devices=(profile.key,), options=(), front=(), front_size=1, near_misses=(), sensitivity=(),
        scaling=points, pays_up_to_gpus=pays,
    )  # fmt: skip
    return replace(plan, search=report)


def _search(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, now: datetime
) -> tuple[SearchSpace, Selection]:
    space, chosen = search(goal, profiles, data_meta, now.date())
    if chosen is None:
        message, hint = infeasible.explain(space)
        raise AdvisorError(message, hint, exit_code=3)
    return space, chosen


def weigh(space: SearchSpace, chosen: Selection, now: datetime) -> Plan:
    """The plan of one run of a search space, with the depths and micro-batches that lost to it."""
    depths, device = by_depth(space, chosen), space.device(chosen.place)
    best = next(run for run in depths if run.depth == space.candidates.depth[chosen.place])
    sizes, plain = by_micro_batch(space, device, best)
    losers = [run.judged(why=explain.rejection(device, run) or "") for run in depths if run is not best]
    losers += [run.judged(why=explain.micro_batch_rejection(run, best)) for run in sizes]
    return replace(_plan(space, chosen, best, depths, plain, now), considered=tuple(losers))


def _plan(
    space: SearchSpace, chosen: Selection, run: Run, depths: Sequence[Run], plain: Run | None, now: datetime
) -> Plan:
    """The plan of a run, by what `depths` were weighed and how it does without recomputation; `now` has a time zone."""
    device = space.device(chosen.place)
    costs = Costs(space.candidates.rows(slice(chosen.place, chosen.place + 1)))
    config = config_of(device, run, costs.checkpoint_seconds(0))
    # sortable by time, and different for different goals of the same second
    digest = hashlib.sha256(json.dumps(to_dict(space.goal), sort_keys=True).encode()).hexdigest()
    return Plan(
        id=f"plan-{now:%Y%m%d-%H%M%S}-{digest[:6]}",
        created=now.isoformat(timespec="seconds"),
        goal=space.goal,
        run=config,
        chosen=balanced(space, run),
        considered=(),
        reasons=tuple(explain.reasons(device, config, run, depths, plain)),
        warnings=tuple(warn.warnings(device, run, depths)),
        inputs=tuple(explain.inputs(device, run)),
        reference_seconds=device.profile.reference_seconds,
        drift_exponent=device.profile.drift_exponent,
    )


def as_measured_goal(plan: Plan) -> Goal:
    """The goal for which only the steps of a plan are open: the same machine, model and batch."""
    goal, workload = plan.goal, plan.workload
    limited = goal.budget_usd is not None or goal.deadline_seconds is not None
    return replace(
        on_machine(goal, workload.gpu, workload.gpus, own=plan.offer.source == OWN_MACHINE),
        counts=(workload.gpus,) if waiting_price(goal) is None else (),  # so that waiting counts as it did
        providers=goal.providers if plan.offer.provider is None else (plan.offer.provider,),
        spot="only" if plan.offer.spot else "none",
        depth=workload.shape.depth,
        parameters=None,
        epochs=None,
        seq_len=workload.shape.seq_len,
        vocab_size=workload.shape.vocab_size,
        micro_batch=workload.micro_batch,
        global_batch_tokens=workload.step_tokens,
        activation_checkpointing=workload.activation_checkpointing,
        sharding=workload.sharding if workload.gpus > 1 else None,
        tokens=goal.tokens if limited else plan.chosen.tokens,
        ratio=goal.ratio if limited and goal.tokens is None else None,
    )


def measured_plan(plan: Plan, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None) -> Plan:
    """The same choice predicted anew by a profile that has just measured it; only the steps may move."""
    fresh = bare_plan(as_measured_goal(plan), profile, now=now, data_meta=data_meta)
    why_tokens, why_depth, why_batch, *_ = plan.reasons
    if plan.goal.budget_usd is not None or plan.goal.deadline_seconds is not None:
        why_tokens = fresh.reasons[0]  # the steps moved with the step time
    return replace(
        fresh,
        goal=plan.goal,
        considered=plan.considered,
        reasons=(why_tokens, why_depth, why_batch, *fresh.reasons[3:], "measured once more at this configuration"),
        search=plan.search,
    )
