"""LLaMA-Factory's log of JSON lines, trained and predicted, and JSON lines that are no log."""

from __future__ import annotations

import json

import pytest

from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.run_table import Status


def written(tmp_path, rows):
    path = tmp_path / "trainer_log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(step, **more):
    clock = {"elapsed_time": f"0:00:{step:02d}", "remaining_time": "0:01:00"}
    return {"current_steps": step, "total_steps": 20, **more, "percentage": 5.0 * step, **clock}


def test_a_training(tmp_path):
    rows = [row(step, loss=4 - step / 10, lr=1e-4, epoch=step / 20) for step in (5, 10, 15, 20)]
    table = read_run(written(tmp_path, [*rows, row(20, eval_loss=2.5)]))
    assert (table.format, table.rows, table.first_step, table.last_step) == ("llama_factory", 4, 5, 20)
    assert (table.first_loss, table.last_loss, table.facts["planned_steps"]) == (3.5, 2.0, 20)
    assert table.columns["elapsed_seconds"].tolist() == [5, 10, 15, 20] and table.columns["eval_loss"][-1] == 2.5
    assert table.status is Status.COMPLETED


def test_two_processes_write_one_file(tmp_path):
    losses = {5: (3.50, 3.49), 10: (3.0, 2.99), 15: (2.5, 2.49), 20: (2.0, 1.99)}
    table = read_run(written(tmp_path, [row(step, loss=loss) for step, both in losses.items() for loss in both]))
    assert table.columns["loss"].tolist() == [3.50, 3.0, 2.5, 2.0]  # those of the first


def test_a_prediction_has_steps_and_no_loss(tmp_path):
    table = read_run(written(tmp_path, [row(step) for step in (5, 10, 15, 20)]))
    assert (table.rows, table.first_step, table.last_step, table.first_loss) == (4, 5, 20, None)
    assert table.status is Status.COMPLETED


def test_json_lines_without_a_loss_say_what_they_hold(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps({"step": i, "question": "?", "answer": "!"}) + "\n" for i in range(3)))
    with pytest.raises(AdvisorError, match="none with a loss; their keys are step, question, answer"):
        read_run(path)
