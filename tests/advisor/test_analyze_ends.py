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
    halved = "from 8 to 4 and double gradient_accumulation_steps from 2 to 4: same training, less memory"
    assert ended["actions"][1].startswith(f"cap {longest}") and any(recompute in action for action in ended["actions"])
    assert ended["actions"][0].endswith(halved) and f"Change: {ended['actions'][0]}" in document["verdict"]
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
# shared memory is named for what shows that it was too small, and not for signal 9
WORKERS = {
    "DataLoader worker (pid 4711) is killed by signal: Killed.": ("cause: ran out of memory", "1: halve num_workers"),
    "DataLoader worker (pid(s) 4711, 4712) exited unexpectedly": ("cause: memory", "1: num_workers", "2: --shm-size"),
    "unable to open shared memory object </torch_4711_12> in read-write mode": ("cause: /dev/shm", "1: --shm-size"),
    "DataLoader worker (pid 4711) is killed by signal: Bus error.": ("cause: /dev/shm", "1: --shm-size"),
    "DataLoader worker (pid 4711) is killed by signal: Segmentation fault.": ("cause: crashed", "1: faulthandler"),
}
AT_LEAST_SCALE = "Current loss scale already at minimum. Exiting"
# the text, more words of the command, the status, of each finding words of its title, severity ("is"), evidence
# ("seen"), first cause and actions by their number, findings that are not there
CASES = {
    # from step 4460 to the last printed, both counted: the rise that runs into it is its beginning
    "a loss that broke": (nanogpt(BROKEN), (), "diverged", {"loss_not_finite": (
        "step 4,460", "seen: step 4,380 was", "1: resume from the checkpoint of step 4,000")},
        ("loss_spikes", "steps_missing")),
    "a rise without a checkpoint": (nanogpt(RISEN, saved=10**9), (), "diverged", {"loss_not_finite": (
        "seen: step 3,980 was the last good one", "1: before step 4000")}, ()),
    # a spike that comes back before the rise, a log of few rows, and a rise of forty rows
    "a spike before the rise": (nanogpt(falling(216) + [4.4] + BROKEN[217:], saved=10**9), (), "diverged", {
        "loss_not_finite": ("seen: step 4,380 was the last good one",)}, ()),
    "few rows before the rise": (nanogpt(BROKEN[190:]), (), "diverged", {"loss_not_finite": (
        "seen: step 580 was the last good one",)}, ()),
    "a slow rise": (nanogpt(falling(200) + [3.1 + n / 10 for n in range(40)] + [math.nan] * 40), (), "diverged", {
        "loss_not_finite": ("seen: step 3,980 was the last good one",)}, ()),
    "a spike that did not come back": (nanogpt(falling(240) + [5.5, 5.6, 5.5, 5.6]), (), "", {"loss_spikes": (
        "not back by the end of the log",)}, ()),
    # done are 7,500, saved were 6,000: (50,000 - 6,000) x 2.45 s x 1.1
    "a time limit after a checkpoint": (megatron(DEVICES["a setting"], rows=75, ending=LIMIT), (), "time_limit",
        {"time_limit": (
        f"1: ask for {(50000 - 6000) * 2.45 * 1.1 / 3600:.1f} h: the rest, the 1,500 lost steps and 10 % to spare",
        "seen: 1,500 steps since the checkpoint of step 6,000 are lost")}, ("steps_missing",)),
    "a time limit of the second run": (TWICE, (), "time_limit", {"time_limit": ("at step 200 of run 2",)}, ()),
    "rows without a step": ("".join(by_epochs()), (), "", {"overfitting": ("epoch 0.99",)}, ()),
    "rows whose sum tells the step": ("".join(by_sum()), (), "", {"overfitting": (
        "best at step 160", "1: use the checkpoint nearest step 160 if there is one")}, ("at_chance",)),
    # a loss that a bar prints as no number is none
    **{word: (bars(word), (), "diverged", {"loss_not_finite": ("from step 260 on", "seen: 18 of 30 rows")}, ())
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
    **{words: (falling_rows(100) + raised(f"RuntimeError: {words}"), (), "crashed", {"crashed": said}, ("killed",))
       for words, said in WORKERS.items()},
    # a bar that shows 0 at first shows how many steps are done; who counts the job's memory says which limit it was
    "a job that used more than its memory": (
        "".join(f"train:  1%|# | {n}/20000 [{n // 60:02d}:{n % 60:02d}<7:00:00, 1.00s/it, loss={9 - n / 300:.3f}]\r"
                for n in range(0, 1010, 10)) + "\nslurmstepd: error: Detected 1 oom_kill event in StepId=9.0. Some of "
        "the step tasks have been OOM Killed.\nsrun: error: n7: task 1: Out Of Memory\n",
        (), "out_of_memory: host memory", {"killed": (
            "step 1,000 of 20,000", "cause: than it asked for", "1: a larger --mem", "2: fewer loader workers")}, ()),
    "a container that used more than its memory": (falling_rows(100) + "Reason: OOMKilled\n", (), "out_of_memory",
        {"killed": ("cause: its limit", "1: resources.limits.memory")}, ()),
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


@pytest.mark.parametrize(
    ("line", "evaluations"),
    [
        ("Epoch {e}: {p:3d}%|##| {n}/1000 [{n:02d}:00<01:00, 2.3it/s, train_loss={l:.3f}{held}]", 2),
        ("epoch {e} step {n}/1000 train_loss={l:.3f}{held}", 60),  # a line that is no bar prints each evaluation
    ],
)
def test_a_held_out_value_that_a_bar_draws_again_is_one_evaluation(call, tmp_path, line, evaluations):
    held = ("", ", val_loss=1.992", ", val_loss=1.483", ", val_loss=1.483")
    rows = [line.format(e=e, p=n // 10, n=n, l=3 - e / 2 - n / 3000, held=held[e])
            for e in range(4) for n in range(50, 1001, 50)]  # fmt: skip
    (tmp_path / "run.log").write_text("\n".join(rows) + "\n")
    told = call("analyze", str(tmp_path / "run.log"))[1]
    counted = {row[:15].strip(): row.split()[-1] for row in told.splitlines() if " loss  " in row}
    assert counted == {"training loss": "80", "validation loss": str(evaluations)}


def test_a_total_stands_beside_the_mean_over_the_run(call, told, tmp_path):
    times = [1.0, 2.5, 1.0, 2.5, 1.0] * 40  # a mean step of 1.6 s
    text = "".join(f"step {n} loss {5 - n / 100:.3f} tokens {4096 * n} step_time {took:.2f}s\n"
                   for n, took in enumerate(times, 1))  # fmt: skip
    document, _ = told(text)
    assert document["throughput"] == pytest.approx(4096) and document["throughput_is"].startswith("median of ")
    assert document["mean_throughput"] == pytest.approx(4096 / 1.6)
    assert document["verdict"][-1].startswith("Cost: 5.33 min; 2.56 k tok/s over the run")
    shown = call("analyze", str(tmp_path / "run.log"))[1]
    assert "tokens per second, median step" in shown and "tokens per second over the run" in shown


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
    rows = [f"step {n} loss {4 - n / 100:.3f} val loss {2 + abs(n - 100) / 100:.3f}" for n in range(10, 210, 10)]
    for saved, says in (
        ((), "use the checkpoint nearest step 100 if"),
        (["saving checkpoint to out"], "use the checkpoint of"),
    ):
        kept = told("\n".join([*rows[:10], *saved, *rows[10:]]) + "\n")[1]["overfitting"]
        assert kept["actions"][0].startswith(says)
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
    assert "group examples of like length" in " ".join(ended["actions"])


ROWS = "".join(f"step {n}/1000 loss {5 - n / 100:.3f} lr 1e-4\n" for n in range(1, 200))
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 44, in <module>\n    step()\n'
PREEMPTED = "slurmstepd: error: *** JOB 2583 ON hgx CANCELLED AT 2024-07-10T02:25:05 DUE TO PREEMPTION ***\n"
OTHERS_TOO = """\
  0%|          | 1/1200 [00:09<3:03:12,  9.17s/it]Traceback (most recent call last):
  File "/home/u/train.py", line 88, in <module>
    trainer.train()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 23.64 GiB of \
which 512.00 MiB is free. Process 3021 has 6.40 GiB memory in use. Process 4417 has 3.50 GiB memory in use. Including \
non-PyTorch memory, this process has 13.20 GiB memory in use.
"""


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (OTHERS_TOO, "after 1 of 1,200 steps", "kill 3021 4417 (frees 9.9 GiB)"),
        (ROWS + TRACEBACK + "KeyError: 'text'\n", "to 3.01. The log says “KeyError: 'text' [train.py:44]”. No ch",
         "mend what the message"),
        # an exception that another one only announces, and what its message shows to be wrong
        (ROWS + TRACEBACK + "RuntimeError: the actor failed to import, because of:\n\n" + TRACEBACK
         + "ImportError: /lib/flash_attn_2_cuda.so: undefined symbol: _ZNK3c1011StorageImpl\n",
         "The log says “ImportError: /lib/flash_attn", "resume from the newest checkpoint, or start anew if none was"),
        (ROWS + TRACEBACK + "RuntimeError: the data service failed with the following error:\n" + TRACEBACK,
         "The log says “RuntimeError: the data service failed", "mend what the message"),
        (ROWS + TRACEBACK + "ImportError: libGL.so.1: cannot open shared object file: No such file or directory\n",
         "libGL.so.1", "Change: install the library that the message names"),
        (ROWS + "Saved checkpoint at step 150\n" + TRACEBACK + "FileNotFoundError: [Errno 2] No such file: 'a.bin'\n",
         "The log says “FileNotFoundError", "is the volume mounted there?), and resume from the newest checkpoint\n"),
        (ROWS + TRACEBACK + "StopIteration\n", "The log says “StopIteration [train.py:44]”",
         "steps did\nChange: repeat the data"),
        (
            ROWS + TRACEBACK + "OSError: [Errno 28] No space left on device\n",
            "The disk was full: OSEr",
            "Change: free space",
        ),
        (ROWS + "Killed\n", "killed from outside after 199 of 1,000 steps (19.9 %); its loss fell from 4.99 to 3.01",
         "Change: fewer loader workers"),
        (ROWS + PREEMPTED, "after 199 of 1,000 steps (19.9 %); its loss", "Change: resume from the newest checkpoint"),
        (ROWS + LIMIT, "reached its time limit after 199 of 1,000 steps (19.9 %); its loss fell from 4.99 to 3.01. No "
         "checkpoint is recorded.\nChange: ask for more time", "Cost: "),
        (ROWS, "to 3.01. The log ends there, without an end message.\nChange: why it ended is not in this log: look "
         "at its stderr", "Cost: "),
        (nanogpt(BROKEN), "its loss fell from 10.9 to 2.98 and rose to 5.7, then NaN from step 4,460 on",
         "\nChange: resume from the checkpoint of step 4,000 with half the learning rate"),
        ("***** Running training *****\n  Total optimization steps = 0\n{'train_runtime': 1.2, 'train_loss': 0.0}\n",
         "completed without a printed step. The log sums the training up.\nProblem: The program planned 0 opt",
         "Change: print the number of ex"),
    ],
)  # fmt: skip
def test_the_first_lines_say_why_a_run_died_and_what_to_do_first(told, text, first, second):
    document, _ = told(text)
    lines = "\n".join(document["verdict"])
    assert first in lines and second in lines, lines


def test_a_wait_after_the_end_of_training_is_part_of_its_time_and_cost(told):
    """Two epochs of 190 and 191 s, then 1,800 s until the time-out: 36.4 min of one GPU at $6."""
    bars = [
        f"Epoch {at}: 100%|##########| 512/512 [03:1{at}<00:00,  2.6it/s, train_loss=0.{8 - at}00]" for at in (0, 1)
    ]
    text = "\n".join([*bars, "`Trainer.fit` stopped: `max_epochs=2` reached.", WATCHDOG])
    document, _ = told(text, "--price", "6")
    assert "Cost: 36.4 min, $3.64" in "\n".join(document["verdict"])


def test_a_log_that_begins_in_the_middle_of_its_run_says_which_steps_its_cost_is_of(call, tmp_path, told):
    """300 steps of 0.21 s and the first one are 63.2 s; the whole run takes that for each of its 90,000 steps."""
    rows = [f"iter {step} loss {9.2 - step / 1e4:.4f} 0.21 s/iter" for step in range(88_000, 88_400, 100)]
    text = "max_iters = 90000\n" + "\n".join(rows) + "\n"
    document, _ = told(text)
    lines = "\n".join(document["verdict"])
    assert "after 88,300 of 90,000 steps" in lines or "did 88,300 of 90,000 steps (98.1 %)" in lines
    assert "; this log holds only steps 88,000 to 88,300, in which its loss fell from" in lines
    assert "Cost: 63.2 s for steps 88,000 to 88,300; price unknown" in lines
    assert document["forecast"]["total_hours"]["value"] == pytest.approx(90_000 * 0.21 / 3600, rel=0.001)
    shown = call("analyze", str(tmp_path / "run.log"))[1]
    assert "steps 88,000 to 88,300 (this log)" in shown and "so far" not in shown


def test_a_run_out_of_time_has_one_number_for_what_is_left(told):
    document, found = told(megatron("", ending=LIMIT))
    assert "the rest would take " in document["verdict"][-1] and len(found["time_limit"]["evidence"]) == 1


LLMC = """\
+-----------------------+----------------------------------------------------+
| micro batch size B    | 64                                                 |
| sequence length T     | 1024                                               |
| total batch size      | 524288                                             |
| device                | NVIDIA A100-PCIE-40GB                              |
| precision             | BF16                                               |
| weight init method    | d12                                                |
| max_sequence_length T | 1024                                               |
| vocab_size V          | 50257                                              |
| num_layers L          | 12                                                 |
| num_heads NH          | 12                                                 |
| channels C            | 768                                                |
| num_parameters        | 124475904                                          |
| train_num_batches     | 19560                                              |
| num_processes         | 1                                                  |
+-----------------------+----------------------------------------------------+
=> setting grad_accum_steps=8
allocating 237 MiB for parameter gradients
allocating 39612 MiB for activations
[CUDA ERROR] at file train_gpt2.cu:265:
out of memory
"""


def test_what_would_fit_is_counted_by_the_memory_that_the_log_asks_for(told):
    """39,612 MiB = 38.7 GiB of activations and logits and 2.25 GiB of state are 40.9 GiB; half the batch frees 19."""
    document, found = told(LLMC)
    says = [row["text"] for row in found["out_of_memory"]["evidence"]]
    assert any("predicted at the peak: 40.9 GiB (weights 475 MiB" in text for text in says), says
    assert any("a micro-batch of 32 would reserve 21.9 GiB" in text for text in says), says
    assert "halve -b from 64 to 32" in document["verdict"][1] and "19 GiB less" in document["verdict"][1]
    fits = {place["key"]: place["fits"] for place in document["forecast"]["elsewhere"]}
    assert fits["rtx-4090"] is False and fits["l40s"] is None and fits["a100-80gb-sxm"] is True


def test_the_work_of_devices_and_their_price_where_their_number_is_not_said(told):
    each = 128 * 2048 / 2.45 * 9.07e9 / 8 / 1e12
    work = f" throughput per GPU (TFLOP/s/GPU): {each:.1f} |"
    document, _ = told(megatron("", tflops=work), "--gpu", "a100-80gb-sxm")
    assert document["mfu"] == pytest.approx(each / 312, rel=0.02)
    assert any("how many GPUs: 8" in text for text in document["assumed"])
    document, _ = told(megatron(""), "--gpu", "a100-80gb-sxm", "--price", "2")
    assert document["mfu"] is None and document["cost"]["usd"] is None
    assert "311 % of the peak of 1 GPU; how many were there? (--gpus)" in document["verdict"][-1]
    document, _ = told(megatron(DEVICES["a setting"]))  # tokens per second need no card
    assert document["throughput"] == pytest.approx(128 * 2048 / 2.45)
