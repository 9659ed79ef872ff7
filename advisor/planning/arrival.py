"""The goals of a plan measured where its run arrived: exactly the planned work, and the best of what is left."""

from __future__ import annotations

from dataclasses import replace

from advisor.planning.answer import as_measured_goal
from advisor.records import Goal, Plan
from advisor.units import HOUR


def same_work(plan: Plan, gpu: str) -> Goal:
    """The goal for exactly what was planned on the card that is there, whatever it costs: model, batch and tokens."""
    goal = _there(plan, gpu)
    return replace(goal, tokens=plan.chosen.tokens, ratio=None, budget_usd=None, deadline_seconds=None, sure=False)


def what_is_left(plan: Plan, gpu: str, *, spent_seconds: float, may_change_depth: bool) -> Goal:
    """The goal for what remains of a plan's dollars and hours on the card that is there.

    Steps, micro-batch and recomputation are open, the global batch is kept; with `may_change_depth` the model and its
    batch are open too, as far as the plan's own goal left them so. Where the tokens are open the intervals' high ends
    are kept within the limits: a limit ends the run before its learning rate has decayed.
    """
    asked = plan.goal
    spent_usd = (plan.offer.usd_per_hour or 0.0) * spent_seconds / HOUR
    limited = asked.budget_usd is not None or asked.deadline_seconds is not None
    goal = replace(
        _there(plan, gpu),
        micro_batch=asked.micro_batch,
        activation_checkpointing=asked.activation_checkpointing,
        sharding=asked.sharding,
        budget_usd=None if asked.budget_usd is None else asked.budget_usd - spent_usd,
        deadline_seconds=None if asked.deadline_seconds is None else asked.deadline_seconds - spent_seconds,
        sure=asked.sure or (limited and asked.tokens is None),
    )
    if not may_change_depth:
        return goal
    return replace(
        goal,
        depth=asked.depth,
        parameters=asked.parameters,
        epochs=asked.epochs,
        tokens=asked.tokens,
        ratio=asked.ratio,
        global_batch_tokens=asked.global_batch_tokens,
    )


def _there(plan: Plan, gpu: str) -> Goal:
    """The plan's own model and batch on its machine; of another card than planned at the price of the planned one."""
    goal = as_measured_goal(plan)
    if gpu == plan.workload.gpu:
        return goal
    per_card = None if plan.offer.usd_per_hour is None else plan.offer.usd_per_hour / plan.workload.gpus
    return replace(goal, gpu=gpu, usd_per_gpu_hour=per_card, own=())
