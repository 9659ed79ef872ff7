"""Reads how the GPUs of one machine are connected, in the catalog's notation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from advisor.hardware.catalog import GPUS_PER_NODE


@dataclass(frozen=True, kw_only=True)
class Link:
    """The connection between the GPUs of one node."""

    kind: str  # nvlink | xgmi | roce | pcie
    generation: str  # as in the catalog: nvlink4, pcie4x16
    bytes_per_second: float  # nominal rate in one direction, per GPU
    gpus: int = GPUS_PER_NODE  # number of GPUs that the link connects


@cache
def read_link(interconnect: str) -> Link | None:
    """Read the catalog's interconnect column ("nvlink4 900": both directions, GB/s). Returns None if it names no rate.

    Bridges between pairs of GPUs are ignored, because not every machine has them. Links to the host processor are
    ignored, because they connect no GPUs.
    """
    for part in interconnect.split(";"):
        match = re.match(r"\s*(nvlink|xgmi|roce|pcie)(\S*) (\d+(?:\.\d+)?)\b(.*)", part)
        if not match or "bridge" in match[2] or "c2c" in match[2]:
            continue
        domain = re.search(r"NVL(\d+)", match[4])
        return Link(
            kind=match[1],
            generation=match[1] + match[2],
            bytes_per_second=float(match[3]) * 1e9 / 2,
            gpus=int(domain[1]) if domain else GPUS_PER_NODE,
        )
    return None
