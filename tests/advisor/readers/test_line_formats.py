"""Each trap of the pre-training formats has a small recording in tests/advisor/recorded/logs, read here."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.readers.formats import line_formats
from advisor.readers.line_reader import LineReader
from advisor.readers.line_templates import takes_of, to_columns
from advisor.readers.read import best_reader, read_run
from advisor.readers.run_table import Status, names_of
from advisor.readers.yaml_rows import regex, rows_of_file

LOGS = Path(__file__).resolve().parents[1] / "recorded" / "logs"

# file, format, rows, first and last step, first and last loss
ENDS = [
    ("nanochat_terminal.log", "nanochat", 5, 0, 4, 11.090355, 8.8),
    ("nanochat_nan.log", "nanochat", 5, 1, 5, 5.471677, math.nan),
    ("nanochat_two_phases.log", "nanochat", 10, 0, 5, 9.0, 4.0),
    ("nanogpt_bits.log", "nanogpt", 4, 0, 30, 6.1551, 4.25),
    ("build_nanogpt.txt", "build_nanogpt", 4, 0, 3, 10.95501, 8.938062),
    ("build_nanogpt_console.log", "build_nanogpt", 2, 0, 1, 10.95501, 10.901234),
    ("modded_source_first.txt", "modded_nanogpt", 6, 1, 6, 10.9184, 7.1),
    ("modded_eval_only.txt", "modded_nanogpt", 3, 0, 4, 10.8258, 7.5),
    ("modded_short.log", "modded_nanogpt", 3, 0, 2, 10.965596, 10.543272),
    ("parameter_golf_twice.log", "parameter_golf", 8, 1, 400, 5.5633, 1.3557),
    ("llmc_torn.log", "llmc_stdout", 5, 1, 5, 11.010252, 10.560909),
    ("llmc_main.log", "llmc_mainlog", 5, 0, 4, 11.0, 9.0),
    ("torchtitan_two_ranks.log", "torchtitan", 8, 1, 30, 12.2254, 8.1423),
    ("torchtitan_losses.txt", "two_columns", 3, 1, 3, 8.049097061157227, 7.032886028289795),
    ("maxtext.log", "maxtext", 4, 0, 3, 10.87, 9.1),
    ("litgpt.log", "litgpt", 6, 0, 3, 10.99, 9.884),
    ("olmo.log", "olmo", 2, 1, 2, 11.25, 10.73),
    ("olmo_core.log", "olmo", 2, 100, 200, 6.2341, 5.8817),
    ("torchtune.txt", "torchtune", 3, 1, 3, 1.9874, 1.7654),
    ("rust_restart.log", "generic", 8, 50, 300, 8.4285, 6.0),
    ("generic_key_value.log", "generic", 5, 0, 40, 5.0, 4.0),
    ("generic_epochs.log", "generic", 9, 1, 3, 2.4, 1.2),
    ("generic_epoch_only.log", "generic", 4, 0, 3, 2.5, 1.75),
]


@pytest.fixture(scope="module")
def table():
    tables = {name: read_run(LOGS / name) for name, *_ in ENDS}
    return tables.__getitem__


@pytest.mark.parametrize(("name", "format", "rows", "first", "last", "first_loss", "last_loss"), ENDS)
def test_ends(table, name, format, rows, first, last, first_loss, last_loss):
    read = table(name)
    assert (read.format, read.rows, read.first_step, read.last_step) == (format, rows, first, last)
    assert read.first_loss == pytest.approx(first_loss, rel=0, abs=0, nan_ok=True)
    assert read.last_loss == pytest.approx(last_loss, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", [row[0] for row in ENDS])
def test_only_known_columns_and_facts_of_equal_length(table, name):
    read = table(name)
    assert set(read.columns) <= set(names_of("columns")) and set(read.facts) <= set(names_of("facts"))
    assert {len(values) for values in read.columns.values()} == {len(read)}
    assert set(read.provenance) >= set(read.columns)
    assert [phase.first_row for phase in read.phases][:1] == [0] and read.phases[-1].last_row == len(read) - 1


def column(read, name):
    return read.columns[name].tolist()


def test_terminal_capture_loses_colours_returns_and_echoed_keys(table):
    read = table("nanochat_terminal.log")
    assert column(read, "step") == [0, 1, 2, 3, 4]
    assert column(read, "seconds")[1:4] == [2040.25 / 1000, 2050.75 / 1000, 2.044]
    assert column(read, "tokens_per_second")[:4] == [199, 4015, 3994, 4007]
    assert column(read, "mfu")[:4] == [0.015, 0.0175, 0.02, 0.0225]
    assert read.columns["eval_bits_per_byte"][0] == 3.2111
    expected = {"vocab_size": 65536, "depth": 4, "micro_batch": 8, "seq_len": 512, "step_tokens": 8192}
    assert expected.items() <= read.facts.items()
    assert read.facts["parameters"] == 36_700_160 and read.facts["planned_steps"] == 400
    assert read.status == Status.INCOMPLETE


def test_nan_losses_are_rows_and_mfu_zero_is_unknown(table):
    read = table("nanochat_nan.log")
    assert column(read, "loss_is_nan")[1:] == [0, 0, 1, 1, 1]
    assert "mfu" not in read.columns
    assert read.facts["gpu"] == "Some Card" and read.facts["precision"] == "fp32"
    assert "gpu_peak_flops" not in read.facts  # it prints inf
    assert read.status == Status.DIVERGED


def test_two_phases_of_one_file(table):
    read = table("nanochat_two_phases.log")
    assert [(p.first_row, p.last_row) for p in read.phases] == [(0, 5), (6, 9)]
    assert read.main_phase == 0 and read.facts["planned_steps"] == 6 and read.duplicates == 0
    assert column(read, "phase") == [0] * 6 + [1] * 4
    assert read.status == Status.COMPLETED


def test_validation_in_nats_is_brought_to_the_bits_of_the_training_loss(table):
    read = table("nanogpt_bits.log")
    assert read.facts["loss_unit"] == "bits"
    assert read.columns["eval_loss"][0] == pytest.approx(4.2823 / math.log(2))
    assert read.columns["eval_train_loss"][0] == pytest.approx(4.2874 / math.log(2))
    assert np.isnan(read.columns["mfu"][0]) and read.columns["mfu"][1] == 0.0751
    assert read.facts["parameters"] == 10_650_000 and read.facts["planned_steps"] == 5000
    assert read.status == Status.STOPPED
    # the evaluation of step 25, at which no iteration is printed, is a row of its own
    assert column(read, "step") == [0, 10, 20, 25, 30]


def test_source_code_before_the_log_is_no_record(table):
    read = table("modded_source_first.txt")
    assert column(read, "step") == [0, 1, 2, 3, 4, 5, 6]
    assert not (read.columns["loss_is_nan"] > 0).any()  # step_avg:nanms is no loss
    assert read.columns["eval_loss"][[0, 4, 6]].tolist() == [10.9264, 7.4, 7.0785]
    assert read.facts["gpu"] == "NVIDIA H100 80GB HBM3" and read.status == Status.COMPLETED
    assert read.facts["world_size"] == 1  # one card in nvidia-smi's table
    assert read.facts["gpu_memory_bytes"] == 81559 * 2**20


def test_every_card_of_a_machine_is_counted(tmp_path):
    """A table of eight cards is a run on eight: its dollars are eight times those of one."""
    before, card, after = (
        (LOGS / "modded_source_first.txt")
        .read_text()
        .partition("|   0  NVIDIA H100 80GB HBM3          On  |   00000000:61:00.0 Off |                  Off |\n")
    )
    assert card
    path = tmp_path / "eight.txt"
    path.write_text(before + "".join(card.replace("   0  ", f"   {n}  ") for n in range(8)) + after)
    assert read_run(path).facts["world_size"] == 8


def test_training_rows_without_a_loss_let_evaluations_count(table):
    read = table("modded_eval_only.txt")
    assert len(read) == 5 and "loss" not in read.columns
    assert read.columns["elapsed_seconds"].tolist() == [0.0, 0.09, 0.18, 0.27, 0.36]


def test_a_run_printed_twice_is_one_run(table):
    read = table("parameter_golf_twice.log")
    assert read.duplicates == 4 and len(read.phases) == 1
    assert column(read, "step") == [0, 1, 2, 200, 400, 4520]
    assert not [event for event in read.events if event.kind == "restart"]
    assert read.columns["eval_loss"][-1] == 0.97  # not the compressed model's
    assert read.status == Status.COMPLETED and read.facts["world_size"] == 8


def test_llmc_z_scores_are_no_losses_and_a_torn_row_keeps_what_it_has(table):
    read = table("llmc_torn.log")
    assert column(read, "step") == [0, 1, 2, 3, 4, 5]
    assert read.columns["eval_loss"][0] == 11.008742 and read.columns["eval_loss"][4] == 10.5
    assert read.columns["loss_is_nan"][1:].tolist() == [0, 0, 1, 0, 0]
    assert read.columns["learning_rate"][1:3].tolist() == [8.57e-07, 1.71e-06]
    assert np.isnan(read.columns["mfu"][4]) and read.columns["mfu"][1] == pytest.approx(0.292)
    assert np.isnan(read.columns["seconds"][5]) and read.columns["learning_rate"][5] == 4.29e-06
    assert read.status == Status.TIME_LIMIT
    limit = next(event for event in read.events if event.kind == "time_limit")
    assert limit.step == 5 and limit.line == (LOGS / "llmc_torn.log").read_bytes().count(b"\n")
    assert read.facts["gpu_peak_flops"] == 312e12 and read.facts["precision"] == "bf16"


def test_ranks_are_told_apart_and_rates_summed_over_devices(table):
    read = table("torchtitan_two_ranks.log")
    assert column(read, "step") == [1, 10, 20, 30] and column(read, "rank") == [0, 0, 0, 0]
    assert column(read, "tokens_per_second") == [750, 14002, 14004, 14006]
    assert read.columns["memory_bytes"][0] == 30.99 * 2**30
    assert np.diff(read.columns["unix_seconds"]).tolist() == [10, 11, 11]
    assert read.columns["unix_seconds"][0] == 1749027108  # 2025-06-04 08:51:48 UTC
    assert read.facts["planned_steps"] == 40 and any("2 ranks" in note for note in read.notes)


def test_maxtext_rates_of_one_device_become_rates_of_all(table):
    read = table("maxtext.log")
    assert read.facts["step_tokens"] == 32768 and read.facts["world_size"] == 4
    assert read.columns["tokens_per_second"][1] == 16000  # 32768 tokens in 2.048 s
    assert read.columns["eval_loss"][2] == 9.45 and read.facts["parameters"] == 1.104e9
    assert read.columns["grad_norm"][2] == 1.25


def test_litgpt_times_of_micro_batches_become_times_of_steps(table):
    read = table("litgpt.log")
    assert column(read, "step") == [0, 1, 2, 3]  # of several records of one step the last
    assert read.facts["grad_accum"] == 2 and read.columns["seconds"][3] == pytest.approx(2 * 0.02805)
    assert read.columns["eval_loss"][2] == 10.125 and read.columns["eval_loss"][3] == 10.125


def test_olmo_metrics_belong_to_the_header_above(table):
    read = table("olmo.log")
    assert column(read, "tokens") == [4194304, 8388608] and read.columns["grad_norm"][1] == 2.5
    assert read.columns["seconds"][1] == 12.5 and read.columns["memory_bytes"][0] == 42133e6
    core = table("olmo_core.log")
    assert core.columns["mfu"][0] == 0.415 and core.columns["learning_rate"][0] == 0.0003
    assert core.facts["planned_steps"] == 2000


def test_a_restart_overlaps_and_the_later_attempt_wins(table):
    read = table("rust_restart.log")
    assert column(read, "step") == [50, 100, 150, 200, 250, 300]
    assert column(read, "loss") == [8.4285, 8.3983, 7.0, 6.4, 6.1, 6.0]
    restart = next(event for event in read.events if event.kind == "restart")
    assert restart.numbers == {"first_step": 200, "last_step": 250} and len(read.phases) == 1
    assert read.facts["parameters"] == 3_700_000 and read.facts["planned_steps"] == 500 and read.facts["gpu"] == "cpu"


def test_home_made_lines(table):
    read = table("generic_key_value.log")
    assert column(read, "learning_rate") == [1e-3, 1e-4, 1e-3, 1e-4, 1e-3]
    assert column(read, "tokens_per_second") == [10500, 11500, 12500, 13500, 14500]
    assert read.columns["memory_bytes"][1] == 4.1 * 2**30 and read.columns["seconds"][2] == 0.102
    assert read.columns["eval_loss"][4] == 4.1


def test_steps_that_start_again_with_every_epoch_are_joined(table):
    read = table("generic_epochs.log")
    assert column(read, "step") == [100 * n for n in range(1, 10)] and len(read.phases) == 1
    assert read.facts["planned_epochs"] == 3 and read.facts["planned_steps"] == 900
    assert read.status == Status.COMPLETED


def test_epochs_without_steps_are_numbered_rows_without_times(table):
    read = table("generic_epoch_only.log")
    assert column(read, "epoch") == [0, 1, 2, 3] and column(read, "step") == [1, 2, 3, 4]
    assert "seconds" not in read.columns  # 529 s is an epoch's
    assert read.provenance["step"].startswith("number of the row")


@pytest.mark.parametrize("name", ["llmc_torn.log", "nanochat_terminal.log", "rust_restart.log"])
def test_gzip_utf16_and_byte_order_marks_change_nothing(table, name, tmp_path):
    raw = (LOGS / name).read_bytes()
    (tmp_path / "log.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "log16.txt").write_bytes(raw.decode().encode("utf-16"))
    for path in tmp_path.iterdir():
        read = read_run(path)
        assert read.format == table(name).format and read.rows == table(name).rows
        np.testing.assert_array_equal(read.columns["step"], table(name).columns["step"])


def test_a_cut_gzip_gives_what_came_before_the_cut(tmp_path):
    path = tmp_path / "log.gz"
    lines = b"".join(b"s:%d trl:%.4f lr:0.000100 norm:1.00\n" % (i, 9 - i / 1000) for i in range(5000))
    path.write_bytes(gzip.compress(lines)[:-4000])
    read = read_run(path)
    assert read.format == "llmc_mainlog" and 100 < read.rows < 5000


def test_nothing_recognisable_is_said_with_a_hint(tmp_path):
    with pytest.raises(AdvisorError) as error:
        read_run(LOGS / "prose.txt")
    assert "prose.txt" in error.value.message and error.value.hint
    (tmp_path / "empty.log").write_bytes(b"")
    with pytest.raises(AdvisorError, match="empty"):
        read_run(tmp_path / "empty.log")
    with pytest.raises(AdvisorError, match="cannot be read"):
        read_run(tmp_path / "absent.log")


def test_an_unknown_format_name_is_wrong_usage(tmp_path):
    with pytest.raises(AdvisorError) as error:
        read_run(LOGS / "litgpt.log", format="litgptt")
    assert error.value.exit_code == 2 and "litgpt" in error.value.hint


@pytest.mark.parametrize("name", [row[0] for row in ENDS])
def test_recordings_are_recognised_by_no_margin_of_chance(name):
    expected = next(row[1] for row in ENDS if row[0] == name)
    assert best_reader(LOGS / name).name == expected


@pytest.mark.parametrize("format", line_formats(), ids=lambda format: format.name)
def test_declarations_name_known_columns_and_facts(format):
    assert LineReader(format).score(b"nothing of the kind\n", Path("x.log")) == 0.0
    for row in format.rows:
        assert row.find(b"") is None
        assert isinstance(row.targets, tuple)
    for fact in format.facts:
        assert fact.compiled.groupindex or fact.constants


ROWS = [(entry["name"], number) for entry in rows_of_file("formats") for number in range(len(entry.get("rows", ())))]


@pytest.mark.parametrize(("name", "number"), ROWS, ids=lambda value: str(value))
def test_each_row_reads_its_example(name, number):
    written = next(entry for entry in rows_of_file("formats") if entry["name"] == name)["rows"][number]
    rule = next(format for format in line_formats() if format.name == name).rows[number]
    takes = takes_of(written["example"].encode(), rule)
    assert takes is not None, written["example"]
    columns = to_columns(takes, np.array([[take.value for take in takes]]), 1)
    for column, absent in rule.missing.items():
        if column in columns:
            columns[column] = np.where(columns[column] == absent, np.nan, columns[column])
    read = {column: float(values[0]) for column, values in columns.items()}
    assert read == pytest.approx({column: float(value) for column, value in written["gives"].items()}, nan_ok=True)


PATTERNS = [name for name in rows_of_file("patterns") if name != "parts"]


@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_is_found_in_its_example(name):
    assert regex(name).search(rows_of_file("patterns")[name]["example"].encode())
