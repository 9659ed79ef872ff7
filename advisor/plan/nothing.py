"""A market in which nothing stands: which constraint binds, and the smallest change that would do."""

from __future__ import annotations

import numpy as np

from advisor.plan.bills import Bills
from advisor.plan.explain import feasible_budget, feasible_deadline
from advisor.plan.field import SOUND
from advisor.plan.market import Market
from advisor.plan.trial import LEAST_STEPS
from advisor.plan.weigh import settled_tokens
from advisor.predict.profile import FIT_MARGIN
from advisor.units import format_bytes, format_seconds, format_usd, format_usd_rate


def explain(market: Market) -> tuple[str, str]:
    """Message and hint; needs are what the limits are held against: expected values, high ends where to be sure."""
    wanted = np.array([market.spot or not offer.spot for offer in market.field.offers])[market.field.offer]
    places = np.nonzero(market.field.fits & wanted)[0]
    if not len(places):
        return _memory(market, wanted)
    places, bills, steps = _least(market, places)
    settled = market.brief.settled
    seconds = bills.seconds(steps)
    end = bills.seconds_high(steps) if market.limits.sure else seconds
    needed = end[:, 0]
    usd_needed = (bills.usd_high(steps) if market.limits.sure else bills.usd(seconds))[:, 0]
    late, dear = (ratio[:, 0] for ratio in bills.overruns(steps, market.limits))
    up_to = "up to " if market.limits.sure else ""
    what = "" if settled else f" for the least worth doing ({LEAST_STEPS} steps)"
    fewer = " or fewer --tokens" if market.goal.tokens is not None else ""
    if late.min() > 1:
        fastest = int(needed.argmin())
        needs = format_seconds(float(needed[fastest]))
        message = f"no plan ends within {format_seconds(market.limits.deadline_seconds)}: the fastest, "
        message += f"{_describe(market, places[fastest])}, needs {up_to}{needs}{what}"
        return message, f"feasible with {feasible_deadline(float(needed[fastest]))}{fewer}"
    if dear.min() > 1:
        cheapest = int(usd_needed.argmin())
        asked, needed_usd = market.limits.budget_usd, float(usd_needed[cheapest])
        in_words = format_usd if format_usd(asked) != format_usd(needed_usd) else format_usd_rate  # finer than a cent
        needs = in_words(needed_usd)
        message = f"no plan costs {in_words(asked)} or less: the cheapest, "
        message += f"{_describe(market, places[cheapest])}, needs {up_to}{needs}{what}"
        return message, f"feasible with {feasible_budget(float(usd_needed[cheapest]))}{fewer}"
    in_budget, in_time = np.nonzero(dear <= 1)[0], np.nonzero(late <= 1)[0]
    fastest, cheapest = in_budget[needed[in_budget].argmin()], in_time[usd_needed[in_time].argmin()]
    money, time = format_usd(market.limits.budget_usd), format_seconds(market.limits.deadline_seconds)
    message = (
        f"no plan keeps both {time} and {money}{what}: for {money} the fastest, {_describe(market, places[fastest])}, "
        f"takes {up_to}{format_seconds(float(needed[fastest]))}; within {time} the cheapest, "
        f"{_describe(market, places[cheapest])}, costs {up_to}{format_usd(float(usd_needed[cheapest]))}"
    )
    either = f"{feasible_deadline(float(needed[fastest]))} or {feasible_budget(float(usd_needed[cheapest]))}"
    return message, f"feasible with {either}{fewer}"


def _least(market: Market, places: np.ndarray) -> tuple[np.ndarray, Bills, np.ndarray]:
    """Rows, their bills and the fewest steps worth doing; without rows whose global batch is too large for these."""
    field = market.field.rows(places)
    bills, settled = Bills(field), settled_tokens(market.brief, field.counted)
    if settled is None:
        steps = np.full((len(field), 1), float(LEAST_STEPS))
    else:
        steps = np.maximum(1.0, np.rint(settled[:, None] / bills.step_tokens))
    sound = bills.batch_is_sound(steps, market.brief, SOUND)[:, 0]
    if sound.all() or not sound.any():
        return places, bills, steps
    return places[sound], Bills(field.rows(sound)), steps[sound]


def _memory(market: Market, wanted: np.ndarray) -> tuple[str, str]:
    rows = np.nonzero(wanted)[0]
    memory = [market.device(int(place)).profile.device_memory_bytes or 0 for place in rows]
    short = market.field.memory.high[rows] / np.array(memory)
    nearest = int(rows[short.argmin()])
    usable = format_bytes(FIT_MARGIN * memory[int(short.argmin())])
    needs = format_bytes(float(market.field.memory.high[nearest]))
    size = f"micro-batch {market.field.micro_batch[nearest]} x {market.brief.seq_len}"
    message = f"nothing fits the memory of any device: {_describe(market, nearest)} at {size} needs up to {needs} "
    message += f"of {usable} usable"
    return message, "a shorter --seq-len, a smaller --micro-batch or --depth, or more cards: --gpu any"


def _describe(market: Market, place: int) -> str:
    offer = market.offer(int(place))
    return f"depth {market.field.depth[place]} on {offer.gpus} x {offer.gpu}{' spot' if offer.spot else ''}"
