"""From the run that the search chose to the plan: exactly that configuration, with what it promises and what lost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime

from advisor.hardware.offers import OWN_MACHINE
from advisor.plan import explain, warn
from advisor.plan.choose import Selection
from advisor.plan.considered import by_depth, by_micro_batch, without_recomputation
from advisor.plan.goal import waiting_price
from advisor.plan.offers import on_machine
from advisor.plan.provenance import grounds_of
from advisor.plan.search_space import SearchSpace
from advisor.plan.trial import Trial
from advisor.predict.energy import WORLD_GRAMS_PER_KWH, carbon_kg
from advisor.predict.wallclock import checkpoint_bytes
from advisor.records import Goal, Plan, PlanPrediction
from trainer.schema import to_dict


def make_plan(space: SearchSpace, chosen: Selection, *, now: datetime) -> Plan:
    """The plan of one run of a search space; `now` carries a time zone."""
    depths = by_depth(space, chosen)
    trial = next(t for t in depths if t.prediction.workload.shape.depth == space.candidates.depth[chosen.place])
    losers = [t for t in depths if t is not trial]
    rejected = [t.candidate(explain.rejection(t)) for t in losers]
    rejected += [t.candidate(explain.micro_batch_rejection(t, trial)) for t in by_micro_batch(space, trial)]
    best, profile = trial.candidate(), trial.device.profile
    return Plan(
        id=_plan_id(space.goal, now),
        created=now.isoformat(timespec="seconds"),
        goal=space.goal,
        run=trial.run,
        workload=trial.prediction.workload,
        usd_per_hour=trial.offer.usd_per_hour,
        price_source=trial.offer.source,
        price_age_days=trial.offer.age_days,
        prediction=_promise(space.goal, trial),
        ratio=trial.ratio,
        chosen=best,
        considered=(best, *rejected),
        reasons=tuple(explain.reasons(trial, depths, without_recomputation(space, trial))),
        warnings=tuple(warn.warnings(trial, depths)),
        inputs=tuple(explain.inputs(trial)),
        reference_seconds=profile.reference_seconds,
        drift_exponent=profile.drift_exponent,
        provider=trial.offer.provider,
        grounds=grounds_of(profile),
        spot=trial.offer.spot,
        machines=trial.offer.machines,
    )


def _promise(goal: Goal, trial: Trial) -> PlanPrediction:
    bill, prediction = trial.bill, trial.prediction
    assert prediction.step_seconds is not None and prediction.tokens_per_second is not None
    grid = WORLD_GRAMS_PER_KWH if goal.grid_grams_per_kwh is None else goal.grid_grams_per_kwh
    return PlanPrediction(
        parameters=prediction.parameters,
        flops_per_token=prediction.flops_per_token,
        step_seconds=prediction.step_seconds,
        tokens_per_second=prediction.tokens_per_second,
        mfu=prediction.mfu,
        peak_allocated_bytes=prediction.peak_allocated_bytes,
        peak_reserved_bytes=prediction.peak_reserved_bytes,
        wall_clock=bill.clock,
        cost_usd=bill.usd,
        power_watts=bill.watts,
        energy_kwh=bill.kwh,
        loss=trial.loss,
        carbon_kg=carbon_kg(bill.kwh, grid),
        grid_grams_per_kwh=grid if bill.kwh else None,
        checkpoint_bytes=checkpoint_bytes(trial.run),
        disk_bytes=bill.disk_bytes,
        storage_usd=bill.storage_usd,
    )


def as_measured_goal(plan: Plan) -> Goal:
    """The goal for which only the steps of a plan are open: the same machine, model and batch."""
    goal, workload = plan.goal, plan.workload
    limited = goal.budget_usd is not None or goal.deadline_seconds is not None
    return replace(
        on_machine(goal, workload.gpu, workload.gpus, own=plan.price_source == OWN_MACHINE),
        counts=(workload.gpus,) if waiting_price(goal) is None else (),  # so that waiting counts as it did
        providers=goal.providers if plan.provider is None else (plan.provider,),
        spot="only" if plan.spot else "none",
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


def with_measured(plan: Plan, fresh: Plan) -> Plan:
    """A plan for `as_measured_goal`, from a profile that has just measured it, in the place of the first."""
    others = tuple(candidate for candidate in plan.considered if candidate != plan.chosen)
    why_tokens, why_depth, why_batch, *_ = plan.reasons
    if plan.goal.budget_usd is not None or plan.goal.deadline_seconds is not None:
        why_tokens = fresh.reasons[0]  # the steps moved with the step time
    return replace(
        fresh,
        goal=plan.goal,
        considered=(fresh.chosen, *others),
        reasons=(why_tokens, why_depth, why_batch, *fresh.reasons[3:], "measured once more at this configuration"),
        search=plan.search,
    )


def _plan_id(goal: Goal, now: datetime) -> str:
    """Sortable by time, and different for different goals of the same second."""
    digest = hashlib.sha256(json.dumps(to_dict(goal), sort_keys=True).encode()).hexdigest()
    return f"plan-{now:%Y%m%d-%H%M%S}-{digest[:6]}"
