"""Every part of the program names the same price of so many cards, for all cards of the price lists."""

from __future__ import annotations

import json

import pytest

from advisor.cli import main
from advisor.errors import AdvisorError
from advisor.findings.make_case import make_case
from advisor.hardware.catalog import GpuSpec, load_gpus
from advisor.hardware.offers import cheapest_offer, offers_by_provider, rows_by_gpu
from advisor.hardware.prices import MARKETPLACES
from advisor.options import Goal
from advisor.planning.cards import card_rows
from advisor.planning.offers import offers_for
from advisor.prediction.profile import Profile
from tests.advisor.findings import build

COUNTS = (1, 2, 4, 8, 16)


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
    return [(specs[gpu], gpus) for gpu in sorted(rows_by_gpu()) for gpus in COUNTS]


@pytest.mark.parametrize("part", [page, plan, analysis, providers])
def test_every_part_names_the_same_price(part, pairs):
    """Two rules disagreed on 37 of 180: 16 V100 were 2.21 dollars to one and 12.64 to the other."""
    differ = [(s.key, n) for s, n in pairs if part(s, n) != getattr(cheapest_offer(s.key, n), "usd_per_hour", None)]
    assert (len(pairs), differ) == (230, [])


def test_the_command_and_the_audit_name_it_too(pairs, capsys):
    named = {}
    for gpus in COUNTS:
        with pytest.raises(SystemExit, match="0"):
            main(["gpus", "--gpus", str(gpus), "--json"])
        for card in json.loads(capsys.readouterr().out)["gpus"]:
            named[card["key"], gpus] = card["price"] and card["price"]["usd_per_hour"]
    for spec, gpus in pairs:
        offer = cheapest_offer(spec.key, gpus)
        assert named[spec.key, gpus] == (offer and offer.usd_per_hour)
        bills = [entry.on_demand.usd_per_hour for entry in offers_by_provider(spec.key, gpus) if entry.on_demand]
        assert offer.usd_per_hour in bills if offer else bills == []
