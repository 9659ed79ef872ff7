"""Every configuration a goal allows on every device, as arrays: step time and memory of each, computed once.

A `Field` holds columns of equal length; nothing in it knows of token budgets or limits, so that one field answers a
goal and every "what if" about it. `plan/bills` turns its rows and token budgets into hours, dollars and losses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor import flops
from advisor.errors import AdvisorError
from advisor.hardware.offers import Offer
from advisor.laws.hyperparameters import scale_flops
from advisor.plan import recipe
from advisor.plan.goal import Brief
from advisor.predict.arrays import fits, step_seconds_many
from advisor.predict.memory import EstimateArrays
from advisor.predict.memory_terms import WorkloadArrays
from advisor.predict.profile import Profile
from trainer.schema import ModelShape

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
OVERSHOOT = math.sqrt(2)  # a micro-batch may exceed the recommended batch by this much, on its plateau still
# Global batches tried, of the one recommended at the recommended tokens: a run of fewer tokens wants a smaller one.
BATCH_FACTORS = tuple(2.0 ** (-half / 2) for half in range(-1, 7))
SOUND = 2**0.25  # times the recommended batch that one may be: with the factors above some batch is always near it


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of device, what the goal means on it, and where it can be rented."""

    profile: Profile
    brief: Brief
    offers: tuple[Offer, ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    """Configurations as columns of shape (n,)."""

    devices: tuple[Device, ...]
    offers: tuple[Offer, ...]
    device: np.ndarray  # places in `devices`
    offer: np.ndarray  # places in `offers`
    gpus: np.ndarray
    depth: np.ndarray
    micro_batch: np.ndarray
    grad_accum: np.ndarray
    full: np.ndarray  # bool: full activation checkpointing
    micro_tokens: np.ndarray
    step_tokens: np.ndarray
    counted: np.ndarray  # parameters that the ratio counts
    parameters: np.ndarray
    state_bytes: np.ndarray  # of a checkpoint
    batch_scale: np.ndarray  # DeepSeek's FLOPs per token, what the batch laws need of a shape
    smallest: np.ndarray  # bool: no smaller global batch exists for this depth on these devices
    step: EstimateArrays  # seconds
    mfu: np.ndarray  # NaN where the device's peak is unknown
    memory: EstimateArrays  # bytes per device
    fits: np.ndarray  # bool

    def __len__(self) -> int:
        return len(self.depth)

    def rows(self, places: np.ndarray) -> Field:
        """The configurations at these places, a boolean mask or indices."""
        changes = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                changes[field.name] = value[places]
            elif isinstance(value, EstimateArrays):
                changes[field.name] = _picked(value, places)
        return replace(self, **changes)

    @property
    def usd_per_hour(self) -> np.ndarray:
        """Rent of everything rented; NaN where unknown."""
        prices = [math.nan if o.usd_per_hour is None else o.usd_per_hour for o in self.offers]
        return np.array(prices)[self.offer]

    @property
    def watts(self) -> np.ndarray:
        """Of all devices of a row, shape (3, n): low, value, high; NaN where unknown."""
        found = np.full((3, len(self)), math.nan)
        for number, device in enumerate(self.devices):
            mine = self.device == number
            if device.brief.power is not None:
                found[:, mine] = device.brief.power.sides(self.mfu[mine], device.brief.goal.power_cap_watts)
        return found * self.gpus


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Which configurations are tried on a device: columns of shape (n,), the first two places in the lists."""

    shapes: tuple[ModelShape, ...]
    sizes: np.ndarray  # micro-batches
    shape: np.ndarray
    size: np.ndarray
    accum: np.ndarray
    gpus: np.ndarray
    smallest: np.ndarray  # bool: see Field

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(shape.depth for shape in self.shapes)

    def rows(self, places: np.ndarray) -> _Layout:
        names = ("shape", "size", "accum", "gpus", "smallest")
        return replace(self, **{name: getattr(self, name)[places] for name in names})


_Tables = dict[tuple, np.ndarray]


def make_field(devices: Sequence[Device]) -> Field:
    """Compute step time and memory of every configuration; offers of one count share them."""
    offers = tuple(offer for device in devices for offer in device.offers)
    tables: _Tables = {}
    parts, first = [], 0
    for number, device in enumerate(devices):
        part = _device_field(device, tables)
        for place in range(first, first + len(device.offers)):
            mine = part.rows(part.gpus == offers[place].gpus)
            parts.append(replace(mine, device=np.full(len(mine), number), offer=np.full(len(mine), place)))
        first += len(device.offers)
    return _joined(tuple(devices), offers, parts)


def _device_field(device: Device, tables: _Tables) -> Field:
    """Rows of one device for every count among its offers; the columns `device` and `offer` are still empty."""
    profile, pinned = device.profile, device.brief.goal.activation_checkpointing
    plain = pinned or profile.activation_checkpointing
    layout = _layout(device)
    found = [_rows(device, layout, plain, tables)]
    if pinned is None and plain == "none" and profile.device_type == "cuda":
        # recomputation where nothing else fits: elsewhere it only costs time
        found.append(_rows(device, layout.rows(~found[0].fits), "full", tables))
    return _joined((device,), device.offers, found)


def _layout(device: Device) -> _Layout:
    """Each depth, global batch and micro-batch for each count of the device's offers.

    Micro-batches far above the recommended batch are left out, unless a depth has no smaller one.
    """
    brief = device.brief
    goal, shapes = brief.goal, tuple(brief.shape(depth) for depth in brief.depths)
    sizes = np.array([goal.micro_batch] if goal.micro_batch else MICRO_BATCHES)

    def recommended(shape: ModelShape) -> float:
        return float(recipe.recommended_batch(scale_flops(shape), brief.ratio * brief.counted(shape)))

    usual = [goal.global_batch_tokens or recommended(s) for s in shapes]
    factors = (1.0,) if goal.global_batch_tokens else BATCH_FACTORS
    counts = np.array(sorted({offer.gpus for offer in device.offers}))
    target = (
        np.array(usual, dtype=float)[:, None] * np.array(factors)[:, None, None, None]
    )  # factor, count, depth, size
    one = (counts[:, None, None] * sizes * brief.seq_len).astype(float)  # tokens of one micro-batch on all devices
    accum = np.maximum(1, np.rint(target / one)).astype(int)
    fresh = np.ones(accum.shape, dtype=bool)
    fresh[1:] = accum[1:] != accum[:-1]
    smallest = (accum == 1) & (sizes == sizes.min())
    near = np.full(accum.shape, True) if goal.micro_batch else one <= OVERSHOOT * target.max(axis=0, keepdims=True)
    chosen = np.nonzero(fresh & (near | smallest))
    _, count, shape, size = chosen
    return _Layout(
        shapes=shapes,
        sizes=sizes,
        shape=shape,
        size=size,
        accum=accum[chosen],
        gpus=counts[count],
        smallest=smallest[chosen],
    )


def _workloads(device: Device, layout: _Layout, checkpointing: str) -> WorkloadArrays:
    brief = device.brief
    names = ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")
    table = np.array([[getattr(s, name) for name in names] for s in layout.shapes], dtype=np.int64)
    return WorkloadArrays(
        family=brief.goal.family,
        device_type=device.profile.device_type,
        precision=brief.precision,
        compile=brief.compile,
        activation_checkpointing=checkpointing,
        optimizer=brief.goal.optimizer,
        sharding="none",
        gpus=1,
        micro_batch=layout.sizes[layout.size].astype(np.int64),
        accumulate=layout.accum > 1,
        **dict(zip(names, table[layout.shape].T, strict=True)),
    )


def _rows(device: Device, layout: _Layout, checkpointing: str, tables: _Tables) -> Field:
    a, accum, gpus = _workloads(device, layout, checkpointing), layout.accum, layout.gpus
    memory = _memory(device, layout, checkpointing, tables)
    counted = {"matrices+head": flops.matmul_parameters, "total": flops.parameters,
               "matrices": flops.block_matrix_parameters}[device.brief.ratio_counts](a)  # fmt: skip
    state = 12.0 * a.parameters - (4.0 * a.block_matrices if a.optimizer == "muon" else 0.0)
    empty = np.zeros(len(accum), dtype=int)
    step, step_tokens = step_seconds_many(device.profile, a, accum, gpus), a.tokens * accum * gpus
    peak = device.profile.peak_flops(device.brief.precision)
    return Field(
        devices=(device,),
        offers=device.offers,
        device=empty,
        offer=empty,
        gpus=gpus,
        depth=a.depth,
        micro_batch=a.micro_batch,
        grad_accum=accum,
        full=np.full(len(accum), a.activation_checkpointing == "full"),
        micro_tokens=a.tokens,
        step_tokens=step_tokens,
        counted=counted.astype(float),
        parameters=a.parameters.astype(float),
        state_bytes=state,
        batch_scale=scale_flops(a),
        smallest=layout.smallest,
        step=step,
        mfu=flops.flops_per_token(a) * step_tokens / step.value / (gpus * peak)
        if peak
        else np.full(len(accum), math.nan),
        memory=memory,
        fits=fits(memory, device.profile.device_memory_bytes),
    )


def _memory(device: Device, layout: _Layout, checkpointing: str, tables: _Tables) -> EstimateArrays:
    """Bytes per device of each row, from a table of depth × micro-batch × accumulated or not × one GPU or several.

    Memory depends on neither the number of micro-batches nor that of GPUs beyond one, and cards that nobody has
    calibrated share one model: each table is computed once.
    """
    model, brief = device.profile.memory, device.brief
    kind = (id(model), brief.precision, brief.compile, device.profile.device_type, checkpointing, layout.depths)
    if kind not in tables:
        tables[kind] = _memory_table(device, layout, checkpointing)
    value, low, high = tables[kind][:, layout.shape, layout.size, (layout.accum > 1) + 0, (layout.gpus > 1) + 0]
    return EstimateArrays(value=value, low=low, high=high)


def _memory_table(device: Device, layout: _Layout, checkpointing: str) -> np.ndarray:
    """Shape (3, depths, sizes, 2, 2): value, low, high."""
    places = np.indices((len(layout.shapes), len(layout.sizes), 2)).reshape(3, -1)
    every = replace(layout, shape=places[0], size=places[1], accum=places[2] + 1)
    a = _workloads(device, every, checkpointing)
    sides = []
    for gpus in (1, 2):
        found = device.profile.memory.device_total_many(replace(a, gpus=gpus))
        sides.append(np.stack([found.value, found.low, found.high]))
    return np.stack(sides, axis=-1).reshape(3, len(layout.shapes), len(layout.sizes), 2, 2)


def _joined(devices: tuple[Device, ...], offers: tuple[Offer, ...], parts: Sequence[Field]) -> Field:
    if not parts:
        raise AdvisorError("nothing to search", exit_code=3)
    columns = {}
    for field in dataclasses.fields(Field):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            columns[field.name] = np.concatenate(values)
        elif isinstance(values[0], EstimateArrays):
            columns[field.name] = EstimateArrays(
                value=np.concatenate([v.value for v in values]),
                low=np.concatenate([v.low for v in values]),
                high=np.concatenate([v.high for v in values]),
            )
    return Field(devices=devices, offers=offers, **columns)


def _picked(many: EstimateArrays, places: np.ndarray) -> EstimateArrays:
    return EstimateArrays(value=many.value[places], low=many.low[places], high=many.high[places])
