"""What a log states of its machines, its batch and its time, through `advisor analyze`."""

import json
import re
from datetime import datetime, timedelta

import pytest

from tests.terminal import advisor, document

BEGAN = datetime(2026, 10, 2, 10, 0, 0)
HEAD = "[rank0]:[titan] {stamp} - root - INFO - "
MODEL = "Model llama3 8B size: 8,030,261,248 total parameters"


def titan(tmp_path, *said, tps=6900, every=12.0):
    """Rows of torchtitan: 8 sequences of 8,192 tokens in 1.2 s are 54,613 tokens/s, 6,827 on each of eight GPUs."""
    lines = [
        *said,
        "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "Training starts at step 1, with local batch size 1, global batch size 8, sequence length 8192, "
        "total steps 400 (warmup 20)",
    ]
    lines = [HEAD.format(stamp=f"{BEGAN:%Y-%m-%d %H:%M:%S},000") + line for line in lines]
    for n in range(1, 41):
        stamp = f"{BEGAN + timedelta(seconds=every * n):%Y-%m-%d %H:%M:%S},000"
        rate = f"  tps: {tps:,}" if tps else ""
        row = f"step: {10 * n:3d}  loss: {12 / n**0.3:7.4f}  memory: 58.21GiB(73.60%){rate}"
        lines.append(HEAD.format(stamp=stamp) + row)
    path = tmp_path / "titan.log"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "line, gpus",
    [
        ("Building 1-D device mesh with ['dp_shard'], [8]", 8),
        ("Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]", 8),
        ("Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=2, ep=4, etp=1", 8),
        ("DeviceMesh((dp_shard=4, tp=2), device: 'cuda', stride: (2, 1))", 8),
        ("Initialized process group, rank 7 of 8", 8),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8", 8),
    ],
)
def test_gpus_are_counted_by_mesh_and_rank_lines_and_priced(tmp_path, line, gpus):
    found = document("analyze", titan(tmp_path, line), "--price", "2")
    assert found["facts"]["world_size"] == gpus
    assert found["cost"]["usd"] == pytest.approx(gpus * 2 * found["cost"]["hours"])


def test_gpus_that_no_line_states_are_counted_by_the_rate_of_one(tmp_path):
    found = document("analyze", titan(tmp_path))
    assert "how many GPUs: 8, by the tokens/s that the log says each one does" in found["assumed"]


def test_a_speed_beyond_one_gpu_is_said_and_not_priced_as_one(tmp_path):
    """54,613 tokens/s of 8.03 B parameters (5.8e10 FLOPs a token) are 3.2e15 FLOP/s; an H100 does 0.989e15."""
    found = document("analyze", titan(tmp_path, MODEL, tps=None))
    (one,) = [one for one in found["findings"] if one["code"] == "impossible_mfu"]
    assert "320 % of one GPU's dense peak" in one["title"] and found["cost"]["usd"] is None
    assert any("--gpus" in action for action in one["actions"])


def test_a_published_count_of_parameters_gives_the_shape(tmp_path):
    found = document("analyze", titan(tmp_path, MODEL, "world size: 8"))
    sizes = {"depth": 32, "width": 4096, "heads": 32, "kv_heads": 8, "vocab_size": 128256}
    assert sizes.items() <= found["facts"].items() and found["mfu"] == pytest.approx(0.4, abs=0.01)
    other = document("analyze", titan(tmp_path, MODEL.replace("8,030,261,248", "8,030,261,249"), "world size: 8"))
    assert "depth" not in other["facts"]


def deepspeed(tmp_path, config, row="step: {step} loss: {loss:.4f} tokens: {tokens}"):
    lines = [f"[2025-03-02 10:15:01,112] [INFO] [config.py:996:print]   {line}" for line in config]
    for n in range(1, 21):
        stamp = f"{BEGAN + timedelta(seconds=5 * n):%Y-%m-%d %H:%M:%S},370"
        lines.append(
            f"[{stamp}] [INFO] [timer.py:259:stop] epoch=0/micro_step={10 * n}/global_step={10 * n}, "
            "RunningAvgSamplesPerSec=64.1, CurrSamplesPerSec=63.1, MemAllocated=11.3GB, MaxMemAllocated=17.9GB"
        )
        lines.append(row.format(step=10 * n, loss=2.6 / n**0.1, tokens=n * 655360))
    path = tmp_path / "deepspeed.log"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("block", ["aio_config ..........", "comms ....", "aio_config:"])
def test_a_setting_of_another_block_is_no_context(tmp_path, block):
    config = [
        f"{block} {{'block_size': 1048576, 'queue_depth': 8}}",
        "train_batch_size ............. 32",
        "train_micro_batch_size_per_gpu  4",
    ]
    facts = document("analyze", deepspeed(tmp_path, config))["facts"]
    assert (facts.get("step_samples"), facts.get("micro_batch")) == (32, 4) and "seq_len" not in facts
    config[0] = "model_config: {'block_size': 1024, 'vocab_size': 50257}"
    assert document("analyze", deepspeed(tmp_path, config))["facts"]["seq_len"] == 1024


def test_a_loss_below_a_step_of_deepspeed_has_its_rate_and_its_batch_gives_the_gpus(tmp_path):
    """32 samples a step at 63.1 a second are 0.507 s; 32 are 4 samples on each of 4 GPUs, twice."""
    config = ["train_batch_size ............. 32", "train_micro_batch_size_per_gpu  4"]
    found = document("analyze", deepspeed(tmp_path, config, "loss: {loss:.4f}"))
    assert found["measured"]["step_seconds"]["mean"] == pytest.approx(32 / 63.1, rel=1e-3)
    assert "gradient accumulation: 8 steps by the stated batches, if there is one GPU" in found["assumed"]
    path = deepspeed(tmp_path, [*config, "gradient_accumulation_steps .. 2"], "loss: {loss:.4f}")
    found = document("analyze", path, "--price", "3")
    assert found["cost"]["usd_per_hour"] == 12 and not [one for one in found["assumed"] if "GPUs" in one]


def test_clocks_win_over_a_rate_of_tokens(tmp_path):
    """40 rows 12 s apart are 8 min, whatever the context and the printed tokens per second make of the batch."""
    found = document("analyze", titan(tmp_path, "world size: 8", tps=7))
    assert found["cost"]["hours"] == pytest.approx(8 / 60, rel=0.05)


def test_a_banner_of_unsloth_and_its_bars_give_machine_batch_and_time_left(tmp_path):
    lines = [
        "==((====))==  Unsloth 2026.3.1: Fast Llama patching. Transformers: 5.1.0.",
        "   \\\\   /|    Tesla T4. Num GPUs = 1. Max memory: 14.741 GB. Platform: Linux.",
        "   \\\\   /|    Num examples = 8,000 | Num Epochs = 1 | Total steps = 1,000",
        "O^O/ \\_/ \\    Batch size per device = 2 | Gradient accumulation steps = 4",
        "\\        /    Data Parallel GPUs = 1 | Total batch size (2 x 4 x 1) = 8",
    ]
    for n in range(1, 51):
        at, left = 75 * n, 7500 - 75 * n
        lines.append(f"{{'loss': '{1.8 / n**0.1:.4f}', 'grad_norm': '0.4', 'epoch': '{n / 100:.4f}'}}")
        bar = [f"{x // 3600}:{x % 3600 // 60:02d}:{x % 60:02d}" for x in (at, left)]
        lines.append(f" {n:2d}%|#         | {10 * n}/1000 [{bar[0]}<{bar[1]},  7.50s/it]")
    path = tmp_path / "unsloth.log"
    path.write_text("\n".join(lines) + "\n")
    found = document("analyze", path)
    stated = {"gpu": "Tesla T4", "world_size": 1, "micro_batch": 2, "grad_accum": 4, "step_samples": 8}
    assert stated.items() <= found["facts"].items()
    rest = found["forecast"]["rest_hours"]
    assert rest["value"] == pytest.approx(500 * 7.5 / 3600, rel=0.01) and rest["low"] < rest["value"] < rest["high"]
    assert "T4" in advisor("analyze", path, "--all", expect=0).stdout or found["cost"]["usd"] > 0


def swift(step):
    return {
        "loss": 9 / step**0.5,
        "token_acc": 0.5,
        "epoch": step / 200,
        "global_step/max_steps": f"{step}/200",
        "elapsed_time": f"{5 * step // 60}m {5 * step % 60}s",
        "memory(GiB)": 16.4,
    }


def test_json_lines_with_a_header_and_a_closing_row_are_a_whole_run(tmp_path):
    """200 steps of 5 s are 16 min 40 s; the closing row has the numbers of parameters in words."""
    words = "PeftModel: 8212.56M Params (21.82M Trainable [0.2657%])"
    rows = [{"args": "swift sft --lora"}, *map(swift, (1, *range(10, 201, 10)))]
    rows.append({"model_parameter_info": words, "last_model_checkpoint": "out/checkpoint-200"})
    path = tmp_path / "logging.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = document("analyze", path)
    assert (found["status"], found["first_step"], found["last_step"]) == ("completed", 1, 200)
    assert found["cost"]["hours"] == pytest.approx(1000 / 3600, rel=0.01)
    assert (found["facts"]["parameters"], found["facts"]["trained_parameters"]) == (8_212_560_000, 21_820_000)


TABLES = {
    "train.csv": "step,loss\n" + "".join(f"{n},{3 / n**0.2:.4f}\n" for n in range(1, 31)),
    "train.jsonl": "".join(json.dumps({"step": n, "loss": 3 / n**0.2}) + "\n" for n in range(1, 31)),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_say_its_end_is_not_called_incomplete(tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLES[name])
    assert document("analyze", path)["status"] == "no_end_recorded"
    shown = advisor("analyze", path, expect=0).stdout
    assert "did 30 steps" in shown and "cut off" not in shown and "incomplete" not in shown
    assert "does not say how its run ended" in shown


def test_validation_losses_are_listed_as_measured_with_the_best_step(tmp_path):
    rows = [f"{{'loss': {1.5 - 0.004 * n:.4f}, 'grad_norm': 0.3, 'epoch': {n / 100:.2f}}}" for n in range(1, 181)]
    for place, value in zip((180, 150, 120, 90, 60, 30), (1.052, 1.034, 1.019, 1.031, 1.068, 1.151), strict=True):
        rows.insert(place, f"{{'eval_loss': {value}, 'eval_runtime': 22.3, 'epoch': {place / 100:.2f}}}")
    path = tmp_path / "axolotl.log"
    path.write_text("Total optimization steps = 180\nlogging_steps=1\n" + "\n".join(rows) + "\n")
    shown = advisor("analyze", path, expect=0).stdout
    assert re.search(r"validation loss\s+1\.04\s+1\.02 \(step 120\)\s+1\.15\s+1\.05\s+6", shown)


def test_unrelated_logs_of_a_folder_are_not_called_comparable(tmp_path):
    titan(tmp_path, "world size: 8")
    rows = (f"iter {10 * n}: loss {2.5 - 0.01 * n:.4f}, time 250.00ms, mfu 30.00%" for n in range(1, 41))
    (tmp_path / "nano.log").write_text("\n".join(rows) + "\n")
    for n in (1, 2):  # two logs of one program make the folder one of several runs
        (tmp_path / f"again_{n}.log").write_text((tmp_path / "titan.log").read_text())
    shown = " ".join(advisor("analyze", tmp_path, expect=0).stdout.split())
    assert "logs of different programs (nanoGPT, torchtitan): models, data and batches are" in shown
    assert "broke off" not in shown


def test_limits_that_are_stated_are_answered_for_a_run_that_is_over_or_goes_on(tmp_path):
    """400 steps of 1.2 s are 8 min; 8 GPUs at $6 cost $6.4. The last loss is 12 / 40 ** 0.3 = 3.97."""
    path = titan(tmp_path, "world size: 8")
    asked = ("analyze", path, "--price", "6", "--target-loss", "3.5", "--deadline", "5min", "--budget", "10")
    shown = " ".join(advisor(*asked, expect=0).stdout.split())
    assert "loss 3.5: missed, 3.97; deadline 5 min: missed, 8 min; budget $10: met, $6.40" in shown
    path.write_text("\n".join(path.read_text().split("\n")[:23]) + "\n")  # 20 rows: a half of it
    shown = " ".join(advisor(*asked, expect=0).stdout.split())
    assert "deadline 5 min: will be missed, " in shown and "budget $10: will be met, $6" in shown


def analyzed(tmp_path, lines):
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return document("analyze", path)


def epochs_with_rounds(number=5, steps=300, held_out=40):
    """Each epoch counts its steps from 1, then evaluates in a bar of another length."""
    for epoch in range(1, number + 1):
        yield f"Epoch {epoch}/{number}"
        for step in range(100, steps + 1, 100):
            yield f"step {step}/{steps} - loss: {0.2 / (epoch + step / steps):.4f} - 500ms/step"
        yield "Eval begin..."
        for step in (20, 40):
            yield f"step {step}/{held_out} - loss: {0.25 / (epoch + 1):.4f} - 200ms/step"


def test_rounds_of_evaluation_between_epochs_are_no_runs_and_no_training(tmp_path):
    """5 epochs of 300 steps are 1,500; the losses are 0.2 / (1 + 1/3) = 0.15 at first and 0.2 / 6 = 0.0333 at last."""
    found = analyzed(tmp_path, epochs_with_rounds())
    assert (found["forecast"]["steps_done"], found["first_loss"], found["last_loss"]) == (1500, 0.15, 0.0333)
    assert found["status"] == "completed" and len(found["runs"]) == 1
    assert found["cost"]["hours"] == pytest.approx(1500 * 0.5 / 3600, rel=0.05)
    assert "eval_loss" in found["columns"]


def test_copies_of_a_run_that_print_into_one_log_are_one_run_of_the_first(tmp_path):
    lines = []
    for step in range(50, 1001, 50):
        lines += [f"step {step}/1000 loss {copy + 0.2 / step**0.1:.4f} 45.0 s/step" for copy in (1, 2, 3)]
    found = analyzed(tmp_path, lines)
    assert (found["first_loss"], found["last_loss"]) == (1.1352, 1.1002) and found["last_step"] == 1000
    assert "3 processes print each step into the log: the rows are those of the first" in found["notes"]


def test_the_number_of_a_source_line_counts_nothing(tmp_path):
    lines = [
        f"2025-06-11 09:{n:02d}:00.000 | INFO     | app.trainer:train:58 - epoch {n // 4} batch {250 * (n % 4)} "
        f"loss {1.9 / (1 + n / 9):.4f} acc {0.4 + n / 100:.3f}"
        for n in range(24)
    ]
    found = analyzed(tmp_path, lines)
    assert (found["first_step"], found["first_loss"], found["last_loss"]) == (0, 1.9, round(1.9 / (1 + 23 / 9), 4))
    assert not [note for note in found["notes"] if "58" in note]
    # a minute for 250 batches; how many lie between batch 750 and the next epoch is not printed
    steps = found["measured"]["step_seconds"]
    assert steps["count"] == 18 and steps["low"] == pytest.approx(steps["high"]) == pytest.approx(60 / 250)
    assert "after 4,506 steps" not in found["verdict"][0] and "perhaps longer" in found["notes"][0]


def test_rows_of_every_tenth_epoch_give_losses_and_no_step_time(tmp_path):
    lines = [
        f"2021-08-08 15:{n:02d}:33,421 - net.train - INFO - Epoch {10 * n}    [Loss, Acc]: [{15 / n:.4f}, 0.{n:02d}], 0"
        for n in range(1, 21)
    ]
    found = analyzed(tmp_path, lines)
    assert (found["first_loss"], found["last_loss"], found["last_step"]) == (15, 0.75, 200)
    assert found["measured"]["step_seconds"] is None and "accuracy" in found["columns"]
