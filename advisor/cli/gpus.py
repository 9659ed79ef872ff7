"""`advisor gpus`: what the catalog knows of each card, and what renting it costs."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import click

from advisor.catalog import GPUS_PER_NODE, GpuSpec, load_gpus, require_gpu
from advisor.errors import AdvisorError
from advisor.prices import Price, cheapest_price, load_prices
from advisor.render import print_json, show, table
from advisor.units import (
    DAY,
    format_bandwidth,
    format_bytes,
    format_flops,
    format_seconds,
    format_usd_rate,
    format_watts,
)

UNDATED = "commit undated (v8 schema: 2025-09 or later)"  # the price age column says it already


@click.command()
@click.argument("gpu", required=False)
@click.option("--gpus", "count", default=1, show_default=True, type=click.IntRange(1, 100_000), help="GPUs to rent.")
@click.option("--provider", help="Only this provider's prices.")
@click.option(
    "--refresh", is_flag=True, help="Ask providers for today's prices first (10 s; needs the extra `prices`)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(gpu: str | None, count: int, provider: str | None, refresh: bool, as_json: bool) -> None:
    """List GPU specifications and their cheapest on-demand price; with GPU, everything known of that card.

    GPU is a key from the list, the name the driver gives, or a short name that fits only one card. Rates are
    dense, without the factor of 2 for sparsity. Your own cards go into gpus.csv under ADVISOR_HOME.
    """
    today = datetime.date.today()
    if refresh:
        _refresh(today)
    if provider is not None:
        _check_provider(provider)
    if gpu is None:
        specs = list(load_gpus().values())
        prices = {spec.key: cheapest_price(spec.key, count, provider) for spec in specs}
        if as_json:
            print_json([_plain(spec, prices[spec.key], today) for spec in specs])
        else:
            show(_list(specs, prices, count, today))
        return
    spec = require_gpu(gpu)
    found = offers(spec.key, count, provider)
    if as_json:
        document = _plain(spec, cheapest_price(spec.key, count, provider), today)
        print_json({**document, "prices": [_plain_price(offer, today) for offer in found]})
    else:
        show(table(["", ""], facts(spec)), "", *(offers_shown(found, count, today) if found else ["price: unknown"]))


def _check_provider(name: str) -> None:
    known = sorted({row.provider for row in load_prices()})
    if name not in known:
        raise AdvisorError(f"unknown provider {name!r}", f"known: {', '.join(known)}", exit_code=2)


def _refresh(today: datetime.date) -> None:
    """Renew the user's price cache, and say on stderr what came of it."""
    from advisor.live_prices import refresh_prices

    done = refresh_prices(today)
    providers = sorted({row.provider for row in done.rows})
    click.echo(f"{len(done.rows)} prices of today from {', '.join(providers)}", err=True)
    for name, why in sorted(done.failures.items()):
        click.echo(f"  no answer from {name}: {why.splitlines()[0][:100]}", err=True)
    if done.rejected:
        click.echo(f"  {done.rejected} rows left out that are no prices (0.00, 700.0, hosts without a card)", err=True)
    if done.unmatched:
        click.echo(f"  cards not told apart or not in the catalog: {', '.join(done.unmatched)}", err=True)


def spot_range(price: Price) -> tuple[float, float] | None:
    """Lowest and highest spot dollars per hour of the same machine over all regions listed; None without any."""
    mine = (price.row.provider, price.row.instance_type)
    found = [
        price.machines * row.spot_usd_per_hour
        for row in load_prices()
        if (row.provider, row.instance_type) == mine and row.spot_usd_per_hour is not None
    ]
    return (min(found), max(found)) if found else None


def offers(key: str, count: int, provider: str | None) -> list[Price]:
    """Each provider's cheapest way to rent the cards, cheapest first."""
    providers = sorted({row.provider for row in load_prices() if provider in (None, row.provider)})
    found = [offer for name in providers if (offer := cheapest_price(key, count, name)) is not None]
    return sorted(found, key=lambda offer: offer.usd_per_hour)


def _plain(spec: GpuSpec, price: Price | None, today: datetime.date) -> dict:
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    return {**fields, "memory_bytes": spec.memory_bytes, "price": price and _plain_price(price, today)}


def _plain_price(price: Price, today: datetime.date) -> dict:
    spread = spot_range(price)
    return {
        "usd_per_gpu_hour": price.usd_per_gpu_hour,
        "usd_per_hour": price.usd_per_hour,
        "spot_usd_per_hour": {"low": spread[0], "high": spread[1]} if spread else None,
        "gpus": price.gpus,
        "machines": price.machines,
        "provider": price.row.provider,
        "instance_type": price.row.instance_type,
        "region": price.row.region,
        "snapshot_date": price.row.snapshot_date,
        "age_days": price.age_days(today),
        "source": price.row.source,
        "note": price.row.note,
    }


def _list(specs: list[GpuSpec], prices: dict[str, Price | None], count: int, today: datetime.date):
    dollars = "$/h" if count == 1 else f"$/h for {count}"
    columns = ["gpu", "memory", "bandwidth", "bf16 dense", dollars, "price from"]
    rows = [_list_row(spec, prices[spec.key], today) for spec in specs]
    return table(columns, rows, right=columns[1:5])


def _list_row(spec: GpuSpec, price: Price | None, today: datetime.date) -> list[str]:
    return [
        spec.key,
        f"{spec.memory_gb:g} GB",
        format_bandwidth(spec.memory_bytes_per_second),
        format_flops(spec.bf16_flops) if spec.bf16_flops else "-",
        format_usd_rate(price.usd_per_hour) if price else "-",
        f"{_from(price)}, {age_in_words(price, today)}" if price else "-",
    ]


def _from(price: Price) -> str:
    rented = round(price.machines * price.row.gpu_count)
    return price.row.provider + (f" (a machine of {rented})" if rented > price.gpus else "")


def age_in_words(price: Price, today: datetime.date) -> str:
    days = price.age_days(today)
    if days is None:
        return "undated"
    return format_seconds(days * DAY) if price.row.snapshot_date else f"at most {format_seconds(days * DAY)}"


def facts(spec: GpuSpec) -> list[tuple[str, str]]:
    """Everything known of a card, as name and words."""
    return [
        ("key", spec.key),
        ("driver names", "; ".join(spec.nvml_names)),
        ("architecture", f"{spec.architecture}, compute capability {spec.compute_capability or 'unknown'}"),
        ("memory", f"{spec.memory_gb:g} GB; the driver reports {format_bytes(spec.reported_memory_bytes)}"),
        ("memory bandwidth", format_bandwidth(spec.memory_bytes_per_second)),
        ("bf16 / fp16 dense", f"{format_flops(spec.bf16_flops)} / {format_flops(spec.fp16_flops)}"),
        ("fp32 / tf32 dense", f"{format_flops(spec.fp32_flops)} / {format_flops(spec.tf32_flops)}"),
        ("fp8 dense", format_flops(spec.fp8_flops)),
        ("best matmul measured", f"{format_flops(spec.mamf_bf16_flops)} (bf16)"),
        ("power limit", format_watts(spec.tdp_watts)),
        ("interconnect, GB/s both ways", spec.interconnect or "unknown"),
        ("multiprocessors / L2", f"{spec.sm_count or 'unknown'} / {format_bytes(spec.l2_bytes)}"),
        ("source", spec.source),
        ("notes", spec.notes or "-"),
    ]


def offer_rows(found: list[Price], today: datetime.date) -> list[dict[str, str]]:
    """Offers as columns of words; without the column for spot prices where there is none."""
    spot = any(spot_range(offer) for offer in found)
    return [
        {
            "provider": offer.row.provider,
            "machine": (f"{offer.machines} x " if offer.machines > 1 else "") + offer.row.instance_type,
            "region": offer.row.region,
            "$/h": format_usd_rate(offer.usd_per_hour),
            "$/GPU-h": format_usd_rate(offer.usd_per_gpu_hour),
            **({"spot $/h": _spot_words(offer)} if spot else {}),
            "price age": age_in_words(offer, today),
        }
        for offer in found
    ]


def offer_notes(found: list[Price]) -> list[str]:
    """What is to be known of providers' prices, one line each."""
    notes = [(offer.row.provider, offer.row.note.removeprefix(UNDATED).removeprefix("; ")) for offer in found]
    apart = [offer for offer in found if offer.machines > 1 and offer.row.gpu_count < GPUS_PER_NODE]
    return [
        *(f"{o.row.provider}: {o.machines} machines that no fast link joins, never planned on" for o in apart),
        *(f"{provider}: {note}" for provider, note in dict.fromkeys(notes) if note),
    ]


def _spot_words(offer: Price) -> str:
    spread = spot_range(offer)
    if spread is None:
        return "-"
    low, high = spread
    return format_usd_rate(low) if low == high else f"{format_usd_rate(low)} to {format_usd_rate(high)}"


def offers_shown(found: list[Price], count: int, today: datetime.date) -> Iterator[Any]:
    """A table of offers, and what is to be known of them below it: long notes would squeeze the numbers."""
    rows = offer_rows(found, today)
    columns = list(rows[0])
    cells = [list(row.values()) for row in rows]
    yield table(columns, cells, title=f"on demand, for {count} GPU{'s' if count > 1 else ''}", right=columns[3:-1])
    if notes := offer_notes(found):
        yield ""
        yield from notes
