"""List the offers that a goal allows: for each GPU and number of GPUs the cheapest on demand and the cheapest spot.

A more expensive provider of the same machine takes as long and trains the same, so it is left out without loss.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

from advisor.hardware.offers import cheapest_offer
from advisor.hardware.prices import MARKETPLACES
from advisor.offer import OWN_MACHINE, Offer
from advisor.options import Goal, OwnMachine
from advisor.units import format_usd_rate

NODE_COUNTS = (1, 2, 4, 8)  # numbers of GPUs on one node that are searched where the goal leaves the number open
SEVERAL_NODES = (16, 32, 64)  # searched as well where a run takes days on one node (`choose.search`)
GPU_COUNTS = (*NODE_COUNTS, *SEVERAL_NODES)
BETWEEN = (3, 6, 12, 24, 48)  # further numbers of GPUs on which a chosen run is shown
ANY, OWN = "any", "own"

# Seconds between interruptions of a spot machine: shortest, expected and longest. No provider publishes an hourly risk;
# sources §6.2 assumes 4 to 48 hours, and the expected value is the geometric mean.
SPOT_MEAN_SECONDS = (4 * 3600.0, 14 * 3600.0, 48 * 3600.0)


def offers_for(goal: Goal, gpu: str, gpus: int, today: datetime.date | None = None) -> tuple[Offer, ...]:
    """Return the offers of this many GPUs together that the goal allows; empty if no provider has this many.

    A price that the user gave is the only offer. The age of a listed price is counted up to
    `today`.
    """
    given = _given_price(goal, gpu)
    if given is not None:
        return (Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=given * gpus, source="given"),)
    if gpu == "cpu":
        return (_own(goal, gpu, gpus),)
    kinds = {"none": (False,), "only": (True,), "any": (False, True)}[goal.spot]
    offers = []
    for spot in kinds:
        offer = cheapest_offer(gpu, gpus, spot=spot, providers=goal.providers, today=today)
        if offer is None:
            continue
        # A cheaper marketplace counts only if the goal names it, so the offer says that there is one.
        other = None if goal.providers else cheapest_offer(gpu, gpus, spot=spot, providers=MARKETPLACES)
        if other and other.machines == 1 and 0 < (other.usd_per_hour or 0.0) < (offer.usd_per_hour or 0.0):
            cheaper = f"{other.seller} {format_usd_rate(other.usd_per_hour)} (choose --provider {other.provider})"
            offer = replace(offer, source=f"{offer.source}; cheaper on a marketplace: {cheaper}")
        offers.append(offer)
    return tuple(offers)


def own_offers(goal: Goal, machine: OwnMachine) -> tuple[Offer, ...]:
    """Return the user's own machine as an offer, for each number of its GPUs that the goal allows."""
    return tuple(_own(goal, machine.gpu, count) for count in goal.counts or (goal.gpus,) if count <= machine.gpus)


def owned(goal: Goal, gpu: str) -> OwnMachine | None:
    """Return the user's machine with this GPU; of several, the largest: a run cannot span unconnected machines."""
    machines = [machine for machine in goal.own if machine.gpu == gpu]
    return max(machines, key=lambda machine: machine.gpus, default=None)


def same_machine(one: Offer, other: Offer) -> bool:
    """Return True if two offers have the same GPU and number of GPUs, and both are spot or both are on demand."""
    return (one.gpu, one.gpus, one.spot) == (other.gpu, other.gpus, other.spot)


def names_one_gpu(goal: Goal) -> bool:
    """Return True if the goal allows GPUs of one type only."""
    rented = () if goal.gpu == OWN else goal.gpu.split(",")
    return goal.gpu != ANY and len({*rented, *(machine.gpu for machine in goal.own)}) == 1


def usual_counts(gpu: str, own: Sequence[OwnMachine]) -> tuple[int, ...]:
    """Return the numbers of GPUs to search by default; for the user's own machines, only those that they have."""
    rented = () if gpu == OWN else gpu.split(",")
    several = gpu == ANY or len({*rented, *(machine.gpu for machine in own)}) > 1
    counts = set(GPU_COUNTS if several and rented else (1,) if rented else ())
    for machine in own:
        counts |= {machine.gpus, *(count for count in NODE_COUNTS if count < machine.gpus)}
    return tuple(sorted(counts))


def within_a_node(goal: Goal) -> Goal:
    """Return the goal limited to one node if it leaves the number of GPUs open, and otherwise unchanged."""
    if goal.counts != usual_counts(goal.gpu, goal.own):
        return goal
    return replace(goal, counts=tuple(count for count in goal.counts if count not in SEVERAL_NODES))


def on_machine(goal: Goal, gpu: str, gpus: int, *, own: bool) -> Goal:
    """Return the goal for exactly this machine: the user's own if `own` and if it has enough GPUs, else rented."""
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
