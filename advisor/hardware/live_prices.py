"""Asks providers for today's prices in a child process, rejects invalid prices, and writes the user's cache.

The cache has the format of profiles/prices.csv. A provider in the cache replaces the shipped rows of the same provider
(`prices.load_prices`).
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.errors import AdvisorError, require_package
from advisor.hardware.catalog import GpuSpec, gpus_named, load_gpus
from advisor.hardware.prices import PRICE_COLUMNS, PriceRow, live_prices_path, price_problem, shipped_prices
from advisor.store.disk import write_atomic

BUDGET_SECONDS = 10.0
_LEAVE_SECONDS = 2.0  # reserved for starting Python and printing the last answers
# gpuhunt's names for providers whose name in the shipped list differs
_PROVIDERS = {"lambdalabs": "lambda", "vastai": "vast", "digitalocean": "do"}
_MEMORY_ALIKE = 0.08  # relative; lists round, and mix GB, GiB and usable memory, so that a B200 has 180 or 192
_FORMS = ("sxm", "pcie", "nvl")


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """The result of a refresh: the number of prices, and for each provider without prices the reason."""

    rows: tuple[PriceRow, ...]
    failures: Mapping[str, str]
    rejected: int  # rows without a valid price (hosts without a GPU, 0.00, 700.0)
    unmatched: tuple[str, ...]  # names that match no GPU in the catalog, or several


def refresh_prices(today: datetime.date, budget_seconds: float = BUDGET_SECONDS) -> Refreshed:
    """Ask every provider and write the user's price cache.

    Raises AdvisorError if gpuhunt is not installed or no provider answered; the cache then stays as it was.
    """
    require_package("gpuhunt", "the search for live prices")
    # what the child process has printed when the time is up counts as its answers
    command = [sys.executable, "-m", "advisor.hardware.price_hunt", str(max(1.0, budget_seconds - _LEAVE_SECONDS))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=budget_seconds, check=False)
        output, complaint = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        output, complaint = (late.stdout or b"").decode(), (late.stderr or b"").decode()
    lines = [line for line in output.splitlines() if line.startswith("{") and line.endswith("}")]
    if not lines:
        last = complaint.strip().splitlines()[-1:] or ["it said nothing"]
        raise AdvisorError(f"gpuhunt could not be used: {last[0]}", "pip install --upgrade gpuhunt")
    answers = list(map(json.loads, lines))
    failures = {_name(a["provider"]): a["error"] for a in answers if "error" in a}
    items = [made for a in answers for item in a.get("items", ()) if (made := _row(_name(a["provider"]), item, today))]
    good = [row for row in items if isinstance(row, PriceRow)]
    kept = [row for row in good if price_problem(row, load_gpus()) is None]
    if not kept:
        reasons = "; ".join(f"{name}: {why}" for name, why in sorted(failures.items())[:3])
        hint = "the shipped prices stay in use; check the network, then try again"
        raise AdvisorError(f"no provider gave a price within {budget_seconds:g} s ({reasons})", hint)
    rows = _thinned(_spot_joined(kept))
    write_atomic(live_prices_path(), _as_csv(rows))
    return Refreshed(
        rows=rows,
        failures=failures,
        rejected=len(good) - len(kept),
        unmatched=tuple(sorted({row for row in items if isinstance(row, str)})),
    )


def _name(provider: str) -> str:
    return _PROVIDERS.get(provider, provider)


def _row(provider: str, item: Mapping[str, Any], today: datetime.date) -> PriceRow | str:
    """Return one item as a price row, or only the name of its GPU if that cannot be identified."""
    spec = _card(provider, item)
    if spec is None:
        return f"{item['gpu_name']} {item['gpu_memory'] or 0:g} GB"
    price = item["price"] if item["price"] and item["price"] > 0 else None
    return PriceRow(
        provider=provider,
        instance_type=item["instance_name"],
        region=item["location"],
        region_role="live",
        gpu=spec.key,
        gpu_count=float(item["gpu_count"]),
        on_demand_usd_per_hour=None if item["spot"] else price,
        spot_usd_per_hour=price if item["spot"] else None,
        snapshot_date=today,
        source="gpuhunt",
        note="",
        vcpus=item["cpu"],
        ram_gb=item["memory"],
    )


def _card(provider: str, item: Mapping[str, Any]) -> GpuSpec | None:
    """Return the GPU of an item, found by the shipped list's row, by the driver's name, or by name and memory."""
    machine = item["instance_name"] or ""
    cards = load_gpus()
    key = {(row.provider, row.instance_type): row.gpu for row in shipped_prices()}.get((provider, machine))
    if key is not None and key in cards:
        return cards[key]
    exact = [spec for spec in cards.values() if machine in spec.nvml_names]
    named = exact or gpus_named(_spaced(item["gpu_name"] or ""))
    memory = item["gpu_memory"]
    fitting = [spec for spec in named if memory is None or abs(memory / spec.memory_gb - 1) <= _MEMORY_ALIKE]
    form = next((form for form in _FORMS if form in machine.lower()), None)
    if len(fitting) > 1 and form:
        fitting = [spec for spec in fitting if any(part.startswith(form) for part in spec.key.split("-"))]
    return fitting[0] if len(fitting) == 1 else None


def _spaced(name: str) -> str:
    """Return "RTX4090" and "RTX6000Ada" in the catalog's spelling, with spaces."""
    return re.sub(r"(?<=\d)(?=(?:Ada|SUPER)\b)|(?<=RTX)(?=\d|PRO)|(?<=PRO)(?=\d)|(?<=[AH]\d{3})(?=NVL)", " ", name)


def _spot_joined(rows: Sequence[PriceRow]) -> list[PriceRow]:
    """Return one row per machine and region with both of its prices. A spot price equal to the other one is dropped."""
    joined: dict[tuple, dict[bool, PriceRow]] = {}
    for row in rows:
        is_spot = row.on_demand_usd_per_hour is None
        joined.setdefault((row.provider, row.instance_type, row.region, row.gpu_count), {})[is_spot] = row
    rows_joined = []
    for pair in joined.values():
        row, spot = pair.get(False) or pair[True], pair.get(True)
        dollars = spot.spot_usd_per_hour if spot else None
        if dollars is not None and row.on_demand_usd_per_hour is not None and dollars >= row.on_demand_usd_per_hour:
            dollars = None
        rows_joined.append(PriceRow(**{**vars(row), "spot_usd_per_hour": dollars}))
    return rows_joined


def _thinned(rows: Sequence[PriceRow]) -> tuple[PriceRow, ...]:
    """Keep, for each provider, GPU and count, the cheapest on-demand, cheapest spot and highest spot prices."""
    groups: dict[tuple, list[PriceRow]] = {}
    for row in rows:
        groups.setdefault((row.provider, row.gpu, row.gpu_count), []).append(row)
    kept: list[PriceRow] = []
    for group in groups.values():
        priced = sorted((r for r in group if r.on_demand_usd_per_hour), key=lambda r: r.on_demand_usd_per_hour or 0)
        spot = sorted((r for r in group if r.spot_usd_per_hour), key=lambda r: r.spot_usd_per_hour or 0)
        kept += dict.fromkeys([*priced[:1], *spot[:1], *spot[-1:]])
    return tuple(sorted(kept, key=lambda r: (r.provider, r.gpu, r.gpu_count, r.region, r.instance_type)))


def _as_csv(rows: Iterable[PriceRow]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, PRICE_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        fields = {**vars(row), "spot_region": row.region if row.spot_usd_per_hour else ""}
        writer.writerow({name: "" if fields.get(name) is None else fields[name] for name in PRICE_COLUMNS})
    return text.getvalue()
