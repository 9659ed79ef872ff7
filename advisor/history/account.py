"""Sums the seconds and dollars of all attempts of a run, each at the price of its own machine.

`budget.json` is the account. The log adds the running attempt's time so far, and attempts that are missing from
`budget.json` here, since that file arrives last or may be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.budget import Spent


@dataclass(frozen=True, kw_only=True)
class Life:
    """One attempt in the log."""

    session: str
    seconds: float
    usd_per_hour: float | None  # None if the attempt states no price; then the caller's price counts


@dataclass(frozen=True, kw_only=True)
class Account:
    """The totals of all attempts."""

    seconds: float
    usd: float | None  # None if no price is known
    usd_per_hour: float | None  # of the newest attempt


def account(
    lives: Sequence[Life],
    current: Life | None,
    spent: Spent,
    *,
    usd_per_hour: float | None,
    unlogged_since: float | None = None,
) -> Account:
    """Add up the attempts: `lives` are over, `current` is running. `usd_per_hour` is for attempts without a price.

    `unlogged_since` is the start (Unix seconds) of a current attempt that has logged nothing yet. What the budget file
    booked since then is left out, because the clock already measures that time.
    """
    known = {life.session: life for life in lives}
    for attempt in spent.attempts:
        clocked = unlogged_since is not None and attempt.began >= unlogged_since - 1.0
        if not (clocked and attempt.session not in known):
            known[attempt.session] = Life(
                session=attempt.session, seconds=attempt.seconds, usd_per_hour=attempt.usd_per_hour
            )
    if current is not None:
        known[current.session] = current
    prices = [usd_per_hour if life.usd_per_hour is None else life.usd_per_hour for life in known.values()]
    pairs = list(zip(known.values(), prices, strict=True))
    now = usd_per_hour if current is None or current.usd_per_hour is None else current.usd_per_hour
    paid = [life.seconds * price / 3600 for life, price in pairs if price is not None]
    whole = len(paid) == len(pairs) and (bool(pairs) or usd_per_hour is not None)
    return Account(
        seconds=sum(life.seconds for life in known.values()), usd=sum(paid) if whole else None, usd_per_hour=now
    )
