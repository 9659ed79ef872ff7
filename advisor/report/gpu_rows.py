"""Shows GPUs and their rental prices as rows and words, for terminal and page. No arithmetic."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from advisor import units
from advisor.hardware import offers as market
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.live_prices import Refreshed
from advisor.hardware.offers import Offer, PricedGpus, ProviderOffers, price_row
from advisor.hardware.prices import PriceRow
from advisor.hardware.software_support import lacks, pytorch_it_needs, short_words, support_in_words, wheels_for
from advisor.offer import seller_of
from advisor.report.table import capital
from advisor.settings import SHARDINGS
from advisor.units import DAY, GIB

if TYPE_CHECKING:
    from advisor.planning.what_fits import CardRow
    from advisor.records import Estimate

UNDATED = "commit undated (v8 schema: 2025-09 or later)"  # the column of price ages already says so
# properties of a GPU that decide its uses
_COMPARED = (
    *("architecture", "memory bandwidth", "bf16 / fp16 dense", "fp8 dense", "power limit"),
    *("interconnect, GB/s both ways", "PyTorch wheels", "cannot do"),
)
TIGHT = 0.9  # share of a GPU's memory; if the high end of the estimate takes more, it only probably fits
OFFER_NUMBERS = ("$/h", "$/GPU-h", "spot $/h")  # columns of `offer_rows` that hold numbers


def card_facts(spec: GpuSpec) -> list[tuple[str, str]]:
    """Returns everything known of a GPU, as pairs of name and text."""
    return [
        ("key", spec.key),
        ("driver names", "; ".join(spec.nvml_names)),
        ("architecture", f"{spec.architecture}, compute capability {spec.compute_capability or 'unknown'}"),
        ("memory", f"{spec.memory_gb:g} GB; the driver reports {units.format_bytes(spec.reported_memory_bytes)}"),
        ("memory bandwidth", units.format_bandwidth(spec.memory_bytes_per_second)),
        ("bf16 / fp16 dense", f"{units.format_flops(spec.bf16_flops)} / {units.format_flops(spec.fp16_flops)}"),
        ("fp32 / tf32 dense", f"{units.format_flops(spec.fp32_flops)} / {units.format_flops(spec.tf32_flops)}"),
        ("fp8 dense", units.format_flops(spec.fp8_flops)),
        ("best matmul measured", f"{units.format_flops(spec.mamf_bf16_flops)} (bf16)"),
        ("power limit", units.format_watts(spec.tdp_watts)),
        ("interconnect, GB/s both ways", spec.interconnect or "unknown"),
        ("PyTorch wheels", support_in_words(spec)),
        ("cannot do", ", ".join(lacks(spec)) or "-"),
        ("multiprocessors / L2", f"{spec.sm_count or 'unknown'} / {units.format_bytes(spec.l2_bytes)}"),
        ("source", spec.source),
        ("notes", spec.notes or "-"),
    ]


def catalog_row(spec: GpuSpec, offer: Offer, today: datetime.date) -> list[str]:
    """Returns a GPU and its cheapest offer: key, memory, bandwidth, bf16 rate, newest PyTorch, $ per hour, provider."""
    whose = f"{offer.seller} (a machine of {offer.rented})" if _idle(offer) else str(offer.seller)
    return [
        spec.key,
        f"{spec.memory_gb:g} GB",
        units.format_bandwidth(spec.memory_bytes_per_second),
        units.format_flops(spec.bf16_flops) if spec.bf16_flops else "-",
        short_words(spec),
        "-" if offer.usd_per_hour is None else units.format_usd_rate(offer.usd_per_hour),
        offer.source if (row := price_row(offer)) is None else f"{whose}, {price_age(row, today)}",
    ]


def price_age(row: PriceRow, today: datetime.date) -> str:
    """Returns the age of a price in words."""
    days = row.age_days(today)
    if days is None:
        return "undated"
    return units.format_seconds(days * DAY) if row.snapshot_date else f"at most {units.format_seconds(days * DAY)}"


# pixels of each column of `training_row`: together they fit a small window; longer words are cut off
TRAINING_WIDTHS = {
    "GPU": 130, "Fits": 50, "Takes": 70, "Free": 70, "Tokens/s": 65, "80 % interval": 70, "$ per M tokens": 65,
    "$ per GPU-hour": 65, "From": 75, "Micro-batch": 70, "Basis": 55,
}  # fmt: skip
# columns of `training_row` that hold numbers, with the page's format and unit
TRAINING_NUMBERS = {
    "Takes": "%.1f GiB", "Free": "%.1f GiB", "Tokens/s": "localized", "$ per M tokens": "$%.3g",
    "$ per GPU-hour": "$%.2f",
}  # fmt: skip


def training_row(row: CardRow) -> dict[str, str | float | None]:
    """Returns a row with the model's memory, speed and cost on a GPU, or how much memory is missing."""
    prediction, price, each = row.prediction, row.price, row.usd_per_million_tokens
    rate = prediction.tokens_per_second if prediction else None
    needs, batch = row.needs.value / GIB if row.needs else None, ""
    if prediction:
        work = prediction.workload
        batch = f"{work.micro_batch}{', recomputed' if work.activation_checkpointing != 'none' else ''}"
        batch += ", sharded" if SHARDINGS[work.sharding].weights else ""
    return {
        "GPU": row.spec.product,
        "Fits": "yes" if prediction else fits_words(row).partition(":")[0].split()[0].lower(),
        "Takes": needs,
        "Free": None if needs is None else row.spec.memory_bytes / GIB - needs,
        "Tokens/s": units.format_rate.printed(rate.value, rate.low, rate.high) if rate else None,
        "80 % interval": units.format_estimate(rate, units.format_tokens).partition(" (")[2].rstrip(")"),
        "$ per M tokens": units.format_usd_rate.printed(each.value, each.low, each.high) if each else None,
        "$ per GPU-hour": price.usd_per_gpu_hour if price else None,
        "From": ", ".join(filter(None, (price.seller, sold(price)))) if price else "",
        "Micro-batch": batch,
        "Basis": rate.basis.value if rate else row.problem or "",
    }


def sold(offer: Offer) -> str:
    """Returns a machine's number of GPUs and its price if the run uses fewer GPUs."""
    return f"by {offer.rented}: {units.format_usd_rate(offer.usd_per_hour)}/h" if _idle(offer) else ""


def _idle(offer: Offer) -> bool:
    """Returns True if the user pays for more GPUs than the run uses."""
    return offer.rented is not None and offer.rented > offer.gpus


def fits_words(row: CardRow) -> str:
    """Says whether the model fits a GPU, and how much of its memory it takes."""
    has = units.format_bytes(row.spec.memory_bytes)
    if row.prediction is None:
        if row.needs is None:
            return f"Unknown on the {row.spec.product}: {row.problem}"
        if row.needs.value > row.spec.memory_bytes:
            return f"No: it takes {units.format_bytes(row.needs.value)}, and {has} are available"
        return f"Perhaps: it takes {_span(row.needs)} of {has}, and 3 % must stay free"
    tight = row.needs is not None and row.needs.high > TIGHT * row.spec.memory_bytes
    return f"Yes{', probably' if tight else ''}: {_span(row.needs)} of {has}"


def _span(needs: Estimate | None) -> str:
    """Returns the interval alone, without its middle."""
    words = units.format_estimate(needs, units.format_bytes)
    return words.partition(" (")[2].rstrip(")") or words


def fits_sentence(row: CardRow) -> str:
    """Says whether the model fits a GPU, how fast it trains there and at what price."""
    parts = [fits_words(row)]
    if row.prediction is not None:
        parts.append(units.format_centre(row.prediction.tokens_per_second, units.format_rate))
    if (each := row.usd_per_million_tokens) is not None:
        parts.append(f"{units.format_centre(each, units.format_usd_rate)} per million tokens")
    return ", ".join(parts)


def comparison_rows(rows: Sequence[CardRow]) -> list[dict[str, str]]:
    """Compares GPUs, one per column: first the results of training the model, then the properties that differ."""
    facts = [dict(card_facts(row.spec)) for row in rows]
    lines = [("Fits", [fits_sentence(row) for row in rows])]
    rents = [units.format_usd_rate(row.price.usd_per_gpu_hour) if row.price else "-" for row in rows]
    lines.append(("$ per GPU-hour", rents))
    lines += [(capital(name), [one[name] for one in facts]) for name in _COMPARED]
    keys = [row.spec.product for row in rows]
    return [{" ": name} | dict(zip(keys, cells, strict=True)) for name, cells in lines if len(set(cells)) > 1]


def offer_rows(entries: Iterable[ProviderOffers], today: datetime.date) -> list[dict[str, str]]:
    """Returns each provider's prices as columns of text, without spot prices if no provider has them."""
    shown = [(entry, offer) for entry in entries if (offer := entry.on_demand or entry.spot)]
    rows = []
    for entry, offer in shown:
        age, spot = price_row(offer), entry.spot
        rate = units.format_usd_rate(offer.usd_per_gpu_hour) + (f" x {offer.rented}" if _idle(offer) else "")
        row = {
            "provider": seller_of(entry.provider),
            "machine": _machine(offer),
            "region": offer.region or "-",
            "$/h": units.format_usd_rate(offer.usd_per_hour) if entry.on_demand else "-",
            "$/GPU-h": rate if entry.on_demand else "-",
        }
        if any(one.spot for one, _ in shown):
            ends = (spot.usd_per_hour, spot.most_usd_per_hour) if spot else ()
            row["spot $/h"] = " to ".join(dict.fromkeys(map(units.format_usd_rate, ends))) or "-"
        factor = units.format_percent(round(offer.price_factor - 1, 2))
        rows.append(row | {"price age": f"{price_age(age, today)} ±{factor}" if age else "-"})
    return rows


def offer_notes(entries: Sequence[ProviderOffers], gpus: int) -> list[str]:
    """Returns notes about providers' prices, one per line."""
    alone = [entry.provider for entry in entries if not (entry.on_demand or entry.spot)]
    other = [(entry.spot, entry.on_demand) for entry in entries if entry.spot and entry.on_demand]
    offers = [offer for entry in entries if (offer := entry.on_demand or entry.spot)]
    rows = [row for offer in offers if (row := price_row(offer))]
    notes = [(row.provider, row.note.removeprefix(UNDATED).removeprefix("; ")) for row in rows]
    return [
        *(f"{seller_of(provider)}: rents no {gpus} of them together" for provider in alone),
        *(f"{spot.seller}: spot is {_machine(spot)}" for spot, mine in other if _machine(spot) != _machine(mine)),
        *(f"{seller_of(provider)}: {note}" for provider, note in dict.fromkeys(notes) if note),
    ]


def likely_words(offer: Offer) -> str:
    """Says what an unknown price is likely to be, from all other prices; empty if too few of them are known."""
    if offer.likely_usd_per_gpu_hour is None:
        return ""
    low, high = map(units.format_usd_rate, offer.likely_usd_per_gpu_hour)
    return f" (likely {low} to {high} per GPU-hour: from other providers' prices and its own other prices)"


def refreshed_words(done: Refreshed) -> list[str]:
    """Returns lines that report the outcome of fetching today's prices."""
    providers = sorted({seller_of(row.provider) for row in done.rows})
    lines = [f"{len(done.rows)} prices fetched today from {', '.join(providers)}"]
    lines += [
        f"no answer from {seller_of(name)}: {why.splitlines()[0][:100]}" for name, why in sorted(done.failures.items())
    ]
    if done.rejected:
        lines.append(f"{done.rejected} rows left out because they are not prices (0.00, 700.0, hosts without a GPU)")
    if done.unmatched:
        lines.append(f"GPUs that are ambiguous or not in the catalog: {', '.join(done.unmatched)}")
    return lines


def _machine(offer: Offer) -> str:
    return (f"{offer.machines} x " if offer.machines > 1 else "") + (offer.instance_type or "")


def document(spec: GpuSpec, offer: Offer | None, today: datetime.date) -> dict[str, object]:
    """Returns a GPU for JSON: its data sheet, PyTorch's support for it, and its rental price."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    price = None
    if offer is not None and offer.provider is not None:  # with the spot offer of the same provider
        spot = market.cheapest_offer(offer.gpu, offer.gpus, spot=True, providers=(offer.provider,))
        price = price_document(ProviderOffers(provider=offer.provider, on_demand=offer, spot=spot), today)
    wheels = wheels_for(spec)
    pytorch = {
        "newest": wheels[0].torch if wheels else None,
        "variant": wheels[0].variant if wheels else None,
        "needs": pytorch_it_needs(spec),
        "lacks": lacks(spec),
    }
    return {**fields, "memory_bytes": spec.memory_bytes, "pytorch": pytorch, "price": price}


def gpus_document(
    priced: Sequence[PricedGpus], today: datetime.date, providers: Sequence[str] = ()
) -> tuple[str, dict[str, object]]:
    """Returns the name and the JSON document of a list of GPUs; a single GPU has the prices of every provider."""
    documents = [document(one.spec, one.offer, today) for one in priced]
    if len(priced) != 1:
        return "gpus", {"gpus": documents}
    one = priced[0]
    entries = market.offers_by_provider(one.spec.key, one.gpus, providers)
    likely = market.unpriced(one.spec.key, one.gpus, providers).likely_usd_per_gpu_hour
    return "gpu", documents[0] | {
        "prices": [price for entry in entries if (price := price_document(entry, today))],
        "likely_usd_per_gpu_hour": likely and dict(zip(("low", "high"), likely, strict=True)),
    }


def price_document(entry: ProviderOffers, today: datetime.date) -> dict[str, object] | None:
    """Returns one provider's price for JSON, or None if it has no such machines."""
    offer, on_demand, spot = entry.on_demand or entry.spot, entry.on_demand, entry.spot
    if offer is None or (row := price_row(offer)) is None:
        return None
    return {
        "usd_per_gpu_hour": on_demand and on_demand.usd_per_gpu_hour,
        "usd_per_hour": on_demand and on_demand.usd_per_hour,
        "usd_per_hour_today": offer.usd_per_hour
        and {"low": offer.usd_per_hour / offer.price_factor, "high": offer.usd_per_hour * offer.price_factor},
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
