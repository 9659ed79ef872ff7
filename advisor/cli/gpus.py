"""`advisor gpus`: what the catalog knows of each card, and what renting it costs."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType

from advisor.cli.params import GPU
from advisor.hardware.catalog import MOST_GPUS, GpuSpec, load_gpus, read_gpus, require_gpu
from advisor.hardware.offers import (
    Offer,
    ProviderOffers,
    cheapest_offer,
    check_providers,
    offers_by_provider,
    price_row,
    rows_by_gpu,
    unpriced,
)
from advisor.hardware.software_support import lacks, what_it_needs, wheels_for
from advisor.report.cards import OFFER_NUMBERS, card_facts, catalog_row, offer_notes, offer_rows, refreshed_words
from advisor.report.render import print_json, show, table


@click.command()
@click.argument("gpu", required=False, type=GPU)
@click.option("--gpus", "count", type=click.IntRange(1, MOST_GPUS), help="GPUs to rent. Default: 1, or as 8xh100 says.")
@click.option("--provider", help="Only this provider's prices.")
@click.option(
    "--refresh", is_flag=True, help="Ask providers for today's prices first (10 s; needs the extra `prices`)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(gpu: str | None, count: int | None, provider: str | None, refresh: bool, as_json: bool) -> None:
    """List GPU specifications and their cheapest on-demand price; with GPU, everything known of that GPU.

    GPU is a key from the list, the name the driver gives, or a short name as h100 or 8xh100. Rates are dense,
    without the factor of 2 for sparsity. Your own GPUs go into gpus.csv under ADVISOR_HOME.
    """
    today = datetime.date.today()
    if refresh:
        _refresh(today)
    providers = () if provider is None else (provider,)
    check_providers(providers)
    if gpu is None:
        _show_all(count or 1, providers, today, as_json)
    else:
        named = read_gpus(gpu)
        _show_one(require_gpu(named.key), count or named.count or 1, providers, today, as_json)


def _show_all(count: int, providers: Sequence[str], today: datetime.date, as_json: bool) -> None:
    rows = rows_by_gpu()
    specs = list(load_gpus().values())
    offers = {spec.key: cheapest_offer(spec.key, count, providers=providers, rows=rows) for spec in specs}
    if as_json:
        print_json([_plain(spec, offers[spec.key], today) for spec in specs])
        return
    dollars = "$/h" if count == 1 else f"$/h for {count}"
    columns = ["gpu", "memory", "bandwidth", "bf16 dense", "PyTorch", dollars, "price from"]
    cells = [catalog_row(spec, offers[spec.key] or unpriced(spec.key, count, providers, rows), today) for spec in specs]
    show(table(columns, cells, right=columns[1:6]))


def _show_one(spec: GpuSpec, count: int, providers: Sequence[str], today: datetime.date, as_json: bool) -> None:
    entries = offers_by_provider(spec.key, count, providers)
    if as_json:
        document = _plain(spec, cheapest_offer(spec.key, count, providers=providers), today)
        print_json({**document, "prices": [price for entry in entries if (price := _plain_price(entry, today))]})
    else:
        nobodys = unpriced(spec.key, count, providers)
        show(table(["", ""], card_facts(spec)), "", *offers_shown(entries, nobodys, today))


def _refresh(today: datetime.date) -> None:
    """Renew the user's price cache, and say on stderr what came of it."""
    from advisor.hardware.live_prices import refresh_prices

    first, *more = refreshed_words(refresh_prices(today))
    click.echo(first, err=True)
    for line in more:
        click.echo(f"  {line}", err=True)


def _plain(spec: GpuSpec, offer: Offer | None, today: datetime.date) -> dict[str, object]:
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    price = offer and _plain_price(_beside(offer), today)
    return {**fields, "memory_bytes": spec.memory_bytes, "pytorch": _plain_support(spec), "price": price}


def _plain_support(spec: GpuSpec) -> dict[str, object]:
    found = wheels_for(spec)
    return {
        "newest": found[0].torch if found else None,
        "variant": found[0].variant if found else None,
        "needs": what_it_needs(spec),
        "lacks": lacks(spec),
    }


def _beside(offer: Offer) -> ProviderOffers:
    """An offer on demand with the spot offer of the same provider."""
    assert offer.provider is not None
    spot = cheapest_offer(offer.gpu, offer.gpus, spot=True, providers=(offer.provider,))
    return ProviderOffers(provider=offer.provider, on_demand=offer, spot=spot)


def _plain_price(entry: ProviderOffers, today: datetime.date) -> dict[str, object] | None:
    offer, on_demand, spot = entry.on_demand or entry.spot, entry.on_demand, entry.spot
    if offer is None or (row := price_row(offer)) is None:
        return None
    return {
        "usd_per_gpu_hour": on_demand and on_demand.usd_per_gpu_hour,
        "usd_per_hour": on_demand and on_demand.usd_per_hour,
        "spot_usd_per_hour": spot and {"low": spot.usd_per_hour, "high": spot.most_usd_per_hour},
        "gpus": offer.gpus,
        "machines": offer.machines,
        "provider": entry.provider,
        "instance_type": row.instance_type,
        "region": row.region,
        "snapshot_date": row.snapshot_date,
        "age_days": row.age_days(today),
        "source": row.source,
        "note": row.note,
    }


def offers_shown(entries: Sequence[ProviderOffers], nobodys: Offer, today: datetime.date) -> Iterator[RenderableType]:
    """A table of offers, and what is to be known of them below it: long notes would squeeze the numbers."""
    count = nobodys.gpus
    if rows := offer_rows(entries, today):
        title = f"on demand, for {count} GPU{'s' if count > 1 else ''}"
        yield table(list(rows[0]), [list(row.values()) for row in rows], title=title, right=OFFER_NUMBERS)
    else:
        yield f"price: unknown, {nobodys.source}"
    if notes := offer_notes(entries, count):
        yield ""
        yield from notes
