"""From a goal over several kinds of devices to one plan: what to rent and what to train on it.

The search weighs every configuration as arrays (`field`, `bills`, `weigh`), picks an offer, and has `search.make_plan`
make the plan on it, with the same predictions a user can ask for. Only what is shown becomes an object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.offers import Offer, check_providers, rows_by_gpu
from advisor.plan.bills import Limits
from advisor.plan.field import Device, Field, make_field
from advisor.plan.goal import SEQ_LEN, VOCAB_SIZE, Brief, RunPrice, cap_is_too_low, make_brief, rent
from advisor.plan.offers import offers_for
from advisor.plan.search import LEVEL, make_plan
from advisor.plan.trial import make_bill
from advisor.plan.weigh import Pool, Weighed, promising, roomy, weigh
from advisor.predict.batch import predict_batch
from advisor.predict.loss import predict_loss
from advisor.predict.profile import Profile
from advisor.records import Choice, Goal, Plan, Workload
from trainer.token_folder import TokenMeta

COUNTS = (1, 2, 4, 8)  # GPUs of one node that are looked at where the goal leaves the number open
ANY = "any"
OBJECTIVES = ("loss", "cost", "time")
SPOT = ("none", "only", "any")
_DAY = 86400.0


@dataclass(frozen=True, kw_only=True)
class Market:
    """Everything a goal is searched in: the configurations worth weighing, and what may be chosen of them."""

    goal: Goal
    field: Field  # spot machines included, whether or not the goal wants them
    safe: Field  # the same of what has memory to spare: what is faster for lack of that beats nothing here
    limits: Limits
    left_out: tuple[str, ...]

    @property
    def brief(self) -> Brief:
        return self.field.devices[0].brief

    @property
    def spot(self) -> bool:
        """Whether spot machines may be chosen."""
        return self.goal.spot != "none"

    def device(self, place: int) -> Device:
        return self.field.devices[self.field.device[place]]

    def offer(self, place: int) -> Offer:
        return self.field.offers[self.field.offer[place]]


@dataclass(frozen=True, kw_only=True)
class Pick:
    """One run of a market."""

    place: int  # in the field
    steps: int
    seconds: float
    usd: float  # NaN: unknown
    score: float


def open_market(goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None) -> Market:
    """Make out what can be rented and compute every configuration; raises AdvisorError where nothing is left."""
    devices, left_out = devices_of(goal, profiles, data_meta)
    if not devices:
        raise AdvisorError(f"nothing to choose from: {'; '.join(left_out[:5])}", _nobody_hint(goal), exit_code=3)
    field = make_field(devices)
    unlinked = np.isnan(field.step.value)
    if unlinked.any():
        keys = sorted({f"{field.offers[o].gpus} x {field.offers[o].gpu}" for o in np.unique(field.offer[unlinked])})
        left_out = (*left_out, f"{', '.join(keys)}: the catalog does not know the links between the GPUs")
        field = field.rows(~unlinked)
    if not len(field):
        raise AdvisorError(
            f"no time is predicted for {left_out[-1]}",
            "plan for one: --gpus 1, or add the links to gpus.csv",
            exit_code=3,
        )
    brief = devices[0].brief
    limits = Limits(deadline_seconds=brief.deadline_seconds, budget_usd=goal.budget_usd, sure=goal.sure)
    safe = field.rows(roomy(field))
    best_of = {"field": field.rows(promising(field)), "safe": safe.rows(promising(safe))}
    return Market(goal=goal, limits=limits, left_out=tuple(left_out), **best_of)


def plan_in(market: Market, pick: Pick, *, now: datetime, data_meta: TokenMeta | None) -> Plan:
    """The plan on the offer that was picked."""
    device, offer = market.device(pick.place), market.offer(pick.place)
    pinned = replace(_pinned(market.goal, device.brief), gpu=offer.gpu, gpus=offer.gpus)
    if market.goal.objective != "loss":
        pinned = replace(pinned, depth=int(market.field.depth[pick.place]))
    plan = make_plan(pinned, device.profile, now=now, data_meta=data_meta, price=rent(offer, market.goal))
    if pinned.depth is not None and market.goal.depth is None:
        why = f"depth {pinned.depth}: of all that do the work the one of least {market.goal.objective}"
        plan = replace(plan, reasons=(plan.reasons[0], why, *plan.reasons[2:]))
    return replace(plan, goal=market.goal)


def best(market: Market, weighed: Weighed) -> Pick | None:
    """The run that the goal is after; None when nothing stands."""
    standing = weighed.standing if len(weighed.standing) else weighed.thin
    return pick_of(standing, choose(market, standing)) if len(standing) else None


def find(market: Market, limits: Limits, *, spot: bool | None = None, allowed: np.ndarray | None = None) -> Pick | None:
    """The best run within other limits, on the configurations of `allowed` (a mask over the field); None without one.

    Only the largest token budget within the limits is looked at.
    """
    places = np.arange(len(market.field)) if allowed is None else np.nonzero(allowed)[0]
    if not len(places):
        return None
    some = market.field.rows(places)
    weighed = weigh(some, limits, spot=market.spot if spot is None else spot, multiples=())
    standing = weighed.standing if len(weighed.standing) else weighed.thin
    if not len(standing):
        return None
    inner = replace(market, field=some)
    pick = pick_of(standing, choose(inner, standing))
    return replace(pick, place=int(places[pick.place]))


def choose(market: Market, pool: Pool) -> int:
    """The place in the pool of the run that the goal is after."""
    goal, field, brief = market.goal, market.field, market.brief
    rows = np.arange(len(pool))
    counted = field.counted[pool.place]
    if goal.tokens is not None and goal.depth is None and (not brief.limited or goal.objective != "loss"):
        off = np.abs(np.log(goal.tokens / counted / brief.ratio))  # the depth these tokens suit best
        rows = rows[off <= off.min() + 1e-9]
    usd = np.where(np.isnan(pool.usd), 0.0, pool.usd)
    if goal.objective == "cost":
        return int(rows[np.lexsort((pool.seconds[rows], usd[rows]))[0]])
    if goal.objective == "time":
        return int(rows[np.lexsort((usd[rows], pool.seconds[rows]))[0]])
    if not brief.limited and (pool.seconds[rows] <= _DAY).any():
        rows = rows[pool.seconds[rows] <= _DAY]
    rows = rows[pool.score[rows] <= LEVEL * pool.score[rows].min()]
    cheap = rows[usd[rows] <= 1.01 * usd[rows].min()]
    return int(cheap[np.lexsort((pool.seconds[cheap], field.parameters[pool.place[cheap]]))[0]])


def pick_of(pool: Pool, row: int) -> Pick:
    return Pick(
        place=int(pool.place[row]),
        steps=int(pool.steps[row]),
        seconds=float(pool.seconds[row]),
        usd=float(pool.usd[row]),
        score=float(pool.score[row]),
    )


def workload_at(market: Market, place: int) -> Workload:
    """The configuration of one row of the field."""
    field, brief, offer = market.field, market.device(place).brief, market.offer(place)
    plain = brief.goal.activation_checkpointing or market.device(place).profile.activation_checkpointing
    return Workload(
        shape=brief.shape(int(field.depth[place])),
        micro_batch=int(field.micro_batch[place]),
        grad_accum=int(field.grad_accum[place]),
        gpu=offer.gpu,
        gpus=offer.gpus,
        precision=brief.precision,
        compile=brief.compile,
        activation_checkpointing="full" if field.full[place] else plain,
        optimizer=brief.goal.optimizer,
    )


def make_choice(market: Market, pick: Pick, *, name: str = "", why: str = "") -> Choice:
    """One run of the market with intervals, predicted and billed one by one like any plan."""
    return choice_of(market, workload_at(market, pick.place), market.offer(pick.place), pick, name=name, why=why)


def choice_of(market: Market, workload: Workload, offer: Offer, pick: Pick, *, name: str = "", why: str = "") -> Choice:
    """As `make_choice`, for a workload that need not be in the field."""
    device = market.device(pick.place)
    brief = offer_brief(device, offer)
    [prediction] = predict_batch(device.profile, [workload])
    assert prediction.step_seconds is not None and prediction.tokens_per_second is not None
    bill = make_bill(brief, device.profile, prediction, pick.steps)
    tokens = pick.steps * workload.step_tokens
    held, memory = device.profile.memory.device_total_bytes(workload), prediction.device_memory_bytes
    return Choice(
        gpu=offer.gpu,
        gpus=offer.gpus,
        provider=offer.provider,
        spot=offer.spot,
        usd_per_hour=offer.usd_per_hour,
        price_source=offer.source,
        depth=workload.shape.depth,
        parameters=prediction.parameters,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        activation_checkpointing=workload.activation_checkpointing,
        steps=pick.steps,
        tokens=tokens,
        epochs=tokens / brief.unique_tokens if brief.unique_tokens else None,
        step_seconds=prediction.step_seconds,
        tokens_per_second=prediction.tokens_per_second,
        total_seconds=bill.clock.total_seconds,
        cost_usd=bill.cost_usd,
        device_bytes=held,
        headroom_bytes=memory - held.value if memory is not None else None,
        loss=predict_loss(prediction.parameters, tokens, brief.unique_tokens, brief.vocab_size),
        score=pick.score,
        name=name,
        why=why,
    )


def offer_brief(device: Device, offer: Offer) -> Brief:
    """The device's brief with the money of one of its offers."""
    price: RunPrice = rent(offer, device.brief.goal)
    return replace(
        device.brief,
        goal=replace(device.brief.goal, gpu=offer.gpu, gpus=offer.gpus),
        usd_per_hour=price.usd_per_hour,
        most_usd_per_hour=price.most_usd_per_hour,
        price_source=price.source,
        provider=price.provider,
        spot=price.spot,
        interruption_seconds=price.interruption_seconds,
    )


def check_goal(goal: Goal) -> None:
    """Refuse what cannot be meant of a choice between devices (exit code 2)."""
    check_providers(goal.providers)
    for option, value, allowed in (("--spot", goal.spot, SPOT), ("--objective", goal.objective, OBJECTIVES)):
        if value not in allowed:
            raise AdvisorError(f"{option} {value}: choose one of {', '.join(allowed)}", exit_code=2)
    open_ended = goal.tokens is None and goal.depth is None
    if goal.objective != "loss" and open_ended:
        raise AdvisorError(
            f"--objective {goal.objective} needs something to be done: the least of it is nothing at all",
            "say what to train: --depth 12, --tokens 2B, or both",
            exit_code=2,
        )
    several = goal.gpu == ANY or "," in goal.gpu or len(goal.counts) > 1
    if several and open_ended and goal.budget_usd is None and goal.deadline_seconds is None:
        raise AdvisorError(
            "a choice between devices needs a limit or a task: without one the largest machine always wins",
            "give --budget, --deadline, --tokens or --depth",
            exit_code=2,
        )


def _pinned(goal: Goal, brief: Brief) -> Goal:
    """The goal for one device: what is the same for all of them is settled."""
    return replace(goal, seq_len=brief.seq_len, vocab_size=goal.vocab_size or brief.goal.vocab_size, counts=())


def devices_of(goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None) -> tuple[list[Device], list[str]]:
    """Devices with at least one offer, and in words what was left out."""
    found: list[Device] = []
    unpriced, apart, left_out = [], [], []  # apart: rented, but not so many together or not on these terms
    if len(profiles) > 1 and (high := [p.key for p in profiles if cap_is_too_low(goal, p)]):
        left_out.append(f"cannot be limited to {goal.power_cap_watts:g} W: {', '.join(high)}")
        profiles = [p for p in profiles if p.key not in high]
    rows = rows_by_gpu()
    for profile in profiles:
        counts = (goal.counts or (goal.gpus,)) if profile.key != "cpu" else (1,)
        wide = replace(goal, spot="only" if goal.spot == "only" else "any")
        offers = tuple(offer for count in counts for offer in offers_for(wide, profile.key, count, rows))
        if not any(goal.spot != "none" or not offer.spot for offer in offers):
            if goal.budget_usd is not None or len(profiles) > 1:
                (apart if offers_for(wide, profile.key, 1, rows) else unpriced).append(profile.key)
                continue
            offers = tuple(_unpriced(profile.key, count) for count in counts)
        mine = _goal_on(goal, profile, several=len(profiles) > 1)
        first = next(offer for offer in offers if goal.spot != "none" or not offer.spot)
        brief = make_brief(mine, profile, data_meta, rent(first, mine))
        found.append(Device(profile=profile, brief=brief, offers=offers))
    if unpriced:
        kind = "spot price" if goal.spot == "only" else "price"
        left_out.append(f"no {kind} known for {', '.join(unpriced)}")
    if apart:
        left_out.append(f"nobody rents so many together, or on these terms: {', '.join(apart)}")
    return found, left_out


def _goal_on(goal: Goal, profile: Profile, *, several: bool) -> Goal:
    """The goal on one device; what several are compared at is the same for all."""
    mine = replace(goal, gpu=profile.key, gpus=1)
    if not several:
        return mine
    seq_len, vocab_size = goal.seq_len or SEQ_LEN["cuda"], goal.vocab_size
    if vocab_size is None and goal.data is None:
        vocab_size = VOCAB_SIZE["cuda"]
    return replace(mine, seq_len=seq_len, vocab_size=vocab_size)


def _unpriced(gpu: str, gpus: int) -> Offer:
    source = f"no price known for {gpu}"
    return Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=None, source=source)


def _nobody_hint(goal: Goal) -> str:
    if goal.providers:
        return "drop --provider, or name others: `advisor gpus` lists who rents what"
    if goal.spot == "only":
        return "allow machines on demand too: --spot any"
    return "give a price per GPU and hour: --price 2.50"


def known(number: float) -> float | None:
    """A number of an array, where NaN says that it is not known."""
    return None if math.isnan(number) else number
