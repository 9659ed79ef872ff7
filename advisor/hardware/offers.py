"""What so many cards cost: the one rule by which every part of the program names a price.

One machine holds all the cards, its idle GPUs paid for; beyond a node several whole nodes do. Machines of fewer GPUs
side by side never count: what joins them is no link that a step time could be predicted with. A marketplace counts only
when it is named or nobody else rents so many, a spot price that is an outlier never.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import GPUS_PER_NODE, find_gpu
from advisor.hardware.links import read_link
from advisor.hardware.prices import MARKETPLACES, PriceRow, drift_factor, load_prices

OWN_MACHINE = "your own machine"  # the source of its price, which is 0 where none was given
RowsByGpu = Mapping[str, Sequence[PriceRow]]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """So many GPUs of one kind at one price."""

    gpu: str
    gpus: int
    provider: str | None  # None: one's own machine, a price that was given, or nobody
    spot: bool
    usd_per_hour: float | None  # of everything rented, idle GPUs included; None: unknown
    source: str  # in words; of an unknown price why it is unknown
    rented: int | None = None  # GPUs paid for, where more than are used may be; None: just these
    most_usd_per_hour: float | None = None  # a spot price moves: the provider's most in any region
    row: PriceRow | None = None  # of the price list; None: from no list
    age_days: int | None = None  # of the price, the most it can be; None: not asked, unknown, or from no list

    @property
    def ordered(self) -> bool:
        """Whether it is a machine that must be ordered: a provider's, or a rented card that a price was given for."""
        given = bool(self.usd_per_hour) and self.gpu != "cpu" and self.source != OWN_MACHINE
        return self.provider is not None or given

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The bill over the GPUs paid for, idle ones among them; None: unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / (self.rented or self.gpus)

    @property
    def drift(self) -> float:
        """How many times more or less than its list says it may cost by now."""
        return drift_factor(self.age_days)

    @property
    def machines(self) -> int:
        """Machines of the list's kind that are rented for them."""
        return 1 if self.row is None else math.ceil(self.gpus / self.row.gpu_count)


@dataclass(frozen=True, kw_only=True)
class ProviderOffers:
    """What one provider that has the card asks for so many; neither: it rents fewer together only."""

    provider: str
    on_demand: Offer | None
    spot: Offer | None


@dataclass(frozen=True, kw_only=True)
class _Bill:
    """One row of a price list taken as often as the GPUs need it."""

    row: PriceRow
    machines: int
    usd_per_hour: float  # of all the machines


def cheapest_offer(
    gpu: str,
    gpus: int = 1,
    *,
    spot: bool = False,
    providers: Sequence[str] = (),
    rows: RowsByGpu | None = None,
    today: datetime.date | None = None,
) -> Offer | None:
    """The smallest bill for `gpus` cards of one key, on demand or spot; None where nobody rents so many together.

    `providers` are those that count; empty: all. `rows` are `rows_by_gpu()`, for whoever asks many times. `today` is
    the day that the price's age is counted to.
    """
    bills = _bills(gpu, gpus, spot=spot, providers=providers, rows=rows)
    if not bills:
        return None
    bill = min(bills, key=lambda bill: bill.usd_per_hour)
    alike = [b.usd_per_hour for b in bills if _machine_type(b.row) == _machine_type(bill.row)]
    return Offer(
        gpu=gpu,
        gpus=gpus,
        provider=bill.row.provider,
        spot=spot,
        usd_per_hour=bill.usd_per_hour,
        source=_source(bill, spot),
        rented=round(bill.machines * bill.row.gpu_count),
        most_usd_per_hour=max(alike) if spot else None,
        row=bill.row,
        age_days=bill.row.age_days(today) if today else None,
    )


def unpriced(gpu: str, gpus: int, providers: Sequence[str] = (), rows: RowsByGpu | None = None) -> Offer:
    """The offer of unknown price for `gpus` cards that nobody rents together; its source says so in words."""
    listed = any(not providers or row.provider in providers for row in (rows or rows_by_gpu()).get(gpu, ()))
    source = f"nobody rents {gpus} x {gpu} together" if listed and gpus > 1 else f"no price known for {gpu}"
    source += f" at {' or '.join(providers)}" if providers else ""
    return Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=None, source=source)


def offers_by_provider(gpu: str, gpus: int = 1, providers: Sequence[str] = ()) -> tuple[ProviderOffers, ...]:
    """Own cheapest offers of each provider that has the card: cheapest on demand first, then those with spot only.

    Every provider is named here, so marketplaces count.
    """
    rows = rows_by_gpu()
    names = sorted({row.provider for row in rows.get(gpu, ()) if not providers or row.provider in providers})
    entries = (
        ProviderOffers(
            provider=name,
            on_demand=cheapest_offer(gpu, gpus, providers=(name,), rows=rows),
            spot=cheapest_offer(gpu, gpus, spot=True, providers=(name,), rows=rows),
        )
        for name in names
    )
    return tuple(sorted(entries, key=_order))


def listed_bills(gpu: str, gpus: int, instance_type: str | None = None) -> list[float]:
    """What every list asks on demand for so many GPUs, ascending: of one machine type where it is listed, else of all.

    Marketplaces count.
    """
    every = tuple(provider_names())
    bills = _bills(gpu, gpus, spot=False, providers=every)
    named = [bill for bill in bills if bill.row.instance_type == instance_type]
    return sorted(bill.usd_per_hour for bill in named or bills)


def rows_by_gpu() -> dict[str, list[PriceRow]]:
    """All prices by the card's key."""
    rows: dict[str, list[PriceRow]] = {}
    for row in load_prices():
        rows.setdefault(row.gpu, []).append(row)
    return rows


def provider_names() -> list[str]:
    """Everybody that a price list is known of."""
    return sorted({row.provider for row in load_prices()})


def check_providers(names: Sequence[str]) -> None:
    """Raise AdvisorError (exit 2) for a provider that no price list knows."""
    listed = provider_names()
    for name in names:
        if name not in listed:
            close = close_matches(name, listed)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise AdvisorError(f"unknown provider {name!r}", f"{hint}known: {', '.join(listed)}", exit_code=2)


def _bills(
    gpu: str, gpus: int, *, spot: bool, providers: Sequence[str] = (), rows: RowsByGpu | None = None
) -> list[_Bill]:
    """The bills that `gpus` cards can be had for."""
    by_gpu, least = rows_by_gpu() if rows is None else rows, _least_per_machine(gpu, gpus)
    bills = []
    for row in by_gpu.get(gpu, ()):
        price = row.usual_spot_usd_per_hour if spot else row.on_demand_usd_per_hour
        if price is not None and row.gpu_count >= least and (not providers or row.provider in providers):
            machines = math.ceil(gpus / row.gpu_count)
            bills.append(_Bill(row=row, machines=machines, usd_per_hour=machines * price))
    return bills if providers else [b for b in bills if b.row.provider not in MARKETPLACES] or bills


def _least_per_machine(gpu: str, gpus: int) -> int:
    """GPUs that a machine must have to be one of those that share `gpus`; 1 where a link joins whole racks."""
    spec = find_gpu(gpu)
    link = read_link(spec.interconnect) if spec else None
    return 1 if link and link.gpus > GPUS_PER_NODE else min(gpus, GPUS_PER_NODE)


def _machine_type(row: PriceRow) -> tuple[str, str]:
    return row.provider, row.instance_type


def _order(entry: ProviderOffers) -> tuple[int, float]:
    offer = entry.on_demand or entry.spot
    rank = 0 if entry.on_demand else 1 if entry.spot else 2
    return rank, (offer.usd_per_hour if offer else None) or 0.0


def _source(bill: _Bill, spot: bool) -> str:
    row = bill.row
    several = f"{bill.machines} x " if bill.machines > 1 else ""
    return f"{row.provider} {several}{row.instance_type}, {row.region}, {'spot' if spot else 'on demand'}, {row.dated}"
