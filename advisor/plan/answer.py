"""The whole answer to a goal: the plan, and beside it what else could be done and what the choice depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from advisor.errors import AdvisorError
from advisor.plan import nothing
from advisor.plan.alternatives import front, near_misses, options, plan_choice
from advisor.plan.goal import find_price
from advisor.plan.grounds import grounds_of
from advisor.plan.market import Market, Pick, best, check_goal, open_market, plan_in
from advisor.plan.scaling import scaling
from advisor.plan.search import make_plan
from advisor.plan.sensitivity import sensitivity
from advisor.plan.weigh import Weighed, weigh
from advisor.predict.profile import Profile
from advisor.records import Choice, Goal, Plan, SearchReport
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

    `profiles` has one entry per kind of device; `left_out` says in words which could not be looked at. Raises
    AdvisorError: exit code 2 for a goal that cannot be meant, 3 when nothing fits it, naming the binding constraint
    and what would make it feasible.
    """
    check_goal(goal)
    plan = None
    if len(profiles) == 1 and len(goal.counts) <= 1 and goal.spot != "any" and goal.objective == "loss":
        # one device at one price: its own plan is the answer, and its own words the refusal
        alone = replace(goal, gpu=profiles[0].key, gpus=goal.counts[0] if goal.counts else goal.gpus, counts=())
        plan = make_plan(alone, profiles[0], now=now, data_meta=data_meta, price=find_price(alone))
        plan = replace(plan, goal=goal)
    market = open_market(goal, profiles, data_meta)
    weighed = weigh(market.field, market.limits, spot=market.spot)
    pick = best(market, weighed)
    if pick is None and plan is not None:  # at the very edge of a limit: a plan, and nothing to say beside it
        return plan
    if pick is None:
        raise AdvisorError(*nothing.explain(market), exit_code=3)
    if plan is None:
        plan = plan_in(market, pick, now=now, data_meta=data_meta)
    return replace(plan, search=_report(market, weighed, plan, pick, left_out))


def _report(market: Market, weighed: Weighed, plan: Plan, pick: Pick, left_out: Sequence[str]) -> SearchReport:
    chosen = plan_choice(market, plan, pick)
    points, pays = scaling(market, plan, pick)
    shown, size = front(market, weighed, chosen)
    return SearchReport(
        candidates=weighed.candidates,
        devices=tuple(device.profile.key for device in market.field.devices),
        options=_grounded(market, options(market, chosen)),
        front=_grounded(market, shown),
        front_size=size,
        near_misses=_grounded(market, near_misses(market, weighed, chosen)),
        sensitivity=tuple(item.text for item in sensitivity(market, chosen, pick)),
        scaling=points,
        pays_up_to_gpus=pays,
        left_out=(*left_out, *market.left_out),
    )


def _grounded(market: Market, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices with what the speed of each one's card rests on."""
    found = {device.profile.key: grounds_of(device.profile) for device in market.field.devices}
    return tuple(replace(choice, grounds=found[choice.gpu]) for choice in choices)
