"""The whole answer to a goal: the plan, and beside it what else could be done and what the choice depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from advisor.errors import AdvisorError
from advisor.plan import infeasible
from advisor.plan.alternatives import front, machines, near_misses, options, surer
from advisor.plan.choose import Selection, search
from advisor.plan.compose import as_measured_goal, make_plan, with_measured
from advisor.plan.evaluate import evaluate
from advisor.plan.provenance import grounds_of
from advisor.plan.scaling import scaling
from advisor.plan.search_space import SearchSpace
from advisor.plan.sensitivity import sensitivity
from advisor.plan.trial import make_trial
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

    `profiles` has one entry per kind of device; `data_meta` is the token folder's metadata; `left_out` says in words
    which devices could not be looked at. Raises AdvisorError: exit code 2 for a goal that cannot be meant, 3 when
    nothing fits it, naming the binding constraint and what would make it feasible.
    """
    space, chosen = _search(goal, profiles, data_meta, now)
    plan = make_plan(space, chosen, now=now)
    return replace(plan, search=_report(space, chosen, plan, left_out))


def bare_plan(goal: Goal, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None) -> Plan:
    """The plan for a goal on one device without the report of its search; raises as `answer` does."""
    space, chosen = _search(goal, [profile], data_meta, now)
    return make_plan(space, chosen, now=now)


def measured_plan(plan: Plan, profile: Profile, *, now: datetime, data_meta: TokenMeta | None = None) -> Plan:
    """The same choice predicted anew by a profile that has just measured it; only the steps may move."""
    return with_measured(plan, bare_plan(as_measured_goal(plan), profile, now=now, data_meta=data_meta))


def _search(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, now: datetime
) -> tuple[SearchSpace, Selection]:
    space, chosen = search(goal, profiles, data_meta, now.date())
    if chosen is None:
        message, hint = infeasible.explain(space)
        raise AdvisorError(message, hint, exit_code=3)
    return space, chosen


def _report(space: SearchSpace, chosen: Selection, plan: Plan, left_out: Sequence[str]) -> SearchReport:
    evaluated = evaluate(space.candidates, space.limits.patient, spot=space.spot)  # time is a column of its own there
    own = make_trial(space.candidates, chosen).choice(name="balanced", why="the plan")
    points, pays = scaling(space, plan, chosen)
    shown, size = front(space, evaluated, own)
    return SearchReport(
        candidates=evaluated.candidates,
        devices=tuple(dict.fromkeys(device.profile.key for device in space.candidates.devices)),
        options=_grounded(space, options(space, own)),
        front=_grounded(space, shown),
        front_size=size,
        near_misses=_grounded(space, near_misses(space, evaluated, own)),
        sensitivity=tuple(item.text for item in sensitivity(space, own, chosen)),
        scaling=points,
        pays_up_to_gpus=pays,
        left_out=(*left_out, *space.left_out),
        machines=_grounded(space, machines(space, own)),
        sure=surer(space, own),
    )


def _grounded(space: SearchSpace, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices with what the speed of each one's card rests on."""
    grounds = {device.profile.key: grounds_of(device.profile) for device in space.candidates.devices}
    return tuple(replace(choice, grounds=grounds[choice.gpu]) for choice in choices)
