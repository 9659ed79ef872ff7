"""W&B's binary file, written here by its documented format: LevelDB's log with protobuf records inside."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from advisor.readers.wandb_file import Identity, identity

BLOCK = 32768


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def item(field: int, name: str, value: object, *, nested: bool = False) -> bytes:
    """An item of key (1) or nested_key (2) and value_json (16)."""
    keys = [message(2, part.encode()) for part in name.split("/")] if nested else [message(1, name.encode())]
    return message(field, *keys, message(16, json.dumps(value).encode()))


def history(step: int, values: dict, *, nested: bool = False) -> bytes:
    items = [item(1, name, value, nested=nested) for name, value in values.items()]
    return message(2, *items, message(2, number(1, step)))


def log_file(records: list[bytes]) -> bytes:
    """LevelDB's log_format.md: pieces that never cross a block, zeros where less than seven bytes are left."""
    out = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in records:
        left, first = record, True
        while True:
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                room = BLOCK
            piece, left = left[: room - 7], left[room - 7 :]
            kind = (1 if first else 4) if not left else (2 if first else 3)
            out += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            first = False
            if not left:
                break
    return bytes(out)


def run_file(
    *, steps: int = 300, exit_code: int | None = 0, nested: bool = False, console: str = "", notes: int = 100_000
) -> bytes:
    records = [
        message(21),  # header
        message(17, message(1, b"abc"), message(4, item(1, "n_layer", {"desc": None, "value": 12}))),
        # longer than three blocks; the client writes what is set after its start so
        message(5, item(1, "notes", "x" * notes), item(1, "gpu_name", "NVIDIA L4"), item(1, "seq_len", 2048)),
    ]
    for step in range(steps):
        values = {"train/loss": 5 - step / 100, "lr": 1e-3, "_runtime": 2.0 * step, "_timestamp": 1.7e9 + 2 * step}
        records.append(history(step, values, nested=nested))
        if step % 100 == 0:
            stamp = message(2, number(1, 1_700_000_000 + 2 * step), number(2, 500_000_000))
            readings = {"gpu.0.gpu": 96.0, "gpu.0.powerWatts": 280.5, "gpu.0.memoryAllocatedBytes": 2**34, "cpu": 12.0}
            records.append(message(7, stamp, *(item(3, name, value) for name, value in readings.items())))
    records += [message(13, number(1, 0), message(3, f"{line}\n".encode())) for line in console.split("\n") if line]
    records.append(message(3, item(1, "train/loss", 0.5)))  # summary
    if exit_code is not None:
        records.append(message(18, number(1, exit_code), number(2, 600)))
    return log_file(records)


@pytest.mark.parametrize("nested", [False, True])
def test_history_settings_readings_and_exit(tmp_path, nested):
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(run_file(nested=nested))
    run = read_run(path)
    assert (run.format, run.rows, run.first_step, run.last_step) == ("wandb", 300, 0, 299)
    assert (run.first_loss, run.last_loss) == (5.0, pytest.approx(2.01))
    assert run.column("elapsed_seconds")[-1] == 598 and run.column("learning_rate")[0] == 1e-3
    assert (run.facts["depth"], run.facts["seq_len"]) == (12, 2048)
    assert identity(path) == Identity(run="abc", project=None, entity=None)
    assert run.telemetry["power_watts"].tolist() == [280.5] * 3
    assert run.telemetry["unix_seconds"][0] == 1_700_000_000.5 and run.telemetry["memory_used_bytes"][0] == 2**34
    assert (run.status, run.status_reason) == (Status.COMPLETED, "the program ended with exit code 0")


def test_a_crash_is_told_by_console_and_exit_code(tmp_path):
    path = tmp_path / "run.wandb"
    console = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: bad batch'
    path.write_bytes(run_file(exit_code=1, console=console))
    run = read_run(path)
    assert run.status is Status.CRASHED and "bad batch" in run.status_reason
    path.write_bytes(run_file(exit_code=137))
    assert read_run(path).status_reason == "the program ended with exit code 137"
    path.write_bytes(run_file(exit_code=None))
    assert read_run(path).status is Status.NO_END


def test_a_run_folder_with_its_binary_file(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "run-abc.wandb").write_bytes(run_file())
    (tmp_path / "files" / "wandb-metadata.json").write_text('{"gpu": "NVIDIA L4", "gpu_count": 1}')
    (tmp_path / "files" / "wandb-summary.json").write_text('{"_runtime": 600.5, "train/loss": 2.01, "_step": 299}')
    for folder in (tmp_path, tmp_path / "files"):
        run = read_run(folder)
        assert (run.rows, run.facts["gpu"], run.facts["total_seconds"]) == (300, "NVIDIA L4", 600.5)
        assert run.telemetry is not None and run.status is Status.COMPLETED


def test_torn_and_damaged_files_give_what_came_before(tmp_path):
    whole = run_file()
    path = tmp_path / "run.wandb"
    path.write_bytes(whole[:-12_000])  # still being written
    torn = read_run(path)
    assert 150 < torn.rows < 300 and torn.status is Status.NO_END and not torn.notes
    flipped = bytearray(whole)
    flipped[-12_000] ^= 0xFF
    path.write_bytes(flipped)
    damaged = read_run(path)
    assert 150 < damaged.rows < 300 and "fails its checksum" in damaged.notes[-1]
    path.write_bytes(whole[:7] + b"\0" * 100)
    with pytest.raises(AdvisorError, match="no .wandb file"):
        read_run(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_comes_is_a_table_or_one_error(tmp_path, data):
    whole = bytearray(run_file(steps=20, notes=BLOCK))  # two blocks
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(7, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = tmp_path / "run.wandb"
    path.write_bytes(whole)
    try:
        assert read_run(path).rows <= 20
    except AdvisorError as error:
        assert error.message
    # damage that keeps its checksum: the protobuf inside
    record = bytearray(history(3, {"loss": 2.5, "a": [1, {"b": 2}]}))
    record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(log_file([history(1, {"loss": 3.0}), bytes(record)]))
    assert read_run(path).rows in (1, 2)
