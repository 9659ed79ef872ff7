"""Check that every number of a goal lies in the plausible range of its option."""

from __future__ import annotations

from typing import Any

from advisor.errors import AdvisorError
from advisor.options import OPTIONS, Goal, Kind, Option, options_of
from advisor.units import format_seconds


def check_options(record: Any) -> None:
    """Raises AdvisorError (exit code 2) if a number of a command's options lies outside its option's range."""
    for option in options_of(type(record)).values():
        if option.least is not None:
            check_range(option, getattr(record, option.field))


def check_ranges(goal: Goal) -> None:
    """Raises AdvisorError (exit code 2) if a number of the goal lies outside its option's range."""
    check_options(goal)
    for count in (*goal.counts, *(machine.gpus for machine in goal.own)):
        check_range(OPTIONS["gpus"], count)
    for price in goal.prices:
        check_range(OPTIONS["price"], price.usd_per_gpu_hour)


def check_range(option: Option, value: float | None) -> None:
    """Raises AdvisorError (exit code 2) if this number lies outside the option's range."""
    least, most, name = option.least, option.most, option.flag
    if value is None or least is None or most is None or least <= value <= most:
        return
    if least == 0 and value < 0:
        fault, hint = "must not be negative", f"give {name} 0 for what costs nothing, or leave it out"
    elif not value > 0:
        fault, hint = "must be more than 0", f"give more than 0, or leave {name} out"
    else:
        fault = f"must be at {'least' if value < least else 'most'} {_words(option, min(max(value, least), most))}"
        hint = f"give {_words(option, least)} to {_words(option, most)}, or leave {name} out"
    raise AdvisorError(f"{name} {_words(option, value)}: {fault}", hint, exit_code=2)


def _words(option: Option, value: float) -> str:
    if option.kind in (Kind.SECONDS, Kind.DEADLINE):
        return format_seconds(value)
    return f"{value:g}" if value > 1e6 else f"{value:,.12g}"
