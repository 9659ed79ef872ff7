"""Tables of runs: names and units of columns, sparse rows, odd line ends, headers or none, torn and repeated rows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.readers import csv_table
from advisor.readers.cells import number_with_unit, plain_numbers, unix_times
from advisor.readers.names import column_of, in_unit
from advisor.readers.read import read_run
from advisor.readers.run_table import Status

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("Step Time (ms)", "seconds"),
        ("train/loss", "loss"),
        ("val_loss", "eval_loss"),
        ("loss/val", "eval_loss"),
        ("eval_g0_loss", "eval_loss"),
        ("lm loss validation", "eval_loss"),
        ("tok/s", "tokens_per_second"),
        ("tok_per_sec", "tokens_per_second"),
        ("GradNorm", "grad_norm"),
        ("lr-AdamW/pg1", "learning_rate"),
        ("memory/max_reserved(GiB)", "reserved_bytes"),
        ("VRAM (MB)", "memory_bytes"),
        ("it/s", "seconds"),
        ("_runtime", "elapsed_seconds"),
        ("trainer/global_step", "step"),
        # promises, per-epoch summaries of other things and other losses are not what was measured
        ("Expected Loss", None),
        ("best_val_loss", None),
        ("GPU%", None),
        ("perplexity", None),
        ("memory (%)", None),
        ("lrm", "learning_rate_share"),
        ("val_acc", "eval_accuracy"),
        ("train/top1", "accuracy"),
        ("mean_token_accuracy", "accuracy"),
        ("val/reward", "eval_reward"),
        ("rollout/ep_rew_mean", "reward"),
        ("Mean Reward 50", "reward"),
        ("avg_return_last_25_episodes", "reward"),
        ("reward_50", None),  # may be that of an agent
        ("global batch size", "step_samples"),
        ("x" * 200, None),
    ],
)
def test_column_names(name, column):
    found = column_of(name)
    assert (found.column if found else None) == column


def test_step_metrics_win_over_epoch_means(tmp_path):
    rows = "".join(f"9.5,{5 - n / 10},{n},{10 * n}\n" for n in range(1, 9))
    (tmp_path / "a.csv").write_text(f"train_loss_epoch,train_loss_step,_step,global_step\n{rows}")
    table = read_run(tmp_path / "a.csv")
    assert (table.first_loss, table.last_step) == (4.9, 80)


@pytest.mark.parametrize(
    ("name", "printed", "value"),
    [
        ("dt_ms", 250.0, 0.25),
        ("total_time_min", 2.0, 120.0),
        ("it/s", 4.0, 0.25),
        ("mfu", 38.5, 0.385),
        ("mfu", 0.385, 0.385),
        ("mfu(%)", 0.9, 0.009),
        ("vram_gb", 1.0, 2**30),
        ("memory", 3399.0, 3399 * MIB),
        ("memory", 15.5, 15.5 * 2**30),
        ("memory", 8.5e9, 8.5e9),
    ],
)
def test_units(name, printed, value):
    assert in_unit(column_of(name), np.array([printed, printed]))[1] == pytest.approx([value, value])


def test_mfu_of_minus_one_was_not_collected():
    values = in_unit(column_of("mfu"), np.array([-1.0, 0.31]))[1]
    assert math.isnan(values[0]) and values[1] == 0.31


def test_a_column_called_time_is_told_by_its_values():
    named = column_of("time")
    assert in_unit(named, np.array([1.0, 2.5, 4.1]))[0] == "elapsed_seconds"
    assert in_unit(named, np.array([0.31, 0.30, 0.33]))[0] == "seconds"
    assert in_unit(named, np.array([1.7e9, 1.7e9 + 1, 1.7e9 + 2]))[0] == "unix_seconds"


def test_cells_with_separators_units_and_words():
    cells = ["3,901", " 22.89 W", "~2,184ms", "1e-3", "nan", "N/A", "", "[Not Supported]", "1:02:03", "-7"]
    numbers = plain_numbers(cells)
    assert numbers[[0, 1, 2, 3, 8, 9]].tolist() == [3901, 22.89, 2184, 0.001, 3723, -7]
    assert np.isnan(numbers[[4, 5, 6, 7]]).all()
    assert number_with_unit("5.5-6.0") is None  # a range
    assert number_with_unit("~17.4M") == (17.4, "M")


def test_times_of_all_kinds_are_unix_seconds():
    assert unix_times(["2026/03/01 10:00:00.500", "2026/03/01 10:00:01"]).tolist() == [1772359200.5, 1772359201.0]
    assert unix_times(["2026-03-01T10:00:00Z", "2026-03-01T11:00:00+01:00"]).tolist() == [1772359200.0] * 2
    assert unix_times(["1772359200000", "1772359200500"]).tolist() == [1772359200.0, 1772359200.5]


def test_nan_and_nothing_are_told_apart(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("step,loss,lr\n1,2.5,0.1\n2,,0.1\n3,NaN,0.1\n4,inf,0.1\n5,2.0,0.1\n")
    table = read_run(path)
    assert table.rows == 4  # step 2 printed no loss
    assert table.columns["loss_is_nan"].tolist()[2:] == [1, 2, 0]


@pytest.mark.parametrize("text", ["a,b\nc,d\n", "step;x\n1;2\n2;3\n", "{}", "\0\0\0,\0", "1,2\n3,4\n"])
def test_what_is_no_run_is_refused_in_words(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(AdvisorError):
        csv_table.read(path)


@given(st.text(max_size=60))
def test_any_name_has_an_answer(name):
    found = column_of(name)
    assert found is None or in_unit(found, np.array([1.0, 2.0]))[1].shape == (2,)


@given(st.lists(st.text(max_size=20), max_size=8))
def test_any_cell_has_an_answer(cells):
    assert len(plain_numbers(cells)) == len(cells)
    assert len(unix_times(cells)) == len(cells)


@given(st.floats(min_value=-1e12, max_value=1e12, allow_nan=False))
def test_numbers_come_back_with_separators(value):
    assert plain_numbers([f"{value:,.6f}"])[0] == pytest.approx(value, rel=1e-9, abs=1e-6)


ROWS = [{"step": 50, "loss": 1.5, "learning_rate": 1e-4}, {"step": 100, "loss": 1.25, "learning_rate": 5e-5}]
SUM = {"step": 105, "train_runtime": 420.5, "train_loss": 1.375}  # the Trainer's last row: its mean loss is no loss


def as_csv(rows):
    names = list(dict.fromkeys(name for row in rows for name in row))
    return "\n".join([",".join(names), *(",".join(str(row.get(name, "")) for name in names) for row in rows), ""])


def as_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("history.csv", as_csv([*ROWS, SUM])),
        ("log.jsonl", as_lines([*ROWS, SUM])),
        # the first line is of another kind
        ("log.jsonl", as_lines([{"event": "start", "version": "1.2"}, *ROWS, SUM])),
        ("log.jsonl", "# a run of today\n" + as_lines([*ROWS, SUM])),
        ("log.jsonl", as_lines([[1, 2], *ROWS, SUM])),
        ("trainer_state.json", json.dumps({"log_history": [*ROWS, SUM], "global_step": 105, "max_steps": 105})),
    ],
)
def test_a_row_that_sums_a_training_up_says_that_it_ended_and_how_long_it_took(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    run = read_run(path)
    assert (run.rows, run.first_step, run.last_step, run.first_loss, run.last_loss) == (2, 50, 100, 1.5, 1.25)
    assert run.column("learning_rate").tolist() == [1e-4, 5e-5]
    assert run.status is Status.COMPLETED
    assert (run.facts["total_seconds"], run.facts["planned_steps"]) == (420.5, 105)


def test_a_resumed_training_is_not_ended_by_the_sum_of_its_first_part(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(as_lines([*ROWS, SUM, {"step": 150, "loss": 1.125}]))
    run = read_run(path)
    assert run.status is Status.NO_END and run.last_step == 150


@pytest.mark.parametrize(
    ("names", "loss", "eval_loss"),
    [  # columns are 1, 2, 3 … in the first row
        ("train/giou_loss,train/cls_loss,val/giou_loss,val/cls_loss", 1, 3),
        ("train/cls_loss,train/box_loss,val/cls_loss,val/box_loss", 2, 4),  # box is the one that programs name first
        ("train/seg_loss,train/dfl_loss,val/dfl_loss,val/seg_loss", 1, 4),
        ("train/box_a,train/cls_a,val/cls_a,val/box_a", 1, 4),
    ],
)
def test_one_of_several_losses_is_read_for_both_sets_and_said_to_be_one(tmp_path, names, loss, eval_loss):
    path, own = tmp_path / "results.csv", names.split(",")[loss - 1]
    rows = "".join(
        f"{epoch:5d}, " + ", ".join(f"{place / epoch:8.4f}" for place in (1, 2, 3, 4)) + "\n" for epoch in (1, 2, 4)
    )
    path.write_text(", ".join(f"{name:>18}" for name in ("epoch", *names.split(","))) + "\n" + rows)
    run = read_run(path)
    assert run.column("loss").tolist() == [loss, loss / 2, loss / 4]
    assert run.column("eval_loss").tolist() == [eval_loss, eval_loss / 2, eval_loss / 4]
    assert run.facts["loss_unit"] in ("one of several losses", "box loss of a detector")
    assert f"the run has several losses: {own} is read" in run.notes


SETS = (("train", 0), ("val", 0.5))
LOSSES = [(10, 3.5), (20, 2.75), (30, 2.25)]  # of steps; validation's is half a nat more


@pytest.mark.parametrize(
    ("name", "text", "evaluated"),
    [
        # a word in each row says which data it is about
        ("log.csv", "step,split,loss\n" + "".join(f"{s},train,{x}\n{s},val_seen,{x + 0.5}\n" for s, x in LOSSES), True),
        (
            "log.jsonl",
            as_lines([{"step": s, "mode": m, "loss": x + d} for s, x in LOSSES for m, d in SETS]),
            True,
        ),
        ("log.jsonl", as_lines([{"step": s, "train": {"loss": x}, "val": {"loss": x + 0.5}} for s, x in LOSSES]), True),
        # exports of the pages of W&B, of two runs, and of TensorBoard
        (
            "wandb_export.csv",
            as_csv([{"Step": s, **{f"{r} - {m}{e}": x + 0.5 * (m != "loss") + 9 * (r == "b")
             for r in "ab" for m in ("loss", "val_loss") for e in ("", "__MIN", "__MAX")}} for s, x in LOSSES]),
            True,
        ),
        ("tag-train_loss.csv", "Wall time,Step,Value\n" + "".join(f"{1.7e9 + s},{s},{x}\n" for s, x in LOSSES), False),
        # a half is 0,5
        ("log.csv", "step;loss;lr\n" + "".join(f"{s};{x};{x}\n".replace(".", ",") for s, x in LOSSES), False),
    ],
)  # fmt: skip
def test_tables_as_pages_spreadsheets_and_own_scripts_write_them(tmp_path, name, text, evaluated):
    path = tmp_path / name
    path.write_text(text)
    run = read_run(path)
    assert list(zip(run.column("step"), run.column("loss"), strict=True)) == LOSSES
    assert (
        run.column("eval_loss").tolist() == [x + 0.5 for _, x in LOSSES]
        if evaluated
        else "eval_loss" not in run.columns
    )
    assert "loss_unit" not in run.facts and (run.first_loss, run.last_loss) == (3.5, 2.25)
    assert not any("not read" in note for note in run.notes)


@pytest.mark.parametrize("name", ["duration_min", "epoch_time_min", "Epoch time (min)"])
def test_minutes_of_each_epoch_in_a_table_that_counts_epochs(tmp_path, name):
    path = tmp_path / "epochs.csv"
    path.write_text(f"epoch,train_loss,{name}\n1,0.5,6.5\n2,0.4,6\n3,0.3,6.25\n4,0.2,6.25\n")
    run = read_run(path)
    column = run.columns["epoch_seconds" if "epoch_seconds" in run.columns else "seconds"]
    assert column.tolist() == [390, 360, 375, 375]
