"""Computes the price of a number of GPUs, by one rule for the whole program.

One machine holds all GPUs, and its idle GPUs are paid for too. Above the size of a node, several whole nodes hold them.
Smaller machines side by side never count, because step times over their unknown network cannot be predicted. A
marketplace counts only if it is named or nobody else rents so many GPUs. A spot price that is an outlier never counts.
The cheapest is the one with the lowest cautious price (`Offer.rank`), because the lowest of many listed prices is often
only the oldest. A price without a date counts only where there is none with one.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, find_gpu, load_gpus, read_gpus, read_link, require_gpu
from advisor.hardware.prices import MARKETPLACES, PriceRow, price_list
from advisor.offer import EIGHT_OF_TEN, OWN_MACHINE, SELLER_KEYS, Offer, price_rank, seller_of

__all__ = ["OWN_MACHINE", "Offer"]  # other modules import these from here

RowsByGpu = Mapping[str, Sequence[PriceRow]]


@dataclass(frozen=True, kw_only=True)
class ProviderOffers:
    """One provider's offers for this number of GPUs, which are None if it rents only smaller machines."""

    provider: str
    on_demand: Offer | None
    spot: Offer | None


@dataclass(frozen=True, kw_only=True)
class PricedGpus:
    """A number of GPUs of one type and their cheapest on-demand offer, or None if nobody rents that many together."""

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
    """Return the cheapest offer of `gpus` GPUs, on demand or spot, or None if nobody rents that many.

    Only these `providers` count; empty means all. `rows` are those of `price_list`. `today`
    is the date from which the price's age is counted; by default it is the current date.
    """
    today = today or datetime.date.today()
    bills = _bills(gpu, gpus, spot=spot, providers=providers, rows=rows)
    if not bills:
        return None

    ranks = [
        price_rank(one.usd_per_hour, one.row.deviation(today, spot=spot), dated=one.row.snapshot_date is not None)
        for one in bills
    ]
    bill = bills[ranks.index(min(ranks))]
    row, machine = bill.row, f"{bill.machines} x " if bill.machines > 1 else ""
    alike = [
        one.usd_per_hour
        for one in bills
        if (one.row.provider, one.row.instance_type) == (row.provider, row.instance_type)
    ]
    said = (
        f"{seller_of(row.provider)} {machine}{row.instance_type}",
        row.region,
        "spot" if spot else "on demand",
        row.dated,
    )
    return Offer(
        gpu=gpu,
        gpus=gpus,
        provider=row.provider,
        spot=spot,
        usd_per_hour=bill.usd_per_hour,
        source=", ".join(filter(None, said)),
        instance_type=row.instance_type,
        region=row.region,
        machines=bill.machines,
        rented=round(bill.machines * row.gpu_count),
        most_usd_per_hour=max(alike) if spot else None,
        age_days=row.age_days(today),
        price_deviation=row.deviation(today, spot=spot),
        dated=row.snapshot_date is not None,
    )


def priced_gpus(
    names: str | None, count: int | None = None, *, providers: Sequence[str] = (), today: datetime.date
) -> list[PricedGpus]:
    """Price the named GPUs, or every GPU of the catalog if `names` is None.

    `names` has commas between the GPUs. `count` replaces the count in a name such as "8xh100". Raises AdvisorError
    (exit 2) for an unknown GPU or provider.
    """
    check_providers(providers)
    rows, named = price_list().by_gpu, [] if names is None else [read_gpus(name) for name in names.split(",")]
    wanted = [(require_gpu(one.key), count or one.count or 1) for one in named]
    wanted = wanted or [(spec, count or 1) for spec in load_gpus().values()]
    return [
        PricedGpus(spec=spec, gpus=n, offer=cheapest_offer(spec.key, n, providers=providers, rows=rows, today=today))
        for spec, n in wanted
    ]


def price_row(offer: Offer) -> PriceRow | None:
    """Return the row of the price list from which an offer comes. Returns None if it does not come from a list."""
    for row in price_list().by_gpu.get(offer.gpu, ()):
        price = row.usual_spot_usd_per_hour if offer.spot else row.on_demand_usd_per_hour
        same = (row.provider, row.instance_type, row.region) == (offer.provider, offer.instance_type, offer.region)
        if same and price is not None and price * offer.machines == offer.usd_per_hour:
            return row
    return None


def unpriced(gpu: str, gpus: int, providers: Sequence[str] = (), rows: RowsByGpu | None = None) -> Offer:
    """Return an offer of unknown price for `gpus` GPUs that nobody rents together. Its source states this."""
    listed = any(not providers or row.provider in providers for row in (rows or price_list().by_gpu).get(gpu, ()))
    source = f"no provider offers {gpus} x {gpu} together" if listed and gpus > 1 else f"no price known for {gpu}"
    source += f" at {' or '.join(providers)}" if providers else ""
    likely = None
    if not listed and len(providers) == 1 and (expected := expected_price(gpu, providers[0])):
        middle, deviation = expected
        likely = math.exp(middle - EIGHT_OF_TEN * deviation), math.exp(middle + EIGHT_OF_TEN * deviation)
    return Offer(
        gpu=gpu,
        gpus=gpus,
        provider=None,
        spot=False,
        usd_per_hour=None,
        source=source,
        likely_usd_per_gpu_hour=likely,
    )


# Variances of the log price per GPU, of a seller's level and of one GPU about that level: the pair under which 209
# prices of 28 sellers are likeliest, each predicted without itself (benchmarks/price_beliefs.py).
_LEVEL_VARIANCE, _GPU_VARIANCE = 0.10, 0.12


def expected_price(gpu: str, provider: str, rows: RowsByGpu | None = None) -> tuple[float, float] | None:
    """Return middle and deviation of the log of what a provider asks per GPU-hour, from all other prices.

    The middle is the median of the other providers, moved by what this one asks beside the others for its other GPUs;
    the fewer of them there are, the less it moves. Returns None if fewer than two others rent the GPU.
    """
    requested = _usual_prices(rows)
    if (middle := _median_of_others(requested.get(gpu, {}), provider)) is None:
        return None
    ratios = [
        by_provider[provider] - others
        for key, by_provider in requested.items()
        if key != gpu and provider in by_provider
        if (others := _median_of_others(by_provider, provider)) is not None
    ]
    share = _LEVEL_VARIANCE / (_LEVEL_VARIANCE + _GPU_VARIANCE / len(ratios)) if ratios else 0.0
    level = share * statistics.fmean(ratios) if ratios else 0.0
    return middle + level, math.sqrt((1 - share) * _LEVEL_VARIANCE + _GPU_VARIANCE)


def _usual_prices(rows: RowsByGpu | None) -> dict[str, dict[str, float]]:
    """Return the log of each provider's lowest dated price per GPU-hour, for each GPU."""
    requested: dict[str, dict[str, float]] = {}
    for gpu, of_gpu in (rows or price_list().by_gpu).items():
        for row in of_gpu:
            if row.on_demand_usd_per_hour and row.snapshot_date and row.gpu_count >= 1:
                price, by_provider = math.log(row.on_demand_usd_per_hour / row.gpu_count), requested.setdefault(gpu, {})
                by_provider[row.provider] = min(price, by_provider.get(row.provider, math.inf))
    return requested


def _median_of_others(by_provider: Mapping[str, float], provider: str) -> float | None:
    others = [price for name, price in by_provider.items() if name != provider]
    return statistics.median(others) if len(others) >= 2 else None


def offers_by_provider(gpu: str, gpus: int = 1, providers: Sequence[str] = ()) -> tuple[ProviderOffers, ...]:
    """Return the cheapest offers of each provider that has the GPU, surely cheapest first, spot-only last.

    Marketplaces count, because each provider is named.
    """
    rows = price_list().by_gpu
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


# what people call the providers of the price lists
_ALSO = {"amazon": "aws", "google": "gcp", "microsoft": "azure", "oracle": "oci", "digitalocean": "do",
         "datacrunch": "verda", "lambdalabs": "lambda", "runpod-secure": "runpod", "vastai": "vast"}  # fmt: skip


def read_providers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of providers as the price lists have them. Raises AdvisorError (exit 2) if none has one."""
    read = tuple((_ALSO | SELLER_KEYS).get(name.lower(), name.lower()) for name in names)
    check_providers(read)
    return read


def check_providers(names: Sequence[str]) -> None:
    """Raise AdvisorError (exit 2) if no price list contains one of these providers."""
    listed = price_list().providers
    for name in names:
        if name not in listed:
            close = close_matches(name, listed)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            raise AdvisorError(f"unknown provider {name!r}", f"{hint}known: {', '.join(listed)}", exit_code=2)


def _bills(gpu: str, gpus: int, *, spot: bool, providers: Sequence[str], rows: RowsByGpu | None) -> list[_Bill]:
    """Return the possible bills for renting `gpus` GPUs."""
    # the fewest GPUs that a machine for these `gpus` may have; 1 if a link joins whole racks
    spec = find_gpu(gpu)
    link = read_link(spec.interconnect) if spec else None
    least = 1 if link and link.gpus > GPUS_PER_NODE else min(gpus, GPUS_PER_NODE)
    by_gpu = price_list().by_gpu if rows is None else rows
    bills = []
    for row in by_gpu.get(gpu, ()):
        price = row.usual_spot_usd_per_hour if spot else row.on_demand_usd_per_hour
        if price is not None and row.gpu_count >= least and (not providers or row.provider in providers):
            machines = math.ceil(gpus / row.gpu_count)
            bills.append(_Bill(row=row, machines=machines, usd_per_hour=machines * price))
    return bills if providers else [b for b in bills if b.row.provider not in MARKETPLACES] or bills


def _order(entry: ProviderOffers) -> tuple[int, tuple[bool, float]]:
    offer = entry.on_demand or entry.spot
    kind = 0 if entry.on_demand else 1 if entry.spot else 2
    return kind, offer.rank if offer else (True, 0.0)
