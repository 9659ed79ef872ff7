"""The data in profiles/ is whole: every row usable, no known trap of price lists and datasheets left in it."""

from __future__ import annotations

import csv
import datetime
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.hardware.prices import load_prices, price_problem
from advisor.prediction.software import require_software, table
from advisor.store.folders import profiles_folder
from benchmarks.rows.words import software_in

# read here without the catalog: while tests are collected, ADVISOR_HOME is still the user's own
with (profiles_folder() / "gpus.csv").open(encoding="utf-8", newline="") as _file:
    KEYS = [row["key"] for row in csv.DictReader(_file)]


def test_every_card_has_its_sources() -> None:
    gpus = load_gpus()
    assert gpus
    for key, spec in gpus.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key)
        assert spec.source and spec.architecture and spec.nvml_names


def test_cards_that_share_a_driver_name_differ_in_memory() -> None:
    names = Counter((name.lower(), spec.memory_gb) for spec in load_gpus().values() for name in spec.nvml_names)
    assert [name for name, count in names.items() if count > 1] == []
    shared = Counter(name for name, _ in names)
    assert [name.removeprefix("nvidia geforce rtx ") for name, count in shared.items() if count > 1] == [
        "3080 laptop gpu", "3080", "4060 ti", "5060 ti",
    ]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_card_is_consistent_with_itself(key: str) -> None:
    spec = load_gpus()[key]
    assert 4 <= spec.memory_gb <= 400
    if spec.reported_memory_bytes:  # GB and GiB are mixed in marketing; ECC and firmware take up to 8 %
        assert 0.92 * spec.memory_gb * 1e9 <= spec.reported_memory_bytes <= 1.002 * spec.memory_gb * 2**30
    assert 100e9 <= spec.memory_bytes_per_second <= 10e12
    known = [rate for rate in (spec.tf32_flops, spec.bf16_flops, spec.fp8_flops) if rate]
    assert known == sorted(known)
    limited = spec.key == "rtx-5090d"  # its tensor cores were made slower, its shaders were not
    known = [spec.fp32_flops] * bool(spec.fp32_flops) + (known[1:] if limited else known)
    assert known == sorted(known)
    assert known or spec.fp16_flops
    if spec.mamf_bf16_flops:  # nobody measures more than the dense peak
        assert 0.4 * spec.bf16_flops < spec.mamf_bf16_flops < spec.bf16_flops
    assert spec.tdp_watts is None or 50 <= spec.tdp_watts <= 1500


@pytest.mark.parametrize("key", KEYS)
def test_tensor_rates_are_dense(key: str) -> None:
    """From Ampere on fp8 is twice bf16 and bf16 twice TF32: a sparse figure in one column breaks the chain."""
    spec = load_gpus()[key]
    if spec.fp8_flops and spec.bf16_flops and spec.key not in ("gaudi2", "gaudi3", "tpu-v6e", "trainium1"):
        assert spec.fp8_flops == pytest.approx(2 * spec.bf16_flops, rel=0.03)
    if spec.tf32_flops and spec.bf16_flops and spec.architecture in ("Ampere", "Ada", "Hopper", "Blackwell"):
        assert spec.bf16_flops == pytest.approx(2 * spec.tf32_flops, rel=0.03)
    if spec.architecture in ("Turing", "Volta", "Pascal", "Maxwell"):
        assert spec.bf16_flops is None and spec.tf32_flops is None


@pytest.mark.parametrize(
    ("key", "bf16"),
    [
        ("b200", 2250e12),
        ("h200-141gb-sxm", 989.4e12),
        ("h100-80gb-sxm", 989.4e12),
        ("h100-80gb-pcie", 756e12),
        ("a100-80gb-sxm", 312e12),
        ("l40s", 362e12),
        ("l4", 121e12),
        ("rtx-5090", 209.5e12),
        ("rtx-4090", 165.2e12),
        ("rtx-3090", 71.2e12),
        ("a800-80gb-sxm", 312e12),
        ("rtx-4070ti-super", 88.2e12),
        ("a4500", 94.6e12),  # a quarter of the data sheet's sparse rates of fp8, half of those of bf16
        ("rtx-4000-ada", 427.6e12 / 4),
        ("rtx-2000-ada", 191.9e12 / 4),
        ("rtx-5000-ada", 1044.4e12 / 4),
        ("gb10", 1e15 / 8),
    ],
)
def test_dense_peaks_of_the_handbook(key: str, bf16: float) -> None:
    assert load_gpus()[key].bf16_flops == pytest.approx(bf16, rel=0.01)


@pytest.mark.parametrize(
    ("keys", "generation"),
    [
        (["rtx-4070ti-super", "rtx-4090-laptop", "rtx-4060"], "Ada half-rate"),
        (["rtx-4000-ada", "rtx-2000-ada", "rtx-5000-ada"], "Ada"),
        (["rtx-3080-12gb", "rtx-3060-laptop"], "Ampere half-rate"),
        (["a4500", "a2000-6gb", "a2000-12gb", "a800-80gb-sxm"], "Ampere"),
        (["rtx-5060ti-16gb", "rtx-5090-laptop", "rtx-5070"], "Blackwell half-rate"),
        (["rtx-pro-4000-bw", "gb10"], "Blackwell"),
        (["titan-rtx", "quadro-rtx-8000"], "Turing"),
        (["h800-80gb-sxm", "h800-80gb-pcie"], "Hopper"),
        (["gtx-1080ti"], "Pascal"),
        (["gtx-titan-x"], "Maxwell"),
    ],
)
def test_a_card_is_of_its_generation(keys: list[str], generation: str) -> None:
    assert {load_gpus()[key].generation for key in keys} == {generation}


def test_every_catalog_laptop_says_which_powers_makers_choose_from() -> None:
    laptops = [spec for key, spec in load_gpus().items() if "laptop" in key]
    assert len(laptops) == 11
    for spec in laptops:
        low, high = re.search(r"choose (\d+) to (\d+) W", spec.notes).groups()
        assert int(low) < int(high) == spec.tdp_watts


def test_prices_are_of_known_cards_and_each_is_there_once() -> None:
    prices, gpus = load_prices(), load_gpus()
    assert prices
    assert {row.gpu for row in prices} <= set(gpus)
    keys = Counter((row.provider, row.instance_type, row.region) for row in prices)
    assert [key for key, count in keys.items() if count > 1] == []


def test_every_price_has_an_hourly_figure_and_a_source() -> None:
    for row in load_prices():
        assert row.on_demand_usd_per_hour or row.spot_usd_per_hour, row
        assert row.source
        assert row.snapshot_date is not None or "commit undated" in row.note or "OLD" in row.note, row


def test_snapshot_dates_are_not_in_the_future() -> None:
    dates = [row.snapshot_date for row in load_prices() if row.snapshot_date]
    assert datetime.date(2025, 1, 1) < min(dates) <= max(dates) <= datetime.date.today()


def test_spot_is_below_on_demand() -> None:
    for row in load_prices():
        if row.on_demand_usd_per_hour and row.spot_usd_per_hour:
            assert row.spot_usd_per_hour < row.on_demand_usd_per_hour, row


def test_the_check_of_live_prices_passes_every_shipped_row() -> None:
    assert {problem for row in load_prices() if (problem := price_problem(row, load_gpus()))} == set()


def test_an_installed_package_finds_its_profiles_outside_the_checkout(tmp_path: Path) -> None:
    """Laid out as the wheel lays it out: profiles/ inside the package, nothing beside it."""
    root = profiles_folder().parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for source, target in wheel["force-include"].items():
        shutil.copytree(root / source, tmp_path / target)
    code = "from advisor.store import folders; from advisor.hardware import prices; "
    code += "print(folders.profiles_folder(), len(prices.load_prices()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.split() == [str(tmp_path.resolve() / "advisor" / "_profiles"), str(len(load_prices()))]


def test_every_software_is_found_by_its_names_and_has_a_source() -> None:
    assert {"own", "nanogpt", "nanochat", "hf-trainer", "trl", "unsloth", "axolotl", "llama-factory", "torchtune",
            "litgpt", "deepspeed", "torchtitan", "megatron", "llmc"} <= set(table())  # fmt: skip
    names = [name for named in table().values() for name in (named.name, *named.also)]
    assert len(names) == len(set(names))
    for named in table().values():
        assert require_software(named.name.upper()) is named and named.source
        assert named.written is None or software_in(named.words) is named
        assert named.kind in ("c", "fused", "wrapper", "megatron", "tuned", "plain")
        assert named.state in ("fp32", "copied", "16bit") and named.gradients in ("fp32", "16bit")
        assert named.shardings[0] in ("none", "optimizer", "full") and named.optimizer in ("adamw", "muon")
    with pytest.raises(AdvisorError, match="unknown software 'nanogtp'"):
        require_software("nanogtp")
