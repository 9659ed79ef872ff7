"""Consoles of formats that nobody declared, and of widespread programs: a few made-up lines of each style."""

from __future__ import annotations

import gzip
import math
import re
import time

import pytest

from advisor.errors import AdvisorError
from advisor.readers.line_format import LOSS
from advisor.readers.read import GENERIC, read_run
from advisor.readers.slots import slots
from advisor.readers.yaml_rows import filled, rows_of_file
from tests.advisor.readers.reading import read, verify

NAN = math.nan


def loss(number):
    return 6 - number / 8


def rows(line, first=1, of=6, every=1):
    """The line for each number, `{n}` it times `every`, `{l}` its loss, `{v}` a validation loss, `{k}` the number."""
    return [line.format(n=every * k, k=k, l=loss(k), v=loss(k) + 0.5) for k in range(first, first + of)]


def bar(label="", of=40, total=100, postfix=", loss={l:.4f}"):
    """A tqdm bar that shows each loss before it counts the step, and again when it has."""
    shown = "{label}{n:3d}%|##| {n}/{total} [00:{n:02d}<01:00, 1.00it/s{more}]"
    return ["\r".join(
        shown.format(label=label, n=n, total=total, more=postfix.format(l=loss(k))) for k in range(of) for n in (k,
            k + 1)
    )]  # fmt: skip


BY_NUMBER = {"format": "generic", "rows": 6, "ends": (1, 6, 5.875, 5.25)}
TENS = {"format": "generic", "rows": 6, "ends": (0, 50, 6.0, 5.375), "columns": {"step": [0, 10, 20, 30, 40, 50]}}
# name → lines that are printed for each of six rows, at steps 0, 10 … 50
STYLES = {
    "padded": "[progress] step {n:6d} | seq 1024 | loss {l:8.4f} | grad  0.9823 | lr  3.000e-5",
    "padded colon": "Step {n:4d} | Loss: {l:8.4f}",
    "equals": "ep=00  step={n:5d}  loss={l:.4f} (9.1234)  lr=1.50e-06  fwd=887.5ms  iter=1706.5ms",
    "rates behind": "Global Step: {n:6d}, accuracy:  10.9%, loss = {l:.4f} (611.0 examples/sec, 0.21 sec/batch)",
    "bar": "SFT:  45%|████▌     | {n}/400 [22:20<26:53,  7.87s/it, loss {l:.4f}]",
    "framed": "│ iteration {n} │ train_loss: {l:.4f} │ lr: 1e-3 │",
    "dictionary": "(main_task pid=12) {{'train/total_loss': {l:.4f}, 'global_step': {n}, 'lr': [0.001, 0.001]}}",
    "stepped names": "[rank0]: iter {n}, contrastive loss {l:.4f}, batch time 0.25 s",
    "coloured": "\x1b[32mINFO\x1b[0m \x1b[1mstep\x1b[0m {n} \x1b[1mloss\x1b[0m {l:.4f}",
    "called after its data": "  iter {n:6d} | train {l:.4f} | val {l:.4f} | lr 3.00e-04 | 153815 tok/s",
    "tensor": "iteration: {n} loss: tensor({l:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)",
    "a sentence": "{n}/600 in 1 epoch, Loss is {l:.4f} Acc is 0.5",
    "NeMo": "Training epoch 0, iteration {n}/99 | lr: 1e-05 | global_step: {n} | reduced_train_loss: {l:.4f}",
}


@pytest.mark.parametrize("style", STYLES)
def test_a_log_teaches_its_own_lines(tmp_path, style):
    verify(read(tmp_path, ["starting", *rows(STYLES[style], 0, every=10), "bye 3"]), **TENS)


KERAS_3 = [
    line
    for epoch, (running, whole) in enumerate([(0.46, 0.36), (0.21, 0.18), (0.13, 0.12)], 1)
    for line in (
        f"Epoch {epoch}/40",
        f"485/485 ━━━━━━━━━━━━━━━━━━━━ 0s 105ms/step - accuracy: 0.84 - loss: {running}",
        f"485/485 ━━━━━━━━━━━━━━━━━━━━ 52s 106ms/step - accuracy: 0.87 - loss: {whole} - val_loss: 0.5",
    )
]
RESNET = [
    line
    for e in range(3)
    for line in (*(f"Epoch: [{e}][{b:3d}/120]\tTime  0.345 ( 0.400)\tLoss {6 - e:.1f}e+00 (7.0)" for b in (0, 50, 100)),
                 f"Epoch {e} done, train loss: 9.99, val loss: {3 - e}.5")
]  # fmt: skip
SB3 = [
    line
    for k in range(1, 5)
    for line in (
        "| rollout/  |   |", f"|    ep_rew_mean     | {2.5 * k}     |", "| time/ |  |",
            f"|    time_elapsed    | {9 * k}       |",
        f"|    total_timesteps | {2048 * k}     |",
        *(("| train/ |  |", "|    learning_rate   | 0.0003   |", f"|    loss            | {9.0 / k}   |",
            "-" * 30) if k > 1 else ()),
    )
]  # fmt: skip
OTHER = {
    "Keras": (
        rows("Epoch {n}/9\n  1/469 [......] - ETA: 2:03 - loss: 9.1\b\b\b\b300/469 [===>..] - ETA: 1s - loss: 8.1\n"
             "469/469 [======] - 3s 6ms/step - loss: {l:.4f} - accuracy: 0.9 - val_loss: {v:.4f}"),
        BY_NUMBER | {"format": "keras"},
    ),
    "Keras 3 prints what is left before what an epoch took": (KERAS_3,
        {"rows": 3, "first_loss": 0.36, "last_loss": 0.12}),
    "Keras with verbose 2 of old": (
        [f"Epoch {n}/20\n - 84{n}s - loss: {9 / n:.4f} - val_loss: 1.8339" for n in (1, 2, 3)],
        {"last_step": 3, "columns": {"epoch_seconds": [841, 842, 843]}},
    ),
    "YOLO": (
        rows("   Epoch  GPU_mem  box_loss\n   {n}/9  3.31G  {l:.4f}  0.03  0.01  35  640: 100%|███| 8/8 [00:05<00:00]"),
             BY_NUMBER | {"format": "yolo"}),
    # steps that start again with every epoch: what goes on is the epoch
    "DCGAN": (rows("[{n}/9][0/1583]\tLoss_D: {l:.4f}\tLoss_G: 4.9\n[{n}/9][50/1583]\tLoss_D: {l:.4f}\tLoss_G: 4.9"),
              BY_NUMBER | {"rows": 12}),
    "nnU-Net": (
        rows("2023-01-01 00:00:00.000000: Epoch {n} \ntrain_loss {l:.4f} \nval_loss {v:.4f} \nEpoch time: 50.1 s "),
            BY_NUMBER),
    "Stable-Baselines3": (SB3, {
        "format": "stable_baselines3",
        "columns": {"step": [2048, 4096, 6144, 8192], "loss": {1: 4.5, 2: 3.0, 3: 2.25}, "reward": {3: 10.0},
                    "elapsed_seconds": [9, 18, 27, 36]}}),
    "Deeplearning4j": (rows("06:38:0{k}.402 [main] INFO org.x.ScoreIterationListener - Score at iteration {n} is {l}"),
                       BY_NUMBER | {"format": "deeplearning4j", "framework": "Deeplearning4j"}),
    # the best round is printed once more, which is no restart
    "the end of a fine-tune, with a warning's line of code": (
        ["  Train Loss: 0.2, ACC: 0.9", "Training complete. Best val ACC: 0.9", "Loading test set...",
            "  state = torch.load(path)"],
        {"ends": (None, None, None, None), "status": "completed"},
    ),
    "an estimate that comes to nothing": (
        [f"[03/01 22:{i:02d}:00 d2.utils.events]: eta: 0:0{7 - i}:00  iter: {i * 20 - 1}  total_loss: {loss(i):.3f}"
         for i in range(1, 8)], {"ends": (19, 139, 5.875, 5.125), "status": "completed"}),
    "the whole before its parts": (rows("[Step {n}] ce_loss: 0.5 | kd_loss: 0.2 | total_loss: {l:.4f}", every=7),
                                   {"ends": (7, 42, 5.875, 5.25), "status": "no_end_recorded"}),
    "numbers gone, without a sign": (
        [*rows("Epoch {n}: train loss {l:.4f}, val loss {v:.4f}"),
            *(f"Epoch {n}: train loss nan, val loss nan" for n in range(7, 40))],
        {"ends": (1, 39, 5.875, NAN), "status": "diverged"},
    ),
    "two epochs without a number in the end": (
        [f"Epoch {e}, Loss: {'nan' if e > 4 else loss(e)}" for e in range(1, 7)], {"status": "diverged"}),
    "one epoch without a number in the end": (
        [f"Epoch {e}, Loss: {'nan' if e > 4 else loss(e)}" for e in range(1, 6)], {"status": "no_end_recorded"}),
    "a test behind all evaluations": (
        [*rows("Epoch: {n:02} | Epoch Time: 0m 9s\n\tTrain Loss: {l:.3f} | Train PPL: 8.1\n\t Val. Loss: {v:.3f}"),
         "| Test Loss: 5.100 | Test PPL: 20.1 |"], {"ends": (1, 6, 5.875, 5.25), "status": "completed"}),
    "one epoch, summed up": (
        ["Train batches : 671", "Starting training for 300 epochs", "Epoch 27/300",
            "  Train Loss: 0.3 | Val Loss: 0.4 | DSC: 0.7"],
        {"ends": (27, 27, 0.3, 0.3), "status": "incomplete"},
    ),
    "a batch of the only epoch": (["Training for 1 epochs", *bar(of=20, postfix=", epoch=1, loss={l:.4f}")],
                                  {"ends": (1, 20, 6.0, 3.625), "status": "incomplete"}),
    "a bar ahead of its losses": (bar(label="SFT: "), {"ends": (1, 40, 6.0, 1.125), "status": "incomplete"}),
    "a bar alone": (
        ["Filtering prompts: 100%|##| 90/90 [09:00<00:00, 1.1s/it]",
         *(f"Training Progress:   0%|  | {i}/15625 [{i:02d}:00<99:00:00, 60.0s/it]\nsome text" for i in range(34))],
        {"ends": (0, 33, None, None), "status": "incomplete"},
    ),
    "a bar whose end is not known": (
        ["training the encoder", "\r".join(f"{s}it [{s // 60:02d}:{s % 60:02d},  1.00s/it]" for s in range(60, 241,
            20))],
        {"ends": (60, 240, None, None), "seconds": 240},
    ),
    "bars with losses are no table": (
        ["\r".join([*(f"Epochs:  {n}%|##   | {n}/100 [00:{n}<03:10, 1.2s/it, t_loss={loss(n):.3f}]"
            for n in (30, 40, 50)),
                    "Epochs:   0%|   | 0/100 [00:00<?, ?it/s]"])], {"first_loss": 2.25, "last_loss": -0.25}),
    "a counter alone": (["start training", *rows("(epoch: 1, iters: {n}00, data: 0.004) D_A: 0.3 G_A: {l:.3f}")],
                        {"ends": (100, 600, None, None), "status": "no_end_recorded"}),
    # what stands beside the loss
    "`iter=…ms` is a time, no counter": (
        rows("step={n:5d}  loss={l:.4f} (9.1234)  fwd=887.5ms  iter=1706.5ms  peak_mem=6023MB"),
        {"columns": {"seconds": [1.7065] * 6, "memory_bytes": {0: 6023 * 2**20}}},
    ),
    "seconds a batch": (rows("Global Step: {n:6d}, loss = {l:.4f} (611.0 examples/sec, 0.21 sec/batch)"),
        {"columns": {"seconds": [0.21] * 6}}),
    "a bar's plan and clock": (rows("SFT:  45%|████▌     | {n}/400 [22:20<26:53,  7.87s/it, loss {l:.4f}]"),
                               {"facts": {"planned_steps": 400}, "columns": {"elapsed_seconds": {0: 1340}}}),
    "tokens that every row repeats are of one step": (rows("step {n:6d} | tokens  65536 | loss {l:8.4f}"),
                                                      {"facts": {"step_tokens": 65536}, "absent": ("tokens",)}),
    "iterations a second": (rows("[{n}/800] loss={l:.4f} gpu_mem=31.2GiB it/s=4.0", of=9),
        {"columns": {"seconds": [0.25] * 9}}),
    "seconds under their unit": (["    iter  train_nll  sec/it", *rows("    {n:4}  {l:.4f}  0.250", of=9)],
                                 {"rows": 9, "columns": {"seconds": [0.25] * 9}}),
    "minutes since the start at a line's end": (
        [f"step {10 * n}/900  loss {9 - n / 10:.4f}  lr 3.00e-05  |g| 0.83  {0.2 * n:.1f}m" for n in range(1, 13)],
        {"columns": {"elapsed_seconds": [12.0 * n for n in range(1, 13)]}},
    ),
    "an epoch said above its losses": (
        rows("[Epoch {n}/9]\nINFO - Train Loss: {l:.4f}, Train Acc: 0.35\nINFO - Val   Loss: {v:.4f}, Val   Acc: 0.5\n"
             "INFO - Best val loss: 0.0100"),
        {"ends": (1, 6, 5.875, 5.25), "columns": {"eval_loss": {0: 6.375, 5: 5.75}}, "facts": {"planned_epochs": 9},
            "counts_steps": False},
    ),
    "sums of an epoch are no steps": (RESNET, {"rows": 9, "first_loss": 6.0, "last_loss": 4.0}),
    "a table under a header": (
        ["Step     Loss     LR          GradNorm  Tok/s   GPU%  VRAM(MB)",
            *rows("{n:4d}    {l:.4f}   5.0e-06      1.1309    3,901    3%   7")],
        {"columns": {"loss": [loss(k) for k in range(1, 7)], "tokens_per_second": [3901] * 6}},
    ),
    "a table of epochs": (
        ["epoch     train_loss  valid_loss  time", *rows("{n}         {l}         {v}        00:12")],
        {"ends": (1, 6, 5.875, 5.25), "columns": {"eval_loss": {0: 6.375}}},
    ),
    "losses without a counter": (rows("loss:{l:.6f}, accuracy:0.99, recall:0.98"),
        {"rows": 6, "ends": (None, None, 5.875, 5.25)}),
    "counts in thousands": (rows("step:{n}K smpl:16K ep:39 epoch:0.10 loss:{l} grdn:2.3"),
                            {"first_step": 1000, "last_step": 6000, "columns": {"grad_norm": {0: 2.3}}}),
    "a run that prints no loss": (rows("Episode {n}0  Average Reward: {n}.5  lr: 0.001"),
                                  {"ends": (10, 60, None, None), "columns": {"reward": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]},
                                   "notes": "no loss is printed"}),
    "scores called after their data": ([f"epoch {s} | train 0.{90 - s} | val 0.{80 - s} (accuracy)" for s in range(10,
        20)],
                                       {"ends": (10, 19, None, None), "absent": ("loss",)}),
    "negative losses behind dates": (
        [f"2025-10-07 07:00:{i % 60:02d},500 -- step {i} loss {-i / 4:.2f} - kl 0.5 ..." for i in range(1, 200)],
        {"columns": {"loss": [-i / 4 for i in range(1, 200)]}},
    ),
    "an error that falls is a loss": ([f"Iteration = {s}\t Error = {2.5 - s / 4000:.6f} \n" for s in range(100, 4100,
        100)],
                                      {"ends": (100, 4000, 2.475, 1.5)}),
    "training beside held-out": (
        [*rows("[fit] epoch {n:3d}/40  train={l:.4f}  heldout={v:.4f}  lr=1.50e-04"),
         "[fit] early stop after 6 epochs (no improvement for 6)"],
        {"ends": (1, 6, 5.875, 5.25), "columns": {"eval_loss": {-1: 5.75}}, "status": "completed"},
    ),
    "two bare columns": (rows("{n}\t{l:.6f}", of=40), {"rows": 40, "first_loss": 5.875, "framework": None,
        "facts": {"loss_unit": "a number without a name"}}),
    "a discriminator's loss": (rows("[Epoch {n}/500] [D loss: {l:.3f}] [G loss: 0.680]"),
        {"rows": 6, "facts": {"loss_unit": "one of several losses"}}),
    "an autoencoder's loss beside others": (
        rows("iter {n} - Children class: 0.693 - Autoencoder Loss (total): {l:.3f} - Consistency Loss: -3.5"),
        {"rows": 6, "facts": {"loss_unit": "one of several losses"}},
    ),
    "a loss and its parts": (rows("iter {n} recon_loss {l:.3f} kl_loss 2.1 loss 2.4"),
        {"rows": 6, "facts": {"loss_unit": None}}),
    "a task's loss beside a teacher's": (rows("Iters: {n} || Task Loss: {l:.4f} || KD Loss: 1.6"),
        {"rows": 6, "facts": {"loss_unit": None}}),
    "rows under the name of a known program": (  # its messages betray it, but somebody wrote its rows anew
        ["[2024-01-01 00:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed is ready",
            *rows("Step {n:4d} | Loss: {l:8.4f}")],
        {"rows": 6, "last_step": 6},
    ),
    # times
    "epochs with their time add up": (  # the bar is of loading the data
        ["Loading Data: 100%|████| 84/84 [00:09<00:00,  9.02it/s]",
         *(line for e in range(1, 31) for line in (
             f"INFO:Trainer:Epoch [{e}/30] Train: {1 / e:.4f} | Val: {1.1 / e:.4f} | {2000 if e == 9 else 400}.0s",
             *(["INFO:Trainer:--> New Best Model Saved! (Loss: 0.1481)"] * (e % 3 == 0))))],
        {"rows": 30, "first_step": 1, "last_step": 30, "first_loss": 1.0, "columns": {"eval_loss": {0: 1.1}},
            "status": "completed",
         "seconds": 29 * 400 + 2000},
    ),
    "an epoch's own time holds what lies between its steps": (
        [line for e in (1, 2) for line in (
            *(f"Epoch {e} | Batch {b}/300 | Time/Batch(ms) 100.0 | Train Loss {3 - b / 900}" for b in (100, 200)),
            f"Epoch {e} | Time 90.5 sec | Train Loss 2.5 | Valid Loss 2.25")], {"seconds": 181}),
    "a time that may be of a batch or of twenty": (rows("batch: {n}, time: 8.50, loss: {l:.4f}", every=20),
        {"seconds": None}),
    "a time of each batch": (rows("batch: {n}, time: 8.50, loss: {l:.4f}"), {"seconds": 8.5 * 6}),
    "milliseconds are of a batch": (rows("batch: {n}, time: 850.0ms, loss: {l:.4f}", every=20),
        {"seconds": 0.85 * 120}),
    "a time per step": (rows("batch: {n}, time per step: 8.50, loss: {l:.4f}", every=20), {"seconds": 8.5 * 120}),
    # rows ten minutes apart: at 0:10:17, at 0:20:17, …
    "a clock that goes on": (rows("Iter: {n:6}, Train Loss: {l:5.2}, Val Acc: 89.44%,  Time: 0:{k}0:17 *", of=5,
        every=100), {"seconds": 3017}),
    "elapsed time": (rows("iter {n} loss {l} | elapsed time = 0:{k}0:17", of=5, every=100), {"seconds": 3017}),
    "a clock of a step or of several": (rows("iter {n} loss {l} time 0:00:05", every=100), {"seconds": None}),
    "a clock of what is left": (rows("iter {n} loss {l} remaining time: 0:{k}0:17", of=5, every=100),
        {"seconds": None}),
    "a clock of each epoch": ([f"epoch {n} loss {loss(n)} time: 1:00:0{d}" for n, d in enumerate((1, 2, 3, 4, 2), 1)],
        {"seconds": 5 * 3600 + 12}),
    "a test that sums up its own time": (
        ["Time usage: 0:00:41", *rows("Iter: {n}00, Train Loss: {l}, Time: 0:0{k}:00"), "Time usage: 0:00:35"],
            {"seconds": 360}),
    "times that only rise beside epochs": (
        [f"epoch= {n} \t time= {0.125 * (n + 1)} min \t loss= {2 / (n + 1):.4f}" for n in range(40)],
        {"seconds": 300},
    ),
    # runs
    "few epochs that begin again": ([f"Epoch: {e:3d} | T_Loss {6 - 0.5 * e:.3f} | T_acc 0.1" for e in (1, 2, 3, 1)],
                                    {"runs": [{"first_step": 1, "last_step": 3}, {"first_step": 1, "last_step": 1}]}),
    # the first prints from step 0, the second from step 1
    "a fine-tuning behind a training": (
        [*(f"step {s:05d} | loss: {9 - s / 20:.4f}" for s in range(60)),
            *(f"step {s:05d} | loss: {1 - s / 100:.4f}" for s in range(1, 31))],
        {"runs": [{"first_step": 0, "last_step": 59, "first_loss": 9.0, "last_loss": 6.05},
                  {"first_step": 1, "last_step": 30, "first_loss": 0.99, "last_loss": 0.7}]},
    ),
    "a restart from a checkpoint": ([f"step {s:05d} | loss: {9 - s / 20:.4f}" for s in (*range(60), *range(41, 90))],
                                    {"runs": [{"first_step": 0, "last_step": 89, "starts": 2}]}),
    # last words
    "a crash alone": (["Loading data ...", "Segmentation fault (core dumped)"], {"rows": 0, "status": "crashed"}),
    "a scheduler's word alone": (["Loading data ...", "srun: error: node1: task 0: Exited with exit code 1"],
        {"rows": 0, "status": "crashed"}),
    "an exception alone": (["Loading data ...", "RuntimeError: no"], {"rows": 0, "status": "crashed"}),
    "a usage error": (["usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --steps 2"],
        {"rows": 0, "status": "crashed"}),
    "a command mistyped after the end": ([*rows("step {n} loss {l}"), "INFO: Training complete.", "$ a",
        "a: command not found"], {"status": "completed"}),
    "a training begun behind a stamp": (
        ["2026-01-02 10:00:00,001 [INFO] reading the dataset", "2026-01-02 10:00:01,500 [INFO] Training model",
         "2026-01-02 10:00:09,000 [INFO] class weights for the device"], {"status": "incomplete", "rows": 0}),
    "a training begun under a bar": (["Epoch 3/90 train:  12%|#2        | 40/330 [00:11<01:21,  3.6it/s]"],
        {"status": "incomplete", "rows": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_consoles(tmp_path, name):
    lines, expected = OTHER[name]
    verify(read(tmp_path, lines), **expected)


def epochs(template, number):
    """Epochs of 300 steps, every hundredth printed, the loss falling."""
    rows = [(epoch, step) for epoch in range(1, number + 1) for step in (100, 200, 300)]
    return [template.format(e=e, s=s, loss=3 - 0.1 * i) for i, (e, s) in enumerate(rows)]


@pytest.mark.parametrize(
    ("lines", "done", "planned", "status"),
    [
        (epochs("Epoch [{e}/4], Step [{s}/300], Loss: {loss:.3f}", 4), 4, 1200, "completed"),
        (epochs("Epoch [{e}/4], Step [{s}/300], Loss: {loss:.3f}", 2), 2, 1200, "incomplete"),
        # the log ends before a second epoch shows that steps start again
        (epochs("Epoch [{e}/4], Step [{s}/300], Loss: {loss:.3f}", 1), 1, 1200, "incomplete"),
        (["args: lr=0.0008 epochs=4", *epochs("Epoch: [{e}] [{s}/300] loss: {loss:.3f}", 1)], 1, 1200, "incomplete"),
        # 300 steps are those of an epoch, and nobody says how many
        (epochs("Epoch {e}, Step [{s}/300], Loss: {loss:.3f}", 3), 3, None, "no_end_recorded"),
    ],
)
def test_planned_steps_are_those_of_all_epochs(tmp_path, lines, done, planned, status):
    columns = {"step": [100 * n for n in range(1, 3 * done + 1)]}
    verify(
        read(tmp_path, lines),
        first_step=100,
        last_step=300 * done,  # by the printed number of an epoch's steps
        columns=columns,
        facts={"planned_steps": planned},
        status=status,
    )


def test_a_plan_of_the_whole_run_is_not_multiplied_and_batches_are_those_printed(tmp_path):
    run = read(tmp_path, epochs("epoch {e}/4 step {s}/1200 loss {loss:.3f}", 4))
    verify(run, columns={"step": {-1: 1200}}, facts={"planned_steps": 1200})
    run = read(tmp_path, ["args: epochs=4", *epochs("epoch {e} step {s}/1200 loss {loss:.3f}", 1)])
    verify(run, facts={"planned_steps": 1200})  # step 300 is where the first of four epochs ends
    shown = "[Epoch {e}/20] [Batch {b}/100] [loss: {v}]"
    run = read(
        tmp_path, [shown.format(e=e, b=b, v=3 - e - b / 100) for e in range(3) for b in range(0, 100, 25)], "a.log"
    )
    verify(run, columns={"step": list(range(0, 300, 25))})


def test_keras_without_a_bar_says_that_it_stops_before_its_last_epoch(tmp_path):
    """Two trainings of one script: 3 epochs of 3, then 2 of 3; each epoch has its seconds and no bar."""
    row = "{s}s - loss: {l:.4f} - acc: 0.6 - val_loss: 0.5 - val_acc: 0.9\n"
    first = "".join(f"Epoch {n}/3\n" + row.format(s=3000 + n, l=2 - n / 4) for n in (1, 2, 3))
    then = "Epoch 1/3\n" + row.format(s=3100, l=0.9) + "Epoch 2/3\nEpoch 00001: early stopping\n"
    text = f"Train on 4000 samples\n{first}Train on 4000 samples\n{then}" + row.format(s=3200, l=0.8)
    each = [
        {"status": "completed", "first_loss": 1.75, "last_loss": 1.25},
        {"status": "completed", "first_loss": 0.9, "last_loss": 0.8},
    ]
    verify(read(tmp_path, text), format="keras", status="completed", runs=each,
           columns={"epoch_seconds": [3001, 3002, 3003, 3100, 3200]})  # fmt: skip


def test_the_year_of_a_date_is_no_time(tmp_path):
    shown = "[epoch:{n}/100] [loss:{l}] [lr:0.0{k}] [Time:[2022-08-28 00:1{k}:34]] [total time:0:02:27]"
    run = read(tmp_path, rows(shown))
    verify(run, rows=6, seconds=6 * 147)


def test_a_packed_log_that_is_damaged(tmp_path):
    packed = bytearray(gzip.compress("".join(f"step {i} loss {9 - i / 100:.2f}\n" for i in range(400)).encode()))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "run.log.gz"
    path.write_bytes(packed)
    assert read_run(path).rows > 0  # what came before the damage
    path.write_bytes(bytes(packed[:10]) + b"\xff" * 20)
    with pytest.raises(AdvisorError):
        read_run(path)


def test_three_tokens_a_line(tmp_path):
    lines = [line for i in range(12) for line in (f"{i} train {9 - i / 2:.4f}", f"{i} val {9.5 - i / 2:.4f}")]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    verify(GENERIC.read(path), rows=12, first_loss=9.0, columns={"eval_loss": {0: 9.5}})
    path.write_text("".join(f"{i} train 0.{i}5\n" for i in range(1, 9)))
    assert GENERIC.read(path).rows == 0  # an accuracy, perhaps


NO_LOGS = {
    "page.txt": "# A run\n\nIt fell to 2.5 quickly:\n```\nstep 100: loss 5.25\nstep 200: loss 4.25\n"
    "step 300: loss 3.25\n```\n\n## Next\n- **more steps**\n- **less loss**\n```\npip install it\n```\n",
    "code.py": "import torch\nloss = 0.0\nstep = 0\nlr = 0.1\ndef train(step=100, loss=2.5):\n    loss = 1.0\n"
    "    for step in range(100):\n        total_loss += 1.0\n    print(f'step {step} loss {loss:.4f}')\n    return 5\n",
    "requirements.txt": "torch==2.1.0\nlossy==1.0.2\nnumpy>=1.26\nstep-counter==3.1\n",
    "access.log": "".join(
        f'10.0.0.{i} - - [10/Oct/2000:13:55:{i:02d} -0700] "GET /step/{i} HTTP/1.0" 200 {i}\n' for i in range(20)),
    "prose.txt": "After 100 steps the loss was 5.2, and in step 200 we saw a loss of 4.1.\nThree weeks later: no.\n",
    "config.yaml": "loss_weight: 0.5\nsteps: 100\nkl_loss_coef: 0.1\nepochs: 3\naux_loss_weight: 0.01\n",
    "memory.log": "".join(f"[{i}] model is built, max GPU cost is {400 + i} MB\n" for i in range(30)),
    "empty.log": "",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_LOGS)
def test_texts_that_are_no_logs(tmp_path, name):
    try:
        assert read(tmp_path, NO_LOGS[name], name).rows == 0
    except AdvisorError as refused:
        assert refused.hint


def test_lines_that_only_look_like_rows_take_no_time_and_give_no_number():
    began = time.process_time()
    for start in (b"loss", b"loss is", b"step -"):
        assert slots(start + b" " * 4000) == []
    assert time.process_time() - began < 1  # seconds; nine before
    assert not [slot for slot in slots(b"after 5 epoch of warm-up the loss is read") if slot.name == "epoch"]


FORMS = rows_of_file("slots")["rows"]


@pytest.mark.parametrize("row", FORMS, ids=[row["example"] for row in FORMS])
def test_each_form_of_a_number_reads_its_example(row):
    line = row["example"].encode()
    found = {slot.name: line[slot.start : slot.end].decode() for slot in slots(line)}
    assert found == row["gives"]
    parts = {"LOSS": LOSS.decode(), **rows_of_file("slots")["parts"]}
    assert re.search(filled(row["pattern"], parts).encode(), line), "another row reads it"
