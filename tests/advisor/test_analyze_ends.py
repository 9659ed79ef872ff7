"""What `advisor analyze` says of runs that ended badly: what was lost, where to go on, and in whose words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

SMALL = Path(__file__).parents[1] / "recorded" / "small.jsonl"


@pytest.fixture
def told(call, tmp_path):
    """The document that the command prints of a log with this text, and its findings by code."""

    def run(text, *words):
        (tmp_path / "run.log").write_text(text)
        code, out, err = call("analyze", str(tmp_path / "run.log"), "--json", *words)
        assert code == 0, err
        document = json.loads(out)
        return document, {finding["code"]: finding for finding in document["findings"]}

    return run


def nanogpt(losses, *, every=20, saved=1000, planned=400_000, seconds=1.5):
    lines = [f"max_iters = {planned}", "number of parameters: 123.59M"]
    for number, loss in enumerate(losses):
        step = number * every
        if step % saved == 0:
            lines += [f"step {step}: train loss {loss:.4f}, val loss {loss:.4f}"]
            lines += ["saving checkpoint to out"] * (step > 0 and math.isfinite(loss))
        lines.append(f"iter {step}: loss {loss:.4f}, time {1000 * seconds:.2f}ms, mfu 30.00%")
    return "\n".join(lines) + "\n"


def falling(rows):
    return [3 + 7.9 * math.exp(-n / 15) + 0.02 * math.sin(7 * n) for n in range(rows)]


def test_what_was_lost_is_what_was_run_after_the_loss_broke(told):
    losses = falling(220) + [3.8, 4.6, 5.7] + [math.nan] * 40
    document, found = told(nanogpt(losses))
    broken = found["loss_not_finite"]
    vain = 40 * 20 - 20 + 1  # from step 4460 to the last printed, both counted: of 400,000 planned
    assert document["status"] == "diverged" and "step 4460" in broken["title"]
    assert broken["saved_hours"]["value"] == pytest.approx(vain * 1.5 / 3600, rel=0.01)
    # the rise that runs into it is its beginning, and not a spike that does no harm
    assert "step 4400" in broken["title"] and broken["actions"][0].startswith("resume from the checkpoint of step 4000")
    assert "loss_spikes" not in found and "steps_missing" not in found
    assert document["cost"]["savings"]["hours"]["value"] <= 0.4


def test_a_spike_that_did_not_come_back_is_not_called_harmless(told):
    _, found = told(nanogpt(falling(240) + [5.5, 5.6, 5.5, 5.6]))
    spike = found["loss_spikes"]
    assert "not back by the end of the log" in spike["title"] and "harm" not in spike["title"]
    assert not any(action.startswith("nothing") for action in spike["actions"])


def own_log(resumed, losses_after):
    """A log of ours, stopped after 30 steps and taken up again at `resumed`."""
    lines = [json.loads(line) for line in SMALL.read_text().splitlines()]
    header, rows = lines[0], [line for line in lines if line["kind"] == "step"]
    first = [row | {"loss": 6.3 - 0.1 * row["step"]} for row in rows[:30]]
    again = header | {"attempt": 2, "resumed_from_step": resumed, "time": first[-1]["time"] + 60}
    later = [rows[30 + n] | {"step": resumed + 1 + n, "loss": loss} for n, loss in enumerate(losses_after)]
    lines = (header, *first, again, *later)
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("losses", "lost"),
    [((), False), ((3.3, 3.2, 3.3, 3.2, 3.1), False), ((6.3, 6.2, 6.3, 6.2, 6.3), True)],
    ids=["no step yet", "it goes on", "from scratch"],
)
def test_a_run_taken_up_again_is_judged_by_what_it_did_since(call, tmp_path, losses, lost):
    (tmp_path / "log.jsonl").write_text(own_log(30, losses))
    code, out, err = call("analyze", str(tmp_path / "log.jsonl"), "--json")
    assert code == 0, err
    assert ("resume_lost" in {finding["code"] for finding in json.loads(out)["findings"]}) is lost


def console(banner, steps, *, front="", total=5000):
    rows = "".join(
        f"{{'loss': {3 - s / 1000:.4f}, 'learning_rate': 1e-05, 'epoch': {round(s / 1600, 2)}}}\n"
        f" {100 * s // total}%|# | {s}/{total} [{s // 30:02}:{2 * s % 60:02}<99:00,  2.00s/it]\n"
        for s in range(20, steps + 1, 20)
    )
    failure = (
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    trainer.train()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.10 GiB. GPU 0 has a total capacity of "
        "23.64 GiB of which 1.20 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch.\n"
    )
    return (
        banner
        + front
        + rows
        + failure
        + f" {100 * (steps + 7) // total}%|# | {steps + 7}/{total} [09:00<99:00,  2.00s/it]\n"
    )


BANNER = "***** Running training *****\n  Num examples = 12,800\n  Instantaneous batch size per device = 8\n"
BANNER += "  Gradient Accumulation steps = 2\n  Total optimization steps = 5,000\n"


@pytest.mark.parametrize(
    ("front", "longest", "recompute"),
    [
        ("", "max_length", "gradient_checkpointing=True"),
        ("[axolotl.cli.train] starting\n" * 3, "sequence_len", "gradient_checkpointing: true"),
    ],
    ids=["transformers", "axolotl"],
)
def test_memory_that_ran_out_late_is_a_long_batch_in_the_trainers_own_words(told, front, longest, recompute):
    document, found = told(console(BANNER, 260, front=front))
    ended = found["out_of_memory"]
    assert ended["title"].startswith("Out of memory after step 267") and "267 of 5000" in document["status_reason"]
    assert ended["causes"][0].startswith("a batch longer than any of the 267 steps before")
    assert ended["actions"][0].startswith(f"cap {longest}") and any(recompute in action for action in ended["actions"])
    assert any(": 4, gradient_accumulation_steps: 4 (instead of 8 x 2)" in action for action in ended["actions"])
    assert "steps_missing" not in found


def megatron(front, *, rows=60, tflops="", ending=""):
    sizes = {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 2048, "train_iters": 50000}
    sizes |= {"padded_vocab_size": 50304, "global_batch_size": 128, "micro_batch_size": 8, "save_interval": 2000}
    dump = "".join(f"  {name} {'.' * 12} {value}\n" for name, value in sizes.items())
    lines = "".join(
        f" iteration {n * 100:8}/   50000 | elapsed time per iteration (ms): 2450.0 |{tflops}"
        f" lm loss: {2 + 8 / n:.6E} | grad norm: 0.350 |\n"
        for n in range(1, rows + 1)
    )
    return front + dump + lines + ending


DEVICES = {
    "Megatron's own line": "using world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1\n",
    "a setting": "rank=0 world_size=8 local_rank=0\n",
    "torchrun": "+ torchrun --nnodes=2 --nproc_per_node=4 pretrain_gpt.py\n",
    "accelerate": "Distributed environment: DistributedType.MULTI_GPU\nNum processes: 8\nProcess index: 0\n",
    "tasks of Slurm": "SLURM_NTASKS=8\n",
    "nodes of Slurm": "SLURM_JOB_NUM_NODES=2\nSLURM_GPUS_ON_NODE=4\n",
}


@pytest.mark.parametrize("name", DEVICES)
def test_the_number_of_devices_is_read_as_launchers_say_it(told, name):
    document, _ = told(megatron(DEVICES[name]), "--gpu", "a100-80gb-sxm")
    assert document["facts"]["world_size"] == 8
    work = 128 * 2048 / 2.45 * 9.07e9  # tokens a second times FLOPs a token, of 8 x 312 TFLOP/s
    assert document["mfu"] == pytest.approx(work / (8 * 312e12), rel=0.02)


def test_the_work_of_one_device_tells_how_many_there_were(told):
    each = 128 * 2048 / 2.45 * 9.07e9 / 8 / 1e12
    document, _ = told(
        megatron("", tflops=f" throughput per GPU (TFLOP/s/GPU): {each:.1f} |"), "--gpu", "a100-80gb-sxm"
    )
    assert document["mfu"] == pytest.approx(each / 312, rel=0.02)
    assert any("how many GPUs: 8" in text for text in document["assumed"])


def test_more_than_the_peak_is_no_mfu_and_its_price_is_unknown(told):
    document, _ = told(megatron(""), "--gpu", "a100-80gb-sxm", "--price", "2")
    assert document["mfu"] is None and document["cost"]["usd"] is None
    assert "311 % of the peak of 1 GPU; how many were there? (--gpus)" in document["verdict"][1]


def test_tokens_per_second_need_no_card(told):
    document, _ = told(megatron(DEVICES["a setting"]))
    assert document["throughput"] == pytest.approx(128 * 2048 / 2.45)


def test_what_is_asked_for_after_a_time_limit_begins_at_the_checkpoint(told):
    ending = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-02T08:00:14 DUE TO TIME LIMIT ***\n"
    _, found = told(megatron(DEVICES["a setting"], rows=75, ending=ending))
    limit = found["time_limit"]
    left = (50000 - 6000) * 2.45 * 1.1 / 3600  # hours: done are 7,500, saved were 6,000
    assert limit["actions"][0].startswith(f"ask for {left:.1f} h (what is left from the checkpoint of step 6000")
    assert any("1,500 steps since the checkpoint of step 6,000 are lost" in one["text"] for one in limit["evidence"])
    assert "steps_missing" not in found


def test_losses_of_unlike_models_are_not_compared(call, tmp_path):
    (tmp_path / "small.log").write_text(nanogpt(falling(240), every=25, planned=6000))
    (tmp_path / "large.log").write_text(megatron(DEVICES["a setting"]))
    code, out, err = call("analyze", str(tmp_path / "small.log"), str(tmp_path / "large.log"), "--json")
    assert code == 0, err
    points = json.loads(out)["side_by_side"]
    assert points and not any(point["comparable"] for point in points)
    assert all("parameters, on data not known to be the same" in point["problem"] for point in points)


def test_rows_without_a_step_are_named_by_their_epoch(told):
    rows = "".join(
        f"{{'loss': {2 - n / 100:.3f}, 'learning_rate': 2e-05, 'epoch': {n * 0.03:.2f}}}\n"
        + (f"{{'eval_loss': {1.0 + abs(n - 33) / 100:.3f}, 'epoch': {n * 0.03:.2f}}}\n" if n % 33 == 0 else "")
        for n in range(1, 100)
    )
    _, found = told(rows)
    finding = found["overfitting"]
    assert "epoch 0.99" in finding["title"] and "step" not in finding["title"] + " ".join(finding["actions"])[:40]


def test_a_best_evaluation_is_named_by_the_step_that_the_log_allows(told):
    """Every tenth of 648 steps without bars, two epochs by the run's own sum; that 1.12 is near ln 3 says nothing."""
    rows = ""
    for step in range(10, 649, 10):
        rows += f"{{'loss': {1.86 * (1 - step / 1300):.4f}, 'learning_rate': {2e-4 * (1 - step / 648):.3e}, "
        rows += f"'epoch': {step / 324:.2f}}}\n"
        if step % 160 == 0:
            rows += f"{{'eval_loss': {1.12 + (step - 160) / 2000:.4f}, 'epoch': {step / 324:.2f}}}\n"
    rows += "{'train_runtime': 2592.0, 'train_steps_per_second': 0.25, 'epoch': 2.0}\n"
    document, found = told(rows)
    assert (document["first_step"], document["last_step"]) == (10, 640) and "at_chance" not in found
    assert "best at step 160" in found["overfitting"]["title"]
    assert found["overfitting"]["actions"][0].startswith("keep the checkpoint of step 160")


def test_the_step_of_a_time_limit_is_that_of_the_run_that_it_ended(told):
    banner = "Using device: cuda\nLoading dataset from data/train.bin\nModel has 12.3M parameters\nOptimizer: AdamW\n"
    long, short = ("".join(f"step {10 * n} loss {9 - n / 20:.4f}\n" for n in range(1, rows + 1)) for rows in (100, 20))
    cut = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-10-26T13:29:37 DUE TO TIME LIMIT ***\n"
    document, found = told(f"{banner}{long}Training complete.\n{banner}{short}{cut}")
    assert document["status"] == "time_limit" and found["time_limit"]["title"].endswith("at step 200 of run 2")


def hf(rows, *, front="", every=10, seconds=3.0, planned=500, ended=""):
    """A console of Hugging Face's trainer: pairs of what is printed as loss and as gradient norm."""
    lines = [front + f"  Total optimization steps = {planned}"]
    for number, (loss, norm) in enumerate(rows, 1):
        step = number * every
        lines.append(f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-04, 'epoch': {step / planned}}}")
    return "\n".join([*lines, ended]) + "\n"


@pytest.mark.parametrize("word", ["nan.0", "NaN", "-inf.0", "inf"])
def test_a_loss_that_a_bar_prints_as_no_number_is_none(told, word):
    losses = [f"{3 - step / 200:.3f}" if step <= 240 else word for step in range(20, 601, 20)]
    bars = [
        f"Epoch 0: {step // 6:3d}%|##| {step}/600 [00:{step // 10:02d}<00:50,  8.00it/s, v_num=1, train_loss={loss}]\n"
        for step, loss in zip(range(20, 601, 20), losses, strict=True)
    ]
    document, found = told("".join(bars) + "`Trainer.fit` stopped: `max_epochs=1` reached.\n")
    assert document["status"] == "diverged" and "from step 260 on (18 of 30 rows)" in found["loss_not_finite"]["title"]


def test_a_loss_of_0_beside_a_gradient_that_is_no_number_is_none(told):
    sound, broken = [(1.85 - n / 30, 0.6) for n in range(11)], [("0.0", "nan")] * 39
    ended = "{'train_runtime': 1500.0, 'train_steps_per_second': 0.333, 'train_loss': 0.4, 'epoch': 1.0}"
    document, found = told(hf(sound + broken, ended=ended), "--price", "2")
    lost = found["loss_not_finite"]
    assert document["status"] == "diverged" and "loss_zero" not in found and lost["severity"] == "error"
    assert "step 120" in lost["title"] and "380 steps" in lost["evidence"][0]["text"]
    assert lost["causes"][0].startswith("fp16 overflows")
    assert lost["saved_hours"]["value"] == pytest.approx(380 / 500 * 1500 / 3600, rel=0.01)
    assert lost["saved_usd"]["value"] == pytest.approx(380 / 500 * 1500 / 3600 * 2, rel=0.01)


def test_a_loss_of_0_beside_a_sound_gradient_stays_a_loss_of_0(told):
    document, found = told(hf([(1.85 - n / 30, 0.6) for n in range(11)] + [("0.0", 0.0)] * 39))
    assert document["status"] != "diverged" and "loss_zero" in found and "loss_not_finite" not in found


IN_FP16 = {
    "lightning": "Using 16bit Automatic Mixed Precision (AMP)\n",
    "accelerate": "Mixed precision type: fp16\n",
    "arguments": "TrainingArguments(\nbf16=False,\nfp16=True,\n)\n",
    "command": "+ python train.py --fp16 --lr 1e-4\n",
    "megatron": "using torch.float16 for parameters ...\n",
    "unsloth": "\\        /    Bfloat16 = FALSE. FA [Xformers = 0.0.29. FA2 = False]\n",
    "llama-factory": "Process rank: 0, device: cuda:0, compute dtype: torch.float16\n",
}


@pytest.mark.parametrize("name", IN_FP16)
def test_a_loss_that_never_was_a_number_in_fp16_overflowed(told, name):
    _, found = told(hf([("nan", "nan")] * 20, front=IN_FP16[name]))
    lost = found["loss_not_finite"]
    assert lost["causes"][0].startswith("fp16 overflows") and "bf16" in lost["actions"][0]
    assert not any("learning rate" in action for action in lost["actions"])


def test_bf16_is_no_help_on_a_gpu_without_it_and_no_cause_where_it_was_used(told):
    _, found = told(hf([("nan", "nan")] * 20), "--gpu", "v100-16gb-sxm2")
    assert found["loss_not_finite"]["causes"][0].startswith("fp16 overflows")
    assert "fp32: this GPU has no bf16" in found["loss_not_finite"]["actions"][0]
    _, found = told(hf([("nan", "nan")] * 20, front="Mixed precision type: bf16\n"))
    assert not any("fp16" in cause for cause in found["loss_not_finite"]["causes"])


@pytest.mark.parametrize("raised", ["Exception", "ValueError", "FloatingPointError"])
@pytest.mark.parametrize("words", ["Current loss scale already at minimum. Exiting", "Minimum loss scale reached (1)."])
def test_a_loss_scale_at_its_minimum_is_an_overflow_and_not_a_torn_traceback(told, raised, words):
    rows = "".join(f"step {step} loss {4 - step / 50:.2f}\n" for step in range(10, 60, 10))
    skips = "".join(
        f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2**n}, reducing to {2 ** (n - 1)}\n"
        for n in range(4, 0, -1)
    )
    end = f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n{raised}: {words}\n'
    document, found = told(rows + skips + end)
    ended = found["loss_scale_at_minimum"]
    assert document["status"] == "diverged" and words in document["status_reason"] and ended["severity"] == "error"
    assert "bf16" in ended["actions"][0] and "learning rate" in ended["actions"][1]
    assert "4 overflows, loss scale 8 → 1" in [one["text"] for one in ended["evidence"]]


def test_a_program_that_ends_itself_over_nan_is_not_without_an_error(told):
    rows = "".join(f"step {step} loss {4 - step / 50:.2f}\n" for step in range(10, 60, 10))
    document, found = told(rows + "Loss is nan, stopping training\n")
    assert document["status"] == "diverged" and found["loss_not_finite"]["severity"] == "error"
    assert "after step 50" in found["loss_not_finite"]["title"]


def test_a_bare_exception_ends_a_traceback_with_its_message(told):
    rows = "".join(f"step {step} loss {4 - step / 50:.2f}\n" for step in range(10, 60, 10))
    document, _ = told(
        rows + 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nException: no shard 7\nbye\n'
    )
    assert document["status"] == "crashed" and "Exception: no shard 7" in document["status_reason"]


def test_a_checkpoint_is_asked_for_from_before_the_rise_and_not_from_within_it(told):
    losses = falling(200) + [3.4, 3.9, 4.6, 5.7, 6.8] + [math.nan] * 40
    _, found = told(nanogpt(losses, saved=10**9))
    assert "began to rise at step 4000" in found["loss_not_finite"]["title"]
    assert "before step 4000" in found["loss_not_finite"]["actions"][0]


OTHERS = "Process 3021 has 6.10 GiB memory in use. Process 4417 has 3.80 GiB memory in use. "
OUT_OF_MEMORY = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    loss.backward()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 0.70 GiB is free. " + OTHERS + "Including non-PyTorch memory, this process has 13.00 GiB memory in use.\n"
)


@pytest.mark.parametrize(
    ("bar", "place"),
    [
        ("  0%|          | 1/1200 [00:09<3:03:16,  9.17s/it]", "after step 1 of 1200"),
        ("Loading checkpoint shards:  50%|##   | 2/4 [00:09<00:09,  4.5s/it]", "before the first step"),
    ],
    ids=["a bar of steps", "a bar of files"],
)
def test_memory_that_ran_out_under_a_bar_was_out_where_the_bar_was(told, bar, place):
    document, found = told(bar + "\n" + OUT_OF_MEMORY)
    assert place in document["status_reason"]
    assert "kill 3021 4417 (frees 9.9 GiB)" in found["out_of_memory"]["actions"][0]


def test_memory_that_ran_out_after_good_steps_is_not_a_model_too_large(told):
    rows = "".join(f"step {step} loss {4 - step / 500:.3f}\n" for step in range(10, 610, 10))
    _, found = told(rows + OUT_OF_MEMORY.replace(OTHERS, ""))
    ended = found["out_of_memory"]
    assert "600 steps" in ended["causes"][0] and not any("together exceed" in cause for cause in ended["causes"])
    assert "group examples of like length" in ended["actions"][0]


WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800040 milliseconds before timing out.\n"
    "srun: error: n1: task 1: Aborted (core dumped)\n"
)


def test_a_time_out_after_the_end_costs_the_wait_alone_and_one_within_the_run_the_run(told):
    rows = "".join(f"step {step} loss {4 - step / 500:.3f} 0.5 s/it\n" for step in range(10, 610, 10))
    document, found = told(rows + "`Trainer.fit` stopped: `max_steps=600` reached.\n" + WATCHDOG, "--price", "8")
    waited = found["nccl_timeout"]
    assert document["status"] == "completed" and waited["severity"] == "warning" and "later_failure" not in found
    assert "30 min of waiting ($4) lost, nothing else" in waited["title"]  # 0.5 h at $8
    document, found = told(rows + WATCHDOG)
    assert document["status"] == "crashed" and found["nccl_timeout"]["severity"] == "error"
    document, found = told(rows + "^CTraceback (most recent call last):\nKeyboardInterrupt\n" + WATCHDOG)
    assert document["status"] == "stopped" and "nccl_timeout" not in found


@pytest.mark.parametrize(
    "words",
    [
        "DataLoader worker (pid 4711) is killed by signal: Killed.",
        "DataLoader worker (pid(s) 4711, 4712) exited unexpectedly",
        "unable to open shared memory object </torch_4711_12> in read-write mode",
    ],
)
def test_a_killed_loader_worker_is_no_preemption(told, words):
    rows = "".join(f"step {step} loss {4 - step / 500:.3f}\n" for step in range(10, 110, 10))
    end = f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\nRuntimeError: {words}\n'
    document, found = told(rows + end)
    assert document["status"] == "crashed" and "killed" not in found
    assert "memory" in found["crashed"]["causes"][0] and "num_workers" in found["crashed"]["actions"][0]
    assert "--shm-size" in found["crashed"]["actions"][1]
