"""Consoles of widespread programs and tutorials, each in a few made-up lines of its style."""

from __future__ import annotations

import json

import pytest

from advisor.readers.read import read_run


def loss(number):
    return 6 - number / 8


def epochs(*lines, of=6, first=0):
    """The lines for each epoch, `{e}` its number, `{l}` its loss and `{v}` a validation loss."""
    return [line.format(e=e, l=loss(e), v=loss(e) + 0.5) for e in range(first, first + of) for line in lines]


def steps(line, every=10):
    return [line.format(s=every * i, l=loss(i)) for i in range(6)]


# name → (lines, format, rows, first and last step, first and last loss)
BY_EPOCH = ("generic", 6, 0, 5, 6.0, 5.375)
BY_STEP = ("generic", 6, 0, 50, 6.0, 5.375)
WITHIN = ("generic", 12, 0, 5, 6.0, 5.375)  # steps that start again with every epoch: what goes on is the epoch
STYLES = {
    "Keras": (
        epochs(
            "Epoch {e}/9",
            "  1/469 [......] - ETA: 2:03 - loss: 9.1\b\b\b\b300/469 [===>..] - ETA: 1s - loss: 8.1",
            "469/469 [======] - 3s 6ms/step - loss: {l:.4f} - accuracy: 0.9 - val_loss: {v:.4f}",
        ),
        ("keras", *BY_EPOCH[1:]),
    ),
    "Keras 3": (
        epochs("Epoch {e}/9", "469/469 ━━━━━━ 3s 6ms/step - loss: {l:.4f} - val_loss: {v:.4f}"),
        ("keras", *BY_EPOCH[1:]),
    ),
    "YOLO": (
        epochs(
            "   Epoch  GPU_mem  box_loss  cls_loss",
            "   {e}/9  3.31G  {l:.4f}  0.03  0.01  35  640: 100%|███| 8/8 [00:05<00:00]",
        ),
        ("yolo", *BY_EPOCH[1:]),
    ),
    "Darknet": (steps(" {s}: 12.5, {l:.4f} avg loss, 0.001 rate, 3.2 seconds, 6400 images"), ("darknet", *BY_STEP[1:])),
    "PyTorch word model": (
        epochs(
            "| epoch   {e} |   200/ 400 batches | lr 5.00 | ms/batch 12.34 | loss  {l:.3f} | ppl  3456.78",
            "| epoch   {e} |   400/ 400 batches | lr 5.00 | ms/batch 12.34 | loss  {l:.3f} | ppl  3456.78",
            "| end of epoch   {e} | time: 12.34s | valid loss  {v:.3f} | valid ppl   244.1",
        ),
        WITHIN,
    ),
    "PyTorch CIFAR": (epochs("[{e},  2000] loss: {l:.3f}", "[{e},  4000] loss: {l:.3f}"), WITHIN),
    "DCGAN": (
        epochs("[{e}/9][0/1583]\tLoss_D: {l:.4f}\tLoss_G: 4.9", "[{e}/9][50/1583]\tLoss_D: {l:.4f}\tLoss_G: 4.9"),
        WITHIN,
    ),
    "OpenMMLab": (
        epochs(
            *(
                f"07/14 12:00:01 - mmengine - INFO - Epoch(train)  [{{e}}][ {b}/250]  lr: 2e-02  loss: {{l:.4f}}"
                for b in (50, 100)
            )
        ),
        WITHIN,
    ),
    "transfer tutorial": (
        epochs("Epoch {e}/9", "----------", "train Loss: {l:.4f} Acc: 0.7", "val Loss: {v:.4f} Acc: 0.8"),
        BY_EPOCH,
    ),
    "nnU-Net": (
        epochs(
            "2023-01-01 00:00:00.000000: Epoch {e} ", "train_loss {l:.4f} ", "val_loss {v:.4f} ", "Epoch time: 50.1 s "
        ),
        BY_EPOCH,
    ),
    "Flax": (steps("I0101 00:00:00.00 139 logging_writer.py:48] [{s}] accuracy=0.5, loss={l:.4f}"), BY_STEP),
    "OpenNMT": (steps("[2023-01-01 00:00:00,000 INFO] Step {s}/100000; acc: 4.2; xent: {l:.3f}; 12 sec;"), BY_STEP),
    "TensorFlow": (
        [
            *steps("INFO:tensorflow:loss = {l:.4f}, step = {s} (12.3 sec)"),
            "Saving dict for global step 50: global_step = 50, loss = 0.5",
        ],
        BY_STEP,
    ),
    "Stable-Baselines3": (
        steps(
            "| time/              |       |\n|    total_timesteps | {s}  |\n| train/             |       |\n"
            "|    loss            | {l:.3f} |\n|    value_loss      | 51.2  |"
        ),
        ("stable_baselines3", *BY_STEP[1:]),
    ),
    "spaCy": (
        [
            "E    #       LOSS TOK2VEC  LOSS NER  SCORE ",
            "---  ------  ------------  --------  ------",
            *steps("  0  {s:6d}  {l:12.3f}  0.15  0.00"),
        ],
        BY_STEP,
    ),
    "diffusers": (steps("Steps:   1%|▏    | {s}/1000 [00:12<20:00,  1.20s/it, lr=1e-5, step_loss={l:.3f}]"), BY_STEP),
    "NeMo": (
        steps("Training epoch 0, iteration {s}/99 | lr: 1e-05 | global_step: {s} | reduced_train_loss: {l:.4f}"),
        BY_STEP,
    ),
}


@pytest.mark.parametrize("name", STYLES)
def test_consoles(tmp_path, name):
    lines, expected = STYLES[name]
    path = tmp_path / "run.log"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    table = read_run(path)
    assert (table.format, table.rows, table.first_step, table.last_step, table.first_loss, table.last_loss) == expected


def test_columns_of_a_history_inside_a_document(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(
        json.dumps({"history": {"loss": [3, 2, 1.5], "val_loss": [3.1, 2.2, 1.9]}, "params": {"epochs": 3}})
    )
    table = read_run(path)
    assert table.columns["loss"].tolist() == [3, 2, 1.5] and table.columns["eval_loss"].tolist() == [3.1, 2.2, 1.9]


def test_a_counter_with_its_plan_in_json_lines(tmp_path):
    path = tmp_path / "logging.jsonl"
    path.write_text(
        "".join(json.dumps({"loss": 4 - i, "global_step/max_steps": f"{5 * i}/80"}) + "\n" for i in range(3))
    )
    assert read_run(path).columns["step"].tolist() == [0, 5, 10]
