"""How many blocks of each reservation to buy: those that cost least on average over drawn futures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from advisor.fleets.bound import Program
from advisor.fleets.records import Bound, Fleet, Way

FUTURES = 8
_SLOTS = 20  # of time, in each future


def futures(fleet: Fleet, count: int, seed: int) -> Iterator[Fleet]:
    """Yield fleets whose runs take as long as they do in drawn futures, spread evenly over slow and fast GPUs."""
    rng = np.random.default_rng(seed)
    gpu_of = {pool.name: pool.gpu for pool in fleet.pools}
    shared = {gpu: ndtri((rng.permutation(count) + rng.random(count)) / count) for gpu in sorted({*gpu_of.values()})}
    common, own = math.sqrt(fleet.errors.common_share), math.sqrt(1 - fleet.errors.common_share)
    copies = Counter(run.group for run in fleet.runs)
    for at in range(count):
        # Copies share one error, which is as small as the mean of theirs.
        errors = {group: own * float(rng.standard_normal()) / math.sqrt(n) for group, n in copies.items()}
        factors = {name: common * float(shared[gpu][at]) for name, gpu in gpu_of.items()}
        ways = {run.group: tuple(_longer(way, factors[way.pool] + errors[run.group]) for way in run.ways)
                for run in {run.group: run for run in fleet.runs}.values()}  # fmt: skip
        yield replace(fleet, runs=tuple(replace(run, ways=ways[run.group]) for run in fleet.runs))


def _longer(way: Way, deviations: float) -> Way:
    factor = math.exp(deviations * way.deviation)
    return replace(way, hours=way.hours.scaled(factor), usd=way.usd * factor)


def to_buy(fleet: Fleet, bound: Bound, seed: int) -> dict[str, int]:
    """Return the blocks, found by steps from those of the bound."""
    blocks = dict(bound.blocks)
    room = {pool.name: pool.most_blocks - pool.bought_blocks for pool in fleet.pools if pool.name in blocks}
    if not any(room.values()):
        return blocks
    programs = [Program(future, slots=_SLOTS) for future in futures(fleet, FUTURES, seed)]
    known: dict[tuple[int, ...], float] = {}

    def cost(tried: Mapping[str, int]) -> float:
        key = tuple(tried.values())
        if key not in known:
            known[key] = sum(float(program.solved(tried).fun) for program in programs) / FUTURES
        return known[key]

    while True:
        near = [blocks | {name: blocks[name] + step} for name in blocks for step in (-1, 1)]
        near = [tried for tried in near if all(0 <= count <= room[name] for name, count in tried.items())]
        best = min(near, key=cost)
        if cost(best) >= cost(blocks) - 1e-6:
            return blocks
        blocks = best
