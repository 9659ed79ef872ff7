"""What renting a GPU costs, by one price on every screen; and links between GPUs."""

from __future__ import annotations

import csv
import datetime
import json
import math
from dataclasses import replace

import pytest

from advisor.cli import main
from advisor.errors import AdvisorError
from advisor.findings.make_case import make_case
from advisor.hardware.catalog import GpuSpec, load_gpus, read_link
from advisor.hardware.offers import (
    cheapest_offer,
    check_providers,
    expected_price,
    offers_by_provider,
    price_row,
    read_providers,
    unpriced,
)
from advisor.hardware.prices import MARKETPLACES, load_prices, price_list
from advisor.offer import seller_of
from advisor.options import Goal
from advisor.planning.offers import offers_for
from advisor.planning.what_fits import card_rows
from advisor.prediction.profile import Profile
from advisor.report.gpu_rows import offer_notes, offer_rows
from advisor.store.folders import profiles_folder
from tests.advisor.findings import build
from tests.terminal import advisor

COUNTS = (1, 2, 4, 8, 16)
PAIRS = [(gpu, gpus) for gpu in sorted(price_list().by_gpu) for gpus in COUNTS]


TODAY = datetime.date(2026, 11, 29)
MARKETS = ("vast", "runpod-community", "openrelay", "prime-intellect", "spheron", "tensordock")
NO_DATE = datetime.date(2025, 9, 1)  # the undated lists have a format of September 2025 or later


def by_hand(gpu: str, gpus: int) -> float | None:
    """The rule in words of the price list: machines of 8 or of all the cards, or of a rack of the NVL72 kind.

    The cheapest is that of the upper quartile of today's price: 0.07 a root month, 0.30 on a market, more if copied.
    """
    with (profiles_folder() / "prices.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu and row["on_demand_usd_per_hour"]]
    least = 1 if gpu in ("gb200", "gb300") else min(gpus, 8)
    bills = []
    for row in rows:
        counts = [float(count) for count in row["gpu_count"].split(";")]
        day = datetime.date.fromisoformat(row["snapshot_date"]) if row["snapshot_date"] else NO_DATE
        sure = math.hypot(0.07 * math.sqrt((TODAY - day).days / 30.44), 0.3 * (row["provider"] in MARKETS))
        sure += {"": 0.0, "list": 0.03, "loose list": 0.1}[row["origin"]]
        for count in counts:
            usd = math.ceil(gpus / count) * float(row["on_demand_usd_per_hour"]) * count / counts[0]
            if count >= least:
                bills.append((row["provider"] in MARKETS, not row["snapshot_date"], usd * math.exp(0.67 * sure), usd))
    return min(bills)[3] if bills else None


@pytest.mark.parametrize("gpus", COUNTS)
def test_every_card_costs_what_the_list_says(gpus: int):
    for gpu, count in PAIRS:
        if count == gpus:
            offer = cheapest_offer(gpu, gpus, today=TODAY)
            assert (offer and offer.usd_per_hour) == pytest.approx(by_hand(gpu, gpus)), gpu


def test_an_offer_is_whole_machines():
    for gpu, gpus in (("l4", 1), ("l4", 3), ("h100-80gb-sxm", 8), ("h100-80gb-sxm", 16), ("v100-32gb-sxm2", 1)):
        offer = cheapest_offer(gpu, gpus)
        row = price_row(offer)
        assert row.gpu == gpu and offer.rented == row.gpu_count * offer.machines >= gpus
        assert offer.usd_per_hour == pytest.approx(offer.machines * row.on_demand_usd_per_hour)
        assert offer.usd_per_gpu_hour == pytest.approx(offer.usd_per_hour / offer.rented)
        assert seller_of(row.provider) in offer.source and row.instance_type in offer.source


def test_prices_by_provider_and_unknown():
    assert cheapest_offer("l4", providers=("aws",)).provider == "aws"
    assert cheapest_offer("rtx-2080ti") is None
    assert cheapest_offer("l4", providers=("nobody",)) is None
    # a marketplace offer only by name, or where nobody else has the card
    assert cheapest_offer("h100-80gb-sxm").provider not in MARKETS
    assert cheapest_offer("h100-80gb-sxm", providers=("vast",)).provider == "vast"
    assert cheapest_offer("rtx-3090ti").provider in MARKETS
    with pytest.raises(AdvisorError, match="unknown provider 'lamda'") as caught:
        check_providers(("aws", "lamda"))
    assert "did you mean lambda" in caught.value.hint


def test_what_nobody_rents_has_no_price():
    """Lambda and others rent a GH200 one by one: two share no link. No list has a TPU v4."""
    assert cheapest_offer("gh200-96gb", 1) and cheapest_offer("gh200-96gb", 2) is None
    assert unpriced("gh200-96gb", 2).source == "no provider offers 2 x gh200-96gb together"
    assert unpriced("tpu-v4", 2).source == "no price known for tpu-v4"
    aws = unpriced("l40", 1, ("aws",))
    assert aws.source == "no price known for l40 at aws" and 0.3 < aws.likely_usd_per_gpu_hour[0] < 3.0
    assert unpriced("gh200-96gb", 2).usd_per_gpu_hour is None and unpriced("gh200-96gb", 2).machines == 1


def test_the_age_of_a_price():
    aws = price_row(cheapest_offer("l4", providers=("aws",)))
    assert aws.snapshot_date == datetime.date(2026, 7, 20)
    assert aws.age_days(datetime.date(2026, 8, 1)) == 12
    noted = cheapest_offer("a10", providers=("oci",))  # its list has no date, only a format from September 2025 on
    assert price_row(noted).snapshot_date is None and price_row(noted).age_days(datetime.date(2026, 8, 1)) == 334
    assert "2025-09 or later" in noted.source
    silent = replace(price_row(noted), note="")
    assert silent.age_days(datetime.date(2026, 8, 1)) is None and silent.dated == "undated"


def test_no_run_is_planned_on_an_outlier_among_spot_prices():
    """AWS's p4d at 2.4655 of 21.957642 dollars was one zone's."""
    rows = price_list().by_gpu
    [p4d] = [row for row in rows["a100-40gb-sxm"] if row.instance_type == "p4d.24xlarge"]
    outlier = replace(p4d, spot_usd_per_hour=2.4655)
    assert outlier.usual_spot_usd_per_hour is None
    one = {"a100-40gb-sxm": [outlier]}
    assert cheapest_offer("a100-40gb-sxm", 8, spot=True, rows=one) is None
    assert cheapest_offer("a100-40gb-sxm", 8, rows=one).usd_per_hour == p4d.on_demand_usd_per_hour


def test_of_two_prices_the_one_that_is_surely_low_counts():
    """An old list is not cheaper because it fell behind; one without a date counts only where no other is."""
    [row] = [row for row in load_prices() if row.provider == "oci" and row.instance_type == "BM.GPU.H100.8"]
    today = datetime.date(2026, 11, 29)
    fresh = replace(row, provider="fresh", snapshot_date=today, on_demand_usd_per_hour=10.0)
    old = replace(fresh, provider="old", snapshot_date=datetime.date(2025, 11, 29), on_demand_usd_per_hour=9.0)
    undated = replace(fresh, provider="undated", snapshot_date=None, on_demand_usd_per_hour=1.0)
    # a year: exp(0.67 x 0.07 x sqrt(12)) = 1.176
    assert old.deviation(today, spot=False) == pytest.approx(0.07 * math.sqrt(365 / 30.44))
    for cheap, winner in ((9.0, "fresh"), (8.4, "old")):
        rows = {row.gpu: [fresh, replace(old, on_demand_usd_per_hour=cheap), undated]}
        offer = cheapest_offer(row.gpu, 8, rows=rows, today=today)
        assert offer.provider == winner and offer.usd_per_hour == {"fresh": 10.0, "old": 8.4}[winner]
    assert cheapest_offer(row.gpu, 8, rows={row.gpu: [undated]}, today=today).provider == "undated"
    copied = replace(fresh, origin="loose list", snapshot_date=datetime.date(2026, 8, 29))
    assert copied.deviation(today, spot=False) == pytest.approx(0.07 * math.sqrt(92 / 30.44) + 0.1)
    market = replace(fresh, provider="vast")
    assert (market.deviation(today, spot=False), market.deviation(today, spot=True)) == (0.3, 0.5)


def test_providers_are_known_by_what_people_call_them():
    for said, listed in (("oracle", "oci"), ("DigitalOcean", "do"), ("runpod", "runpod"), ("Google", "gcp")):
        assert read_providers((said,)) == (listed,)
    found = json.loads(advisor("gpus", "l40", "--provider", "DataCrunch", "--json", expect=0).stdout)
    low, high = expected_price("l40", "verda")[0] - 0.4, expected_price("l40", "verda")[0] + 0.4
    assert found["price"] is None and found["prices"] == []
    likely = found["likely_usd_per_gpu_hour"]
    assert likely["low"] < math.exp(low) < math.exp(high) < likely["high"]
    for words in (("--finetune", "qlora", "--examples", "1k"), ("--layout", "any")):
        done = advisor("plan", "--gpu", "h100", "--model", "llama-3.1-8b", *words, "--provider", "nobody")
        assert done.returncode == 2 and "unknown provider 'nobody'" in done.stderr


def test_a_seller_without_a_price_is_believed_to_ask_what_it_asks_elsewhere():
    """A seller at twice the others' prices for two GPUs is expected near twice of them for a third."""
    [row] = [row for row in load_prices() if row.provider == "oci" and row.instance_type == "BM.GPU.H100.8"]
    rows = {
        gpu: [
            replace(row, gpu=gpu, provider=name, gpu_count=1, on_demand_usd_per_hour=usd)
            for name, usd in (("a", 1.0), ("b", 1.0), ("dear", 2.0))
            if (gpu, name) != ("l4", "dear")
        ]
        for gpu in ("l4", "t4", "a10")
    }
    middle, deviation = expected_price("l4", "dear", rows)
    share = 0.10 / (0.10 + 0.12 / 2)
    assert middle == pytest.approx(share * math.log(2))
    assert deviation == pytest.approx(math.sqrt((1 - share) * 0.10 + 0.12))
    assert expected_price("l4", "a", {"l4": rows["l4"][:1]}) is None


def test_the_range_of_a_spot_price_is_that_of_one_providers_one_machine():
    """GCP's g2 of one L4 in two regions; AWS lists its eight H100 in one."""
    l4, h100 = (cheapest_offer(gpu, n, spot=True, today=TODAY) for gpu, n in (("l4", 1), ("h100-80gb-sxm", 8)))
    assert (l4.provider, l4.usd_per_hour, l4.most_usd_per_hour) == ("gcp", 0.3106, 0.3973)
    assert (h100.provider, h100.usd_per_hour, h100.most_usd_per_hour) == ("aws", 11.2543, 11.2543)
    for gpu, gpus in PAIRS:
        offer = cheapest_offer(gpu, gpus, spot=True)
        assert offer is None or offer.most_usd_per_hour >= offer.usd_per_hour


def test_all_who_have_a_card_are_listed():
    """Verda rents its H200 one by one."""
    entries = offers_by_provider("h200-141gb-sxm", 8)
    assert {entry.provider for entry in entries} == {row.provider for row in price_list().by_gpu["h200-141gb-sxm"]}
    bills = [entry.on_demand.usd_per_hour for entry in entries if entry.on_demand]
    ranks = [entry.on_demand.rank for entry in entries if entry.on_demand]
    assert ranks == sorted(ranks) and len(bills) < len(entries)
    assert all(entry.on_demand == cheapest_offer("h200-141gb-sxm", 8, providers=(entry.provider,)) for entry in entries)
    today = TODAY
    assert "Verda: rents no 8 of them together" in offer_notes(entries, 8)
    assert "verda" not in {row["provider"] for row in offer_rows(entries, today)}
    assert not any("of them together" in note for note in offer_notes(offers_by_provider("h200-141gb-sxm"), 1))
    only = {
        "b200": [
            replace(row, on_demand_usd_per_hour=None)
            for row in price_list().by_gpu["b200"]
            if row.provider == "coreweave"
        ]
    }
    assert cheapest_offer("b200", 8, rows=only) is None and cheapest_offer("b200", 8, spot=True, rows=only)


MANY = (1, 2, 4, 8, 16)


def no_profile(key: str) -> Profile:
    raise AdvisorError(f"nothing is believed of {key}")


def page(spec: GpuSpec, gpus: int) -> float | None:
    """The page GPUs: the price does not wait for a prediction."""
    [row] = card_rows(Goal(gpu="any", gpus=gpus, depth=2), [spec], no_profile)
    return row.price and row.price.usd_per_hour


def plan(spec: GpuSpec, gpus: int) -> float | None:
    offers = offers_for(Goal(gpu=spec.key, gpus=gpus), spec.key, gpus)
    return offers[0].usd_per_hour if offers else None


def analysis(spec: GpuSpec, gpus: int) -> float | None:
    run = build.run(steps=3, facts={"gpu": spec.key, "world_size": gpus})
    return make_case(run).usd_per_hour


def providers(spec: GpuSpec, gpus: int) -> float | None:
    """The table of all who rent a card; marketplaces are in it by name."""
    entries = [entry for entry in offers_by_provider(spec.key, gpus) if entry.on_demand]
    listed = [entry for entry in entries if entry.provider not in MARKETPLACES] or entries
    return listed[0].on_demand.usd_per_hour if listed else None


@pytest.fixture(scope="module")
def pairs() -> list[tuple[GpuSpec, int]]:
    specs = load_gpus()
    return [(specs[gpu], gpus) for gpu in sorted(price_list().by_gpu) for gpus in MANY]


@pytest.mark.parametrize("part", [page, plan, analysis, providers])
def test_every_part_names_the_same_price(part, pairs):
    """Two rules disagreed on 37 of 180: 16 V100 were 2.21 dollars to one and 12.64 to the other."""
    differ = [(s.key, n) for s, n in pairs if part(s, n) != getattr(cheapest_offer(s.key, n), "usd_per_hour", None)]
    assert (len(pairs), differ) == (230, [])


def test_the_command_and_the_audit_name_it_too(pairs, capsys):
    named = {}
    for gpus in MANY:
        with pytest.raises(SystemExit, match="0"):
            main(["gpus", "--gpus", str(gpus), "--json"])
        for card in json.loads(capsys.readouterr().out)["gpus"]:
            named[card["key"], gpus] = card["price"] and card["price"]["usd_per_hour"]
    for spec, gpus in pairs:
        offer = cheapest_offer(spec.key, gpus)
        assert named[spec.key, gpus] == (offer and offer.usd_per_hour)
        bills = [entry.on_demand.usd_per_hour for entry in offers_by_provider(spec.key, gpus) if entry.on_demand]
        assert offer.usd_per_hour in bills if offer else bills == []


@pytest.mark.parametrize(
    ("text", "generation", "gigabytes", "gpus"),
    [
        ("nvlink4 900", "nvlink4", 450, 8),
        ("pcie4x16 64", "pcie4x16", 32, 8),
        ("nvlink3-bridge 112.5; pcie4x16 64", "pcie4x16", 32, 8),
        ("nvlink5 1800 (NVL72); nvlink-c2c 900", "nvlink5", 900, 72),
        ("nvlink-c2c 900; nvlink4 900", "nvlink4", 450, 8),
        ("roce 600 (24x100GbE, 21 in-node)", "roce", 300, 8),
    ],
)
def test_link_is_read_past_bridges_and_host_links(text: str, generation: str, gigabytes: float, gpus: int):
    link = read_link(text)
    assert (link.generation, link.bytes_per_second, link.gpus) == (generation, gigabytes * 1e9, gpus)


def test_every_catalog_interconnect_is_read_or_names_no_rate():
    for spec in load_gpus().values():
        assert (read_link(spec.interconnect) is None) == (not any(c.isdigit() for c in spec.interconnect))
