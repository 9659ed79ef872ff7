"""What else could be done: three named options, the Pareto front, and what was better but for one constraint."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from advisor.plan.bills import Limits
from advisor.plan.explain import memory_needed
from advisor.plan.front import best_by_group, non_dominated, spread_out
from advisor.plan.market import Market, Pick, find, make_choice, pick_of
from advisor.plan.search import LEVEL
from advisor.plan.weigh import Against, Pool, Weighed, weigh
from advisor.records import Choice, Plan
from advisor.units import format_percent, format_seconds, format_usd

BOLD = 1.02  # times the best score that a larger model may have and still be the aggressive option
FRONT_SHOWN = 12  # besides the plan
SMALLEST_SHARE = 0.05  # of the plan's price: nobody who asks for a run of $20 looks for one of cents
ALIKE = 1.005  # times the best score of a front whose runs all train as well as each other
SAME = 0.02  # of dollars and hours: how near a run comes to the plan that is the plan again
MISSES_SHOWN = 5


def plan_choice(market: Market, plan: Plan, pick: Pick) -> Choice:
    """The plan itself as a row beside its alternatives."""
    chosen, workload, offer = plan.chosen, plan.workload, market.offer(pick.place)
    profile = market.device(pick.place).profile
    held, memory = profile.memory.device_total_bytes(workload), profile.device_memory_bytes
    return Choice(
        gpu=workload.gpu,
        gpus=workload.gpus,
        provider=offer.provider,
        spot=offer.spot,
        usd_per_hour=plan.usd_per_hour,
        price_source=plan.price_source,
        depth=chosen.depth,
        parameters=chosen.parameters,
        micro_batch=chosen.micro_batch,
        grad_accum=chosen.grad_accum,
        activation_checkpointing=workload.activation_checkpointing,
        steps=chosen.steps,
        tokens=chosen.tokens,
        epochs=chosen.epochs,
        step_seconds=plan.prediction.step_seconds,
        tokens_per_second=chosen.tokens_per_second,
        total_seconds=chosen.total_seconds,
        cost_usd=chosen.cost_usd,
        device_bytes=held,
        headroom_bytes=memory - held.value if memory is not None else None,
        loss=chosen.loss,
        score=chosen.score,
        name="balanced",
        why="the plan",
    )


def options(market: Market, plan: Choice) -> tuple[Choice, ...]:
    """Conservative, balanced and aggressive, as people think of them.

    Conservative keeps the limits with the intervals' high ends, on demand, with memory to spare. Balanced is the plan.
    Aggressive takes a spot machine where that buys a better model, else the largest model whose score is at most 2 %
    worse. Where no other run qualifies an option is left out.
    """
    found = []
    if (safe := _conservative(market)) is not None:
        found.append(safe)
    kept = "keeps the limits 9 times out of 10, as asked" if market.limits.sure else "expected to keep the limits"
    found.append(replace(plan, why=kept if _limited(market) else plan.why))
    bold, why = _aggressive(market, plan)
    if bold is not None:
        found.append(make_choice(market, bold, name="aggressive", why=why))
    return tuple(found)


def front(market: Market, weighed: Weighed, plan: Choice) -> tuple[tuple[Choice, ...], int]:
    """The runs that no other beats in dollars, hours and quality at once, thinned to what is shown; and how many.

    Quality is the score, and where the loss laws hold the predicted loss too, which may differ in the last digits: the
    plan is on the front, and what is shown beats nothing else shown in dollars, hours and loss.
    """
    pool = weighed.standing
    usd = np.where(np.isnan(pool.usd), 0.0, pool.usd)
    pool = pool.rows(non_dominated(np.stack([usd, pool.seconds, pool.score], axis=1)))
    pool = _antichain(pool, plan)
    size = len(pool) + 1
    rows = [make_choice(market, pick_of(pool, row)) for row in _worth_showing(market, pool, plan)]
    rows.append(replace(plan, name="", why="the plan"))
    return tuple(sorted(rows, key=_by_price)), size


def _worth_showing(market: Market, pool: Pool, plan: Choice) -> list[int]:
    """Places of a few runs of a front: the best for each price, and the best for each time.

    Where all train equally well the prices and times themselves. What comes to the plan's own dollars and hours with
    the same model on the same machine says nothing new.
    """
    usd = np.where(np.isnan(pool.usd), 0.0, pool.usd)
    new, together = ~_as_the_plan(market, pool, usd, plan), np.zeros(len(pool))
    if len(pool) and pool.score.max() <= ALIKE * min(pool.score.min(), plan.score):
        line = best_by_group(together, usd, pool.seconds)
        line = line[new[line]]
        return sorted(line[spread_out(usd[line], FRONT_SHOWN)].tolist()) if len(line) else []
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    large = (usd >= SMALLEST_SHARE * paid) & (pool.seconds >= SMALLEST_SHARE * plan.total_seconds.value) & new
    found: set[int] = set()
    for effort in (usd, pool.seconds):
        line = best_by_group(together, effort, pool.score)
        line = line[large[line]]
        found.update(line[spread_out(effort[line], FRONT_SHOWN // 2)].tolist() if len(line) else ())
    return sorted(found)


def _as_the_plan(market: Market, pool: Pool, usd: np.ndarray, plan: Choice) -> np.ndarray:
    """Bool: the plan's model on the plan's machine for all but its dollars and hours, a larger micro-batch say."""
    kind = (plan.gpu, plan.gpus, plan.spot)
    mine = np.array([(o.gpu, o.gpus, o.spot) == kind for o in market.field.offers])[market.field.offer[pool.place]]
    mine &= market.field.depth[pool.place] == plan.depth
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    return mine & (abs(usd - paid) <= SAME * paid) & (abs(pool.seconds / plan.total_seconds.value - 1) <= SAME)


def _by_price(choice: Choice) -> tuple[float, float]:
    return choice.cost_usd.value if choice.cost_usd else 0.0, choice.total_seconds.value


def near_misses(market: Market, weighed: Weighed, plan: Choice) -> tuple[Choice, ...]:
    """Runs that would be better than the plan and have one thing against them, the nearest of each kind and card."""
    pool = weighed.missed
    better = pool.rows((pool.score * LEVEL < plan.score) & ~_fits_otherwise(market, pool))
    order = np.lexsort((better.score, np.round(np.maximum(better.overrun, 1.0), 2)))
    found: list[Choice] = []
    seen: dict[int, set[str]] = {}
    for row in order.tolist():
        kind, gpu = int(better.against[row]), market.offer(int(better.place[row])).gpu
        gpus = seen.setdefault(kind, set())
        if gpu in gpus or len(gpus) >= 2 or len(found) >= MISSES_SHOWN:
            continue
        gpus.add(gpu)
        choice = make_choice(market, pick_of(better, row))
        found.append(replace(choice, why=_what_rules_out(market, choice, Against(kind))))
    return tuple(found)


def _fits_otherwise(market: Market, pool: Pool) -> np.ndarray:
    """Bool: memory is against this run, but not against a smaller micro-batch of the same depth on the same machine."""
    kind = market.field.offer * 1024 + market.field.depth
    return (pool.against == Against.MEMORY) & np.isin(kind[pool.place], np.unique(kind[market.field.fits]))


def _conservative(market: Market) -> Choice | None:
    safe = replace(market, field=market.safe)
    spot = np.array([offer.spot for offer in safe.field.offers], dtype=bool)[safe.field.offer]
    allowed = np.full(len(safe.field), True) if market.goal.spot == "only" else ~spot
    pick = find(safe, replace(market.limits, sure=True), allowed=allowed)
    if pick is None:
        return None
    why = "keeps the limits 9 times out of 10, with 15 % of memory free" if _limited(market) else "15 % memory free"
    terms = "a spot machine as asked" if safe.offer(pick.place).spot else "on demand"
    return make_choice(safe, pick, name="conservative", why=f"{why}, {terms}")


def _aggressive(market: Market, plan: Choice) -> tuple[Pick | None, str]:
    spot = find(market, market.limits, spot=True)
    if spot is not None and market.offer(spot.place).spot and not plan.spot and spot.score * LEVEL < plan.score:
        return spot, "a spot machine: may be taken back at any time, time lost to that is expected time here"
    larger = market.field.fits & (market.field.parameters > 1.05 * plan.parameters)
    rows = np.nonzero(larger)[0]
    if not len(rows):
        return None, ""
    pool = weigh(market.field.rows(rows), market.limits, spot=market.spot, multiples=()).standing
    pool = pool.rows(pool.score <= BOLD * plan.score)
    if not len(pool):
        return None, ""
    size = market.field.parameters[rows[pool.place]]
    row = int(np.lexsort((pool.score, -size))[0])
    pick = pick_of(pool, row)
    why = "the largest model whose score is at most 2 % worse: stronger if trained on later"
    return replace(pick, place=int(rows[pick.place])), why


def _limited(market: Market) -> bool:
    return market.brief.limited


def _antichain(pool: Pool, plan: Choice) -> Pool:
    """The rows of a front that neither beat the plan nor each other, nor are beaten, in dollars, hours and loss.

    Best scores first. Between scores alike the loss law may see it the other way round by a thousandth. A loss that is
    not known gives way to the score, which orders any two.
    """
    usd = np.where(np.isnan(pool.usd), 0.0, pool.usd)
    table = np.stack([usd, pool.seconds, pool.loss, pool.score], axis=1)
    paid = plan.cost_usd.value if plan.cost_usd else 0.0
    kept = np.empty((len(pool) + 1, 4))
    kept[0] = (paid, plan.total_seconds.value, plan.loss.value if plan.loss else math.nan, plan.score)
    rows: list[int] = []
    for row in np.argsort(pool.score).tolist():
        others, mine = kept[: len(rows) + 1], table[row]
        which = np.where(np.isnan(others[:, 2]) | math.isnan(mine[2]), 3, 2)
        quality, own = others[np.arange(len(others)), which], mine[which]
        beaten = (others[:, 0] <= mine[0]) & (others[:, 1] <= mine[1]) & (quality <= own)
        beats = (others[:, 0] >= mine[0]) & (others[:, 1] >= mine[1]) & (quality >= own)
        if not (beaten | beats).any():
            rows.append(row)
            kept[len(rows)] = mine
    return pool.rows(np.array(sorted(rows), dtype=int))


def _what_rules_out(market: Market, choice: Choice, against: Against) -> str:
    limits: Limits = market.limits
    end, up_to = ("high", "up to ") if limits.sure else ("value", "")
    if against is Against.MONEY:
        needs, limit = getattr(choice.cost_usd, end), limits.budget_usd
        assert limit is not None
        if (words := format_usd(needs)) == format_usd(limit):
            return f"over budget by {format_percent(needs / limit - 1)}"
        return f"over budget: {up_to}{words} of {format_usd(limit)}"
    if against is Against.TIME:
        needs = format_seconds(getattr(choice.total_seconds, end))
        return f"too slow: {up_to}{needs} of {format_seconds(limits.deadline_seconds)}"
    if against is Against.SPOT:
        return "a spot machine: --spot any allows it"
    assert choice.device_bytes is not None and choice.headroom_bytes is not None
    has = choice.device_bytes.value + choice.headroom_bytes
    return f"does not fit memory: {memory_needed(choice.device_bytes, has)}"
