"""The quantities of a claim's GPU, of its price, and the limits that no training exceeds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partialmethod

from advisor.auditing import run
from advisor.auditing.card import gpus_meant
from advisor.auditing.quantity import ClaimedQuantity, parse_quantity
from advisor.auditing.verdict import Known, Question, between, exactly, show_as
from advisor.hardware.catalog import GpuSpec, load_gpus
from advisor.hardware.prices import load_prices
from advisor.laws.flops import IMPOSSIBLE_MFU
from advisor.laws.initial_loss import FAULT_BELOW, SOUND
from advisor.prediction.loss import FREE_EPOCHS, WASTEFUL_EPOCHS
from advisor.units import format_bandwidth, format_bytes, format_flops, format_usd_rate

SPARSE = 2.0  # vendors print twice the dense rate, for 2:4 sparsity, which training does not use
PRICES = (0.3, 2.5)  # factors on the cheapest and the most expensive listed price: lists age, spot and contracts differ
# FLOPs per parameter and token: 4 if only adapters are trained, 6 in full training, 8.5 if every activation is computed
# twice, with attention (sources §1.2). In a small model, some parameters are a lookup table, which costs none (§1.1).
_FLOPS_EACH = {"full": (6.0, 8.5), "adapters": (4.0, 8.5)}
_WITH_ATTENTION = 7.2  # of full training, nothing computed twice, at up to the usual context
_USUAL_CONTEXT, _MOST_LAYERS = 4096, 100
_SMALL_MODEL, _LOOKED_UP, _MOSTLY_TABLES = 3e9, 0.7, 0.5
_AVERAGED = ("Ampere", "Ada", "Hopper", "Blackwell")  # power over one second, GA100 excepted (NVML documentation)
# how a report says that a price is for one GPU, or for all of them
_EACH = re.compile(r"(?:/|\bper|\ban?)[ -]?(?:\w+[ -])?(?:GPU|card)\b|\beach\b|GPU[- ]?(?:hour|hr|h)\b", re.IGNORECASE)
_WHOLE = re.compile(
    r"\b(?:machine|node|instance|server|box|cluster|VM|pod|rig|workstation|together|in (?:all|total))s?\b"
    r"|\d\s?[x×]\s?[A-Z]+\d",
    re.IGNORECASE,
)
_MIXED = re.compile(r"\bmixed[- ]precision\b|\bAMP\b", re.IGNORECASE)
_LEANER = re.compile(
    r"\b(?:8[- ]?bit|adafactor|sgd|lion|muon|shard\w*|fsdp|zero\w*|offload\w*|\w*lora)\b", re.IGNORECASE
)
# limits shared with the findings about logs
_LIMITS = {"impossible_mfu": IMPOSSIBLE_MFU, "fault_below": FAULT_BELOW, "sound_start": SOUND}
_LIMITS |= {"free_epochs": FREE_EPOCHS, "wasteful_epochs": WASTEFUL_EPOCHS}


def quantity_of(number: float) -> ClaimedQuantity:
    """Return a plain number as a claim would state it."""
    return parse_quantity(f"{number:.12g}")


def dense_peak(spec: GpuSpec, precision: str | None) -> float | None:
    """Return the dense peak FLOP/s for a dtype; if unknown, the 16-bit peak, but None for fp32 and tf32."""
    if precision in ("fp32", "tf32"):
        return spec.fp32_flops if precision == "fp32" else spec.tf32_flops
    own = {"fp8": spec.fp8_flops, "fp16": spec.fp16_flops}.get(precision or "")
    return own or half(spec)


def half(spec: GpuSpec) -> float | None:
    """Return the dense peak of the 16-bit format in which the GPU trains."""
    return spec.bf16_flops or spec.fp16_flops


def _rents(specs: Sequence[GpuSpec], machine: str | None = None) -> list[tuple[float, GpuSpec]]:
    """Return each listed price per hour of one GPU, with the GPU; only the machine type's prices if it is listed."""
    keys = {spec.key: spec for spec in specs}
    rows = [row for row in load_prices() if row.gpu in keys and row.on_demand_usd_per_hour and row.gpu_count]
    rows = [row for row in rows if row.instance_type == machine] or rows
    return [((row.on_demand_usd_per_hour or 0.0) / row.gpu_count, keys[row.gpu]) for row in rows]


def known(q: Question, name: str, *, alone: bool) -> Known | None:
    """Return a limit or a quantity of the claim's GPU, or without `alone` of its run. Returns None if unknown."""
    if name in _LIMITS:
        return exactly(_LIMITS[name], f"{_LIMITS[name]:g}")
    found = getattr(GpuQuantities(q), name)() if name in vars(GpuQuantities) else None
    if found is not None or alone:
        return found or (exactly(1, "1") if name == "gpus" else None)
    return getattr(run.RunQuantities(q), name)() if name in vars(run.RunQuantities) else run.declared(q, name)


class GpuQuantities:
    """The known facts about a claim's GPUs and price, by the names that expressions in `kinds.yaml` use."""

    def __init__(self, q: Question) -> None:
        self.q, spec, name = q, run.spec_of(q.setup), q.setup.gpu
        # the GPU of the configuration, or all its forms if the name leaves the form open
        self._of_run = [spec] if spec else gpus_meant(name) if name else []
        self.specs = gpus_meant(q.get("gpu")) if q.get("gpu") else self._of_run  # every GPU that the claim can mean

    def _figure(self, figure: Callable[[GpuSpec], float | None], show: Callable[[float], str]) -> Known | None:
        values = [value for spec in self.specs if (value := figure(spec))]
        return (min(values), max(values), between((min(values), max(values)), show)) if values else None

    bf16_peak = partialmethod(_figure, lambda spec: spec.bf16_flops, format_flops)
    bandwidth = partialmethod(_figure, lambda spec: spec.memory_bytes_per_second, format_bandwidth)
    device_memory = partialmethod(_figure, lambda spec: float(spec.memory_bytes), format_bytes)
    device_bytes = partialmethod(_figure, lambda spec: spec.memory_gb * 1e9, show_as("bytes"))

    def _is_of_run(self) -> bool:
        """Return True if a claim names no GPU other than that of its configuration."""
        return self.q.get("gpu") is None or any(spec in gpus_meant(self.q.get("gpu")) for spec in self._of_run)

    def listed_rent(self) -> Known | None:
        rents = sorted(
            rent for rent, _ in _rents(self.specs, self.q.setup.machine if self.q.get("gpu") is None else None)
        )
        if not rents:
            return None
        words = (
            f"{between((rents[0], rents[-1]), format_usd_rate)}/h as listed, {PRICES[0]:g} to {PRICES[1]:g} times that"
        )
        return PRICES[0] * rents[0], PRICES[1] * rents[-1], words

    def price(self) -> Known | None:
        """Return the claim's price, or else its configuration's price if the claim is about the same GPU."""
        price = self.q.get("price") or (self.q.setup.price if self._is_of_run() else None)
        return (price.low, price.high, price.text) if price else None

    def rent_without_price(self) -> Known | None:
        return None if self.price() else self.listed_rent()

    def peak(self) -> Known | None:
        """Return the dense peak at the precision of the claim or of its run."""
        specs = self.specs
        if self.q.get("gpu") is None:
            rates = [rate for spec in specs if (rate := run.peak(spec, self.q.setup.precision))]
        else:
            rates = [rate for spec in specs if (rate := dense_peak(spec, self.q.get("precision")))]
        # products in FP8 are often compared with the 16-bit peak
        rates += [rate for spec in specs if self.q.get("precision") == "fp8" and (rate := half(spec))]
        return (min(rates), max(rates), f"{between((min(rates), max(rates)), format_flops)} dense") if rates else None

    def price_of_all(self) -> Known | None:
        """Return the price if the words or the configuration say that it is for all GPUs together."""
        words = f"{self.q.claim.quote} {self.q.claim.text}"
        for_all = _WHOLE.search(words) and not _EACH.search(words)
        return self.price() if for_all or (self.q.get("price") is None and self.q.setup.price_of == "machine") else None

    def gpus_paid(self) -> Known:
        """Return the claim's number of GPUs, or else its configuration's if the claim is about the same GPU."""
        if (stated := self.q.get("gpus")) and not self.q.get("per_gpu"):
            return stated.low, stated.high, stated.text
        count = self.q.setup.gpus if self._is_of_run() and not self.q.get("per_gpu") else 1
        return exactly(count, f"{count}")

    def listed_rent_per_flop(self) -> Known | None:
        """Return the lowest possible price of a FLOP: 0.3 times the lowest price of a GPU, divided by its peak rate."""
        specs = self.specs if self.q.get("gpu") else list(load_gpus().values())
        each = [(rent / rate, spec.key) for rent, spec in _rents(specs) if (rate := dense_peak(spec, "fp8"))]
        if not each:
            return None
        least, key = min(each)
        return exactly(PRICES[0] * least / 3600, f"{PRICES[0]:g} of the lowest listed price of {key} by its peak")

    def power_hertz(self) -> Known | None:
        """Return how many times per second a GPU updates its power reading."""
        spec = next(iter(self.specs), None)
        if spec is None:
            return None
        averaged = spec.architecture in _AVERAGED and not spec.key.startswith(("a100", "a30"))
        return exactly(1.0, "one reading a second") if averaged else (0.0, math.inf, "as fast as it is sampled")

    def memory_of_value(self) -> Known | None:
        """Return the memory that a claim states, or else the memory of the largest GPU."""
        value = self.q.get("value")
        if value is not None:
            return value.least, value.most, value.text
        return exactly(max(spec.memory_gb for spec in load_gpus().values()) * 1e9, "the largest GPU")

    def state_bytes(self) -> Known:
        """Return the least bytes of weights, gradients and optimizer for a parameter, of the training in the words."""
        words = f"{self.q.claim.quote} {self.q.claim.text}"
        return exactly(16, "16") if _MIXED.search(words) and not _LEANER.search(words) else exactly(8, "8")

    def flops_each(self) -> Known:
        """Return the FLOPs per parameter and token."""
        least, most = _FLOPS_EACH[self.q.get("method") or "full"]
        size = self.q.get("parameters")
        if self.q.get("mfu") is not None:  # it counts the model's FLOPs once, with attention
            most = _WITH_ATTENTION
        seq_len = self.q.setup.seq_len or 0
        if size is not None and seq_len > _USUAL_CONTEXT:  # the narrowest model of this size: attention adds T / 6d
            most *= 1 + seq_len / (6 * math.sqrt(size.middle / (12 * _MOST_LAYERS)))
        if size is not None and size.middle < _SMALL_MODEL:
            least *= _MOSTLY_TABLES if self.q.get("tables") else _LOOKED_UP
        return least, most, f"{least:g}-{most:g} FLOP"
