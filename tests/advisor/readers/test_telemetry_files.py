"""Telemetry of devices in all the ways people record it, tables of the cards' own tools among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.readers.read import read_run
from advisor.readers.telemetry_file import read_telemetry
from trainer.telemetry_files import DeviceBuffer, TelemetryWriter

RECORDED = Path(__file__).parents[1] / "recorded" / "logs"
MIB = 2**20


def test_our_own_parquet_joined_and_in_parts(tmp_path):
    for part in range(2):
        writer = TelemetryWriter(tmp_path, {"hz": 10})
        buffer = DeviceBuffer(0, ("utilization_percent", "memory_used_bytes", "throttle_reasons"))
        host = DeviceBuffer(None, ("cpu_percent",))
        start = 1_772_359_200_000 + part * 1000
        buffer.add(start, 2505, (97, 8 * 2**30, 4))
        buffer.add(start + 100, 2601, None)
        host.add(start, None, (12.5,))
        writer.write_part([buffer, host])
        if part == 0:
            writer.join({})
    telemetry = read_telemetry(tmp_path)
    assert telemetry["power_watts"].tolist() == [250.5, 260.1, 250.5, 260.1]
    assert telemetry["unix_seconds"][-1] - telemetry["unix_seconds"][0] == pytest.approx(1.1)
    assert telemetry["utilization"][0] == 0.97 and np.isnan(telemetry["utilization"][1])
    assert telemetry["throttle_reasons"][0] == 4 and set(telemetry["gpu"].tolist()) == {0}
    assert read_run(tmp_path / "telemetry.parquet").rows == 2


def test_telemetry_of_a_run_without_a_card_says_so(tmp_path):
    writer = TelemetryWriter(tmp_path, {"hz": 2})
    host = DeviceBuffer(None, ("cpu_percent",))
    host.add(1_772_359_200_000, None, (12.5,))
    writer.write_part([host])
    (tmp_path / "log.jsonl").write_bytes((Path(__file__).parents[2] / "recorded" / "small.jsonl").read_bytes())
    with pytest.raises(AdvisorError, match="none of a GPU"):
        read_telemetry(tmp_path)
    table = read_run(tmp_path)
    assert table.rows == 60 and table.telemetry is None and not table.notes


@pytest.mark.parametrize("content", [b"step,loss\n1,2.5\n2,2.4\n", b"PAR1 nonsense", b"hello", b'{"a": 1}\n'])
def test_what_is_no_telemetry_is_refused_in_words(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(AdvisorError):
        read_telemetry(path)


NVIDIA = """\
{when}
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    0 |
| N/A   41C    P0    52W / 300W |   1024MiB / 16160MiB |      {a}%      Default |
|   1  Tesla V100-SXM2...  On   | 00000000:00:1F.0 Off |                    0 |
| N/A   39C    P0    50W / 300W |      3MiB / 16160MiB |      {b}%      Default |
+-----------------------------------------------------------------------------+
|    0   N/A  N/A     14355      C   python                           1021MiB |
+-----------------------------------------------------------------------------+
"""


def written(tmp_path, text):
    path = tmp_path / "gpu.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_nvidia_smi_again_and_again(tmp_path):
    text = "".join(NVIDIA.format(when=f"Fri May 16 00:0{i}:00 2025", a=90 + i, b=0) for i in range(3))
    table = read_run(written(tmp_path, text))
    assert (table.format, table.rows) == ("smi tables", 6)
    assert table.telemetry["gpu"].tolist() == [0, 1, 0, 1, 0, 1]
    assert table.telemetry["utilization"].tolist() == [0.9, 0, 0.91, 0, 0.92, 0]
    assert table.telemetry["memory_used_bytes"][:2].tolist() == [1024 * 2**20, 3 * 2**20]
    assert (table.telemetry["unix_seconds"][2:] - table.telemetry["unix_seconds"][0]).tolist() == [60, 60, 120, 120]


def test_one_of_them_in_a_training_log_is_no_telemetry_file(tmp_path):
    rows = "".join(f"step {i} loss {9 - i}.5\n" for i in range(30))
    table = read_run(written(tmp_path, NVIDIA.format(when="", a=1, b=2) + rows))
    assert (table.format, table.rows) == ("generic", 30)


def test_npu_smi(tmp_path):
    card = "| {i}     910B3               | OK            | 159.6       47                0    / 0             |\n"
    card += "| 0                         | 0000:C{i}:00.0  | {u}           0    / 0          51030/ 65536         |\n"
    table = read_run(written(tmp_path, "| npu-smi 24.1 |\n" + card.format(i=0, u=5) + card.format(i=1, u=33)))
    assert table.telemetry["gpu"].tolist() == [0, 1] and table.telemetry["utilization"].tolist() == [0.05, 0.33]
    assert table.telemetry["memory_used_bytes"].tolist() == [51030 * 2**20] * 2


def test_readings_without_header_and_units(tmp_path):
    rows = [f"{1785951483 + 5 * i},{i % 2 * 97}, {72.6 + i:.2f}, 73543, 81920" for i in range(8)]
    table = read_run(written(tmp_path, "\n".join(rows) + "\n"))
    assert (table.format, table.rows) == ("gpu_csv", 8)
    assert table.telemetry["utilization"][:2].tolist() == [0, 0.97]
    assert table.telemetry["power_watts"][0] == 72.6 and table.telemetry["memory_used_bytes"][0] == 73543 * 2**20
