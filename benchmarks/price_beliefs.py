"""Score what the program believes of a rental price on sellers and days that it does not know.

    python benchmarks/price_beliefs.py                 sellers of profiles/prices.csv, each price without itself
    python benchmarks/price_beliefs.py FILE [--since]  dated prices of FILE: what an older row says of the newest one

FILE is a CSV with the columns gpu, provider, usd_per_gpu_hour, spot, gpus_per_machine, date, kind ("third-party list"
or other) and notes. For each seller and GPU the newest price since `--since` is the truth, and the belief comes from
the newest row before. The 80 % interval should hold eight of ten, each seller counted once.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

from advisor.hardware.offers import expected_price
from advisor.hardware.prices import PriceRow, price_list
from advisor.laws.intervals import Z80

NO_PRICE = ("GPU alone", "GPU only", "mean of", "average", "starting", "from the FAQ", "stale", "cheapest", "one offer")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One price and what was believed of it."""

    provider: str
    kind: str
    error: float  # log of the price over the believed one
    deviation: float

    @property
    def inside(self) -> bool:
        """Tell whether the price is in the 80 % interval."""
        return abs(self.error) <= Z80 * self.deviation


def sellers_left_out() -> list[Scored]:
    """Return each seller's lowest price of each GPU, believed from all other prices."""
    rows, scored = price_list().by_gpu, []
    lowest: dict[tuple[str, str], float] = {}
    for gpu, of_gpu in rows.items():
        for row in of_gpu:
            if row.on_demand_usd_per_hour and row.snapshot_date and row.gpu_count >= 1:
                key = gpu, row.provider
                lowest[key] = min(lowest.get(key, math.inf), row.on_demand_usd_per_hour / row.gpu_count)
    for (gpu, provider), usd in lowest.items():
        if expected := expected_price(gpu, provider, rows):
            error = math.log(usd) - expected[0]
            scored.append(Scored(provider=provider, kind="by others", error=error, deviation=expected[1]))
    return scored


def days_left_out(path: str, since: datetime.date) -> list[Scored]:
    """Return the newest price of each seller and GPU, believed from the newest row before `since`."""
    rows: dict[tuple[str, str], list[PriceRow]] = defaultdict(list)
    with open(path, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["spot"] == "no" and not any(word in line["notes"] for word in NO_PRICE):
                rows[line["provider"], line["gpu"]].append(_row(line))
    scored = []
    for (provider, _), of_seller in rows.items():
        of_seller.sort(key=_day)
        older = [row for row in of_seller if _day(row) < since]
        newest = of_seller[-1]
        if older and _day(newest) >= since:
            assert newest.on_demand_usd_per_hour and older[-1].on_demand_usd_per_hour
            error = math.log(newest.on_demand_usd_per_hour / older[-1].on_demand_usd_per_hour)
            sure = older[-1].deviation(_day(newest), spot=False)
            scored.append(Scored(provider=provider, kind="by an older row", error=error, deviation=sure))
    return scored


def _row(line: dict[str, str]) -> PriceRow:
    loose = not line["gpus_per_machine"] or "not stated" in line["notes"]
    return PriceRow(
        provider=line["provider"],
        instance_type=line["gpu"],
        region="",
        region_role="",
        gpu=line["gpu"],
        gpu_count=1.0,
        on_demand_usd_per_hour=float(line["usd_per_gpu_hour"]),
        spot_usd_per_hour=None,
        snapshot_date=datetime.date.fromisoformat(line["date"]),
        source="",
        note="",
        origin="" if line["kind"] != "third-party list" else "loose list" if loose else "list",
    )


def _day(row: PriceRow) -> datetime.date:
    assert row.snapshot_date
    return row.snapshot_date


def main() -> None:
    """Print the share inside, each seller counted once, and the sellers that are most often outside."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--since", type=datetime.date.fromisoformat, default=datetime.date(2026, 9, 1))
    typed = parser.parse_args()
    scored = sellers_left_out() + (days_left_out(typed.file, typed.since) if typed.file else [])
    for kind in dict.fromkeys(one.kind for one in scored):
        of_kind, sellers = [one for one in scored if one.kind == kind], defaultdict(list)
        for one in of_kind:
            sellers[one.provider].append(one.inside)
        moved = [one.inside for one in of_kind if abs(one.error) > 0.005]
        width = math.expm1(Z80 * statistics.median(one.deviation for one in of_kind))
        print(f"{kind}: {sum(one.inside for one in of_kind)} of {len(of_kind)} prices inside, {len(sellers)} sellers")
        print(f"  each seller counted once: {statistics.fmean(map(statistics.fmean, sellers.values())):.0%} inside")
        print(f"  of those that changed: {sum(moved)} of {len(moved)} inside; median width ±{width:.0%}")
        worst = sorted(sellers.items(), key=lambda item: -item[1].count(False))[:6]
        print(
            "  most often outside:", ", ".join(f"{name} {found.count(False)} of {len(found)}" for name, found in worst)
        )


if __name__ == "__main__":
    main()
