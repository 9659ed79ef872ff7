"""Numbers into words and back."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import units
from advisor.errors import AdvisorError
from advisor.records import Basis, Estimate
from advisor.units import (
    Formatter,
    format_bytes,
    format_centre,
    format_count,
    format_energy,
    format_error,
    format_estimate,
    format_loss,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_share,
    format_tokens,
    format_usd,
    format_usd_rate,
    parse_bytes,
    parse_deadline,
    parse_seconds,
    parse_tokens,
    parse_usd,
)

FORMATTERS = [format_usd, format_seconds, format_tokens, format_count, format_bytes, format_rate, format_percent]


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, basis=Basis.PRIOR)


@pytest.mark.parametrize(
    ("formatter", "value", "text"),
    [
        (format_seconds, 42, "42 s"),
        (format_loss, 3.0, "3.00"),  # as many digits as 2.95 beside it
        (format_share, 0.0977, "10 %"),
        (format_share, 0.00391, "0.4 %"),
        (format_seconds, 540, "9 min"),
        (format_seconds, 21 * 3600, "21 h"),
        (format_seconds, 3.2 * 86400, "3.2 days"),
        (format_seconds, 0.0123, "12.3 ms"),
        (format_seconds, 0, "0 s"),
        (format_seconds, 119.96, "2 min"),
        (format_usd, 0, "$0.00"),
        (format_usd, 0.0042, "$0.0042"),
        (format_usd, 0.0099996, "$0.01"),
        (format_usd, 0.0763, "$0.08"),
        (format_usd, 0.105, "$0.10"),
        (format_usd, 0.997, "$1"),
        (format_usd_rate, 0.526, "$0.526"),
        (format_usd, 24.5, "$24.50"),
        (format_usd, 1240, "$1,240"),
        (format_usd, -3.2, "-$3.20"),
        (format_tokens, 3.7e9, "3.7 B"),
        (format_tokens, 999_950, "1 M"),
        (format_tokens, 512, "512"),
        (format_count, 12_800, "12,800"),
        (format_count, 124_439_808, "124 M"),
        (format_bytes, 3 * 2**30, "3 GiB"),
        (format_bytes, 80 * 10**9, "74.5 GiB"),
        (format_rate, 430_600, "431 k tok/s"),
        (format_percent, 0.438, "43.8 %"),
        (format_energy, 0.25, "250 Wh"),
    ],
)
def test_formats(formatter: Formatter, value: float, text: str) -> None:
    assert formatter(value) == text


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_known_is_said(formatter: Formatter, value: float | None) -> None:
    assert formatter(value) == "unknown"


@pytest.mark.parametrize(
    ("formatter", "numbers", "text"),
    [
        (format_seconds, (21.3 * 3600, 19.1 * 3600, 24.2 * 3600), "21.3 h (19-24 h)"),
        (format_seconds, (21.37 * 3600, 20.9 * 3600, 21.8 * 3600), "21.4 h (20.9-21.8 h)"),
        (format_seconds, (95.2, 88.4, 103.6), "95.2 s (88-104 s)"),
        (format_usd, (24.31, 21.2, 28.4), "$24.30 ($21-28)"),
        (format_seconds, (45.4 * 3600, 38 * 3600, 62 * 3600), "45 h (38-62 h)"),
        (format_usd, (760, 610, 920), "$760 ($610-920)"),
        (format_seconds, (0.1849, 0.16, 0.22), "185 ms (160-220 ms)"),
        (format_seconds, (47, 46, 70), "47 s (46-70 s)"),  # to tens it would begin above its centre
        (format_usd, (19.98, 16.2, 24.4), "$20 ($16-24)"),
        (format_usd, (0.0, 0.0, 0.0), "$0.00"),
        (format_usd, (0.0763, 0.0702, 0.0831), "$0.08 ($0.07-0.08)"),
        (format_percent, (0.21, 0.02, 2.0), "21 % (2-200 %)"),
        (format_percent, (0.0, -0.03, 0.05), "0 % (-3 to 5 %)"),
        (format_usd, (0.0, -3.0, 5.0), "$0.00 (-$3 to $5)"),
        (format_tokens, (1e6, 1e6, 1e6), "1 M"),
        (format_seconds, (1.0, 0.9, math.inf), "1 s (interval unknown)"),
    ],
)
def test_estimates_show_what_the_interval_supports(formatter: Formatter, numbers: tuple, text: str) -> None:
    assert format_estimate(estimate(*numbers), formatter) == text


SPREAD = st.floats(min_value=0, max_value=9)
VALUES = st.floats(min_value=1e-3, max_value=1e9)


def printed_numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


@given(VALUES, SPREAD, SPREAD, st.sampled_from(FORMATTERS))
def test_a_printed_centre_lies_in_its_printed_interval(value, below, above, formatter) -> None:
    one = estimate(value, value / (1 + below), value * (1 + above))
    centre, *ends = printed_numbers(format_estimate(one, formatter))
    assert not ends or ends[0] <= centre <= ends[1]


@given(VALUES, SPREAD, SPREAD, st.sampled_from(FORMATTERS))
def test_a_centre_is_written_the_same_with_and_without_its_interval(value, below, above, formatter) -> None:
    one = estimate(value, value / (1 + below), value * (1 + above))
    assert format_estimate(one, formatter).partition(" (")[0] == format_centre(one, formatter)


@given(VALUES, st.floats(min_value=0, max_value=0.1), st.floats(min_value=0, max_value=0.1))
def test_a_centre_is_within_a_hundredth_where_the_interval_is_narrower_than_a_fifth(value, below, above) -> None:
    one = estimate(value, value * (1 - below), value * (1 + above))
    assert format_seconds.printed(one.value, one.low, one.high) == pytest.approx(value, rel=0.01)
    cent = format_usd.printed(one.value, one.low, one.high)
    assert cent == pytest.approx(value, rel=0.01, abs=0.005 + 1e-9)  # amounts have no half cents


@given(st.floats(min_value=1, max_value=50), SPREAD, SPREAD, st.floats(min_value=1, max_value=50))
def test_an_error_can_be_computed_again_from_the_printed_numbers(value, below, above, actual) -> None:
    one = estimate(value, value / (1 + below), value * (1 + above))
    promised, came = format_centre(one, format_number), format_number(actual)
    assert format_error(one, actual, format_number) == format_percent.change(float(came) / float(promised) - 1)


def test_an_error_without_both_numbers_is_a_dash() -> None:
    assert format_error(None, 1.0, format_number) == format_error(estimate(1, 1, 1), None, format_number) == "-"
    assert format_error(estimate(0, 0, 0), 1.0, format_number) == "-"
    assert format_error(estimate(0, 0, 0), 0.0, format_number) == "+0 %"
    assert format_error(estimate(0.1849, 0.16, 0.22), 0.193, format_seconds) == "+4.3 %"  # 193 over 185


def test_a_power_of_1024_is_one_of_its_unit() -> None:
    assert [format_bytes(2.0**power) for power in (10, 20, 30, 40)] == ["1 KiB", "1 MiB", "1 GiB", "1 TiB"]
    assert format_bytes(2**30 - 2**19) == "1 GiB"  # 1023.5 MiB: three figures would show 1,020 MiB
    assert format_bytes(1000 * 2**20) == "1,000 MiB"
    # what fits 79.6 GiB is not written as 80
    assert format_estimate(estimate(60 * 2**30, 49.8 * 2**30, 76.1 * 2**30), format_bytes) == "60 GiB (50-76 GiB)"


def test_numbers_that_no_quantity_can_have_are_unknown() -> None:
    assert format_percent(1.795e306) == format_seconds(-1.7e308) == "unknown"
    huge = Estimate(value=1e300, low=1e299, high=1e301, basis=Basis.PRIOR)
    assert format_estimate(huge, format_bytes) == "unknown"


def test_no_estimate_is_unknown() -> None:
    assert format_estimate(None, format_seconds) == "unknown"


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_shown_seconds_are_within_half_a_unit_of_the_third_figure(seconds: float) -> None:
    number, unit = format_seconds(seconds).replace(",", "").split()
    factor = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400}[unit]
    assert float(number) * factor == pytest.approx(seconds, rel=0.0051)


@given(
    st.floats(min_value=1e-3, max_value=1e9), st.floats(min_value=0, max_value=2), st.floats(min_value=0, max_value=2)
)
def test_the_interval_is_never_shown_as_zero_or_with_more_than_three_figures(value, below, above) -> None:
    text = format_estimate(estimate(value, value / (1 + below), value * (1 + above)), format_usd)
    numbers = text.translate(str.maketrans("$()-,", "    \n")).replace("\n", "").replace("M", "").split()
    for number in numbers:
        assert float(number) > 0
        assert len(number.replace(".", "").strip("0")) <= 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("45 min", 2700),
        ("8h", 28800),
        ("1.5d", 129600),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("2:30", 150),
        ("8:00:00", 28800),
        (" 2 Days ", 172800),
        (".5h", 1800),
        ("250ms", 0.25),
    ],
)
def test_reads_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_usd, "$20", 20),
        (parse_usd, "1,200", 1200),
        (parse_usd, "0.35 USD", 0.35),
        (parse_usd, "$1.5k", 1500),
        (parse_tokens, "3.7B", 3_700_000_000),
        (parse_tokens, "500k", 500_000),
        (parse_tokens, "1e9", 10**9),
        (parse_tokens, "131_072 tokens", 131_072),
        (parse_bytes, "24GiB", 24 * 2**30),
        (parse_bytes, "80 GB", 80 * 10**9),
        (parse_bytes, "1024", 1024),
    ],
)
def test_reads_money_tokens_and_bytes(parse, text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_seconds, text) for text in ("", "soon", "8 parsecs", "-5h", "1,5h", "nan", "inf", "2:75", "1h soon")),
        *((parse_usd, text) for text in ("", "-3", "€20", "20 euros", "$")),
        *((parse_tokens, text) for text in ("", "3.7 apples", "1.5", "1e999", "-1")),
        *((parse_bytes, text) for text in ("16G", "16 giga", "", "-1GB")),
    ],
)
def test_refuses_with_the_value_and_examples(parse, text: str) -> None:
    with pytest.raises(AdvisorError) as caught:
        parse(text)
    assert repr(text) in caught.value.message
    assert "write it like" in caught.value.hint
    assert caught.value.exit_code == 2


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_one_clear_error(text: str) -> None:
    for parse in (parse_seconds, parse_usd, parse_tokens, parse_bytes):
        try:
            value = parse(text)
        except AdvisorError as error:
            assert error.hint
        else:
            assert math.isfinite(value) and value >= 0


@given(st.integers(min_value=0, max_value=10**12))
def test_whole_tokens_read_back_exactly(tokens: int) -> None:
    assert parse_tokens(str(tokens)) == parse_tokens(f"{tokens:,}") == tokens


def test_an_interval_within_a_cent_is_one_number():
    tiny = Estimate(value=0.0112, low=0.0104, high=0.0119, basis=Basis.PRIOR)
    assert format_estimate(tiny, format_usd) == "$0.01"
    assert "(" in format_estimate(tiny.scaled(100), format_usd)


SUNDAY = datetime(2026, 11, 22, 13, 0)


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("8h", 8),
        ("Monday 9:00", 20),
        ("mon, 9", 20),
        ("sunday 12:30", 7 * 24 - 0.5),  # today's is past
        ("Sunday at 14:00", 1),
        ("today 18:30", 5.5),
        ("tomorrow 13:00", 24),
        ("2026-11-23", 11),
        ("2026-11-22T15:00", 2),
        ("2026-11-22 15:00:30", 2 + 30 / 3600),
    ],
)
def test_a_deadline_is_a_duration_or_a_moment_of_this_clock(text, hours):
    assert parse_deadline(text, SUNDAY) == pytest.approx(hours * 3600)


def test_a_moment_may_name_its_own_time_zone():
    here = SUNDAY.astimezone(UTC)
    assert parse_deadline((here + timedelta(hours=3)).isoformat(), SUNDAY) == pytest.approx(3 * 3600)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-22T12:59",
        "today 9:00",
        "2020-01-01",
        "0001-01-01",
        "9999-12-31",
        "2026-13-01",
        "someday 9:00",
        "monday 25:00",
        "8",  # most mean hours, elsewhere it is seconds
        "20261122",
    ],
)
def test_the_past_and_what_is_no_moment_is_refused(text):
    with pytest.raises(AdvisorError) as refused:
        parse_deadline(text, SUNDAY)
    assert refused.value.exit_code == 2 and refused.value.hint


@pytest.mark.parametrize(
    ("text", "gigabytes"), [("200G", 25), ("8x400G", 400), ("8 x 400 Gb/s", 400), ("25GB/s", 25), ("100gbps", 12.5)]
)
def test_the_network_of_a_machine_is_sold_in_bits(text: str, gigabytes: float):
    read = units.parse_network(text)
    assert read == gigabytes * 1e9 and units.parse_network(units.write_network(read)) == read


@pytest.mark.parametrize("text", ["200", "0G", "fast", "-100G", "8x"])
def test_what_is_no_network_is_refused_with_an_example(text: str):
    with pytest.raises(AdvisorError, match="is not the network of a machine") as refused:
        units.parse_network(text)
    assert "8x400G" in refused.value.hint
