"""A search space in which nothing stands: which constraint binds, and the smallest change that would do."""

from __future__ import annotations

import math

import numpy as np

from advisor.plan.costs import Costs
from advisor.plan.evaluate import LEAST_STEPS
from advisor.plan.search_space import SearchSpace
from advisor.predict.notice import NOTICE_SECONDS
from advisor.predict.profile import FIT_MARGIN
from advisor.units import format_bytes, format_seconds, format_usd, format_usd_rate


def explain(space: SearchSpace) -> tuple[str, str]:
    """Message and hint; needs are what the limits are held against: expected values, high ends where to be sure."""
    places = np.nonzero(space.candidates.fits & space.allowed)[0]
    if not len(places):
        return _memory(space)
    places, costs, steps = _least(space, places)
    taken = costs.taken_before_saving(steps)
    if taken is not None and taken.all():
        return _notice(space, places, costs)
    if taken is not None:
        kept = ~taken.any(axis=1)
        places, costs, steps = places[kept], Costs(space.candidates.rows(places[kept])), steps[kept]
    bills = costs.bills(steps)
    seconds, usd = space.limits.counted(bills.clock.total_seconds)[:, 0], space.limits.counted(bills.usd)[:, 0]
    late, dear = space.limits.overruns(seconds, usd)
    waited = space.limits.patient.overruns(seconds, usd)[1].min() <= 1 < dear.min()
    if waited:  # the money would do, but not with what waiting counts as
        usd = usd + space.limits.waiting_usd(seconds)
    up_to = "up to " if space.limits.sure else ""
    what = "" if space.brief.settled else f" for the least worth doing ({LEAST_STEPS} steps)"
    fewer = " or fewer --tokens" if space.goal.tokens is not None else ""
    if late.min() > 1:
        fastest = int(seconds.argmin())
        assumed = ", assumed because no limit was given" if space.goal.deadline_seconds is None else ""
        message = f"no plan ends within {format_seconds(space.limits.deadline_seconds)}{assumed}: "
        message += f"{_who(space, places[fastest], 'fastest')} needs {up_to}{format_seconds(seconds[fastest])}{what}"
        return message, f"feasible with {feasible_deadline(seconds[fastest])}{fewer}"
    if dear.min() > 1:
        cheapest = int(usd.argmin())
        asked, needed = space.limits.budget_usd, float(usd[cheapest])
        in_words = format_usd if format_usd(asked) != format_usd(needed) else format_usd_rate  # finer than a cent
        message = f"no plan costs {in_words(asked)} or less{', waiting counted' if waited else ''}: "
        message += f"{_who(space, places[cheapest], 'cheapest')} needs {up_to}{in_words(needed)}{what}"
        sooner = " or a lower --value-of-time" if waited else ""
        return message, f"feasible with {feasible_budget(needed)}{sooner}{fewer}"
    in_budget, in_time = np.nonzero(dear <= 1)[0], np.nonzero(late <= 1)[0]
    fastest, cheapest = in_budget[seconds[in_budget].argmin()], in_time[usd[in_time].argmin()]
    money, time = format_usd(space.limits.budget_usd), format_seconds(space.limits.deadline_seconds)
    message = (
        f"no plan keeps both {time} and {money}{what}: for {money} {_who(space, places[fastest], 'fastest')} "
        f"takes {up_to}{format_seconds(seconds[fastest])}; within {time} {_who(space, places[cheapest], 'cheapest')} "
        f"costs {up_to}{format_usd(usd[cheapest])}"
    )
    return message, f"feasible with {feasible_deadline(seconds[fastest])} or {feasible_budget(usd[cheapest])}{fewer}"


def feasible_budget(usd: float) -> str:
    """The option with a budget that is enough for so many dollars: rounded up to two digits."""
    enough = usd * 1.02
    digit = 10.0 ** (math.floor(math.log10(enough)) - 1)
    return f"--budget {math.ceil(enough / digit) * digit:.10g}"


def feasible_deadline(seconds: float) -> str:
    """The option with a deadline that is enough for so many seconds: rounded up to what a person would write."""
    enough = int(seconds * 1.05)
    if seconds < 300:
        return f"--deadline {-(-enough // 10) * 10 + 10}s"
    if seconds < 4 * 3600:
        return f"--deadline {-(-enough // 60) + 1}min"
    hours = -(-enough // 3600) + 1
    return f"--deadline {hours}h" if hours < 100 else f"--deadline {-(-hours // 24)}d"


def _least(space: SearchSpace, places: np.ndarray) -> tuple[np.ndarray, Costs, np.ndarray]:
    """Rows, their costs and the fewest steps worth doing; of settled tokens at the global batch that suits them."""
    costs = Costs(space.candidates.rows(places))
    settled = costs.settled_steps()
    if settled is None:
        return places, costs, np.full_like(costs.step_tokens, LEAST_STEPS)
    nearest = costs.batch_is_nearest(settled)[:, 0]
    return places[nearest], Costs(space.candidates.rows(places[nearest])), settled[nearest]


def _notice(space: SearchSpace, places: np.ndarray, costs: Costs) -> tuple[str, str]:
    needed = (costs.terms.step.high + costs.terms.write.high)[:, 0]
    quickest = int(needed.argmin())
    provider = space.offer(int(places[quickest])).provider or ""
    message = (
        f"no spot machine here saves before it is taken away: {_who(space, places[quickest], 'fastest')} needs up to "
        f"{format_seconds(needed[quickest])} for a step and a checkpoint, {provider} gives {NOTICE_SECONDS[provider]} s"
    )
    return message, "machines that stay (--spot none), another --provider, or more cards a step (--gpus 16,32)"


def _memory(space: SearchSpace) -> tuple[str, str]:
    rows = np.nonzero(space.allowed)[0]
    sizes = np.array([space.device(int(place)).profile.device_memory_bytes or 0 for place in rows])
    high = space.candidates.memory.high[rows]
    nearest = int((high / sizes).argmin())
    usable, needs = format_bytes(FIT_MARGIN * sizes[nearest]), format_bytes(float(high[nearest]))
    single = len(space.candidates.devices) == 1
    device = space.brief.goal.gpu if single else "any device"
    message = f"nothing fits the memory of {device}: {_who(space, rows[nearest])}"
    if not single:
        message += f" at {_micro_batch(space, rows[nearest])}"
    more = "a device with more memory" if single else "more cards: --gpu any"
    hint = f"a shorter --seq-len, a smaller --micro-batch or --depth, or {more}"
    return f"{message} needs up to {needs} of {usable} usable", hint


def _who(space: SearchSpace, place: int, rank: str = "") -> str:
    """A configuration in words; among several devices which of them it is, and what makes it the one to name."""
    depth = f"depth {space.candidates.depth[place]}"
    if len(space.candidates.offers) == 1 or len(space.candidates.devices) == 1 and not space.goal.counts:
        return f"{depth} at {_micro_batch(space, place)}"
    offer = space.offer(int(place))
    described = f"{depth} on {offer.gpus} x {offer.gpu}{' spot' if offer.spot else ''}"
    return f"the {rank}, {described}," if rank else described


def _micro_batch(space: SearchSpace, place: int) -> str:
    return f"micro-batch {space.candidates.micro_batch[place]} x {space.brief.seq_len}"
