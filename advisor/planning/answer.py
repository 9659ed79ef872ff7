"""Make the plan for a goal: the run that the search chose, the runs that lost to it, and the alternatives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import numpy as np

from advisor.errors import AdvisorError
from advisor.offer import OWN_MACHINE
from advisor.options import Goal
from advisor.planning import explain, infeasible, warn
from advisor.planning.alternatives import (
    by_depth,
    by_micro_batch,
    front,
    machines,
    near_misses,
    neighbours,
    options,
)
from advisor.planning.choose import Selection, search
from advisor.planning.costs import Costs
from advisor.planning.evaluate import evaluate
from advisor.planning.goal import waiting_price
from advisor.planning.offers import ANY, on_machine
from advisor.planning.run import config_of, make_run
from advisor.planning.search_space import NothingOffered, SearchSpace
from advisor.planning.sensitivity import passed_over, scaling, sensitivity
from advisor.prediction.profile import Profile
from advisor.records import Plan, Run, SearchReport
from advisor.units import HOUR
from trainer.schema import to_dict
from trainer.token_folder import TokenMeta


def answer(
    goal: Goal,
    profiles: Sequence[Profile],
    *,
    now: datetime,
    data_meta: TokenMeta | None = None,
    left_out: Sequence[str] = (),
    feasible: Callable[[Goal], bool] | None = None,
    brief: bool = False,
) -> Plan:
    """Return the plan for a goal on the devices that it allows, with a report of the search.

    `profiles` has one entry for each kind of device, `data_meta` is the token folder's metadata, and `left_out` names
    devices without a profile. `feasible` tells whether a changed goal has a plan; None searches it on the same
    devices. `brief` leaves out what only the whole report shows: reasons, other depths and micro-batches, the front,
    near misses, sensitivity and scaling.

    Raises AdvisorError: exit code 2 for an invalid goal, 3 if no run stays within the limits; the message then names
    the binding limit and changes that were found to be enough.
    """
    space, chosen = _search(goal, profiles, data_meta, now, feasible)
    plan = weigh(space, chosen, now, brief=brief)
    # The price of waiting is left out here, because the reader sees time as a column of its own.
    evaluated = evaluate(space.candidates, space.limits.patient, spot=goal.spot != "none")
    others, sure = options(space, plan.chosen)
    report = SearchReport(
        candidates=evaluated.candidates,
        devices=tuple(dict.fromkeys(device.profile.key for device in space.candidates.machines.devices)),
        options=others,
        front=(),
        front_size=0,
        near_misses=(),
        sensitivity=(),
        left_out=(*left_out, *space.left_out),
        # For `--gpu any` the Pareto front says more than a row for each of a hundred machines.
        machines=machines(space, plan.chosen) if goal.gpu != ANY else (),
        neighbours=neighbours(space, evaluated, plan.chosen),
        sure=sure,
    )
    if brief:
        return replace(plan, search=report)
    profile = space.device(chosen.place).profile
    points, pays = scaling(space.goal, plan.chosen, profile, data_meta, now.date())
    shown, size = front(space, evaluated, plan.chosen)
    report = replace(
        report,
        front=shown,
        front_size=size,
        near_misses=near_misses(space, evaluated, plan.chosen),
        sensitivity=(
            *passed_over(shown, plan.chosen),
            *(item.text for item in sensitivity(space, plan.chosen, chosen)),
        ),
        scaling=points,
        pays_up_to_gpus=pays,
    )
    return replace(plan, search=report)


def bare_plan(goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None) -> Plan:
    """Return the plan for a goal on one device, without a report of the search; raises as `answer` does."""
    space, chosen = _search(goal, [profile], data_meta, now)
    return weigh(space, chosen, now)


def what_if(
    goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None, scaled: bool = False,
    brief: bool = False,
) -> Plan:  # fmt: skip
    """Return the plan of a goal that leaves nothing open (`explore.pinned`), without other runs to compare.

    `scaled` adds the same run on other numbers of GPUs; `brief` leaves the reasons out. Raises as `answer` does.
    """
    space, chosen = _search(goal, [profile], data_meta, now)
    run = make_run(space.candidates, chosen)
    plan = _plan(space, chosen, run, [run], None, now, brief=brief)
    if not scaled:
        return plan
    points, pays = scaling(space.goal, run, profile, data_meta, now.date())
    report = SearchReport(
        candidates=1, devices=(profile.key,), options=(), front=(), front_size=1, near_misses=(), sensitivity=(),
        scaling=points, pays_up_to_gpus=pays,
    )  # fmt: skip
    return replace(plan, search=report)


def _search(
    goal: Goal,
    profiles: Sequence[Profile],
    data_meta: TokenMeta | None,
    now: datetime,
    feasible: Callable[[Goal], bool] | None = None,
) -> tuple[SearchSpace, Selection]:
    def on_the_same(changed: Goal) -> bool:
        if changed.gpu != goal.gpu or changed.needs_other_software:
            return False
        return best_tokens(changed, profiles, data_meta, now) is not None

    feasible = feasible or on_the_same
    try:
        space, chosen = search(goal, profiles, data_meta, now.date())
    except NothingOffered as error:
        ways = infeasible.other_offers(goal)
        raise AdvisorError(error.message, infeasible.hint(ways, feasible), exit_code=3) from error
    if chosen is None:
        message, hint = infeasible.explain(space, goal, feasible)
        raise AdvisorError(message, hint, exit_code=3)
    return space, chosen


def best_tokens(goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, now: datetime) -> int | None:
    """Return the tokens of the goal's best run on these devices, or None if no run stays within its limits."""
    with suppress(AdvisorError):
        space, chosen = search(goal, profiles, data_meta, now.date())
        return None if chosen is None else chosen.steps * int(space.candidates.step_tokens[chosen.place])
    return None


def weigh(space: SearchSpace, chosen: Selection, now: datetime, *, brief: bool = False) -> Plan:
    """Return the plan of a chosen run, with the other depths and micro-batches that it was compared with."""
    depths, device = by_depth(space, chosen), space.device(chosen.place)
    best = next(run for run in depths if run.depth == space.candidates.depth[chosen.place])
    if brief:
        return _plan(space, chosen, best, depths, None, now, brief=True)
    sizes, plain = by_micro_batch(space, device, best)
    losers = [run.judged(why=explain.rejection(device, run) or "") for run in depths if run is not best]
    losers += [run.judged(why=explain.micro_batch_rejection(run, best)) for run in sizes]
    return replace(_plan(space, chosen, best, depths, plain, now), considered=tuple(losers))


def _plan(
    space: SearchSpace, chosen: Selection, run: Run, depths: Sequence[Run], plain: Run | None, now: datetime,
    *, brief: bool = False,
) -> Plan:  # fmt: skip
    """Return the plan of a run; `depths` and `plain` are as in `explain.reasons`, and `now` has a time zone."""
    device = space.device(chosen.place)
    costs = Costs(space.candidates.rows(slice(chosen.place, chosen.place + 1)))
    config = config_of(device, run, float(np.asarray(costs.terms.checkpoints.every_seconds).flat[0]))
    why = "stays within the limits if time and cost are as expected" if space.brief.limited else "the plan"
    if space.brief.limited and space.limits.sure:
        why = "stays within the limits 9 times out of 10, as asked"
    return Plan(
        id=new_id(space.goal, now),
        created=now.isoformat(timespec="seconds"),
        goal=space.goal,
        run=config,
        chosen=run.judged(name="balanced", why=why),
        considered=(),
        reasons=() if brief else tuple(explain.reasons(device, config, run, depths, plain)),
        warnings=tuple(warn.warnings(device, run, depths)),
        inputs=() if brief else tuple(explain.inputs(device, run)),
        reference_seconds=device.profile.reference_seconds,
        drift_exponent=device.profile.drift_exponent,
    )


def new_id(goal: Goal, now: datetime) -> str:
    """Return an identifier for a plan. Identifiers sort by time, and a digest distinguishes goals of one second."""
    digest = hashlib.sha256(json.dumps(to_dict(goal), sort_keys=True).encode()).hexdigest()
    return f"plan-{now:%Y%m%d-%H%M%S}-{digest[:6]}"


def as_measured_goal(plan: Plan) -> Goal:
    """Return the goal that fixes the plan's machine, model and batch and leaves only the number of steps open."""
    goal, workload = plan.goal, plan.workload
    limited = goal.budget_usd is not None or goal.deadline_seconds is not None
    return replace(
        on_machine(goal, workload.gpu, workload.gpus, own=plan.offer.source == OWN_MACHINE),
        counts=(workload.gpus,) if waiting_price(goal) is None else (),  # keeps the price of waiting as it was
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
    """Return the same plan predicted with a profile that has just been measured; only the steps may change."""
    fresh = bare_plan(as_measured_goal(plan), profile, now=now, data_meta=data_meta)
    why_tokens, why_depth, why_batch, *_ = plan.reasons
    if plan.goal.budget_usd is not None or plan.goal.deadline_seconds is not None:
        why_tokens = fresh.reasons[0]  # within limits, another step time allows another number of steps
    return replace(
        fresh,
        goal=plan.goal,
        considered=plan.considered,
        reasons=(why_tokens, why_depth, why_batch, *fresh.reasons[3:], "measured once more at this configuration"),
        search=plan.search,
    )


def same_work(plan: Plan, gpu: str) -> Goal:
    """Return the goal to do exactly the planned work on this GPU, whatever the cost: model, batch and tokens."""
    goal = _there(plan, gpu)
    return replace(goal, tokens=plan.chosen.tokens, ratio=None, budget_usd=None, deadline_seconds=None, sure=False)


def remaining_goal(plan: Plan, gpu: str, *, spent_seconds: float, may_change_depth: bool) -> Goal:
    """Return the goal to use the rest of a plan's budget and time on this GPU.

    The global batch stays, while steps, micro-batch and checkpointing are chosen again. `may_change_depth` also frees
    model and batch as far as the plan's own goal left them open.
    """
    requested = plan.goal
    spent_usd = (plan.offer.usd_per_hour or 0.0) * spent_seconds / HOUR
    limited = requested.budget_usd is not None or requested.deadline_seconds is not None
    goal = replace(
        _there(plan, gpu),
        micro_batch=requested.micro_batch,
        activation_checkpointing=requested.activation_checkpointing,
        sharding=requested.sharding,
        budget_usd=None if requested.budget_usd is None else requested.budget_usd - spent_usd,
        deadline_seconds=None if requested.deadline_seconds is None else requested.deadline_seconds - spent_seconds,
        # The limits end the run, maybe before its learning rate has decayed, so the high ends must stay within them.
        sure=requested.sure or (limited and requested.tokens is None),
    )
    if may_change_depth:
        names = ("depth", "parameters", "epochs", "tokens", "ratio", "global_batch_tokens")
        goal = replace(goal, **{name: getattr(requested, name) for name in names})
    return goal


def _there(plan: Plan, gpu: str) -> Goal:
    """Return the goal for the plan's model and batch on this GPU, at the planned price if the GPU is another one."""
    goal = as_measured_goal(plan)
    if gpu == plan.workload.gpu:
        return goal
    per_gpu = None if plan.offer.usd_per_hour is None else plan.offer.usd_per_hour / plan.workload.gpus
    return replace(goal, gpu=gpu, usd_per_gpu_hour=per_gpu, own=())
