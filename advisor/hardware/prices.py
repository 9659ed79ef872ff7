"""Reads rental prices: rows of dated price lists with their sources. `hardware/offers` computes costs from them.

Reads profiles/prices.csv (format in profiles/README.md) and the live prices that `advisor gpus --refresh` stores.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from advisor.hardware.catalog import TERA, GpuSpec, read_number, read_table
from advisor.store.folders import advisor_home, profiles_folder

PRICE_COLUMNS = (
    *("provider", "instance_type", "region", "region_role", "gpu", "gpu_count", "gpu_mem_gb", "vcpus", "ram_gb"),
    *("on_demand_usd_per_hour", "spot_usd_per_hour", "spot_region", "snapshot_date", "source", "note"),
)
# Share of the on-demand price. A spot price below it is the price in one zone at one moment. Shipped rows have at least
# 18 %, except one of 11 %, which its own note calls an outlier; the next zone has 28 %.
LEAST_SPOT_SHARE = 0.15
# they list what private hosts offer at one moment, and the next customer may not get that price
MARKETPLACES = ("vast",)


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
    vcpus: float | None = None
    ram_gb: float | None = None  # as marketed; most providers mean GiB

    @property
    def earliest(self) -> datetime.date | None:
        """Return the earliest possible date of the price: the list's, or that in its note. Returns None if unknown."""
        noted = re.search(r"(\d{4}-\d{2}) or later", self.note)
        if self.snapshot_date or not noted:
            return self.snapshot_date
        return datetime.date.fromisoformat(f"{noted[1]}-01")

    @property
    def usual_spot_usd_per_hour(self) -> float | None:
        """Return the spot price. Returns None if it is an outlier, on which no run can be planned."""
        spot, full = self.spot_usd_per_hour, self.on_demand_usd_per_hour
        return None if spot is not None and full is not None and spot < LEAST_SPOT_SHARE * full else spot

    def age_days(self, today: datetime.date) -> int | None:
        """Return the days since the price list was read. Without a date, the most possible. Returns None if unknown."""
        return (today - self.earliest).days if self.earliest else None

    @property
    def dated(self) -> str:
        """Return the date in words."""
        if self.snapshot_date:
            return self.snapshot_date.isoformat()
        return f"{self.earliest:%Y-%m} or later" if self.earliest else "undated"


def load_prices() -> tuple[PriceRow, ...]:
    """Return every price row: the user's live rows, and the shipped rows of providers without live rows.

    Raises AdvisorError with file and line for a broken row.
    """
    live = live_prices_path()
    if not live.is_file():
        return shipped_prices()
    return _with_live(live, live.stat().st_mtime_ns)


def shipped_prices() -> tuple[PriceRow, ...]:
    """Return only the rows of the shipped list, in the file's order."""
    return _read_prices(profiles_folder() / "prices.csv")


def live_prices_path() -> Path:
    """Return the file in which `advisor gpus --refresh` stores the prices."""
    return advisor_home() / "cache" / "prices.csv"


@cache
def _with_live(path: Path, changed: int) -> tuple[PriceRow, ...]:
    """Return the rows. `changed` is only there to make the cache distinguish versions of the file."""
    live = _read_price_file(path)
    fresh = {row.provider for row in live}
    return (*(row for row in shipped_prices() if row.provider not in fresh), *live)


# How far a price moves with the square root of the months since it was read: the half width of the 80 % interval, in
# logarithms. The value is assumed, because the shipped lists have one date per provider and cannot show it. Published
# changes: H100 rents -43 % in the year to October 2025, +38 % in the 5 months after (SemiAnalysis as quoted: $2.99,
# $1.70, $2.35); AWS' P5 -44 % after 23 months (June 2025); Lambda's A100, 8 x V100 and A6000 +54, +44 and +36 % between
# the v5 and v8 lists of skypilot-catalog, about two years. That is 0.16, 0.14, 0.12, 0.09, 0.07 and 0.06; many other
# prices never changed.
DRIFT_PER_ROOT_MONTH = 0.10
_DAYS_PER_MONTH = 30.44


def drift_factor(age_days: int | None) -> float:
    """Return the factor within which a price stays after this many days in 8 of 10 cases. 1 if the age is unknown."""
    return math.exp(DRIFT_PER_ROOT_MONTH * math.sqrt(max(age_days or 0, 0) / _DAYS_PER_MONTH))


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


@cache
def _read_prices(path: Path) -> tuple[PriceRow, ...]:
    return _read_price_file(path)


def _read_price_file(path: Path) -> tuple[PriceRow, ...]:
    return tuple(
        _price(row, f"{path}, line {line}")
        for line, row in read_table(path, PRICE_COLUMNS, ("provider", "instance_type", "gpu", "gpu_count", "source"))
    )


def _price(row: Mapping[str, str], where: str) -> PriceRow:
    count = read_number(row, "gpu_count", 1.0, where)
    assert count is not None  # the column is required
    date = row["snapshot_date"]
    return PriceRow(
        provider=row["provider"],
        instance_type=row["instance_type"],
        region=row["region"],
        region_role=row["region_role"],
        gpu=row["gpu"],
        gpu_count=count,
        on_demand_usd_per_hour=read_number(row, "on_demand_usd_per_hour", 1.0, where),
        spot_usd_per_hour=read_number(row, "spot_usd_per_hour", 1.0, where),
        snapshot_date=datetime.date.fromisoformat(date) if date else None,
        source=row["source"],
        note=row["note"],
        vcpus=read_number(row, "vcpus", 1.0, where),
        ram_gb=read_number(row, "ram_gb", 1.0, where),
    )
