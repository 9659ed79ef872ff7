"""Seconds that data-parallel training spends on gradients and cannot hide behind its own backward pass.

Alpha-beta model of ring collectives (sources §3.4) over the links of one node as the catalog has them, and over the
usual network cards between nodes. Pure: numbers in, an Estimate or None out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec
from advisor.hardware.links import read_link
from advisor.prediction.intervals import BASES, EstimateArrays
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.throughput import ELEMENT_BYTES, extra_parameters
from advisor.prediction.trained import trained_parameters
from advisor.records import Basis, Estimate, Workload

LATENCY_SECONDS = 10e-6  # per ring step: NVLink in Calculon's system descriptions (sources §3.2)
BUCKET_BYTES = 25 * 2**20  # DDP's default; the last bucket has no backward left to hide behind
# Share of the nominal rate in one direction that collectives reach: NVLink 0.65 (Calculon), PCIe 25 of 32 GB/s
# (sources §3.4; 20 between pairs of A100s, github.com/NVIDIA/nccl-tests/issues/178). The interval is a judged factor
# either way: topology and message size move the share that much.
_EFFICIENCY = {"nvlink": 0.65, "xgmi": 0.65, "roce": 0.65, "pcie": 0.78}
_SPREAD = 1.5
# More than two PCIe cards meet in the host's processors, and those of GeForce drivers, which offer no peer-to-peer
# access, always do: 28 of 63 GB/s among eight RTX 5090 (github.com/NVIDIA/nccl/issues/1639), 12 of 63 between two cards
# on one host bridge (github.com/EnzoDing-rgb/cs336-assignment2-systems), 20 of 32 among three A100 on one processor
# (github.com/NVIDIA/nccl-tests/issues/178); eight on PCIe 4 share two processors' bridges, some 10 of 32.
_THROUGH_HOST, _HOST_SPREAD = 0.33, 2.0
# What a step loses for each doubling of nodes beyond what the collectives above take: stragglers and the network.
# 1.6 % in 11 series of published runs on 2 to 64 nodes, 0.4 to 4.0 % (benchmarks/node_scaling.py).
_STRAGGLING_LOW, _STRAGGLING, _STRAGGLING_HIGH = 0.002, 0.016, 0.04
# What sharded runs take beyond the collectives above, of their work: 3.7 % in published ones (profiles/prior.yaml, the
# effect "sharding full"). Of this project's trainer nobody has measured it; other software's belief has it already.
_SHARDED_LOW, _SHARDED, _SHARDED_HIGH = 0.0, 0.037, 0.08
# Overlap with the backward pass: 0.7-0.9 for DDP's buckets (sources §3.4, unverified there, hence the wide low end).
# Through the host, whose memory each byte crosses twice, less is hidden: judged, because nobody published runs that
# share their weights out on such machines.
_OVERLAP, _HOST_OVERLAP = (0.5, 0.8, 0.95), (0.2, 0.6, 0.9)  # low, middle, high
# The mean of a number of which 10, 50 and 90 % points are known (Hurst, Brown and Swanson 2000, "Swanson's 30-40-30
# rule", AAPG Bulletin 84, 1883-1891).
_MEAN_OF_POINTS = (0.3, 0.4, 0.3)
# Network per GPU between nodes, bytes/s in one direction, of the vendor's reference machines by link generation:
# DGX-1 4 x 100 Gb/s, DGX A100 8 x 200 Gb/s, DGX H100/B200 8 x 400 Gb/s. Other machines may have far less.
_NETWORK_PER_GPU = {"nvlink2": 6.25e9, "nvlink3": 25e9, "nvlink4": 50e9, "nvlink5": 50e9}
ETHERNET_BYTES_PER_SECOND = 12.5e9  # 100 Gb/s for a whole machine, which most rented ones have that state no more

_Number = TypeVar("_Number", float, np.ndarray)


def all_reduce_seconds(
    size_bytes: _Number, gpus: _Number, bytes_per_second: _Number, latency_seconds: float = 0.0
) -> _Number:
    """Ring all-reduce: 2(n-1) steps of latency, 2(n-1)/n of the data over each link (nccl-tests' bus bandwidth)."""
    return 2 * (gpus - 1) * latency_seconds + 2 * (gpus - 1) / gpus * size_bytes / bytes_per_second


def reduce_scatter_seconds(
    size_bytes: _Number, gpus: _Number, bytes_per_second: _Number, latency_seconds: float = 0.0
) -> _Number:
    """Ring reduce-scatter, or all-gather, of `size_bytes` in total: half an all-reduce."""
    return all_reduce_seconds(size_bytes, gpus, bytes_per_second, latency_seconds) / 2


def bus_bytes_per_second(spec: GpuSpec, gpus: int, node_bytes_per_second: float | None = None) -> float | None:
    """What a collective over `gpus` GPUs reaches; None where nothing is known of the slowest link.

    Between nodes every ring enters and leaves a node once, so a node's network cards work side by side; None: as the
    vendor's reference machine has them.
    """
    link = read_link(spec.interconnect)
    if link is None:
        return None
    inside = link.bytes_per_second * (_THROUGH_HOST if through_host(spec, gpus) else _EFFICIENCY[link.kind])
    if gpus <= link.gpus:
        return inside
    network = node_bytes_per_second or GPUS_PER_NODE * _NETWORK_PER_GPU.get(link.generation, 0.0)
    return min(inside, network * _EFFICIENCY[link.kind]) or None


def through_host(spec: GpuSpec, gpus: int) -> bool:
    """Whether so many GPUs of one machine reach each other only by way of its processors."""
    link = read_link(spec.interconnect)
    if link is None or link.kind != "pcie":
        return False
    return gpus > 2 or any("GeForce" in name for name in spec.nvml_names)


def unsure(spec: GpuSpec | None, gpus: int) -> tuple[float, tuple[float, float, float]]:
    """How far links may be off, as a factor either way, and which share of the arithmetic hides what passes over them:
    low, middle, high.
    """
    host = spec is not None and through_host(spec, gpus)
    return (_HOST_SPREAD, _HOST_OVERLAP) if host else (_SPREAD, _OVERLAP)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What data-parallel workloads exchange: arrays of one length."""

    gpus: np.ndarray
    parameters: np.ndarray
    depth: np.ndarray
    grad_accum: np.ndarray
    full: bool  # fully sharded
    own: bool  # by the trainer here
    gathered_bytes: np.ndarray  # of all parameters with each micro-batch, where fully sharded: all-gathers together
    scattered_bytes: np.ndarray  # of all gradients with each micro-batch, reduced and scattered
    step_bytes: np.ndarray  # gathered once a step, with nothing to hide behind: what Muon orthogonalises


def exposed_seconds(
    workload: Workload, spec: GpuSpec | None, backward_seconds: float, *, expected: bool = False
) -> Estimate | None:
    """Communication per optimizer step that is not hidden; None when the links are unknown.

    `backward_seconds` is the backward pass of one micro-batch. sharding "none": DDP with fp32 gradients, all-reduced
    once per step (no_sync before) in 25 MiB buckets behind the last micro-batch's backward. "optimizer": the same
    volume (reduce-scatter of gradients, all-gather of parameters). "full": two all-gathers and a reduce-scatter behind
    every micro-batch's forward and backward: all of 16 bits in other software; the trainer here gathers blocks in the
    type they compute in, the rest once in fp32, reduces in fp32, and gathers what Muon orthogonalises. `expected` as in
    `exposed_many`.
    """
    accum, gpus = np.array([workload.grad_accum]), np.array([workload.gpus])
    exchange = exchange_of(WorkloadArrays.of([workload]), accum, gpus)
    exposed = exposed_many(exchange, spec, np.array([backward_seconds]), expected=expected)
    return None if math.isnan(exposed.value[0]) else exposed.at(0)


@dataclass(frozen=True, kw_only=True)
class AssumedNetwork:
    """What is taken to join the machines of a run, and its step on a common slower network."""

    bits_per_second: float  # of each GPU
    gpus_per_machine: int
    ethernet_step_seconds: float  # on `ETHERNET_BYTES_PER_SECOND` for each machine

    @property
    def words(self) -> str:
        return f"{self.gpus_per_machine} x {self.bits_per_second / 1e9:.0f} Gb/s between machines"


def assumed_network(w: Workload, spec: GpuSpec | None, step_seconds: float) -> AssumedNetwork | None:
    """What a predicted step takes for granted between machines; None where one link joins all GPUs."""
    link = read_link(spec.interconnect) if spec else None
    if link is None or w.gpus <= link.gpus or link.generation not in _NETWORK_PER_GPU:
        return None

    def exposed(seconds: float, network: float | None = None) -> float:
        exchange = exchange_of(WorkloadArrays.of([w]), np.array([w.grad_accum]), np.array([w.gpus]))
        backward = np.array([2 / 3 * seconds / w.grad_accum])
        return float(exposed_many(exchange, spec, backward, node_bytes_per_second=network).value[0])

    alone = step_seconds - exposed(step_seconds)
    return AssumedNetwork(
        bits_per_second=8 * _NETWORK_PER_GPU[link.generation],
        gpus_per_machine=GPUS_PER_NODE,
        ethernet_step_seconds=alone + exposed(alone, ETHERNET_BYTES_PER_SECOND),
    )


def exchange_of(a: WorkloadArrays, grad_accum: np.ndarray, gpus: np.ndarray) -> Exchange:
    """What workloads of one kind exchange on so many GPUs each; arrays of shape (n,)."""
    parameters = trained_parameters(a).astype(float)
    every = (a.parameters + extra_parameters(a.software)).astype(float)  # what stays frozen is gathered too
    gathered, scattered, step = 4 * every, 2 * parameters, np.zeros(len(parameters))
    if a.software is None and a.sharding == "full":
        blocks = (a.depth * a.block_parameters).astype(float)
        gathered = 2 * ELEMENT_BYTES[a.precision] * blocks + 4 * (parameters - blocks)
        scattered = 4 * parameters
        step = 2.0 * a.block_matrices if a.optimizer == "muon" else step
    return Exchange(
        gpus=gpus,
        parameters=parameters,
        depth=a.depth,
        grad_accum=grad_accum,
        full=a.sharding == "full",
        own=a.software is None,
        gathered_bytes=gathered,
        scattered_bytes=scattered,
        step_bytes=step,
    )


def exposed_many(
    e: Exchange,
    spec: GpuSpec | None,
    backward_seconds: np.ndarray,
    *,
    expected: bool = False,
    node_bytes_per_second: float | None = None,
) -> EstimateArrays:
    """As `exposed_seconds` for many workloads, shape (n,): 0 for one GPU, NaN where the links are unknown.

    `expected`: the mean of what is believed for its middle. Slow links cost more than fast ones save, because nothing
    more can be hidden than all of it, so that the mean is the larger one. `node_bytes_per_second` as in
    `bus_bytes_per_second`.
    """
    by_count, spreads, *hidden = np.full((5, int(e.gpus.max()) + 1), math.nan)
    for count in np.nonzero(np.bincount(e.gpus))[0].tolist():
        joined = bus_bytes_per_second(spec, count, node_bytes_per_second) if spec and count > 1 else None
        by_count[count] = joined or math.nan
        spreads[count], shares = unsure(spec, count)
        for column, share in zip(hidden, shares, strict=True):
            column[count] = share
    bandwidth, spread = by_count[e.gpus], spreads[e.gpus]
    link = read_link(spec.interconnect) if spec else None
    doublings = np.log2(np.ceil(e.gpus / (link.gpus if link else GPUS_PER_NODE)))  # of nodes, or of racks of one link
    work = 1.5 * backward_seconds * e.grad_accum
    exposed = _exposed_full if e.full else _exposed
    lost = np.array((_STRAGGLING_LOW, _STRAGGLING, _STRAGGLING_HIGH))[:, None] * doublings
    if e.full and e.own:
        lost = lost + np.array((_SHARDED_LOW, _SHARDED, _SHARDED_HIGH))[:, None]
    rates = (bandwidth * spread, bandwidth, bandwidth / spread)
    overlaps = [column[e.gpus] for column in reversed(hidden)]
    moved = [exposed(e, rate, backward_seconds, overlap) for rate, overlap in zip(rates, overlaps, strict=True)]
    low, value, high = (seconds + share * work for seconds, share in zip(moved, lost, strict=True))
    if expected:
        value = (np.array(_MEAN_OF_POINTS)[:, None] * lost).sum(axis=0) * work
        for rate, likely in zip(rates, _MEAN_OF_POINTS, strict=True):  # how fast and how well hidden: unrelated
            for overlap, as_likely in zip(overlaps, _MEAN_OF_POINTS, strict=True):
                value = value + likely * as_likely * exposed(e, rate, backward_seconds, overlap)
    value, low, high = (np.where(e.gpus == 1, 0.0, seconds) for seconds in (value, low, high))
    return EstimateArrays(value=value, low=low, high=high, basis=np.full(value.shape, BASES.index(Basis.PRIOR)))


def _exposed(e: Exchange, bandwidth: np.ndarray, backward_seconds: np.ndarray, overlap: np.ndarray) -> np.ndarray:
    latency = _latency(e.gpus)
    size = 4 * e.parameters
    whole = all_reduce_seconds(size, e.gpus, bandwidth) + np.maximum(1.0, size / BUCKET_BYTES) * latency
    last = all_reduce_seconds(np.minimum(size, BUCKET_BYTES), e.gpus, bandwidth) + latency
    exposed = np.maximum(last, whole - overlap * backward_seconds)
    return exposed


def _exposed_full(e: Exchange, bandwidth: np.ndarray, backward_seconds: np.ndarray, overlap: np.ndarray) -> np.ndarray:
    latency = _latency(e.gpus)
    moved = reduce_scatter_seconds(e.gathered_bytes + e.scattered_bytes, e.gpus, bandwidth) + 3 * e.depth * latency
    alone = reduce_scatter_seconds(e.step_bytes, e.gpus, bandwidth)
    # The first block's gathering and the last one's scattering have nothing to hide behind, as DDP's last bucket has
    # not; of other software the published runs' own effect of sharding holds it.
    ends = (e.gathered_bytes / 2 + e.scattered_bytes) / (e.depth + 1) if e.own else np.zeros(e.depth.shape)
    least = np.where(ends > 0, reduce_scatter_seconds(ends, e.gpus, bandwidth) + 2 * latency, 0.0)
    return e.grad_accum * np.maximum(least, moved - overlap * 1.5 * backward_seconds) + alone


def _latency(gpus: np.ndarray) -> np.ndarray:
    """Of one collective: a ring inside the node, a tree over nodes (what NCCL chooses for many of them)."""
    nodes = np.ceil(gpus / GPUS_PER_NODE)
    return 2 * LATENCY_SECONDS * (np.minimum(gpus, GPUS_PER_NODE) - 1 + np.log2(nodes))
