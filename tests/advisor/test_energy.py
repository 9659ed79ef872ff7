"""Energy and cost against the sources' worked runs (§6.4)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.prediction.intervals import known
from advisor.prediction.power import carbon_kg, datasheet_power, energy_kwh, measured_power, run_cost_usd
from advisor.records import Basis, Estimate
from tests.terminal import advisor, document


def test_energy_of_the_published_runs():
    assert energy_kwh(known(27.5 * 3600), known(2 * 680.0)).value == pytest.approx(37.4)
    assert energy_kwh(known(29.2 * 3600), known(56.0)).value == pytest.approx(1.635, abs=0.001)


def test_unknown_power_stays_unknown():
    assert datasheet_power(None) is None and measured_power([], [], 700.0) is None
    unknown = known(math.nan)
    kwh = energy_kwh(known(3600.0), unknown)
    assert math.isnan(kwh.value) and math.isnan(kwh.low) and math.isnan(kwh.high)
    assert math.isnan(run_cost_usd(known(3600.0), known(0.0), kwh, 0.30).value)
    assert math.isnan(run_cost_usd(known(3600.0), unknown, known(1.0)).value)
    assert run_cost_usd(known(3600.0), known(2.0), kwh).value == 2.0  # without a tariff energy costs nothing


def test_two_published_boards_lie_inside_the_prior():
    """Sources §6.4: two H100 at an MFU of 44 % drew 681 and 673 of 700 W; an L4 56 of its 72 W, its MFU not known."""
    board = datasheet_power(700.0)
    low, _, high = board.sides(0.44)
    assert board.basis == Basis.PRIOR and low <= 673.0 < 681.0 <= high <= 700.0
    low, _, high = datasheet_power(72.0).sides(math.nan)
    assert low <= 56.0 <= high


def test_cost_is_rent_plus_energy():
    seconds = Estimate(value=7200.0, low=6480.0, high=7920.0, basis=Basis.MEASURED)
    kwh = energy_kwh(seconds, known(1000.0))
    assert kwh.value == pytest.approx(2.0) and kwh.low == pytest.approx(1.8) and kwh.high == pytest.approx(2.2)
    cost = run_cost_usd(seconds, known(3.0), kwh, 0.25)
    assert cost.value == pytest.approx(6.0 + 0.5)
    assert (cost.low, cost.high) == (pytest.approx(5.4 + 0.45), pytest.approx(6.6 + 0.55))
    assert run_cost_usd(seconds, known(0.0), kwh).value == 0.0


def test_power_follows_the_load_and_stops_at_the_cap():
    """Sources §7.4: at least 90 % of the limit with dense kernels, at most half when launches bound the step."""
    board = datasheet_power(700.0)
    assert board.sides(0.6)[1] >= 0.9 * 700 and board.sides(0.01)[1] <= 0.52 * 700
    assert board.sides(0.225)[1] == pytest.approx((0.5 + 0.225) * 700)
    assert board.sides(0.6, 500.0)[1:].tolist() == [500.0, 500.0]
    assert (board.sides(0.6, 900.0) == board.sides(0.6)).all()


@given(st.floats(0, 2), st.floats(0, 2), st.floats(1, 2000), st.one_of(st.none(), st.floats(1, 2000)))
def test_more_load_never_draws_less_and_nothing_draws_more_than_its_limit(one, other, tdp, cap):
    (low, less, high), (_, more, _) = (datasheet_power(tdp).sides(mfu, cap) for mfu in sorted((one, other)))
    assert less <= more and low <= less <= high <= min(tdp, cap or tdp)


def test_bursts_give_the_line_through_their_watts():
    """100 W at rest and 1,000 W per unit of MFU, by hand: 300 W at 20 %, 500 W at 40 %."""
    power = measured_power([0.1, 0.2, 0.3, 0.4], [200.0, 300.0, 400.0, 500.0], 700.0)
    assert power.basis == Basis.MEASURED and power.sides(0.2)[1] == pytest.approx(300.0)
    assert power.sides(0.4)[1] == pytest.approx(500.0)
    assert power.sides(0.4)[2] == pytest.approx(500.0 + 0.05 * 350.0)  # no scatter: five per cent of their mean
    level = measured_power([0.30, 0.31], [400.0, 420.0], 700.0)
    assert level.sides(0.05)[1] == level.sides(0.45)[1] == pytest.approx(410.0)
    falling = measured_power([0.1, 0.4], [500.0, 300.0], 700.0)
    assert falling.sides(0.4)[1] == pytest.approx(400.0)


def test_carbon_is_the_sites_energy_at_a_stated_grid():
    """Sources §6.4: us-central1 has 430 g/kWh; world 475. Host and cooling are on top of the boards."""
    found = carbon_kg(known(37.4), 430.0)
    assert found.low == pytest.approx(37.4 * 1.21 * 0.43, rel=0.01) and found.contains(37.4 * 1.1 * 1.15 * 0.43)
    assert carbon_kg(known(1.0)).value == pytest.approx(0.475 * 1.4375)
    assert carbon_kg(None) is None


LAYOUT = "plan --layout any --gpu h100-80gb-sxm --gpus 64 --model llama-3-8b --tokens 100B"
TUNED = "plan --gpu h100-80gb-sxm --finetune full --gpus 8 --model llama-3-8b --examples 100k"


def first_row(words: str, *more: str) -> tuple[float, float | None, float, int]:
    """The hours, dollars, MFU and GPUs of the chosen run of a layout or a fine-tune."""
    run = document(*words.split(), *more, expect=None)["chosen"]
    seconds, usd = run["bill"]["wall_clock"]["total_seconds"]["value"], run["bill"]["cost_usd"]
    return seconds / 3600, usd and usd["value"], run["prediction"]["mfu"]["value"], run["offer"]["gpus"]


@pytest.mark.parametrize("words", [LAYOUT, TUNED])
def test_the_tariff_pays_for_the_energy_of_the_site_of_layouts_and_fine_tunes(words):
    """700 W cards draw half of that and, up to an MFU of 45 %, as much as 95 %; hosts and cooling add 44 %."""
    free = first_row(words, "--price", "0")
    hours, usd, mfu, gpus = first_row(words, "--price", "0", "--kwh-price", "0.3")
    kwh = gpus * 0.7 * (0.5 + 0.45 * min(mfu, 0.45) / 0.45) * hours
    assert free[1] == 0.0 and usd == pytest.approx(0.3 * 1.15 * 1.25 * kwh, rel=0.01)
    rented = first_row(words, "--price", "2")[1]
    assert first_row(words, "--price", "2", "--kwh-price", "0.3")[1] == pytest.approx(rented + usd, rel=0.01)


@pytest.mark.parametrize("words", [LAYOUT, TUNED])
def test_stated_interruptions_lengthen_layouts_and_fine_tunes_and_their_bill(words):
    calm, rare, often = (first_row(words, "--price", "2", *more) for more in (
        (), ("--interruptions", "1000h"), ("--interruptions", "6h")))  # fmt: skip
    assert often[0] > 1.05 * rare[0] and calm[0] == pytest.approx(rare[0], rel=0.05)
    assert often[1] / often[0] == pytest.approx(calm[1] / calm[0], rel=1e-3)  # dollars an hour


def test_a_tariff_is_of_the_own_machine_alone_where_others_are_rented():
    words = "plan --finetune lora --model llama-3-8b --examples 10k --own 1xrtx-4090 --gpu l4 --price l4=2"
    usd, before = ({}, {})
    for dollars, more in ((usd, ("--kwh-price", "0.3")), (before, ())):
        plan = document(*words.split(), *more, expect=None)
        for run in (plan["chosen"], *plan["search"]["machines"]):
            dollars[run["offer"]["gpu"]] = run["bill"]["cost_usd"]["value"]
    assert usd["l4"] == before["l4"] and usd["rtx-4090"] > before["rtx-4090"] == 0


def test_a_layout_that_interruptions_keep_from_ending_names_what_ends_it():
    refused = advisor(*LAYOUT.split(), "--interruptions", "1min", expect=3, COLUMNS=1000).stderr
    assert "64 x h100-80gb-sxm (one machine is taken away every" in refused and "it never ends" in refused
    assert "hint: feasible with machines on demand: --spot none, without --interruptions" in refused
    advisor(*LAYOUT.split(), "--spot", "none", expect=0)
