"""Tables of the cards' own tools, and tables of readings without header and units."""

from __future__ import annotations

from advisor.readers.read import read_run

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


def test_tools_of_amd(tmp_path):
    row = (
        "{i}    2   0x74a1,   28851  43.0°C   141.0W    NPS1, SPX, 0     132Mhz  900Mhz  0%  auto  750.0W  0%   {u}%\n"
    )
    table = read_run(written(tmp_path, "= ROCm-smi =\n" + row.format(i=0, u=7) + row.format(i=1, u=100)))
    assert table.telemetry["utilization"].tolist() == [0.07, 1.0] and table.telemetry["sm_clock_mhz"][0] == 132
    text = "GPU  POWER  GPU_TEMP  MEM_TEMP  GFX_UTIL  GFX_CLOCK  MEM_UTIL  MEM_CLOCK  VRAM_USED  VRAM_TOTAL\n"
    text += "  0  141 W     43 °C     37 °C      12 %    132 MHz       0 %    900 MHz     283 MB   196300 MB\n"
    table = read_run(written(tmp_path, text))
    assert table.telemetry["power_watts"].tolist() == [141] and table.telemetry["utilization"].tolist() == [0.12]
    assert table.telemetry["memory_total_bytes"].tolist() == [196300 * 2**20]


def test_readings_without_header_and_units(tmp_path):
    rows = [f"{1785951483 + 5 * i},{i % 2 * 97}, {72.6 + i:.2f}, 73543, 81920" for i in range(8)]
    table = read_run(written(tmp_path, "\n".join(rows) + "\n"))
    assert (table.format, table.rows) == ("gpu_csv", 8)
    assert table.telemetry["utilization"][:2].tolist() == [0, 0.97]
    assert table.telemetry["power_watts"][0] == 72.6 and table.telemetry["memory_used_bytes"][0] == 73543 * 2**20
