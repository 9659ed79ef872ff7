"""Communication: ring formulas against the handbook's worked example, overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.hardware.catalog import GpuSpec, require_gpu
from advisor.laws import flops
from advisor.laws.flops import parameters
from advisor.prediction import comm
from advisor.prediction.comm import (
    BUCKET_BYTES,
    all_reduce_seconds,
    bus_bytes_per_second,
    exposed_seconds,
    reduce_scatter_seconds,
)
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import software_of
from advisor.records import Adapters, Workload
from trainer.schema import make_shape

D16_GRADIENT_BYTES = 1.342e9  # nanochat d16: 335.5 M parameters in fp32


def workload(gpus: int = 8, **changes: object) -> Workload:
    shape = make_shape("nanochat", depth=16, vocab_size=65536, seq_len=2048)
    return replace(Workload(shape=shape, micro_batch=8, gpu="h100-80gb-sxm", gpus=gpus), **changes)


def card(interconnect: str) -> GpuSpec:
    return replace(require_gpu("h100-80gb-sxm"), interconnect=interconnect)


def test_all_reduce_is_the_handbooks_golden_value():
    assert all_reduce_seconds(D16_GRADIENT_BYTES, 2, 292.5e9) == pytest.approx(4.59e-3, rel=1e-3)
    assert all_reduce_seconds(D16_GRADIENT_BYTES, 8, 292.5e9) == pytest.approx(8.03e-3, rel=1e-3)


def test_catalog_link_gives_the_handbooks_bandwidths():
    assert bus_bytes_per_second(require_gpu("h100-80gb-sxm"), 8) == pytest.approx(292.5e9)
    assert bus_bytes_per_second(require_gpu("a10"), 2) == pytest.approx(25e9, rel=0.01)


@pytest.mark.parametrize("key", ["a10", "a4000", "l40s", "rtx-4090"])
def test_eight_cards_on_pcie_4_share_their_hosts_processors(key: str):
    """Some 10 to 12 of 32 GB/s each, where two cards with peer-to-peer access reach 25."""
    assert comm.through_host(require_gpu(key), 8)
    assert 10e9 <= bus_bytes_per_second(require_gpu(key), 8) <= 12e9


def test_reduce_scatter_is_half_an_all_reduce():
    assert reduce_scatter_seconds(8e9, 4, 1e9) == pytest.approx(3 / 4 * 8)


def test_machines_of_pcie_gpus_are_joined_by_ethernet_unless_another_network_is_stated():
    """100 Gb/s a machine, of which collectives reach 78 %; 800 Gb/s are more than PCIe carries through the host."""
    spec = card("pcie4x16 64")
    assert bus_bytes_per_second(spec, 16) == pytest.approx(0.78 * 12.5e9)
    fast = replace(spec, network_bytes_per_second=100e9)
    assert bus_bytes_per_second(fast, 16) == pytest.approx(bus_bytes_per_second(spec, 8))


def test_software_that_shards_the_optimizer_gathers_weights_after_the_step():
    """ZeRO-1: 16-bit weights are gathered when nothing computes, and gradients are reduced and scattered, half of an
    all-reduce; nanotron also copies each tensor's pieces alone, 6 of a block for each GPU at 12 µs."""
    spec = require_gpu("h100-80gb-sxm")
    named = {name: replace(workload(gpus=64), software=software_of(name), sharding="optimizer")
             for name in ("megatron", "nanotron")}  # fmt: skip
    took = {name: exposed_seconds(w, spec, 10.0).value for name, w in named.items()}
    w = workload(gpus=64)
    copies = 6 * w.shape.depth * 64 * 12e-6
    assert took["nanotron"] - took["megatron"] == pytest.approx(copies, rel=0.01)
    plain = exposed_seconds(replace(named["megatron"], sharding="none"), spec, 10.0).value
    gathered = 63 / 64 * 2 * parameters(w.shape) / bus_bytes_per_second(spec, 64)
    assert took["megatron"] - plain == pytest.approx(gathered, rel=0.05)


def test_one_gpu_communicates_nothing():
    assert exposed_seconds(workload(gpus=1), None, 0.1).high == 0


def test_unknown_links_are_unknown_not_zero():
    assert exposed_seconds(workload(), card("ici"), 0.1) is None
    assert exposed_seconds(workload(), None, 0.1) is None


def test_a_long_backward_hides_all_but_the_last_bucket():
    exposed = exposed_seconds(workload(), card("nvlink4 900"), 10.0)
    last = all_reduce_seconds(BUCKET_BYTES, 8, 292.5e9)
    assert last < exposed.value < last + 200e-6  # plus the latency of one collective
    assert exposed.low <= exposed.value <= exposed.high


def test_without_a_backward_the_whole_all_reduce_shows():
    exposed = exposed_seconds(workload(), card("nvlink4 900"), 0.0)
    gradient_bytes = 4 * flops.parameters(workload().shape)
    assert exposed.value == pytest.approx(all_reduce_seconds(gradient_bytes, 8, 292.5e9), rel=1.0)
    assert exposed.value > all_reduce_seconds(gradient_bytes, 8, 292.5e9)


def test_accumulation_does_not_repeat_ddp_but_repeats_full_sharding():
    once, often = workload(grad_accum=1), workload(grad_accum=4)
    spec = card("nvlink4 900")
    assert exposed_seconds(once, spec, 0.0) == exposed_seconds(often, spec, 0.0)
    shard = {"sharding": "full"}
    one, four = (exposed_seconds(replace(w, **shard), spec, 0.0) for w in (once, often))
    assert four.value == pytest.approx(4 * one.value)


def test_frozen_weights_of_four_bits_are_gathered_as_such():
    """LLaMA 7B, whose blocks have 4·4096² + 3·4096·11008 weights in matrices: 4 bits and a scale for 64 of them."""
    shape = make_shape("llama", depth=32, vocab_size=32_000, seq_len=2048)
    gathered = []
    for quantized in (False, True):
        software = software_of("trl", adapters=Adapters(rank=16, targets="all", quantized=quantized))
        w = Workload(shape=shape, micro_batch=1, gpu="a6000", gpus=4, sharding="full", precision="bf16",
                     software=software)  # fmt: skip
        gathered.append(comm.exchange_of(WorkloadArrays.of([w]), np.array([1]), np.array([4])).gathered_bytes[0])
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert gathered[0] == 4 * flops.parameters(shape)  # twice, in 16 bits
    assert gathered[1] == gathered[0] - 2 * (2 - 0.5625) * matrices


def test_our_trainer_gathers_blocks_in_16_bits_twice_the_rest_once_in_32_and_reduces_in_32():
    """LLaMA 7B: 32 blocks of 202,383,360 parameters, 262,148,096 outside; Muon gathers its matrices once more."""
    shape = make_shape("llama", depth=32, vocab_size=32_000, seq_len=2048)
    w = Workload(shape=shape, micro_batch=1, gpu="h100-80gb-sxm", gpus=8, sharding="full", precision="bf16")
    exchange = comm.exchange_of(WorkloadArrays.of([w]), np.array([1]), np.array([8]))
    blocks, outside = 32 * 202_383_360, 262_148_096
    assert exchange.gathered_bytes[0] == 2 * 2 * blocks + 4 * outside
    assert exchange.scattered_bytes[0] == 4 * (blocks + outside)
    assert exchange.step_bytes[0] == 0
    muon = replace(w, optimizer="muon")
    exchange = comm.exchange_of(WorkloadArrays.of([muon]), np.array([1]), np.array([8]))
    assert exchange.step_bytes[0] == 2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)


def test_geforce_cards_reach_each_other_by_way_of_the_hosts_memory():
    """Eight RTX 5090 on PCIe 5 x16 (63 GB/s): 28 GB/s were measured; it must lie inside."""
    card, server = require_gpu("rtx-5090"), require_gpu("rtx-pro-6000-bw-server")
    assert comm.through_host(card, 2) and not comm.through_host(server, 2)
    reached = comm.bus_bytes_per_second(card, 8)
    assert reached / comm._HOST_SPREAD < 28e9 < reached * comm._HOST_SPREAD
    assert comm.bus_bytes_per_second(server, 2) > 1.5 * comm.bus_bytes_per_second(card, 2)


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_what_may_be_hidden_or_not_is_expected_to_cost_more_than_its_middle(sharding: str):
    """No more can be hidden than all of it: slow links cost, fast ones save nothing. One GPU costs nothing."""
    w = workload(sharding=sharding, gpu="a4000", micro_batch=4)
    arrays, spec, backward = WorkloadArrays.of([w]), require_gpu("a4000"), np.array([1.0])
    of = {n: comm.exchange_of(arrays, np.array([1]), np.array([n])) for n in (1, 8)}
    middle, mean = (comm.exposed_many(of[8], spec, backward, expected=on) for on in (False, True))
    assert middle.value[0] < mean.value[0] < middle.high[0]
    assert (mean.low[0], mean.high[0]) == (middle.low[0], middle.high[0])
    assert comm.exposed_many(of[1], spec, backward, expected=True).value[0] == 0


def test_each_doubling_of_nodes_costs_a_little_of_the_step():
    """8 nodes are three doublings: 3 x 1.6 % of a step of 1.5 backward passes, on top of what is exchanged."""
    spec, backward = require_gpu("h100-80gb-sxm"), 10.0  # long enough to hide every exchange but the last bucket
    exchange = [
        comm.Exchange(
            gpus=np.array([gpus]), parameters=np.array([1e8]), depth=np.array([12]), grad_accum=np.array([1]),
            gathers=np.array([1]), full=False, own=True, gathered_bytes=np.zeros(1), scattered_bytes=np.zeros(1),
            step_bytes=np.zeros(1), after_bytes=np.zeros(1), copy_seconds=np.zeros(1),
        )
        for gpus in (8, 64)
    ]  # fmt: skip
    one, eight = (float(comm.exposed_many(e, spec, np.array([backward])).value[0]) for e in exchange)
    assert eight - one == pytest.approx(3 * 0.016 * 1.5 * backward, rel=0.01)
