"""Names find exactly one card or say why not; prices are for whole machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu, load_gpus, peak_flops, require_gpu


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("l4", "l4"),
        ("L4", "l4"),
        ("h200", "h200-141gb-sxm"),
        ("NVIDIA H200", "h200-141gb-sxm"),
        ("h200-nvl", "h200-141gb-nvl"),
        ("h100-sxm", "h100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("NVIDIA H100 PCIe", "h100-80gb-pcie"),
        ("4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx-4080-super"),
        ("rtx 4080", "rtx-4080"),
        ("Tesla T4", "t4"),
        ("3060", "rtx-3060-12gb"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
    ],
)
def test_finds_a_card_by_key_driver_name_or_short_name(name: str, key: str) -> None:
    spec = find_gpu(name)
    assert spec is not None and spec.key == key
    assert require_gpu(name) == spec


@pytest.mark.parametrize(
    ("name", "some_keys"),
    [
        ("a100", ["a100-40gb-sxm", "a100-80gb-pcie"]),
        ("h100", ["h100-80gb-sxm", "h100-80gb-pcie", "h100-94gb-nvl"]),
        ("a100-80gb", ["a100-80gb-sxm", "a100-80gb-pcie"]),
        ("gh200", ["gh200-96gb", "gh200-144gb"]),
    ],
)
def test_an_ambiguous_name_lists_what_it_could_be(name: str, some_keys: list[str]) -> None:
    assert find_gpu(name) is None
    with pytest.raises(AdvisorError) as caught:
        require_gpu(name)
    assert all(key in caught.value.message for key in some_keys)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "close"),
    [("h2000", "h200"), ("h1000", "h100"), ("rtx-4099", "rtx-4090"), ("mi300", "mi300x"), ("3090 ti", "rtx-3090ti")],
)
def test_an_unknown_name_gets_close_matches(name: str, close: str) -> None:
    assert find_gpu(name) is None
    with pytest.raises(AdvisorError, match="unknown GPU") as caught:
        require_gpu(name)
    assert close in caught.value.hint


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H200 MIG 1g.18gb", "Quadro RTX 8000", ""]
)
def test_another_card_is_never_taken_instead(name: str) -> None:
    assert find_gpu(name) is None


def test_every_driver_name_finds_its_own_row() -> None:
    for key, spec in load_gpus().items():
        for name in (key, *spec.nvml_names):
            assert find_gpu(name) == spec, name


@given(st.text(max_size=20))
def test_any_name_is_a_card_or_none(name: str) -> None:
    spec = find_gpu(name)
    assert spec is None or require_gpu(name) == spec


def test_peaks_are_dense_and_unknown_where_unpublished() -> None:
    h100, t4, l4 = require_gpu("h100-sxm"), require_gpu("t4"), require_gpu("l4")
    assert peak_flops(h100, "bf16") == pytest.approx(989.4e12)
    assert peak_flops(h100, "fp32") == pytest.approx(494.5e12)
    assert peak_flops(h100, "fp32", tf32=False) == pytest.approx(67e12)
    assert peak_flops(t4, "bf16") is None
    assert peak_flops(t4, "fp16") == pytest.approx(65e12)
    assert peak_flops(t4, "fp32") == pytest.approx(8.1e12)
    assert (l4.memory_bytes, l4.memory_bytes_per_second) == (23034 * 2**20, 300e9)
    assert require_gpu("mi210").memory_bytes == 64 * 10**9


def own_gpus(home: Path, text: str) -> None:
    (home / "gpus.csv").write_text(text, encoding="utf-8")


def test_own_cards_join_the_catalog_and_win(advisor_home: Path) -> None:
    header = "key,memory_gb,mem_bw_gbs,bf16_dense_tflops,source"
    own_gpus(advisor_home, f"{header}\nmine,12,400,50,me\nl4,24,300,100,my bench\n")
    assert len(load_gpus()) == 62
    assert find_gpu("mine").bf16_flops == 50e12
    assert (find_gpu("l4").bf16_flops, find_gpu("l4").source) == (100e12, "my bench")
    own_gpus(advisor_home, f"{header}\nl4,24,300,110,my second bench\n")
    assert find_gpu("l4").bf16_flops == 110e12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key,memory_gb,mem_bw_gbs,source\nmine,twelve,400,me\n", "line 2: memory_gb is 'twelve'"),
        ("key,memory_gb,mem_bw_gbs,source\nmine,12,0,me\n", "line 2: mem_bw_gbs is '0'"),
        ("key,memory_gb,mem_bw_gbs,source\nmine,12,400,me\nyours,12,,me\n", "line 3: mem_bw_gbs is empty"),
        ("key,memory_gb,source\nmine,12,me\n", "lacks the column mem_bw_gbs"),
        ("key,memory_gb,mem_bw_gbs,source\nmine,12,400,me\nmine,12,400,me\n", "line 3: the key 'mine' is there twice"),
    ],
)
def test_a_broken_own_row_is_named_by_file_and_line(advisor_home: Path, text: str, words: str) -> None:
    own_gpus(advisor_home, text)
    with pytest.raises(AdvisorError) as caught:
        load_gpus()
    assert words in caught.value.message
    assert str(advisor_home / "gpus.csv") in caught.value.message
