"""Claims that nothing makes true: more than the peak, a bill that no rent explains, weights beyond the memory."""

from __future__ import annotations

from advisor.auditing.compute import PRICES, listed_rents
from advisor.auditing.verdict import Judgement, Question, holds, show_bytes, unknown, wrong
from advisor.findings.case import Severity
from advisor.laws.mfu import IMPOSSIBLE_MFU
from advisor.units import format_percent, format_usd, format_usd_rate

_FREE = 0.97  # of a card's memory: weights alone that fill more of it leave nothing to compute with


def utilisation(q: Question) -> Judgement:
    """A share of the dense peak that a training is said to use: never more than all of it."""
    value = q.get("value")
    words = f"{value.text} of what the cards can do"
    if value.least > IMPOSSIBLE_MFU:
        return wrong(
            f"impossible: {words}; another peak, number of cards or count of tokens is meant",
            words,
            severity=Severity.ERROR,
            threshold=f"no training exceeds {format_percent(IMPOSSIBLE_MFU)} of the dense peak",
        )
    return holds("possible", words)


def rent(q: Question) -> Judgement:
    """A bill for so many card-hours against every listed price: wrong only where it is far from all of them."""
    value, time = q.get("value"), q.get("time")
    rents = listed_rents(q.get("gpu"))
    if not rents:
        return unknown(f"no price list has {q.get('gpu')}")
    if time.dimension not in ("seconds", "gpu_hours"):
        return unknown("neither a time nor card-hours are stated")
    number = q.get("gpus").middle if q.get("gpus") else 1.0
    each = number / 3600 if time.dimension == "seconds" else 1.0  # card-hours for each unit of the time
    low, high = time.least * each, time.most * each
    if not low > 0:
        return unknown("no time is stated that was paid for")
    span = f"{format_usd_rate(rents[0])} to {format_usd_rate(rents[-1])}/h"
    paid = f"{value.text} for {time.middle * each:,.0f} card-hours"
    words = (
        f"{paid} is {format_usd_rate(value.middle / (time.middle * each))} an hour; {q.get('gpu')}: {span} as listed"
    )
    if value.most < PRICES[0] * rents[0] * low:
        least = format_usd(rents[0] * low)
        return wrong(
            f"{words}: {least} at the lowest listed price",
            words,
            consequence="money is planned too small by this factor",
        )
    if value.least > PRICES[1] * rents[-1] * high:
        most = format_usd(rents[-1] * high)
        return wrong(
            f"{words}: {most} at the highest listed price",
            words,
            consequence="money is planned too large by this factor",
        )
    return holds(words, words)


def weights_fit(q: Question) -> Judgement:
    """Weights of so many bits in the memory of one card: without them nothing runs, and nothing is trained."""
    value, n, bits = q.get("value"), q.get("parameters"), q.get("bits").middle
    size = n.low * bits / 8
    show = show_bytes(value)
    words = f"{n.text} × {bits:g} bits = {show(size)} of weights in {value.text}"
    if size > _FREE * value.most:
        return wrong(
            f"the weights alone take {show(size)}, not {value.text}",
            words,
            severity=Severity.ERROR,
            consequence="it runs out of memory: take fewer bits, more cards, or leave some of it in host memory",
        )
    return holds(words, words)
