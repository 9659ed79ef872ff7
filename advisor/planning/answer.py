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
    UNPROVEN,
    by_depth,
    by_micro_batch,
    front,
    machines,
    near_misses,
    neighbours,
    options,
    unpublished,
)
from advisor.planning.candidates import WIDEST_WINDOW, Device, make_candidates
from advisor.planning.choose import Selection, best_standing, search, select
from advisor.planning.costs import Costs
from advisor.planning.evaluate import evaluate, runs_of
from advisor.planning.explore import is_unproven
from advisor.planning.goal import Limits, waiting_price
from advisor.planning.offers import ANY, names_one_gpu, on_machine
from advisor.planning.recipe import CLOSE
from advisor.planning.run import config_of, make_run, make_runs
from advisor.planning.search_space import NothingOffered, SearchSpace, devices_of, settled, space_of
from advisor.planning.sensitivity import passed_over, scaling, sensitivity
from advisor.prediction.micro_batch import choose_row
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
    if feasible is not None and not plan.prediction.plannable:
        unsure = infeasible.may_not_fit(plan.prediction, infeasible.explain_memory(space, goal)[1], feasible)
        plan = replace(plan, warnings=(unsure, *plan.warnings[1:]))
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
        neighbours=neighbours(space, evaluated, plan.chosen, others),
        sure=sure,
    )
    if brief:
        return replace(plan, search=report)
    profile = space.device(chosen.place).profile
    more = scaling(space.goal, plan.chosen, profile, data_meta, now.date())
    compared = len(report.devices) > 1 or len(goal.counts) > 1
    won = is_unproven(plan.chosen) and compared  # at its slowest likely speed

    def again(limits: Limits) -> tuple[SearchSpace, Selection | None]:
        wider = replace(goal, budget_usd=limits.budget_usd, deadline_seconds=limits.deadline_seconds)
        return search(wider, profiles, data_meta, now.date())

    shown, size = front(space, evaluated, plan.chosen)
    report = replace(
        report,
        front=shown,
        front_size=size,
        near_misses=near_misses(space, evaluated, plan.chosen),
        sensitivity=(
            *(passed_over(run) for run in report.neighbours if run.standing.name == UNPROVEN),
            *((f"{unpublished(plan.offer)}; {plan.offer.in_words()} is the choice even so",) if won else ()),
            *(item.text for item in sensitivity(space, plan.chosen, chosen, again)),
        ),
        scaling=more.points,
        pays_up_to_gpus=more.pays_up_to_gpus,
        scaling_left_out=more.left_out,
    )
    return replace(plan, search=report)


def bare_plan(goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None) -> Plan:
    """Return the plan for a goal on one device, without a report of the search; raises as `answer` does."""
    space, chosen = _search(goal, [profile], data_meta, now)
    return weigh(space, chosen, now)


def what_if(
    goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None, scaled: bool = False,
    exact_batch: bool = False,
) -> Plan:  # fmt: skip
    """Return the plan of a goal that leaves at most its micro-batch open (`explore.pinned`), without other runs.

    `scaled` adds the same run on other numbers of GPUs. With `exact_batch` the micro-batch divides the global batch, as
    if the user had stated that batch. Raises as `answer` does, but no change is looked for that would be enough.
    """
    [found] = _pinned([goal], profile, data_meta, now, exact_batch=exact_batch)
    if isinstance(found, str):
        raise AdvisorError(found, "take another value, or change the limit", exit_code=3)
    space, chosen = found
    run = make_run(space.candidates, chosen)
    plan = _plan(space, chosen, run, [run], None, now)
    # The goal fixes what another search chose, or what a slider was moved to: nobody typed these values.
    plan = replace(plan, reasons=tuple(text.replace(" as asked", "") for text in plan.reasons))
    if not scaled:
        return plan
    more = scaling(space.goal, run, profile, data_meta, now.date())
    report = SearchReport(
        candidates=1, devices=(profile.key,), options=(), front=(), front_size=1, near_misses=(), sensitivity=(),
        scaling=more.points, pays_up_to_gpus=more.pays_up_to_gpus, scaling_left_out=more.left_out,
    )  # fmt: skip
    return replace(plan, search=report)


def what_ifs(
    goals: Sequence[Goal], profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None,
    exact_batch: bool = False,
) -> list[Run | str]:  # fmt: skip
    """Return the run of each goal, as `what_if` does for one, or why there is none; all in the time of two or three.

    The goals differ only in what `explore.pinned` changes.
    """
    found = _pinned(goals, profile, data_meta, now, exact_batch=exact_batch)
    chosen = [each for each in found if not isinstance(each, str)]
    runs = iter(make_runs(chosen[0][0].candidates, [run for _, run in chosen]) if chosen else ())
    return [each if isinstance(each, str) else next(runs) for each in found]


def _pinned(
    goals: Sequence[Goal], profile: Profile, data_meta: TokenMeta | None, now: datetime, *, exact_batch: bool
) -> list[tuple[SearchSpace, Selection] | str]:
    """Return the run of each goal that leaves at most its micro-batch open, or why there is none, all in one pass.

    A micro-batch that a goal leaves open is the best one whose global batch is nearly the goal's, or divides it if
    `exact_batch`.
    """
    answers: dict[int, tuple[SearchSpace, Selection] | str] = {}
    devices: dict[int, Device] = {}  # of each goal, which names one machine
    for number, goal in enumerate(goals):
        mine, left_out = devices_of(settled(goal, [profile], data_meta), [profile], data_meta, now.date())
        if mine:
            devices[number] = mine[0]
        else:
            answers[number] = f"nothing to choose from: {'; '.join(left_out)}"
    every = make_candidates([*devices.values()], every_micro_batch=True) if devices else None
    parts: dict[int, np.ndarray] = {}  # the rows of each goal's run: one for each offer
    fits, likely = (every.fits, every.likely_to_fit) if every is not None else (np.zeros(0), np.zeros(0))
    for place, (number, device) in enumerate(devices.items()):
        assert every is not None
        goal = device.brief.goal
        rows = np.nonzero((every.device == place) & (~every.spot | (goal.spot != "none")))[0]
        if np.isnan(every.step.value[rows]).all():
            machine = f"{goal.gpus} x {goal.gpu}"
            answers[number] = f"no time can be predicted for {machine}: the links between the GPUs are unknown"
            continue
        if goal.micro_batch is None:
            assert goal.global_batch_tokens is not None  # `explore.pinned` fixes it
            off = abs(every.step_tokens[rows] / goal.global_batch_tokens - 1)
            least = off.min()
            rows = rows[off <= (0.0 if exact_batch and not least else max(least, CLOSE))]
        # as in the search, a run that may not fit is planned if nothing surely fits
        usable = fits[rows] if fits[rows].any() else likely[rows]
        if (best := choose_row(every.rate[rows], every.micro_batch[rows], usable, every.kind[rows])) is None:
            answers[number] = _impossible(goals[number], device)
            continue
        same = [column[rows] == column[rows[best]] for column in (every.micro_batch, every.grad_accum, every.kind)]
        parts[number] = rows[np.logical_and.reduce(same)]
        if goal.micro_batch is None and not exact_batch and least <= CLOSE:  # else the plan warns of another batch
            size, batch = int(every.micro_batch[rows[best]]), int(every.step_tokens[rows[best]])
            its = replace(device.brief, goal=replace(goal, micro_batch=size, global_batch_tokens=batch))
            devices[number] = replace(device, brief=its)
    if every is not None and parts:
        by_offer = tuple(device for device in devices.values() for _ in device.offers)
        machines = replace(every.machines, devices=tuple(devices.values()), owners=by_offer)
        candidates = replace(every.rows(np.concatenate([*parts.values()])), machines=machines)
        candidates = replace(candidates, fits=candidates.likely_to_fit)
        limits = next(iter(devices.values())).brief.limits
        runs, begin = runs_of(candidates, np.arange(len(candidates)), limits, spot=True), 0
        for number, rows in parts.items():
            brief, end = devices[number].brief, begin + len(rows)
            assert brief.limits == limits  # `explore.pinned` drops them
            space = SearchSpace(
                goal=brief.goal, candidates=candidates, safe=candidates, window=WIDEST_WINDOW, left_out=(), brief=brief,
                limits=limits,
            )  # fmt: skip
            chosen = best_standing(space, candidates, runs.rows(slice(begin, end)), limits)
            if chosen is None:
                answers[number] = _impossible(goals[number], devices[number])
            else:
                answers[number] = space, chosen
            begin = end
    return [answers[number] for number in range(len(goals))]


def _impossible(goal: Goal, device: Device) -> str:
    """Say why a goal has no run on a device; it takes as long as a search."""
    return infeasible.explained(space_of(device.brief.goal, [device], (), WIDEST_WINDOW), goal)[0]


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
    if chosen is None and names_one_gpu(goal) and not space.candidates.fits[space.allowed].any():
        # the question is what to do on this GPU, so a run that may not fit is planned with a warning
        likely = space.with_likely()
        space = likely if likely.candidates.fits[space.allowed].any() else space
        chosen = select(space, space.limits)
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
        why_batch = why_batch.replace(f"for {plan.chosen.steps} steps", f"for {fresh.chosen.steps} steps")
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
