"""Each trap of the formats of trainers has a small recording: what is read of it, in the columns' units."""

from __future__ import annotations

import dataclasses
import gzip
import math

import pytest

from advisor.errors import AdvisorError
from advisor.readers.chunks import lines_of
from advisor.readers.formats import line_formats
from advisor.readers.line_format import TRAIN
from advisor.readers.read import read_run
from advisor.readers.records import read_records
from advisor.readers.yaml_rows import regex, rows_of_file
from tests.advisor.readers.reading import RECORDED, verify

NAN = math.nan
MIB, GIB = 2**20, 2**30


def ends(format, rows, *values, **more):
    return {"format": format, "rows": rows, "ends": values, **more}


READ = {
    # colours, returns and echoed keys of a terminal
    "nanochat_terminal.log": ends(
        "nanochat", 5, 0, 4, 11.090355, 8.8, status="incomplete",
        columns={"step": [0, 1, 2, 3, 4], "seconds": {1: 2.04025, 2: 2.05075, 3: 2.044}, "mfu": {0: 0.015, 3: 0.0225},
                 "tokens_per_second": {0: 199, 1: 4015, 2: 3994, 3: 4007}, "eval_bits_per_byte": {0: 3.2111}},
        facts={"vocab_size": 65536, "depth": 4, "micro_batch": 8, "seq_len": 512, "step_tokens": 8192,
               "parameters": 36_700_160, "planned_steps": 400},
    ),
    # NaN losses are rows, an MFU of 0 and a peak of inf are unknown
    "nanochat_nan.log": ends(
        "nanochat", 5, 1, 5, 5.471677, NAN, status="diverged", absent=("mfu",),
            columns={"loss_is_nan": {1: 0, 2: 0, 3: 1, 5: 1}},
        facts={"gpu": "Some Card", "precision": "fp32", "gpu_peak_flops": None},
    ),
    "nanochat_two_phases.log": ends(
        "nanochat", 10, 0, 5, 9.0, 4.0, status="completed", main_phase=0, duplicates=0,
        columns={"phase": [0] * 6 + [1] * 4}, facts={"planned_steps": 6},
    ),
    # validation in nats is brought to the bits of the training loss; at step 25 no iteration is printed
    "nanogpt_bits.log": ends(
        "nanogpt", 4, 0, 30, 6.1551, 4.25, status="stopped",
        columns={"step": [0, 10, 20, 25, 30], "eval_loss": {0: 4.2823 / math.log(2)}, "mfu": {0: NAN, 1: 0.0751},
                 "eval_train_loss": {0: 4.2874 / math.log(2)}},
        facts={"loss_unit": "bits", "parameters": 10_650_000, "planned_steps": 5000},
    ),
    "build_nanogpt.txt": ends("generic", 4, 0, 3, 10.95501, 8.938062),
    "build_nanogpt_console.log": ends("generic", 2, 0, 1, 10.95501, 10.901234),
    # source code before the log is no record, step_avg:nanms no loss; one card in nvidia-smi's table
    "modded_source_first.txt": ends(
        "modded_nanogpt", 6, 1, 6, 10.9184, 7.1, status="completed",
        columns={"step": [0, 1, 2, 3, 4, 5, 6], "eval_loss": {0: 10.9264, 4: 7.4, 6: 7.0785},
            "loss_is_nan": {1: 0, 6: 0}},
        facts={"gpu": "NVIDIA H100 80GB HBM3", "world_size": 1, "gpu_memory_bytes": 81559 * MIB},
    ),
    # rows of training without a loss let evaluations count
    "modded_eval_only.txt": ends("modded_nanogpt", 3, 0, 4, 10.8258, 7.5, absent=("loss",),
                                 columns={"elapsed_seconds": [0.0, 0.09, 0.18, 0.27, 0.36]}),
    "modded_short.log": ends("modded_nanogpt", 3, 0, 2, 10.965596, 10.543272),
    # z-scores are no losses, and a torn row keeps what it has
    "llmc_torn.log": ends(
        "llmc_stdout", 5, 1, 5, 11.010252, 10.560909, status="time_limit",
        columns={"step": [0, 1, 2, 3, 4, 5], "eval_loss": {0: 11.008742, 4: 10.5},
            "loss_is_nan": {1: 0, 2: 0, 3: 1, 4: 0, 5: 0},
                 "learning_rate": {1: 8.57e-07, 2: 1.71e-06, 5: 4.29e-06}, "mfu": {1: 0.292, 4: NAN},
                     "seconds": {5: NAN}},
        facts={"gpu_peak_flops": 312e12, "precision": "bf16"},
    ),
    "llmc_main.log": ends("llmc_mainlog", 5, 0, 4, 11.0, 9.0),
    # rates are summed over the ranks; 2025-06-04 08:51:48 UTC
    "torchtitan_two_ranks.log": ends(
        "torchtitan", 8, 1, 30, 12.2254, 8.1423, notes="2 ranks", facts={"planned_steps": 40},
        columns={"step": [1, 10, 20, 30], "rank": [0] * 4, "tokens_per_second": [750, 14002, 14004, 14006],
                 "memory_bytes": {0: 30.99 * GIB}, "unix_seconds": [1749027108, 1749027118, 1749027129, 1749027140]},
    ),
    "torchtitan_losses.txt": ends("two_columns", 3, 1, 3, 8.049097061157227, 7.032886028289795),
    "torchtune.txt": ends("generic", 3, 1, 3, 1.9874, 1.7654),
    # a restart overlaps, and the later attempt wins
    "rust_restart.log": ends(
        "generic", 8, 50, 300, 8.4285, 6.0, facts={"parameters": 3_700_000, "planned_steps": 500, "gpu": "cpu"},
        columns={"step": [50, 100, 150, 200, 250, 300], "loss": [8.4285, 8.3983, 7.0, 6.4, 6.1, 6.0]},
    ),
    "generic_key_value.log": ends("generic", 5, 0, 40, 5.0, 4.0, columns={
        "learning_rate": [1e-3, 1e-4, 1e-3, 1e-4, 1e-3], "tokens_per_second": [10500, 11500, 12500, 13500, 14500],
        "memory_bytes": {1: 4.1 * GIB}, "seconds": {2: 0.102}, "eval_loss": {4: 4.1}}),
    # steps that start again with every epoch are joined
    "generic_epochs.log": ends("generic", 9, 100, 900, 2.4, 1.2, status="completed", main_phase=0,
                               columns={"step": [100 * n for n in range(1, 10)]},
                               facts={"planned_epochs": 3, "planned_steps": 900}),
    # epochs are numbered rows; 529 s is an epoch's
    "generic_epoch_only.log": ends("generic", 4, 0, 3, 2.5, 1.75, absent=("seconds",),
                                   columns={"epoch": [0, 1, 2, 3], "step": [1, 2, 3, 4]}),
    # skipped steps print no loss, which is no NaN; zero norms are not collected; two saves are one checkpoint
    "megatron_skipped.out": ends(
        "megatron", 4, 10, 40, None, 8.25, status="killed", says="killed from outside after step 40 of 100: slurmstepd",
        columns={"loss": [NAN, 10.3125, 9.5, 8.25], "loss_is_nan": [NAN, 0, 0, 0],
            "grad_norm": [NAN, 0.812, NAN, 0.812],
                 "skipped": [10, 8, 0, 0], "seconds": [2.7111] * 4, "forward_seconds": [0.8005] * 4,
                 "backward_seconds": [1.60025] * 4, "optimizer_seconds": [0.0995] * 4, "data_seconds": [0.01225] * 4,
                 "memory_bytes": [NAN, 6000.25 * MIB, NAN, NAN]},
        facts={"depth": 6, "width": 512, "heads": 8, "seq_len": 1024, "micro_batch": 4, "step_samples": 64,
               "world_size": 8, "planned_steps": 100, "vocab_size": 50688, "precision": "fp16", "grad_clip": 1.0,
               "learning_rate": 0.00015, "schedule": "cosine", "checkpoint_every_steps": 20},
    ),
    "megatron_all_skipped.out": ends("megatron", 2, 1, 2, None, None, status="incomplete"),
    "megatron_deepspeed.out": ends("megatron", 2, 1, 2, 12.44238, 11.5, status="incomplete",
        absent=("grad_norm", "loss_scale"),
                                   columns={"seconds": [136.5, 130.25], "tokens": [2097152, 4194304]}),
    # the slowest rank's; 2024-04-06 02:59:36 UTC
    "megatron_core.out": ends("megatron", 4, 1, 4, 10.5, 7.5, status="completed", columns={
        "forward_seconds": [1.6005] * 4, "eval_loss": [NAN, NAN, NAN, 7.125], "unix_seconds": {0: 1712372376}}),
    # timers are of steps, not of micro-batches
    "deepspeed_pipeline.log": ends(
        "deepspeed", 3, 10, 30, 8.25, 6.25, status="no_end_recorded",
        columns={"forward_seconds": [0.2005] * 3, "optimizer_seconds": [0.0255] * 3},
        facts={"world_size": 8, "micro_batch": 4, "grad_accum": 2, "grad_clip": 1.0, "precision": "bf16"},
    ),
    "deepspeed_hf_no_loss.log": ends("deepspeed_hf", 0, None, None, None, None, status="completed",
                                     events=["overflow", "finished"], facts={"total_seconds": 273.0148}),
    # rows keep their order where epochs repeat; saved by epochs: --save_steps means nothing
    "hf_epochs.log": ends(
        "hf_stdout", 6, None, None, 2.5, 1.5, status="completed",
        columns={"epoch": [0.33, 0.67, 0.67, 0.67, 1.33, 1.67, 2.0], "loss": [2.5, 2.25, 2.125, NAN, 2.0, 1.75, 1.5],
                 "eval_loss": [NAN, NAN, NAN, 2.2, NAN, NAN, NAN], "learning_rate": {5: 5.072123862256972e-07},
                 "step": [1, 2, 3, 3, 4, 5, 6]},
        facts={"parameters": 6746804224, "planned_epochs": 2, "micro_batch": 8, "grad_accum": 4, "precision": "bf16",
               "learning_rate": 2e-5, "schedule": "cosine", "seq_len": 2048, "total_seconds": 61.5,
               "checkpoint_every_steps": None},
    ),
    # 0 beside a gradient norm of NaN is no number
    "hf_strings_nan.log": ends("hf_stdout", 4, 10, 40, 3.5, NAN, status="diverged",
                               columns={"loss": [3.5, NAN, NAN, NAN], "loss_is_nan": [0, 1, 1, 1]},
                               facts={"planned_steps": 50, "step_samples": 32, "grad_accum": 2}),
    # the user's own line is named, and the launcher is no cause
    "hf_crash.log": ends("hf_stdout", 0, None, None, None, None, status="crashed", says=(
        "ValueError: The train_dataset does not implement __len__",
            "[transformers/trainer.py:547, from me/finetune.py:46]")),
    "trl_dpo.log": ends("trl", 3, None, None, 0.6931, 0.5, status="no_end_recorded", facts={"loss_unit": "preference"},
                        columns={"loss": [0.6931, 0.625, NAN, 0.5]}),
    "axolotl.log": ends("axolotl", 2, 1, 2, 4.75, 2.0312, status="out_of_memory", columns={
        "memory_bytes": [25.5 * GIB, 34.75 * GIB], "reserved_bytes": [30.25 * GIB, 41.25 * GIB]}),
    # steps are updates, losses bits; `clipped` is in percent, 0 epochs mean no limit
    "fairseq_simple.log": ends(
        "fairseq", 2, 100, 200, 12.5, 11.0, status="incomplete", events=["overflow", "checkpoint"],
        columns={"seconds": [0.25, 0.2, NAN], "clipped": [1.0, 0.125, NAN], "loss": {-1: NAN},
            "eval_loss": {-1: 8.125}},
        facts={"loss_unit": "bits", "world_size": 2, "grad_accum": 4, "grad_clip": 0.5, "planned_epochs": None},
    ),
    "fairseq_json.log": ends(
        "fairseq", 2, 200, 400, 9.25, 7.0, status="incomplete",
            facts={"loss_unit": "bits", "world_size": 2, "grad_clip": 0.5},
        columns={"epoch": [0.416, 0.832, 1.0], "elapsed_seconds": [425, 825, NAN], "eval_loss": {-1: 6.5}},
    ),
    "fairseq_oom.log": ends("fairseq", 0, None, None, None, None, status="out_of_memory"),
    # a learning rate printed as 0.000; memory that verl counts beyond the card
    "verl_grpo.log": ends("verl", 3, 1, 3, 0.004, 0.001, status="completed", absent=("learning_rate", "memory_bytes"),
                          columns={"mfu": [0.341, 0.342, 0.343], "seconds": [96.1, 96.2, 96.3]},
                          facts={"loss_unit": "policy gradient"}),
    # the first and the last exception
    "verl_crash.log": ends("verl", 0, None, None, None, None, status="crashed", says=(
        "ImportError: flash_attn_2_cuda.so: undefined symbol", "AssertionError: failed to get register_center_actor")),
    # metrics belong to their batch; hours
    "torchrun_time_limit.err": ends("generic", 0, None, None, None, None, status="time_limit"),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_recording_is_read(name):
    verify(read_run(RECORDED / name), **READ[name])


def event(name, kind):
    return next(event for event in read_run(RECORDED / name).events if event.kind == kind)


@pytest.mark.parametrize(
    ("name", "kind", "numbers"),
    [
        ("megatron_skipped.out", "checkpoint", {"step": 20, "seconds": 2.5005}),
        ("deepspeed_hf_no_loss.log", "overflow", {"loss_scale": 128}),
        ("deepspeed_hf_no_loss.log", "finished", {"count": 4}),  # ranks
        ("axolotl.log", "out_of_memory", {"requested_bytes": 1.5 * GIB, "reserved_bytes": 42.25 * GIB}),
        ("fairseq_oom.log", "out_of_memory", {"requested_bytes": 784 * MIB, "total_bytes": 31.75 * GIB}),
        ("rust_restart.log", "restart", {"first_step": 200, "last_step": 250}),
    ],
)
def test_an_event_has_its_numbers(name, kind, numbers):
    assert numbers.items() <= event(name, kind).numbers.items()


def test_the_time_limit_has_the_step_before_it_and_its_line():
    limit = event("llmc_torn.log", "time_limit")
    assert limit.step == 5 and limit.line == (RECORDED / "llmc_torn.log").read_bytes().count(b"\n")


def test_every_card_of_a_machine_is_counted(tmp_path):
    """A table of eight cards is a run on eight: its dollars are eight times those of one."""
    row = "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:61:00.0 Off |                  Off |\n"
    text = (RECORDED / "modded_source_first.txt").read_text()
    assert row in text
    path = tmp_path / "eight.txt"
    path.write_text(text.replace(row, "".join(row.replace("   0  ", f"   {n}  ") for n in range(8))))
    assert read_run(path).facts["world_size"] == 8


@pytest.mark.parametrize("name", ["llmc_torn.log", "nanochat_terminal.log", "rust_restart.log"])
def test_gzip_utf16_and_byte_order_marks_change_nothing(name, tmp_path):
    raw, plain = (RECORDED / name).read_bytes(), read_run(RECORDED / name)
    (tmp_path / "log.gz").write_bytes(gzip.compress(raw))
    (tmp_path / "log16.txt").write_bytes(raw.decode().encode("utf-16"))
    for path in tmp_path.iterdir():
        verify(read_run(path), format=plain.format, rows=plain.rows, columns={"step": plain.columns["step"]})


@pytest.mark.parametrize("cut", [0.35, 0.6, 0.85])
@pytest.mark.parametrize("name", [name for name, wanted in READ.items() if wanted["rows"]])
def test_a_log_cut_in_a_row_loses_no_record_before_it(name, cut, tmp_path):
    data = (RECORDED / name).read_bytes()
    part = tmp_path / name
    part.write_bytes(data[: int(len(data) * cut)])
    whole = read_run(RECORDED / name)
    table = read_run(part, format=whole.format)
    assert table.rows <= whole.rows
    printed, kept = ([loss for loss in one.column("loss").tolist() if not math.isnan(loss)] for one in (whole, table))
    assert kept[:-1] == printed[: len(kept)][:-1]  # the last may be cut: 12.5 of 12.53


@pytest.mark.parametrize(
    ("file", "format", "words", "hint"),
    [
        ("prose.txt", None, "prose.txt", ""),
        ("absent.log", None, "cannot be read", ""),
        ("axolotl.log", "axolotel", "axolotel", "axolotl"),  # close to a name that is known
    ],
)
def test_what_cannot_be_read_is_said_with_a_hint(file, format, words, hint):
    with pytest.raises(AdvisorError, match=words) as error:
        read_run(RECORDED / file, format=format)
    assert error.value.hint and hint in error.value.hint and error.value.exit_code == (2 if format else 1)


def test_formats_have_names_of_their_own():
    names = [format.name for format in line_formats()]
    assert len(names) == len(set(names))


ROWS = [(entry["name"], number) for entry in rows_of_file("formats") for number in range(len(entry.get("rows", ())))]


@pytest.mark.parametrize(("name", "number"), ROWS, ids=str)
def test_each_row_reads_its_example(name, number):
    written = next(entry for entry in rows_of_file("formats") if entry["name"] == name)["rows"][number]
    rule = next(format for format in line_formats() if format.name == name).rows[number]
    # a row of its own: otherwise one that completes another has nothing to complete
    found, _ = read_records(lines_of(written["example"].encode()), [dataclasses.replace(rule, kind=TRAIN)])
    assert len(found) == 1, written["example"]
    read = {column: float(values[0]) for column, values in found.columns.items()}
    assert read == pytest.approx({column: float(value) for column, value in written["gives"].items()}, nan_ok=True)


@pytest.mark.parametrize("name", [name for name in rows_of_file("patterns") if name != "parts"])
def test_each_pattern_is_found_in_its_example(name):
    assert regex(name).search(rows_of_file("patterns")[name]["example"].encode())
