"""Claims held against what a card can do and hold: time and cost of a training, memory of its state, peak rates.

Parameters and tokens are enough: 6 FLOPs a parameter and token, 16 bytes of state a parameter. A claim is wrong only
where no leaner way of training would make it true.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.auditing.fields import cards_named
from advisor.auditing.hardware import SPARSE
from advisor.auditing.quantity import Quantity
from advisor.auditing.verdict import Judgement, Question, compare, does_not_follow, holds, show_bytes, unknown, wrong
from advisor.findings.case import Severity
from advisor.hardware.catalog import GpuSpec, load_gpus
from advisor.hardware.prices import load_prices
from advisor.laws.mfu import IMPOSSIBLE_MFU
from advisor.units import (
    format_count,
    format_flops,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
    format_usd_rate,
)

# FLOPs a parameter and token: 4 where only adapters learn (no gradients of the weights), 6 in full, 8 with every
# activation computed twice; attention adds to each (sources §1.2).
_HALF_SENSE, _ABOUT = 0.45, 1.25  # of the dense peak: below what a format of half the rate gives; roundings
_WORK = {"full": (6.0, 8.5), "adapters": (4.0, 8.5)}
# Bytes a parameter that training keeps on one card: 16 with AdamW in fp32 or mixed precision, 8 with everything in bf16
# (sources §2.1). Moments of 8 bits make it 6; who trains so says so.
STATE, LEAN_STATE = 16.0, 8.0
PRICES = (0.3, 2.5)  # of the cheapest and the dearest listed price: lists age, spot and contracts differ
_MOVED = 8.0  # bytes a parameter that a step reads and writes at least: moments of 8 bits, the rest in bf16
_ROOM = 0.95  # of a card's memory: context and libraries take the rest (sources §2.4)
_SMALL_STATE = 0.15  # of a card's memory: nobody calls the rest full because of the model
_A_RANGE = 1.05  # times from end to end: both are said
_LONG_SEQUENCE = 3.0  # times the FLOPs of the weights where attention over a long sequence is counted too
# of a small model's parameters those at work where the input table is one of its own; where tables are said to be most
_SMALL_MODEL, _LOOKED_UP, _MOSTLY_TABLES = 3e9, 0.7, 0.5
_OTHER_MFU = 1.6  # times off a stated MFU: attention, recomputation and words like "about" explain less
_LONG_RUN = 1e9  # tokens: shorter runs are mostly start-up, evaluation and saving
_LOWEST_MFU = 0.01  # below it a bill is for something else than training


def training_time(q: Question) -> Judgement:
    """Time or card-hours of a training against 6·N·D FLOPs: never faster than the peak, near the MFU that is stated."""
    value, n, d, work = q.get("value"), q.get("parameters"), q.get("tokens"), q.get("work")
    cards = _cards(q.get("gpu"))
    peak = max((_peak(card, q.get("precision")) or 0.0 for card in cards), default=0.0)
    if work is None and (n is None or d is None):
        return unknown("neither parameters and tokens nor the FLOPs of the training are stated")
    if not peak:
        return unknown(f"no peak is known of {q.get('gpu') or 'the card'}")
    number = q.get("gpus").most if q.get("gpus") and value.dimension == "seconds" else 1.0
    if value.dimension not in ("seconds", "gpu_hours"):
        return unknown("neither a time nor card-hours are stated")
    least, most = _WORK[q.get("method") or "full"]
    works = [work.least, work.most] if work else [f * n.middle * d.middle for f in (least, most)]
    paid = number * 3600 if value.dimension == "gpu_hours" else number  # seconds of one card for each unit of the value
    low, high = works[0] / (value.most * paid * peak), works[1] / (value.least * paid * peak)
    total = work.text if work else f"{least:g} × {n.text} × {d.text} FLOP"
    words = f"{total} ÷ ({value.text} × {_of_cards(q)}{format_flops(peak)} dense) = "
    words += f"MFU {format_percent(low)}"
    if low > IMPOSSIBLE_MFU:
        best = works[0] / (0.5 * peak * paid)
        return wrong(
            f"impossible: it takes {low:,.3g} times the peak; at an MFU of 50 % {_show(value, best)}",
            words.replace(f"MFU {format_percent(low)}", f"{low:,.3g} times the peak"),
            severity=Severity.ERROR,
            consequence="time and money are planned too small by this factor",
            threshold=f"no training exceeds {format_percent(IMPOSSIBLE_MFU)} of the dense peak",
        )
    return _against_stated(q, low, high, words)


def _against_stated(q: Question, low: float, high: float, words: str) -> Judgement:
    stated = q.get("mfu")
    if stated is not None and (low > _OTHER_MFU * stated.most or high * _OTHER_MFU < stated.least):
        middle = low if low > stated.most else high
        factor = max(middle / stated.middle, stated.middle / middle)
        return wrong(
            f"at the stated {stated.text} it would be {factor:.1f} times {'more' if low > stated.most else 'less'}",
            words,
            consequence="time and cost are off by this factor",
        )
    if high < _LOWEST_MFU and q.get("tokens") and q.get("tokens").low >= _LONG_RUN and q.get("method") != "adapters":
        return does_not_follow(
            f"that is an MFU of {format_percent(high)} at most: the card trains {0.4 / high:,.0f} times faster at 40 %",
            words,
        )
    return holds(f"an MFU of {format_percent(low)}", words)


def training_cost(q: Question) -> Judgement:
    """Dollars of a training: no fewer than 6·N·D FLOPs cost on the card that gives most of them for its money."""
    value, n, d = q.get("value"), q.get("parameters"), q.get("tokens")
    named = {card.key for card in _cards(q.get("gpu"))}
    rents = [
        (row.on_demand_usd_per_hour / (row.gpu_count * peak), card.key)
        for row in load_prices()
        if row.on_demand_usd_per_hour and row.gpu_count and (not named or row.gpu in named)
        if (card := load_gpus().get(row.gpu)) and (peak := _peak(card, "fp8") or _half(card))
    ]
    if not rents:
        return unknown(f"no price list has {q.get('gpu')}")
    each, cheapest = min(rents)  # dollars an hour for each FLOP/s at the peak
    work = _WORK[q.get("method") or "full"][0] * n.least * d.least
    least = work * PRICES[0] * each / (IMPOSSIBLE_MFU * 3600)
    words = f"{n.text} × {d.text}: {work:.3g} FLOP at least; {cheapest} at the lowest listed price is the cheapest"
    if value.most < least:
        return wrong(
            f"{format_usd(least)} at the very least, at {format_percent(IMPOSSIBLE_MFU)} of the peak and "
            f"{format_percent(PRICES[0])} of the lowest listed price",
            words,
            severity=Severity.ERROR,
            consequence="money is planned too small by this factor",
        )
    return holds(f"above {format_usd(least)}, which it costs at the very least", words)


def training_rate(q: Question) -> Judgement:
    """Tokens per second against the cards' dense peak, and against the MFU that is stated beside it."""
    value, work, stated = q.get("value"), q.get("work"), q.get("mfu")
    peak = max((_peak(card, q.get("precision")) or 0.0 for card in _cards(q.get("gpu"))), default=0.0)
    least, most = _WORK[q.get("method") or "full"]
    if work is not None:
        each = work.least, work.most
    elif q.get("parameters") is not None:
        # lookup tables cost no FLOPs and can be most of a small model (sources §1.1)
        size = q.get("parameters")  # "1B" of a name may be 1.4 B, and is not nothing
        tables = 1.0 if size.middle >= _SMALL_MODEL else _MOSTLY_TABLES if q.get("tables") else _LOOKED_UP
        each = least * max(min(size.least, tables * size.middle), size.middle / 2), most * size.most
    else:
        return unknown("neither parameters nor FLOPs per token are stated")
    if not peak:
        return unknown(f"no peak is known of {q.get('gpu')}")
    number = 1.0 if q.get("per_gpu") or q.get("gpus") is None else q.get("gpus").middle
    low, high = each[0] * value.least / (number * peak), each[1] * value.most / (number * peak)
    usual = least * size.middle if work is None else work.middle
    told = format_percent(usual * value.middle / (number * peak))
    words = f"{usual:.3g} FLOP a token × {value.text} ÷ ({number:g} × {format_flops(peak)} dense) = {told}"
    if low > (1.0 if work is not None or q.get("tables") else IMPOSSIBLE_MFU):  # else FLOPs are not known so exactly
        return wrong(
            f"impossible: {low:,.2g} times the dense peak, at the very least",
            words,
            severity=Severity.ERROR,
            threshold=f"no training exceeds {format_percent(IMPOSSIBLE_MFU)} of the dense peak",
        )
    top = each[0] * value.high / (number * peak)
    if math.isfinite(top) and value.high > _A_RANGE * value.low and top > 1.0:
        return wrong(f"its upper end is impossible: {top:,.2g} times the dense peak", words)
    if stated is None:
        return holds(f"an MFU of {told}", words)
    share = 1.0 if q.get("per_gpu") or q.get("gpus") is None else number  # the rate may be that of one card
    if work is None and q.get("long"):
        high *= _LONG_SEQUENCE
    eights = 2.0 if q.get("precision") == "fp8" else 1.0  # products in FP8 are often reckoned by the 16-bit peak
    if any(stated.admits(0.85 * k * low, 1.15 * k * high) for k in (1.0, share, eights)):
        return holds(f"an MFU of {told}", words)
    return wrong(
        f"{told} of the dense peak, not {stated.text}",
        words,
        consequence="a wrong peak, number of cards or count of tokens hides how much of the card is used",
    )


def _of_cards(q: Question) -> str:
    return f"{q.get('gpus').text} × " if q.get("gpus") else ""


def _show(value: Quantity, amount: float) -> str:
    return format_seconds(amount) if value.dimension == "seconds" else f"{format_count(amount)} card-hours"


def training_memory(q: Question) -> Judgement:
    """Training so many parameters in so much memory of one card: weights, gradients and moments must fit.

    `value` is the stated need or the card's memory; without it the largest card there is.
    """
    n, value = q.get("parameters"), q.get("value")
    size = value.most if value else max(card.memory_gb for card in load_gpus().values()) * 1e9
    name = value.text if value else "the largest card"
    least = q.get("state").middle if q.get("state") else LEAN_STATE
    lean, usual = least * n.high, STATE * n.high
    words = f"{format_count(n.high)} parameters × {STATE:g} bytes (AdamW) = {_gb(usual)}; × {least:g} "
    words += f"({'all in bf16' if least == LEAN_STATE else 'moments in fp32'}) = {_gb(lean)}, activations not counted"
    if lean > _ROOM * size:
        return wrong(
            f"weights, gradients and optimizer alone need {_gb(lean)} to {_gb(usual)}, not {name}",
            words,
            consequence="it runs out of memory: shard it, train adapters, or take more cards",
            threshold="16 bytes a parameter: weights, gradients and two moments",
        )
    if usual > size:
        return unknown(f"not with AdamW in mixed precision ({_gb(usual)}); a leaner state may fit", words)
    return holds(f"{_gb(usual)} of {name}", words)


def optimizer_time(q: Question) -> Judgement:
    """Time of an optimizer's step: weights, gradients and moments are read and written at the bandwidth at best."""
    value, n = q.get("value"), q.get("parameters")
    bandwidth = max((card.memory_bytes_per_second for card in _cards(q.get("gpu"))), default=0.0)
    if not bandwidth:
        return unknown(f"no bandwidth is known of {q.get('gpu')}")
    least = _MOVED * n.least / bandwidth
    words = f"{n.text} × {_MOVED:g} bytes ÷ {bandwidth / 1e12:.2f} TB/s = {format_seconds(least)} at least"
    if value.most < least:
        return wrong(words, words, consequence="the time of a step is planned too short, or the clock did not wait")
    return holds(f"above {format_seconds(least)}", words)


def largest_model(q: Question) -> Judgement:
    """The largest model that is said to be trained on a card: one whose state fills a small part of it is not that."""
    n, value = q.get("parameters"), q.get("value")
    words = f"{format_count(n.high)} parameters × {STATE:g} bytes (AdamW) = {_gb(STATE * n.high)} of {value.text}"
    if STATE * n.most < _SMALL_STATE * value.least:
        return wrong(
            f"its state takes {format_percent(STATE * n.high / value.low)} of the memory: a smaller batch leaves room "
            "for a larger model",
            words,
            consequence="a smaller model is trained than the card holds",
        )
    return holds(f"{format_percent(STATE * n.high / value.low)} of the memory before activations", words)


def _gb(size: float) -> str:
    return f"{size / 1e12:,.3g} TB" if size >= 1e12 else f"{size / 1e9:,.3g} GB"


def sustained_rate(q: Question) -> Judgement:
    """FLOP/s that a card is said to reach in use: below its dense peak."""
    value, number = q.get("value"), q.get("gpus").middle if q.get("gpus") else 1.0
    peaks = [_peak(card, q.get("precision")) for card in _cards(q.get("gpu"))]
    known = [number * peak for peak in peaks if peak]
    if not known:
        return unknown(f"no peak is known of {q.get('gpu')}")
    words = f"{q.get('gpu')}: {format_flops(max(known))} dense"
    if value.least > IMPOSSIBLE_MFU * max(known) and value.middle > 0.9 * max(known):
        return wrong(
            f"that is the peak; training uses 30 to 55 % of it, {format_flops(0.4 * max(known))} or so",
            words,
            consequence="time and cost reckoned with it are two to three times too small",
            threshold=f"no training exceeds {format_percent(IMPOSSIBLE_MFU)} of the dense peak",
        )
    return holds(f"{format_percent(value.middle / max(known))} of the peak", words)


def peak_ratio(q: Question) -> Judgement:
    """How many times the 16-bit peak of one card is that of another, either of them dense or sparse."""
    value, mine, others = q.get("value"), _cards(q.get("gpu")), _cards(q.get("than"))
    halves = [a / b for c in mine for o in others if (a := _half(c)) and (b := _half(o))]
    if not halves:
        return unknown("one of the peaks is not known")
    low, high = min(halves) / SPARSE, max(halves) * SPARSE
    words = f"16-bit dense: {format_flops(_half(mine[0]))} against {format_flops(_half(others[0]))}"
    if value.admits(low * 0.9, high * 1.1):
        return holds(f"{low:.1f} to {high:.1f} times", words)
    return wrong(
        f"{max(halves):.1f} times in 16 bits, dense", words, consequence="what is scaled by it comes out wrong"
    )


def card_price(q: Question) -> Judgement:
    """A rent per hour of so many cards against every listed price: wrong only where it is far from all of them."""
    value, number = q.get("value"), int(q.get("count").middle) if q.get("count") else 1
    bills = listed_rents(q.get("gpu"))
    if not bills:
        return unknown(f"no price list has {q.get('gpu')}")
    low, high = number * bills[0], number * bills[-1]
    span = f"{format_usd_rate(bills[0])} to {format_usd_rate(bills[-1])}/h"
    words = f"{len(bills)} listed prices of one {q.get('gpu')}: {span}"
    if value.most < PRICES[0] * low or value.least > PRICES[1] * high:
        return wrong(f"{words}{f', {number} of them' if number > 1 else ''}, not {value.text}", words)
    return holds(words, words)


def listed_rents(name: str | None) -> list[float]:
    """Dollars an hour of one card of a name in every price list, the lowest first."""
    keys = {card.key for card in _cards(name)}
    return sorted(
        row.on_demand_usd_per_hour / row.gpu_count
        for row in load_prices()
        if row.gpu in keys and row.on_demand_usd_per_hour and row.gpu_count
    )


def card_memory(q: Question) -> Judgement:
    """The memory of a named card, of any of its editions."""
    value, cards = q.get("value"), _cards(q.get("gpu"))
    if not cards:
        return unknown(f"no card {q.get('gpu')!r} is in the catalog")
    sizes = sorted({card.memory_gb * 1e9 for card in cards})
    words = f"catalog: {', '.join(f'{size / 1e9:g} GB' for size in sizes)}"
    if any(value.admits(0.93 * size, 1.08 * size) for size in sizes):
        return holds(words, words)
    nearest = min(sizes, key=lambda size: abs(size - value.middle))
    return compare(value, nearest, show=show_bytes(value), arithmetic=words)


def card_peak(q: Question) -> Judgement:
    """A stated peak of one card or several against the datasheet: dense, unless the text says sparse."""
    value, number = q.get("value"), q.get("count").middle if q.get("count") else 1.0
    cards = _cards(q.get("gpu"))
    dense = [number * p for c in cards if (p := _peak(c, q.get("precision")))]
    if not dense:
        return unknown(f"no such rate is known of {q.get('gpu')}")
    if any(value.admits(0.97 * p, 1.03 * p) for p in dense):
        return holds(format_flops(dense[0]), f"catalog: {q.get('gpu')}, dense")
    shader = any(c.fp32_flops and value.admits(1.9 * number * c.fp32_flops, 2.1 * number * c.fp32_flops) for c in cards)
    halved = any(c.generation.endswith("half-rate") for c in cards)  # with sums in fp16 twice the rate, dense
    if any(value.admits(0.97 * SPARSE * p, 1.03 * SPARSE * p) for p in dense) and not shader and not halved:
        if q.get("sparse"):
            return holds("with 2:4 sparsity", f"catalog: {q.get('gpu')}")
        return wrong(
            f"{format_flops(max(dense))} dense; the figure is the one with 2:4 sparsity",
            f"catalog: {q.get('gpu')}, {number:g} of them",
            consequence="utilisation against it comes out half of what it is",
        )
    # shader rates, fp16 sums on GeForce cards, other formats: a figure that is some rate of the card accuses nobody
    others = (1, SPARSE) if q.get("precision") else (1, SPARSE, 4)
    every = [number * rate * k for c in cards for rate in (*_rates(c), c.bf16_flops) if rate for k in others]
    # of all of them, in the format that is named
    far_below = number > 1 and _ABOUT * value.high < _HALF_SENSE * min(dense)
    if not far_below and any(value.admits(0.93 * rate, 1.07 * rate) for rate in every):
        return unknown("a rate of the card in another format or sense", f"catalog: {q.get('gpu')}")
    return compare(value, min(dense), max(dense), show=format_flops, arithmetic=f"catalog: {q.get('gpu')}, dense")


def tokens_per_parameter(q: Question) -> Judgement:
    """Tokens for each parameter, of numbers that are both stated."""
    value, n, d = q.get("value"), q.get("parameters"), q.get("tokens")
    low, high = d.least / n.most, d.most / n.least
    words = f"{format_tokens(d.middle)} ÷ {format_count(n.middle)} parameters = {format_number(d.middle / n.middle)}"
    return compare(value, 0.95 * low, 1.05 * high, show=format_number, arithmetic=words)


def _cards(name: str | None) -> Sequence[GpuSpec]:
    return cards_named(name) if name else []


def _peak(card: GpuSpec, precision: str | None) -> float | None:
    named = {"fp8": card.fp8_flops, "fp16": card.fp16_flops, "bf16": card.bf16_flops or card.fp16_flops}
    if precision == "fp32":
        return card.fp32_flops
    if precision == "tf32":
        return card.tf32_flops
    return named.get(precision or "bf16") or card.bf16_flops or card.fp16_flops


def _half(card: GpuSpec) -> float | None:
    return card.bf16_flops or card.fp16_flops


def _rates(card: GpuSpec) -> tuple[float | None, ...]:
    return (card.fp32_flops, card.tf32_flops, _half(card), card.fp8_flops)
