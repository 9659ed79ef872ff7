"""The step of rows that print none: bars before, behind and around them, rows in late blocks, epochs and last words."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from advisor.readers.read import read_run
from advisor.readers.run_table import Status

BANNER = """***** Running training *****
  Num examples = {examples}
  Num Epochs = 2
  Total train batch size (w. parallel, distributed & accumulation) = 4
  Gradient Accumulation steps = 2
  Total optimization steps = {total}
"""


def bar(step, total, seconds=3.0):
    clock = f"{int(step * seconds) // 60:02}:{int(step * seconds) % 60:02}"
    return f"{100 * step // total:3}%|###       | {step}/{total} [{clock}<10:00,  {seconds:.2f}s/it]"


def row(step, each, **more):
    pairs = "".join(f", '{name}': {value}" for name, value in more.items())
    epoch = round(step / each, 2)
    return f"{{'loss': {3 - step / 1000:.4f}, 'grad_norm': 0.5, 'learning_rate': 1e-05{pairs}, 'epoch': {epoch}}}"


def quoted(step, each):
    return f"{{'loss': '{3 - step / 1000:.4g}', 'learning_rate': '1e-05', 'epoch': '{step / each:.4g}'}}"


def total(seconds, steps, epoch):
    return f"{{'train_runtime': {seconds}, 'train_steps_per_second': {steps / seconds:.3f}, 'epoch': {epoch}}}\n"


def redrawn(steps, of, every, text=row):
    """As tqdm and the Trainer write to one terminal: the bar is taken away for a row and drawn anew behind it."""
    out = ""
    for step in range(1, steps + 1):
        out += "\r" + bar(step, of)
        if step % every == 0:
            out += "\r" + " " * 40 + "\r" + text(step, of / 2) + "\n\r" + bar(step, of)
    return out + "\n"


def in_blocks(steps, of, every, block, text=row):
    """As a file gets it: bars at once, each drawn again where a row was printed, the rows in blocks, late."""
    out, waiting = "", ""
    for step in range(1, steps + 1):
        out += "\r" + bar(step, of)
        if step % every == 0:
            out += "\r" + " " * 40 + "\r" + bar(step, of)
            waiting += text(step, of / 2) + "\n"
        if waiting.count("\n") == block:
            out, waiting = out + "\r" + waiting, ""
    return out + "\n" + waiting


def with_evaluations(steps, of, every):
    out = ""
    for step in range(1, steps + 1):
        out += "\r" + bar(step, of)
        if step % every == 0:
            out += "\r" + row(step, of / 2) + "\n\r" + bar(step, of)
        if step % (of // 2) == 0:
            out += "".join("\n\r" + bar(n, 9, 0.1) + "\x1b[A" for n in range(10))
            out += f"\r{{'eval_loss': 2.5, 'eval_runtime': 0.9, 'epoch': {step // (of // 2)}.0}}\n\r" + bar(step, of)
    return out + "\n"


CONSOLES = {
    "bars around the rows": (redrawn(70, 200, 7), 7, 70, 10),
    "evaluation bars within": (with_evaluations(200, 200, 25), 25, 200, 8),
    "rows late in blocks, to the end": (in_blocks(300, 300, 20, 4) + total(900.0, 300, 2.0), 20, 300, 15),
    "quoted values": (in_blocks(240, 240, 12, 6, quoted) + total(720.0, 240, 2), 12, 240, 20),
    "a bar before each row, drawn late": (
        "".join(bar(s - 1, 900) + row(s, 450) + "\n" + bar(s + 1, 900) + "\n" for s in range(30, 601, 30)),
        30,
        600,
        20,
    ),
    "a bar behind each row": (
        "".join(row(s, 4850) + "\n  " + bar(s, 9700) + "\n" for s in range(10, 411, 10)),
        10,
        410,
        41,
    ),
    "epochs alone, and the sum": (
        "".join(row(s, 324) + "\n" for s in range(5, 649, 5)) + total(1300.0, 648, 2.0),
        5,
        645,
        129,
    ),
    "the banner alone": (
        BANNER.format(examples="1,296", total=648) + "".join(row(s, 324) + "\n" for s in range(20, 301, 20)),
        20,
        300,
        15,
    ),
    "the first step too": (
        "".join(row(s, 480) + "\n" for s in (1, *range(8, 481, 8))) + total(960.0, 480, 1.0),
        1,
        480,
        61,
    ),
    "every row twice": (
        "".join(f"[INFO] {row(s, 200)}\n{row(s, 200)}\n" for s in range(10, 201, 10)) + total(400.0, 200, 1.0),
        10,
        200,
        20,
    ),
    "a count beside its end": (
        "".join(row(s, 200, **{"global_step/max_steps": f"'{s}/400'"}) + "\n" for s in (1, 5, 10, 15)),
        1,
        15,
        4,
    ),
    "printed arguments": (
        "TrainingArguments(\nlogging_steps=15,\nmax_steps=-1,\n)\n"
        + "".join(row(s, 977) + "\n" for s in range(15, 300, 15)),
        15,
        285,
        19,
    ),
}


@pytest.mark.parametrize("name", CONSOLES)
def test_each_row_has_its_step(tmp_path, name):
    text, first, last, rows = CONSOLES[name]
    (tmp_path / "train.log").write_text(text)
    table = read_run(tmp_path / "train.log")
    steps = table.column("step")[np.isfinite(table.column("loss"))]
    assert (table.counts_steps, table.first_step, table.last_step, len(np.unique(steps))) == (True, first, last, rows)
    assert np.allclose(table.column("loss")[np.isfinite(table.column("loss"))], 3 - steps / 1000, atol=5e-3)


UNTOLD = {
    "no bar, no end": "".join(row(s, 977) + "\n" for s in range(10, 300, 10)),
    # a run of 1,000 steps that stopped early: its last words know how many there were to be, not where it stopped
    "stopped early": "".join(row(s, 977) + "\n" for s in range(10, 311, 10)) + total(3000.0, 1000, 0.32),
    "stopped by its evaluations": "".join(
        row(s, 200) + "\n" + (f"{{'eval_loss': 2.5, 'epoch': {s / 200}}}\n" if s % 200 == 0 else "")
        for s in range(10, 1001, 10)
    )
    + total(3000.0, 2000, 5.0),
    "a few rows of many": "".join(row(s, 15) + "\n" for s in (1, 2))
    + "...\n"
    + row(45, 15)
    + "\n"
    + total(45.0, 45, 3.0),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_no_row_has_the_number_of_its_row_for_a_step(tmp_path, name):
    (tmp_path / "train.log").write_text(UNTOLD[name])
    table = read_run(tmp_path / "train.log")
    assert not table.counts_steps and table.first_step is None and table.last_step is None


def test_evaluations_stand_at_their_own_steps(tmp_path):
    (tmp_path / "train.log").write_text(with_evaluations(200, 200, 40))
    table = read_run(tmp_path / "train.log")
    assert table.column("step")[np.isfinite(table.column("eval_loss"))].tolist() == [100, 200]
    assert table.facts["planned_steps"] == 200


def test_two_trainings_in_one_log_each_have_their_own(tmp_path):
    first = in_blocks(300, 300, 20, 4) + total(900.0, 300, 2.0)
    second = in_blocks(80, 80, 4, 30) + total(240.0, 80, 2.0)
    (tmp_path / "train.log").write_text(first + second)
    runs = read_run(tmp_path / "train.log").runs
    assert [(run.first_step, run.last_step) for run in runs] == [(20, 300), (4, 80)]


def notebook(path, *outputs, source="trainer.train()"):
    cell = {"cell_type": "code", "source": [source], "metadata": {}, "outputs": list(outputs), "execution_count": 1}
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}))
    return path


def shown(progress, head, *rows):
    cells = "".join("<tr>" + "".join(f"<td>{value}</td>" for value in row) + "</tr>" for row in rows)
    names = "".join(f"<th>{name}</th>" for name in head)
    page = f"<div><progress value='1' max='2'></progress>\n {progress}\n</div>\n<table border='1' class='dataframe'>"
    page += f"<thead><tr style='text-align: left;'>{names}</tr></thead><tbody>{cells}</tbody></table><p>"
    return {"output_type": "display_data", "data": {"text/html": [page], "text/plain": ["<HTML object>"]}}


def test_a_notebook_is_read_as_what_it_printed(tmp_path):
    head = ("Step", "Training Loss", "Validation Loss", "Wer")
    rows = [(50 * n, f"{2 - n / 10:.6f}", f"{2.2 - n / 10:.6f}", "41.5") for n in range(1, 8)]
    table = shown("[ 361/900 12:10 < 18:10, 0.49 it/s, Epoch 0.80/2]", head, *rows)
    stopped = {"output_type": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": ["if loss is nan"]}
    found = read_run(notebook(tmp_path / "train.ipynb", table, stopped))
    assert (found.first_step, found.last_step, found.rows, found.last_loss) == (50, 350, 7, 1.3)
    assert np.allclose(found.column("eval_loss"), [2.2 - n / 10 for n in range(1, 8)])
    assert (found.facts["planned_steps"], found.status) == (900, Status.STOPPED)


def test_a_notebooks_table_of_epochs_has_steps(tmp_path):
    rows = [(n, f"{2 - n / 10:.6f}", f"{2.2 - n / 10:.6f}") for n in (1, 2, 3)]
    table = shown("[1203/1203 13:36, Epoch 3/3]", ("Epoch", "Training Loss", "Validation Loss"), *rows)
    found = read_run(notebook(tmp_path / "train.ipynb", table))
    assert found.column("step").tolist() == [401, 802, 1203] and found.status is Status.COMPLETED


SETTINGS = {
    "a line each": "args = TrainingArguments(\n    # logging_steps=1,\n    logging_steps=25,\n)",
    "one line": "args = TrainingArguments(num_train_epochs=3, logging_steps=25, max_steps=9_000)  # logging_steps=1",
    "thousands": "args = TrainingArguments(max_steps=9e3, logging_steps=2_5)",
}


@pytest.mark.parametrize("source", SETTINGS.values(), ids=SETTINGS)
def test_a_notebooks_own_settings_count_its_rows(tmp_path, source):
    printed = {"output_type": "stream", "name": "stdout", "text": [row(n, 9000) + "\n" for n in range(25, 501, 25)]}
    found = read_run(notebook(tmp_path / "train.ipynb", printed, source=source))
    assert (found.first_step, found.last_step, found.rows) == (25, 500, 20)


@pytest.mark.parametrize("unclosed", ["<tr>x", "<td>x", "<tr><td>1", "i<tr;"])
def test_a_notebook_of_unclosed_cells_is_read_in_time(tmp_path, unclosed):
    page = {"output_type": "display_data", "data": {"text/html": [unclosed * 40_000], "text/plain": ["x"]}}
    printed = {"output_type": "stream", "name": "stdout", "text": [row(n, 100) + "\n" for n in range(10, 201, 10)]}
    began = time.process_time()
    assert read_run(notebook(tmp_path / "train.ipynb", page, printed)).rows == 20
    assert time.process_time() - began < 20


def test_numbers_with_two_points_are_no_sum(tmp_path):
    lines = [row(n, 100) for n in range(10, 201, 10)]
    lines += ["{'train_runtime': 1.2.3, 'train_steps_per_second': 1.2.3}", "'train_runtime': 1 " * 8_000]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    began = time.process_time()
    assert read_run(tmp_path / "train.log").rows == 20
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "line",
    ["{'train_runtime': 3.0, 'train_steps_per_second': " + "9" * 400 + ".0}",
     "***** Running training *****\n  Num examples = " + "9" * 400 + "\n  Total train batch size = 8"],
)  # fmt: skip
def test_a_number_beyond_all_numbers_is_none(tmp_path, line):
    (tmp_path / "train.log").write_text("\n".join([line, *(row(n, 100) for n in range(10, 201, 10)), line]) + "\n")
    assert read_run(tmp_path / "train.log").rows == 20
