"""Which PyTorch runs a card, and that nothing is planned which it cannot do."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, load_gpus, require_gpu
from advisor.hardware.software_support import (
    can,
    can_train_in,
    installed_problem,
    lacks,
    pytorch_it_needs,
    runs_trainer,
    support_in_words,
    trainer_release,
    usual_precision,
    wheels,
    wheels_for,
)
from advisor.options import Goal
from advisor.planning.answer import bare_plan
from advisor.prediction.uncalibrated import prior_profile
from advisor.store.folders import profiles_folder
from advisor.store.store import default_store
from advisor.workflows.goal import goal_from
from advisor.workflows.plan import load_profiles, recommend

CARDS = load_gpus()
RATES = {"bf16": "bf16_flops", "fp16": "fp16_flops", "fp8": "fp8_flops", "tf32": "tf32_flops"}


@pytest.mark.parametrize(
    ("key", "newest", "pip"),
    [
        ("gtx-titan-x", ("2.14", "cu126"), False),
        ("gtx-1080ti", ("2.14", "cu126"), False),
        ("p100-16gb-pcie", ("2.14", "cu126"), False),
        ("v100-16gb-sxm2", ("2.14", "cu126"), False),
        ("t4", ("2.15", "cu132"), True),
        ("a100-80gb-sxm", ("2.15", "cu132"), True),
        ("rtx-4090", ("2.15", "cu132"), True),
        ("h100-80gb-sxm", ("2.15", "cu132"), True),
        ("b200", ("2.15", "cu132"), True),
        ("b300", ("2.15", "cu132"), True),
        ("rtx-5090", ("2.15", "cu132"), True),
        ("gb10", ("2.15", "cu132"), True),
        ("mi300x", ("2.14", "rocm7.14"), False),
    ],
)
def test_the_newest_wheel_of_a_card(key: str, newest: tuple[str, str], pip: bool) -> None:
    spec = require_gpu(key)
    first = wheels_for(spec)[0]
    assert (first.torch, first.variant) == newest
    assert (pytorch_it_needs(spec) is None) == first.is_default == pip
    assert runs_trainer(spec)


def test_blackwell_began_with_2_7_and_cuda_12_8() -> None:
    for key in ("b200", "rtx-5090", "gb10"):
        assert (wheels_for(require_gpu(key))[-1].torch, wheels_for(require_gpu(key))[-1].variant) == ("2.7", "cu128")
        assert support_in_words(require_gpu(key)).endswith("at the earliest PyTorch 2.7 with CUDA 12.8")


def test_volta_left_the_wheels_of_cuda_12_8_with_2_11() -> None:
    volta = {(wheel.torch, wheel.variant) for wheel in wheels_for(require_gpu("v100-32gb-pcie"))}
    assert ("2.10", "cu128") in volta and ("2.11", "cu128") not in volta
    assert {torch for torch, variant in volta if variant == "cu126"} == {"2.14", "2.13", "2.12", "2.11", "2.10", "2.9",
        "2.8", "2.7"}  # fmt: skip


def test_a_card_that_pip_does_not_serve_names_its_wheel() -> None:
    words = pytorch_it_needs(require_gpu("v100-16gb-sxm2"))
    assert words and "PyTorch 2.14 with CUDA 12.6" in words
    assert "pip install 'torch==2.14.*' --index-url https://download.pytorch.org/whl/cu126" in words
    assert pytorch_it_needs(require_gpu("t4")) is None
    assert "torch_xla" in (pytorch_it_needs(require_gpu("tpu-v6e")) or "")


@pytest.mark.parametrize(
    ("key", "version", "problem"),
    [
        ("v100-16gb-sxm2", "2.15.0", "PyTorch 2.15 with CUDA 13.2, installed here, has no kernels"),
        ("v100-16gb-sxm2", "2.14.1+cu126", None),
        ("v100-16gb-sxm2", "2.13.0+cpu", None),  # nothing is known of other builds
        ("v100-16gb-sxm2", "2.16.0a0+gitdeadbeef", None),
        ("rtx-5090", "2.7.1", "PyTorch 2.7 with CUDA 12.6, installed here, has no kernels"),
        ("rtx-5090", "2.7.1+cu128", None),
        ("l4", "2.15.0", None),
    ],
)
def test_an_installed_pytorch_without_kernels_is_named(key: str, version: str, problem: str | None) -> None:
    found = installed_problem(require_gpu(key), version)
    assert found is None if problem is None else problem in (found or "")


@pytest.mark.parametrize("feature", RATES)
def test_data_sheet_and_table_agree(feature: str) -> None:
    """A rate in the catalog is a unit in the table, and the other way round."""
    for key, spec in CARDS.items():
        if spec.is_cuda:
            assert can(spec, feature) == (getattr(spec, RATES[feature]) is not None), key


def test_fp8_is_offered_from_8_9_on_only() -> None:
    assert can(require_gpu("a100-80gb-sxm"), "fp8") is False and can(require_gpu("l4"), "fp8")
    for spec in CARDS.values():
        if spec.is_cuda and float(spec.compute_capability) < 8.9:
            assert not can_train_in(spec, "fp8") and spec.fp8_flops is None


@pytest.mark.parametrize("key", sorted(CARDS))
def test_what_is_believed_of_a_card_is_something_it_can_do(key: str) -> None:
    spec = CARDS[key]
    profile = prior_profile(spec)
    assert profile.precision == usual_precision(spec)
    assert can_train_in(spec, profile.precision)
    assert not (profile.compile and can(spec, "compile") is False)
    for precision in ("bf16", "fp16"):
        if not can_train_in(spec, precision):
            with pytest.raises(AdvisorError) as refused:
                prior_profile(spec, precision=precision)
            assert f"--precision {usual_precision(spec)}" in refused.value.hint


def test_a_card_too_old_for_triton_is_not_compiled_for() -> None:
    p100 = require_gpu("p100-16gb-pcie")
    assert not prior_profile(p100).compile and prior_profile(require_gpu("v100-16gb-sxm2")).compile
    with pytest.raises(AdvisorError, match="too old for torch.compile"):
        load_profiles(Goal(gpu=p100.key, compile=True), default_store())
    assert "torch.compile" in lacks(p100)


def test_a_plan_for_a_v100_says_which_pytorch_it_needs() -> None:
    plan = recommend(goal_from({"gpu": "v100-16gb-sxm2", "depth": 4, "tokens": 50_000_000}), default_store())
    assert plan.run.precision == "fp16"
    assert any("PyTorch 2.14 with CUDA 12.6" in text for text in plan.warnings)
    plan = recommend(goal_from({"gpu": "t4", "depth": 4, "tokens": 50_000_000}), default_store())
    assert not any("PyTorch" in text for text in plan.warnings)


def test_any_leaves_out_what_no_wheel_for_the_trainer_runs(advisor_home: Path) -> None:
    """A Kepler card of one's own: the last wheels that ran it are of 2022."""
    row = "k80,3.7,12,240,4.1,a listing\n"
    header = "key,compute_capability,memory_gb,mem_bw_gbs,fp32_tflops,source\n"
    (advisor_home / "gpus.csv").write_text(header + row, encoding="utf-8")
    profiles, left_out = load_profiles(Goal(gpu="any", deadline_seconds=3600.0), default_store())
    keys = {profile.key for profile in profiles}
    assert {"t4", "v100-16gb-sxm2", "rtx-4070-laptop"} <= keys and "k80" not in keys
    assert f"no official wheel of PyTorch {trainer_release()} or later runs k80" in left_out
    assert pytorch_it_needs(require_gpu("k80")) == "k80: no official PyTorch wheel runs it"


@pytest.mark.parametrize("key", ["gtx-1080ti", "p100-16gb-pcie", "t4", "rtx-5060ti-16gb"])
def test_a_plan_asks_for_nothing_that_the_card_cannot_do(key: str) -> None:
    plan = bare_plan(Goal(gpu=key, depth=4, tokens=5e7), prior_profile(CARDS[key]), now=datetime.now(UTC))
    assert can_train_in(CARDS[key], plan.run.precision)
    assert not (plan.run.compile and can(CARDS[key], "compile") is False)


def test_a_card_of_unknown_capability_is_not_judged() -> None:
    mine: GpuSpec = replace(require_gpu("l4"), key="mine", architecture="", compute_capability="")
    assert runs_trainer(mine) and pytorch_it_needs(mine) is None and lacks(mine) == ()
    assert usual_precision(mine) == "bf16"


def test_the_table_is_whole() -> None:
    document = yaml.safe_load((profiles_folder() / "pytorch_support.yaml").read_text(encoding="utf-8"))
    named = {name for release in document["releases"] for name in release["sources"]}
    named |= {entry["source"] for entry in document["features"].values()} | {"compatibility"}
    assert named == set(document["sources"])
    assert all(address.startswith("https://") for address in document["sources"].values())
    releases = [tuple(map(int, release["torch"].split("."))) for release in document["releases"]]
    assert releases == sorted(releases, reverse=True)
    assert trainer_release() in {release["torch"] for release in document["releases"]}
    assert {wheel.torch for wheel in wheels() if wheel.is_default} == {
        release["torch"] for release in document["releases"]
    }
    for spec in CARDS.values():
        assert support_in_words(spec) != "unknown", spec.key
