"""Cards and what renting them costs, as rows and words: for the terminal and the page alike. No arithmetic."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from advisor.hardware.catalog import GpuSpec
from advisor.hardware.live_prices import Refreshed
from advisor.hardware.offers import Offer, ProviderOffers, price_row
from advisor.hardware.prices import PriceRow
from advisor.hardware.software_support import lacks, short_words, support_words
from advisor.records import Workload
from advisor.report.table import capital
from advisor.units import (
    DAY,
    format_bandwidth,
    format_bytes,
    format_centre,
    format_count,
    format_estimate,
    format_flops,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd_rate,
    format_watts,
)

if TYPE_CHECKING:
    from advisor.planning.adapted import Adapted
    from advisor.planning.cards import CardRow

UNDATED = "commit undated (v8 schema: 2025-09 or later)"  # the price age column says it already
# facts of a card that decide what it is good for
_COMPARED = (
    *("architecture", "memory bandwidth", "bf16 / fp16 dense", "fp8 dense", "power limit"),
    *("interconnect, GB/s both ways", "PyTorch wheels", "cannot do"),
)
OFFER_NUMBERS = ("$/h", "$/GPU-h", "spot $/h")  # columns of `offer_rows` that hold numbers


ADAPTED_NUMBERS = ("trained", "memory", "micro-batch", "tokens/s", "longest context")  # columns that hold numbers


def adapted_rows(found: Iterable[Adapted]) -> list[dict[str, str]]:
    """A row for each way: what is trained, what it takes of the card, how fast."""
    # a list of cards needs no arithmetic
    from advisor.prediction.memory_terms import WorkloadArrays
    from advisor.prediction.trained import trained_parameters
    from advisor.report.prediction import partial_words

    rows = []
    for one in found:
        answer, work = one.prediction, one.prediction.workload
        total, rate = answer.peak_reserved_bytes, answer.tokens_per_second
        rows.append({
            "kind": partial_words(work),
            "trained": format_count(int(trained_parameters(WorkloadArrays.of([work]))[0])),
            "memory": format_estimate(total, format_bytes) if total else "unknown",
            "micro-batch": f"{work.micro_batch}" if answer.fits else "does not fit",
            "recomputed": "yes" if work.activation_checkpointing == "full" else "no",
            "tokens/s": format_estimate(rate, format_rate) if rate else "unknown",
            "longest context": format_count(one.longest_context) if one.longest_context else "none",
        })  # fmt: skip
    return rows


def card_facts(spec: GpuSpec) -> list[tuple[str, str]]:
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
        ("PyTorch wheels", support_words(spec)),
        ("cannot do", ", ".join(lacks(spec)) or "-"),
        ("multiprocessors / L2", f"{spec.sm_count or 'unknown'} / {format_bytes(spec.l2_bytes)}"),
        ("source", spec.source),
        ("notes", spec.notes or "-"),
    ]


def catalog_row(spec: GpuSpec, offer: Offer, today: datetime.date) -> list[str]:
    """A card and its cheapest offer: key, memory, bandwidth, bf16 rate, newest PyTorch, dollars an hour, from whom."""
    return [
        spec.key,
        f"{spec.memory_gb:g} GB",
        format_bandwidth(spec.memory_bytes_per_second),
        format_flops(spec.bf16_flops) if spec.bf16_flops else "-",
        short_words(spec),
        "-" if offer.usd_per_hour is None else format_usd_rate(offer.usd_per_hour),
        offer.source if (row := price_row(offer)) is None else f"{_from(offer)}, {price_age(row, today)}",
    ]


def _from(offer: Offer) -> str:
    idle = offer.rented is not None and offer.rented > offer.gpus
    return f"{offer.provider} (a machine of {offer.rented})" if idle else str(offer.provider)


def price_age(row: PriceRow, today: datetime.date) -> str:
    """How old a price is, in words."""
    days = row.age_days(today)
    if days is None:
        return "undated"
    return format_seconds(days * DAY) if row.snapshot_date else f"at most {format_seconds(days * DAY)}"


def training_row(row: CardRow) -> dict[str, str]:
    """A card, its rent and what training the model costs on it, as columns of words."""
    prediction, price = row.prediction, row.price
    return {
        "GPU": row.spec.key,
        "$ per exaFLOP": format_estimate(row.usd_per_exaflop, format_usd_rate) if row.usd_per_exaflop else "-",
        "Tokens/s": format_estimate(prediction.tokens_per_second, format_tokens) if prediction else row.problem or "-",
        "$ per hour": format_usd_rate(price.usd_per_hour) if price else "-",
        "From": price.provider or "-" if price else "-",
        "Memory": format_bytes(row.spec.memory_bytes),
        "MFU": format_centre(prediction.mfu, format_percent) if prediction and prediction.mfu else "-",
        "Basis": prediction.tokens_per_second.basis.value if prediction and prediction.tokens_per_second else "-",
        "Micro-batch": _micro_batch(prediction.workload) if prediction else "-",
    }


def comparison_rows(rows: Sequence[CardRow]) -> list[dict[str, str]]:
    """Cards side by side, a column for each: what training the model comes to, then what differs of the cards."""
    training = [training_row(row) for row in rows]
    facts = [dict(card_facts(row.spec)) for row in rows]
    lines = [(name, [one[name] for one in training]) for name in training[0] if name != "GPU"]
    lines.insert(
        1, ("$ per billion tokens", [format_estimate(row.usd_per_billion_tokens, format_usd_rate) for row in rows])
    )
    lines += [(capital(name), [one[name] for one in facts]) for name in _COMPARED]
    keys = [row.spec.key for row in rows]
    return [{" ": name} | dict(zip(keys, cells, strict=True)) for name, cells in lines if len(set(cells)) > 1]


def _micro_batch(workload: Workload) -> str:
    recomputed = ", recomputed" if workload.activation_checkpointing != "none" else ""
    return f"{workload.micro_batch}{recomputed}{', sharded' if workload.sharding == 'full' else ''}"


def offer_rows(entries: Iterable[ProviderOffers], today: datetime.date) -> list[dict[str, str]]:
    """What each provider asks, as columns of words; without the column for spot prices where there is none."""
    shown = [(entry, offer) for entry in entries if (offer := entry.on_demand or entry.spot)]
    spot = any(entry.spot for entry, _ in shown)
    return [
        {
            "provider": entry.provider,
            "machine": _machine(offer),
            "region": offer.region or "-",
            "$/h": format_usd_rate(offer.usd_per_hour) if entry.on_demand else "-",
            "$/GPU-h": _per_gpu(offer) if entry.on_demand else "-",
            **({"spot $/h": _spot_words(entry.spot)} if spot else {}),
            "price age": price_age(row, today) if (row := price_row(offer)) else "-",
        }
        for entry, offer in shown
    ]


def offer_notes(entries: Sequence[ProviderOffers], gpus: int) -> list[str]:
    """What is to be known of providers' prices, one line each."""
    apart = [entry.provider for entry in entries if not (entry.on_demand or entry.spot)]
    other = [(entry.spot, entry.on_demand) for entry in entries if entry.spot and entry.on_demand]
    offers = [offer for entry in entries if (offer := entry.on_demand or entry.spot)]
    rows = [row for offer in offers if (row := price_row(offer))]
    notes = [(row.provider, row.note.removeprefix(UNDATED).removeprefix("; ")) for row in rows]
    return [
        *(f"{provider}: rents no {gpus} of them together" for provider in apart),
        *(f"{spot.provider}: spot is {_machine(spot)}" for spot, mine in other if _machine(spot) != _machine(mine)),
        *(f"{provider}: {note}" for provider, note in dict.fromkeys(notes) if note),
    ]


def _per_gpu(offer: Offer) -> str:
    """The price of one GPU; where a whole machine must be paid for, of how many."""
    price = format_usd_rate(offer.usd_per_gpu_hour)
    return f"{price} x {offer.rented}" if offer.rented is not None and offer.rented > offer.gpus else price


def refreshed_words(done: Refreshed) -> list[str]:
    """What came of asking for today's prices, a line each."""
    providers = sorted({row.provider for row in done.rows})
    lines = [f"{len(done.rows)} prices of today from {', '.join(providers)}"]
    lines += [f"no answer from {name}: {why.splitlines()[0][:100]}" for name, why in sorted(done.failures.items())]
    if done.rejected:
        lines.append(f"{done.rejected} rows left out that are no prices (0.00, 700.0, hosts without a GPU)")
    if done.unmatched:
        lines.append(f"GPUs not told apart or not in the catalog: {', '.join(done.unmatched)}")
    return lines


def _machine(offer: Offer) -> str:
    return (f"{offer.machines} x " if offer.machines > 1 else "") + (offer.instance_type or "")


def _spot_words(spot: Offer | None) -> str:
    if spot is None:
        return "-"
    low, high = format_usd_rate(spot.usd_per_hour), format_usd_rate(spot.most_usd_per_hour)
    return low if low == high else f"{low} to {high}"
