"""Reads rental prices: rows of dated price lists with their sources. `hardware/offers` computes costs from them.

Reads profiles/prices.csv (format in profiles/README.md) and the live prices that `advisor gpus --refresh` stores.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import TERA, GpuSpec, read_number, read_table
from advisor.store.folders import advisor_home, profiles_folder

PRICE_COLUMNS = (
    *("provider", "instance_type", "region", "region_role", "gpu", "gpu_count", "gpu_mem_gb", "vcpus", "ram_gb"),
    *("on_demand_usd_per_hour", "spot_usd_per_hour", "spot_region", "snapshot_date", "origin", "source", "note"),
)
# Share of the on-demand price. A spot price below it is the price in one zone at one moment. Shipped rows have at least
# 18 %, except one of 11 %, which its own note calls an outlier; the next zone has 28 %.
LEAST_SPOT_SHARE = 0.15
# They list what private or small hosts offer at one moment, and the next customer may not get that price.
MARKETPLACES = ("vast", "runpod-community", "openrelay", "prime-intellect", "spheron", "tensordock")

# Log standard deviations of today's price about the listed one (docs/how-it-predicts.md, Prices; measured on 5,592
# points of 2023 to 2026, benchmarks/price_beliefs.py): a list's by the square root of its age, a market's of the day,
# a spot price's of the day, and what a list adds that somebody else copied, with or without form and count of the GPUs.
AGE_DEVIATION = 0.07  # per root month
MARKETPLACE_DEVIATION, SPOT_DEVIATION, MARKETPLACE_SPOT_DEVIATION = 0.30, 0.15, 0.5
COPIED_DEVIATION = {"": 0.0, "list": 0.03, "loose list": 0.10}
UNDATED_DAYS = 365  # age of a price of which nothing is known: the lists without a date are of 2025-09 or later
_DAYS_PER_MONTH = 30.44


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """One rentable machine type in one region, as in a price list. Dollars are for the whole machine."""

    provider: str
    instance_type: str
    region: str
    region_role: str
    gpu: str
    gpu_count: float  # below 1 for a share of a GPU
    on_demand_usd_per_hour: float | None
    spot_usd_per_hour: float | None
    snapshot_date: datetime.date | None  # None if the list has no date
    source: str
    note: str
    origin: str = ""  # "": read at the provider; list: copied by others; loose list: copied without form or count
    vcpus: float | None = None
    ram_gb: float | None = None  # as marketed; most providers mean GiB

    @property
    def earliest(self) -> datetime.date | None:
        """Return the earliest possible date of the price: the list's, or that in its note. Returns None if unknown."""
        if self.snapshot_date:
            return self.snapshot_date
        noted = re.search(r"(\d{4}-\d{2}) or later", self.note)
        return datetime.date.fromisoformat(f"{noted[1]}-01") if noted else None

    @property
    def usual_spot_usd_per_hour(self) -> float | None:
        """Return the spot price. Returns None if it is an outlier, on which no run can be planned."""
        spot, full = self.spot_usd_per_hour, self.on_demand_usd_per_hour
        return None if spot is not None and full is not None and spot < LEAST_SPOT_SHARE * full else spot

    def age_days(self, today: datetime.date) -> int | None:
        """Return the days since the price list was read. Without a date, the most possible. Returns None if unknown."""
        return (today - self.earliest).days if self.earliest else None

    def deviation(self, today: datetime.date, *, spot: bool) -> float:
        """Return the log standard deviation of today's price about the listed one. What others copied adds to it."""
        age = self.age_days(today)
        aged = AGE_DEVIATION * math.sqrt(max(UNDATED_DAYS if age is None else age, 0) / _DAYS_PER_MONTH)
        market = self.provider in MARKETPLACES
        of_day = (MARKETPLACE_SPOT_DEVIATION if market else SPOT_DEVIATION) if spot else MARKETPLACE_DEVIATION * market
        return math.hypot(aged, of_day) + COPIED_DEVIATION[self.origin]

    @property
    def dated(self) -> str:
        """Return the date as text."""
        if self.snapshot_date:
            return self.snapshot_date.isoformat()
        return f"{self.earliest:%Y-%m} or later" if self.earliest else "undated"


@dataclass(frozen=True, eq=False)
class PriceList:
    """The rows of a price list, also grouped once, because a search asks for its groups many times."""

    rows: tuple[PriceRow, ...]

    @cached_property
    def by_gpu(self) -> Mapping[str, Sequence[PriceRow]]:
        """The rows of each GPU, by its key."""
        grouped: dict[str, list[PriceRow]] = {}
        for row in self.rows:
            grouped.setdefault(row.gpu, []).append(row)
        return grouped

    @cached_property
    def providers(self) -> tuple[str, ...]:
        """Every provider, sorted by name."""
        return tuple(sorted({row.provider for row in self.rows}))


def price_list() -> PriceList:
    """Return every price: the user's live rows, and the shipped rows of providers without live rows.

    Raises AdvisorError with file and line for a broken row.
    """
    live = live_prices_path()
    return _prices(live, live.stat().st_mtime_ns) if live.is_file() else _prices(None, 0)


def load_prices() -> tuple[PriceRow, ...]:
    """Return the rows of `price_list`."""
    return price_list().rows


@cache
def shipped_prices() -> tuple[PriceRow, ...]:
    """Return only the rows of the shipped list, in the file's order."""
    return _read_price_file(profiles_folder() / "prices.csv")


def live_prices_path() -> Path:
    """Return the file in which `advisor gpus --refresh` stores the prices."""
    return advisor_home() / "cache" / "prices.csv"


@cache
def _prices(live_path: Path | None, changed: int) -> PriceList:
    """Return the prices. `changed` is only there to make the cache distinguish versions of the file."""
    live = _read_price_file(live_path) if live_path else ()
    fresh = {row.provider for row in live}
    return PriceList((*(row for row in shipped_prices() if row.provider not in fresh), *live))


# Rents are between these dollars per GPU per hour. Price lists also have 0.00 for "no spot", 700.0 for "not available",
# and hosts without their GPU. The cheapest data-centre GPU costs about 0.1 cents per dense TFLOP/s.
PRICE_RANGE = (0.05, 30.0)
NOT_AVAILABLE = 700.0
FLOOR_USD_PER_TFLOPS = 0.0008


def price_problem(row: PriceRow, cards: Mapping[str, GpuSpec]) -> str | None:
    """Say why a price-list row is invalid. Returns None for a valid price. A GPU's share is judged by that share."""
    for dollars in (row.on_demand_usd_per_hour, row.spot_usd_per_hour):
        if dollars is not None and not (dollars > 0 and dollars != NOT_AVAILABLE):
            return f"{dollars} means that there is none"
    if row.on_demand_usd_per_hour is None and row.spot_usd_per_hour is None:
        return "no price at all"
    if row.on_demand_usd_per_hour is not None and row.spot_usd_per_hour == row.on_demand_usd_per_hour:
        return "the spot price is the on-demand price"
    if row.on_demand_usd_per_hour is None:
        return None
    per_gpu = row.on_demand_usd_per_hour / row.gpu_count
    peak = cards[row.gpu].bf16_flops or cards[row.gpu].fp16_flops or 0.0
    rented = row.provider not in MARKETPLACES and not row.gpu.startswith(_CONSUMER)
    if per_gpu < (max(PRICE_RANGE[0], FLOOR_USD_PER_TFLOPS * peak / TERA) if rented else PRICE_RANGE[0] / 2):
        return f"${per_gpu:.3f} per GPU-hour is a host without its GPU"
    return f"${per_gpu:.0f} per GPU-hour is no rent" if per_gpu > PRICE_RANGE[1] else None


_CONSUMER = ("rtx", "gtx", "titan", "quadro", "a2000", "a4000", "a4500", "a5000", "a6000")


def _read_price_file(path: Path) -> tuple[PriceRow, ...]:
    return tuple(
        _price({**row, "gpu_count": count}, float(count) / float(counts[0]) if len(counts) > 1 else 1.0, where)
        for line, row in read_table(path, PRICE_COLUMNS, ("provider", "instance_type", "gpu", "gpu_count", "source"))
        for counts, where in ((row["gpu_count"].split(";"), f"{path}, line {line}"),)
        for count in counts
    )


def _price(row: Mapping[str, str], share: float, where: str) -> PriceRow:
    """Read one row. Several counts in a row ("1;2;4;8") are machines alike: their price is `share` times the first."""
    count = read_number(row, "gpu_count", 1.0, where)
    assert count is not None  # the column is required
    if row["origin"] not in COPIED_DEVIATION:
        known = ", ".join(filter(None, COPIED_DEVIATION))
        raise AdvisorError(f"{where}: origin is {row['origin']!r}", f"leave it empty, or write one of {known}")
    date = row["snapshot_date"]
    return PriceRow(
        provider=row["provider"],
        instance_type=row["instance_type"].replace("{n}", row["gpu_count"]),
        region=row["region"],
        region_role=row["region_role"],
        gpu=row["gpu"],
        gpu_count=count,
        on_demand_usd_per_hour=read_number(row, "on_demand_usd_per_hour", share, where),
        spot_usd_per_hour=read_number(row, "spot_usd_per_hour", share, where),
        snapshot_date=datetime.date.fromisoformat(date) if date else None,
        source=row["source"],
        note=row["note"],
        origin=row["origin"],
        vcpus=read_number(row, "vcpus", 1.0, where),
        ram_gb=read_number(row, "ram_gb", 1.0, where),
    )
