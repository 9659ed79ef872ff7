"""Structured files: our log, trainer states, JSON lines, MLPerf, reports, and what trackers keep."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import struct
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from advisor.errors import AdvisorError
from advisor.readers.chunks import MAX_DOCUMENT_BYTES
from advisor.readers.protobuf import masked_crc32c
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from trainer.runlog import RunLogWriter

SMALL = Path(__file__).parents[2] / "recorded" / "small.jsonl"

# --- our own log


def test_own_log_has_every_column_the_trainer_measures():
    table = read_run(SMALL)
    records = [json.loads(line) for line in SMALL.read_text().splitlines()]
    steps = [record for record in records if record["kind"] == "step"]
    assert (table.format, table.rows, table.first_step, table.last_step) == ("training-advisor", 60, 1, 60)
    assert table.columns["loss"].tolist() == [step["loss"] for step in steps]
    assert table.columns["backward_seconds"][0] == steps[0]["backward_seconds"]
    expected = (steps[5]["tokens"] - steps[4]["tokens"]) / steps[5]["seconds"]
    assert table.columns["tokens_per_second"][5] == pytest.approx(expected)
    evals = {record["step"]: record["loss"] for record in records if record["kind"] == "eval"}
    assert {s: x for s, x in zip(table.columns["step"], table.columns["eval_loss"], strict=True) if x == x} == evals
    assert table.status == Status.COMPLETED
    assert table.facts["parameters"] == records[0]["parameters"] and table.facts["step_tokens"] == 1024
    assert table.facts["depth"] == 2 and table.facts["grad_clip"] == 1.0 and table.facts["planned_steps"] == 60
    saved = [event for event in table.events if event.kind == "checkpoint"]
    assert [event.step for event in saved] == [30, 60] and saved[0].numbers["bytes"] > 0


def write_attempts(path):
    """Two attempts: steps 1-4, then again from 3; the second diverges at 5."""
    ticks = iter(range(1000))
    with RunLogWriter(path, clock=lambda: 1000.0 + next(ticks)) as log:
        for attempt, start, losses in ((1, 0, [4.0, 3.5, 3.2, 3.1]), (2, 2, [3.25, 3.15, math.nan])):
            log.write("header", schema=1, attempt=attempt, resumed_from_step=start, tokens_per_step=100, world_size=1)
            for step, loss in enumerate(losses, start + 1):
                log.write("step", step=step, tokens=step * 100, loss=loss, seconds=0.5, data_seconds=0.1)
        log.write("final", outcome="diverged", reason="loss is nan at step 5", step=5, seconds=9.0)


def test_own_log_of_two_attempts_keeps_the_later_history(tmp_path):
    write_attempts(tmp_path / "log.jsonl")
    table = read_run(tmp_path / "log.jsonl")
    assert table.columns["step"].tolist() == [1, 2, 3, 4, 5]
    assert table.columns["loss"].tolist()[:4] == [4.0, 3.5, 3.25, 3.15] and math.isnan(table.last_loss)
    assert table.columns["loss_is_nan"].tolist() == [0, 0, 0, 0, 1]
    assert (table.status, table.status_reason) == (Status.DIVERGED, "loss is nan at step 5")
    assert any("2 steps (1 s) were done in vain" in note for note in table.notes)
    assert [event.step for event in table.events if event.kind == "restart"] == [2]
    assert "total_seconds" not in table.facts  # the first attempt died without saying how long it had lived


def test_own_log_adds_up_what_its_attempts_took(tmp_path):
    with RunLogWriter(tmp_path / "log.jsonl") as log:
        for attempt, start, seconds in ((1, 0, 6.0), (2, 2, 9.5)):
            log.write("header", schema=1, attempt=attempt, resumed_from_step=start, tokens_per_step=100, world_size=1)
            for step in (start + 1, start + 2):
                log.write("step", step=step, tokens=step * 100, loss=4.0, seconds=3.0)
            log.write("final", outcome="stopped", reason="asked", step=start + 2, seconds=seconds)
    assert read_run(tmp_path / "log.jsonl").facts["total_seconds"] == 15.5


# --- JSON lines


@pytest.mark.parametrize(
    "document",
    [
        [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}],
        {"config": {"n_layer": 2}, "history": [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}]},
        {"step": [1, 2], "loss": [3.0, 2.5], "tag": "x"},
    ],
)
def test_json_documents_that_hold_rows(tmp_path, document):
    path = tmp_path / "history.json"
    path.write_text(json.dumps(document, indent=2))
    table = read_run(path)
    assert (table.rows, table.first_loss, table.last_loss, table.last_step) == (2, 3.0, 2.5, 2)


# --- TensorBoard: events written here by the format's definition


def varint(value):
    out = bytearray()
    value &= 2**64 - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def chunk(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(step, values, wall_time=1000.0):
    summary = b"".join(chunk(1, value) for value in values)
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + varint(step) + chunk(5, summary)


def scalar(tag, value):
    return chunk(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor(tag, value):
    """As TensorFlow 2 writes scalars: a float tensor with its content as bytes."""
    return chunk(1, tag.encode()) + chunk(8, b"\x08\x01" + chunk(4, struct.pack("<f", value)))


def text(tag, value):
    return chunk(1, tag.encode()) + chunk(8, b"\x08\x07" + chunk(8, value.encode()))


def record(data):
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


VERSION = record(b"\x09" + struct.pack("<d", 999.0) + chunk(3, b"brain.Event:2"))


def test_crc_of_the_standards_example():
    # RFC 3720 B.4: 32 bytes of zeroes have the CRC-32C aa36918a (sent byte by byte), 0x8a9136aa
    crc = 0x8A9136AA
    assert masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_events(path, *records):
    path.write_bytes(VERSION + b"".join(records))
    return path


def test_event_file_with_both_kinds_of_scalars_and_arguments(tmp_path):
    arguments = text("args/text_summary", json.dumps({"per_device_train_batch_size": 8, "learning_rate": 2e-5}))
    path = write_events(
        tmp_path / "events.out.tfevents.1.host",
        record(event(0, [arguments])),
        record(event(10, [scalar("train/loss", 4.5), scalar("train/learning_rate", 2e-5)], 1010.0)),
        record(event(20, [tensor("train/loss", 3.25)], 1020.0)),
        record(event(20, [scalar("eval/loss", 3.5)], 1021.0)),
        record(event(30, [scalar("train/loss", math.nan)], 1030.0)),
    )
    table = read_run(path)
    assert (table.format, table.rows, table.framework) == ("tfevents", 3, "huggingface")
    assert table.columns["step"].tolist() == [10, 20, 30]
    assert table.columns["loss"].tolist()[:2] == [4.5, 3.25] and table.columns["loss_is_nan"].tolist() == [0, 0, 1]
    assert table.columns["eval_loss"][1] == 3.5
    assert table.columns["unix_seconds"].tolist() == [1010, 1021, 1030]
    assert table.facts["micro_batch"] == 8 and table.facts["learning_rate"] == 2e-5


def test_damage_ends_an_event_file_with_a_note_and_a_torn_end_without(tmp_path):
    good = record(event(1, [scalar("loss", 2.0)]))
    bad = bytearray(record(event(2, [scalar("loss", 1.0)])))
    bad[-6] ^= 1
    table = read_run(write_events(tmp_path / "a", good, bytes(bad), good))
    assert table.rows == 1 and any("fails its checksum" in note for note in table.notes)
    torn = read_run(write_events(tmp_path / "b", good, record(event(2, [scalar("loss", 1.0)]))[:-3]))
    assert torn.rows == 1 and not torn.notes


def test_event_files_of_one_folder_are_one_run(tmp_path):
    steps = [record(event(step, [scalar("loss", 9 - step)], 1000.0 + step)) for step in range(1, 6)]
    write_events(tmp_path / "events.out.tfevents.1.a", *steps[:4])
    write_events(tmp_path / "events.out.tfevents.2.a", record(event(3, [scalar("loss", 5.5)], 1010.0)), *steps[3:])
    table = read_run(tmp_path)
    assert (table.format, table.rows, table.last_step) == ("tfevents", 5, 5)
    assert table.columns["loss"].tolist() == [8, 7, 5.5, 5, 4]  # of step 3 the later attempt's


# --- MLflow


def mlflow_run(folder):
    (folder / "metrics").mkdir(parents=True)
    (folder / "params").mkdir()
    (folder / "meta.yaml").write_text("artifact_uri: x\nrun_id: abc\nstatus: 3\n")
    (folder / "params" / "learning_rate").write_text("0.0001")
    (folder / "params" / "n_layer").write_text("4")
    (folder / "metrics" / "loss").write_text(
        "1000000000000 2.5 1\n1000000001000 2.25 2\n1000000002000 nan 3\n1000000003000 2.0 4\n"
    )
    (folder / "metrics" / "val_loss").write_text("1000000001500 2.75 2\n")
    return folder


def test_mlflow_folder_and_single_metric(tmp_path):
    folder = mlflow_run(tmp_path / "mlruns" / "0" / "abc")
    table = read_run(folder)
    assert (table.format, table.rows, table.status) == ("mlflow", 4, Status.COMPLETED)
    assert table.columns["loss"].tolist()[:2] == [2.5, 2.25] and table.columns["loss_is_nan"].tolist() == [0, 0, 1, 0]
    assert table.columns["eval_loss"][1] == 2.75
    assert table.columns["unix_seconds"][0] == 1e9
    assert table.facts["depth"] == 4 and table.facts["learning_rate"] == 1e-4
    assert read_run(folder / "metrics" / "loss").rows == 4
    alone = tmp_path / "metrics" / "loss"
    alone.parent.mkdir()
    alone.write_text("1000000000000 2.5\n1000000001000 2.0\n")  # old clients wrote no step
    assert read_run(alone).last_loss == 2.0


# --- what is none of these


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", b'{"log_history": 3}'),
        ("trainer_state.json", b"[" * 100_000),
        ("trainer_state.json", b'{"log_history": [{"loss": ' + b"9" * 5000 + b"}"),
        ("wandb-summary.json", b'{"_runtime": 1, "_wandb": {'),
        ("events.out.tfevents.1", b"\x18\0\0\0\0\0\0\0" + b"brain.Event:2" * 3),
        ("log.jsonl", b'{"kind":"header","tokens_per_step":1,"schema":99}\n'),
        ("log.jsonl", b'{"kind":"header","tokens_per_step":1}\n{"kind":"step","step":"x","data_seconds":1}\n'),
        ("x.jsonl.gz", b"\x1f\x8b\x08\x00broken"),
        ("empty.csv", b""),
    ],
)
def test_broken_files_are_refused_in_one_sentence(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(AdvisorError) as caught:
        read_run(path)
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


def test_documents_that_unpack_to_too_much_are_refused(tmp_path):
    path = tmp_path / "trainer_state.json.gz"
    path.write_bytes(gzip.compress(b'{"log_history": [' + b" " * MAX_DOCUMENT_BYTES + b'], "global_step": 1}'))
    with pytest.raises(AdvisorError, match="larger than 64 MiB"):
        read_run(path, "hf_trainer_state")


def test_a_log_history_in_a_file_of_its_own(tmp_path):
    rows = [{"loss": 14.75, "grad_norm": 3.6, "learning_rate": 8.75e-05, "epoch": 0.04, "step": 50}]
    rows += [{"loss": 1.2, "grad_norm": 0.6, "learning_rate": 1.7e-04, "epoch": 0.08, "step": 100}]
    rows += [{"eval_loss": 0.99, "eval_runtime": 234.0, "epoch": 0.08, "step": 100}]
    path = tmp_path / "training_logs.json"
    path.write_text(json.dumps(rows))
    run = read_run(path)
    assert (run.first_step, run.last_step, run.first_loss, run.last_loss) == (50.0, 100.0, 14.75, 1.2)
    assert run.status == "no_end_recorded"
    path.write_text(json.dumps([*rows, {"train_runtime": 21663.5, "train_loss": 0.7, "epoch": 3.0, "step": 101}]))
    run = read_run(path)
    assert (run.status, run.facts["total_seconds"], run.last_loss) == ("completed", 21663.5, 1.2)


def test_mlflow_database(tmp_path):
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as database:
        database.execute("create table runs (run_uuid, name, status)")
        database.execute("create table params (key, value, run_uuid)")
        database.execute("create table metrics (key, value, timestamp, run_uuid, step, is_nan)")
        database.execute("insert into runs values ('a', 'short', 'FINISHED'), ('b', 'long', 'FAILED')")
        rows = [("train_loss", 5 - i, 1_700_000_000_000 + 1000 * i, "b", 10 * i, i == 4) for i in range(5)]
        rows += [("val_loss", 3.5, 1_700_000_004_000, "b", 40, False), ("train_loss", 9.0, 1, "a", 0, False)]
        database.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", rows)
    table = read_run(path)
    assert (table.format, table.rows, table.first_step, table.last_step, table.first_loss) == ("sqlite", 5, 0, 40, 5.0)
    assert math.isnan(table.last_loss) and table.columns["eval_loss"][-1] == 3.5
    assert table.status is Status.CRASHED and any("2 runs" in note and "long" in note for note in table.notes)


def test_another_database_says_what_it_holds(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("create table orders (id)")
    with pytest.raises(AdvisorError, match="its tables are orders"):
        read_run(path)


def test_a_history_in_parquet(tmp_path):
    columns = {
        "_step": [0, 1, 2],
        "_timestamp": [1.7e9, 1.7e9 + 1, 1.7e9 + 2],
        "train/loss": [4.0, None, 3.0],
        "note": ["", "", ""],
    }
    path = tmp_path / "history.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    table = read_run(path)
    assert (table.format, table.rows, table.first_step, table.last_step, table.last_loss) == ("parquet", 2, 0, 2, 3.0)
