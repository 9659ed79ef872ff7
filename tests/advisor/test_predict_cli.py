"""`advisor predict`, and the batch predictor against the one-by-one predictor."""

from __future__ import annotations

import dataclasses
import json
import subprocess

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.prediction.batch import predict_batch
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Workload
from tests.terminal import advisor
from trainer.schema import make_shape

D20 = ["--gpu", "h100-80gb-sxm", "--depth", "20", "--micro-batch", "16", "--seq-len", "2048", "--vocab-size", "65536"]
ESTIMATES = ("step_seconds", "tokens_per_second", "mfu", "peak_allocated_bytes", "peak_reserved_bytes")


def predict(*arguments: str) -> subprocess.CompletedProcess[str]:
    return advisor("predict", *arguments)


def workload(**changes: object) -> Workload:
    shape = make_shape("nanochat", depth=12, vocab_size=32768, seq_len=1024)
    return dataclasses.replace(Workload(shape=shape, micro_batch=8, gpu="h100-80gb-sxm", compile=True), **changes)


def test_one_configuration_as_json():
    done = predict(*D20, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert found["parameters"] == 560_988_160
    assert found["sources"][0].endswith("2 of 68 publishers had a run that took over 3 times as long as predicted")
    assert found["flops_per_token"] == pytest.approx(3_491_758_080, rel=1e-3)
    for name in ESTIMATES:
        estimate = found[name]
        assert estimate["low"] < estimate["value"] < estimate["high"] and estimate["basis"] == "prior"
    tokens = 16 * 2048
    assert found["tokens_per_second"]["value"] == pytest.approx(tokens / found["step_seconds"]["value"])
    rate = found["tokens_per_second"]["value"]
    assert found["mfu"]["value"] == pytest.approx(rate * found["flops_per_token"] / 989.4e12)
    # four published runs of this model on eight of these cards: 120,700-132,900 tokens/s per card
    assert found["tokens_per_second"]["low"] < 125_000 < found["tokens_per_second"]["high"]


def test_a_table_for_people_names_the_basis_and_the_sources():
    done = predict(*D20)
    assert done.returncode == 0, done.stderr
    assert "561 M parameters" in done.stdout and "prior" in done.stdout and "published runs" in done.stdout
    assert "2 of 68 publishers had a run that took over 3 times as long as predicted" in " ".join(done.stdout.split())


def test_a_model_too_large_for_one_card_fits_when_its_state_is_shared_out():
    """LLaMA 7B: 16 bytes a parameter are 100 GiB whole and an eighth of it on each of 8 cards (sources §2)."""
    words = ("--gpu", "h100-80gb-sxm", "--gpus", "8", "--family", "llama", "--depth", "32", "--seq-len", "4096",
             "--vocab-size", "32768", "--micro-batch", "1", "--activation-checkpointing", "full", "--json")  # fmt: skip
    whole, shared = predict(*words), predict(*words, "--sharding", "full")
    assert whole.returncode == 3 and shared.returncode == 0
    found = [json.loads(done.stdout) for done in (whole, shared)]
    saved = found[0]["peak_allocated_bytes"]["value"] - found[1]["peak_allocated_bytes"]["value"]
    assert saved == pytest.approx(16 * found[0]["parameters"] * 7 / 8, rel=0.15)
    assert not any("published software" in source for source in found[1]["sources"])
    plain, selective = (json.loads(predict(*words[:-2], kind, "--json", "--sharding", "full").stdout)
                        for kind in ("none", "selective"))  # fmt: skip
    assert plain["step_seconds"]["value"] < selective["step_seconds"]["value"] < found[1]["step_seconds"]["value"]


def test_what_does_not_fit_is_exit_code_3():
    done = predict(*D20[:4], "--micro-batch", "512", *D20[6:], "--json")
    assert (done.returncode, json.loads(done.stdout)["fits"]) == (3, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpu", "h900", *D20[2:]], "h900"),
        ((), "no model is given"),
        (D20[:2], "no model is given"),
        (["--gpu", "8xh100", "--tensor-parallel", "8", *D20[2:]], "without --depth"),
        (["--gpu", "8xh100", "--tp", "3", "--model", "llama-3-70b"], "--tp 3 does not divide 8 GPUs"),
        (["--gpu", "8xh100", "--vpp", "2", "--model", "llama-3-70b"], "--vpp 2 needs pipeline stages"),
        (["--gpu", "8xh100", "--tp", "8", "--model", "gpt2"], "--tp 8 does not divide the 12 heads of gpt2"),
        (["--gpu", "8xh100", "--ep", "8", "--model", "llama-3-70b"], "--ep 8: llama-3-70b has no experts"),
        (["--gpu", "8xh100", "--model", "mixtral-8x7b", "--lora-rank", "8", "--pp", "2"], "without --lora-rank"),
        ([*D20, "--heads", "7"], "not a multiple of heads"),
        (["--gpu", "v100-32gb-sxm2", "--precision", "bf16", *D20[2:]], "no bf16"),
        (["--rows", "no-such-file.csv"], "does not exist"),
        ([*D20[:2], "--depth", "0"], "--depth"),
    ],
)
def test_wrong_usage_is_exit_code_2_in_words(arguments: list[str], words: str):
    done = predict(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_card_that_is_no_cuda_card_is_predicted_and_planned_with_the_same_warning():
    planned = advisor("plan", "--gpu", "tpu-v4", "--price", "3", "--depth", "4")
    predicted = predict("--gpu", "tpu-v4", "--depth", "4", *D20[4:])
    for done, said in ((predicted, predicted.stderr), (planned, planned.stdout)):
        assert done.returncode == 0 and "the trainer was never run on tpu-v4" in said
    assert predict(*D20).stderr == ""


def test_what_is_left_open_is_taken_as_a_plan_takes_it_and_said():
    """gpt2: 124,439,808 parameters at its own length and vocabulary; the micro-batch is the batch rule's."""
    done = predict("--gpu", "8xh100", "--model", "gpt2", "--json")
    found = json.loads(done.stdout)
    work = found["workload"]
    assert (found["parameters"], work["gpu"], work["gpus"]) == (124_439_808, "h100-80gb-sxm", 8)
    assert (work["shape"]["seq_len"], work["shape"]["vocab_size"]) == (1024, 50257)
    assert "8xh100 read as 8 x h100-80gb-sxm" in done.stderr
    assert (
        f"--micro-batch {work['micro_batch']} (the smallest that is within 2 %" in done.stderr
        and "--seq-len" not in done.stderr
    )
    words = ("--gpu", "h100", "--gpus", "8", "--model", "gpt2", "--json", "--micro-batch")
    every = [json.loads(predict(*words, size).stdout) for size in ("128", "192", "256")]
    assert work["micro_batch"] == 192 and [one["fits"] for one in every] == [True, True, None]
    too_slow, chosen, _ = (one["tokens_per_second"]["value"] for one in every)
    assert too_slow < 0.98 * chosen and chosen == found["tokens_per_second"]["value"]
    bare = predict("--gpu", "h100", "--depth", "12")
    assert "--seq-len 2048; --vocab-size 32768" in bare.stderr and "depth 12" in bare.stdout


def test_parallelism_is_refused_in_a_plan_with_where_it_is_planned_and_predicted():
    done = advisor("plan", "--gpu", "h100", "--budget", "5", "--tp", "8")
    assert done.returncode == 2 and "has no --tensor-parallel" in done.stderr, done.stderr
    assert "advisor plan --layout any" in done.stderr and "advisor predict --tp" in done.stderr
    words = ("--gpu", "256xh100", "--model", "llama-3-70b", "--micro-batch", "2")
    assert predict(*words, "--tp", "1").stdout == predict(*words).stdout != ""


def test_the_stages_of_zero_divide_moments_gradients_and_weights():
    """DeepSpeed in 16 bits: 12 bytes of fp32 copy and moments, 2 of gradients, 2 of weights for each parameter."""
    words = ("--gpu", "8xa100", "--model", "llama-2-13b", "--software", "deepspeed", "--micro-batch", "1", "--json")
    stages = [json.loads(predict(*words, "--zero", str(stage)).stdout) for stage in range(4)]
    peaks = [stage["peak_allocated_bytes"]["value"] for stage in stages]
    for stage, size in ((1, 12), (2, 2), (3, 2)):  # ZeRO-3 gathers two blocks and the tables again
        saved = (peaks[stage - 1] - peaks[stage]) / stages[0]["parameters"]
        assert saved == pytest.approx(size * 7 / 8, rel=0.25), stage
    named = [json.loads(predict(*words, "--sharding", name).stdout) for name in ("none", "gradients")]
    assert [one["peak_allocated_bytes"] for one in named] == [stages[n]["peak_allocated_bytes"] for n in (0, 2)]
    refused = predict(*words, "--zero", "2", "--sharding", "full")
    assert refused.returncode == 2 and "--zero 2 is --sharding gradients, not full" in refused.stdout + refused.stderr


def test_batch_and_one_by_one_agree_on_one_device():
    profile = prior_profile(require_gpu("h100-80gb-sxm"), precision="bf16", compile=True)
    workloads = [workload(), workload(micro_batch=64), workload(optimizer="muon", grad_accum=4)]
    workloads.append(workload(activation_checkpointing="full"))
    for w, batch in zip(workloads, predict_batch(profile, workloads), strict=True):
        [single] = predict_batch(profile, [w])
        assert (batch.parameters, batch.fits, batch.workload) == (single.parameters, single.fits, single.workload)
        for name in ESTIMATES:
            got, expected = getattr(batch, name), getattr(single, name)
            assert dataclasses.astuple(got)[:3] == pytest.approx(dataclasses.astuple(expected)[:3])
            assert got.basis == expected.basis


def test_several_devices_cost_communication_and_share_sharded_updates():
    profile = prior_profile(require_gpu("h100-80gb-sxm"), precision="bf16", compile=True)
    small = workload(micro_batch=1)
    alone, copied, sharded = (
        p.step_seconds.value
        for p in predict_batch(
            profile,
            [small, dataclasses.replace(small, gpus=8), dataclasses.replace(small, gpus=8, sharding="optimizer")],
        )
    )
    assert copied > alone
    assert sharded < copied


def test_what_plan_calls_a_fine_tune_is_named_as_it_is_here(call):
    code, _, err = call("predict", "--gpu", "rtx-4090", "--model", "qwen3-8b", "--finetune", "qlora")
    assert code == 2 and "here it is --lora-rank, --qlora or --freeze-blocks" in err
    code, _, err = call("predict", "--gpu", "rtx-4090", "--steps", "100")
    assert code == 2 and "--prompts" not in err, "which predict does not have"
