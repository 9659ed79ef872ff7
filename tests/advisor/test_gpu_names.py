"""Names of cards as people write them: each its card, or none where it could be several."""

from __future__ import annotations

import pytest

from advisor.hardware.catalog import load_gpus, load_published_gpus
from advisor.prediction.gpu_names import match_card, named_cards, possible_cards

CARDS = load_gpus()


@pytest.mark.parametrize(
    ("name", "memory", "key"),
    [
        ("H100 80GB HBM3 SXM", None, "h100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", None, "h100-80gb-sxm"),
        ("A100 80GB SXM (DGX)", None, "a100-80gb-sxm"),
        ("A100 SXM4", 40.0, "a100-40gb-sxm"),
        ("V100 32GB SXM3 (DGX-2H 450W)", None, "v100-32gb-sxm2"),
        ("RTX 6000 Ada", None, "rtx-6000-ada"),
        ("RTX A6000", None, "a6000"),
        ("RTX 3090 (350W)", None, "rtx-3090"),
        ("A10G 24GB", None, "a10g"),
        ("B200 192GB", None, "b200"),
        ("GH200 96GB", None, "gh200-96gb"),
        ("H200 141GB SXM", None, "h200-141gb-sxm"),
        ("H200", None, "h200-141gb-sxm"),
        ("H200 NVL", None, "h200-141gb-nvl"),
        ("H100 94GB", None, "h100-94gb-nvl"),
        ("DGX H100", None, "h100-80gb-sxm"),
        ("8x H100 SXM5 80 GB", None, "h100-80gb-sxm"),
        ("H100 (SXM, 80GB)", None, "h100-80gb-sxm"),
        ("A100 (40GB SXM)", None, "a100-40gb-sxm"),
        ("V100 (16GB, PCIe)", None, "v100-16gb-pcie"),
        ("A100 80G", None, "a100-80gb-sxm"),
        ("RTX4090", None, "rtx-4090"),
        ("RTX 4090 D", None, "rtx-4090d"),
        ("RTX 3090 Ti", None, "rtx-3090ti"),
        ("2 x A10", None, "a10"),
        ("Gaudi 2", None, "gaudi2"),
        ("A800 SXM4 80GB", None, "a800-80gb-sxm"),
        ("H800 (SXM5)", None, "h800-80gb-sxm"),
        ("RTX 4070 Laptop 8GB", None, "rtx-4070-laptop"),
        ("NVIDIA GeForce RTX 4060 Ti", 16.0, "rtx-4060ti-16gb"),
        ("RTX 4060 Ti (8 GB)", None, "rtx-4060ti-8gb"),
        ("4070 Ti SUPER", None, "rtx-4070ti-super"),
        ("RTX PRO 6000 Blackwell Server", None, "rtx-pro-6000-bw-server"),
        ("RTX PRO 6000 Blackwell Workstation Edition", None, "rtx-pro-6000-bw-ws"),
        ("DGX Spark", None, "gb10"),
        ("RTX A4500", None, "a4500"),
        ("RTX 8000", None, "quadro-rtx-8000"),
        ("GTX 1080 Ti", None, "gtx-1080ti"),
    ],
)
def test_published_names_find_their_card(name: str, memory: float | None, key: str):
    assert match_card(name, memory, CARDS.values()).key == key


@pytest.mark.parametrize(
    "name",
    [
        *(
            "A100",
            "H100",
            "H100 80GB",
            "GH200",
            "A100 SXM4",
            "Blackwell (model not named)",
            "MI250 (1 GCD)",
            "RTX",
            "80GB",
        ),
        *("H800 80GB", "RTX 4060 Ti", "NVIDIA GeForce RTX 4060 Ti", "RTX 3080", "RTX PRO 6000 Blackwell", "V100 SXM2"),
        *("RTX 4090 Max-Q", "RTX 4050 Laptop", "RTX 4000 SFF Ada", "TITAN X (Pascal)", "Apple M2 Pro", "Laptop", "RTX"),
    ],
)
def test_a_name_that_could_be_several_cards_is_none_of_them(name: str):
    assert isinstance(match_card(name, None, CARDS.values()), str)


def test_used_memory_rules_out_small_cards():
    assert possible_cards("A100", named_cards("A100", None, CARDS.values()), 60.0).memory_gb == 80


def test_every_catalog_key_and_driver_name_is_itself():
    for spec in CARDS.values():
        assert match_card(spec.key, None, CARDS.values()) is spec
        for name in spec.nvml_names:
            assert match_card(name, spec.memory_gb, CARDS.values()) is spec


@pytest.mark.parametrize(
    ("name", "memory", "keys"),
    [
        ("H100 SXM", None, {"h100-80gb-sxm"}),
        ("H100 (PCIe)", None, {"h100-80gb-pcie"}),
        ("H100 PCIe (not SXM)", None, {"h100-80gb-pcie"}),
        ("H100", None, {"h100-80gb-sxm", "h100-80gb-pcie"}),
        ("H100 NVL", None, {"h100-94gb-nvl"}),
        ("H100", 96.0, {"h100-96gb-hbm2e"}),
        ("H100 96GB HBM2e 500W (Meta Grand Teton)", None, {"h100-96gb-hbm2e"}),
        ("RTX 4090 (Laptop)", None, {"rtx-4090-laptop"}),
        ("RTX 4090 (mobile)", None, {"rtx-4090-laptop"}),
        ("RTX 4090 (not laptop)", None, {"rtx-4090"}),
        ("RTX 4080 (Super)", None, {"rtx-4080-super"}),
        ("A100 80GB PCIe/SXM", None, {"a100-80gb-sxm", "a100-80gb-pcie"}),
        ("A100 80GB (SXM or PCIe)", None, {"a100-80gb-sxm", "a100-80gb-pcie"}),
        ("A100 80GB SXM (PCIe gen 4 host)", None, {"a100-80gb-sxm"}),
    ],
)
def test_every_card_that_an_everyday_name_may_mean(name: str, memory: float | None, keys: set[str]):
    assert {card.key for card in named_cards(name, memory, load_published_gpus().values())} == keys
