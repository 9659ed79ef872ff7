"""From a goal to a plan: every depth at every micro-batch, weighed by the same predictions a user can ask for."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from advisor.errors import AdvisorError
from advisor.laws.hyperparameters import scale_flops
from advisor.plan import explain, recipe
from advisor.plan.explain import LEVEL
from advisor.plan.field import MICRO_BATCHES, OVERSHOOT
from advisor.plan.goal import Brief, RunPrice, make_brief
from advisor.plan.grounds import grounds_of
from advisor.plan.trial import Obstacle, Trial, make_trial, usual_tokens
from advisor.predict.batch import predict_batch
from advisor.predict.energy import WORLD_GRAMS_PER_KWH, carbon_kg
from advisor.predict.profile import Profile
from advisor.predict.wallclock import checkpoint_bytes
from advisor.records import Goal, Plan, PlanPrediction, Prediction, Workload
from trainer.schema import to_dict
from trainer.token_folder import TokenMeta

ENOUGH = 0.98  # of the best tokens/s: a smaller micro-batch this fast leaves memory free and loses nothing


def make_plan(
    goal: Goal,
    profile: Profile,
    *,
    now: datetime,
    data_meta: TokenMeta | None = None,
    price: RunPrice,
) -> Plan:
    """The recommendation for a goal on one device, with what was considered, what was rejected and why.

    `now` carries a time zone; `data_meta` is the token folder's metadata; `price` is what all devices cost together.
    Raises AdvisorError: exit code 2 for a goal that cannot be meant, 3 when nothing fits it, naming the binding
    constraint and what would make it feasible.
    """
    brief = make_brief(goal, profile, data_meta, price)
    groups = _weigh(brief, profile)
    firsts = [_first(brief, profile, group) for group in groups]
    chosen, thin = _choose(brief, firsts)
    others = _others(brief, profile, groups[firsts.index(chosen)], chosen)
    return _assemble(brief, profile, firsts, others, chosen, thin, now)


def refined_plan(
    plan: Plan, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None, price: RunPrice
) -> Plan:
    """The same choice predicted anew by a profile that has just measured it; depth and batch stay, steps may move."""
    workload = plan.workload
    limited = plan.goal.budget_usd is not None or plan.goal.deadline_seconds is not None
    pinned = replace(
        plan.goal,
        gpu=workload.gpu,
        gpus=workload.gpus,
        counts=(),
        depth=workload.shape.depth,
        micro_batch=workload.micro_batch,
        global_batch_tokens=workload.step_tokens,
        activation_checkpointing=workload.activation_checkpointing,
        tokens=plan.goal.tokens if limited else plan.chosen.tokens,
        ratio=plan.goal.ratio if limited and plan.goal.tokens is None else None,
    )
    fresh = make_plan(pinned, profile, now=now, data_meta=data_meta, price=price)
    others = tuple(candidate for candidate in plan.considered if candidate != plan.chosen)
    why_tokens, why_depth, why_batch, *_ = plan.reasons
    if limited:
        why_tokens = fresh.reasons[0]  # the steps moved with the step time
    return replace(
        fresh,
        goal=plan.goal,
        considered=(fresh.chosen, *others),
        reasons=(why_tokens, why_depth, why_batch, *fresh.reasons[3:], "measured once more at this configuration"),
    )


@dataclass(frozen=True, kw_only=True)
class _Depth:
    """Predictions for one depth, each accumulated to the batch it would be trained with: those that fit, and not."""

    batch_tokens: float
    usable: list[Prediction]
    too_large: list[Prediction]


def _weigh(brief: Brief, profile: Profile) -> list[_Depth]:
    """Every depth at every micro-batch, with full recomputation for those that do not fit without."""
    checkpointing = brief.goal.activation_checkpointing or profile.activation_checkpointing
    found = _depths(brief, profile, checkpointing, dict.fromkeys(brief.depths))
    if brief.goal.activation_checkpointing is None and checkpointing == "none" and profile.device_type == "cuda":
        tight = {depth: d.batch_tokens if d.usable else None for depth, d in found.items() if d.too_large}
        for depth, recomputed in _depths(brief, profile, "full", tight).items():
            found[depth] = _with_recomputation(found[depth], recomputed)
    return list(found.values())


def _with_recomputation(plain: _Depth, recomputed: _Depth) -> _Depth:
    """The micro-batches that fit as they are, and the others as they are with their activations recomputed."""
    kept = {p.workload.micro_batch for p in plain.usable}
    more = [p for p in recomputed.usable if p.workload.micro_batch not in kept]
    return replace(recomputed, usable=[*plain.usable, *more])


def _depths(
    brief: Brief, profile: Profile, checkpointing: str, batches: Mapping[int, float | None]
) -> dict[int, _Depth]:
    """Depths at every micro-batch that does not exceed the depth's batch (None: the laws'), accumulated to that batch.

    Whether one fits is asked of the accumulated step: gradients are kept between its micro-batches.
    """
    wanted, found = [], {}
    for depth, predictions in _unaccumulated(brief, profile, checkpointing, batches).items():
        batch_tokens = batches[depth] or _batch_tokens(brief, predictions)
        found[depth] = _Depth(batch_tokens=batch_tokens, usable=[], too_large=[])
        wanted += [_accumulated(p.workload, batch_tokens) for p in _near_batch(brief, predictions, batch_tokens)]
    for prediction in predict_batch(profile, wanted):
        group = found[prediction.workload.shape.depth]
        (group.too_large if prediction.fits is False else group.usable).append(prediction)
    return found


def _unaccumulated(
    brief: Brief, profile: Profile, checkpointing: str, depths: Iterable[int]
) -> dict[int, list[Prediction]]:
    """Every depth at every micro-batch without accumulation."""
    goal = brief.goal
    sizes = (goal.micro_batch,) if goal.micro_batch else MICRO_BATCHES
    workloads = [
        Workload(
            shape=brief.shape(depth),
            micro_batch=size,
            gpu=goal.gpu,
            gpus=goal.gpus,
            precision=brief.precision,
            compile=brief.compile,
            activation_checkpointing=checkpointing,
            optimizer=goal.optimizer,
        )
        for depth in depths
        for size in sizes
    ]
    found: dict[int, list[Prediction]] = {depth: [] for depth in depths}
    for prediction in predict_batch(profile, workloads):
        if prediction.step_seconds is None:
            raise AdvisorError(
                f"no time is predicted for {goal.gpus} x {goal.gpu}: the catalog does not know the links between them",
                "plan for one: --gpus 1, or add the card's interconnect to gpus.csv under ADVISOR_HOME",
                exit_code=3,
            )
        found[prediction.workload.shape.depth].append(prediction)
    return found


def _usable(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Those that fit the memory with margin, or whose memory nobody knows."""
    return [p for p in predictions if p.fits is not False]


def _rate(prediction: Prediction) -> float:
    assert prediction.tokens_per_second is not None
    return prediction.tokens_per_second.value


def _batch_tokens(brief: Brief, predictions: list[Prediction]) -> float:
    """Tokens per optimizer step for one depth: what was asked for, else the laws' median for the run it would be."""
    if brief.goal.global_batch_tokens is not None:
        return brief.goal.global_batch_tokens
    shape = predictions[0].workload.shape
    best = max(_usable(predictions) or predictions, key=_rate)
    return float(recipe.recommended_batch(scale_flops(shape), usual_tokens(brief, brief.counted(shape), best)))


def _near_batch(brief: Brief, predictions: list[Prediction], batch_tokens: float) -> list[Prediction]:
    """Micro-batches that do not exceed the batch by themselves; the smallest one if all do."""
    if brief.goal.micro_batch is not None:
        return predictions
    below = [p for p in predictions if p.workload.step_tokens <= OVERSHOOT * batch_tokens]
    return below or predictions[:1]


def _accumulated(workload: Workload, batch_tokens: float) -> Workload:
    return replace(workload, grad_accum=max(1, round(batch_tokens / workload.step_tokens)))


def _first(brief: Brief, profile: Profile, depth: _Depth) -> Trial:
    """The trial of a depth: the smallest of its fastest micro-batches; where none fits, one that says so."""
    if not depth.usable:
        return replace(make_trial(brief, profile, depth.too_large[0]), obstacle=Obstacle.MEMORY)
    return make_trial(brief, profile, min(_fast(depth.usable), key=lambda p: p.workload.micro_batch))


def _others(brief: Brief, profile: Profile, depth: _Depth, chosen: Trial) -> list[Trial]:
    """The other micro-batches of the chosen depth, with what speaks against each.

    Of those that recompute activations otherwise than the chosen one does, the fastest says enough.
    """
    fast, mine = _fast(depth.usable), chosen.prediction.workload.activation_checkpointing
    unlike = [p for p in depth.usable if p.workload.activation_checkpointing != mine]
    shown = [p for p in depth.usable if p not in unlike and p is not chosen.prediction]
    others = [
        replace(make_trial(brief, profile, p), obstacle=Obstacle.LARGER if p in fast else Obstacle.SLOWER)
        for p in [*shown, *sorted(unlike, key=_rate)[-1:]]
    ]
    unfit = [replace(make_trial(brief, profile, p), obstacle=Obstacle.MEMORY) for p in depth.too_large[:1]]
    return [*others, *unfit]


def _fast(predictions: list[Prediction]) -> list[Prediction]:
    best = max(_rate(p) for p in predictions)
    return [p for p in predictions if _rate(p) >= ENOUGH * best]


def _choose(brief: Brief, firsts: list[Trial]) -> tuple[Trial, bool]:
    """The best depth, and whether it is one that sees far too few tokens because every depth does."""
    open_trials = [trial for trial in firsts if trial.obstacle is None]
    thin = [trial for trial in firsts if trial.obstacle is Obstacle.THIN]
    if not open_trials and not thin:
        raise _nothing_fits(brief, firsts)
    if brief.goal.tokens is not None and not brief.limited:
        return min(open_trials, key=lambda trial: abs(math.log(trial.ratio / brief.ratio))), False
    standing = open_trials or thin
    best = min(trial.score for trial in standing)
    level = [trial for trial in standing if trial.score <= LEVEL * best]
    return min(level, key=lambda trial: trial.prediction.parameters), not open_trials


def _nothing_fits(brief: Brief, firsts: list[Trial]) -> AdvisorError:
    message, hint = explain.nothing_fits(brief, firsts)
    return AdvisorError(message, hint, exit_code=3)


def _assemble(
    brief: Brief,
    profile: Profile,
    firsts: list[Trial],
    others: list[Trial],
    chosen: Trial,
    thin: bool,
    now: datetime,
) -> Plan:
    """Put the plan together; the table holds every depth and, for the chosen one, its other micro-batches."""
    bill, prediction = chosen.bill, chosen.prediction
    assert prediction.step_seconds is not None and prediction.tokens_per_second is not None
    rest = [trial for trial in firsts if trial is not chosen]
    rejected = [trial.candidate(explain.rejection(brief, trial, chosen)) for trial in (*rest, *others)]
    best = chosen.candidate()
    goal = brief.goal
    grid = WORLD_GRAMS_PER_KWH if goal.grid_grams_per_kwh is None else goal.grid_grams_per_kwh
    return Plan(
        id=_plan_id(goal, now),
        created=now.isoformat(timespec="seconds"),
        goal=goal,
        run=bill.run,
        workload=prediction.workload,
        usd_per_hour=brief.usd_per_hour,
        price_source=brief.price_source,
        prediction=PlanPrediction(
            parameters=prediction.parameters,
            flops_per_token=prediction.flops_per_token,
            step_seconds=prediction.step_seconds,
            tokens_per_second=prediction.tokens_per_second,
            mfu=prediction.mfu,
            peak_allocated_bytes=prediction.peak_allocated_bytes,
            peak_reserved_bytes=prediction.peak_reserved_bytes,
            wall_clock=bill.clock,
            cost_usd=bill.cost_usd,
            power_watts=bill.watts,
            energy_kwh=bill.kwh,
            loss=chosen.loss,
            carbon_kg=carbon_kg(bill.kwh, grid),
            grid_grams_per_kwh=grid if bill.kwh else None,
            checkpoint_bytes=checkpoint_bytes(bill.run),
            disk_bytes=bill.disk_bytes,
            storage_usd=bill.storage_usd,
        ),
        ratio=chosen.ratio,
        chosen=best,
        considered=(best, *rejected),
        reasons=tuple(explain.reasons(brief, chosen, firsts)),
        warnings=tuple(explain.warnings(brief, profile, chosen, thin=thin)),
        inputs=tuple(explain.inputs(brief, profile)),
        reference_seconds=profile.reference_seconds,
        drift_exponent=profile.drift_exponent,
        provider=brief.provider,
        grounds=grounds_of(profile),
        spot=brief.spot,
    )


def _plan_id(goal: Goal, now: datetime) -> str:
    """Sortable by time, and different for different goals of the same second."""
    digest = hashlib.sha256(json.dumps(to_dict(goal), sort_keys=True).encode()).hexdigest()
    return f"plan-{now:%Y%m%d-%H%M%S}-{digest[:6]}"
