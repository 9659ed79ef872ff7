"""How long data-parallel training waits for its exchange of gradients, beyond what the backward pass hides.

Uses the alpha-beta model of ring collectives (sources §3.4). The rates inside a node come from the catalog, those
between nodes from the vendors' reference machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, Link, read_link
from advisor.laws.intervals import Z80
from advisor.prediction.adapters import NF4_BYTES
from advisor.prediction.intervals import BASES, EstimateArrays
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.nearest import published_runs
from advisor.prediction.software import require_software
from advisor.prediction.throughput import extra_parameters
from advisor.records import Basis, Estimate, Software, Workload
from advisor.settings import OPTIMIZERS, PRECISIONS, SHARDINGS

LATENCY_SECONDS = 10e-6  # per ring step: NVLink in Calculon's system descriptions (sources §3.2)
BUCKET_BYTES = 25 * 2**20  # DDP's default; no backward pass is left to hide the last bucket
# Collectives reach this share of the nominal rate in one direction: NVLink 0.65 (Calculon), PCIe 25 of 32 GB/s
# (sources §3.4; 20 between pairs of A100s, github.com/NVIDIA/nccl-tests/issues/178). The spread is our judgement:
# topology and message size change the share by up to this factor.
_EFFICIENCY = {"nvlink": 0.65, "xgmi": 0.65, "roce": 0.65, "pcie": 0.78}
_SPREAD = 1.5
# Traffic between more than two PCIe GPUs passes through the host's processors. GeForce GPUs always need the host,
# because their driver offers no peer-to-peer access. Measured: 28 of 63 GB/s among eight RTX 5090
# (github.com/NVIDIA/nccl/issues/1639), 12 of 63 between two GPUs on one host bridge
# (github.com/EnzoDing-rgb/cs336-assignment2-systems), 20 of 32 among three A100 on one processor
# (github.com/NVIDIA/nccl-tests/issues/178). Eight GPUs on PCIe 4 share two processors' bridges: about 10 of 32.
_THROUGH_HOST, _HOST_SPREAD = 0.33, 2.0
# Each doubling of the number of nodes adds this share of a step to the collectives, because of stragglers and the
# network: 1.6 % in 11 series of published runs on 2 to 64 nodes, from 0.4 to 4.0 % (benchmarks/node_scaling.py).
# More nodes count as 64: what further ones add is not known, and whole runs on 256 to 2,048 nodes do not show it.
_STRAGGLING_LOW, _STRAGGLING, _STRAGGLING_HIGH = 0.002, 0.016, 0.04
_DOUBLINGS = 6
# Sharded runs need this share of their work in addition to the collectives: our judgement. An earlier fit to published
# runs gave 3.7 %, the present one 1.1 ± 4.2 % (profiles/prior.yaml, "sharding full"). The share is added only for this
# project's trainer, for which nobody has measured it. The estimates for other software contain the fitted effect.
_SHARDED_LOW, _SHARDED, _SHARDED_HIGH = 0.0, 0.037, 0.08
# The share of the backward pass that hides communication: 0.7-0.9 for DDP's buckets (sources §3.4, unverified there,
# hence the wide low end). Less is hidden when each byte crosses the host's memory twice. The value for such machines is
# our judgement, because nobody has published sharded runs on them.
_OVERLAP, _HOST_OVERLAP = (0.5, 0.8, 0.95), (0.2, 0.6, 0.9)  # low, middle, high
# Machines of several PCIe GPUs differ more from the formula than others: between six owners of 17 published runs, log
# step time has a standard deviation of 0.29; between 32 owners of other machines of several GPUs, it is 0.18
# (profiles/prior_runs.csv). The rest is what nobody knows of such a machine until somebody publishes a run on it.
_UNPUBLISHED_DEVIATION = math.sqrt(0.29**2 - 0.18**2)
# These weights give a mean from the 10, 50 and 90 % points (Hurst, Brown and Swanson 2000, "Swanson's 30-40-30 rule",
# AAPG Bulletin 84, 1883-1891).
_MEAN_OF_POINTS = (0.3, 0.4, 0.3)
# Network between nodes for each GPU, in bytes/s one way, on the vendor's reference machines by link generation:
# DGX-1 4 x 100 Gb/s, DGX A100 8 x 200 Gb/s, DGX H100/B200 8 x 400 Gb/s. Other machines may be far slower.
NETWORK_PER_GPU = {"nvlink2": 6.25e9, "nvlink3": 25e9, "nvlink4": 50e9, "nvlink5": 50e9}
ETHERNET_BYTES_PER_SECOND = 12.5e9  # 100 Gb/s for a whole machine: usual for rented machines that state no rate
# Launches for each tensor's piece that software copies alone after a sharded optimizer step: what nanotron's layouts on
# 8 to 512 GPUs gave when benchmarks/layouts.py still fitted it (2.2 to 2.5). It is not fitted again.
_COPY_SECONDS = 2.4 * 5e-6
_TENSORS_OF_BLOCK = 6  # queries with keys and values, output, two of the feed-forward, two norms

_Number = TypeVar("_Number", float, np.ndarray)


def all_reduce_seconds(size_bytes: _Number, gpus: _Number, bytes_per_second: _Number) -> _Number:
    """Return the seconds of a ring all-reduce without latency: 2(n-1)/n of the data over each link (see nccl-tests)."""
    return 2 * (gpus - 1) / gpus * size_bytes / bytes_per_second


def reduce_scatter_seconds(size_bytes: _Number, gpus: _Number, bytes_per_second: _Number) -> _Number:
    """Return the seconds of a ring reduce-scatter or all-gather of `size_bytes` in total: half of an all-reduce."""
    return all_reduce_seconds(size_bytes, gpus, bytes_per_second) / 2


def bus_bytes_per_second(spec: GpuSpec, gpus: int, node_bytes_per_second: float | None = None) -> float | None:
    """Return the bytes per second that a collective over `gpus` GPUs reaches, or None if a link is unknown.

    A ring enters and leaves each node once, so all network adapters of a node work in parallel. Their rates sum to
    `node_bytes_per_second`; None stands for the vendor's reference machine.
    """
    link = read_link(spec.interconnect)
    if link is None:
        return None
    inside = link.bytes_per_second * reached(link, through_host(spec, gpus))
    if gpus <= link.gpus:
        return inside
    network = node_bytes_per_second or GPUS_PER_NODE * usual_network(spec)
    return min(inside, network * _EFFICIENCY[link.kind])


def reached(link: Link, host: bool) -> float:
    """Return the share of a link's nominal rate that collectives reach; `host` as from `through_host`."""
    return _THROUGH_HOST if host else _EFFICIENCY[link.kind]


def joins_machines(spec: GpuSpec) -> bool:
    """Return True if the network between machines is stated or known from the vendor's reference machine."""
    link = read_link(spec.interconnect)
    stated = spec.network_bytes_per_second is not None
    return stated or (link is not None and link.generation in NETWORK_PER_GPU)


def usual_network(spec: GpuSpec) -> float:
    """Return the bytes per second between nodes for each GPU, one way: as the machine states, else as in the vendor's
    reference machine, else 100 Gb/s for a whole machine, which is usual for rented machines that state no rate."""
    if spec.network_bytes_per_second is not None:
        return spec.network_bytes_per_second / GPUS_PER_NODE
    link = read_link(spec.interconnect)
    usual = NETWORK_PER_GPU.get(link.generation) if link is not None else None
    return usual or ETHERNET_BYTES_PER_SECOND / GPUS_PER_NODE


def through_host(spec: GpuSpec, gpus: int) -> bool:
    """Return True if the GPUs of a machine reach each other only through its host processors."""
    link = read_link(spec.interconnect)
    if link is None or link.kind != "pcie":
        return False
    return gpus > 2 or any("GeForce" in name for name in spec.nvml_names)


def machine_deviation(spec: GpuSpec | None, gpus: int) -> float:
    """Return the standard deviation of the log step time that is due to a machine on which few have published a run.

    It is 0 unless several GPUs of this type are joined by PCIe, and fewer than two owners have published runs on
    several of them: the one of eight A6000 needed 1.3 to 1.8 times the estimate.
    """
    link = read_link(spec.interconnect) if spec else None
    if spec is None or gpus < 2 or link is None or link.kind != "pcie" or owners_of_several(spec.key) > 1:
        return 0.0
    return _UNPUBLISHED_DEVIATION


def caution(spec: GpuSpec | None, gpus: int) -> float:
    """Return the factor on time and dollars at which a machine is compared with others: its cautious end.

    What all machines share, such as the software, does not count, because it cannot change their order.
    """
    return math.exp(Z80 * machine_deviation(spec, gpus))


@cache
def owners_of_several(gpu: str) -> int:
    """Return how many owners have published runs on several GPUs of this type."""
    return len({run.owner for run in published_runs() if run.gpu == gpu and run.gpus > 1})


def unsure(spec: GpuSpec | None, gpus: int) -> tuple[float, tuple[float, float, float]]:
    """Return the uncertainty of the link rate, as a factor, and the share of the backward pass that hides
    communication, as low, middle and high.
    """
    host = spec is not None and through_host(spec, gpus)
    return (_HOST_SPREAD, _HOST_OVERLAP) if host else (_SPREAD, _OVERLAP)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What joins the GPUs that exchange, as arrays of one length."""

    bytes_per_second: np.ndarray  # that collectives reach; NaN if unknown
    spread: np.ndarray  # factor by which links may be slower or faster
    overlap: np.ndarray  # (3, n) share of a backward pass that hides communication: low, middle, high
    doublings: np.ndarray  # of the number of nodes


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The bytes that data-parallel workloads exchange, as arrays of one length."""

    gpus: np.ndarray  # with the same weights
    parameters: np.ndarray
    depth: np.ndarray
    grad_accum: np.ndarray
    gathers: np.ndarray  # fully sharded: how often a step gathers all weights and scatters all gradients
    full: bool  # fully sharded
    own: bool  # trained by this project's trainer
    gathered_bytes: np.ndarray  # fully sharded: parameters in all all-gathers of a micro-batch
    scattered_bytes: np.ndarray  # fully sharded: gradients in the reduce-scatter of a micro-batch
    step_bytes: np.ndarray  # matrices that Muon orthogonalises, gathered once per step; nothing hides this
    after_bytes: np.ndarray  # sharded optimizer: weights gathered after its step; nothing hides this
    copy_seconds: np.ndarray  # of these weights, tensor by tensor


def exposed_seconds(workload: Workload, spec: GpuSpec | None, backward_seconds: float) -> Estimate | None:
    """Return the seconds of communication per step that computation does not hide, or None if the links are unknown.

    `backward_seconds` is the time of one micro-batch's backward pass. Sharding "none" is DDP: fp32 gradients are
    all-reduced once per step in 25 MiB buckets while the last micro-batch's backward pass runs. "optimizer" moves as
    many bytes. "full" runs two all-gathers and a reduce-scatter during every micro-batch. In other software they have
    16 bits. This project's trainer gathers blocks in their compute type and everything else once in fp32, and reduces
    in fp32.
    """
    accum, gpus = np.array([workload.grad_accum]), np.array([workload.gpus])
    exchange = exchange_of(WorkloadArrays.of([workload]), accum, gpus)
    return exposed_many(exchange, spec, np.array([backward_seconds])).at(0)


@dataclass(frozen=True, kw_only=True)
class AssumedNetwork:
    """The network that a prediction assumes between machines, and the step time if it were ordinary Ethernet."""

    bits_per_second: float  # for each GPU
    gpus_per_machine: int
    ethernet_step_seconds: float | None  # with `ETHERNET_BYTES_PER_SECOND` for each machine; None: it is no faster

    @property
    def words(self) -> str:
        if self.bits_per_second < 25e9:  # an adapter for the whole machine
            return f"{self.gpus_per_machine * self.bits_per_second / 1e9:.0f} Gb/s between machines"
        return f"{self.gpus_per_machine} x {self.bits_per_second / 1e9:.0f} Gb/s between machines"

    @classmethod
    def of(cls, spec: GpuSpec, ethernet_step_seconds: Callable[[], float]) -> AssumedNetwork:
        """Return the network of a GPU's machines; `ethernet_step_seconds` is asked only if it is faster."""
        rate = usual_network(spec)
        slower = ethernet_step_seconds() if GPUS_PER_NODE * rate > ETHERNET_BYTES_PER_SECOND else None
        return cls(bits_per_second=8 * rate, gpus_per_machine=GPUS_PER_NODE, ethernet_step_seconds=slower)


def assumed_network(w: Workload, spec: GpuSpec | None, step_seconds: float) -> AssumedNetwork | None:
    """Return the network that a predicted step assumes between machines, or None if one link joins all GPUs."""
    link = read_link(spec.interconnect) if spec else None
    if spec is None or link is None or w.gpus <= link.gpus:
        return None

    exchange = exchange_of(WorkloadArrays.of([w]), np.array([w.grad_accum]), np.array([w.gpus]))

    def with_network(alone: np.ndarray, network: float | None = None) -> np.ndarray:
        backward = 2 / 3 * alone / w.grad_accum
        return alone + exposed_many(exchange, spec, backward, node_bytes_per_second=network).value

    def on_ethernet() -> float:
        low, high = 0.0, step_seconds  # around the step without communication, divided by 1024 four times
        for _ in range(4):
            tried = np.linspace(low, high, 1025)
            place = max(1, int(np.searchsorted(with_network(tried), step_seconds)))
            low, high = tried[place - 1 : place + 1]
        return float(with_network(np.array([high]), ETHERNET_BYTES_PER_SECOND)[0])

    return AssumedNetwork.of(spec, on_ethernet)


def exchange_of(a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray) -> Exchange:
    """Return the bytes that workloads of one kind exchange; `grad_accum` and `gpus` have shape (n,)."""
    parameters = a.trained_parameters.astype(float)
    every = (a.parameters + extra_parameters(a.software)).astype(float)  # frozen weights are gathered too
    sharding = SHARDINGS[a.sharding]
    gathered, scattered, step = 4 * every, 2 * parameters, np.zeros(len(parameters))
    if a.software is not None and a.software.adapters is not None and a.software.adapters.quantized:
        gathered = gathered - 2 * (2 - NF4_BYTES) * (a.block_matrices + a.software.expert_parameters)
    if a.software is None and sharding.weights:
        blocks = (a.depth * a.block_parameters).astype(float)
        gathered = 2 * PRECISIONS[a.precision].element_bytes * blocks + 4 * (parameters - blocks)
        scattered = 4 * parameters
        step = 2.0 * a.block_matrices if OPTIMIZERS[a.optimizer].orthogonalizes else step
    split = a.software is not None and sharding.moments and not sharding.weights
    return Exchange(
        gpus=gpus,
        parameters=parameters,
        depth=a.depth,
        grad_accum=grad_accum,
        gathers=grad_accum,
        full=sharding.weights,
        own=a.software is None,
        gathered_bytes=gathered,
        scattered_bytes=scattered,
        step_bytes=step,
        after_bytes=2 * parameters if split else 0 * parameters,
        copy_seconds=copy_seconds(a.depth, gpus) if split and copies_by_tensor(a.software) else 0 * parameters,
    )


def copies_by_tensor(software: Software | None) -> bool:
    """Return True if the software copies each GPU's piece of each tensor alone after a sharded optimizer step."""
    return software is not None and software.name is not None and require_software(software.name).by_tensor


def copy_seconds(layers: np.ndarray, gpus: np.ndarray) -> np.ndarray:
    """Return the seconds of copying the pieces of all GPUs' tensors one by one."""
    return _COPY_SECONDS * _TENSORS_OF_BLOCK * layers * gpus


def exposed_many(
    e: Exchange,
    spec: GpuSpec | None,
    backward_seconds: np.ndarray,
    *,
    expected: bool = False,
    node_bytes_per_second: float | None = None,
) -> EstimateArrays:
    """Return `exposed_seconds` of many workloads, shape (n,): 0 for one GPU, NaN if the links are unknown.

    With `expected`, `value` is the mean of the distribution and not its median. The mean is larger, because slow links
    cost more than fast links save. `node_bytes_per_second` works as in `bus_bytes_per_second`.
    """
    by_count, spreads, *hidden = np.full((5, int(e.gpus.max()) + 1), math.nan)
    for count in np.nonzero(np.bincount(e.gpus))[0].tolist():
        joined = bus_bytes_per_second(spec, count, node_bytes_per_second) if spec and count > 1 else None
        by_count[count] = joined or math.nan
        spreads[count], shares = unsure(spec, count)
        for column, share in zip(hidden, shares, strict=True):
            column[count] = share
    link = read_link(spec.interconnect) if spec else None
    joined_by = Joined(
        bytes_per_second=by_count[e.gpus],
        spread=spreads[e.gpus],
        overlap=np.stack([column[e.gpus] for column in hidden]),
        # of the number of nodes, or of the racks that one link joins
        doublings=np.log2(np.ceil(e.gpus / (link.gpus if link else GPUS_PER_NODE))),
    )
    return exposed_over(e, joined_by, backward_seconds, expected=expected)


def exposed_over(
    e: Exchange, joined: Joined, backward_seconds: np.ndarray, *, expected: bool = False
) -> EstimateArrays:
    """Return the same as `exposed_many`, over GPUs that are joined in any way."""
    doublings = np.minimum(joined.doublings, _DOUBLINGS)
    lost = np.array((_STRAGGLING_LOW, _STRAGGLING, _STRAGGLING_HIGH))[:, None] * doublings
    if e.full and e.own:
        lost = lost + np.array((_SHARDED_LOW, _SHARDED, _SHARDED_HIGH))[:, None] * (e.gpus > 1)
    lost = lost * (1.5 * backward_seconds * e.grad_accum)
    bandwidth, spread = joined.bytes_per_second, joined.spread
    rates = np.stack([bandwidth * spread, bandwidth, bandwidth / spread])
    hidden = joined.overlap[::-1] * backward_seconds
    moved = np.where(e.gpus == 1, 0.0, _moved(e, rates, hidden))
    low, value, high = moved[range(3), range(3)] + lost
    if expected:  # the rate of the links and the hidden share vary independently
        points = np.array(_MEAN_OF_POINTS)
        value = (points[:, None] * lost).sum(axis=0)
        value = value + (points[:, None, None] * points[:, None] * moved).sum(axis=(0, 1))
    return EstimateArrays(value=value, low=low, high=high, basis=np.full(value.shape, BASES.index(Basis.PRIOR)))


def _moved(e: Exchange, rates: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Return the seconds of communication in a step that computation does not hide, shape (rates, hidden, n).

    `rates` are bandwidths, shape (rates, n). `hidden` are the seconds of a backward pass that hide communication,
    shape (hidden, n).
    """
    # NCCL runs a collective as a ring inside a node, and as a tree between many nodes.
    nodes = np.ceil(e.gpus / GPUS_PER_NODE)
    latency = 2 * LATENCY_SECONDS * (np.minimum(e.gpus, GPUS_PER_NODE) - 1 + np.log2(nodes))
    if not e.full:
        # If weights are gathered after the step, gradients are only reduced and scattered: half of an all-reduce.
        size, share = 4 * e.parameters, np.where(e.after_bytes > 0, 0.5, 1.0)
        whole = share * all_reduce_seconds(size, e.gpus, rates) + np.maximum(1.0, size / BUCKET_BYTES) * latency
        last = share * all_reduce_seconds(np.minimum(size, BUCKET_BYTES), e.gpus, rates) + latency
        after = reduce_scatter_seconds(e.after_bytes, e.gpus, rates) + e.copy_seconds
        return np.maximum(last[:, None], whole[:, None] - hidden) + after[:, None]
    moved = reduce_scatter_seconds(e.gathered_bytes + e.scattered_bytes, e.gpus, rates) + 3 * e.depth * latency
    # Nothing hides the first block's all-gather, the last block's reduce-scatter or DDP's last bucket. For other
    # software, the fitted effect of sharding contains this cost.
    ends = (e.gathered_bytes / 2 + e.scattered_bytes) / (e.depth + 1) if e.own else np.zeros(e.depth.shape)
    least = np.where(ends > 0, reduce_scatter_seconds(ends, e.gpus, rates) + 2 * latency, 0.0)
    alone = reduce_scatter_seconds(e.step_bytes, e.gpus, rates)  # once per step; nothing hides it
    return e.gathers * np.maximum(least[:, None], moved[:, None] - 1.5 * hidden) + alone[:, None]
