"""How runs of many programs end and where they begin, each console in a few made-up lines of its style."""

from __future__ import annotations

import math

import pytest

from advisor.readers.read import read_run


def loss(number):
    return 6 - number / 8


def rows(line, first=1, of=6, every=1):
    """The line for each number, `{n}` it times `every`, `{l}` its loss and `{v}` a validation loss."""
    return [line.format(n=every * i, l=loss(i), v=loss(i) + 0.5) for i in range(first, first + of)]


def bar(label="", of=40, total=100, postfix=", loss={l:.4f}"):
    """A tqdm bar that shows each loss before it counts the step, and again when it has."""
    states = []
    for i in range(of):
        states += [
            f"{label}{n:3d}%|##| {n}/{total} [00:{n:02d}<01:00, 1.00it/s{postfix.format(l=loss(i))}]"
            for n in (i, i + 1)
        ]
    return ["\r".join(states)]


# name → (lines, first and last step, first and last loss, how it ended)
CONSOLES = {
    "Ray Tune": (
        rows(
            "Result for PPO_game_9_0:\n  episode_reward_mean: {n}.5\n  info:\n    learner:\n      default_policy:\n"
            "        total_loss: {l}\n  time_total_s: {n}.25\n  timesteps_total: {n}\n  training_iteration: 3\n"
            "  trial_id: '9_0'\n\n== Status ==\nNumber of trials: 1/1 (1 RUNNING)",
            every=4000,
        ),
        (4000, 24000, 5.875, 5.25, "incomplete"),
    ),
    "the end of a fine-tune, with a warning's line of code": (
        [
            "  Train Loss: 0.2, ACC: 0.9",
            "Training complete. Best val ACC: 0.9",
            "Loading test set...",
            "  state = torch.load(path)",
        ],
        (None, None, None, None, "completed"),
    ),
    "CatBoost": (
        [*rows("{n}:\tlearn: {l:.4f}\ttest: {v:.4f}\tbest: 5.1 (2)\ttotal: 1.2s\tremaining: 3s"), "", "bestTest = 5.1"],
        (1, 6, 5.875, 5.25, "completed"),
    ),
    "LightGBM, stopped early": (
        [
            *rows("[{n}]\ttraining's rmse: {l:.4f}\tvalid_1's rmse: {v:.4f}", every=10),
            "Early stopping, best iteration is:",
            "[30]\ttraining's rmse: 5.6250\tvalid_1's rmse: 6.1250",
        ],
        (10, 60, 5.875, 5.25, "completed"),
    ),
    "scikit-learn": (
        [
            *rows("Iteration {n}, loss = {l:.8f}"),
            "Training loss did not improve more than tol=0.0001 for 10 epochs. Stopping.",
        ],
        (1, 6, 5.875, 5.25, "completed"),
    ),
    "Marian": (
        [
            *rows(
                "[2024-03-01 22:0{n}:00] Ep. 1 : Up. {n} : Sen. 50,000 : Cost {l:.8f} : Time 58.12s : 12345.67 words/s"
            ),
            "[2024-03-01 22:07:00] [valid] Ep. 1 : Up. 6 : cross-entropy : 45.1 : new best",
            "[2024-03-01 22:07:09] Training finished",
        ],
        (1, 6, 5.875, 5.25, "completed"),
    ),
    "ESPnet": (
        [
            *rows(
                "[gpu01:0/1] 2024-03-01 22:0{n}:00,1 (trainer:7) INFO: {n}epoch:train:1-50batch: acc=0.3, loss={l:.3f}"
            ),
            "[gpu01:0/1] 2024-03-01 22:07:00,1 (trainer:458) INFO: The training was finished at 6 epochs ",
        ],
        (1, 6, 5.875, 5.25, "completed"),
    ),
    "OpenMMLab": (
        [
            "2024-03-01 22:00:02,000 - mmdet - INFO - workflow: [('train', 1)], max: 6 epochs",
            *rows(
                "2024-03-01 22:0{n}:00,1 - mmdet - INFO - Epoch [{n}][50/60]\tlr: 1e-3, loss_cls: 0.9, loss: {l:.4f}"
            ),
        ],
        (1, 6, 5.875, 5.25, "completed"),
    ),
    "an estimate that comes to nothing": (
        [
            f"[03/01 22:{i:02d}:00 d2.utils.events]: eta: 0:0{7 - i}:00  iter: {i * 20 - 1}  total_loss: {loss(i):.3f}"
            f"  loss_cls: 0.4"
            for i in range(1, 8)
        ],
        (19, 139, 5.875, 5.125, "completed"),
    ),
    "the whole before its parts": (
        rows("[Step {n}] ce_loss: 0.5 | kd_loss: 0.2 | total_loss: {l:.4f}", every=7),
        (7, 42, 5.875, 5.25, "incomplete"),
    ),
    "numbers gone, without a sign": (
        [
            *rows("Epoch {n}: train loss {l:.4f}, val loss {v:.4f}"),
            *(f"Epoch {n}: train loss nan, val loss nan" for n in range(7, 40)),
        ],
        (1, 39, 5.875, math.nan, "diverged"),
    ),
    "a test behind all evaluations": (
        [
            *rows("Epoch: {n:02} | Epoch Time: 0m 9s\n\tTrain Loss: {l:.3f} | Train PPL: 8.1\n\t Val. Loss: {v:.3f}"),
            "| Test Loss: 5.100 | Test PPL: 20.1 |",
        ],
        (1, 6, 5.875, 5.25, "completed"),
    ),
    "one epoch, summed up": (
        [
            "Train batches : 671",
            "Starting training for 300 epochs",
            "Epoch 27/300",
            "  Train Loss: 0.3 | Val Loss: 0.4 | DSC: 0.7",
        ],
        (27, 27, 0.3, 0.3, "incomplete"),
    ),
    "a batch of the only epoch": (
        ["Training for 1 epochs", *bar(of=20, postfix=", epoch=1, loss={l:.4f}")],
        (1, 20, 6.0, 3.625, "incomplete"),
    ),
    "a bar ahead of its losses": (bar(label="SFT: "), (1, 40, 6.0, 1.125, "incomplete")),
    "a bar alone": (
        [
            "Filtering prompts: 100%|##| 90/90 [09:00<00:00, 1.1s/it]",
            *(f"Training Progress:   0%|  | {i}/15625 [{i:02d}:00<99:00:00, 60.0s/it]\nsome text" for i in range(34)),
        ],
        (0, 33, None, None, "incomplete"),
    ),
    "a counter alone": (
        ["start training", *rows("(epoch: 1, iters: {n}00, data: 0.004) D_A: 0.3 G_A: {l:.3f}")],
        (100, 600, None, None, "incomplete"),
    ),
}


@pytest.mark.parametrize("name", CONSOLES)
def test_consoles(tmp_path, name):
    lines, (first, last, first_loss, last_loss, status) = CONSOLES[name]
    path = tmp_path / "run.log"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    table = read_run(path)
    assert (table.first_step, table.last_step, table.status) == (first, last, status), table.status_reason
    assert table.first_loss == first_loss
    assert table.last_loss == last_loss or (math.isnan(last_loss) and math.isnan(table.last_loss))


@pytest.mark.parametrize("last", [3000, 2987, 100])
def test_a_table_that_merely_ends_is_not_complete_because_its_last_step_is_round(tmp_path, last):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "".join(f"{n},{5 - n / 5000}\n" for n in range(1, last + 1)))
    assert read_run(path).status == "unknown"


def test_row_numbers_go_on_where_iterations_start_again(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("index,iteration,training_loss\n" + "".join(f"{n},{n % 7},{5 - n / 50}\n" for n in range(31)))
    table = read_run(path)
    assert (table.first_step, table.last_step, len(table.runs)) == (0, 30, 1)


def test_keras_3_prints_what_is_left_before_what_an_epoch_took(tmp_path):
    path = tmp_path / "a.log"
    lines = []
    for epoch, (running, whole) in enumerate([(0.46, 0.36), (0.21, 0.18), (0.13, 0.12)], 1):
        lines += [
            f"Epoch {epoch}/40",
            f"485/485 ━━━━━━━━━━━━━━━━━━━━ 0s 105ms/step - accuracy: 0.84 - loss: {running}",
            f"485/485 ━━━━━━━━━━━━━━━━━━━━ 52s 106ms/step - accuracy: 0.87 - loss: {whole} - val_loss: 0.5",
        ]
    path.write_text("\n".join(lines) + "\n")
    run = read_run(path)
    assert (run.first_loss, run.last_loss, run.rows) == (0.36, 0.12, 3)


def test_keras_without_a_bar_says_that_it_stops_before_its_last_epoch(tmp_path):
    """Two trainings of one script: 3 epochs of 3, then 2 of 3; each epoch has its seconds and no bar."""
    path = tmp_path / "a.log"
    row = "{s}s - loss: {l:.4f} - acc: 0.6 - val_loss: 0.5 - val_acc: 0.9\n"
    first = "".join(f"Epoch {n}/3\n" + row.format(s=3000 + n, l=2 - n / 4) for n in (1, 2, 3))
    then = "Epoch 1/3\n" + row.format(s=3100, l=0.9) + "Epoch 2/3\nEpoch 00001: early stopping\n"
    path.write_text(f"Train on 4000 samples\n{first}Train on 4000 samples\n{then}" + row.format(s=3200, l=0.8))
    run = read_run(path)
    assert (run.format, run.status) == ("keras", "completed")
    ended = [(part.status, part.first_loss, part.last_loss) for part in run.runs]
    assert ended == [("completed", 1.75, 1.25), ("completed", 0.9, 0.8)]
    assert run.columns["epoch_seconds"].tolist() == [3001.0, 3002.0, 3003.0, 3100.0, 3200.0]


def test_keras_with_verbose_2_of_old(tmp_path):
    path = tmp_path / "a.log"
    rows = "".join(f"Epoch {n}/20\n - 84{n}s - loss: {9 / n:.4f} - val_loss: 1.8339\n" for n in (1, 2, 3))
    path.write_text(rows)
    run = read_run(path)
    assert (run.last_step, run.column("epoch_seconds").tolist()) == (3.0, [841.0, 842.0, 843.0])
