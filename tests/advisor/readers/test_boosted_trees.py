"""XGBoost and LightGBM: rounds, of which the best is printed once more; any of their sets and losses."""

from __future__ import annotations

import pytest

from advisor.readers.read import read_run
from advisor.readers.run_table import Status


def read(tmp_path, *lines: str):
    path = tmp_path / "fit.log"
    path.write_text("\n".join(lines) + "\n")
    return read_run(path)


@pytest.mark.parametrize(
    ("line", "columns"),
    [
        ("[{i}]\ttrain-logloss:{x}\teval-logloss:{y}", {"loss", "eval_loss"}),
        ("[12:00:{i}] [{i}]\ttrain-auc:0.7\ttrain-rmse:{x}\tvalid-auc:0.6\tvalid-rmse:{y}", {"loss", "eval_loss"}),
        ("[{i}]\ttraining's binary_logloss: {x}\tvalid_1's binary_logloss: {y}", {"loss", "eval_loss"}),
        ("[{i}]\tvalidation_0-mlogloss:{y}", {"eval_loss"}),
        ("[{i}]\tvalid_0's auc: 0.7\tvalid_0's l2: {y}", {"eval_loss"}),
    ],
)
def test_a_round_is_a_step_with_its_losses(tmp_path, line, columns):
    run = read(tmp_path, *(line.format(i=i, x=1 / i, y=2 / i) for i in range(10, 60, 10)))
    assert (run.format, run.rows, run.first_step, run.last_step) == ("boosted_trees", 5, 10, 50)
    assert columns == {"loss", "eval_loss"} & set(run.columns)
    assert run.column("eval_loss").tolist() == [2 / i for i in range(10, 60, 10)]
    assert run.first_loss == (0.1 if "loss" in columns else 0.2)


def test_the_best_round_printed_again_is_no_restart(tmp_path):
    rounds = [f"[{i}]\ttraining's l2: {1 / i}\tvalid_1's l2: {2 / i}" for i in range(100, 600, 100)]
    run = read(tmp_path, *rounds, "Early stopping, best iteration is:", rounds[2])
    assert (run.last_step, len(run.runs), run.status) == (500, 1, Status.COMPLETED)
    assert not [event for event in run.events if event.kind == "restart"]
