"""Numbers that nobody means: refused with a next step, and never a warning or an error of the arithmetic."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.options import OPTIONS, Kind
from advisor.planning.answer import answer
from advisor.prediction.uncalibrated import prior_profile
from tests.advisor.plans import goal_of

RANGES = {option.flag: (option.least, option.most) for option in OPTIONS.values() if option.most is not None}
NOW = datetime(2026, 11, 22, tzinfo=UTC)
L4 = prior_profile(require_gpu("l4"))
WHOLE = ("--gpus", "--seq-len", "--vocab-size", "--depth", "--micro-batch")
UNITS = {"--deadline": ("", "s", "min", "h", "d"), "--tokens": ("", "k", "M", "B", "T"), "--budget": ("", "k")}

FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-3, 1e6) | st.floats(1e6, 1e30)
INTEGERS = st.integers(-3, 3000) | st.integers(-(10**30), 10**30) | st.sampled_from([10**9, 2**63, 10**308])


@st.composite
def numeric_options(draw) -> list[str]:
    """One to three options of `advisor plan` that take a number, each with whatever number."""
    words = []
    for option in draw(st.lists(st.sampled_from(sorted(RANGES)), min_size=1, max_size=3, unique=True)):
        number = draw(INTEGERS) if option in WHOLE or draw(st.booleans()) else draw(FLOATS)
        words.append(f"{option}={number!r}{draw(st.sampled_from(UNITS.get(option, ('',))))}")
    return words


@st.composite
def sane_options(draw) -> list[str]:
    """The same with numbers inside of their ranges, anywhere in their logarithm, ends included."""
    words = []
    for option in draw(st.lists(st.sampled_from(sorted(RANGES)), min_size=1, max_size=4, unique=True)):
        least, most = max(RANGES[option][0], 1e-6), RANGES[option][1]
        number = least * (most / least) ** draw(st.floats(0, 1))
        words.append(f"{option}={round(number) if option in WHOLE or 'tokens' in option else number!r}")
    return words


@given(numeric_options() | sane_options())
@settings(max_examples=200, deadline=None)
def test_any_number_is_planned_for_or_refused_with_a_next_step(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            goal = goal_of(["--gpu", "l4", *options])
            plan = answer(goal, [L4], now=NOW)
        except click.UsageError as refused:
            assert str(refused)
        except AdvisorError as refused:
            assert refused.exit_code in (2, 3) and refused.hint
        else:
            assert plan.bill.wall_clock.total_seconds.value > 0


def test_every_option_that_takes_a_number_has_a_range():
    """All but a rate of download, which only stretches the wait before a run."""
    numbers = (Kind.USD, Kind.SECONDS, Kind.DEADLINE, Kind.COUNT, Kind.WHOLE, Kind.NUMBER, Kind.NUMBERS)
    assert all(option.most is not None for option in OPTIONS.values() if option.kind in numbers)


@pytest.mark.parametrize("option", sorted(RANGES))
def test_twice_the_most_is_refused(option):
    most = RANGES[option][1]
    beyond = int(2 * most)
    beside = ["--data-tokens", "1B"] if option == "--epochs" else []  # what a number means nothing without
    beside += ["--budget", "5"] if option == "--value-of-time" else []
    beside += ["--depth", "12"] if option in ("--width", "--heads", "--kv-heads", "--ffn-width") else []
    beside += ["--model", "gpt2", "--finetune", "lora"] if option in ("--examples", "--length", "--lora-rank") else []
    with pytest.raises((AdvisorError, click.UsageError)) as refused:
        goal_of(["--gpu", "l4", *beside, f"{option}={beyond}"])
    if isinstance(refused.value, AdvisorError):
        assert option in refused.value.message and "at most" in refused.value.message
        assert refused.value.hint and refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "1e308"], "--budget 1e+308: must be at most 10,000,000,000"),
        (["--depth", "100000"], "--depth 100,000: must be at most 512"),
        (["--tokens", "1e30"], "--tokens 1e+30: must be at most 10,000,000,000,000,000"),
        (["--interruptions", "5s"], "--interruptions 5 s: must be at least 60 s"),
        (["--budget", "0"], "--budget 0: must be more than 0"),
    ],
)
def test_the_reason_is_the_number(words, message):
    with pytest.raises(AdvisorError) as refused:
        goal_of(["--gpu", "l4", *words])
    assert refused.value.message == message
