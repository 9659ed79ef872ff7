"""Logs of training frameworks: what each recording holds, traps included, comes out in the columns' units."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from advisor.readers.formats import line_formats
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable, Status

LOGS = Path(__file__).parents[1] / "recorded" / "logs"
NAN = math.nan


def _values(table: RunTable, name: str) -> list[float]:
    return table.column(name).tolist()


def _same(found: list[float], wanted: list[float]) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def _kinds(table: RunTable) -> list[str]:
    return [event.kind for event in table.events]


# file → format, rows, first and last step, first and last loss, status
READ = {
    "megatron_skipped.out": ("megatron", 4, 10, 40, None, 8.25, Status.KILLED),
    "megatron_all_skipped.out": ("megatron", 2, 1, 2, None, None, Status.INCOMPLETE),
    "megatron_deepspeed.out": ("megatron", 2, 1, 2, 12.44238, 11.5, Status.INCOMPLETE),
    "megatron_core.out": ("megatron", 4, 1, 4, 10.5, 7.5, Status.COMPLETED),
    "gpt_neox.log": ("gpt_neox", 2, 10, 20, 10.7812, 9.5, Status.INCOMPLETE),
    "deepspeed_pipeline.log": ("deepspeed", 3, 10, 30, 8.25, 6.25, Status.INCOMPLETE),
    "deepspeed_hf_no_loss.log": ("deepspeed_hf", 0, None, None, None, None, Status.COMPLETED),
    "hf_epochs.log": ("hf_stdout", 6, None, None, 2.5, 1.5, Status.COMPLETED),
    "hf_strings_nan.log": ("hf_stdout", 4, 10, 40, 3.5, NAN, Status.DIVERGED),
    "hf_crash.log": ("hf_stdout", 0, None, None, None, None, Status.CRASHED),
    "trl_dpo.log": ("trl", 3, None, None, 0.6931, 0.5, Status.INCOMPLETE),
    "axolotl.log": ("axolotl", 2, 1, 2, 4.75, 2.0312, Status.OUT_OF_MEMORY),
    "fairseq_simple.log": ("fairseq", 2, 100, 200, 12.5, 11.0, Status.INCOMPLETE),
    "fairseq_json.log": ("fairseq", 2, 200, 400, 9.25, 7.0, Status.INCOMPLETE),
    "fairseq_oom.log": ("fairseq", 0, None, None, None, None, Status.OUT_OF_MEMORY),
    "verl_grpo.log": ("verl", 3, 1, 3, 0.004, 0.001, Status.COMPLETED),
    "verl_crash.log": ("verl", 0, None, None, None, None, Status.CRASHED),
    "composer.log": ("composer", 4, 1, 4, 11.6525, 7.5, Status.COMPLETED),
    "torchrun_time_limit.err": ("generic", 0, None, None, None, None, Status.TIME_LIMIT),
}


@pytest.mark.parametrize("name", READ)
def test_recordings(name):
    format, rows, first_step, last_step, first_loss, last_loss, status = READ[name]
    table = read_run(LOGS / name)
    assert (table.format, table.rows, table.first_step, table.last_step) == (format, rows, first_step, last_step)
    assert table.first_loss == first_loss
    assert str(table.last_loss) == str(last_loss)
    assert table.status is status, table.status_reason


def test_megatron_skips_have_no_loss_and_zero_grad_norms_are_not_collected():
    table = read_run(LOGS / "megatron_skipped.out")
    _same(_values(table, "loss"), [NAN, 10.3125, 9.5, 8.25])
    _same(_values(table, "loss_is_nan"), [NAN, 0, 0, 0])  # nothing was printed: that is not a NaN
    _same(_values(table, "grad_norm"), [NAN, 0.812, NAN, 0.812])
    _same(_values(table, "skipped"), [10, 8, 0, 0])
    _same(_values(table, "seconds"), [2.7111] * 4)
    _same(_values(table, "forward_seconds"), [0.8005] * 4)
    _same(_values(table, "backward_seconds"), [1.60025] * 4)
    _same(_values(table, "optimizer_seconds"), [0.0995] * 4)
    _same(_values(table, "data_seconds"), [0.01225] * 4)
    _same(_values(table, "memory_bytes"), [NAN, 6000.25 * 2**20, NAN, NAN])
    expected = {"depth": 6, "width": 512, "heads": 8, "seq_len": 1024, "micro_batch": 4, "step_samples": 64,
                "world_size": 8, "planned_steps": 100, "vocab_size": 50688, "precision": "fp16", "grad_clip": 1.0,
                "learning_rate": 0.00015, "schedule": "cosine", "checkpoint_every_steps": 20}  # fmt: skip
    assert {name: table.facts.get(name) for name in expected} == expected


def test_megatron_saves_are_one_checkpoint_with_its_seconds_and_signals_are_no_cause():
    table = read_run(LOGS / "megatron_skipped.out")
    checkpoints = [event for event in table.events if event.kind == "checkpoint"]
    assert len(checkpoints) == 1
    assert (checkpoints[0].numbers["step"], checkpoints[0].numbers["seconds"]) == (20, 2.5005)
    assert table.status_reason.startswith("killed from outside after step 40 of 100: slurmstepd")


def test_megatron_dialects():
    table = read_run(LOGS / "megatron_deepspeed.out")
    _same(_values(table, "seconds"), [136.5, 130.25])
    _same(_values(table, "tokens"), [2097152, 4194304])
    assert "grad_norm" not in table.columns and "loss_scale" not in table.columns
    core = read_run(LOGS / "megatron_core.out")
    _same(_values(core, "forward_seconds"), [1.6005] * 4)  # the slowest rank's
    _same(_values(core, "eval_loss"), [NAN, NAN, NAN, 7.125])
    assert core.column("unix_seconds")[0] == 1712372376  # 2024-04-06 02:59:36 UTC


def test_gpt_neox_between_deepspeed_lines_on_a_named_host():
    table = read_run(LOGS / "gpt_neox.log")
    _same(_values(table, "seconds"), [0.9769, 0.9752])
    _same(_values(table, "skipped"), [3, 0])
    _same(_values(table, "forward_seconds"), [0.2505, NAN])
    _same(_values(table, "eval_loss"), [NAN, 9.25])
    assert (table.facts["depth"], table.facts["width"], table.facts["planned_steps"]) == (12, 768, 320000)


def test_deepspeed_timers_are_of_steps_not_of_micro_batches():
    table = read_run(LOGS / "deepspeed_pipeline.log")
    _same(_values(table, "forward_seconds"), [0.2005] * 3)
    _same(_values(table, "optimizer_seconds"), [0.0255] * 3)
    expected = {"world_size": 8, "micro_batch": 4, "grad_accum": 2, "grad_clip": 1.0, "precision": "bf16"}
    assert {name: table.facts.get(name) for name in expected} == expected


def test_deepspeed_without_losses_is_still_recognised():
    table = read_run(LOGS / "deepspeed_hf_no_loss.log")
    assert _kinds(table) == ["overflow", "finished"]
    assert table.events[0].numbers["loss_scale"] == 128
    assert table.events[1].numbers["count"] == 4  # ranks
    assert table.facts["total_seconds"] == 273.0148


def test_hugging_face_rows_keep_their_order_where_epochs_repeat():
    table = read_run(LOGS / "hf_epochs.log")
    _same(_values(table, "epoch"), [0.33, 0.67, 0.67, 0.67, 1.33, 1.67, 2.0])
    _same(_values(table, "loss"), [2.5, 2.25, 2.125, NAN, 2.0, 1.75, 1.5])
    _same(_values(table, "eval_loss"), [NAN, NAN, NAN, 2.2, NAN, NAN, NAN])
    assert table.column("learning_rate")[5] == 5.072123862256972e-07
    assert [v for v in _values(table, "step")] == [1, 2, 3, 3, 4, 5, 6]
    assert "no step" in table.provenance["step"]
    expected = {"parameters": 6746804224, "planned_epochs": 2, "micro_batch": 8, "grad_accum": 4, "precision": "bf16",
                "learning_rate": 2e-5, "schedule": "cosine", "seq_len": 2048, "total_seconds": 61.5}  # fmt: skip
    assert {name: table.facts.get(name) for name in expected} == expected
    assert "checkpoint_every_steps" not in table.facts  # saved by epochs: --save_steps means nothing


def test_hugging_face_numbers_as_strings():
    table = read_run(LOGS / "hf_strings_nan.log")
    _same(_values(table, "loss"), [3.5, NAN, NAN, NAN])  # 0 beside a gradient norm of NaN is no number
    _same(_values(table, "loss_is_nan"), [0, 1, 1, 1])
    assert (table.facts["planned_steps"], table.facts["step_samples"], table.facts["grad_accum"]) == (50, 32, 2)


def test_crash_names_the_users_own_line_and_the_launcher_is_no_cause():
    table = read_run(LOGS / "hf_crash.log")
    assert set(_kinds(table)) == {"exception", "child_failed"}
    assert "ValueError: The train_dataset does not implement __len__" in table.status_reason
    assert "[transformers/trainer.py:547, from me/finetune.py:46]" in table.status_reason


def test_trl_behind_progress_bars_and_colours():
    table = read_run(LOGS / "trl_dpo.log")
    _same(_values(table, "loss"), [0.6931, 0.625, NAN, 0.5])
    assert table.facts["loss_unit"] == "preference"


def test_axolotl_memory_and_the_allocation_that_did_not_fit():
    table = read_run(LOGS / "axolotl.log")
    _same(_values(table, "memory_bytes"), [25.5 * 2**30, 34.75 * 2**30])
    _same(_values(table, "reserved_bytes"), [30.25 * 2**30, 41.25 * 2**30])
    (event,) = [event for event in table.events if event.kind == "out_of_memory"]
    assert event.numbers["requested_bytes"] == 1.5 * 2**30
    assert event.numbers["reserved_bytes"] == 42.25 * 2**30


@pytest.mark.parametrize("name", ["fairseq_simple.log", "fairseq_json.log"])
def test_fairseq_steps_are_updates_and_losses_bits(name):
    table = read_run(LOGS / name)
    assert table.facts["loss_unit"] == "bits"
    assert np.isnan(table.column("loss")[-1]) and table.column("eval_loss")[-1] in (8.125, 6.5)
    assert (table.facts["world_size"], table.facts["grad_accum"], table.facts["grad_clip"]) == (2, 4, 0.5)


def test_fairseq_units():
    table = read_run(LOGS / "fairseq_simple.log")
    _same(_values(table, "seconds"), [0.25, 0.2, NAN])  # updates per second
    _same(_values(table, "clipped"), [1.0, 0.125, NAN])  # printed in percent
    assert "planned_epochs" not in table.facts  # 0 means no limit
    assert _kinds(table) == ["overflow", "checkpoint"]
    json = read_run(LOGS / "fairseq_json.log")
    _same(_values(json, "epoch"), [0.416, 0.832, 1.0])
    _same(_values(json, "elapsed_seconds"), [425, 825, NAN])


def test_fairseq_out_of_memory_on_two_ranks_and_a_full_watch_table_is_no_full_disk():
    table = read_run(LOGS / "fairseq_oom.log")
    assert set(_kinds(table)) == {"out_of_memory"}
    first = table.events[0]
    assert first.numbers["requested_bytes"] == 784 * 2**20 and first.numbers["total_bytes"] == 31.75 * 2**30


def test_verl_through_ray_and_colours():
    table = read_run(LOGS / "verl_grpo.log")
    _same(_values(table, "mfu"), [0.341, 0.342, 0.343])
    _same(_values(table, "seconds"), [96.1, 96.2, 96.3])
    _same(_values(table, "memory_bytes"), [62.5 * 2**30] * 3)
    assert "learning_rate" not in table.columns  # printed as 0.000
    assert table.facts["loss_unit"] == "policy gradient"


def test_verl_crash_names_the_first_and_the_last_exception():
    reason = read_run(LOGS / "verl_crash.log").status_reason
    assert "ImportError: flash_attn_2_cuda.so: undefined symbol" in reason
    assert "AssertionError: failed to get register_center_actor" in reason


def test_composer_metrics_belong_to_their_batch():
    table = read_run(LOGS / "composer.log")
    _same(_values(table, "loss"), [11.6525, 9.5237, 8.125, 7.5])
    _same(_values(table, "eval_loss"), [NAN, 9.25, NAN, NAN])
    _same(_values(table, "tokens"), [0, 1048576, 2097152, 3145728])
    _same(_values(table, "memory_bytes"), [44.642e9] * 4)
    _same(_values(table, "elapsed_seconds"), [36, 72, 108, 144])  # hours
    _same(_values(table, "mfu"), [0.2677] * 4)


@pytest.mark.parametrize("cut", [0.35, 0.6, 0.85])
@pytest.mark.parametrize("name", [name for name, wanted in READ.items() if wanted[1]])
def test_a_log_cut_in_a_row_loses_no_record_before_it(name, cut, tmp_path):
    data = (LOGS / name).read_bytes()
    part = tmp_path / name
    part.write_bytes(data[: int(len(data) * cut)])
    whole = read_run(LOGS / name)
    table = read_run(part, format=whole.format)
    assert table.rows <= whole.rows
    printed = [loss for loss in _values(whole, "loss") if not math.isnan(loss)]
    kept = [loss for loss in _values(table, "loss") if not math.isnan(loss)]
    assert kept[:-1] == printed[: len(kept)][:-1]  # the last may be cut: 12.5 of 12.53


def test_formats_have_names_of_their_own():
    names = [format.name for format in line_formats()]
    assert len(names) == len(set(names))
