"""Live prices: traps rejected, cards told apart or left out, one broken provider of many, the user's cache."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.hardware.live_prices import _card, _row, _spot_joined, _thinned, refresh_prices
from advisor.hardware.offers import cheapest_offer, price_row
from advisor.hardware.price_hunt import FIELDS
from advisor.hardware.prices import live_prices_path, load_prices, price_problem, shipped_prices

TODAY = datetime.date(2026, 11, 21)
GOOD = dict(instance_name="g6.xlarge", location="us-east-1", price=0.81, cpu=4, memory=16.0, gpu_count=1,
            gpu_name="L4", gpu_memory=24.0, spot=False)  # fmt: skip
needs_gpuhunt = pytest.mark.skipif(find_spec("gpuhunt") is None, reason="the extra `prices` is not installed")


def row(**changes):
    return _row("aws", GOOD | changes, TODAY)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"price": 0.0}, "no price at all"),
        ({"price": 700.0}, "means that there is none"),
        ({"price": 0.02}, "host without its GPU"),
        (
            {"price": 5.0, "gpu_name": "H100NVL", "gpu_memory": 94.0, "gpu_count": 8, "instance_name": "x"},
            "host without its GPU",
        ),
        ({"price": 250.0}, "no rent"),
    ],
)
def test_traps_of_price_lists_are_rejected(changes: dict, words: str):
    assert words in price_problem(row(**changes), load_gpus())


def test_a_spot_price_equal_to_on_demand_is_none():
    both = dataclasses.replace(row(), spot_usd_per_hour=0.81)
    assert "on-demand price" in price_problem(both, load_gpus())
    (joined,) = _spot_joined([row(), row(spot=True)])
    assert (joined.on_demand_usd_per_hour, joined.spot_usd_per_hour) == (0.81, None)


def test_spot_keeps_its_range_over_regions():
    regions = [("us-east-1", 0.3), ("us-west-2", 0.5), ("eu-west-1", 0.4)]
    rows = [row(location=place, price=price, spot=True) for place, price in regions]
    kept = _thinned(_spot_joined([row(), *rows]))
    assert sorted(r.spot_usd_per_hour for r in kept) == [0.3, 0.5]


@pytest.mark.parametrize(
    "provider, item, key",
    [
        ("runpod", {"instance_name": "NVIDIA A100-SXM4-80GB", "gpu_name": "A100", "gpu_memory": 80.0}, "a100-80gb-sxm"),
        ("aws", {"instance_name": "p4d.24xlarge", "gpu_name": "A100", "gpu_memory": 40.0}, "a100-40gb-sxm"),
        ("nobody", {"instance_name": "h100-sxm-8", "gpu_name": "H100", "gpu_memory": 80.0}, "h100-80gb-sxm"),
        ("vast", {"instance_name": "123", "gpu_name": "RTX4090", "gpu_memory": 24.0}, "rtx-4090"),
        ("vast", {"instance_name": "123", "gpu_name": "RTX6000Ada", "gpu_memory": 48.0}, "rtx-6000-ada"),
        ("vast", {"instance_name": "123", "gpu_name": "B200", "gpu_memory": 180.0}, "b200"),
    ],
)
def test_cards_are_found_by_machine_driver_name_or_memory(provider: str, item: dict, key: str):
    assert _card(provider, GOOD | item).key == key


@pytest.mark.parametrize("item", [{"gpu_name": "H100", "gpu_memory": 80.0}, {"gpu_name": "RTX3060", "gpu_memory": 8.0}])
def test_a_card_that_could_be_several_is_named_and_left_out(item: dict):
    assert _row("vast", GOOD | item | {"instance_name": "123"}, TODAY).startswith(item["gpu_name"])


def write_lists(folder: Path, lists: dict[str, list[dict]]) -> None:
    """Price lists as gpuhunt reads them from disk."""
    for provider, items in lists.items():
        with (folder / f"{provider}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*FIELDS, "disk_size", "gpu_vendor", "flags"])
            writer.writeheader()
            writer.writerows({"gpu_vendor": "nvidia", **item} for item in items)


@needs_gpuhunt
def test_one_broken_provider_does_not_break_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Real child process, gpuhunt reading lists from disk; providers without a list or network fail alone."""
    items = [GOOD | {"price": 0.55}, GOOD | {"price": 0.2, "spot": True}, GOOD | {"price": 700.0, "location": "x"}]
    write_lists(tmp_path, {"aws": items})
    (tmp_path / "gcp.csv").write_text("instance_name,price\nbroken,not a number\n")
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    done = refresh_prices(TODAY, budget_seconds=10)
    assert {r.provider for r in done.rows} == {"aws"} and {"gcp", "azure"} <= set(done.failures)
    assert done.rejected == 1
    assert live_prices_path().is_file()
    fresh = cheapest_offer("l4", providers=("aws",))
    assert (
        fresh.usd_per_hour == 0.55
        and price_row(fresh).age_days(TODAY) == 0
        and price_row(fresh).spot_usd_per_hour == 0.2
    )
    others = {r for r in shipped_prices() if r.provider != "aws"}
    assert others <= set(load_prices()) and len(load_prices()) == len(others) + len(done.rows)


@needs_gpuhunt
def test_nobody_answering_leaves_the_shipped_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUHUNT_CATALOG_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    with pytest.raises(AdvisorError, match="no provider gave a price"):
        refresh_prices(TODAY, budget_seconds=6)
    assert load_prices() == shipped_prices()


def test_every_answer_of_the_child_is_one_line(tmp_path: Path):
    """It ends by itself within its time whatever the network does."""
    command = [sys.executable, "-m", "advisor.hardware.price_hunt", "1.5"]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and {"aws", "vastai"} <= {a["provider"] for a in answers}
    assert all(("items" in a) != ("error" in a) for a in answers)
