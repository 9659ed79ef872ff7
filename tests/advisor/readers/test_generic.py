"""Logs of formats that nobody declared: what their own lines teach, and texts that are no logs."""

from __future__ import annotations

import csv
import gzip
import math
import re
import time
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.findings.make_case import make_case
from advisor.findings.savings import spent_seconds
from advisor.readers.formats import line_formats
from advisor.readers.generic import NAME
from advisor.readers.line_format import LOSS
from advisor.readers.read import GENERIC, read_run
from advisor.readers.run_table import Status
from advisor.readers.slots import slots
from advisor.readers.yaml_rows import filled, rows_of_file

SHARED = Path(__file__).resolve().parents[4] / "shared"
STEPS = range(0, 500, 100)


def written(tmp_path, lines, name="run.log", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes("\n".join([*lines, ""]).encode(encoding))
    return path


def loss(step):
    return 8.25 - step / 128


STYLES = {
    "padded": "[progress] step {s:6d} | seq 1024 | tokens  65536 | loss {l:8.4f} | grad  0.9823 | lr  3.000e-5",
    "padded colon": "Step {s:4d} | Loss: {l:8.4f}",
    "equals": "ep=00  step={s:5d}  loss={l:.4f} (9.1234)  lr=1.50e-06  fwd=887.5ms  iter=1706.5ms  peak_mem=6023MB",
    "rates behind": "Global Step: {s:6d}, accuracy:  10.9%, loss = {l:.4f} (611.0 examples/sec, 0.21 sec/batch)",
    "bar": "SFT:  45%|████▌     | {s}/400 [22:20<26:53,  7.87s/it, loss {l:.4f}]",
    "framed": "│ iteration {s} │ train_loss: {l:.4f} │ lr: 1e-3 │",
    "dictionary": "(main_task pid=12) {{'train/total_loss': {l:.4f}, 'global_step': {s}, 'lr': [0.001, 0.001]}}",
    "chinese": "2025-03-01 10:00:00,123 - INFO - 第 {s} 步，训练损失：{l:.4f}，学习率：0.0001",
    "stepped names": "[rank0]: iter {s}, contrastive loss {l:.4f}, batch time 0.25 s",
    "coloured": "\x1b[32mINFO\x1b[0m \x1b[1mstep\x1b[0m {s} \x1b[1mloss\x1b[0m {l:.4f}",
    "called after its data": "  iter {s:6d} | train {l:.4f} | val {l:.4f} | lr 3.00e-04 | 153815 tok/s",
    "tensor": "iteration: {s} loss: tensor({l:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)",
}


@pytest.mark.parametrize("style", STYLES)
def test_a_log_teaches_its_own_lines(tmp_path, style):
    table = read_run(written(tmp_path, ["starting", *(STYLES[style].format(s=s, l=loss(s)) for s in STEPS), "bye 3"]))
    assert table.format == NAME
    assert table.columns["step"].tolist() == list(STEPS)
    assert table.columns["loss"].tolist() == [round(loss(s), 4) for s in STEPS]


def test_scores_called_after_their_data_are_no_losses(tmp_path):
    lines = [f"epoch {s} | train 0.{90 - s} | val 0.{80 - s} (accuracy)" for s in range(10, 20)]
    table = read_run(written(tmp_path, lines))
    assert (table.first_step, table.last_step, table.first_loss) == (10, 19, None) and "loss" not in table.columns


def test_what_stands_beside_the_loss(tmp_path):
    table = read_run(written(tmp_path, [STYLES["equals"].format(s=s, l=loss(s)) for s in STEPS]))
    assert table.columns["seconds"].tolist() == [1.7065] * 5  # `iter=…ms` is a time, not a counter
    assert table.columns["memory_bytes"][0] == 6023 * 2**20
    table = read_run(written(tmp_path, [STYLES["rates behind"].format(s=s, l=loss(s)) for s in STEPS]))
    assert table.columns["seconds"].tolist() == [0.21] * 5
    table = read_run(written(tmp_path, [STYLES["bar"].format(s=s, l=loss(s)) for s in STEPS]))
    assert table.facts["planned_steps"] == 400 and table.columns["elapsed_seconds"][0] == 22 * 60 + 20
    table = read_run(written(tmp_path, [STYLES["padded"].format(s=s, l=loss(s)) for s in STEPS]))
    assert table.facts["step_tokens"] == 65536 and "tokens" not in table.columns  # the same in every row: of one step


def test_an_epoch_said_above_its_losses(tmp_path):
    lines = []
    for epoch in range(1, 5):
        lines += [f"[Epoch {epoch}/9]", f"INFO - Train Loss: {4 / epoch:.4f}, Train Acc: 0.35"]
        lines += [f"INFO - Val   Loss: {5 / epoch:.4f}, Val   Acc: 0.5", "INFO - Best val loss: 0.0100"]
    table = read_run(written(tmp_path, lines))
    assert (table.first_step, table.last_step, table.first_loss, table.last_loss) == (1, 4, 4.0, 1.0)
    assert table.columns["eval_loss"].tolist() == [5.0, 2.5, 1.6667, 1.25]
    assert table.facts["planned_epochs"] == 9 and not table.counts_steps


def test_sums_of_an_epoch_are_no_steps(tmp_path):
    lines = []
    for epoch in range(3):
        lines += [
            f"Epoch: [{epoch}][{batch:3d}/120]\tTime  0.345 ( 0.400)\tLoss {6 - epoch:.1f}e+00 (7.0)"
            for batch in (0, 50, 100)
        ]
        lines += [f"Epoch {epoch} done, train loss: 9.99, val loss: {3 - epoch}.5"]
    table = read_run(written(tmp_path, lines))
    assert table.rows == 9 and (table.first_loss, table.last_loss) == (6.0, 4.0)
    assert sorted(value for value in table.columns["eval_loss"].tolist() if not math.isnan(value)) == [1.5, 2.5, 3.5]


def test_a_table_under_a_header(tmp_path):
    lines = ["Step     Loss     LR          GradNorm  Tok/s   GPU%  VRAM(MB)"]
    lines += [f"{s:4d}    {loss(s):.4f}   5.0e-06      1.1309    3,901    3%   {s}" for s in STEPS]
    table = read_run(written(tmp_path, lines))
    assert table.columns["loss"].tolist() == [round(loss(s), 4) for s in STEPS]
    assert table.columns["tokens_per_second"].tolist() == [3901] * 5
    lines = [
        "epoch     train_loss  valid_loss  time",
        *(f"{e}         {4 - e}.5         {5 - e}.25        00:12" for e in range(3)),
    ]
    table = read_run(written(tmp_path, lines))
    assert (table.first_step, table.last_step, table.last_loss) == (0, 2, 2.5)
    assert table.columns["eval_loss"].tolist() == [5.25, 4.25, 3.25]


def test_losses_without_a_counter_and_counts_in_thousands(tmp_path):
    table = read_run(written(tmp_path, [f"loss:{0.5 / (1 + i):.6f}, accuracy:0.99, recall:0.98" for i in range(6)]))
    assert (table.rows, table.first_step, table.first_loss) == (6, None, 0.5)
    table = read_run(
        written(tmp_path, [f"step:{k}K smpl:16K ep:39 epch:0.10 loss:0.{9 - k} grdn:2.3" for k in range(2, 7)])
    )
    assert (table.first_step, table.last_step) == (2000, 6000) and table.columns["grad_norm"][0] == 2.3


def test_a_run_that_prints_no_loss(tmp_path):
    table = read_run(written(tmp_path, [f"Episode {10 * i}  Average Reward: {i}.5  lr: 0.001" for i in range(1, 6)]))
    assert (table.rows, table.first_step, table.last_step, table.first_loss) == (5, 10, 50, None)
    assert table.columns["reward"].tolist() == [1.5, 2.5, 3.5, 4.5, 5.5] and "no loss is printed" in table.notes


@pytest.mark.parametrize(
    "last",
    ["Segmentation fault (core dumped)", "srun: error: node1: task 0: Exited with exit code 1", "RuntimeError: no"],
)
def test_the_last_words_of_a_run_that_printed_nothing_else(tmp_path, last):
    table = read_run(written(tmp_path, ["Loading data ...", last]))
    assert (table.rows, table.status) == (0, Status.CRASHED) and table.events


def test_a_packed_log_that_is_damaged(tmp_path):
    packed = bytearray(gzip.compress("".join(f"step {i} loss {9 - i / 100:.2f}\n" for i in range(400)).encode()))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "run.log.gz"
    path.write_bytes(packed)
    assert read_run(path).rows > 0  # what came before the damage
    path.write_bytes(bytes(packed[:10]) + b"\xff" * 20)
    with pytest.raises(AdvisorError):
        read_run(path)


def test_utf_16_as_a_redirect_of_powershell_writes_it(tmp_path):
    lines = [STYLES["padded colon"].format(s=s, l=loss(s)) for s in STEPS]
    assert read_run(written(tmp_path, lines, encoding="utf-16")).rows == 5


def test_signs_that_stand_alone_and_dates_beside_negative_losses_are_read_in_bulk(tmp_path):
    lines = [f"2025-10-07 07:00:{i % 60:02d},500 -- step {i} loss {-i / 4:.2f} - kl 0.5 ..." for i in range(1, 200)]
    table = read_run(written(tmp_path, lines))
    assert table.columns["loss"].tolist() == [-i / 4 for i in range(1, 200)]
    assert table.columns["unix_seconds"][1] - table.columns["unix_seconds"][0] == 1


def test_three_tokens_a_line(tmp_path):
    lines = [line for i in range(12) for line in (f"{i} train {9 - i / 2:.4f}", f"{i} val {9.5 - i / 2:.4f}")]
    table = GENERIC.read(written(tmp_path, lines))
    assert (table.rows, table.first_loss, table.columns["eval_loss"][0]) == (12, 9.0, 9.5)
    assert GENERIC.read(written(tmp_path, [f"{i} train 0.{i}5" for i in range(1, 9)])).rows == 0  # an accuracy, perhaps


NO_LOGS = {
    "page.txt": [
        "# A run",
        "",
        "It fell to 2.5 quickly:",
        "```",
        "step 100: loss 5.25",
        "step 200: loss 4.25",
        "step 300: loss 3.25",
    ]
    + ["```", "", "## Next", "- **more steps**", "- **less loss**", "```", "pip install it", "```"],
    "code.py": [
        "import torch",
        "loss = 0.0",
        "step = 0",
        "lr = 0.1",
        "def train(step=100, loss=2.5):",
        "    loss = 1.0",
    ]
    + [
        "    for step in range(100):",
        "        total_loss += 1.0",
        "    print(f'step {step} loss {loss:.4f}')",
        "    return 5",
    ],
    "requirements.txt": ["torch==2.1.0", "lossy==1.0.2", "numpy>=1.26", "step-counter==3.1"],
    "access.log": [
        f'10.0.0.{i} - - [10/Oct/2000:13:55:{i:02d} -0700] "GET /step/{i} HTTP/1.0" 200 {2326 + i}' for i in range(20)
    ],
    "prose.txt": [
        "After 100 steps the loss was 5.2, and in step 200 we saw a loss of 4.1.",
        "Three weeks later, nothing.",
    ],
    "config.yaml": ["loss_weight: 0.5", "steps: 100", "kl_loss_coef: 0.1", "epochs: 3", "aux_loss_weight: 0.01"],
}


@pytest.mark.parametrize("name", NO_LOGS)
def test_texts_that_are_no_logs(tmp_path, name):
    path = written(tmp_path, NO_LOGS[name], name)
    with pytest.raises(AdvisorError) as refused:
        table = read_run(path)
        assert not table.rows
        raise AdvisorError("no row", "so be it")
    assert refused.value.hint


def test_rows_under_the_name_of_a_known_program(tmp_path):
    """A program that its messages betray, but whose rows somebody wrote anew."""
    lines = ["[2024-01-01 00:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed is ready"]
    table = read_run(written(tmp_path, [*lines, *(STYLES["padded colon"].format(s=s, l=loss(s)) for s in STEPS)]))
    assert (table.rows, table.last_step) == (5, 400)


def declared():
    """Real logs that a declared line format reads, with what it gives; none where they are not here."""
    names = {format.name for format in line_formats()}
    for folder in (SHARED / "logs", SHARED / "logs2"):
        manifest = folder / "MANIFEST.csv"
        for row in csv.DictReader(manifest.open(encoding="utf-8")) if manifest.exists() else ():
            try:
                table = read_run(folder / row["file"])
            except AdvisorError:
                continue
            if table.format in names and table.rows:
                yield folder / row["file"], table


def ends(table):
    return tuple(repr(value) for value in (table.first_step, table.last_step, table.first_loss, table.last_loss))


@pytest.mark.long
def test_the_general_reader_gives_what_the_declared_ones_give():
    """Seventeen in twenty. What is left: steps without a loss, averages whose batches only DARTS' own reader knows,
    numbers without names, and a score that only Deeplearning4j calls its loss."""
    told = {format.name for format in line_formats() if format.steps_by_bar}  # bars tell the step: losses are compared
    found = [
        (path, ends(table)[2 * (table.format in told) :] == ends(GENERIC.read(path))[2 * (table.format in told) :])
        for path, table in declared()
    ]
    if not found:
        pytest.skip("the folders of real logs are not here")
    assert sum(same for _, same in found) >= 0.85 * len(found), [path.name for path, same in found if not same]


@pytest.mark.parametrize(
    "text, every, hours",
    [
        ("batch: {s}, time: 8.50, loss: {l:.4f}", 20, None),  # of a batch, or of twenty
        ("batch: {s}, time: 8.50, loss: {l:.4f}", 1, 8.5 * 26),
        ("batch: {s}, time: 850.0ms, loss: {l:.4f}", 20, 0.85 * 520),
        ("batch: {s}, time per step: 8.50, loss: {l:.4f}", 20, 8.5 * 520),
    ],
)
def test_a_time_that_may_be_of_one_step_or_of_many_is_not_taken(tmp_path, text, every, hours):
    lines = [text.format(s=n * every, l=8 - n / 8) for n in range(1, 27)]
    run = read_run(written(tmp_path, lines))
    assert (run.rows, run.last_step) == (26, 26.0 * every)
    assert spent_seconds(make_case(run)) == (None if hours is None else pytest.approx(hours, rel=1e-6))


def test_the_year_of_a_date_is_no_time(tmp_path):
    lines = [
        f"[epoch:{e}/100] [loss:{1 / e:.4f}] [lr:0.0{90 - e}] [Time:[2022-08-28 00:{10 + e}:34]] [total time:0:02:27]"
        for e in range(1, 11)
    ]
    run = read_run(written(tmp_path, lines))
    assert run.rows == 10
    spent = spent_seconds(make_case(run))
    assert spent is None or spent < 3600


def test_an_error_that_falls_is_a_loss(tmp_path):
    lines = [f"Iteration = {s}\t Error = {2.5 - s / 4000:.6f} \n" for s in range(100, 4100, 100)]
    run = read_run(written(tmp_path, lines))
    assert (run.first_step, run.last_step, run.first_loss, run.last_loss) == (100.0, 4000.0, 2.475, 1.5)


def test_epochs_with_their_time_add_up(tmp_path):
    """The bar is of loading the data; 29 epochs of 400 s and one of 2000 are what it took."""
    lines = ["Loading Data: 100%|████| 84/84 [00:09<00:00,  9.02it/s]"]
    for e in range(1, 31):
        lines += [f"INFO:Trainer:Epoch [{e}/30] Train: {1 / e:.4f} | Val: {1.1 / e:.4f} | {2000 if e == 9 else 400}.0s"]
        lines += ["INFO:Trainer:--> New Best Model Saved! (Loss: 0.1481)"] * (e % 3 == 0)
    run = read_run(written(tmp_path, lines))
    assert (run.rows, run.first_step, run.last_step, run.first_loss) == (30, 1.0, 30.0, 1.0)
    assert run.column("eval_loss")[0] == 1.1 and run.status is Status.COMPLETED
    assert spent_seconds(make_case(run)) == 29 * 400.0 + 2000.0


def test_a_usage_error_is_how_a_program_failed(tmp_path):
    run = read_run(
        written(tmp_path, ["usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --steps 2"])
    )
    assert run.rows == 0 and run.status is Status.CRASHED


def test_a_command_mistyped_after_the_end_ends_nothing(tmp_path):
    lines = [*(f"step {s} loss {loss(s)}" for s in STEPS), "INFO: Training complete.", "$ a", "a: command not found"]
    assert read_run(written(tmp_path, lines)).status is Status.COMPLETED


def test_deeplearning4j(tmp_path):
    lines = [
        f"06:38:{s // 10}.402 [main] INFO org.x.ScoreIterationListener - Score at iteration {s} is {loss(s)}"
        for s in STEPS
    ]
    run = read_run(written(tmp_path, lines))
    assert (run.framework, run.first_step, run.last_step, run.last_loss) == ("Deeplearning4j", 0.0, 400.0, loss(400))


def test_stable_baselines_tables(tmp_path):
    table = ["| rollout/  |   |", "|    ep_rew_mean     | {r}     |", "| time/ |  |"]
    table += ["|    time_elapsed    | {t}       |", "|    total_timesteps | {s}     |"]
    learnt = ["| train/ |  |", "|    learning_rate   | 0.0003   |", "|    loss            | {l}   |", "-" * 30]
    lines = [
        line.format(r=i * 2.5, t=i * 9, s=i * 2048, l=9.0 / i)
        for i in range(1, 5)
        for line in (table + learnt * (i > 1))
    ]
    run = read_run(written(tmp_path, lines))
    assert run.columns["step"].tolist() == [2048.0, 4096.0, 6144.0, 8192.0]
    assert run.columns["loss"].tolist()[1:] == [4.5, 3.0, 2.25] and run.columns["reward"][3] == 10.0
    assert run.columns["elapsed_seconds"].tolist() == [9.0, 18.0, 27.0, 36.0]


def test_a_sentence_says_its_loss(tmp_path):
    lines = [f"{s}/600 in 1 epoch, Loss is {loss(s):.4f} Acc is 0.5" for s in STEPS]
    table = read_run(written(tmp_path, lines))
    assert (table.first_step, table.first_loss, table.last_loss) == (0, loss(0), loss(400))


def test_few_epochs_that_begin_again(tmp_path):
    lines = [f"Epoch: {e:3d} | T_Loss {6 - 0.5 * e:.3f} | T_acc 0.1" for e in (1, 2, 3, 1)]
    table = read_run(written(tmp_path, lines))
    assert [(run.first_step, run.last_step) for run in table.runs] == [(1, 3), (1, 1)]


def test_a_bar_whose_end_is_not_known(tmp_path):
    bars = [f"{s}it [{s // 60:02d}:{s % 60:02d},  1.00s/it]" for s in range(60, 241, 20)]
    table = read_run(written(tmp_path, ["training the encoder", "\r".join(bars)]))
    assert (table.first_step, table.last_step) == (60, 240)
    assert spent_seconds(make_case(table)) == 240


def test_bars_with_losses_are_no_table(tmp_path):
    bars = [f"Epochs:  {n}%|##   | {n}/100 [00:{n}<03:10, 1.2s/it, t_loss={loss(n):.3f}, f1=0.9]" for n in (30, 40, 50)]
    table = read_run(written(tmp_path, ["\r".join([*bars, "Epochs:   0%|   | 0/100 [00:00<?, ?it/s]"])], "run.txt"))
    assert (table.first_loss, table.last_loss) == (round(loss(30), 3), round(loss(50), 3))


def test_two_epochs_without_a_number_in_the_end_are_a_run_that_diverged(tmp_path):
    lines = [f"Epoch {e}, Loss: {'nan' if e > 4 else loss(e)}" for e in range(1, 7)]
    assert read_run(written(tmp_path, lines)).status is Status.DIVERGED
    assert read_run(written(tmp_path, lines[:5], "once.log")).status is Status.INCOMPLETE


def test_an_epochs_own_time_holds_what_lies_between_its_steps(tmp_path):
    lines = []
    for epoch in (1, 2):
        lines += [
            f"Epoch {epoch} | Batch {b}/300 | Time/Batch(ms) 100.0 | Train Loss {3 - b / 900}" for b in (100, 200)
        ]
        lines.append(f"Epoch {epoch} | Time 90.5 sec | Train Loss 2.5 | Valid Loss 2.25")
    assert spent_seconds(make_case(read_run(written(tmp_path, lines)))) == pytest.approx(181)


def test_thousands_of_blanks_between_a_name_and_nothing_take_no_time():
    began = time.process_time()
    for start in (b"loss", b"loss is", b"step -"):
        assert slots(start + b" " * 4000) == []
    assert time.process_time() - began < 1  # seconds; nine before


def test_minutes_since_the_start_at_a_lines_end_are_minutes(tmp_path):
    lines = [f"step {10 * n}/900  loss {9 - n / 10:.4f}  lr 3.00e-05  |g| 0.83  {0.2 * n:.1f}m" for n in range(1, 13)]
    run = read_run(written(tmp_path, lines))
    assert run.column("elapsed_seconds").tolist() == pytest.approx([12.0 * n for n in range(1, 13)])


def test_train_beside_heldout_is_the_loss(tmp_path):
    lines = [f"[fit] epoch {n:3d}/40  train={35 / n:.4f}  heldout={40 / n:.4f}  lr=1.50e-04" for n in range(1, 9)]
    run = read_run(written(tmp_path, [*lines, "[fit] early stop after 8 epochs (no improvement for 6)"]))
    assert run.column("loss").tolist() == pytest.approx([35 / n for n in range(1, 9)], abs=1e-4)
    assert run.column("eval_loss")[-1] == pytest.approx(5.0)
    assert run.status is Status.COMPLETED


def test_a_counter_may_stand_before_its_name(tmp_path):
    lines = [
        f"2020-04-27 {9 + n:02d}:00:00,525 - root - INFO - {n} epoch, loss: {1 / n:.4f}, lr: 0.1" for n in range(1, 9)
    ]
    run = read_run(written(tmp_path, [*lines, "2020-04-27 18:00:00,689 - root - INFO - Model trained"]))
    assert (run.first_step, run.last_step) == (1, 8) and run.status is Status.COMPLETED


def test_a_pause_of_five_epoch_is_no_counter():
    assert not [slot for slot in slots(b"after 5 epoch of warm-up the loss is read") if slot.name == "epoch"]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02 10:00:00,001 [INFO] reading the dataset\n2026-01-02 10:00:01,500 [INFO] Training model\n"
        "2026-01-02 10:00:09,000 [INFO] class weights for the device\n",
        "Epoch 3/90 train:  12%|#2        | 40/330 [00:11<01:21,  3.6it/s]",
    ],
)
def test_a_training_begun_behind_a_stamp_or_under_a_bar_is_incomplete(tmp_path, text):
    (tmp_path / "out.log").write_text(text)
    table = read_run(tmp_path / "out.log")
    assert table.status is Status.INCOMPLETE and not table.rows


def test_a_total_in_brackets_behind_the_last_row_ends_the_run(tmp_path):
    rows = [f"step {n} | loss {4 - n / 500:.4f}" for n in range(0, 1001, 100)]
    (tmp_path / "l.log").write_text("\n".join(rows) + "\nsaved to out/model.npz  (414s total)\n")
    table = read_run(tmp_path / "l.log")
    assert table.status is Status.COMPLETED


@pytest.mark.parametrize(
    "text, unit",
    [
        ("[Epoch {s}/500] [D loss: {l:.3f}] [G loss: 0.680]", "one of several losses"),
        (
            "iter {s} - Children class: 0.693 - Autoencoder Loss (total): {l:.3f} - Consistency Loss: -3.5",
            "one of several losses",
        ),
        ("iter {s} recon_loss {l:.3f} kl_loss 2.1 loss 2.4", None),
        ("Iters: {s} || Task Loss: {l:.4f} || KD Loss: 1.6", None),
    ],
)
def test_a_loss_that_is_trained_beside_others_is_said_to_be_one_of_several(tmp_path, text, unit):
    run = read_run(written(tmp_path, [text.format(s=s, l=loss(s)) for s in STEPS]))
    assert run.facts.get("loss_unit") == unit
    assert len(run.column("loss")) == len(STEPS)


def test_a_fine_tuning_behind_a_training_is_no_restart_of_it(tmp_path):
    """The first prints from step 0, the second from step 1; one wrote 60 steps, the other 30."""
    rows = [f"step {s:05d} | loss: {9 - s / 20:.4f}" for s in range(60)]
    rows += [f"step {s:05d} | loss: {1 - s / 100:.4f}" for s in range(1, 31)]
    run = read_run(written(tmp_path, rows))
    ended = [(part.first_step, part.last_step, part.first_loss, part.last_loss) for part in run.runs]
    assert ended == [(0.0, 59.0, 9.0, 6.05), (1.0, 30.0, 0.99, 0.7)]


def test_a_restart_from_a_checkpoint_goes_on_with_its_run(tmp_path):
    rows = [f"step {s:05d} | loss: {9 - s / 20:.4f}" for s in (*range(60), *range(41, 90))]
    run = read_run(written(tmp_path, rows))
    assert [(part.first_step, part.last_step, part.starts) for part in run.runs] == [(0.0, 89.0, 2)]


@pytest.mark.parametrize(
    "text, count, seconds",
    [
        ("Iter: {s:6}, Train Loss: {l:5.2}, Val Acc: 89.44%,  Time: {h}:{m:02d}:17 *", 100, 4 * 3600 + 10 * 60 + 17),
        ("iter {s} loss {l} | elapsed time = {h}:{m:02d}:17", 100, 4 * 3600 + 10 * 60 + 17),
        ("iter {s} loss {l} time 0:00:05", 100, None),  # of a step or of several
        ("iter {s} loss {l} remaining time: {h}:{m:02d}:17", 100, None),
        ("epoch {e} loss {l} time: 1:00:0{d}", 1, 25 * 3600 + 60),  # of each epoch
    ],
)
def test_clocks_beside_rows(tmp_path, text, count, seconds):
    """25 rows ten minutes apart: at 0:10:17, at 0:20:17, …; epochs of an hour and 1, 2, 3, 4, 2, 1, 2, … seconds."""
    more = [1, 2, 3, 4, 2] * 5
    rows = [text.format(s=n * count, e=n, l=8 - n / 8, h=n // 6, m=n % 6 * 10, d=more[n - 1]) for n in range(1, 26)]
    run = read_run(written(tmp_path, rows))
    assert run.rows == 25
    assert spent_seconds(make_case(run)) == seconds


def test_a_test_that_sums_up_its_own_time_is_not_the_run(tmp_path):
    rows = [f"Iter: {100 * n}, Train Loss: {8 - n / 8}, Time: 0:{n:02d}:00" for n in range(1, 26)]
    run = read_run(written(tmp_path, ["Time usage: 0:00:41", *rows, "Time usage: 0:00:35"]))
    assert spent_seconds(make_case(run)) == 25 * 60


def test_times_that_only_rise_beside_epochs_are_those_since_the_start(tmp_path):
    rows = [f"epoch= {n} \t time= {0.125 * (n + 1)} min \t loss= {2 / (n + 1):.4f}" for n in range(40)]
    run = read_run(written(tmp_path, rows))
    assert spent_seconds(make_case(run)) == 5 * 60


def test_a_unit_in_a_cell_of_its_own(tmp_path):
    head = "Epoch    Train Loss   Train Acc    Test Loss    Test Acc     Time    "
    rows = [f"{n:<9}{3 / n:<13.4f}0.2771       {4 / n:<13.4f}0.2771       0.55    s" for n in range(1, 11)]
    run = read_run(written(tmp_path, [head, "-" * 70, *rows]))
    assert (run.rows, run.last_step, run.first_loss, run.last_loss) == (10, 10.0, 3.0, 0.3)
    assert run.column("eval_loss")[0] == 4.0


def test_two_bare_columns_are_of_no_trainer(tmp_path):
    run = read_run(written(tmp_path, [f"{n}\t{11.8 / n:.6f}" for n in range(1, 60)]))
    assert (run.rows, run.first_loss, run.framework) == (59, 11.8, None)
    assert run.facts["loss_unit"] == "a number without a name"


@pytest.mark.parametrize("text, head", [("[{s}/800] loss={l:.4f} gpu_mem=31.2GiB it/s=4.0", ""),
                                        ("    {s:4}  {l:.4f}  0.250", "    iter  train_nll  sec/it")])  # fmt: skip
def test_rates_under_their_unit(tmp_path, text, head):
    rows = [text.format(s=20 * n, l=9 / n) for n in range(1, 30)]
    run = read_run(written(tmp_path, [head, *rows]))
    assert (run.rows, run.column("seconds").tolist()) == (29, [0.25] * 29)


FORMS = rows_of_file("slots")["rows"]


@pytest.mark.parametrize("row", FORMS, ids=[row["example"] for row in FORMS])
def test_each_form_of_a_number_reads_its_example(row):
    line = row["example"].encode()
    found = {slot.name: line[slot.start : slot.end].decode() for slot in slots(line)}
    assert found == row["gives"]
    parts = {"LOSS": LOSS.decode(), **rows_of_file("slots")["parts"]}
    assert re.search(filled(row["pattern"], parts).encode(), line), "another row reads it"
