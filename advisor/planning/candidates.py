"""Every configuration a goal allows on every device, as arrays: step time and memory of each, computed once.

`Candidates` holds columns of equal length; nothing in it knows of token budgets or limits, so that one table answers a
goal and every "what if" about it. `planning/costs` turns its rows and token budgets into hours, dollars and losses.

The batch rule: global batches are tried around what published laws recommend, and at each of them the micro-batch is
the smallest that reaches 98 % of the best tokens/s among those that fit the memory (`prediction/micro_batch`). Of a
run's global batches the one nearest to the laws' recommendation for its tokens counts (`costs.batch_is_nearest`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from advisor.laws import flops
from advisor.laws.hyperparameters import scale_flops
from advisor.offer import Offer
from advisor.planning.batches import Window, as_asked, global_batches, micro_batches
from advisor.planning.goal import Brief
from advisor.prediction.batch import fits, step_seconds_many, tokens_per_second_many
from advisor.prediction.groups import group_keys
from advisor.prediction.intervals import BASES, EstimateArrays, stacked
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.micro_batch import Tries, one_micro_batch
from advisor.prediction.profile import Profile
from advisor.prediction.wallclock import state_bytes
from advisor.records import Workload
from trainer.schema import ModelShape

ROOMY = 0.85  # of the device's memory: what the conservative option keeps within at its interval's high end
OVERSHOOT = math.sqrt(2)  # a micro-batch may exceed the recommended batch by this much, on its plateau still
# Global batches tried, in half octaves about the one recommended at the usual tokens: a run of a tenth of the tokens
# wants about a quarter of it. With one kind of device, or at a depth that was asked for, limits may allow a thousandth
# of the tokens or a thousand times as many; among all kinds a depth that suits the limits is a candidate on some
# device, and `choose.search` looks further where the choice lies at the edge.
USUAL_WINDOW, WIDEST_WINDOW = (-4, 3), (-25, 14)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a configuration saves memory. None: checkpointing as asked for, or as it was calibrated."""

    checkpointing: str | None
    sharding: str


# In the order in which they are taken where they are alike in size: what costs least first.
KINDS = tuple(
    Kind(checkpointing=c, sharding=s) for s in ("none", "optimizer", "full") for c in (None, "selective", "full")
)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One kind of device, what the goal means on it, and where it can be rented."""

    profile: Profile
    brief: Brief
    offers: tuple[Offer, ...]


def kind_of(device: Device, workload: Workload) -> int:
    """The place in `KINDS` of a configuration on a device."""
    plain = device.brief.goal.activation_checkpointing or device.profile.activation_checkpointing
    own = None if workload.activation_checkpointing == plain else workload.activation_checkpointing
    return KINDS.index(Kind(checkpointing=own, sharding=workload.sharding))


@dataclass(frozen=True, kw_only=True, eq=False)  # told apart by identity: what is worked out of them is kept
class Machines:
    """Devices and all of their offers, in the same order."""

    devices: tuple[Device, ...]
    offers: tuple[Offer, ...]

    @property
    def owners(self) -> tuple[Device, ...]:
        """The device of each offer."""
        return tuple(device for device in self.devices for _ in device.offers)


@lru_cache(maxsize=64)
def _of_offers(machines: Machines, attribute: str) -> np.ndarray:
    values = [getattr(offer, attribute) for offer in machines.offers]
    return np.array([math.nan if value is None else value for value in values])


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Configurations as columns of shape (n,)."""

    machines: Machines
    device: np.ndarray  # places in `devices`
    offer: np.ndarray  # places in `offers`
    gpus: np.ndarray
    depth: np.ndarray
    micro_batch: np.ndarray
    grad_accum: np.ndarray
    kind: np.ndarray  # places in `KINDS`: what is recomputed and sharded
    ruled: np.ndarray  # bool: what the batch rule leaves of all that fits the memory
    spared: np.ndarray  # bool: what it leaves of all that has memory to spare
    micro_tokens: np.ndarray
    step_tokens: np.ndarray
    counted: np.ndarray  # parameters that the ratio counts
    parameters: np.ndarray
    state_bytes: np.ndarray  # of a checkpoint
    scale: np.ndarray  # `scale_flops`, what the batch laws need of a shape
    step: EstimateArrays  # seconds
    mfu: np.ndarray  # NaN where the device's peak is unknown
    memory: EstimateArrays  # bytes per device
    fits: np.ndarray  # bool

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.machines.devices

    @property
    def offers(self) -> tuple[Offer, ...]:
        return self.machines.offers

    def rows(self, places: np.ndarray | slice) -> Candidates:
        """The configurations at these places: a boolean mask, indices or a slice."""
        columns = {name: getattr(self, name)[places] for name in _COLUMNS}
        return Candidates(
            machines=self.machines, step=self.step.rows(places), memory=self.memory.rows(places), **columns
        )

    def of_offers(self, attribute: str) -> np.ndarray:
        """An attribute of each row's offer; NaN for a number that is not known."""
        return _of_offers(self.machines, attribute)[self.offer]

    @property
    def watts(self) -> EstimateArrays:
        """Of all devices of a row; NaN where unknown."""
        sides = np.full((3, len(self)), math.nan)
        for number, device in enumerate(self.devices):
            mine = self.device == number
            if device.brief.power is not None:
                sides[:, mine] = device.brief.power.sides(self.mfu[mine], device.brief.goal.power_cap_watts)
        low, value, high = sides * self.gpus
        powers = [device.brief.power for device in self.devices]
        bases = np.array([BASES.index(power.basis) if power else 0 for power in powers])
        return EstimateArrays(value=value, low=low, high=high, basis=bases[self.device])

    def workload(self, place: int) -> Workload:
        """The configuration of one row."""
        device, offer = self.devices[self.device[place]], self.offers[self.offer[place]]
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
class _Layout:
    """Which configurations are tried on a device: columns of shape (n,), the first two places in the lists."""

    shapes: tuple[ModelShape, ...]
    sizes: np.ndarray  # micro-batches
    shape: np.ndarray
    size: np.ndarray
    accum: np.ndarray
    gpus: np.ndarray
    target: np.ndarray  # which of the global batches tried it is for

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(shape.depth for shape in self.shapes)

    def rows(self, places: np.ndarray) -> _Layout:
        names = ("shape", "size", "accum", "gpus", "target")
        return replace(self, **{name: getattr(self, name)[places] for name in names})


_Tables = dict[tuple, np.ndarray]


def make_candidates(
    devices: Sequence[Device], *, window: Window | None = None, every_micro_batch: bool = False
) -> Candidates:
    """Compute step time and memory of every configuration that the batch rule leaves; offers of one count share them.

    `window` says which global batches are tried where limits decide the tokens; None: `first_window`. With
    `every_micro_batch` what the rule does not leave, too.
    """
    offers = tuple(offer for device in devices for offer in device.offers)
    machines = Machines(devices=tuple(devices), offers=offers)
    tables: _Tables = {}
    parts, first = [], 0
    for number, device in enumerate(devices):
        part = _of_device(device, tables, every_micro_batch, window or first_window(devices))
        for place in range(first, first + len(device.offers)):
            mine = part.rows(part.gpus == offers[place].gpus)
            parts.append(replace(mine, device=np.full(len(mine), number), offer=np.full(len(mine), place)))
        first += len(device.offers)
    return _joined(machines, parts)


def first_window(devices: Sequence[Device]) -> Window:
    """The global batches that a search begins with."""
    return WIDEST_WINDOW if len(devices) == 1 or devices[0].brief.goal.depth is not None else USUAL_WINDOW


def _of_device(device: Device, tables: _Tables, every_micro_batch: bool, window: Window) -> Candidates:
    """Rows of one device for every count among its offers; the columns `device` and `offer` are still empty."""
    # Try each depth, global batch and micro-batch for each count of the device's offers. Micro-batches far above the
    # global batch are left out, unless there is no smaller one; so are those that miss a global batch that was asked
    # for, unless every micro-batch is wanted.
    brief = device.brief
    goal, shapes = brief.goal, tuple(brief.shape(depth) for depth in brief.depths)
    sizes = micro_batches(brief)
    counts = np.array(sorted({offer.gpus for offer in device.offers}))
    targets = global_batches(brief, shapes, window)[:, None, :, None]  # axes: target, count, depth, size
    micro_tokens = (counts[:, None, None] * sizes * brief.seq_len).astype(float)  # on all devices together
    accum = np.maximum(1, np.rint(targets / micro_tokens)).astype(int)
    tried = (micro_tokens <= OVERSHOOT * targets) | (sizes == sizes.min())
    if goal.global_batch_tokens is not None and not every_micro_batch:
        tried &= as_asked(accum * micro_tokens / targets)
    chosen = np.nonzero(tried)
    target, count, shape, size = chosen
    whole = _Layout(
        shapes=shapes, sizes=sizes, shape=shape, size=size, accum=accum[chosen], gpus=counts[count], target=target
    )
    several = whole.gpus > 1  # one GPU has nobody to share with, whatever is asked of several
    split = (device.brief.goal.sharding or device.brief.sharding) != "none"
    plain_rows = {"none": ~several if split else np.ones_like(several), "optimizer": several, "full": several}
    layouts: dict[int, _Layout] = {}
    memories: dict[int, EstimateArrays] = {}
    for kind in _tried_kinds(device):
        plain = KINDS.index(Kind(checkpointing=None, sharding=KINDS[kind].sharding))
        if kind == plain:
            base, rows = whole, plain_rows[KINDS[kind].sharding]
        elif plain in layouts:  # to recompute where plain rows fit only costs time
            base, rows = layouts[plain], ~fits(memories[plain], device.profile.device_memory_bytes)
        else:
            continue
        if rows.any():
            layouts[kind] = base.rows(rows)
            memories[kind] = _memory(device, layouts[kind], kind, tables)
    masks = _batch_rule(device, layouts, memories)
    parts = []
    for kind, layout in layouts.items():
        ruled, spared = masks[kind]
        places = np.arange(len(ruled)) if every_micro_batch else np.nonzero(ruled | spared)[0]
        part = _rows(device, layout.rows(places), kind, memories[kind].rows(places))
        parts.append(replace(part, ruled=ruled[places], spared=spared[places]))
    return _joined(parts[0].machines, parts)


def _tried_kinds(device: Device) -> list[int]:
    """The kinds of saving memory that a goal leaves open on a device, the plain one of each sharding first."""
    profile, goal = device.profile, device.brief.goal
    free = goal.activation_checkpointing is None and profile.activation_checkpointing == "none"
    cuda = profile.device_type == "cuda"
    shardings = {"none", goal.sharding or device.brief.sharding, *(["full"] if goal.sharding is None and cuda else [])}
    return [
        number
        for number, kind in enumerate(KINDS)
        if (kind.checkpointing is None or (free and cuda)) and kind.sharding in shardings
    ]


def _batch_rule(
    device: Device, layouts: Mapping[int, _Layout], memories: Mapping[int, EstimateArrays]
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Which rows of each kind the batch rule leaves of what fits, and of what has memory to spare."""
    kinds, size = list(layouts), device.profile.device_memory_bytes

    def joined(column: Callable[[int], np.ndarray]) -> np.ndarray:
        return np.concatenate([column(kind) for kind in kinds])

    def rate_of(kind: int) -> np.ndarray:
        layout = layouts[kind]
        return tokens_per_second_many(device.profile, _workloads(device, layout, kind), layout.accum, layout.gpus)

    kind = np.repeat(kinds, [len(layouts[kind].accum) for kind in kinds])
    tries = Tries(
        setting=group_keys(joined(lambda kind: layouts[kind].gpus), joined(lambda kind: layouts[kind].shape)),
        target=joined(lambda kind: layouts[kind].target),
        micro_batch=joined(lambda kind: layouts[kind].sizes[layouts[kind].size]),
        grad_accum=joined(lambda kind: layouts[kind].accum),
        kind=kind,
        rate=joined(rate_of),
        memory=joined(lambda kind: memories[kind].high),
    )
    fitting = joined(lambda kind: fits(memories[kind], size))
    spare = fitting & (tries.memory <= ROOMY * (size or math.inf))
    ruled, spared = one_micro_batch(tries, fitting), one_micro_batch(tries, spare) & spare
    return {number: (ruled[kind == number], spared[kind == number]) for number in kinds}


def _workloads(device: Device, layout: _Layout, kind: int) -> WorkloadArrays:
    brief = device.brief
    plain = brief.goal.activation_checkpointing or device.profile.activation_checkpointing
    names = ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")
    table = np.array([[getattr(s, name) for name in names] for s in layout.shapes], dtype=np.int64)
    return WorkloadArrays(
        family=brief.goal.family,
        device_type=device.profile.device_type,
        precision=brief.precision,
        compile=brief.compile,
        activation_checkpointing=KINDS[kind].checkpointing or plain,
        optimizer=brief.goal.optimizer,
        sharding=KINDS[kind].sharding,
        software=brief.software,
        gpus=1,
        micro_batch=layout.sizes[layout.size].astype(np.int64),
        accumulate=layout.accum > 1,
        **dict(zip(names, table[layout.shape].T, strict=True)),
    )


def _rows(device: Device, layout: _Layout, kind: int, memory: EstimateArrays) -> Candidates:
    a, accum, gpus = _workloads(device, layout, kind), layout.accum, layout.gpus
    empty = np.zeros(len(accum), dtype=int)
    # Seconds are weighed by their mean: of many uncertain estimates the best middle is more likely too good.
    step = step_seconds_many(device.profile, a, accum, gpus, expected=True)
    step_tokens = a.tokens * accum * gpus
    peak = device.profile.peak_flops(device.brief.precision)
    rate = step_tokens / step.value
    return Candidates(
        machines=Machines(devices=(device,), offers=device.offers),
        device=empty,
        offer=empty,
        gpus=gpus,
        depth=a.depth,
        micro_batch=a.micro_batch,
        grad_accum=accum,
        kind=np.full(len(accum), kind),
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


def _memory(device: Device, layout: _Layout, kind: int, tables: _Tables) -> EstimateArrays:
    """Bytes per device of each row, from a table of depth × micro-batch × accumulated or not × number of GPUs.

    Memory does not depend on the number of micro-batches, nor of a whole model on that of GPUs beyond one; cards that
    nobody has calibrated share one model: each table is computed once.
    """
    model, brief = device.profile.memory, device.brief
    split = KINDS[kind].sharding != "none"
    counts = np.unique(layout.gpus) if split else np.array([1, 2])
    how = (brief.precision, brief.compile, device.profile.device_type, layout.depths, tuple(counts.tolist()))
    pinned = brief.goal.activation_checkpointing or device.profile.activation_checkpointing
    name = (id(model), kind, pinned, *how)
    if name not in tables:
        # The table's shape is (3, depths, sizes, 2, counts): value, low, high.
        places = np.indices((len(layout.shapes), len(layout.sizes), 2)).reshape(3, -1)
        every = replace(layout, shape=places[0], size=places[1], accum=places[2] + 1)
        a = _workloads(device, every, kind)
        sides = []
        for gpus in counts.tolist():
            held = device.profile.memory.device_total_many(replace(a, gpus=gpus))
            sides.append(np.stack([held.value, held.low, held.high]))
        tables[name] = np.stack(sides, axis=-1).reshape(3, len(layout.shapes), len(layout.sizes), 2, len(counts))
    count = np.searchsorted(counts, layout.gpus if split else np.minimum(layout.gpus, 2))
    value, low, high = tables[name][:, layout.shape, layout.size, (layout.accum > 1) + 0, count]
    return EstimateArrays(value=value, low=low, high=high)


def _joined(machines: Machines, parts: Sequence[Candidates]) -> Candidates:
    assert parts  # every device has an offer: `search_space.devices_of` leaves out those without
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    step, memory = stacked([part.step for part in parts]), stacked([part.memory for part in parts])
    return Candidates(machines=machines, step=step, memory=memory, **columns)


_COLUMNS = tuple(f.name for f in dataclasses.fields(Candidates) if f.name not in ("machines", "step", "memory"))
