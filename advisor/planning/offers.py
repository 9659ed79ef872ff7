"""What a goal allows to rent: for each card and number of GPUs the cheapest on-demand and the cheapest spot offer.

A dearer provider of the same machine takes as long and trains the same, so nothing is lost by leaving it out here.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from advisor.hardware.offers import RowsByGpu, cheapest_offer
from advisor.hardware.prices import MARKETPLACES
from advisor.offer import OWN_MACHINE, Offer
from advisor.records import Goal, OwnMachine
from advisor.units import format_usd_rate

NODE_COUNTS = (1, 2, 4, 8)  # GPUs of one node that are looked at where the goal leaves the number open
SEVERAL_NODES = (16, 32, 64)  # that are looked at besides where a run takes days on one node (`choose.search`)
ANY, OWN = "any", "own"

# Seconds between interruptions of a spot machine, shortest, expected and longest: sources §6.2 has no hourly hazard
# from any provider and says to treat it as 4 to 48 hours; the middle is geometric.
SPOT_MEAN_SECONDS = (4 * 3600.0, 14 * 3600.0, 48 * 3600.0)


def offers_for(
    goal: Goal, gpu: str, gpus: int, rows: RowsByGpu | None = None, today: datetime.date | None = None
) -> tuple[Offer, ...]:
    """Offers for `gpus` cards of one key that the goal allows; none where nobody rents so many together.

    A price that was given is the only offer. `rows` are `rows_by_gpu()`, for whoever asks many times; `today` is
    the day that the age of a listed price is counted to.
    """
    given = _given_price(goal, gpu)
    if given is not None:
        return (Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=given * gpus, source="given"),)
    if gpu == "cpu":
        return (_own(goal, gpu, gpus),)
    kinds = {"none": (False,), "only": (True,), "any": (False, True)}[goal.spot]
    offers = []
    for spot in kinds:
        offer = cheapest_offer(gpu, gpus, spot=spot, providers=goal.providers, rows=rows, today=today)
        if offer is not None:
            offers.append(
                offer if goal.providers else replace(offer, source=f"{offer.source}{_passed_over(offer, rows)}")
            )
    return tuple(offers)


def _passed_over(offer: Offer, rows: RowsByGpu | None) -> str:
    """That a marketplace asks less for one machine, which counts only where it is named; "" where none does."""
    other = cheapest_offer(offer.gpu, offer.gpus, spot=offer.spot, providers=MARKETPLACES, rows=rows)
    if (
        other is None
        or other.machines > 1
        or not other.usd_per_hour
        or other.usd_per_hour >= (offer.usd_per_hour or 0.0)
    ):
        return ""
    return (
        f"; marketplaces left out: {other.provider} {format_usd_rate(other.usd_per_hour)} (--provider {other.provider})"
    )


def own_offers(goal: Goal, machine: OwnMachine) -> tuple[Offer, ...]:
    """One's own machine with each number of its GPUs that the goal allows, at the price that was given for them."""
    return tuple(_own(goal, machine.gpu, count) for count in goal.counts or (goal.gpus,) if count <= machine.gpus)


def rents(goal: Goal, gpu: str) -> bool:
    """Whether the goal looks at cards of this key that are not one's own, where it looks at the key at all."""
    return owned(goal, gpu) is None or goal.gpu == ANY or gpu in goal.gpu.split(",")


def owned(goal: Goal, gpu: str) -> OwnMachine | None:
    """The user's machine with these cards; of several the one with the most, which nothing joins."""
    machines = [machine for machine in goal.own if machine.gpu == gpu]
    return max(machines, key=lambda machine: machine.gpus, default=None)


def usual_counts(gpu: str, own: Sequence[OwnMachine]) -> tuple[int, ...]:
    """The numbers of GPUs to choose from where nobody says: of own machines up to what they have."""
    rented = () if gpu == OWN else gpu.split(",")
    several = gpu == ANY or len({*rented, *(machine.gpu for machine in own)}) > 1
    counts = set((*NODE_COUNTS, *SEVERAL_NODES) if several and rented else (1,) if rented else ())
    for machine in own:
        counts |= {machine.gpus, *(count for count in NODE_COUNTS if count < machine.gpus)}
    return tuple(sorted(counts))


def within_a_node(goal: Goal) -> Goal:
    """The goal on no more than one node where it leaves the number of GPUs open; otherwise the goal as it is."""
    if goal.counts != usual_counts(goal.gpu, goal.own):
        return goal
    return replace(goal, counts=tuple(count for count in goal.counts if count not in SEVERAL_NODES))


def on_machine(goal: Goal, gpu: str, gpus: int, *, own: bool) -> Goal:
    """The goal for one number of one card alone, on one's own machine if that has so many, else rented."""
    machine = owned(goal, gpu)
    if own and machine and gpus <= machine.gpus:
        return replace(goal, gpu=OWN, gpus=gpus, counts=(), own=(machine,))
    tariff = None if goal.own else goal.usd_per_kwh
    return replace(goal, gpu=gpu, gpus=gpus, counts=(), own=(), usd_per_kwh=tariff)


def _given_price(goal: Goal, gpu: str) -> float | None:
    return next((p.usd_per_gpu_hour for p in goal.prices if p.gpu == gpu), goal.usd_per_gpu_hour)


def _own(goal: Goal, gpu: str, gpus: int) -> Offer:
    usd = (_given_price(goal, gpu) or 0.0) * gpus
    return Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=usd, source=OWN_MACHINE)
