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


def test_losses_of_unlike_models_are_not_compared(call, tmp_path):
    (tmp_path / "small.log").write_text(nanogpt(falling(240), every=25, planned=6000))
    (tmp_path / "large.log").write_text(megatron(DEVICES["a setting"]))
    code, out, err = call("analyze", str(tmp_path / "small.log"), str(tmp_path / "large.log"), "--json")
    assert code == 0, err
    points = json.loads(out)["side_by_side"]
    assert points and not any(point["comparable"] for point in points)
    assert all("parameters, on data not known to be the same" in point["problem"] for point in points)


def hf(rows, *, front="", every=10, seconds=3.0, planned=500, ended=""):
    """A console of Hugging Face's trainer: pairs of what is printed as loss and as gradient norm."""
    lines = [front + f"  Total optimization steps = {planned}"]
    for number, (loss, norm) in enumerate(rows, 1):
        step = number * every
        lines.append(f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-04, 'epoch': {step / planned}}}")
    return "\n".join([*lines, ended]) + "\n"


IN_FP16 = {
    "lightning": "Using 16bit Automatic Mixed Precision (AMP)\n",
    "accelerate": "Mixed precision type: fp16\n",
    "arguments": "TrainingArguments(\nbf16=False,\nfp16=True,\n)\n",
    "command": "+ python train.py --fp16 --lr 1e-4\n",
    "megatron": "using torch.float16 for parameters ...\n",
    "unsloth": "\\        /    Bfloat16 = FALSE. FA [Xformers = 0.0.29. FA2 = False]\n",
    "llama-factory": "Process rank: 0, device: cuda:0, compute dtype: torch.float16\n",
}


OTHERS = "Process 3021 has 6.10 GiB memory in use. Process 4417 has 3.80 GiB memory in use. "
OUT_OF_MEMORY = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    loss.backward()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 0.70 GiB is free. " + OTHERS + "Including non-PyTorch memory, this process has 13.00 GiB memory in use.\n"
)


WATCHDOG = (
    "[rank1]:[E ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800040 milliseconds before timing out.\n"
    "srun: error: n1: task 1: Aborted (core dumped)\n"
)


def falling_rows(last, divisor=500, rate=""):
    return "".join(f"step {step} loss {4 - step / divisor:.3f}{rate}\n" for step in range(10, last + 1, 10))


def raised(error):
    return f'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    f()\n{error}\n'


def by_epochs():
    """Rows without a step, an evaluation after each epoch, the first the best."""
    for n in range(1, 100):
        yield f"{{'loss': {2 - n / 100:.3f}, 'learning_rate': 2e-05, 'epoch': {n * 0.03:.2f}}}\n"
        if n % 33 == 0:
            yield f"{{'eval_loss': {1.0 + abs(n - 33) / 100:.3f}, 'epoch': {n * 0.03:.2f}}}\n"


def by_sum():
    """Every tenth of 648 steps without bars, two epochs by the run's own sum; that 1.12 is near ln 3 says nothing."""
    for step in range(10, 649, 10):
        rate = 2e-4 * (1 - step / 648)
        yield f"{{'loss': {1.86 * (1 - step / 1300):.4f}, 'learning_rate': {rate:.3e}, 'epoch': {step / 324:.2f}}}\n"
        if step % 160 == 0:
            yield f"{{'eval_loss': {1.12 + (step - 160) / 2000:.4f}, 'epoch': {step / 324:.2f}}}\n"
    yield "{'train_runtime': 2592.0, 'train_steps_per_second': 0.25, 'epoch': 2.0}\n"


def bars(word):
    losses = [f"{3 - step / 200:.3f}" if step <= 240 else word for step in range(20, 601, 20)]
    shown = "Epoch 0: {:3d}%|##| {}/600 [00:{:02d}<00:50,  8.00it/s, v_num=1, train_loss={}]\n"
    rows = [shown.format(s // 6, s, s // 10, one) for s, one in zip(range(20, 601, 20), losses, strict=True)]
    return "".join(rows) + "`Trainer.fit` stopped: `max_epochs=1` reached.\n"


BROKEN = falling(220) + [3.8, 4.6, 5.7] + [math.nan] * 40
RISEN = falling(200) + [3.4, 3.9, 4.6, 5.7, 6.8] + [math.nan] * 40
SOUND, LOST = [(1.85 - n / 30, 0.6) for n in range(11)], [("0.0", "nan")] * 39
SUMMED = "{'train_runtime': 1500.0, 'train_steps_per_second': 0.333, 'train_loss': 0.4, 'epoch': 1.0}"
NO_NUMBER = [("nan", "nan")] * 20
LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-02T08:00:14 DUE TO TIME LIMIT ***\n"
START = "Using device: cuda\nLoading dataset from data/train.bin\nModel has 12.3M parameters\nOptimizer: AdamW\n"
TWICE = f"{START}{falling_rows(1000)}Training complete.\n{START}{falling_rows(200)}{LIMIT}"
SKIPS = "".join(
    f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2**n}, reducing to {2 ** (n - 1)}\n"
    for n in range(4, 0, -1)
)
FEW, MANY = falling_rows(50, 50), falling_rows(600)
LATE = MANY.replace("\n", " 0.5 s/it\n")
ENDED = "`Trainer.fit` stopped: `max_steps=600` reached.\n"
WORKERS = ("DataLoader worker (pid 4711) is killed by signal: Killed.",
    "DataLoader worker (pid(s) 4711, 4712) exited unexpectedly",
           "unable to open shared memory object </torch_4711_12> in read-write mode")  # fmt: skip
AT_LEAST_SCALE = "Current loss scale already at minimum. Exiting"
# the text, more words of the command, the status, of each finding words of its title, severity ("is"), evidence
# ("seen"), first cause and actions by their number, findings that are not there
CASES = {
    # from step 4460 to the last printed, both counted: the rise that runs into it is its beginning
    "a loss that broke": (nanogpt(BROKEN), (), "diverged", {"loss_not_finite": (
        "step 4460", "step 4400", "1: resume from the checkpoint of step 4000")}, ("loss_spikes", "steps_missing")),
    "a rise without a checkpoint": (nanogpt(RISEN, saved=10**9), (), "diverged", {"loss_not_finite": (
        "began to rise at step 4000", "1: before step 4000")}, ()),
    "a spike that did not come back": (nanogpt(falling(240) + [5.5, 5.6, 5.5, 5.6]), (), "", {"loss_spikes": (
        "not back by the end of the log",)}, ()),
    # done are 7,500, saved were 6,000: (50,000 - 6,000) x 2.45 s x 1.1
    "a time limit after a checkpoint": (megatron(DEVICES["a setting"], rows=75, ending=LIMIT), (), "time_limit",
        {"time_limit": (
        f"1: ask for {(50000 - 6000) * 2.45 * 1.1 / 3600:.1f} h (what is left from the checkpoint of step 6000",
        "seen: 1,500 steps since the checkpoint of step 6,000 are lost")}, ("steps_missing",)),
    "a time limit of the second run": (TWICE, (), "time_limit", {"time_limit": ("at step 200 of run 2",)}, ()),
    "rows without a step": ("".join(by_epochs()), (), "", {"overfitting": ("epoch 0.99",)}, ()),
    "rows whose sum tells the step": ("".join(by_sum()), (), "", {"overfitting": (
        "best at step 160", "1: keep the checkpoint of step 160")}, ("at_chance",)),
    # a loss that a bar prints as no number is none
    **{word: (bars(word), (), "diverged", {"loss_not_finite": ("from step 260 on (18 of 30 rows)",)}, ())
       for word in ("nan.0", "NaN", "-inf.0", "inf")},
    "a loss of 0 beside no gradient": (hf(SOUND + LOST, ended=SUMMED), ("--price", "2"), "diverged",
        {"loss_not_finite": (
        "is: error", "step 120", "seen: 380 steps", "cause: fp16 overflows")}, ("loss_zero",)),
    "a loss of 0 beside a gradient": (hf(SOUND + [("0.0", 0.0)] * 39), (), "", {"loss_zero": ()}, ("loss_not_finite",)),
    # a loss that never was a number in fp16 overflowed
    **{name: (hf(NO_NUMBER, front=front), (), "", {"loss_not_finite": ("cause: fp16 overflows", "1: bf16")}, ())
       for name, front in IN_FP16.items()},
    "bf16 is no help on a GPU without it": (hf(NO_NUMBER), ("--gpu", "v100-16gb-sxm2"), "", {"loss_not_finite": (
        "cause: fp16 overflows", "1: fp32: this GPU has no bf16")}, ()),
    # a loss scale at its minimum is an overflow and not a torn traceback
    **{f"{error} at the least scale": (FEW + SKIPS + raised(f"{error}: {AT_LEAST_SCALE}"), (), "diverged: Current",
       {"loss_scale_at_minimum": (
        "is: error", "1: bf16", "2: learning rate", "seen: 4 overflows, loss scale 8 → 1")}, ())
       for error in ("Exception", "ValueError", "FloatingPointError")},
    "a program that ends itself over NaN": (FEW + "Loss is nan, stopping training\n", (), "diverged",
        {"loss_not_finite": (
        "is: error", "after step 50")}, ()),
    "a bare exception": (FEW + raised("Exception: no shard 7") + "bye\n", (), "crashed: Exception: no shard 7", {}, ()),
    # memory that ran out under a bar was out where the bar was
    "out of memory under a bar of steps": (
        "  0%|          | 1/1200 [00:09<3:03:16,  9.17s/it]\n" + OUT_OF_MEMORY, (),
            "out_of_memory: after step 1 of 1200",
        {"out_of_memory": ("1: kill 3021 4417 (frees 9.9 GiB)",)}, ()),
    "out of memory under a bar of files": (
        "Loading checkpoint shards:  50%|##   | 2/4 [00:09<00:09,  4.5s/it]\n" + OUT_OF_MEMORY, (),
            "out_of_memory: before the first step",
        {"out_of_memory": ("1: kill 3021 4417 (frees 9.9 GiB)",)}, ()),
    # 30 min of 8 GPUs at $1
    "a time-out after the end": (LATE + ENDED + WATCHDOG, ("--price", "8"), "completed", {"nccl_timeout": (
        "is: warning", "30 min of waiting ($4) lost, nothing else")}, ("later_failure",)),
    "a time-out within the run": (LATE + WATCHDOG, (), "crashed", {"nccl_timeout": ("is: error",)}, ()),
    "a time-out after an interrupt": (
        LATE + "^CTraceback (most recent call last):\nKeyboardInterrupt\n" + WATCHDOG, (), "stopped", {},
            ("nccl_timeout",)),
    "an interrupt after which processes miss each other": (
        FEW + raised("EOFError") + raised("KeyboardInterrupt"), (), "stopped: interrupted by its user", {}, ()),
    # the last printed row is one print before the planned end, but the bar shows that the end was not reached
    "a hang-up one step before the end": (
        "".join(f"{n / 5:3.0f}%|###| {n}/500 [24:57<00:30, 3.00s/it]\n{{'loss': {4 - n / 500}, 'epoch': {n / 500}}}\n"
                for n in range(10, 500, 10))
        + "100%|###| 499/500 [24:57<00:03, 3.00s/it]W0608 api.py:704] Received 1 death signal, shutting down workers\n",
        (), "killed: after step 499 of 500", {}, ()),
    # a killed loader worker is no preemption
    **{words: (falling_rows(100) + raised(f"RuntimeError: {words}"), (), "crashed", {"crashed": (
        "cause: memory", "1: num_workers", "2: --shm-size")}, ("killed",)) for words in WORKERS},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_how_a_run_ended(told, name):
    text, words, status, says, silent = CASES[name]
    document, found = told(text, *words)
    ended, _, why = status.partition(": ")
    assert ended in ("", document["status"]) and why in document["status_reason"], document["status_reason"]
    for code, parts in says.items():
        one = found[code]
        where = {
            "is": one["severity"],
            "seen": " ".join(part["text"] for part in one["evidence"]),
            "cause": one["causes"][:1],
        }
        where |= {str(place): action for place, action in enumerate(one["actions"], 1)}
        for part in parts:
            place, _, text = part.partition(": ")
            assert (text in str(where[place])) if place in where else (part in one["title"]), (part, one)
    assert not set(silent) & found.keys()


def test_what_was_lost_is_what_was_run_after_the_loss_broke(told):
    document, found = told(nanogpt(BROKEN))
    vain = 40 * 20 - 20 + 1  # of 400,000 planned
    assert found["loss_not_finite"]["saved_hours"]["value"] == pytest.approx(vain * 1.5 / 3600, rel=0.01)
    assert document["cost"]["savings"]["hours"]["value"] <= 0.4
    lost = told(hf(SOUND + LOST, ended=SUMMED), "--price", "2")[1]["loss_not_finite"]
    assert lost["saved_hours"]["value"] == pytest.approx(380 / 500 * 1500 / 3600, rel=0.01)
    assert lost["saved_usd"]["value"] == pytest.approx(380 / 500 * 1500 / 3600 * 2, rel=0.01)


def test_what_is_not_said(told):
    spike = told(nanogpt(falling(240) + [5.5, 5.6, 5.5, 5.6]))[1]["loss_spikes"]
    assert "harm" not in spike["title"] and not any(action.startswith("nothing") for action in spike["actions"])
    best = told("".join(by_epochs()))[1]["overfitting"]
    assert "step" not in best["title"] + " ".join(best["actions"])[:40]
    document, _ = told("".join(by_sum()))
    assert (document["first_step"], document["last_step"]) == (10, 640)
    assert told(hf(SOUND + [("0.0", 0.0)] * 39))[0]["status"] != "diverged"
    fp16 = told(hf(NO_NUMBER, front=IN_FP16["command"]))[1]["loss_not_finite"]
    assert not any("learning rate" in action for action in fp16["actions"])
    bf16 = told(hf(NO_NUMBER, front="Mixed precision type: bf16\n"))[1]["loss_not_finite"]
    assert not any("fp16" in cause for cause in bf16["causes"])


def test_memory_that_ran_out_after_good_steps_is_not_a_model_too_large(told):
    ended = told(MANY + OUT_OF_MEMORY.replace(OTHERS, ""))[1]["out_of_memory"]
    assert "600 steps" in ended["causes"][0] and not any("together exceed" in cause for cause in ended["causes"])
    assert "group examples of like length" in ended["actions"][0]


def test_the_work_of_devices_and_their_price_where_their_number_is_not_said(told):
    each = 128 * 2048 / 2.45 * 9.07e9 / 8 / 1e12
    work = f" throughput per GPU (TFLOP/s/GPU): {each:.1f} |"
    document, _ = told(megatron("", tflops=work), "--gpu", "a100-80gb-sxm")
    assert document["mfu"] == pytest.approx(each / 312, rel=0.02)
    assert any("how many GPUs: 8" in text for text in document["assumed"])
    document, _ = told(megatron(""), "--gpu", "a100-80gb-sxm", "--price", "2")
    assert document["mfu"] is None and document["cost"]["usd"] is None
    assert "311 % of the peak of 1 GPU; how many were there? (--gpus)" in document["verdict"][1]
    document, _ = told(megatron(DEVICES["a setting"]))  # tokens per second need no card
    assert document["throughput"] == pytest.approx(128 * 2048 / 2.45)
