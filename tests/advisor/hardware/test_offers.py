"""What so many cards cost, against the rows of profiles/prices.csv read here by hand."""

from __future__ import annotations

import csv
import datetime
import math
from dataclasses import replace

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.offers import (
    cheapest_offer,
    check_providers,
    offers_by_provider,
    price_row,
    rows_by_gpu,
    unpriced,
)
from advisor.hardware.prices import load_prices
from advisor.report.cards import offer_notes, offer_rows
from advisor.store.folders import profiles_folder

COUNTS = (1, 2, 4, 8, 16)
PAIRS = [(gpu, gpus) for gpu in sorted(rows_by_gpu()) for gpus in COUNTS]


def by_hand(gpu: str, gpus: int) -> float | None:
    """The rule in words of the price list: machines of 8 or of all the cards, or of a rack of the NVL72 kind."""
    with (profiles_folder() / "prices.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu and row["on_demand_usd_per_hour"]]
    least = 1 if gpu in ("gb200", "gb300") else min(gpus, 8)
    bills = [
        (row["provider"] == "vast", math.ceil(gpus / float(row["gpu_count"])) * float(row["on_demand_usd_per_hour"]))
        for row in rows
        if float(row["gpu_count"]) >= least
    ]
    return min((usd for vast, usd in bills if not vast), default=min((usd for _, usd in bills), default=None))


@pytest.mark.parametrize("gpus", COUNTS)
def test_every_card_costs_what_the_list_says(gpus: int):
    for gpu, count in PAIRS:
        if count == gpus:
            offer = cheapest_offer(gpu, gpus)
            assert (offer and offer.usd_per_hour) == pytest.approx(by_hand(gpu, gpus)), gpu


def test_an_offer_is_whole_machines():
    for gpu, gpus in (("l4", 1), ("l4", 3), ("h100-80gb-sxm", 8), ("h100-80gb-sxm", 16), ("v100-32gb-sxm2", 1)):
        offer = cheapest_offer(gpu, gpus)
        row = price_row(offer)
        assert row.gpu == gpu and offer.rented == row.gpu_count * offer.machines >= gpus
        assert offer.usd_per_hour == pytest.approx(offer.machines * row.on_demand_usd_per_hour)
        assert offer.usd_per_gpu_hour == pytest.approx(offer.usd_per_hour / offer.rented)
        assert row.provider in offer.source and row.instance_type in offer.source
        better = [
            other
            for other in load_prices()
            if other.gpu == gpu
            and other.provider != "vast"
            and other.gpu_count >= gpus
            and (other.on_demand_usd_per_hour or 1e9) < offer.usd_per_hour
        ]
        assert better == []


def test_sixteen_v100_are_two_nodes():
    """Lambda asks 6.32 dollars for eight. Sixteen single cards at 0.1381 each are joined by no fast link."""
    offer = cheapest_offer("v100-16gb-sxm2", 16)
    assert (offer.usd_per_hour, offer.machines, offer.rented) == (2 * 6.32, 2, 16)


def test_idle_gpus_are_paid_for():
    one = cheapest_offer("v100-32gb-sxm2", 1)
    assert price_row(one).gpu_count == one.rented == 8
    eight = cheapest_offer("v100-32gb-sxm2", 8)
    assert one.usd_per_hour == eight.usd_per_hour
    # a GPU-hour of the list, not the whole node's price under a GPU's name
    assert one.usd_per_gpu_hour == eight.usd_per_gpu_hour == pytest.approx(eight.usd_per_hour / 8)


def test_prices_by_provider_and_unknown():
    assert cheapest_offer("l4", providers=("aws",)).provider == "aws"
    assert cheapest_offer("rtx-2080ti") is None
    assert cheapest_offer("l4", providers=("nobody",)) is None
    # a marketplace offer only by name, or where nobody else has the card
    assert cheapest_offer("h100-80gb-sxm").provider != "vast"
    assert cheapest_offer("h100-80gb-sxm", providers=("vast",)).provider == "vast"
    assert cheapest_offer("a40").provider == "vast"
    with pytest.raises(AdvisorError, match="unknown provider 'lamda'") as caught:
        check_providers(("aws", "lamda"))
    assert "did you mean lambda" in caught.value.hint


def test_what_nobody_rents_has_no_price():
    """Lambda and others rent a GH200 one by one: two share no link. No list has a TPU v4."""
    assert cheapest_offer("gh200-96gb", 1) and cheapest_offer("gh200-96gb", 2) is None
    assert unpriced("gh200-96gb", 2).source == "no provider offers 2 x gh200-96gb together"
    assert unpriced("tpu-v4", 2).source == "no price known for tpu-v4"
    assert unpriced("l40", 1, ("aws",)).source == "no price known for l40 at aws"
    assert unpriced("gh200-96gb", 2).usd_per_gpu_hour is None and unpriced("gh200-96gb", 2).machines == 1


def test_the_age_of_a_price():
    aws = price_row(cheapest_offer("l4", providers=("aws",)))
    assert aws.snapshot_date == datetime.date(2026, 7, 20)
    assert aws.age_days(datetime.date(2026, 8, 1)) == 12
    noted = cheapest_offer("l4", providers=("runpod",))  # its list has no date, only a format from September 2025 on
    assert price_row(noted).snapshot_date is None and price_row(noted).age_days(datetime.date(2026, 8, 1)) == 334
    assert "2025-09 or later" in noted.source
    silent = replace(price_row(noted), note="")
    assert silent.age_days(datetime.date(2026, 8, 1)) is None and silent.dated == "undated"


def test_no_run_is_planned_on_an_outlier_among_spot_prices():
    """AWS's p4d at 2.4655 of 21.957642 dollars is one zone's; the next offer for eight is Azure's at 5.904469."""
    [outlier] = [row for row in load_prices() if row.spot_usd_per_hour != row.usual_spot_usd_per_hour]
    assert (outlier.instance_type, outlier.spot_usd_per_hour) == ("p4d.24xlarge", 2.4655)
    offer = cheapest_offer("a100-40gb-sxm", 8, spot=True)
    assert (offer.provider, offer.usd_per_hour) == ("azure", 5.904469)
    assert cheapest_offer("a100-40gb-sxm", 8, spot=False).usd_per_hour <= 21.957642
    [aws] = [entry for entry in offers_by_provider("a100-40gb-sxm", 8) if entry.provider == "aws"]
    assert aws.spot is None or aws.spot.usd_per_hour > 2.4655


def test_the_range_of_a_spot_price_is_that_of_one_providers_one_machine():
    """GCP's g2 of one L4 in two regions; Nebius lists its eight H100 in one, and GCP asks five times that."""
    l4, h100 = cheapest_offer("l4", spot=True), cheapest_offer("h100-80gb-sxm", 8, spot=True)
    assert (l4.provider, l4.usd_per_hour, l4.most_usd_per_hour) == ("gcp", 0.3106, 0.3973)
    assert (h100.provider, h100.usd_per_hour, h100.most_usd_per_hour) == ("nebius", 10.0, 10.0)
    for gpu, gpus in PAIRS:
        offer = cheapest_offer(gpu, gpus, spot=True)
        assert offer is None or offer.most_usd_per_hour >= offer.usd_per_hour


def test_all_who_have_a_card_are_listed():
    """Verda rents its eight H200 one by one."""
    entries = offers_by_provider("h200-141gb-sxm", 8)
    assert {entry.provider for entry in entries} == {row.provider for row in rows_by_gpu()["h200-141gb-sxm"]}
    bills = [entry.on_demand.usd_per_hour for entry in entries if entry.on_demand]
    assert bills == sorted(bills) and len(bills) < len(entries)
    assert all(entry.on_demand == cheapest_offer("h200-141gb-sxm", 8, providers=(entry.provider,)) for entry in entries)
    today = datetime.date(2026, 11, 1)
    assert "verda: rents no 8 of them together" in offer_notes(entries, 8)
    assert "verda" not in {row["provider"] for row in offer_rows(entries, today)}
    assert not any("together" in note for note in offer_notes(offers_by_provider("h200-141gb-sxm"), 1))
    [spot_only] = [row for row in offer_rows(offers_by_provider("b200", 8), today) if row["provider"] == "verda"]
    assert spot_only["$/h"] == "-" and spot_only["spot $/h"] != "-"
