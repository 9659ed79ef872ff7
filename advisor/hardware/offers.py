"""Computes the price of a number of GPUs, by one rule for the whole program.

One machine holds all GPUs, and its idle GPUs are paid for too. Above the size of a node, several whole nodes hold them.
Smaller machines side by side never count, because step times over their unknown network cannot be predicted. A
marketplace counts only if it is named or nobody else rents so many GPUs. A spot price that is an outlier never counts.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, find_gpu, load_gpus, read_gpus, require_gpu
from advisor.hardware.links import read_link
from advisor.hardware.prices import MARKETPLACES, PriceRow, load_prices
from advisor.offer import OWN_MACHINE, Offer

__all__ = ["OWN_MACHINE", "Offer"]  # other modules import these from here

RowsByGpu = Mapping[str, Sequence[PriceRow]]


@dataclass(frozen=True, kw_only=True)
class ProviderOffers:
    """The offers of one provider for this number of GPUs. They are empty if it rents only smaller machines."""

    provider: str
    on_demand: Offer | None
    spot: Offer | None


@dataclass(frozen=True, kw_only=True)
class PricedGpus:
    """A number of GPUs of one kind, and the cheapest on-demand offer. None if nobody rents so many together."""

    spec: GpuSpec
    gpus: int
    offer: Offer | None


@dataclass(frozen=True, kw_only=True)
class _Bill:
    """One row of a price list, rented as many times as the number of GPUs requires."""

    row: PriceRow
    machines: int
    usd_per_hour: float  # for all machines together


def cheapest_offer(
    gpu: str,
    gpus: int = 1,
    *,
    spot: bool = False,
    providers: Sequence[str] = (),
    rows: RowsByGpu | None = None,
    today: datetime.date | None = None,
) -> Offer | None:
    """Return the cheapest bill for `gpus` GPUs of one key, on demand or spot. Returns None if nobody rents so many.

    Only these `providers` count; empty means all. `rows` is `rows_by_gpu()`, for callers that ask many times. `today`
    is the date from which the price's age is counted.
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
        instance_type=bill.row.instance_type,
        region=bill.row.region,
        machines=bill.machines,
        rented=round(bill.machines * bill.row.gpu_count),
        most_usd_per_hour=max(alike) if spot else None,
        age_days=bill.row.age_days(today) if today else None,
        dated=bill.row.snapshot_date is not None,
    )


def priced_gpus(
    names: str | None, count: int | None = None, *, providers: Sequence[str] = (), today: datetime.date
) -> list[PricedGpus]:
    """Price the named GPUs, or every GPU of the catalog if `names` is None.

    `names` has commas between the GPUs. `count` replaces the count in a name such as "8xh100". Raises AdvisorError
    (exit 2) for an unknown GPU or provider.
    """
    check_providers(providers)
    rows, named = rows_by_gpu(), [] if names is None else [read_gpus(name) for name in names.split(",")]
    wanted = [(require_gpu(one.key), count or one.count or 1) for one in named]
    wanted = wanted or [(spec, count or 1) for spec in load_gpus().values()]
    return [
        PricedGpus(spec=spec, gpus=n, offer=cheapest_offer(spec.key, n, providers=providers, rows=rows, today=today))
        for spec, n in wanted
    ]


def price_row(offer: Offer) -> PriceRow | None:
    """Return the row of the price list from which an offer comes. Returns None if it does not come from a list."""
    for row in rows_by_gpu().get(offer.gpu, ()):
        price = row.usual_spot_usd_per_hour if offer.spot else row.on_demand_usd_per_hour
        same = (row.provider, row.instance_type, row.region) == (offer.provider, offer.instance_type, offer.region)
        if same and price is not None and price * offer.machines == offer.usd_per_hour:
            return row
    return None


def unpriced(gpu: str, gpus: int, providers: Sequence[str] = (), rows: RowsByGpu | None = None) -> Offer:
    """Return an offer of unknown price for `gpus` GPUs that nobody rents together. Its source says so in words."""
    listed = any(not providers or row.provider in providers for row in (rows or rows_by_gpu()).get(gpu, ()))
    source = f"no provider offers {gpus} x {gpu} together" if listed and gpus > 1 else f"no price known for {gpu}"
    source += f" at {' or '.join(providers)}" if providers else ""
    return Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=None, source=source)


def offers_by_provider(gpu: str, gpus: int = 1, providers: Sequence[str] = ()) -> tuple[ProviderOffers, ...]:
    """Return the cheapest offers of each provider that has the GPU, lowest on-demand price first, spot-only last.

    Marketplaces count, because each provider is named.
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


def rows_by_gpu() -> dict[str, list[PriceRow]]:
    """Return all prices, grouped by the GPU's key."""
    rows: dict[str, list[PriceRow]] = {}
    for row in load_prices():
        rows.setdefault(row.gpu, []).append(row)
    return rows


def provider_names() -> list[str]:
    """Return every provider in the price lists."""
    return sorted({row.provider for row in load_prices()})


def check_providers(names: Sequence[str]) -> None:
    """Raise AdvisorError (exit 2) if no price list contains one of these providers."""
    listed = provider_names()
    for name in names:
        if name not in listed:
            close = close_matches(name, listed)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise AdvisorError(f"unknown provider {name!r}", f"{hint}known: {', '.join(listed)}", exit_code=2)


def _bills(
    gpu: str, gpus: int, *, spot: bool, providers: Sequence[str] = (), rows: RowsByGpu | None = None
) -> list[_Bill]:
    """Return the possible bills for renting `gpus` GPUs."""
    # the fewest GPUs that a machine for these `gpus` may have; 1 if a link joins whole racks
    spec = find_gpu(gpu)
    link = read_link(spec.interconnect) if spec else None
    least = 1 if link and link.gpus > GPUS_PER_NODE else min(gpus, GPUS_PER_NODE)
    by_gpu = rows_by_gpu() if rows is None else rows
    bills = []
    for row in by_gpu.get(gpu, ()):
        price = row.usual_spot_usd_per_hour if spot else row.on_demand_usd_per_hour
        if price is not None and row.gpu_count >= least and (not providers or row.provider in providers):
            machines = math.ceil(gpus / row.gpu_count)
            bills.append(_Bill(row=row, machines=machines, usd_per_hour=machines * price))
    return bills if providers else [b for b in bills if b.row.provider not in MARKETPLACES] or bills


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
