"""Printed numbers: units, ranges, and how exactly they were meant."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.auditing.quantity import figures, parse_quantity


@pytest.mark.parametrize(
    ("text", "low", "high", "dimension"),
    [
        ("~17.4 M", 17.4e6, 17.4e6, "count"),
        ("20-23 GB", 20e9, 23e9, "bytes"),
        ("28,481 MiB", 28481 * 2**20, 28481 * 2**20, "bytes"),
        ("43.8 %", 0.438, 0.438, "fraction"),
        ("1,217 ms", 1.217, 1.217, "seconds"),
        ("2-3 days", 172800, 259200, "seconds"),
        ("$20.44", 20.44, 20.44, "usd"),
        ("$0.70/h", 0.70, 0.70, "usd_per_hour"),
        ("5.2e72", 5.2e72, 5.2e72, "count"),
        ("178 k tok/s", 178e3, 178e3, "rate"),
        ("<2.7", -math.inf, 2.7, "count"),
        ("60-80+", 60, math.inf, "count"),
        (12800, 12800, 12800, "count"),
        ("7B", 7e9, 7e9, "count"),
        ("7 B", 7, 7, "bytes"),
        ("102 hours in all", 367200, 367200, "seconds"),
        ("1:30:00", 5400, 5400, "seconds"),
    ],
)
def test_a_printed_number_is_read_in_the_unit_of_the_house(text, low, high, dimension) -> None:
    quantity = parse_quantity(text)
    assert quantity.low == pytest.approx(low)
    assert quantity.high == pytest.approx(high)
    assert quantity.dimension == dimension


@pytest.mark.parametrize(
    ("text", "truth", "admitted"),
    [
        ("17.4 M", 17.44e6, True),  # rounds to it
        ("17.4 M", 17.6e6, False),
        ("~16 h", 16.9 * 3600, True),  # "about" gives a whole digit
        ("~16 h", 17.09 * 3600, False),
        ("~40 %", 0.4125, True),  # nobody prints 41 % after "about 40"
        ("20 GB", 21.4e9, True),  # meant as 20 GiB
        ("20 GiB", 20e9, False),
        ("430,600 tok/s", 430804, True),
        ("67 %", 0.688, False),
        ("60-80+", 1000, True),
        ("<2.7", 1.0, True),
    ],
)
def test_a_number_means_what_rounds_to_it(text: str, truth: float, admitted: bool) -> None:
    assert parse_quantity(text).admits(truth) is admitted


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("about 1.36B parameters", "~1.36 billion"),
        ("it took 14h 16m", "14.27 h"),
        ("$2.30/GPU/hr", "$2.30 /h"),
        ("500k-1M tokens", "0.5-1 M"),
        ("roughly 107k tokens/second", "~107 k tok/s"),
        ("12,000 GPU-hours", "12,000 GPU-h"),
        ("a ratio of 71:1", "71 x"),
        ("at 312 TFLOPS", "312 TFLOP/s"),
        ("~158M tokens/hour", "~158 M tok/h"),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, quantity: str) -> None:
    assert [f.quantity.text for f in figures(text)] == [quantity]


def test_names_dates_and_factors_are_no_quantities() -> None:
    assert figures("LLaMA-2 on 2026-02-05, see arXiv:2309.09530 and v1.2.3") == ()
    assert [f.quantity.text for f in figures("24 × 2048 on 8×H100")] == ["24", "2048", "8"]


@pytest.mark.parametrize("text", ["", "many", "5-3 h", "1e999", "--5", "nan", "inf"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity|unit|backwards|large"):
        parse_quantity(text)


@given(st.floats(min_value=1e-6, max_value=1e12), st.integers(min_value=0, max_value=6))
def test_every_number_is_admitted_by_its_own_rounding(number: float, digits: int) -> None:
    text = f"{number:.{digits}f}"
    if float(text) > 0:
        assert parse_quantity(text).admits(number)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        quantity = parse_quantity(text)
    except ValueError:
        return
    assert quantity.least <= quantity.most
