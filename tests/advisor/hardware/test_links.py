"""Links as the catalog words them."""

from __future__ import annotations

import pytest

from advisor.hardware.catalog import load_gpus
from advisor.hardware.links import read_link


@pytest.mark.parametrize(
    ("text", "generation", "gigabytes", "gpus"),
    [
        ("nvlink4 900", "nvlink4", 450, 8),
        ("pcie4x16 64", "pcie4x16", 32, 8),
        ("nvlink3-bridge 112.5; pcie4x16 64", "pcie4x16", 32, 8),
        ("nvlink5 1800 (NVL72); nvlink-c2c 900", "nvlink5", 900, 72),
        ("nvlink-c2c 900; nvlink4 900", "nvlink4", 450, 8),
        ("roce 600 (24x100GbE, 21 in-node)", "roce", 300, 8),
    ],
)
def test_link_is_read_past_bridges_and_host_links(text: str, generation: str, gigabytes: float, gpus: int):
    link = read_link(text)
    assert (link.generation, link.bytes_per_second, link.gpus) == (generation, gigabytes * 1e9, gpus)


def test_every_catalog_interconnect_is_read_or_names_no_rate():
    for spec in load_gpus().values():
        assert (read_link(spec.interconnect) is None) == (not any(c.isdigit() for c in spec.interconnect))
