"""Memory by part, a table over depths, and the data to fetch, in words."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.prediction.depths import TOKENS_PER_PARAMETER, DepthOption, Download, MemoryBill
from advisor.report.quantities import STEP_TIME, TIME
from advisor.report.table import Table
from advisor.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_estimate,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
)

_PARTS = (
    ("weights", "weights_bytes"),
    ("gradients and 16-bit copies", "gradients_bytes"),
    ("optimizer", "optimizer_bytes"),
    ("activations", "activations_bytes"),
    ("logits", "logits_bytes"),
    ("driver, workspaces, allocator", "overhead_bytes"),
)
_SHORT = ("weights", "gradients", "optimizer", "activations", "logits", "rest")


def memory(bill: MemoryBill) -> Table:
    """Each part's expected bytes and its share of the GPU's memory."""
    of = bill.device_bytes
    rows = [(name, format_bytes(value := getattr(bill, field)), _share(value, of)) for name, field in _PARTS]
    rows.append(("all of it", format_estimate(bill.total, format_bytes), _share(bill.total.value, of)))
    if bill.headroom_bytes is not None:
        rows.append(("free", format_bytes(bill.headroom_bytes), _share(bill.headroom_bytes, of)))
    return Table(columns=("GPU memory at its peak, by part", "expected", "of the GPU's"), rows=tuple(rows))


def _share(value: float, of: float | None) -> str:
    return "-" if of is None else format_percent(value / of)


def options(found: Sequence[DepthOption], own: int) -> Table:
    """A row per depth: size, step time against the configuration's own, memory by part, what is free."""
    columns = (
        *("depth", "parameters", "step time", "times this", *_SHORT, "free", "fits"),
        f"{TOKENS_PER_PARAMETER:g} tokens per parameter",
        "steps take",
    )
    chosen = tuple(place for place, one in enumerate(found) if one.depth == own)
    return Table(columns=columns, rows=tuple(map(_option, found)), title="At other depths", chosen=chosen)


def _option(one: DepthOption) -> tuple[str, ...]:
    bill = one.memory
    parts = [format_bytes(getattr(bill, field)) if bill else "-" for _, field in _PARTS]
    return (
        f"{one.depth} x {one.width}",
        format_count(one.parameters),
        STEP_TIME.expected(one.step_seconds),
        "-" if one.step_ratio is None else format_number(one.step_ratio),
        *parts,
        format_bytes(bill.headroom_bytes) if bill and bill.headroom_bytes is not None else "-",
        {True: "yes", False: "no", None: "perhaps"}[one.fits],
        format_tokens(one.tokens),
        TIME.expected(one.hours.scaled(3600)) if one.hours is not None else "-",
    )


def to_fetch(data: Download, *, billed: bool = True) -> str:
    """Tokens → characters → shards → gigabytes → time, in a sentence; of a plan whether its bill has the time."""
    unbilled = "" if billed else "; not in the bill, for no data are given: --data-tokens puts them there"
    return (
        f"data: {format_tokens(data.tokens)} tokens are about {format_tokens(data.characters)} characters of English, "
        f"{data.shards:,} compressed shards of 100 MB, {format_number(data.download_bytes / 1e9)} GB, "
        f"{TIME.of(data.seconds)} at {format_bandwidth(data.bytes_per_second)}; to make tokens of them takes one core "
        f"about {format_seconds(data.prepare_core_seconds)}{unbilled}"
    )
