"""Names find exactly one card or say why not; prices are for whole machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, find_gpu, load_gpus, peak_flops, read_gpus, require_gpu


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
        ("3090 ti", "rtx-3090ti"),
        ("4070 Ti SUPER", "rtx-4070ti-super"),
        ("RTX4070TiSUPER", "rtx-4070ti-super"),
        ("4080", "rtx-4080"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("RTX 4070 Laptop 8GB", "rtx-4070-laptop"),
        ("RTX 3080 Mobile 16GB", "rtx-3080-laptop-16gb"),
        ("RTX 4060 Ti 16GB", "rtx-4060ti-16gb"),
        ("RTX PRO 6000 Blackwell Server", "rtx-pro-6000-bw-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-bw-maxq"),
        ("A800 SXM4 80GB", "a800-80gb-sxm"),
        ("H800 PCIe", "h800-80gb-pcie"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("DGX Spark", "gb10"),
    ],
)
def test_finds_a_card_by_key_driver_name_or_short_name(name: str, key: str) -> None:
    spec = find_gpu(name)
    assert spec is not None and spec.key == key
    assert require_gpu(name) == spec


@pytest.mark.parametrize(
    ("name", "some_keys"),
    [
        ("a100", ["a100-80gb-sxm", "a100-40gb-sxm", "a100-80gb-pcie"]),
        ("h100", ["h100-80gb-sxm", "h100-80gb-pcie", "h100-94gb-nvl"]),
        ("a100-80gb", ["a100-80gb-sxm", "a100-80gb-pcie"]),
        ("gh200", ["gh200-96gb", "gh200-144gb"]),
        ("RTX 4060 Ti", ["rtx-4060ti-8gb", "rtx-4060ti-16gb"]),
        ("NVIDIA GeForce RTX 3080", ["rtx-3080-10gb", "rtx-3080-12gb"]),
        ("3080 laptop", ["rtx-3080-laptop-8gb", "rtx-3080-laptop-16gb"]),
        ("H800 80GB", ["h800-80gb-sxm", "h800-80gb-pcie"]),
        ("RTX PRO 6000 Blackwell", ["rtx-pro-6000-bw-ws", "rtx-pro-6000-bw-maxq", "rtx-pro-6000-bw-server"]),
    ],
)
def test_a_name_of_several_forms_is_the_usual_one_and_says_so(name: str, some_keys: list[str]) -> None:
    assert find_gpu(name) is None  # a driver's name is never guessed at
    read = read_gpus(name)
    usual, *others = some_keys
    assert read.key == usual == require_gpu(name).key
    assert read.reading.startswith(f"{name} read as {usual} (other forms: ")
    assert all(key in read.reading for key in others)


def test_a_name_of_different_gpus_lists_what_it_could_be() -> None:
    with pytest.raises(AdvisorError, match="rtx-6000-ada.*quadro-rtx-6000") as caught:
        require_gpu("rtx-6000")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "key", "count"),
    [
        ("8xh100", "h100-80gb-sxm", 8),
        ("8 x H100", "h100-80gb-sxm", 8),
        ("H100 x8", "h100-80gb-sxm", 8),
        ("a100:16", "a100-80gb-sxm", 16),
        ("2*4090", "rtx-4090", 2),
        ("h100-80gb-sxm:4", "h100-80gb-sxm", 4),
        ("l4", "l4", None),
        ("any", "any", None),
    ],
)
def test_a_count_stands_before_or_behind_a_name(text: str, key: str, count: int | None) -> None:
    read = read_gpus(text)
    assert (read.key, read.count) == (key, count)
    assert (read.reading is None) == (text in ("l4", "any", "h100-80gb-sxm:4"))


@pytest.mark.parametrize("text", ["h100:0", "0xh100", "h100:many", "2xh100:4", "h100:9999999"])
def test_a_count_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(AdvisorError, match="how many GPUs") as caught:
        read_gpus(text)
    assert caught.value.exit_code == 2 and "h100:8" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m3-max", "of Apple's GPUs the catalog has none"),
        ("Apple M2 Ultra", "of Apple's GPUs the catalog has none"),
        ("RX 7900 XTX", "of AMD's GPUs the catalog has mi100"),
        ("mi50", "of AMD's GPUs the catalog has mi100"),
        ("arc a770", "of Intel's GPUs the catalog has gaudi2"),
    ],
)
def test_a_gpu_of_another_maker_gets_a_sentence(name: str, words: str) -> None:
    with pytest.raises(AdvisorError) as caught:
        require_gpu(name)
    assert words in caught.value.message and "advisor calibrate --gpu cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "close"),
    [("h2000", "h200"), ("h1000", "h100"), ("rtx-4099", "rtx-4090"), ("mi300", "mi300x"), ("3099 ti", "rtx-3090ti")],
)
def test_an_unknown_name_gets_close_matches(name: str, close: str) -> None:
    assert find_gpu(name) is None
    with pytest.raises(AdvisorError, match="unknown GPU") as caught:
        require_gpu(name)
    assert close in caught.value.hint


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA GeForce RTX 4050 Laptop GPU", "RTX 4090 Max-Q", "NVIDIA H200 MIG 1g.18gb", "Quadro RTX 5000", ""),
        *("RTX 4000 SFF Ada Generation", "RTX A2000 Laptop GPU", "NVIDIA TITAN X (Pascal)", "TITAN Xp", "TITAN V"),
        *("RTX PRO 4000 Blackwell SFF", "Apple M2 Pro", "RTX 4090 24GB Laptop", "A800 40GB SXM"),
    ],
)
def test_another_card_is_never_taken_instead(name: str) -> None:
    assert find_gpu(name) is None


def test_every_driver_name_and_memory_find_their_own_row() -> None:
    for key, spec in load_gpus().items():
        assert find_gpu(key) == spec
        for name in spec.nvml_names:
            assert find_gpu(name, spec.memory_bytes) == spec, name


@pytest.mark.parametrize(
    ("name", "mib", "key"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 8188, "rtx-4060ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060ti-16gb"),
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3080", 20480, None),  # a card that was never sold under this name
        ("NVIDIA GeForce RTX 3080", None, None),
    ],
)
def test_memory_tells_cards_of_one_driver_name_apart(name: str, mib: int | None, key: str | None) -> None:
    found = find_gpu(name, mib and mib * 2**20)
    assert (found and found.key) == key


@given(spec=st.sampled_from(sorted(load_gpus().values(), key=lambda spec: spec.key)), data=st.data())
def test_a_longer_name_is_another_card(spec: GpuSpec, data: st.DataObject) -> None:
    """A word more makes another product of a name: a slower one, as a rule."""
    name = data.draw(st.sampled_from(spec.nvml_names))
    word = data.draw(st.sampled_from(["Max-Q", "SFF", "MIG 1g.10gb", "Laptop", "Mobile", "D2", "Lite"]))
    if word in name or ("Laptop" in name and word == "Mobile"):
        return  # it says so already
    assert find_gpu(f"{name} {word}", spec.memory_bytes) != spec


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
    assert len(load_gpus()) == 117
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
        ("key,memory_gb,mem_bw_gbs,source\nmine,12,400,me\nmine,12,400,me\n", "line 3: the key 'mine' occurs twice"),
    ],
)
def test_a_broken_own_row_is_named_by_file_and_line(advisor_home: Path, text: str, words: str) -> None:
    own_gpus(advisor_home, text)
    with pytest.raises(AdvisorError) as caught:
        load_gpus()
    assert words in caught.value.message
    assert str(advisor_home / "gpus.csv") in caught.value.message
