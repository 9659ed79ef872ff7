"""What can be rented: for each card and number of GPUs the cheapest on-demand and the cheapest spot offer.

A dearer provider of the same machine takes as long and trains the same, so nothing is lost by leaving it out here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.catalog import find_gpu
from advisor.errors import AdvisorError, close_matches
from advisor.predict.comm import GPUS_PER_NODE, read_link
from advisor.prices import MARKETPLACES, PriceRow, load_prices
from advisor.records import Goal

# Seconds between interruptions of a spot machine, shortest, expected and longest: sources §6.2 has no hourly hazard
# from any provider and says to treat it as 4 to 48 hours; the middle is geometric.
SPOT_MEAN_SECONDS = (4 * 3600.0, 14 * 3600.0, 48 * 3600.0)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """So many GPUs of one kind at one price."""

    gpu: str
    gpus: int
    provider: str | None  # None: one's own machine, or a price that was given
    spot: bool
    usd_per_hour: float | None  # of everything rented, idle GPUs included; None: unknown
    source: str
    rented: int | None = None  # GPUs paid for, where more than are used may be; None: just these
    most_usd_per_hour: float | None = None  # a spot price moves: the most in any region; None: as above

    @property
    def ordered(self) -> bool:
        """Whether it is a machine that must be ordered: a provider's, or a card that a price was given for."""
        return is_ordered(self.gpu, self.provider, self.usd_per_hour)


def is_ordered(gpu: str, provider: str | None, usd_per_hour: float | None) -> bool:
    """As `Offer.ordered`."""
    return provider is not None or bool(usd_per_hour and gpu != "cpu")


RowsByGpu = Mapping[str, Sequence[PriceRow]]


def offers_for(goal: Goal, gpu: str, gpus: int, rows: RowsByGpu | None = None) -> tuple[Offer, ...]:
    """Offers for `gpus` cards of one key that the goal allows; without any price one offer of unknown price.

    A price that was given is the only offer. Marketplaces count only when they are named or nobody else has the card.
    `rows` are `rows_by_gpu()`, for whoever asks many times.
    """
    given = next((p.usd_per_gpu_hour for p in goal.prices if p.gpu == gpu), goal.usd_per_gpu_hour)
    if given is not None:
        return (Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=given * gpus, source="given"),)
    if gpu == "cpu":
        source = "your own machine"
        return (Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=0.0, source=source),)
    kinds = {"none": (False,), "only": (True,), "any": (False, True)}[goal.spot]
    found = (cheapest_offer(gpu, gpus, spot=spot, providers=goal.providers, rows=rows) for spot in kinds)
    return tuple(offer for offer in found if offer is not None)


def cheapest_offer(
    gpu: str, gpus: int, *, spot: bool, providers: tuple[str, ...] = (), rows: RowsByGpu | None = None
) -> Offer | None:
    """The smallest bill for `gpus` cards, on demand or spot; None when no price list has it.

    One machine holds them all, its idle GPUs paid for; beyond a node several whole nodes do. Machines of fewer GPUs
    side by side never count: what joins them is no link that a step time could be predicted with.
    """
    found = _bills(gpu, gpus, spot=spot, providers=providers, rows=rows)
    if not found:
        return None
    row, machines, price = min(found, key=lambda entry: entry[1] * entry[2])
    machine = (row.provider, row.instance_type)
    most = max(n * p for other, n, p in found if (other.provider, other.instance_type) == machine) if spot else None
    return Offer(
        gpu=gpu,
        gpus=gpus,
        provider=row.provider,
        spot=spot,
        usd_per_hour=machines * price,
        source=_source(row, machines, spot),
        rented=round(machines * row.gpu_count),
        most_usd_per_hour=most,
    )


def spot_range(gpu: str, gpus: int) -> tuple[float, float] | None:
    """The least and the most that the lists ask an hour for so many GPUs on spot machines, idle ones left out."""
    found = [gpus * price / row.gpu_count for row, _, price in _bills(gpu, gpus, spot=True)]
    return (min(found), max(found)) if found else None


def _bills(
    gpu: str, gpus: int, *, spot: bool, providers: tuple[str, ...] = (), rows: RowsByGpu | None = None
) -> list[tuple[PriceRow, int, float]]:
    """Rows that `gpus` cards can be had by, with the machines of it that this takes and the price of one an hour."""
    by_gpu = rows_by_gpu() if rows is None else rows
    listed = [row for row in by_gpu.get(gpu, ()) if not providers or row.provider in providers]
    least = _least_per_machine(gpu, gpus)
    priced = [(row, row.usual_spot_usd_per_hour if spot else row.on_demand_usd_per_hour) for row in listed]
    found = [(row, math.ceil(gpus / row.gpu_count), p) for row, p in priced if p is not None and row.gpu_count >= least]
    if providers:
        return found
    return [entry for entry in found if entry[0].provider not in MARKETPLACES] or found


def _least_per_machine(gpu: str, gpus: int) -> int:
    """GPUs that a machine must have to be one of those that share `gpus`; 1 where a link joins whole racks."""
    spec = find_gpu(gpu)
    link = read_link(spec.interconnect) if spec else None
    return 1 if link and link.gpus > GPUS_PER_NODE else min(gpus, GPUS_PER_NODE)


def check_providers(providers: tuple[str, ...]) -> None:
    """Raise AdvisorError (exit 2) for a provider that no price list knows."""
    known = {row.provider for row in load_prices()}
    for name in providers:
        if name not in known:
            close = close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise AdvisorError(f"unknown provider {name!r}", f"{hint}known: {', '.join(sorted(known))}", exit_code=2)


def rows_by_gpu() -> dict[str, list[PriceRow]]:
    """All prices by the card's key."""
    found: dict[str, list[PriceRow]] = {}
    for row in load_prices():
        found.setdefault(row.gpu, []).append(row)
    return found


def _source(row: PriceRow, machines: int, spot: bool) -> str:
    several = f"{machines} x " if machines > 1 else ""
    return f"{row.provider} {several}{row.instance_type}, {row.region}, {'spot' if spot else 'on demand'}, {row.dated}"
