"""Compute step time and memory of every configuration that a goal allows on every device, as arrays.

`Candidates` holds columns of equal length. They do not depend on token budgets or limits, so one table answers a goal
and every what-if about it. `planning/costs.py` turns rows and numbers of steps into hours, dollars and losses.

The batch rule: global batches are tried around the recommendation of published laws. For each of them, the micro-batch
is the smallest that fits the memory and reaches 98 % of the best tokens/s (`prediction/micro_batch.py`). Each run may
only use the global batch nearest to the recommendation for its tokens (`Costs.batch_is_nearest`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from advisor.laws import flops
from advisor.laws.hyperparameters import scale_flops
from advisor.offer import Offer
from advisor.planning.goal import Brief
from advisor.planning.recipe import CLOSE, Window, global_batches, micro_batches
from advisor.prediction.batch import fits, step_seconds_many, tokens_per_second_many
from advisor.prediction.comm import caution
from advisor.prediction.intervals import EstimateArrays, Table, stacked
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.micro_batch import Tries, group_keys, one_micro_batch
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.prediction.wallclock import state_bytes
from advisor.records import Workload
from advisor.settings import SHARDINGS

ROOMY = 0.85  # share of the GPU's memory that the conservative option may use at the high end of the estimate
OVERSHOOT = math.sqrt(2)  # a micro-batch may exceed the recommended batch by this factor, which loses little
# Global batches to try, in half octaves around the recommendation for the recommended tokens. A run with a tenth of the
# tokens needs about a quarter of the batch. With one kind of device or a fixed depth, limits may allow a thousandth of
# the tokens or a thousand times as many. With many devices, some depth suits the limits on some device, and
# `choose.search` widens the window if the chosen run lies at its edge.
USUAL_WINDOW, WIDEST_WINDOW = (-4, 3), (-25, 14)


@dataclass(frozen=True, kw_only=True)
class MemoryKind:
    """How a configuration saves memory. If checkpointing is None, it is as requested or as calibrated."""

    checkpointing: str | None
    sharding: str


# The cheapest kind comes first, because the first of several kinds with equal micro-batches is taken.
KINDS = tuple(
    MemoryKind(checkpointing=c, sharding=s) for s in ("none", "optimizer", "full") for c in (None, "selective", "full")
)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of device with the goal's settings for it and the offers to rent it."""

    profile: Profile
    brief: Brief
    offers: tuple[Offer, ...]


@dataclass(frozen=True, kw_only=True, eq=False)  # compared by identity, so that results can be cached for them
class Machines:
    """The devices of a search and all of their offers, in the order of the devices."""

    devices: tuple[Device, ...]
    offers: tuple[Offer, ...]
    owners: tuple[Device, ...]  # the device of each offer
    cautions: np.ndarray  # `comm.caution` of each offer


@dataclass(frozen=True, kw_only=True)
class Candidates(Table):
    """Configurations as columns, each of shape (n,)."""

    machines: Machines
    device: np.ndarray  # indices into the machines' devices
    offer: np.ndarray  # indices into their offers
    spot: np.ndarray  # bool: the machine may be taken back
    gpus: np.ndarray
    depth: np.ndarray
    micro_batch: np.ndarray
    grad_accum: np.ndarray
    kind: np.ndarray  # indices into `KINDS`
    rate: np.ndarray  # tokens per second by which the batch rule compares them
    ruled: np.ndarray  # bool: chosen by the batch rule among the rows that fit the memory
    spared: np.ndarray  # bool: chosen by the batch rule among the rows that leave memory free (ROOMY)
    micro_tokens: np.ndarray
    step_tokens: np.ndarray
    counted: np.ndarray  # parameters that count in tokens per parameter
    parameters: np.ndarray
    state_bytes: np.ndarray  # of a checkpoint
    scale: np.ndarray  # `scale_flops`, the size of a model in the batch laws
    step: EstimateArrays  # seconds
    mfu: np.ndarray  # NaN where the device's peak is unknown
    memory: EstimateArrays  # bytes per device
    fits: np.ndarray  # bool

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def likely_to_fit(self) -> np.ndarray:
        """Mark the configurations that are at least as likely to fit as not."""
        sizes = [device.profile.device_memory_bytes or math.inf for device in self.machines.devices]
        return self.memory.value <= FIT_MARGIN * np.array(sizes)[self.device]

    def workload(self, place: int) -> Workload:
        """Return the configuration of one row."""
        device, offer = self.machines.devices[self.device[place]], self.machines.offers[self.offer[place]]
        brief = device.brief
        plain = brief.goal.activation_checkpointing or device.profile.activation_checkpointing
        return Workload(
            shape=brief.shape(int(self.depth[place])),
            micro_batch=int(self.micro_batch[place]),
            grad_accum=int(self.grad_accum[place]),
            gpu=offer.gpu,
            gpus=offer.gpus,
            precision=brief.precision,
            compile=brief.compile,
            activation_checkpointing=KINDS[self.kind[place]].checkpointing or plain,
            optimizer=brief.goal.optimizer,
            sharding=KINDS[self.kind[place]].sharding,
            software=brief.software,
        )


@dataclass(frozen=True, kw_only=True)
class _Layout(Table):
    """The configurations that are tried on a device, as columns of shape (n,) beside the lists that they index."""

    kind: int  # index into `KINDS`
    shapes: WorkloadArrays  # a row for each depth
    sizes: tuple[int, ...]  # the micro-batches
    shape: np.ndarray  # indices into `shapes`
    size: np.ndarray  # indices into `sizes`
    accum: np.ndarray
    gpus: np.ndarray
    target: np.ndarray  # indices of the global batches that the rows should reach

    @property
    def workloads(self) -> WorkloadArrays:
        """The configurations in the form that the predictor takes."""
        return replace(
            self.shapes.rows(self.shape),
            activation_checkpointing=KINDS[self.kind].checkpointing or self.shapes.activation_checkpointing,
            sharding=KINDS[self.kind].sharding,
            micro_batch=np.array(self.sizes)[self.size],
            accumulate=self.accum > 1,
        )


_Tables = dict[tuple, np.ndarray]


def make_candidates(
    devices: Sequence[Device], *, window: Window = WIDEST_WINDOW, every_micro_batch: bool = False
) -> Candidates:
    """Return step time and memory of every configuration that the batch rule chooses.

    `window` is the range of global batches to try where limits decide the tokens.
    `every_micro_batch` also returns the configurations that the rule does not choose.
    """
    offers = [(device, offer) for device in devices for offer in device.offers]
    machines = Machines(
        devices=tuple(devices),
        offers=tuple(offer for _, offer in offers),
        owners=tuple(device for device, _ in offers),
        cautions=np.array([caution(device.profile.spec, offer.gpus) for device, offer in offers]),
    )
    alike: dict[object, list[int]] = {}
    for number, device in enumerate(devices):
        alike.setdefault(_in_common(device), []).append(number)
    tables: _Tables = {}
    rows: dict[int, Candidates] = {}
    for numbers in alike.values():
        found = _of_devices(machines, [devices[n] for n in numbers], tables, every_micro_batch, window)
        rows |= zip(numbers, found, strict=True)
    parts: list[Candidates] = []
    place = 0
    for number, device in enumerate(devices):
        # Offers with equal numbers of GPUs share their rows.
        for offer in device.offers:
            mine = rows[number].rows(rows[number].gpus == offer.gpus)
            same = {"device": number, "offer": place, "spot": offer.spot}  # one value for all of these rows
            columns: dict[str, Any] = {name: np.full(len(mine), value) for name, value in same.items()}
            parts.append(replace(mine, **columns))
            place += 1
    return stacked(parts)


def _in_common(device: Device) -> object:
    """Return what is equal for devices that can be computed together: all but the sizes, the tokens and the offers."""
    brief, goal = device.brief, device.brief.goal
    return (
        *(id(device.profile), brief.precision, brief.compile, brief.software, brief.sharding, brief.ratio_counts),
        *(goal.family, goal.optimizer, goal.activation_checkpointing, goal.sharding),
    )


def _of_devices(
    machines: Machines, devices: Sequence[Device], tables: _Tables, every_micro_batch: bool, window: Window
) -> list[Candidates]:
    """Return the rows of each device for each number of GPUs among its offers, without the columns of the offers.

    The devices differ only in what `_in_common` leaves out: the changes of a what-if are devices of this kind.
    """
    device, brief, goal = devices[0], devices[0].brief, devices[0].brief.goal
    memory_bytes = device.profile.device_memory_bytes
    plain = Workload(
        shape=brief.shape(brief.depths[0]), micro_batch=1, gpu=device.profile.key, precision=brief.precision,
        compile=brief.compile, optimizer=goal.optimizer, software=brief.software,
        activation_checkpointing=goal.activation_checkpointing or device.profile.activation_checkpointing,
    )  # fmt: skip
    models = [(number, one.brief.shape(depth)) for number, one in enumerate(devices) for depth in one.brief.depths]
    owner = np.array([number for number, _ in models])
    shapes = WorkloadArrays.of([replace(plain, shape=shape) for _, shape in models])
    usual = [micro_batches(one.brief) for one in devices]
    sizes = np.unique(np.concatenate(usual))
    parts = [
        _tried(one, shapes, np.nonzero(owner == number)[0], mine, every_micro_batch, window)
        for number, (one, mine) in enumerate(zip(devices, usual, strict=True))
    ]
    tried = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    tried["size"] = np.searchsorted(sizes, tried["size"])
    whole = _Layout(kind=0, shapes=shapes, sizes=tuple(sizes.tolist()), **tried)
    several = whole.gpus > 1  # a single GPU cannot be sharded, whatever the goal says about several
    split = SHARDINGS[goal.sharding or brief.sharding].moments
    plain_rows = {"none": ~several if split else np.ones_like(several), "optimizer": several, "full": several}
    found: dict[int, tuple[_Layout, EstimateArrays]] = {}
    cuda = device.profile.device_type == "cuda"
    free = cuda and goal.activation_checkpointing is None and device.profile.activation_checkpointing == "none"
    shardings = {"none", goal.sharding or brief.sharding, *(["full"] if goal.sharding is None and cuda else [])}
    for kind, how in enumerate(KINDS):
        if how.sharding not in shardings or not (how.checkpointing is None or free):
            continue  # the goal does not allow it on this device
        first = KINDS.index(MemoryKind(checkpointing=None, sharding=how.sharding))
        if kind == first:
            layout, rows = whole, plain_rows[how.sharding]
        elif first in found:  # recomputation is tried only where the rows without it do not fit
            layout, rows = found[first][0], ~fits(found[first][1], memory_bytes)
        else:
            continue
        if rows.any():
            layout = replace(layout.rows(rows), kind=kind)
            found[kind] = layout, _memory(device, layout, tables)
    layouts = [layout for layout, _ in found.values()]
    rates = [tokens_per_second_many(device.profile, one.workloads, one.accum, one.gpus) for one in layouts]
    masks = _batch_rule(device, list(found.values()), rates)
    tables_of: list[list[Candidates]] = [[] for _ in devices]
    for (layout, memory), rate, ruled, spared in zip(found.values(), rates, *masks, strict=True):
        places = np.arange(len(ruled)) if every_micro_batch else np.nonzero(ruled | spared)[0]
        part = _rows(machines, device, layout.rows(places), memory.rows(places))
        part = replace(part, rate=rate[places], ruled=ruled[places], spared=spared[places])
        for number, mine in enumerate(tables_of):
            mine.append(part if len(devices) == 1 else part.rows(owner[layout.shape[places]] == number))
    return [stacked(mine) for mine in tables_of]


def _tried(
    device: Device, shapes: WorkloadArrays, own: np.ndarray, sizes: np.ndarray, every_micro_batch: bool, window: Window
) -> dict[str, np.ndarray]:
    """Return the configurations to try on a device, whose models are the rows `own` of `shapes`, as columns.

    Each depth, global batch and micro-batch is tried for each number of GPUs. Micro-batches far above the global batch
    are left out, unless none is smaller, and so are those that miss a requested global batch, unless every micro-batch
    is wanted.
    """
    brief, goal = device.brief, device.brief.goal
    counts = np.array(sorted({offer.gpus for offer in device.offers}))
    targets = global_batches(brief, shapes.rows(own), window)[:, None, :, None]  # axes: target, count, depth, size
    micro_tokens = (counts[:, None, None] * sizes * brief.seq_len).astype(float)  # of all GPUs together
    accum = np.maximum(1, np.rint(targets / micro_tokens)).astype(int)
    tried = (micro_tokens <= OVERSHOOT * targets) | (sizes == sizes.min())
    if goal.global_batch_tokens is not None and not every_micro_batch:
        # Those that reach it exactly, or else within CLOSE, or else most closely.
        off = np.abs(np.log(accum * micro_tokens / targets))
        least = off.min(axis=-1, keepdims=True)
        tried &= off <= np.where(least == 0, 0.0, np.maximum(least, math.log1p(CLOSE)))
    target, count, shape, size = chosen = np.nonzero(tried)
    return {"shape": own[shape], "size": sizes[size], "accum": accum[chosen], "gpus": counts[count], "target": target}


def _batch_rule(
    device: Device, found: Sequence[tuple[_Layout, EstimateArrays]], rates: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return for each layout the rows that the batch rule chooses: among those that fit, and among those with room."""
    profile, layouts = device.profile, [layout for layout, _ in found]
    every, memory, lengths = stacked(layouts), stacked([memory for _, memory in found]), [len(a.accum) for a in layouts]
    tries = Tries(
        setting=group_keys(every.gpus, every.shape),
        target=every.target,
        micro_batch=np.array(every.sizes)[every.size],
        grad_accum=every.accum,
        kind=np.repeat([layout.kind for layout in layouts], lengths),
        rate=np.concatenate(rates),
        memory=memory.high,
    )
    fitting = fits(memory, profile.device_memory_bytes)
    spare = fitting & (memory.high <= ROOMY * (profile.device_memory_bytes or math.inf))
    ruled, spared = one_micro_batch(tries, fitting), one_micro_batch(tries, spare) & spare
    ends = np.cumsum(lengths)[:-1]
    return np.split(ruled, ends), np.split(spared, ends)


def _rows(machines: Machines, device: Device, layout: _Layout, memory: EstimateArrays) -> Candidates:
    """Return the columns of these rows except those of their offers and of the batch rule."""
    a, accum, gpus = layout.workloads, layout.accum, layout.gpus
    empty = np.zeros(len(accum), dtype=int)
    # Use the mean of each step time, because the lowest of many uncertain medians is probably too low.
    step = step_seconds_many(device.profile, a, accum, gpus, expected=True)
    step_tokens = a.tokens * accum * gpus
    peak = device.profile.peak_flops(device.brief.precision)
    rate = step_tokens / step.value
    return Candidates(
        machines=machines,
        device=empty,
        offer=empty,
        spot=empty.astype(bool),
        gpus=gpus,
        depth=a.depth,
        micro_batch=a.micro_batch,
        grad_accum=accum,
        kind=np.full(len(accum), layout.kind),
        rate=empty.astype(float),
        ruled=empty.astype(bool),
        spared=empty.astype(bool),
        micro_tokens=a.tokens,
        step_tokens=step_tokens,
        counted=flops.scaling_parameters(a, device.brief.ratio_counts).astype(float),
        parameters=a.parameters.astype(float),
        state_bytes=state_bytes(a, a.optimizer).astype(float),
        scale=scale_flops(a),
        step=step,
        mfu=flops.mfu(flops.flops_per_token(a), rate, gpus, peak) if peak else np.full(len(accum), math.nan),
        memory=memory,
        fits=fits(memory, device.profile.device_memory_bytes),
    )


def _memory(device: Device, layout: _Layout, tables: _Tables) -> EstimateArrays:
    """Return the bytes per GPU of each row.

    They come from a table over depth, micro-batch, accumulation (yes or no) and number of GPUs. Memory does not depend
    on the number of micro-batches. Without sharding, it is also the same for any number of GPUs above one. Devices
    without a calibration share one memory model, so `tables` stores each table for reuse.
    """
    model, brief = device.profile.memory, device.brief
    split = SHARDINGS[KINDS[layout.kind].sharding].moments
    counts = np.unique(layout.gpus if split else np.minimum(layout.gpus, 2))
    shape = (len(layout.shapes.depth), len(layout.sizes), 2, len(counts))
    how = (brief.precision, brief.compile, device.profile.device_type, layout.sizes, tuple(counts.tolist()))
    name = (id(model), layout.kind, layout.shapes.activation_checkpointing, layout.shapes.sizes, *how)
    if name not in tables:
        # The table's shape is (3, depths * sizes * 2 * counts): value, low, high.
        places = np.indices(shape[:3]).reshape(3, -1)
        a = replace(layout, shape=places[0], size=places[1], accum=places[2] + 1).workloads
        sides = []
        for gpus in counts.tolist():
            used = model.device_total_many(replace(a, gpus=gpus))
            sides.append(np.stack([used.value, used.low, used.high]))
        tables[name] = np.stack(sides, axis=-1).reshape(3, -1)
    count = np.searchsorted(counts, layout.gpus if split else np.minimum(layout.gpus, 2))
    place = np.ravel_multi_index((layout.shape, layout.size, (layout.accum > 1) + 0, count), shape)
    value, low, high = (side[place] for side in tables[name])
    return EstimateArrays(value=value, low=low, high=high)
